//! Distinguishes overflows of a queue from errors of the link.

use std::time::Duration;

/// Queueing delays are sorted into classes of half an octave, from a sixty-fourth of the shortest round trip
/// on. The last class begins at nearly three round trips.
const CLASSES: usize = 16;
const FINEST: u32 = 64;
/// After this many segments all counts are halved, because links change.
const MEMORY: u32 = 4000;
/// With fewer segments at shorter queueing delays, the loss rate of the link itself is unknown.
const LEAST: u32 = 10;

/// The number of segments lost at each queueing delay.
///
/// The errors of a link do not depend on the queue in front of it; a queue loses packets when it is full. So
/// if more are lost at a delay than at all shorter ones, the surplus is due to the queue. This comparison
/// needs no threshold: it holds at any packet error rate and any length of the queue, provided that the delay
/// of a full one can be measured.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LossesByDelay {
    classes: [Class; CLASSES],
    sent: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Class {
    sent: u16,
    lost: u16,
}

/// A class of queueing delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct DelayClass(u8);

impl DelayClass {
    /// The class of a round trip, from its excess over the shortest.
    pub(super) fn of(round_trip: Duration, shortest: Duration) -> Self {
        let queueing = round_trip.saturating_sub(shortest).as_nanos() * u128::from(FINEST);
        let ratio = queueing as f64 / shortest.as_nanos().max(1) as f64;
        let class = if ratio < 1.0 { 0 } else { 1 + (2.0 * libm::log2(ratio)) as usize };
        Self(class.min(CLASSES - 1) as u8)
    }
}

impl LossesByDelay {
    /// This many segments with this delay have arrived.
    pub(super) fn delivered(&mut self, delay: DelayClass, segments: u32) {
        let segments = segments.min(MEMORY);
        self.age(segments);
        self.classes[usize::from(delay.0)].sent += segments as u16;
    }

    /// A segment is lost; the one before it had this delay.
    pub(super) fn lost(&mut self, delay: DelayClass) {
        self.age(1);
        let class = &mut self.classes[usize::from(delay.0)];
        (class.sent, class.lost) = (class.sent + 1, class.lost + 1);
    }

    /// Whether a loss at this delay is probably an overflow of the queue: losses there are twice as frequent
    /// as at shorter delays, and exceed these by five standard deviations and two and a half losses. The
    /// margin is wide because the test is made at every loss, and errors of the link must not be left to the
    /// sender.
    pub(super) fn is_likely_at(&self, delay: DelayClass) -> bool {
        let (below, at) = self.classes.split_at(usize::from(delay.0));
        let sum = |of: fn(&Class) -> u16| below.iter().map(|class| u32::from(of(class))).sum::<u32>();
        let (sent, lost) = (sum(|class| class.sent), sum(|class| class.lost));
        if sent < LEAST {
            return false;
        }
        let expected = (f64::from(lost) + 0.5) / f64::from(sent) * f64::from(at[0].sent);
        let found = f64::from(at[0].lost);
        found >= 2.0 * expected && found >= expected + 5.0 * expected.sqrt() + 2.5
    }

    fn age(&mut self, segments: u32) {
        self.sent += segments;
        if self.sent > MEMORY {
            self.sent = segments;
            for class in &mut self.classes {
                *class = Class { sent: class.sent / 2, lost: class.lost / 2 };
                self.sent += u32::from(class.sent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class of a queueing delay, milliseconds, where the shortest round trip is 640 ms.
    fn class(ms: u64) -> DelayClass {
        DelayClass::of(Duration::from_millis(640 + ms), Duration::from_millis(640))
    }

    /// Counts of milliseconds of queueing, segments that arrived, segments that were lost.
    fn seen(courses: &[(u64, u32, u32)]) -> LossesByDelay {
        let mut losses = LossesByDelay::default();
        for &(ms, arrived, lost) in courses {
            losses.delivered(class(ms), arrived);
            (0..lost).for_each(|_| losses.lost(class(ms)));
        }
        losses
    }

    #[test]
    fn classes_are_half_octaves_of_a_sixty_fourth_of_the_round_trip() {
        let numbers = [0, 9, 10, 14, 15, 20, 29, 40, 640, 5000].map(|ms| class(ms).0);
        assert_eq!(numbers, [0, 0, 1, 1, 2, 3, 4, 5, 13, 15]);
    }

    #[test]
    fn losses_at_a_long_delay_are_overflows_of_the_queue() {
        let losses = seen(&[(0, 500, 0), (100, 40, 4)]);
        assert!(losses.is_likely_at(class(100)));
        assert!(!losses.is_likely_at(class(0)) && !losses.is_likely_at(class(20)));
    }

    #[test]
    fn losses_at_all_delays_are_errors_of_the_link() {
        for percent in [1, 5, 20] {
            let course = |ms| (ms, 500 - 5 * percent, 5 * percent);
            let losses = seen(&[course(0), course(50), course(100), course(600)]);
            for ms in [0, 50, 100, 600] {
                assert!(!losses.is_likely_at(class(ms)), "{percent}% at {ms} ms");
            }
        }
    }

    #[test]
    fn a_queue_shows_beside_a_link_that_loses_one_in_a_hundred() {
        let losses = seen(&[(0, 990, 10), (100, 495, 5), (400, 300, 60)]);
        assert!(losses.is_likely_at(class(400)) && !losses.is_likely_at(class(100)));
    }

    #[test]
    fn three_losses_prove_nothing_and_neither_does_a_queue_that_was_never_empty() {
        assert!(!seen(&[(0, 500, 0), (100, 20, 3)]).is_likely_at(class(100)));
        assert!(!seen(&[(0, 100, 1), (100, 20, 2)]).is_likely_at(class(100)));
        assert!(!seen(&[(0, 9, 0), (100, 20, 10)]).is_likely_at(class(100)));
    }

    #[test]
    fn old_losses_are_forgotten_and_no_count_overflows() {
        let mut losses = seen(&[(0, 500, 0), (100, 40, 30)]);
        assert!(losses.is_likely_at(class(100)));
        (0..20).for_each(|_| losses.delivered(class(100), 1_000_000));
        assert!(!losses.is_likely_at(class(100)));
        (0..100_000).for_each(|_| losses.lost(class(5000)));
        assert!(losses.sent <= MEMORY);
    }
}
