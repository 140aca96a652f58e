use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::SystemTime;

use bentpipe_link::packet_log::Step;
use bentpipe_link::{Counters, ImpairmentCounters};
use bentpipe_units::Time;

/// A direction of the link, as the terminal sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heading {
    /// To the terminal.
    Down,
    /// From the terminal.
    Up,
}

/// What a recorder reports.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    /// A frame of `bytes`, the link layer's included, has made a step.
    Frame { at: Time, heading: Heading, number: u64, bytes: usize, step: Step },
    /// The terminal has sent or received an IP packet.
    Packet { at: SystemTime, heading: Heading, packet: Vec<u8> },
    /// A direction has carried its last frame.
    End { at: Time, heading: Heading, counters: Counters, impairments: ImpairmentCounters },
}

/// Reports what a forwarder does to the thread that writes it down. It never waits: where that thread does
/// not keep up, reports are missed and counted.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    pub(crate) heading: Heading,
    pub(crate) events: SyncSender<Event>,
    pub(crate) missed: Arc<AtomicU64>,
    /// Whether frames are recorded.
    pub(crate) frames: bool,
    /// Whether the packets of the terminal are recorded.
    pub(crate) packets: bool,
}

impl Recorder {
    pub(crate) fn frame(&self, at: Time, number: u64, bytes: usize, step: Step) {
        if self.frames {
            self.report(Event::Frame { at, heading: self.heading, number, bytes, step });
        }
    }

    /// Nothing follows. Waits until there is room for it: a log without its sums is not complete.
    pub(crate) fn end(&self, at: Time, counters: Counters, impairments: ImpairmentCounters) {
        let heading = self.heading;
        if self.frames && self.events.send(Event::End { at, heading, counters, impairments }).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A host has sent a packet to the link. Only the terminal's are recorded.
    pub(crate) fn sent_by_host(&self, packet: &[u8]) {
        if self.heading == Heading::Up {
            self.packet(packet);
        }
    }

    /// A host receives a packet from the link. Only the terminal's are recorded.
    pub(crate) fn received_by_host(&self, packet: &[u8]) {
        if self.heading == Heading::Down {
            self.packet(packet);
        }
    }

    fn packet(&self, packet: &[u8]) {
        if self.packets {
            let (at, heading) = (SystemTime::now(), self.heading);
            self.report(Event::Packet { at, heading, packet: packet.to_vec() });
        }
    }

    fn report(&self, event: Event) {
        if self.events.try_send(event).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
