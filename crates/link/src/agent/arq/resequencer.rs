//! The receiver of packets, which delivers each of them once.

use std::collections::VecDeque;

use super::{ArqConfig, Delivery, Output, Packet, pop_front_if, span_of};

/// Which numbers have arrived, and the packets that wait for missing ones.
#[derive(Debug)]
pub(super) struct Resequencer<P> {
    delivery: Delivery,
    buffer: u64,
    span: u64,
    /// All below have been delivered or skipped.
    expected: u64,
    /// The numbers from `expected` on; if there are any, the first is missing, and the last is not.
    slots: VecDeque<Slot<P>>,
    waiting_bytes: u64,
}

#[derive(Debug)]
enum Slot<P> {
    Missing,
    Delivered,
    Waiting(P),
}

impl<P: Packet> Resequencer<P> {
    pub(super) fn new(config: &ArqConfig) -> Self {
        Self {
            delivery: config.delivery,
            buffer: config.buffer.get(),
            span: span_of(config) as u64,
            expected: 0,
            slots: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

    /// Begins with another incarnation of the sender: delivers the packets that wait.
    pub(super) fn begin(&mut self, expected: u64, out: &mut Output<P>) {
        self.release_all(out);
        self.expected = expected;
    }

    /// A packet has arrived. If it is below `floor`, it is the last one there.
    pub(super) fn on_packet(&mut self, number: u64, floor: u64, packet: P, out: &mut Output<P>) {
        self.on_floor(floor.min(number), out);
        while number.saturating_sub(self.expected) >= self.span {
            if self.slots.is_empty() {
                self.on_floor(number, out);
            } else {
                self.skip_hole(out);
            }
        }
        match number.checked_sub(self.expected) {
            Some(index) if !self.has_arrived(index) => self.insert(index as usize, packet, out),
            _ => out.counters.duplicates += 1,
        }
        self.release_run(out);
        while self.waiting_bytes > self.buffer {
            self.skip_hole(out);
        }
        self.on_floor(floor, out);
    }

    /// No packet below `floor` will arrive any more.
    pub(super) fn on_floor(&mut self, floor: u64, out: &mut Output<P>) {
        while self.expected < floor {
            match self.slots.pop_front() {
                Some(slot) => self.deliver(slot, out),
                None => {
                    out.counters.skipped = out.counters.skipped.saturating_add(floor - self.expected);
                    self.expected = floor;
                }
            }
        }
        self.release_run(out);
    }

    /// Skips all missing packets.
    pub(super) fn release_all(&mut self, out: &mut Output<P>) {
        while !self.slots.is_empty() {
            self.skip_hole(out);
        }
    }

    /// Whether packets wait.
    pub(super) fn is_waiting(&self) -> bool {
        self.delivery == Delivery::InOrder && !self.slots.is_empty()
    }

    pub(super) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    fn has_arrived(&self, index: u64) -> bool {
        self.slots.get(index as usize).is_some_and(|slot| !matches!(slot, Slot::Missing))
    }

    fn insert(&mut self, index: usize, packet: P, out: &mut Output<P>) {
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || Slot::Missing);
        }
        self.slots[index] = match self.delivery {
            Delivery::InOrder => {
                self.waiting_bytes += packet.ip_length() as u64;
                Slot::Waiting(packet)
            }
            Delivery::Immediate => {
                out.deliver(packet);
                Slot::Delivered
            }
        };
    }

    fn release_run(&mut self, out: &mut Output<P>) {
        while let Some(slot) = pop_front_if(&mut self.slots, |slot| !matches!(slot, Slot::Missing)) {
            self.deliver(slot, out);
        }
    }

    fn skip_hole(&mut self, out: &mut Output<P>) {
        while let Some(slot) = pop_front_if(&mut self.slots, |slot| matches!(slot, Slot::Missing)) {
            self.deliver(slot, out);
        }
        self.release_run(out);
    }

    /// Delivers or skips the first slot.
    fn deliver(&mut self, slot: Slot<P>, out: &mut Output<P>) {
        self.expected = self.expected.saturating_add(1);
        match slot {
            Slot::Missing => out.counters.skipped = out.counters.skipped.saturating_add(1),
            Slot::Delivered => {}
            Slot::Waiting(packet) => {
                self.waiting_bytes -= packet.ip_length() as u64;
                out.deliver(packet);
            }
        }
    }
}
