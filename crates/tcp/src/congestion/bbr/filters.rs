//! What BBR remembers of the last rounds.

use std::time::Duration;

use bentpipe_units::Time;

use crate::congestion::Delivery;

/// Rounds for which a bandwidth is remembered.
const BANDWIDTH_ROUNDS: u64 = 10;
/// Rounds after which a half of the memory of aggregation is begun anew.
const AGGREGATION_ROUNDS: u32 = 5;
/// The window grows for aggregation by no more than the bandwidth in this time.
const MAX_AGGREGATION: Duration = Duration::from_millis(100);
/// An epoch of aggregation ends after so many segments.
const EPOCH_SEGMENTS: u64 = 1 << 20;

/// The largest of the last rounds, bytes per second: the best three, each later than the one before (Nichols'
/// windowed filter).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaxFilter {
    best: [(u64, f64); 3],
}

impl MaxFilter {
    pub(super) fn max(&self) -> f64 {
        self.best[0].1
    }

    pub(super) fn update(&mut self, round: u64, value: f64) {
        let new = (round, value);
        if value >= self.best[0].1 || round - self.best[2].0 > BANDWIDTH_ROUNDS {
            self.best = [new; 3];
            return;
        }
        if value >= self.best[1].1 {
            (self.best[1], self.best[2]) = (new, new);
        } else if value >= self.best[2].1 {
            self.best[2] = new;
        }
        let age = round - self.best[0].0;
        if age > BANDWIDTH_ROUNDS {
            self.best = [self.best[1], self.best[2], new];
            if round - self.best[0].0 > BANDWIDTH_ROUNDS {
                self.best = [self.best[1], self.best[2], new];
            }
        } else if self.best[1].0 == self.best[0].0 && age > BANDWIDTH_ROUNDS / 4 {
            (self.best[1], self.best[2]) = (new, new);
        } else if self.best[2].0 == self.best[1].0 && age > BANDWIDTH_ROUNDS / 2 {
            self.best[2] = new;
        }
    }
}

/// How much more than the bandwidth is acknowledged at once, now and then.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::congestion) struct Aggregation {
    /// The largest excess of this half of the memory and of the other.
    excess: [u64; 2],
    rounds: u32,
    epoch_at: Time,
    epoch_bytes: u64,
    segment: u64,
}

impl Aggregation {
    pub(in crate::congestion) fn update(
        &mut self,
        delivery: &Delivery,
        round_start: bool,
        bandwidth: f64,
        cwnd: u64,
    ) {
        if delivery.bytes == 0 || delivery.sample.is_none() {
            return;
        }
        if round_start {
            self.rounds += 1;
            if self.rounds >= AGGREGATION_ROUNDS {
                self.rounds = 0;
                self.excess = [0, self.excess[0]];
            }
        }
        self.segment = self.segment.max(delivery.bytes.min(1500));
        let mut expected = (bandwidth * (delivery.now - self.epoch_at).as_secs_f64()) as u64;
        if self.epoch_bytes <= expected
            || self.epoch_bytes.saturating_add(delivery.bytes) >= EPOCH_SEGMENTS * self.segment
        {
            self.restart(delivery.now);
            expected = 0;
        }
        self.epoch_bytes = self.epoch_bytes.saturating_add(delivery.bytes);
        let excess = self.epoch_bytes.saturating_sub(expected).min(cwnd);
        self.excess[0] = self.excess[0].max(excess);
    }

    /// A new epoch begins.
    pub(in crate::congestion) fn restart(&mut self, now: Time) {
        (self.epoch_at, self.epoch_bytes) = (now, 0);
    }

    /// Bytes for which the window is to have room.
    pub(in crate::congestion) fn extra(&self, bandwidth: f64) -> u64 {
        let most = (bandwidth * MAX_AGGREGATION.as_secs_f64()) as u64;
        self.excess[0].max(self.excess[1]).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_forgets_after_ten_rounds() {
        let mut filter = MaxFilter::default();
        filter.update(1, 100.0);
        (2..=11).for_each(|round| filter.update(round, 10.0 + round as f64));
        assert_eq!(filter.max(), 100.0);
        filter.update(12, 5.0);
        assert!((11.0..30.0).contains(&filter.max()), "{}", filter.max());
        filter.update(13, 200.0);
        assert_eq!(filter.max(), 200.0);
    }

    #[test]
    fn acknowledgements_that_come_together_are_remembered_for_some_rounds() {
        let mut aggregation = Aggregation::default();
        let burst = |at: u64, bytes: u64| Delivery {
            now: Time::ZERO + Duration::from_millis(at),
            bytes,
            sample: Some(crate::RateSample {
                bytes,
                interval: Duration::from_millis(1),
                prior_delivered: 0,
                is_app_limited: false,
                in_flight: 0,
                lost: 0,
            }),
            ..Delivery::default()
        };
        // A kilobyte each millisecond, in bursts of twenty.
        (1..50).for_each(|n| aggregation.update(&burst(20 * n, 20_000), false, 1e6, 1 << 20));
        assert_eq!(aggregation.extra(1e6), 20_000);
        assert_eq!(aggregation.extra(1e5), 10_000, "of 100 ms at the most");
        (0..11).for_each(|n| aggregation.update(&burst(1000 + n, 1000), true, 1e6, 1 << 20));
        assert!(aggregation.extra(1e6) <= 2_000, "{}", aggregation.extra(1e6));
    }
}
