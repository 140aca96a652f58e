//! Packets between their departure and their arrival.

use std::collections::VecDeque;

use bentpipe_units::Time;

/// The packets in flight on one direction of a link, in the order of their arrival.
///
/// A link without [reordering](crate::Impairments::reorder) delivers in order: then this is a FIFO, and both
/// ends cost the same however much is in flight. A packet that is held back moves those behind it.
#[derive(Debug)]
pub struct InFlight<T>(VecDeque<(Time, T)>);

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> InFlight<T> {
    /// Adds a packet that arrives `at` this time, behind those that arrive at the same time. Whether it is
    /// now the next one.
    #[inline(always)]
    pub fn launch(&mut self, at: Time, packet: T) -> bool {
        let last = self.0.back().map(|last| last.0);
        if last.is_some_and(|last| last > at) {
            return self.overtake(at, packet);
        }
        self.0.push_back((at, packet));
        last.is_none()
    }

    #[cold]
    fn overtake(&mut self, at: Time, packet: T) -> bool {
        let index = self.0.partition_point(|other| other.0 <= at);
        self.0.insert(index, (at, packet));
        index == 0
    }

    /// The next packet, with the time of its arrival, if that has come.
    pub fn pop_due(&mut self, now: Time) -> Option<(Time, T)> {
        if self.next_at()? <= now { self.0.pop_front() } else { None }
    }

    /// When the next packet arrives; `None` if nothing is in flight.
    pub fn next_at(&self) -> Option<Time> {
        self.0.front().map(|next| next.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_in_order_of_time_and_then_of_launch() {
        let mut in_flight = InFlight::default();
        let packets = [(3, 'c'), (9, 'e'), (3, 'd'), (1, 'a'), (1, 'b')];
        let is_next = packets.map(|(at, packet)| in_flight.launch(Time::from_nanos(at), packet));
        assert_eq!(is_next, [true, false, false, true, false]);
        assert_eq!(in_flight.next_at(), Some(Time::from_nanos(1)));
        let due = |in_flight: &mut InFlight<char>, now| -> String {
            std::iter::from_fn(|| in_flight.pop_due(Time::from_nanos(now)).map(|(_, packet)| packet))
                .collect()
        };
        assert_eq!(due(&mut in_flight, 8), "abcd");
        assert_eq!(due(&mut in_flight, 8), "", "the last one is not due yet");
        assert_eq!(due(&mut in_flight, 9), "e");
        assert_eq!(in_flight.next_at(), None);
    }
}
