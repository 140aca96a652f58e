//! Observers of a running scenario.

use bentpipe_link::packet_log::Step;
use bentpipe_link::{Cause, Counters, Fate, ImpairmentCounters};
use bentpipe_tcp::{Segment, Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

/// A packet of a flow offered to a link; datagrams of UDP streams are not reported. On a link with agents, it
/// is a packet that a link end sends, retransmissions included; frames without a packet, such as the reports
/// of an ARQ, are not reported, nor are those of a protected leg.
#[derive(Debug, Clone, Copy)]
pub struct OfferedPacket<'a> {
    /// When.
    pub now: Time,
    /// Index of the link.
    pub link: usize,
    /// It goes from the link's first node to its second.
    pub forward: bool,
    /// Index of the flow.
    pub flow: usize,
    /// The endpoint that sent it, counted over all flows: even ones send a leg's data, odd ones receive it.
    pub endpoint: usize,
    /// The segment that it carries.
    pub segment: &'a Segment,
    /// Its fate.
    pub fate: Fate,
}

/// A packet at an end of a link, as a capture on the interface there sees it: one that leaves before the queue,
/// one that comes when it has crossed the link. On a link with agents these are the packets that cross it,
/// retransmissions included; frames without a packet, such as the reports of an ARQ, are not captured.
#[derive(Debug, Clone, Copy)]
pub struct CapturedPacket<'a> {
    /// When.
    pub now: Time,
    /// Index of the link.
    pub link: usize,
    /// Whether it is seen at the link's first node (0) or at its second (1).
    pub end: usize,
    /// Whether it leaves or comes, and what becomes of it.
    pub event: CaptureEvent,
    /// The packet.
    pub content: CapturedContent<'a>,
}

/// What happens to a packet at an end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureEvent {
    /// It is offered to the link, and meets this fate.
    Sent(Fate),
    /// It has crossed the link; so has a second copy, if it was duplicated.
    Received {
        /// One of its bits is wrong. A frame of a protected leg has the wrong bit in its bytes.
        is_corrupted: bool,
    },
}

impl CaptureEvent {
    /// Why it does not arrive.
    pub fn lost(&self) -> Option<Cause> {
        match self {
            Self::Sent(Fate::Drop(cause)) => Some(*cause),
            Self::Sent(Fate::Deliver { .. }) | Self::Received { .. } => None,
        }
    }
}

/// What an IP packet on a link carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapturedContent<'a> {
    /// A segment of TCP.
    Segment {
        /// The endpoint that sent it, counted as in [`OfferedPacket`].
        endpoint: usize,
        /// The segment.
        segment: &'a Segment,
    },
    /// A datagram of a UDP stream.
    Datagram {
        /// Index of the stream.
        stream: usize,
        /// Its number in the stream, from 0 on.
        number: u32,
        /// Bytes of its IP packet.
        ip_bytes: u16,
    },
    /// A frame of a protected leg, as its bytes.
    Frame(&'a [u8]),
}

/// What happens at the sending end of a leg.
#[derive(Debug, Clone, Copy)]
pub enum SenderEvent<'a> {
    /// It sends a segment.
    Sent(&'a Segment),
    /// A segment has come, which it has not handled yet.
    Received(&'a Segment),
    /// It has handled an event, and sent what it may.
    State(&'a Variables, &'a Statistics),
}

/// A step of a packet over a link; on a link with agents, of any frame that a link end sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketStep {
    /// Index of the link.
    pub link: usize,
    /// It goes from the link's first node to its second.
    pub forward: bool,
    /// Which of the packets offered to this direction it is, from 1 on.
    pub number: u64,
    /// IP bytes, of a frame of a protected leg those of its own packet; of a frame of an ARQ, all.
    pub bytes: usize,
    /// The step.
    pub step: Step,
}

/// Observes a run. Every method has a default that does nothing.
pub trait Observer {
    /// Called every few ten thousand events; `false` stops the run.
    fn progress(&mut self, now: Time) -> bool {
        let _ = now;
        true
    }

    /// Whether samples are to be taken at the scenario's interval.
    fn wants_samples(&self) -> bool {
        false
    }

    /// Whether it wants every packet.
    fn watches_packets(&self) -> bool {
        false
    }

    /// A sample of the sending end of a leg.
    fn variables(&mut self, now: Time, flow: usize, leg: usize, variables: &Variables, done: &Statistics) {
        let _ = (now, flow, leg, variables, done);
    }

    /// A sample of the bytes that a splitter holds.
    fn occupancy(&mut self, now: Time, flow: usize, splitter: usize, bytes: u64) {
        let _ = (now, flow, splitter, bytes);
    }

    /// A sample of the bytes that the destination's application has received.
    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        let _ = (now, flow, bytes);
    }

    /// A sample of a direction of a link.
    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        let _ = (now, link, forward, backlog, counters);
    }

    /// A sample of the bytes that the agents and the ARQ at a link's first node (0) or second node (1) hold.
    /// Only of ends that have any.
    fn held(&mut self, now: Time, link: usize, end: usize, bytes: u64) {
        let _ = (now, link, end, bytes);
    }

    /// A packet is offered to a link.
    fn packet(&mut self, offered: &OfferedPacket<'_>) {
        let _ = offered;
    }

    /// Whether it wants every packet at both ends of each link.
    fn captures_packets(&self) -> bool {
        false
    }

    /// A packet leaves or comes at an end of a link.
    fn captured(&mut self, packet: &CapturedPacket<'_>) {
        let _ = packet;
    }

    /// Whether it wants all that happens at the sending ends of legs.
    fn follows_senders(&self) -> bool {
        false
    }

    /// Something happens at the sending end of a leg.
    fn sender(&mut self, now: Time, flow: usize, leg: usize, event: &SenderEvent<'_>) {
        let _ = (now, flow, leg, event);
    }

    /// Whether it wants every step of every packet, and the sums at the end.
    fn follows_packets(&self) -> bool {
        false
    }

    /// A packet makes a step over a link.
    fn step(&mut self, now: Time, step: &PacketStep) {
        let _ = (now, step);
    }

    /// The run has ended: the counters of a direction of a link.
    fn sums(
        &mut self,
        now: Time,
        link: usize,
        forward: bool,
        counters: &Counters,
        impairments: &ImpairmentCounters,
    ) {
        let _ = (now, link, forward, counters, impairments);
    }

    /// The run has ended: the bytes that the source's application of a flow has written, and the
    /// destination's has received, and whether the flow has ended well. Not of flows in bundles.
    fn application(&mut self, now: Time, flow: usize, [written, received]: [u64; 2], is_finished: bool) {
        let _ = (now, flow, written, received, is_finished);
    }
}

/// An observer that does nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Several observers; the run continues while all want it to.
impl Observer for Vec<&mut dyn Observer> {
    fn progress(&mut self, now: Time) -> bool {
        // Every observer is told, even if another one wants to stop: no short circuit.
        self.iter_mut().map(|observer| observer.progress(now)).fold(true, |all, continues| all & continues)
    }

    fn wants_samples(&self) -> bool {
        self.iter().any(|observer| observer.wants_samples())
    }

    fn watches_packets(&self) -> bool {
        self.iter().any(|observer| observer.watches_packets())
    }

    fn variables(&mut self, now: Time, flow: usize, leg: usize, variables: &Variables, done: &Statistics) {
        self.iter_mut().for_each(|observer| observer.variables(now, flow, leg, variables, done));
    }

    fn occupancy(&mut self, now: Time, flow: usize, splitter: usize, bytes: u64) {
        self.iter_mut().for_each(|observer| observer.occupancy(now, flow, splitter, bytes));
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        self.iter_mut().for_each(|observer| observer.received(now, flow, bytes));
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        self.iter_mut().for_each(|observer| observer.queue(now, link, forward, backlog, counters));
    }

    fn held(&mut self, now: Time, link: usize, end: usize, bytes: u64) {
        self.iter_mut().for_each(|observer| observer.held(now, link, end, bytes));
    }

    fn packet(&mut self, offered: &OfferedPacket<'_>) {
        self.iter_mut().for_each(|observer| observer.packet(offered));
    }

    fn captures_packets(&self) -> bool {
        self.iter().any(|observer| observer.captures_packets())
    }

    fn captured(&mut self, packet: &CapturedPacket<'_>) {
        self.iter_mut().for_each(|observer| observer.captured(packet));
    }

    fn follows_senders(&self) -> bool {
        self.iter().any(|observer| observer.follows_senders())
    }

    fn sender(&mut self, now: Time, flow: usize, leg: usize, event: &SenderEvent<'_>) {
        self.iter_mut().for_each(|observer| observer.sender(now, flow, leg, event));
    }

    fn follows_packets(&self) -> bool {
        self.iter().any(|observer| observer.follows_packets())
    }

    fn step(&mut self, now: Time, step: &PacketStep) {
        self.iter_mut().for_each(|observer| observer.step(now, step));
    }

    fn sums(
        &mut self,
        now: Time,
        link: usize,
        forward: bool,
        counters: &Counters,
        impairments: &ImpairmentCounters,
    ) {
        self.iter_mut().for_each(|observer| observer.sums(now, link, forward, counters, impairments));
    }

    fn application(&mut self, now: Time, flow: usize, bytes: [u64; 2], is_finished: bool) {
        self.iter_mut().for_each(|observer| observer.application(now, flow, bytes, is_finished));
    }
}
