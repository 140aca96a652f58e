//! The round-trip time between here and the other end (RFC 6298 §2).

use std::time::Duration;

/// A range of round trips that is less than one in so many of the shortest is made by bursts and says nothing of a queue.
const LEAST_RANGE: u32 = 6;
/// Of so many measurements the shortest is taken: a delayed acknowledgement makes a single one long, a queue all of them.
const BLOCK: u32 = 4;

/// Smoothed round-trip time, its variation and its minimum; nothing before the first measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RoundTrip {
    measured: Option<Measured>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Measured {
    smoothed: Duration,
    variation: Duration,
    least: Duration,
    /// The shortest of the block under way, how many it has, and that of the block before.
    block: (Duration, u32),
    recent: Duration,
    /// The longest of all blocks' shortest.
    most: Duration,
}

impl RoundTrip {
    /// Takes a measurement in: RFC 6298 (2.2) and (2.3), α = 1/8, β = 1/4.
    pub(crate) fn sample(&mut self, rtt: Duration) {
        let Some(Measured { smoothed, variation, least, block, recent, most }) = &mut self.measured else {
            let (smoothed, variation) = (rtt, rtt / 2);
            let measured =
                Measured { smoothed, variation, least: rtt, block: (rtt, 1), recent: rtt, most: rtt };
            self.measured = Some(measured);
            return;
        };
        *variation = (*variation * 3 + smoothed.abs_diff(rtt)) / 4;
        *smoothed = (*smoothed * 7 + rtt) / 8;
        *least = rtt.min(*least);
        *block = (rtt.min(block.0), block.1 + 1);
        if block.1 == BLOCK {
            *recent = block.0;
            *most = block.0.max(*most);
            *block = (Duration::MAX, 0);
        }
    }

    /// The shortest so far.
    pub(crate) fn least(&self) -> Option<Duration> {
        self.measured.map(|measured| measured.least)
    }

    /// Where the round trip lies now between the shortest, 0, and the longest so far, 1: how full the queue is, if it has been
    /// full. Nothing where the two are nearly the same.
    pub(crate) fn rise(&self) -> Option<f64> {
        let Measured { recent, least, most, .. } = self.measured?;
        let range = most - least;
        let says_something = !range.is_zero() && range * LEAST_RANGE >= least;
        says_something.then(|| (recent - least).as_secs_f64() / range.as_secs_f64())
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
    }

    #[test]
    fn the_rise_is_that_of_blocks_and_not_of_single_round_trips() {
        let ms = Duration::from_millis;
        let mut rtt = RoundTrip::default();
        let mut block = |times: [u64; 4]| {
            times.into_iter().for_each(|time| rtt.sample(ms(time)));
            rtt.rise()
        };
        assert_eq!(block([100, 100, 140, 100]), None, "a delayed acknowledgement is no queue");
        assert_eq!(block([110, 110, 150, 110]), None, "nor are 10 of 100 ms");
        assert_eq!(block([200, 240, 220, 260]), Some(1.0));
        assert_eq!(block([150, 175, 180, 200]), Some(0.5));
        assert_eq!(block([100, 200, 200, 200]), Some(0.0));
    }
}
