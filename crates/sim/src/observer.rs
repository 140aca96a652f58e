//! Observers of a running scenario.

use bentpipe_link::{Counters, Fate};
use bentpipe_tcp::{Segment, Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

/// A packet offered to a link. On a link with agents, it is a packet that a link end sends, retransmissions
/// included; frames without a packet, such as the reports of an ARQ, are not reported.
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
}
