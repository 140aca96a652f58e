//! How long the peer's reports wait on their way here.
//!
//! A round trip that has become longer does not tell which direction's queue has grown, and the rate controller
//! may lower its rate for its own direction's queue alone. The time from a report's departure, by the peer's
//! clock, to its arrival, by ours, is the delay of the way back plus the difference of the clocks, and the latter
//! changes only as fast as they drift apart. So the excess over the least value is the time in queues, as with
//! the timestamps of TCP (RFC 7323) and in LEDBAT (RFC 6817 §3.4.2).

use std::time::Duration;

use bentpipe_units::Time;

/// By this part of the time two clocks may drift apart: two of quartz do by half of it at the most, as a rule.
/// A queue that stands for minutes is taken for drift in the end.
const DRIFT: f64 = 2e-4;

/// The delay of the reports of a session.
#[derive(Debug, Default)]
pub(crate) struct ReturnDelay {
    /// The least difference of the clocks, microseconds, lower half, and when it was seen.
    least: Option<(u32, Time)>,
    queued: Duration,
}

impl ReturnDelay {
    /// A report came that was sent when the peer's clock showed so many microseconds (lower half), and ours
    /// shows `here` now.
    pub(crate) fn on_report(&mut self, sent_at: u32, here: u32, now: Time) {
        let difference = here.wrapping_sub(sent_at);
        let excess = self.least.map_or(0.0, |(least, seen)| {
            // The lower halves tell differences of up to 35 minutes apart.
            f64::from(difference.wrapping_sub(least).cast_signed()) - DRIFT * (now - seen).as_micros() as f64
        });
        if excess <= 0.0 {
            self.least = Some((difference, now));
        }
        self.queued = Duration::from_secs_f64(excess.max(0.0) / 1e6);
    }

    /// How long the last report waited in queues.
    pub(crate) fn queued(&self) -> Duration {
        self.queued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What reports seem to wait that come each 100 ms, over a way of 300 ms and what `waits` says, where the
    /// peer's clock is ahead by an hour and runs faster by this part.
    fn seen(faster: f64, waits: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut delay = ReturnDelay::default();
        let micros = |seconds: f64| (seconds * 1e6) as u64 as u32;
        let reports = (0..4000).map(|report| {
            let sent = 0.1 * f64::from(report);
            let came = sent + 0.3 + waits(sent);
            delay.on_report(
                micros(3600.0 + sent * (1.0 + faster)),
                micros(came),
                Time::from_nanos((came * 1e9) as u64),
            );
            delay.queued().as_secs_f64()
        });
        reports.collect()
    }

    #[test]
    fn reports_that_wait_are_told_from_clocks_that_drift_apart() {
        for faster in [-1e-4, 0.0, 1e-4] {
            let waits = |at: f64| if (30.0..33.0).contains(&at) { 0.05 } else { 0.0 };
            let seen = seen(faster, waits);
            assert!(seen[..300].iter().chain(&seen[330..]).all(|queued| *queued < 1e-4), "{faster}");
            assert!(seen[300..330].iter().all(|queued| (0.045..0.0501).contains(queued)), "{faster}");
        }
    }

    #[test]
    fn a_delay_that_stays_is_the_path_in_the_end() {
        let seen = seen(0.0, |at| if at < 20.0 { 0.0 } else { 0.05 });
        assert!((0.047..0.05).contains(&seen[300]), "{}", seen[300]);
        assert!(seen[2800..].iter().all(|queued| *queued < 1e-4));
    }
}
