//! An estimate of how long what a connection has sent would have taken unsplit.
//!
//! End to end, one congestion control would meet the round trip of both legs and the losses of the
//! satellite's. What CUBIC, which nearly all senders use, makes of these is a slow start that doubles its
//! window every round trip, and then its response function. These assumptions flatter the connection without
//! a proxy: losses are spread evenly, no timer ever expires, no window is too small, no queue adds to the
//! shortest round trip, and an idle connection keeps its window.
//!
//! Times are compared, and not rates at one moment: in its first second a split connection may carry fifty
//! times what it would end to end, but it would not stay that slow.
//!
//! The inputs are what this gateway sends into a satellite leg, and how much of that had to be sent again
//! there. Nothing is known of the losses of what comes from the satellite: its sender knows.

use std::time::Duration;

/// CUBIC's `C` and `β_cubic` (RFC 9438 §4.1.1, §4.6).
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// √(3/2): the window of a Reno sender is this over √p segments on average (RFC 9438 §4.3 with α = 1, β =
/// 0.5; Mathis et al. 1997 with one acknowledgement for each segment).
const RENO: f64 = 1.224_744_871_391_589;
/// The window that a connection begins with, segments (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// The time over which a connection's speed-up is averaged, s.
const AVERAGED_OVER: f64 = 30.0;

/// What a connection that sends into a satellite leg has got acknowledged within some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Progress {
    /// Payload that was acknowledged before, since the connection began, bytes.
    pub(super) before: u64,
    /// Payload that was acknowledged within this time, bytes.
    pub(super) bytes: u64,
    /// The time.
    pub(super) took: Duration,
    /// The shortest round-trip times of both legs together; zero where they are not known.
    pub(super) rtt: Duration,
    /// Share of segments that is lost on the satellite leg.
    pub(super) loss: f64,
    /// Payload of a full segment, bytes.
    pub(super) mss: u32,
}

/// A time that something would take end to end, s.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct EndToEnd {
    /// All of it.
    pub(super) total: f64,
    /// The part that would be slow start.
    pub(super) start_up: f64,
}

/// How much longer a connection would have taken, averaged over the time in which it was active.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct SpeedUp {
    took: f32,
    end_to_end: f32,
}

impl Progress {
    /// The time that the same progress would have taken end to end, never less than it took if there was any.
    pub(super) fn end_to_end(&self) -> EndToEnd {
        let Self { before, bytes, took, rtt, loss, mss } = *self;
        let took = took.as_secs_f64();
        let (from, to) = (before as f64, (before + bytes) as f64);
        if bytes == 0 || took <= 0.0 {
            return EndToEnd::default();
        }
        let actual = bytes as f64 / took;
        if rtt.is_zero() || mss == 0 {
            return EndToEnd { total: took, start_up: 0.0 };
        }
        let steady = if loss > 0.0 { actual.min(cubic(rtt, loss, mss) / 8.0) } else { actual };
        // In slow start the window has grown by what was acknowledged, and doubles every round trip.
        let (initial, rtt) = (INITIAL_WINDOW * f64::from(mss), rtt.as_secs_f64());
        let end = (steady * rtt / std::f64::consts::LN_2 - initial).clamp(from, to);
        let start_up = rtt * ((initial + end) / (initial + from)).log2();
        EndToEnd { total: start_up + (to - end) / steady, start_up }
    }
}

impl SpeedUp {
    /// Adds what took this time, and would have taken that end to end. Returns how many times longer the
    /// connection would have taken of late, at least 1.
    pub(super) fn add(&mut self, took: Duration, end_to_end: EndToEnd) -> f64 {
        let took = took.as_secs_f64();
        let kept = (-took / AVERAGED_OVER).exp() as f32;
        self.took = self.took * kept + took as f32;
        self.end_to_end = self.end_to_end * kept + end_to_end.total as f32;
        if self.took > 0.0 { f64::from(self.end_to_end / self.took).max(1.0) } else { 1.0 }
    }
}

/// CUBIC's rate at a loss, bit/s: that of the region, Reno-friendly or its own, in which its window is larger
/// (RFC 9438 §4.3).
fn cubic(rtt: Duration, loss: f64, mss: u32) -> f64 {
    let rtt = rtt.as_secs_f64();
    // RFC 9438 §5.1: 1.054 · RTT^(3/4) / p^(3/4) segments.
    let own = (C * (3.0 + BETA) / (4.0 * (1.0 - BETA))).powf(0.25) * (rtt / loss).powf(0.75);
    let reno_friendly = RENO / loss.sqrt();
    own.max(reno_friendly) * f64::from(mss) * 8.0 / rtt
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEO: Duration = Duration::from_millis(600);
    const SECOND: Duration = Duration::from_secs(1);

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 0.01
    }

    /// How many times longer a connection takes end to end that gets `rate` from its beginning on, for so
    /// many samples of a second; the first bytes are acknowledged after a round trip.
    fn speed_up(rate: f64, loss: f64, seconds: u64) -> f64 {
        let (mut speed_up, mut before, mut ratio) = (SpeedUp::default(), 0, 1.0);
        for second in 0..seconds {
            let share = if second == 0 { 0.4 } else { 1.0 };
            let bytes = (rate / 8.0 * share) as u64;
            let progress = Progress { before, bytes, took: SECOND, rtt: GEO, loss, mss: 1448 };
            ratio = speed_up.add(SECOND, progress.end_to_end());
            before += bytes;
        }
        ratio
    }

    /// RFC 9438 §5.1 has a table for an RTT of 0.1 s: windows in segments.
    #[test]
    fn the_windows_are_those_of_the_rfcs_table() {
        for (loss, window) in [(1e-2, 12.0), (1e-3, 38.7), (1e-4, 187.0), (1e-5, 1054.0), (1e-8, 187_000.0)] {
            let rtt = Duration::from_millis(100);
            let found = cubic(rtt, loss, 1000) * 0.1 / 8000.0;
            assert!((found / window - 1.0).abs() < 0.03, "p = {loss}: {found}, not {window}");
        }
    }

    #[test]
    fn one_percent_over_geo_leaves_less_than_half_a_megabit() {
        assert!(close(cubic(GEO, 0.01, 1448), 438_500.0), "{}", cubic(GEO, 0.01, 1448));
        let ratio = speed_up(9e6, 0.01, 300);
        assert!(close(ratio, 20.5), "{ratio}");
    }

    #[test]
    fn a_short_round_trip_or_much_loss_is_the_reno_friendly_region() {
        let rtt = Duration::from_millis(10);
        assert!(close(cubic(rtt, 0.01, 1448), 12.247 * 1448.0 * 8.0 / 0.01));
    }

    /// 562 kB in slow start from ten segments of 1448 bytes take log2(1 + 562 / 14.48) = 5.3 round trips.
    #[test]
    fn a_megabyte_without_loss_gains_what_slow_start_would_cost() {
        let took = Duration::from_millis(1500);
        let progress = Progress { before: 0, bytes: 1_000_000, took, rtt: GEO, loss: 0.0, mss: 1448 };
        let EndToEnd { total, start_up } = progress.end_to_end();
        // Up to 5.33 Mbit/s, the rate that it has now, it is slow start, for 3.2 s; the rest takes 0.66 s.
        assert!(close(total, 3.846) && close(start_up, 3.19), "{total} {start_up}");
        assert!(close(total / 1.5, 2.56));
    }

    #[test]
    fn the_first_second_of_a_fast_connection_does_not_make_it_fifty_times_as_fast() {
        for seconds in 1..60 {
            let ratio = speed_up(10e6, 0.0, seconds);
            assert!((1.0..5.0).contains(&ratio), "×{ratio} after {seconds} s");
        }
        assert!(speed_up(10e6, 0.0, 120) < 1.1, "a long one without loss gains nothing");
    }

    #[test]
    fn end_to_end_nothing_is_faster_than_it_is_now() {
        for (loss, rtt) in [(0.0, GEO), (1e-12, GEO), (0.5, Duration::ZERO)] {
            let progress = Progress { before: 1 << 40, bytes: 125_000, took: SECOND, rtt, loss, mss: 1448 };
            let found = progress.end_to_end();
            assert!(close(found.total, 1.0) && found.start_up == 0.0, "{loss}: {found:?}");
        }
        // An application that sends little gains nothing, whatever the loss.
        assert!(close(speed_up(8e3, 0.001, 60), 1.0));
    }

    #[test]
    fn what_was_late_and_comes_at_once_counts_for_the_time_that_it_was_waited_for() {
        let mut speed_up = SpeedUp::default();
        let mut ratio = 1.0;
        let mut before = 1 << 30;
        for bytes in [0, 0, 0, 4_000_000, 1_000_000] {
            let progress = Progress { before, bytes, took: SECOND, rtt: GEO, loss: 0.0, mss: 1448 };
            ratio = speed_up.add(SECOND, progress.end_to_end());
            before += bytes;
        }
        assert!(close(ratio, 1.0), "×{ratio}");
    }
}
