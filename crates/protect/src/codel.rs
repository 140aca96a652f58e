//! CoDel (RFC 8289): which packets of a queue tell their sender that it sends too much.

use std::time::Duration;

use bentpipe_units::Time;

/// The wait that is no sign of too much, and how long it may be longer before a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// RFC 8289 §4.4.
    pub(crate) target: Duration,
    /// RFC 8289 §4.3: a round trip.
    pub(crate) interval: Duration,
    /// How long it takes until a sender's answer to a signal is complete.
    pub(crate) answer: Duration,
    /// So long a wait is a sign at once.
    pub(crate) at_once: Duration,
}

/// One sender needs so many signals for a slow start that has passed the link's rate. A queue that stands after
/// them is of several, as in a tunnel, who need one each.
const OF_ONE_SENDER: u32 = 3;
/// Then signals get closer with this power of their count. RFC 8289 §4.2 has 1/2, as Reno's throughput falls with
/// the square root of the signals; CUBIC's falls with this power (RFC 9438 §5.1). What passes through a tunnel with
/// many connections waits less than with 1/2. With ten of CUBIC more of it is dropped, with thirty as much.
const CLOSER: f64 = 0.75;

/// The state of one queue. The caller asks [`judge`](Self::judge) for each packet that leaves it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Codel {
    /// When the wait will have been above the target for an interval.
    first_above: Option<Time>,
    dropping: bool,
    last_signal: Option<Time>,
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
        if !self.is_above(waited, short, now, limits) {
            self.dropping = false;
            return Verdict::Pass;
        }
        let since = self.last_signal.map(|last| now - last);
        let lately = since.is_some_and(|since| since < 16 * limits.interval);
        let delta = self.count.saturating_sub(self.last_count);
        let signals = match self.dropping {
            true => self.count,
            // RFC 8289 §5.6: where dropping ended lately, it goes on near the rate that held the queue.
            false if lately && delta > 1 => delta - 1,
            false => 0,
        };
        if since.is_some_and(|since| since < spacing(signals, limits)) {
            return Verdict::Pass;
        }
        self.count = signals.saturating_add(1);
        if !self.dropping {
            self.last_count = self.count;
        }
        self.dropping = true;
        self.last_signal = Some(now);
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

/// How long after the last of so many signals the next one comes. A sender alone is not told again before its
/// answer is complete: it would reduce its window twice for one queue.
fn spacing(signals: u32, limits: Limits) -> Duration {
    if signals <= OF_ONE_SENDER {
        return limits.answer;
    }
    limits.interval.div_f64(libm::pow(f64::from(signals), CLOSER))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        target: Duration::from_millis(5),
        interval: Duration::from_millis(100),
        answer: Duration::from_millis(300),
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
    fn one_sender_has_time_to_answer_and_then_signals_get_closer() {
        // After an interval; then three times 300 ms, 100/4^0.75, 100/5^0.75 … later, rounded up to the next
        // packet.
        assert_eq!(signals(&mut Codel::default(), 6, 0..1110), [100, 400, 700, 1000, 1036, 1066, 1093]);
    }

    #[test]
    fn a_sender_has_time_to_answer_even_if_the_queue_was_short_in_between() {
        let mut codel = Codel::default();
        assert_eq!(signals(&mut codel, 6, 0..150), [100]);
        assert_eq!(signals(&mut codel, 1, 150..160), [0; 0]);
        assert_eq!(signals(&mut codel, 6, 160..410), [400]);
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
        assert_eq!(signals(&mut Codel::default(), 50, 0..950), [0, 300, 600, 900, 936]);
    }

    /// Until it is below the target it is one queue, of which the sender has been told.
    #[test]
    fn a_wait_that_swings_about_the_longest_one_is_signalled_as_one_that_stays() {
        let mut codel = Codel::default();
        let waits = (0..950).map(|at| (at, if at % 10 < 5 { 50 } else { 45 }));
        let signals = waits.filter(|&(at, waited)| {
            codel.judge(Duration::from_millis(waited), false, millis(at), LIMITS) == Verdict::Signal
        });
        assert_eq!(signals.map(|(at, _)| at).collect::<Vec<_>>(), [0, 300, 600, 900, 936]);
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
