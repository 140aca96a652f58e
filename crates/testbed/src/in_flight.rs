use std::collections::VecDeque;

use bentpipe_units::Time;

/// What is on its way in one direction of the link, in the order of its arrival.
#[derive(Debug)]
pub(crate) struct InFlight<T>(VecDeque<Flying<T>>);

/// One copy of what was offered to the link.
#[derive(Debug)]
pub(crate) struct Flying<T> {
    /// When it arrives.
    pub(crate) at: Time,
    /// When its last bit left the transmitter.
    pub(crate) departure: Time,
    /// Bytes that were offered to the link.
    pub(crate) length: usize,
    /// Not what the model delivered but a second one of it.
    pub(crate) duplicate: bool,
    pub(crate) load: T,
}

impl<T> InFlight<T> {
    pub(crate) fn new() -> Self {
        Self(VecDeque::new())
    }

    /// The model delivers in order, so that the place is nearly always the last one.
    pub(crate) fn launch(&mut self, flying: Flying<T>) {
        if self.0.back().is_none_or(|last| last.at <= flying.at) {
            return self.0.push_back(flying);
        }
        let place = self.0.partition_point(|other| other.at <= flying.at);
        self.0.insert(place, flying);
    }

    /// What arrives next, if its time has come.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<Flying<T>> {
        if self.next_at()? <= now { self.0.pop_front() } else { None }
    }

    /// When the next one arrives; none if nothing is on its way.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.0.front().map(|next| next.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flying(at: u64, load: char) -> Flying<char> {
        let at = Time::from_nanos(at);
        Flying { at, departure: Time::ZERO, length: 1, duplicate: false, load }
    }

    #[test]
    fn what_is_launched_arrives_in_order_of_time_and_then_of_launch() {
        let mut in_flight = InFlight::new();
        for (at, load) in [(3, 'c'), (9, 'e'), (3, 'd'), (1, 'a'), (1, 'b')] {
            in_flight.launch(flying(at, load));
        }
        assert_eq!(in_flight.next_at(), Some(Time::from_nanos(1)));
        let due = |in_flight: &mut InFlight<char>, now| -> String {
            std::iter::from_fn(|| in_flight.next_due(Time::from_nanos(now)).map(|flying| flying.load))
                .collect()
        };
        assert_eq!(due(&mut in_flight, 8), "abcd");
        assert_eq!(due(&mut in_flight, 8), "", "the last one is not due yet");
        assert_eq!(due(&mut in_flight, 9), "e");
        assert_eq!(in_flight.next_at(), None);
    }
}
