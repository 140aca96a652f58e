//! Retransmission by the link layer: selective repeat with a bounded number of retransmissions.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::{ByteCount, Time};
use serde::Serialize;

use super::Packet;
use crate::{FULL_SIZE_PACKET, LinkConfig};

/// Parameters of an [`Arq`]; both ends of a link have the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArqConfig {
    /// How often a packet is sent again at the most.
    pub retransmissions: u32,
    /// Whether packets behind a missing one wait for it.
    pub delivery: Delivery,
    /// The most that is kept for retransmission; the oldest packet gives way.
    pub buffer: ByteCount,
    /// The receiver reports after so many frames without a gap; a gap is reported at once.
    pub report_every: u32,
    /// The receiver reports at the latest this long after a frame.
    pub report_within: Duration,
    /// The round-trip time until it has been measured.
    pub rtt: Duration,
}

/// What happens to packets behind a missing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// They wait until it has come or is given up.
    InOrder,
    /// They are delivered as they come.
    Immediate,
}

/// What two ARQs say to each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArqFrame<P>(pub P);

/// What an ARQ has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ArqCounters {
    /// Packets sent, without retransmissions.
    pub packets: u64,
}

/// One end of a link layer that retransmits.
#[derive(Debug)]
pub struct Arq<P> {
    outgoing: VecDeque<ArqFrame<P>>,
    incoming: VecDeque<P>,
}

impl ArqConfig {
    /// What suits a link: three retransmissions, in order, a buffer for the packets of four round trips.
    pub fn for_link(link: &LinkConfig) -> Self {
        let rtt = link.forward.delay + link.reverse.delay;
        let directions = [&link.forward, &link.reverse];
        let bdp =
            directions.iter().filter_map(|direction| direction.rate).map(|rate| rate.bytes_in(rtt)).max();
        const UNLIMITED_RATE: u64 = 16_000_000;
        Self {
            retransmissions: 3,
            delivery: Delivery::InOrder,
            buffer: ByteCount::new((4 * bdp.unwrap_or(UNLIMITED_RATE)).max(64 * FULL_SIZE_PACKET.get())),
            report_every: 8,
            report_within: Duration::from_millis(20),
            rtt,
        }
    }
}

impl<P: Packet> ArqFrame<P> {
    /// Bytes that it offers to the link.
    pub fn length(&self) -> usize {
        self.0.ip_length()
    }

    /// The packet in it; none in a report.
    pub fn packet(&self) -> Option<&P> {
        Some(&self.0)
    }

    /// The packet in it; none in a report.
    pub fn into_packet(self) -> Option<P> {
        Some(self.0)
    }
}

impl<P: Packet> Arq<P> {
    /// An end at rest.
    pub fn new(_config: &ArqConfig) -> Self {
        Self { outgoing: VecDeque::new(), incoming: VecDeque::new() }
    }

    /// Takes a packet for the other end.
    pub fn send(&mut self, _now: Time, packet: P) {
        self.outgoing.push_back(ArqFrame(packet));
    }

    /// A frame of the other end arrives.
    pub fn on_frame(&mut self, _now: Time, frame: ArqFrame<P>) {
        self.incoming.push_back(frame.0);
    }

    /// The next frame for the link.
    pub fn poll_frame(&mut self) -> Option<ArqFrame<P>> {
        self.outgoing.pop_front()
    }

    /// The next packet that has come from the other end.
    pub fn poll_packet(&mut self) -> Option<P> {
        self.incoming.pop_front()
    }

    /// When [`on_timer`](Self::on_timer) is to be called; [`Time::MAX`] for never.
    pub fn wake_at(&self) -> Time {
        Time::MAX
    }

    /// The time of [`wake_at`](Self::wake_at) has come.
    pub fn on_timer(&mut self, _now: Time) {}

    /// IP bytes of packets that it keeps for retransmission and of those that wait for a missing one.
    pub fn held_bytes(&self) -> u64 {
        0
    }

    /// What it has done so far.
    pub fn counters(&self) -> ArqCounters {
        ArqCounters::default()
    }
}
