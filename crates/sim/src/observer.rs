//! Who looks on while a scenario runs.

use bentpipe_link::{Counters, Fate};
use bentpipe_tcp::{Segment, Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

/// A packet offered to a link.
#[derive(Debug, Clone, Copy)]
pub struct Passage<'a> {
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
    /// What becomes of it.
    pub fate: Fate,
}

/// Is told what happens. Every method has a default that does nothing.
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

    /// Whether it is to be told of each packet.
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

    /// A packet is offered to a link.
    fn packet(&mut self, passage: &Passage<'_>) {
        let _ = passage;
    }
}

/// Nobody looks on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
