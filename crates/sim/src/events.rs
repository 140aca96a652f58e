//! What happens next: one entry for each source of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bentpipe_units::Time;

/// Something that happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// The first packet on a direction of a link arrives at its end.
    Arrival(u32),
    /// An endpoint wants to be woken.
    Wake(u32),
    /// A flow begins.
    Start(u32),
    /// The moment to take a sample.
    Sample,
}

/// The events to come, the earliest first; of those at one time, the one that was scheduled first.
///
/// A direction of a link delivers in order, so only its first packet is here: the queue is as long as there are links and
/// endpoints, however many packets are on their way.
#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Reverse<(Time, u64, Event)>>,
    scheduled: u64,
}

impl Events {
    pub(crate) fn schedule(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse((at, self.scheduled, event)));
    }

    /// The earliest event, if it is not after `end`.
    pub(crate) fn next_until(&mut self, end: Time) -> Option<(Time, Event)> {
        let Reverse((at, _, event)) = *self.heap.peek()?;
        (at <= end).then_some((at, event))
    }

    /// The earliest event is done with; its source has another one at `at`.
    pub(crate) fn reschedule_first(&mut self, at: Time) {
        self.scheduled += 1;
        if let Some(mut first) = self.heap.peek_mut() {
            let Reverse((_, _, event)) = *first;
            *first = Reverse((at, self.scheduled, event));
        }
    }

    /// The earliest event is done with.
    pub(crate) fn remove_first(&mut self) {
        self.heap.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_in_which_they_were_scheduled() {
        let mut events = Events::default();
        let at = Time::from_nanos;
        events.schedule(at(5), Event::Wake(1));
        events.schedule(at(3), Event::Wake(2));
        events.schedule(at(3), Event::Wake(0));
        let mut order = Vec::new();
        while let Some((time, event)) = events.next_until(at(4)) {
            order.push((time, event));
            events.remove_first();
        }
        assert_eq!(order, [(at(3), Event::Wake(2)), (at(3), Event::Wake(0))]);
        assert_eq!(events.next_until(at(4)), None);
    }

    #[test]
    fn a_source_may_put_its_next_event_in_the_place_of_the_first() {
        let mut events = Events::default();
        events.schedule(Time::from_nanos(1), Event::Arrival(0));
        events.schedule(Time::from_nanos(2), Event::Wake(0));
        events.reschedule_first(Time::from_nanos(2));
        assert_eq!(events.next_until(Time::MAX), Some((Time::from_nanos(2), Event::Wake(0))));
    }
}
