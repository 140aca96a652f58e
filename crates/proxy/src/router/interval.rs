//! The control interval of one router.

use std::time::{Duration, Instant};

use bentpipe_kernel::router::{Router, RouterShares};
use bentpipe_link::agent::xcp::control::{Gains, Shares, Sums};
use bentpipe_units::Rate;

/// The control interval before any packet has told of a round trip.
const FIRST: Duration = Duration::from_millis(200);
/// No interval is shorter, whatever a header claims.
const SHORTEST: Duration = Duration::from_millis(10);
/// How often it is looked whether packets have come again after a silence.
const LOOK: Duration = Duration::from_millis(50);

/// Where the time of a router stands.
#[derive(Debug)]
pub(super) struct Interval {
    capacity: Rate,
    mean_rtt: Duration,
    /// When the interval under way began. During a silence: when nothing had come yet.
    began: Instant,
    /// Packets at that time, if nothing had come since the interval before.
    silent_at: Option<u64>,
}

impl Interval {
    pub(super) fn new(now: Instant, capacity: Rate) -> Self {
        Self { capacity, mean_rtt: FIRST, began: now, silent_at: Some(0) }
    }

    pub(super) fn set_capacity(&mut self, capacity: Rate) {
        self.capacity = capacity;
    }

    /// When there is something to do.
    pub(super) fn wake_at(&self) -> Instant {
        self.began + if self.silent_at.is_some() { LOOK } else { self.mean_rtt }
    }

    /// Decides if the interval has ended; whether it has. One in which nothing has passed is the last until packets
    /// come again, and gives them nothing that was made of what was before the silence.
    pub(super) fn advance(&mut self, now: Instant, router: &mut Router) -> bool {
        if now < self.wake_at() {
            return false;
        }
        if let Some(packets) = self.silent_at {
            match router.counters().packets == packets {
                true => self.began = now,
                false => self.silent_at = None,
            }
            return false;
        }
        let sums = take(router);
        router.set_shares(&self.decide(now - self.began, &sums));
        self.silent_at = (sums.bytes == 0.0).then(|| router.counters().packets);
        self.began = now;
        true
    }

    fn decide(&mut self, elapsed: Duration, sums: &Sums) -> RouterShares {
        if let Some(mean) = sums.mean_rtt() {
            self.mean_rtt = mean.clamp(SHORTEST, super::LONGEST_RTT);
        }
        let elapsed = elapsed.max(SHORTEST);
        let shares = match sums.bytes == 0.0 {
            true => Shares::default(),
            false => Shares::decide(Gains::default(), self.capacity, elapsed, self.mean_rtt, sums),
        };
        RouterShares {
            positive: shares.positive,
            negative: shares.negative,
            per_second: shares.per_second,
            per_byte: shares.per_byte,
            mean_rtt: self.mean_rtt,
        }
    }
}

fn take(router: &mut Router) -> Sums {
    let sums = router.take_sums();
    Sums {
        bytes: sums.bytes,
        spacing: sums.spacing,
        rtt_spacing: sums.rtt_spacing,
        asking_spacing: sums.asking_spacing,
        queue: sums.queue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval() -> Interval {
        Interval::new(Instant::now(), Rate::mbps(8))
    }

    /// A flow of one kilobyte each millisecond whose round trip is 500 ms, for a second: the capacity.
    fn full() -> Sums {
        Sums { bytes: 1e6, spacing: 1.0, rtt_spacing: 0.5, asking_spacing: 1.0, queue: 0.0 }
    }

    #[test]
    fn the_next_interval_is_as_long_as_the_mean_round_trip() {
        let mut interval = interval();
        assert_eq!(interval.decide(Duration::from_secs(1), &full()).mean_rtt, Duration::from_millis(500));
        for (rtt_spacing, bounded) in [(1e-9, SHORTEST), (1e9, super::super::LONGEST_RTT)] {
            interval.decide(Duration::from_secs(1), &Sums { rtt_spacing, ..full() });
            assert_eq!(interval.mean_rtt, bounded);
        }
        // Packets without a header do not change what is known.
        interval.decide(Duration::from_secs(1), &Sums { bytes: 9.0, ..Sums::default() });
        assert_eq!(interval.mean_rtt, super::super::LONGEST_RTT);
    }

    #[test]
    fn a_late_decision_is_for_the_time_that_has_passed() {
        let mut interval = interval();
        let punctual = interval.decide(Duration::from_secs(1), &full());
        let twice = Sums { bytes: 2e6, spacing: 2.0, rtt_spacing: 1.0, asking_spacing: 2.0, queue: 0.0 };
        let late = interval.decide(Duration::from_secs(2), &twice);
        assert_eq!((punctual.positive, punctual.negative), (late.positive, late.negative));
    }

    #[test]
    fn after_a_silence_nothing_is_handed_out() {
        let shares = interval().decide(Duration::ZERO, &Sums::default());
        assert_eq!((shares.positive, shares.negative, shares.per_second), (0.0, 0.0, 0.0));
    }
}
