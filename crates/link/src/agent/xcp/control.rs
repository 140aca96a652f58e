//! The decision of an XCP router in each control interval, and its allocation to packets.
//!
//! Katabi, Handley and Rohrs, "Congestion Control for High Bandwidth-Delay Product Networks" (SIGCOMM 2002),
//! §3.5, with the rates in bytes per second as in draft-falk-xcp-spec-03:
//!
//! ```text
//! y = input / Te                         the rate at which bytes arrive
//! d = Σ RTT·X / Σ X                      the mean round-trip time
//! φ = α·(C − y) − β·Q/d                  the change of the sum of all rates
//! shuffle = max(0, γ·y − |φ|)            taken from all and given to all, so that shares become equal
//! r⁺ = max(φ, 0) + shuffle               r⁻ = max(−φ, 0) + shuffle
//! Cp = r⁺ / Σ X                          Cn = r⁻ / input
//! ```

use std::time::Duration;

use bentpipe_units::Rate;

const SHORTEST_TIME: Duration = Duration::from_micros(1);
/// The part of an idle link's spare capacity that bentpipe's own router offers. The rest is for senders
/// that start within the same round trip and find nothing left.
pub const IDLE_OFFER: f64 = 0.75;
/// The used part of an offer appears in the traffic after one round trip, and all of it after two: until then
/// it is not spare.
const UNSEEN: u32 = 2;

/// α, β and γ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gains {
    /// α: the part of the spare capacity that is allocated in an interval.
    pub spare: f64,
    /// β: the part of the standing queue that is drained in an interval.
    pub queue: f64,
    /// γ: the part of the traffic that is shuffled.
    pub shuffled: f64,
}

/// The sums over all packets since the last decision.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sums {
    /// Bytes on the wire, also of packets without a congestion header.
    pub bytes: f64,
    /// Σ X, seconds.
    pub spacing: f64,
    /// Σ RTT·X, square seconds.
    pub rtt_spacing: f64,
    /// Σ X of the packets that get positive feedback: all of them in XCP, those of senders that ask for more
    /// in P-XCP.
    pub asking_spacing: f64,
    /// The standing queue, bytes.
    pub queue: f64,
}

/// The feedback left to allocate in this interval.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Shares {
    /// r⁺, bytes per second.
    pub positive: f64,
    /// r⁻, bytes per second.
    pub negative: f64,
    /// Cp: positive feedback for a second of X, bytes per second.
    pub per_second: f64,
    /// Cn: negative feedback for a byte, bytes per second.
    pub per_byte: f64,
}

/// A router's decisions, one control interval after the other.
///
/// The published router grants α of the spare capacity in an interval, from the second one on: a transfer
/// over an idle link takes many round trips until it has most of it. With an offer, the first sender gets
/// most of what is spare with its first window, while no packet with a congestion header passes.
#[derive(Debug, Clone)]
pub struct Controller {
    gains: Gains,
    capacity: Rate,
    /// The shortest and the longest mean round trip that is believed.
    rtt_bounds: [Duration; 2],
    mean_rtt: Duration,
    /// The part of the spare capacity that an idle link offers; 0 is the published router.
    idle_offer: f64,
    /// The offer, bytes per second, until its used part is known.
    offer: f64,
    /// The used part, bytes per second, and for how many intervals it may not appear in full yet.
    taken: (f64, u32),
}

impl Controller {
    /// A controller for a link of this capacity, with this round-trip time until packets report one.
    /// `idle_offer` is between 0, the published router, and 1.
    pub fn new(
        gains: Gains,
        capacity: Rate,
        rtt: Duration,
        rtt_bounds: [Duration; 2],
        idle_offer: f64,
    ) -> Self {
        let mean_rtt = rtt.min(rtt_bounds[1]).max(rtt_bounds[0]);
        Self { gains, capacity, rtt_bounds, mean_rtt, idle_offer, offer: 0.0, taken: (0.0, 0) }
    }

    /// Other decisions from now on.
    pub fn set_capacity(&mut self, capacity: Rate) {
        self.capacity = capacity;
    }

    /// The mean round-trip time of the traffic, within its bounds; the next interval is as long.
    pub fn mean_rtt(&self) -> Duration {
        self.mean_rtt
    }

    /// Whether an idle link offers its capacity.
    pub fn offers(&self) -> bool {
        self.idle_offer > 0.0
    }

    /// Takes the mean round-trip time of these packets, if any of them has one.
    pub fn learn_rtt(&mut self, sums: &Sums) {
        if let Some(mean) = sums.mean_rtt() {
            self.mean_rtt = mean.min(self.rtt_bounds[1]).max(self.rtt_bounds[0]);
        }
    }

    /// The feedback to allocate in the next interval, after one of `elapsed` with these packets, in which
    /// `left` of the positive feedback, bytes per second, was not given.
    pub fn decide(&mut self, elapsed: Duration, sums: &Sums, left: f64) -> Shares {
        self.learn_rtt(sums);
        self.settle(left);
        let elapsed = elapsed.max(self.rtt_bounds[0]);
        if self.offers() && sums.spacing == 0.0 {
            self.offer(elapsed, sums)
        } else {
            self.share_out(elapsed, sums)
        }
    }

    /// What one sender can have with its first window, whose packets stand for a round trip together.
    fn offer(&mut self, elapsed: Duration, sums: &Sums) -> Shares {
        let (elapsed, rtt) = (elapsed.as_secs_f64(), self.mean_rtt.as_secs_f64());
        let spare = self.capacity.bps() as f64 / 8.0 - sums.bytes / elapsed - sums.queue / rtt;
        self.offer = self.idle_offer * spare.max(0.0);
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
        Shares::decide(self.gains, self.capacity, elapsed, self.mean_rtt, &sums)
    }
}

impl Default for Gains {
    /// α = 0.4, β = 0.226: stable for any delay and any number of senders (§4). γ = 0.1.
    fn default() -> Self {
        Self { spare: 0.4, queue: 0.226, shuffled: 0.1 }
    }
}

impl Sums {
    /// d, the mean round-trip time of the traffic; `None` without packets that carry one.
    pub fn mean_rtt(&self) -> Option<Duration> {
        let mean = self.rtt_spacing / self.spacing;
        (mean > 0.0).then(|| Duration::try_from_secs_f64(mean).ok()).flatten()
    }
}

impl Shares {
    /// The feedback to allocate in the next interval, after one of `elapsed`, on a link of this `capacity`
    /// with this mean round-trip time. Times below a microsecond count as one, so that no share is infinite.
    pub fn decide(gains: Gains, capacity: Rate, elapsed: Duration, mean_rtt: Duration, sums: &Sums) -> Self {
        let seconds = |time: Duration| time.max(SHORTEST_TIME).as_secs_f64();
        let capacity = capacity.bps() as f64 / 8.0;
        let rate = sums.bytes / seconds(elapsed);
        let change = gains.spare * (capacity - rate) - gains.queue * sums.queue / seconds(mean_rtt);
        let shuffled = (gains.shuffled * rate - change.abs()).max(0.0);
        let positive = change.max(0.0) + shuffled;
        let negative = (-change).max(0.0) + shuffled;
        let ratio = |amount: f64, sum: f64| if sum > 0.0 { amount / sum } else { 0.0 };
        Self {
            positive,
            negative,
            per_second: ratio(positive, sums.asking_spacing),
            per_byte: ratio(negative, sums.bytes),
        }
    }

    /// The feedback of a packet of this many `bytes`, whose sender has this `spacing` and asks for `asked`,
    /// bytes per second. `may_grow`: it gets positive feedback.
    pub fn give(&mut self, spacing: Duration, bytes: f64, asked: f64, may_grow: bool) -> f64 {
        let growth = if may_grow { self.per_second * spacing.as_secs_f64() } else { 0.0 };
        let mut positive = self.positive.min(growth);
        let mut negative = self.negative.min(self.per_byte * bytes);
        let feedback = positive - negative;
        // An upstream router, or the sender itself, allows less: the rest is for others.
        if asked < feedback {
            negative = self.negative.min(negative + feedback - asked);
            positive = (asked + negative).max(0.0);
        }
        self.positive = (self.positive - positive).max(0.0);
        self.negative = (self.negative - negative).max(0.0);
        feedback.min(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const CAPACITY: f64 = 1e6;

    /// 1 Mbyte/s of capacity and as much traffic of one sender with X = 1 ms, for a second.
    fn full() -> Sums {
        Sums { bytes: 1e6, spacing: 1.0, rtt_spacing: 0.5, asking_spacing: 1.0, queue: 0.0 }
    }

    fn decide(sums: &Sums) -> Shares {
        Shares::decide(Gains::default(), Rate::mbps(8), SECOND, SECOND / 2, sums)
    }

    #[test]
    fn at_full_load_a_tenth_is_taken_from_all_and_given_to_all() {
        let shares = decide(&full());
        assert_eq!((shares.positive, shares.negative), (1e5, 1e5));
        assert_eq!((shares.per_second, shares.per_byte), (1e5, 0.1));
        assert_eq!(full().mean_rtt(), Some(SECOND / 2));
    }

    #[test]
    fn a_standing_queue_is_drained_by_its_part() {
        // φ = −0.226 · 100 kB / 0.5 s = −45.2 kB/s; 54.8 kB/s of the tenth are left to be shuffled.
        let shares = decide(&Sums { queue: 1e5, ..full() });
        assert!(
            (shares.positive - 54_800.0).abs() < 1e-6 && (shares.negative - 1e5).abs() < 1e-6,
            "{shares:?}"
        );
    }

    #[test]
    fn a_sender_that_asks_for_less_leaves_the_rest_to_others_and_the_sum_unchanged() {
        let mut shares = decide(&full());
        // 100 kB/s · 1 ms · 2 − 0.1 · 1000 = 100 B/s would be its feedback, and it wants 40.
        let given = shares.give(Duration::from_millis(2), 1000.0, 40.0, true);
        assert_eq!(given, 40.0);
        let net = (1e5 - shares.positive) - (1e5 - shares.negative);
        assert!((net - 40.0).abs() < 1e-6, "{shares:?}");
    }

    fn controller(idle_offer: f64) -> Controller {
        let bounds = [Duration::from_millis(10), 10 * SECOND];
        Controller::new(Gains::default(), Rate::mbps(8), SECOND / 4, bounds, idle_offer)
    }

    #[test]
    fn the_mean_round_trip_stays_within_its_bounds() {
        let mut controller = controller(IDLE_OFFER);
        controller.decide(SECOND, &full(), 0.0);
        assert_eq!(controller.mean_rtt(), Duration::from_millis(500));
        for (rtt_spacing, bounded) in [(1e-9, SECOND / 100), (1e9, 10 * SECOND)] {
            controller.decide(SECOND, &Sums { rtt_spacing, ..full() }, 0.0);
            assert_eq!(controller.mean_rtt(), bounded);
        }
        // Packets without a header do not change what is known.
        controller.decide(SECOND, &Sums { bytes: 9.0, ..Sums::default() }, 0.0);
        assert_eq!(controller.mean_rtt(), 10 * SECOND);
    }

    #[test]
    fn a_late_decision_is_for_the_time_that_has_passed() {
        let mut controller = controller(IDLE_OFFER);
        let punctual = controller.decide(SECOND, &full(), 0.0);
        let twice = Sums { bytes: 2e6, spacing: 2.0, rtt_spacing: 1.0, asking_spacing: 2.0, queue: 0.0 };
        let late = controller.decide(2 * SECOND, &twice, 0.0);
        assert_eq!((punctual.positive, punctual.negative), (late.positive, late.negative));
    }

    #[test]
    fn without_congestion_headers_spare_capacity_is_offered_to_one_window() {
        let offer = controller(IDLE_OFFER).decide(SECOND, &Sums::default(), 0.0);
        assert_eq!((offer.positive, offer.negative), (IDLE_OFFER * CAPACITY, 0.0));
        assert_eq!(offer.per_second / 4.0, offer.positive);
        // What others take, and what stands in the queue, is not spare.
        let beside = |bytes, queue| {
            controller(IDLE_OFFER).decide(SECOND, &Sums { bytes, queue, ..Sums::default() }, 0.0).positive
        };
        assert_eq!(beside(0.4e6, 0.0), IDLE_OFFER * 0.6e6);
        assert!(beside(0.4e6, 10_000.0) < beside(0.4e6, 0.0));
        assert_eq!((beside(2e6, 0.0), beside(0.0, 1e6)), (0.0, 0.0));
        // The published router has nothing to give to nobody.
        assert_eq!(controller(0.0).decide(SECOND, &Sums::default(), 0.0).per_second, 0.0);
    }

    #[test]
    fn an_accepted_offer_is_not_spare_until_it_is_observed() {
        // A tenth of the capacity is seen.
        let thin = Sums { bytes: 1e5, ..full() };
        let given = |left: f64| {
            let mut controller = controller(IDLE_OFFER);
            controller.decide(SECOND, &Sums::default(), 0.0);
            [left, 0.0, 0.0].map(|left| controller.decide(SECOND, &thin, left).positive)
        };
        let alpha = Gains::default().spare;
        let [rest, all] = [alpha * (1.0 - IDLE_OFFER) * CAPACITY, alpha * 0.9 * CAPACITY];
        let close = |found: [f64; 3], wanted: [f64; 3]| {
            assert!(
                found.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1.0),
                "{found:?}"
            );
        };
        close(given(0.0), [rest, rest, all]);
        close(given(IDLE_OFFER * CAPACITY), [all; 3]);
    }

    #[test]
    fn empty_sums_cause_no_division_by_zero() {
        let shares =
            Shares::decide(Gains::default(), Rate::mbps(8), Duration::ZERO, Duration::ZERO, &Sums::default());
        assert_eq!((shares.per_second, shares.per_byte, Sums::default().mean_rtt()), (0.0, 0.0, None));
        assert!(shares.positive.is_finite() && shares.negative.is_finite());
    }
}
