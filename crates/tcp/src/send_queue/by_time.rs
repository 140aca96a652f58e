//! Losses by the order of departures: the part of RACK that walks the scoreboard (RFC 8985 §6.2, step 5).

use std::time::Duration;

use bentpipe_units::Time;

use super::{Fate, SendQueue};

/// When a segment left, and where it ends: of those that left at one moment the one with the larger end left
/// later (RFC 8985, `RACK_sent_after`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Departure {
    pub(crate) at: Time,
    pub(crate) end: u64,
}

/// What a search has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Detected {
    /// When the next segment will count as lost, if nothing is heard of it.
    pub(crate) next: Option<Time>,
    /// A retransmission was lost.
    pub(crate) repetition: bool,
}

impl SendQueue {
    /// A segment is lost that left before `newest`, one that has arrived, and longer than `wait` ago, and has
    /// not arrived itself.
    ///
    /// Departures are two lists in the order of time, those of new data (which is the order of offsets) and
    /// those of retransmissions. Each is walked from where the last search has ended.
    pub(crate) fn detect_losses(&mut self, now: Time, newest: Departure, wait: Duration) -> Detected {
        let first = self.detect_first_transmissions(now, newest, wait);
        let (repeated, repetition) = self.detect_repetitions(now, newest, wait);
        let next = first.into_iter().chain(repeated).min();
        Detected { next, repetition }
    }

    fn detect_first_transmissions(&mut self, now: Time, newest: Departure, wait: Duration) -> Option<Time> {
        let mut index = self.index_of(self.judged);
        while let Some(segment) = self.segments.get_mut(index) {
            match segment.fate {
                Fate::Sacked => {
                    let end = self.sacked.containing(segment.start).map_or(segment.end(), |range| range.1);
                    self.judged = self.judged.max(end);
                    index = self.index_of(end);
                    continue;
                }
                Fate::InFlight if segment.departure() >= newest => return None,
                Fate::InFlight if segment.at + wait > now => return Some(segment.at + wait),
                Fate::InFlight => {
                    let (start, len) = (segment.start, u64::from(segment.len));
                    segment.fate = Fate::Lost;
                    self.lost_bytes += len;
                    self.ever_lost += len;
                    self.resent = self.resent.min(start);
                }
                Fate::Lost | Fate::Retransmitted | Fate::Doubled => {}
            }
            self.judged = self.judged.max(segment.end());
            index += 1;
        }
        None
    }

    fn detect_repetitions(&mut self, now: Time, newest: Departure, wait: Duration) -> (Option<Time>, bool) {
        let Some(mut repetitions) = self.repetitions.take() else { return (None, false) };
        let (mut next, mut found) = (None, false);
        while let Some(&(start, at)) = repetitions.front() {
            let index = self.index_of(start);
            let waiting = self.segments.get_mut(index).filter(|segment| {
                segment.at == at && matches!(segment.fate, Fate::Retransmitted | Fate::Doubled)
            });
            if let Some(segment) = waiting {
                if segment.departure() >= newest {
                    break;
                }
                if at + wait > now {
                    next = Some(at + wait);
                    break;
                }
                let (start, len, fate) = (segment.start, u64::from(segment.len), segment.fate);
                segment.fate = Fate::Lost;
                self.discount(fate, len);
                self.lost_bytes += len;
                self.ever_lost += len;
                self.resent = self.resent.min(start);
                found = true;
            }
            repetitions.pop_front();
        }
        self.repetitions = Some(repetitions);
        (next, found)
    }

    /// The retransmission timer has expired: the first segment is lost, and all that left longer than `wait`
    /// ago (RFC 8985 §6.3). If the first one was selectively acknowledged, the receiver has thrown away what
    /// it had, and all is lost (RFC 2018 §8).
    pub(crate) fn lose_expired(&mut self, now: Time, wait: Duration) {
        if self.segments.front().is_some_and(|front| front.fate == Fate::Sacked) {
            return self.lose_all();
        }
        self.lose_head();
        self.detect_losses(now, Departure { at: Time::MAX, end: u64::MAX }, wait);
    }

    /// Retransmissions that are on their way: how many, and when the first of them left.
    pub(crate) fn repetitions_in_flight(&self) -> (u64, Option<Time>) {
        let known = self.repetitions.iter().flatten().filter(|&&(start, at)| {
            self.segments.get(self.index_of(start)).is_some_and(|segment| {
                segment.at == at && matches!(segment.fate, Fate::Retransmitted | Fate::Doubled)
            })
        });
        known.fold((0, None), |(count, first), &(_, at)| (count + 1, first.or(Some(at))))
    }

    /// Nothing was lost, after all: what waits to be sent again is on its way, and what has been sent again
    /// is so twice.
    pub(crate) fn unmark_losses(&mut self) {
        if self.unrepaired_bytes() == 0 {
            return;
        }
        for segment in &mut self.segments {
            segment.fate = match segment.fate {
                Fate::Lost => Fate::InFlight,
                Fate::Retransmitted => Fate::Doubled,
                fate => fate,
            };
        }
        self.doubled_bytes += self.retransmitted_bytes;
        (self.lost_bytes, self.retransmitted_bytes) = (0, 0);
        (self.judged, self.resent) = (self.una, self.una);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send_queue::Progress;

    const MSS: u64 = 100;

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    /// Segments that leave each 10 ns.
    fn queue(segments: u64) -> SendQueue {
        let mut queue = SendQueue::new(0);
        queue.note_repetitions();
        (0..segments).for_each(|n| queue.push(MSS as u32, at(10 * n)));
        queue
    }

    fn sack(queue: &mut SendQueue, first: u64, end: u64) -> Progress {
        let mut progress = Progress::default();
        queue.sack(first * MSS, end * MSS, &mut progress);
        progress
    }

    fn lost(queue: &SendQueue) -> Vec<u64> {
        let lost = queue.segments.iter().filter(|segment| segment.fate == Fate::Lost);
        lost.map(|segment| segment.start / MSS).collect()
    }

    #[test]
    fn what_left_before_an_arrived_segment_is_lost_when_its_time_is_over() {
        let mut queue = queue(5);
        let newest = sack(&mut queue, 2, 3).sent_once.unwrap();
        let wait = Duration::from_nanos(100);
        let detected = queue.detect_losses(at(99), newest, wait);
        assert_eq!((detected.next, lost(&queue)), (Some(at(100)), vec![]));
        let detected = queue.detect_losses(at(105), newest, wait);
        assert_eq!((detected.next, lost(&queue)), (Some(at(110)), vec![0]));
        let detected = queue.detect_losses(at(110), newest, wait);
        assert_eq!((detected, lost(&queue)), (Detected::default(), vec![0, 1]), "and none behind it");
    }

    #[test]
    fn of_one_burst_the_segments_below_the_arrived_one_left_before_it() {
        let mut queue = SendQueue::new(0);
        (0..4).for_each(|_| queue.push(MSS as u32, at(0)));
        let newest = sack(&mut queue, 2, 3).sent_once.unwrap();
        queue.detect_losses(at(50), newest, Duration::from_nanos(50));
        assert_eq!(lost(&queue), [0, 1]);
    }

    #[test]
    fn a_retransmission_is_lost_when_one_that_left_later_has_arrived() {
        let mut queue = queue(4);
        let newest = sack(&mut queue, 2, 4).sent_once.unwrap();
        queue.detect_losses(at(100), newest, Duration::ZERO);
        [0, 1].into_iter().for_each(|n| queue.sent_again(n * MSS, at(100 + n)));
        let newest = sack(&mut queue, 1, 2).repeated.unwrap();
        let detected = queue.detect_losses(at(150), newest, Duration::from_nanos(51));
        assert_eq!(detected, Detected { next: Some(at(151)), repetition: false });
        let detected = queue.detect_losses(at(151), newest, Duration::from_nanos(51));
        assert!(detected.repetition);
        assert_eq!((lost(&queue), queue.ever_lost()), (vec![0], 3 * MSS));
    }

    #[test]
    fn a_timeout_loses_the_first_segment_and_those_that_left_long_ago() {
        let mut queue = queue(5);
        queue.lose_expired(at(110), Duration::from_nanos(100));
        assert_eq!(lost(&queue), [0, 1]);
        queue.unmark_losses();
        assert_eq!((lost(&queue), queue.in_flight()), (vec![], 5 * MSS));
        queue.detect_losses(at(1000), Departure { at: at(11), end: 0 }, Duration::ZERO);
        assert_eq!(lost(&queue), [0, 1], "what was unmarked can be lost again");
        queue.sent_again(0, at(1000));
        queue.unmark_losses();
        assert_eq!((queue.unrepaired_bytes(), queue.in_flight()), (0, 6 * MSS), "one is on its way twice");
    }
}
