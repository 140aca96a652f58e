//! A terminal with the agent, and the segments that pass it.

use std::time::Duration;

use bentpipe_link::agent::delayed_dup_ack::{DelayedDupAck, DelayedDupAckConfig, DelayedDupAckCounters};
use bentpipe_link::agent::{Agent, AgentReport, Outbox, Packet, TcpFlags, TcpHeader};
use bentpipe_units::Time;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;
/// d in the timelines.
pub(crate) const DELAY_MS: u32 = 100;

/// A segment; its `id` tells one that looks like another apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) id: usize,
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) payload: u32,
    pub(crate) window: u16,
    pub(crate) flags: u8,
    pub(crate) sack: Vec<(u32, u32)>,
    pub(crate) says_more: bool,
}

/// The host at the terminal, and the server.
pub(crate) const HOST: u16 = 7;
pub(crate) const SERVER: u16 = 80;

/// An acknowledgement of the host's.
pub(crate) fn ack(ack: u32) -> Segment {
    let (source, destination, flags) = (HOST, SERVER, ACK);
    let (sack, says_more) = (Vec::new(), false);
    Segment { id: 0, source, destination, seq: 500, ack, payload: 0, window: 1000, flags, sack, says_more }
}

impl Segment {
    pub(crate) fn id(self, id: usize) -> Self {
        Self { id, ..self }
    }

    pub(crate) fn flags(self, flags: u8) -> Self {
        Self { flags, ..self }
    }

    pub(crate) fn window(self, window: u16) -> Self {
        Self { window, ..self }
    }

    pub(crate) fn payload(self, payload: u32) -> Self {
        Self { payload, ..self }
    }

    pub(crate) fn sack(self, start: u32, end: u32) -> Self {
        let sack = [&[(start, end)], &self.sack[..]].concat();
        Self { sack, ..self }
    }

    /// The same the other way.
    pub(crate) fn of_server(self, seq: u32) -> Self {
        Self { source: self.destination, destination: self.source, seq, ..self }
    }
}

impl Packet for Segment {
    type End = u16;

    fn ip_length(&self) -> usize {
        40 + self.payload as usize + 8 * self.sack.len()
    }

    fn tcp(&self) -> Option<TcpHeader<'_, u16>> {
        let &Self { source, destination, seq, ack, payload, window, .. } = self;
        let flags = TcpFlags(self.flags);
        Some(TcpHeader { source, destination, seq, ack, payload, window, flags, sack: &self.sack })
    }

    fn says_more(&self) -> bool {
        self.says_more
    }

    fn without_sack(&self) -> Self {
        Self { sack: Vec::new(), ..self.clone() }
    }
}

/// What has left towards the link: when, which segment, and whether it had SACK blocks.
pub(crate) type Left = (u32, usize, bool);

pub(crate) struct Terminal {
    pub(crate) agent: DelayedDupAck<Segment>,
    now_ms: u32,
    next_id: usize,
    left: Vec<Left>,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        Self::with(DelayedDupAckConfig::with_delay(Duration::from_millis(DELAY_MS.into())))
    }

    pub(crate) fn with(config: DelayedDupAckConfig) -> Self {
        Self { agent: DelayedDupAck::new(&config), now_ms: 0, next_id: 0, left: Vec::new() }
    }

    /// The host sends a segment. They are numbered from 0 on.
    pub(crate) fn sends(&mut self, at_ms: u32, segment: Segment) {
        self.until(at_ms);
        let segment = segment.id(self.next_id);
        self.next_id += 1;
        self.act(|agent, now, out| agent.outbound(now, segment, out));
    }

    /// A segment from the server arrives.
    pub(crate) fn receives(&mut self, at_ms: u32, segment: Segment) {
        self.until(at_ms);
        let mut out = Outbox::default();
        self.agent.inbound(at(self.now_ms), segment.clone(), &mut out);
        assert_eq!((out.to_host.pop_front(), out.to_link.len()), (Some(segment), 0), "it passes");
    }

    /// What has left since the last time.
    pub(crate) fn left_until(&mut self, at_ms: u32) -> Vec<Left> {
        self.until(at_ms);
        std::mem::take(&mut self.left)
    }

    pub(crate) fn counters(&self) -> DelayedDupAckCounters {
        match self.agent.report() {
            AgentReport::DelayedDupAck(counters) => counters,
            other => panic!("{other:?}"),
        }
    }

    fn until(&mut self, at_ms: u32) {
        while self.agent.wake_at() <= at(at_ms) {
            self.now_ms = (self.agent.wake_at().as_nanos() / 1_000_000) as u32;
            self.act(|agent, now, out| agent.on_timer(now, out));
        }
        self.now_ms = at_ms;
    }

    fn act(&mut self, act: impl FnOnce(&mut DelayedDupAck<Segment>, Time, &mut Outbox<Segment>)) {
        let mut out = Outbox::default();
        act(&mut self.agent, at(self.now_ms), &mut out);
        let left = out.to_link.into_iter().map(|segment| (self.now_ms, segment.id, !segment.sack.is_empty()));
        self.left.extend(left);
        assert!(out.to_host.is_empty(), "nothing is made up");
    }
}

fn at(ms: u32) -> Time {
    Time::from_nanos(u64::from(ms) * 1_000_000)
}
