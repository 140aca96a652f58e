//! Delayed duplicate acknowledgements (Vaidya, Mehta, Perkins, Montenegro 1997).

use std::marker::PhantomData;
use std::time::Duration;

use bentpipe_units::Time;
use serde::Serialize;

use super::{Agent, AgentReport, Outbox, Packet};

/// Parameters of [`DelayedDupAck`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DelayedDupAckConfig {
    /// How long the third duplicate ACK and later ones are held: d.
    pub delay: Duration,
    /// Connections that are looked after at a time; those beyond pass as they are.
    pub flows: usize,
    /// SACK blocks are taken out of what passes while a hole is younger than `delay`: a sender that uses them needs no third
    /// duplicate ACK (RFC 6675, RFC 8985).
    pub hide_sack: bool,
}

impl DelayedDupAckConfig {
    /// The usual parameters, and this d.
    pub fn with_delay(delay: Duration) -> Self {
        Self { delay, flows: 100_000, hide_sack: true }
    }
}

/// What a [`DelayedDupAck`] has done so far, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DelayedDupAckCounters {
    /// Duplicate ACKs held back.
    pub held: u64,
}

/// Holds back duplicate ACKs at the terminal, so that the link layer has time to fill the hole.
#[derive(Debug)]
pub struct DelayedDupAck<P>(PhantomData<P>);

impl<P: Packet> DelayedDupAck<P> {
    /// Without any connection yet.
    pub fn new(_config: &DelayedDupAckConfig) -> Self {
        Self(PhantomData)
    }
}

impl<P: Packet> Agent<P> for DelayedDupAck<P> {
    fn outbound(&mut self, _now: Time, packet: P, out: &mut Outbox<P>) {
        out.to_link.push_back(packet);
    }

    fn inbound(&mut self, _now: Time, packet: P, out: &mut Outbox<P>) {
        out.to_host.push_back(packet);
    }

    fn wake_at(&self) -> Time {
        Time::MAX
    }

    fn on_timer(&mut self, _now: Time, _out: &mut Outbox<P>) {}

    fn held_bytes(&self) -> u64 {
        0
    }

    fn report(&self) -> AgentReport {
        AgentReport::DelayedDupAck(DelayedDupAckCounters::default())
    }
}
