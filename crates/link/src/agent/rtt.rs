//! The round-trip time between here and the other end (RFC 6298 §2).

use std::time::Duration;

/// A range of round trips that is less than one in so many of the shortest is made by bursts and says nothing of a queue.
const LEAST_RANGE: u32 = 6;
/// Of so many measurements the shortest is taken: a delayed acknowledgement makes a single one long, a queue all of them.
const BLOCK: u32 = 4;
/// A block is high in the uppermost one in so many of the range.
const HIGH: u32 = 4;
/// A queue has stood, and not only met bursts, where this many blocks have been high and one in so many of all; since the
/// longest has last grown by one in so many of the range: while it grows nobody knows how long the queue can be.
const LEAST_HIGH: u32 = 4;
const SHARE: u32 = 3;
const GROWTH: u32 = 16;
/// Blocks beyond this number are forgotten by halves.
const MEMORY: u32 = 64;

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
    /// Blocks since the longest has last grown, and how many of them were nearly as long; both are halved now and then.
    blocks: u32,
    high: u32,
}

impl RoundTrip {
    /// Takes a measurement in: RFC 6298 (2.2) and (2.3), α = 1/8, β = 1/4.
    pub(crate) fn sample(&mut self, rtt: Duration) {
        let Some(measured) = &mut self.measured else {
            let (smoothed, variation) = (rtt, rtt / 2);
            let (least, recent, most, block) = (rtt, rtt, rtt, (rtt, 1));
            let measured = Measured { smoothed, variation, least, block, recent, most, blocks: 0, high: 0 };
            self.measured = Some(measured);
            return;
        };
        measured.variation = (measured.variation * 3 + measured.smoothed.abs_diff(rtt)) / 4;
        measured.smoothed = (measured.smoothed * 7 + rtt) / 8;
        measured.least = rtt.min(measured.least);
        measured.block = (rtt.min(measured.block.0), measured.block.1 + 1);
        if measured.block.1 == BLOCK {
            let shortest = measured.block.0;
            measured.block = (Duration::MAX, 0);
            measured.end_block(shortest);
        }
    }

    /// The shortest so far.
    pub(crate) fn least(&self) -> Option<Duration> {
        self.measured.map(|measured| measured.least)
    }

    /// Where the round trip lies now between the shortest, 0, and the longest so far, 1: how full the queue is. Nothing where
    /// there is no sign that the longest is that of a full queue: it is hardly longer than the shortest, or has grown all the
    /// time, or was reached by bursts only.
    pub(crate) fn rise(&self) -> Option<f64> {
        let Measured { recent, least, most, blocks, high, .. } = self.measured?;
        let range = most - least;
        let is_long = !range.is_zero() && range * LEAST_RANGE >= least;
        let has_stood = high >= LEAST_HIGH && high * SHARE >= blocks;
        (is_long && has_stood).then(|| (recent - least).as_secs_f64() / range.as_secs_f64())
    }

    /// srtt + 4·rttvar.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.measured.map(|measured| measured.smoothed + measured.variation * 4)
    }
}

impl Measured {
    /// So many measurements are together, of which this is the shortest.
    fn end_block(&mut self, shortest: Duration) {
        self.recent = shortest;
        if shortest > self.most {
            if (shortest - self.most) * GROWTH > self.most - self.least {
                (self.blocks, self.high) = (0, 0);
            }
            self.most = shortest;
        }
        self.blocks += 1;
        self.high += u32::from((self.most - shortest) * HIGH <= self.most - self.least);
        if self.blocks == MEMORY {
            (self.blocks, self.high) = (self.blocks / 2, self.high / 2);
        }
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

    /// A connection of 100 ms that has measured this often these round trips.
    fn after(course: &[(usize, u64)]) -> RoundTrip {
        let mut rtt = RoundTrip::default();
        rtt.sample(Duration::from_millis(100));
        for &(count, ms) in course {
            (0..count).for_each(|_| rtt.sample(Duration::from_millis(ms)));
        }
        rtt
    }

    #[test]
    fn a_queue_that_has_stood_shows_where_the_round_trip_lies() {
        assert_eq!(after(&[(20, 100), (40, 200)]).rise(), Some(1.0));
        assert_eq!(after(&[(20, 100), (40, 200), (4, 150)]).rise(), Some(0.5));
        assert_eq!(after(&[(20, 100), (40, 200), (8, 100)]).rise(), Some(0.0));
    }

    #[test]
    fn what_is_no_standing_queue_says_nothing() {
        let nothing = |course: &[(usize, u64)]| assert_eq!(after(course).rise(), None, "{course:?}");
        nothing(&[(100, 100)]);
        nothing(&[(20, 100), (40, 110)]);
        let delayed: Vec<(usize, u64)> = [(3, 100), (1, 140)].repeat(20);
        nothing(&delayed);
        let growing: Vec<(usize, u64)> = (0..10).map(|step| (8, 100 + (1 << step))).collect();
        nothing(&growing);
        let bursts: Vec<(usize, u64)> = [(28, 100), (4, 200)].repeat(20);
        nothing(&bursts);
    }
}
