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

    #[test]
    fn empty_sums_cause_no_division_by_zero() {
        let shares =
            Shares::decide(Gains::default(), Rate::mbps(8), Duration::ZERO, Duration::ZERO, &Sums::default());
        assert_eq!((shares.per_second, shares.per_byte, Sums::default().mean_rtt()), (0.0, 0.0, None));
        assert!(shares.positive.is_finite() && shares.negative.is_finite());
    }
}
