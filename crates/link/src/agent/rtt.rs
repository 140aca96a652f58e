//! The round-trip time to the other end (RFC 6298 §2).

use std::time::Duration;

/// Smoothed round-trip time, its variation and its minimum; none before the first measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RoundTrip {
    measured: Option<Measured>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Measured {
    smoothed: Duration,
    variation: Duration,
    least: Duration,
}

impl RoundTrip {
    /// Adds a measurement: RFC 6298 (2.2) and (2.3), α = 1/8, β = 1/4.
    pub(crate) fn sample(&mut self, rtt: Duration) {
        let Some(measured) = &mut self.measured else {
            self.measured = Some(Measured { smoothed: rtt, variation: rtt / 2, least: rtt });
            return;
        };
        measured.variation = (measured.variation * 3 + measured.smoothed.abs_diff(rtt)) / 4;
        measured.smoothed = (measured.smoothed * 7 + rtt) / 8;
        measured.least = rtt.min(measured.least);
    }

    /// The minimum so far.
    pub(crate) fn least(&self) -> Option<Duration> {
        self.measured.map(|measured| measured.least)
    }

    /// srtt.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.measured.map(|measured| measured.smoothed)
    }

    /// srtt + 4·rttvar.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.measured.map(|measured| measured.smoothed + measured.variation * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_measurements_by_hand() {
        let ms = Duration::from_millis;
        let mut rtt = RoundTrip::default();
        assert_eq!((rtt.timeout(), rtt.least()), (None, None));
        rtt.sample(ms(600));
        assert_eq!(rtt.timeout(), Some(ms(600 + 4 * 300)));
        rtt.sample(ms(680));
        // rttvar = 3/4·300 + 1/4·80 = 245, srtt = 7/8·600 + 1/8·680 = 610.
        assert_eq!((rtt.timeout(), rtt.least()), (Some(ms(610 + 4 * 245)), Some(ms(600))));
        assert_eq!(rtt.smoothed(), Some(ms(610)));
    }
}
