//! CoDel (RFC 8289): which packets of a queue tell their sender that it sends too much.

use std::time::Duration;

use bentpipe_units::Time;

/// The wait that is no sign of too much, and how long it may be longer before the first signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// RFC 8289 §4.4.
    pub(crate) target: Duration,
    /// RFC 8289 §4.3: a round trip.
    pub(crate) interval: Duration,
    /// So long a wait is a sign at once.
    pub(crate) at_once: Duration,
}

/// The state of one queue. The caller asks [`judge`](Self::judge) for each packet that leaves it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Codel {
    /// When the wait will have been above the target for an interval.
    first_above: Option<Time>,
    dropping: bool,
    drop_next: Time,
    /// Signals since dropping began, and how many they were when it began last.
    count: u32,
    last_count: u32,
}

/// Whether a packet tells its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It does not.
    Pass,
    /// It is marked, or dropped if that cannot be; then the next one is judged, too.
    Signal,
}

impl Codel {
    /// Judges the packet that is about to leave after this wait; `short`: there is not even a packet more
    /// behind it, so that the queue is not standing (RFC 8289 §5.6, `okToDrop`).
    pub(crate) fn judge(&mut self, waited: Duration, short: bool, now: Time, limits: Limits) -> Verdict {
        let above = self.is_above(waited, short, now, limits);
        if !above {
            self.dropping = false;
            return Verdict::Pass;
        }
        if self.dropping {
            if now < self.drop_next {
                return Verdict::Pass;
            }
            self.count = self.count.saturating_add(1);
            self.drop_next = control_law(self.drop_next, limits.interval, self.count);
            return Verdict::Signal;
        }
        // RFC 8289 §5.6: where dropping ended lately, it goes on near the rate that held the queue.
        let delta = self.count.saturating_sub(self.last_count);
        let lately = now - self.drop_next < 16 * limits.interval;
        self.dropping = true;
        self.count = if delta > 1 && lately { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = control_law(now, limits.interval, self.count);
        Verdict::Signal
    }

    /// The queue is empty.
    pub(crate) fn on_empty(&mut self) {
        self.first_above = None;
        self.dropping = false;
    }

    fn is_above(&mut self, waited: Duration, short: bool, now: Time, limits: Limits) -> bool {
        if waited < limits.target || short {
            self.first_above = None;
            return false;
        }
        let first_above = self.first_above.get_or_insert(now + limits.interval);
        if waited >= limits.at_once {
            *first_above = now.min(*first_above);
        }
        now >= *first_above
    }
}

/// RFC 8289 §4.2: the signals get closer with the square root of their count, to which the throughput of
/// senders is inversely proportional.
fn control_law(from: Time, interval: Duration, count: u32) -> Time {
    from + interval.div_f64(libm::sqrt(f64::from(count.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        target: Duration::from_millis(5),
        interval: Duration::from_millis(100),
        at_once: Duration::from_millis(50),
    };

    fn millis(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    /// When packets signal that leave each millisecond after this wait.
    fn signals(codel: &mut Codel, waited: u64, span: std::ops::Range<u64>) -> Vec<u64> {
        let waited = Duration::from_millis(waited);
        span.filter(|at| codel.judge(waited, false, millis(*at), LIMITS) == Verdict::Signal).collect()
    }

    #[test]
    fn signals_begin_after_an_interval_and_get_closer_by_the_square_root() {
        // 100 ms, then 100/√1, 100/√2, 100/√3 … later, rounded up to the next packet.
        assert_eq!(signals(&mut Codel::default(), 6, 0..500), [100, 200, 271, 329, 379, 424, 464]);
    }

    #[test]
    fn a_wait_below_the_target_or_a_queue_of_one_packet_is_none() {
        let mut codel = Codel::default();
        assert_eq!(signals(&mut codel, 4, 0..1000), [0; 0]);
        assert_eq!(signals(&mut codel, 6, 1000..1090), [0; 0], "a burst");
        assert_eq!(codel.judge(Duration::from_secs(1), true, millis(1090), LIMITS), Verdict::Pass);
        assert_eq!(signals(&mut codel, 6, 1091..1192), [1191]);
    }

    #[test]
    fn a_long_wait_is_a_sign_at_once_and_signals_keep_their_distance_all_the_same() {
        assert_eq!(signals(&mut Codel::default(), 50, 0..300), [0, 100, 171, 229, 279]);
    }

    /// Until it is below the target it is one queue, of which the sender has been told.
    #[test]
    fn a_wait_that_swings_about_the_longest_one_is_signalled_as_one_that_stays() {
        let mut codel = Codel::default();
        let waits = (0..300).map(|at| (at, if at % 10 < 5 { 50 } else { 45 }));
        let signals = waits.filter(|&(at, waited)| {
            codel.judge(Duration::from_millis(waited), false, millis(at), LIMITS) == Verdict::Signal
        });
        assert_eq!(signals.map(|(at, _)| at).collect::<Vec<_>>(), [0, 100, 171, 229, 279]);
    }

    #[test]
    fn what_held_the_queue_lately_is_where_it_begins_again() {
        let mut codel = Codel::default();
        let first = signals(&mut codel, 6, 0..2000);
        signals(&mut codel, 1, 2000..2010);
        let again = signals(&mut codel, 6, 2010..2500);
        assert!(again[0] == 2110 && again[1] - again[0] < 40, "{again:?} after {}", first.len());
    }
}
