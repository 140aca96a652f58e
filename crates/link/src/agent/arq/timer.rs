//! The retransmission timer.

use std::time::Duration;

use bentpipe_units::Time;

use super::super::rtt::RoundTrip;
use super::ArqConfig;

/// Limit of the doublings of the timeout. An expiry sends a single frame, which does no harm, and the first
/// one after an outage makes the receiver report all others, so that it must not be late.
const MAX_BACKOFF: u32 = 3;
/// The shortest timeout, on a link without delay.
const GRANULARITY: Duration = Duration::from_millis(1);
/// Limit of the expiries for which the receiver waits, if the number of retransmissions is not limited.
const PATIENCE: u32 = 16;

/// The retransmission timer (RFC 6298), one for all outstanding packets.
///
/// Each transmission has a serial of its own, so that each measurement is unambiguous, and Karn's rule is not
/// needed.
#[derive(Debug)]
pub(super) struct Timer {
    rtt: RoundTrip,
    initial: Duration,
    report_within: Duration,
    running_since: Time,
    expiries: u32,
}

impl Timer {
    pub(super) fn new(config: &ArqConfig) -> Self {
        Self {
            rtt: RoundTrip::default(),
            // RFC 6298 (2.2): as if `rtt` were the first measurement.
            initial: config.rtt.saturating_mul(3),
            report_within: config.report_within,
            running_since: Time::ZERO,
            expiries: 0,
        }
    }

    /// A packet is outstanding, and none was before.
    pub(super) fn start(&mut self, now: Time) {
        self.running_since = now;
        self.expiries = 0;
    }

    /// A report has arrived, perhaps with a measurement.
    pub(super) fn on_report(&mut self, now: Time, rtt: Option<Duration>) {
        if let Some(rtt) = rtt {
            self.rtt.sample(rtt);
        }
        self.start(now);
    }

    pub(super) fn on_expiry(&mut self, now: Time) {
        self.running_since = now;
        self.expiries = self.expiries.saturating_add(1);
    }

    /// Expiries without a report between them.
    pub(super) fn expiries(&self) -> u32 {
        self.expiries
    }

    /// When it expires, if a packet is outstanding.
    pub(super) fn deadline(&self) -> Time {
        self.running_since + self.timeout().saturating_mul(1 << self.expiries.min(MAX_BACKOFF))
    }

    /// The longest time that a report takes, if it is not lost: srtt + 4·rttvar, and the receiver's delay. At
    /// least a quarter more than the shortest round trip: on a steady link rttvar vanishes.
    pub(super) fn timeout(&self) -> Duration {
        let floor = self.rtt.least().map_or(Duration::ZERO, |least| least.saturating_add(least / 4));
        let timeout = self.rtt.timeout().unwrap_or(self.initial).max(floor).max(GRANULARITY);
        timeout.saturating_add(self.report_within)
    }

    /// How long a sender like this one tries before it abandons a packet without a report.
    pub(super) fn give_up_after(&self, retransmissions: u32) -> Duration {
        let timeouts =
            (0..=retransmissions.min(PATIENCE)).map(|expiries| 1 << expiries.min(MAX_BACKOFF)).sum();
        self.timeout().saturating_mul(timeouts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn timer() -> Timer {
        let config =
            ArqConfig { rtt: MS * 100, report_within: MS * 20, ..ArqConfig::for_link(&Default::default()) };
        Timer::new(&config)
    }

    #[test]
    fn it_doubles_three_times_and_a_report_resets_it() {
        let mut timer = timer();
        let waits: Vec<Duration> = (0..6)
            .map(|_| {
                let wait = timer.deadline() - Time::ZERO;
                timer.on_expiry(Time::ZERO);
                wait
            })
            .collect();
        assert_eq!(waits, [320, 640, 1280, 2560, 2560, 2560].map(|ms| MS * ms));
        timer.on_report(Time::ZERO, None);
        assert_eq!(timer.deadline(), Time::ZERO + MS * 320);
    }

    #[test]
    fn a_steady_link_leaves_a_quarter_of_a_round_trip() {
        let mut timer = timer();
        (0..100).for_each(|_| timer.on_report(Time::ZERO, Some(MS * 80)));
        assert_eq!(timer.timeout(), MS * (80 + 20 + 20));
        assert_eq!(timer.give_up_after(3), MS * 120 * 15);
        assert_eq!(timer.give_up_after(u32::MAX), MS * 120 * (15 + 13 * 8));
    }
}
