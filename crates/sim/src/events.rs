//! The event queue: one entry for each source of events.

use bentpipe_units::Time;

/// Something that happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The first packet on a direction of a link arrives at its end.
    Arrival(u32),
    /// The first frame on a direction of a link with something at its ends arrives at its end.
    Frame(u32),
    /// An endpoint wants to be woken.
    Wake(u32),
    /// The link end in front of a direction of a link wants to be woken.
    Alarm(u32),
    /// New rates are due for the shared direction of this number.
    Rates(u32),
    /// The session between two bundle nodes, by its sending end, wants to be woken.
    Session(u32),
    /// A flow begins.
    Start(u32),
    /// The next datagram of a UDP stream is due.
    Datagram(u32),
    /// The moment to take a sample.
    Sample,
}

/// The wake-up, of something that wants to be woken, that is in the queue of events. It may come too early,
/// and is then put off: so what sets its timer anew with each packet has one entry all the same.
#[derive(Debug)]
pub(crate) struct Alarm {
    scheduled: Time,
    /// It has fired, and its entry is still the earliest event: the next one takes its place.
    firing: bool,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { scheduled: Time::MAX, firing: false }
    }
}

impl Alarm {
    /// Something happened to the sleeper, which wants to be woken at `due` by `event`.
    #[inline]
    pub(crate) fn set(&mut self, events: &mut Events, due: Time, event: Event) {
        if due < self.scheduled {
            self.scheduled = due;
            if std::mem::take(&mut self.firing) {
                debug_assert_eq!(events.first(), Some(event), "the event of the alarm that fires");
                events.reschedule_first(due);
            } else {
                events.schedule(due, event);
            }
        }
    }

    /// The earliest event is this alarm's. Returns whether it fires now, where `due` is the time at which its
    /// owner wants to be woken: then the event is [done](Self::done) with when it has been handled, else it
    /// is removed or postponed.
    pub(crate) fn fires(&mut self, events: &mut Events, now: Time, due: Time) -> bool {
        if self.scheduled != now {
            // An earlier one took its place.
            events.remove_first();
            return false;
        }
        if due > now {
            // It was put off meanwhile.
            self.scheduled = due;
            match due {
                Time::MAX => events.remove_first(),
                due => events.reschedule_first(due),
            }
            return false;
        }
        self.scheduled = Time::MAX;
        self.firing = true;
        true
    }

    /// What it fired for has been handled; meanwhile no other event was removed or postponed.
    #[inline]
    pub(crate) fn done(&mut self, events: &mut Events) {
        if std::mem::take(&mut self.firing) {
            events.remove_first();
        }
    }
}

/// The events to come, the earliest first; of those at one time, the one that was scheduled first.
///
/// Of the packets in flight on a direction of a link only the next one is here: the queue is as long as there
/// are links and endpoints, however many packets are in flight. A packet that overtakes the next one gets an
/// event too; the event of the overtaken one then comes without a packet, or for another packet that is due
/// at its time.
///
/// They lie in a heap of four children to a node. Which of two events is the earlier is as good as random,
/// and a wrong guess costs the processor more than both comparisons: so the earliest child is found without a
/// branch, for which a key is one number, and all of a node's children exist, [`NONE`] where there is none.
#[derive(Debug, Default)]
pub(crate) struct Events {
    heap: Vec<Entry>,
    len: usize,
    scheduled: u64,
}

/// An event with its place in the order: the time, and below it which one it is of all that were scheduled.
type Entry = (u128, Event);

/// Children of a node in the heap.
const CHILDREN: usize = 4;
/// Behind the last event.
const NONE: Entry = (u128::MAX, Event::Sample);

impl Events {
    pub(crate) fn schedule(&mut self, at: Time, event: Event) {
        let entry = (self.next_key(at), event);
        let mut place = self.len;
        self.len += 1;
        if self.heap.len() < self.len + CHILDREN {
            self.heap.resize(2 * self.len + CHILDREN, NONE);
        }
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent].0 < entry.0 {
                break;
            }
            self.heap[place] = self.heap[parent];
            place = parent;
        }
        self.heap[place] = entry;
    }

    /// The earliest event, if it is not after `end`.
    #[inline]
    pub(crate) fn next_until(&self, end: Time) -> Option<(Time, Event)> {
        let &(key, event) = self.heap.first().filter(|_| self.len > 0)?;
        let at = Time::from_nanos((key >> 64) as u64);
        (at <= end).then_some((at, event))
    }

    /// The earliest event.
    fn first(&self) -> Option<Event> {
        self.heap.first().filter(|_| self.len > 0).map(|entry| entry.1)
    }

    /// Replaces the earliest event by the next one of its source, at `at`.
    #[inline]
    pub(crate) fn reschedule_first(&mut self, at: Time) {
        let key = self.next_key(at);
        if self.len > 0 {
            self.place_from_top((key, self.heap[0].1));
        }
    }

    /// Removes the earliest event.
    pub(crate) fn remove_first(&mut self) {
        let Some(last) = self.len.checked_sub(1) else { return };
        self.len = last;
        let entry = std::mem::replace(&mut self.heap[last], NONE);
        if last > 0 {
            self.place_from_top(entry);
        }
    }

    fn next_key(&mut self, at: Time) -> u128 {
        self.scheduled += 1;
        u128::from(at.as_nanos()) << 64 | u128::from(self.scheduled)
    }

    /// Puts an entry into the place of the first one, and those that are earlier above it.
    fn place_from_top(&mut self, entry: Entry) {
        let mut place = 0;
        loop {
            let first = CHILDREN * place + 1;
            let Some(children) = self.heap.get(first..first + CHILDREN) else { break };
            let earlier = |one: usize, other: usize| {
                if children[other].0 < children[one].0 { other } else { one }
            };
            let child = earlier(earlier(0, 1), earlier(2, 3));
            if entry.0 < children[child].0 {
                break;
            }
            self.heap[place] = children[child];
            place = first + child;
        }
        self.heap[place] = entry;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn an_alarm_that_comes_too_early_is_put_off_and_one_that_was_overtaken_is_forgotten() {
        let (mut events, mut alarm) = (Events::default(), Alarm::default());
        let at = Time::from_nanos;
        alarm.set(&mut events, at(5), Event::Alarm(0));
        alarm.set(&mut events, at(9), Event::Alarm(0));
        alarm.set(&mut events, at(3), Event::Alarm(0));
        let mut next = |due| {
            let (now, _) = events.next_until(Time::MAX)?;
            let fires = alarm.fires(&mut events, now, due);
            alarm.done(&mut events);
            Some((now, fires))
        };
        assert_eq!(next(at(7)), Some((at(3), false)), "due later: put off");
        assert_eq!(next(at(7)), Some((at(5), false)), "the one that was overtaken");
        assert_eq!(next(at(7)), Some((at(7), true)));
        assert_eq!(next(at(7)), None);
    }

    #[test]
    fn an_alarm_that_is_set_while_it_fires_keeps_its_entry() {
        let (mut events, mut alarm) = (Events::default(), Alarm::default());
        let at = Time::from_nanos;
        alarm.set(&mut events, at(3), Event::Alarm(7));
        assert!(alarm.fires(&mut events, at(3), at(3)));
        events.schedule(at(4), Event::Sample);
        alarm.set(&mut events, at(9), Event::Alarm(7));
        alarm.set(&mut events, at(8), Event::Alarm(7));
        alarm.done(&mut events);
        let mut order = Vec::new();
        while let Some(next) = events.next_until(Time::MAX) {
            order.push(next);
            events.remove_first();
        }
        assert_eq!(order, [(at(4), Event::Sample), (at(8), Event::Alarm(7)), (at(9), Event::Alarm(7))]);
    }

    #[test]
    fn a_source_may_put_its_next_event_in_the_place_of_the_first() {
        let mut events = Events::default();
        events.schedule(Time::from_nanos(1), Event::Arrival(0));
        events.schedule(Time::from_nanos(2), Event::Wake(0));
        events.reschedule_first(Time::from_nanos(2));
        assert_eq!(events.next_until(Time::MAX), Some((Time::from_nanos(2), Event::Wake(0))));
    }

    proptest! {
        #[test]
        fn they_come_as_from_a_sorted_list(
            steps in prop::collection::vec((0u64..50, 0usize..4), 1..200),
        ) {
            let (mut events, mut sorted) = (Events::default(), Vec::new());
            for (number, (at, what)) in steps.into_iter().enumerate() {
                let (at, new) = (Time::from_nanos(at), Event::Wake(number as u32));
                match what {
                    0 if !sorted.is_empty() => {
                        events.remove_first();
                        sorted.remove(0);
                    }
                    1 if !sorted.is_empty() => {
                        events.reschedule_first(at);
                        let (_, _, event) = sorted.remove(0);
                        sorted.push((at, number, event));
                    }
                    _ => {
                        events.schedule(at, new);
                        sorted.push((at, number, new));
                    }
                }
                sorted.sort_by_key(|&(at, number, _)| (at, number));
                let first = sorted.first().map(|&(at, _, event)| (at, event));
                prop_assert_eq!(events.next_until(Time::MAX), first);
            }
        }
    }
}
