//! The control interval of one router.
//!
//! While no packet with a congestion header passes, the spare capacity is offered to the first sender. So a
//! transfer over an idle link has most of it one round trip after its start, where the controller by itself
//! would give it α of the rest in each round trip, from the second one on.

use std::time::{Duration, Instant};

use bentpipe_kernel::router::Router;
use bentpipe_link::agent::xcp::control::{Gains, Shares, Sums};
use bentpipe_units::Rate;

/// No interval is shorter, whatever a header claims.
const SHORTEST: Duration = Duration::from_millis(10);
/// How often to check for packets with a header while there are none.
const LOOK: Duration = Duration::from_millis(50);
/// The part of the spare capacity that is offered. The rest is for senders that start within the same round
/// trip and find nothing left.
const OFFERED: f64 = 0.75;
/// The used part of an offer appears in the traffic after one round trip, and all of it after two: until then
/// it is not spare.
const UNSEEN: u32 = 2;

/// The control interval of a router.
#[derive(Debug)]
pub(super) struct Interval {
    capacity: Rate,
    mean_rtt: Duration,
    /// The start of the interval.
    began: Instant,
    /// Packets with a header at that time, while the offer is unused.
    waits_at: Option<u64>,
    /// The offer, bytes per second, until its used part is known.
    offer: f64,
    /// The used part, bytes per second, and for how many intervals it may not appear in full yet.
    taken: (f64, u32),
    /// The sums of the packets that started the interval.
    first: Sums,
}

impl Interval {
    /// The first interval, at a link with this assumed round trip.
    pub(super) fn new(now: Instant, capacity: Rate, rtt: Duration) -> Self {
        Self {
            capacity,
            mean_rtt: rtt.clamp(SHORTEST, super::LONGEST_RTT),
            began: now,
            waits_at: Some(0),
            offer: 0.0,
            taken: (0.0, 0),
            first: Sums::default(),
        }
    }

    pub(super) fn set_capacity(&mut self, capacity: Rate) {
        self.capacity = capacity;
    }

    /// When there is something to do.
    pub(super) fn wake_at(&self) -> Instant {
        self.began + if self.waits_at.is_some() { LOOK } else { self.mean_rtt }
    }

    /// Decides if the interval has ended; whether it has.
    pub(super) fn advance(&mut self, now: Instant, router: &mut Router) -> bool {
        if now < self.wake_at() {
            return false;
        }
        let headers = router.counters().with_header;
        if self.waits_at.is_some_and(|before| before != headers) {
            // They came after the offer was last renewed, which is when this interval began.
            self.waits_at = None;
            self.first = router.take_sums();
            self.learn_rtt(&self.first.clone());
            return false;
        }
        let has_ended = self.waits_at.is_none();
        if has_ended {
            self.settle(router.positive_left());
        }
        let sums = sum(&std::mem::take(&mut self.first), &router.take_sums());
        let shares = self.decide(now - self.began, &sums);
        router.set_shares(&shares, self.mean_rtt);
        self.waits_at = (sums.spacing == 0.0).then_some(headers);
        self.began = now;
        has_ended
    }

    fn decide(&mut self, elapsed: Duration, sums: &Sums) -> Shares {
        self.learn_rtt(sums);
        let elapsed = elapsed.max(SHORTEST);
        if sums.spacing == 0.0 { self.offer(elapsed, sums) } else { self.share_out(elapsed, sums) }
    }

    /// What one sender can have with its first window, whose packets stand for a round trip together.
    fn offer(&mut self, elapsed: Duration, sums: &Sums) -> Shares {
        let (elapsed, rtt) = (elapsed.as_secs_f64(), self.mean_rtt.as_secs_f64());
        let spare = self.capacity.bps() as f64 / 8.0 - sums.bytes / elapsed - sums.queue / rtt;
        self.offer = OFFERED * spare.max(0.0);
        Shares { positive: self.offer, per_second: self.offer / rtt, ..Shares::default() }
    }

    /// Notes how much of an offer has been taken.
    fn settle(&mut self, left: f64) {
        let offer = std::mem::take(&mut self.offer);
        if offer > 0.0 {
            self.taken = ((offer - left).max(0.0), UNSEEN);
        }
    }

    fn share_out(&mut self, elapsed: Duration, sums: &Sums) -> Shares {
        let (taken, unseen) = self.taken;
        let mut sums = *sums;
        if unseen > 0 {
            sums.bytes = sums.bytes.max(taken * elapsed.as_secs_f64());
            self.taken.1 -= 1;
        }
        Shares::decide(Gains::default(), self.capacity, elapsed, self.mean_rtt, &sums)
    }

    fn learn_rtt(&mut self, sums: &Sums) {
        if let Some(mean) = sums.mean_rtt() {
            self.mean_rtt = mean.clamp(SHORTEST, super::LONGEST_RTT);
        }
    }
}

/// Both together; the queue is that of the end.
fn sum(earlier: &Sums, later: &Sums) -> Sums {
    Sums {
        bytes: earlier.bytes + later.bytes,
        spacing: earlier.spacing + later.spacing,
        rtt_spacing: earlier.rtt_spacing + later.rtt_spacing,
        asking_spacing: earlier.asking_spacing + later.asking_spacing,
        queue: later.queue,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(250);
    const SECOND: Duration = Duration::from_secs(1);
    const CAPACITY: f64 = 1e6;

    fn interval() -> Interval {
        Interval::new(Instant::now(), Rate::mbps(8), RTT)
    }

    /// A flow of one kilobyte each millisecond whose round trip is 500 ms, for a second: the capacity.
    fn full() -> Sums {
        Sums { bytes: 1e6, spacing: 1.0, rtt_spacing: 0.5, asking_spacing: 1.0, queue: 0.0 }
    }

    #[test]
    fn the_next_interval_is_as_long_as_the_mean_round_trip() {
        let mut interval = interval();
        interval.decide(SECOND, &full());
        assert_eq!(interval.mean_rtt, Duration::from_millis(500));
        for (rtt_spacing, bounded) in [(1e-9, SHORTEST), (1e9, super::super::LONGEST_RTT)] {
            interval.decide(SECOND, &Sums { rtt_spacing, ..full() });
            assert_eq!(interval.mean_rtt, bounded);
        }
        // Packets without a header do not change what is known.
        interval.decide(SECOND, &Sums { bytes: 9.0, ..Sums::default() });
        assert_eq!(interval.mean_rtt, super::super::LONGEST_RTT);
    }

    #[test]
    fn a_late_decision_is_for_the_time_that_has_passed() {
        let mut interval = interval();
        let punctual = interval.decide(SECOND, &full());
        let twice = Sums { bytes: 2e6, spacing: 2.0, rtt_spacing: 1.0, asking_spacing: 2.0, queue: 0.0 };
        let late = interval.decide(2 * SECOND, &twice);
        assert_eq!((punctual.positive, punctual.negative), (late.positive, late.negative));
    }

    #[test]
    fn without_congestion_headers_spare_capacity_is_offered_to_one_window() {
        let offer = interval().decide(SECOND, &Sums::default());
        assert_eq!((offer.positive, offer.negative), (OFFERED * CAPACITY, 0.0));
        assert_eq!(offer.per_second * RTT.as_secs_f64(), offer.positive);
        // What others take, and what stands in the queue, is not spare.
        let beside =
            |bytes, queue| interval().decide(SECOND, &Sums { bytes, queue, ..Sums::default() }).positive;
        assert_eq!(beside(0.4e6, 0.0), OFFERED * 0.6e6);
        assert!(beside(0.4e6, 10_000.0) < beside(0.4e6, 0.0));
        assert_eq!((beside(2e6, 0.0), beside(0.0, 1e6)), (0.0, 0.0));
    }

    #[test]
    fn an_accepted_offer_is_not_spare_until_it_is_observed() {
        // A tenth of the capacity is seen.
        let thin = Sums { bytes: 1e5, ..full() };
        let given = |left: f64| {
            let mut interval = interval();
            interval.decide(SECOND, &Sums::default());
            interval.settle(left);
            [(); 3].map(|()| interval.decide(SECOND, &thin).positive)
        };
        let alpha = Gains::default().spare;
        let [rest, all] = [alpha * (1.0 - OFFERED) * CAPACITY, alpha * 0.9 * CAPACITY];
        let close = |found: [f64; 3], wanted: [f64; 3]| {
            assert!(
                found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1.0),
                "{found:?}"
            );
        };
        close(given(0.0), [rest, rest, all]);
        close(given(OFFERED * CAPACITY), [all; 3]);
    }
}
