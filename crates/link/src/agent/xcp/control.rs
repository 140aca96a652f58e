//! What an XCP router decides once in each control interval, and how it hands that out packet by packet.
//!
//! Katabi, Handley and Rohrs, "Congestion Control for High Bandwidth-Delay Product Networks" (SIGCOMM 2002), §3.5, with the
//! rates in bytes per second as in draft-falk-xcp-spec-03:
//!
//! ```text
//! y = input / Te                         the rate at which bytes arrive
//! d = Σ RTT·X / Σ X                      the mean round-trip time
//! φ = α·(C − y) − β·Q/d                  by how much the sum of all rates is to change
//! shuffle = max(0, γ·y − |φ|)            what is taken from all and given to all, so that shares become equal
//! r⁺ = max(φ, 0) + shuffle               r⁻ = max(−φ, 0) + shuffle
//! Cp = r⁺ / Σ X                          Cn = r⁻ / input
//! ```

use std::time::Duration;

use bentpipe_units::Rate;

/// α, β and γ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gains {
    /// α: the part of the spare capacity that is given out in an interval.
    pub spare: f64,
    /// β: the part of the standing queue that is drained in an interval.
    pub queue: f64,
    /// γ: the part of the traffic that is shuffled.
    pub shuffled: f64,
}

/// What has arrived since the last decision.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sums {
    /// Bytes on the wire, of packets without a congestion header too.
    pub bytes: f64,
    /// Σ X, seconds.
    pub spacing: f64,
    /// Σ RTT·X, square seconds.
    pub rtt_spacing: f64,
    /// Σ X of the packets to which positive feedback is given: all of them in XCP, those of senders that ask for more in P-XCP.
    pub asking_spacing: f64,
    /// The shortest that the queue has been, bytes.
    pub queue: f64,
}

/// What is left to be given out in this interval.
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
    /// d, the mean round-trip time of the traffic; `None` where no packet has said anything of it.
    pub fn mean_rtt(&self) -> Option<Duration> {
        (self.rtt_spacing > 0.0).then(|| Duration::from_secs_f64(self.rtt_spacing / self.spacing))
    }
}

impl Shares {
    /// What to give out in the interval that begins, after one of `elapsed` at a link of this `capacity` with this mean
    /// round-trip time.
    pub fn decide(gains: Gains, capacity: Rate, elapsed: Duration, mean_rtt: Duration, sums: &Sums) -> Self {
        let capacity = capacity.bps() as f64 / 8.0;
        let rate = sums.bytes / elapsed.as_secs_f64();
        let change = gains.spare * (capacity - rate) - gains.queue * sums.queue / mean_rtt.as_secs_f64();
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

    /// The feedback of a packet of so many `bytes`, whose sender has this `spacing` and asks for `asked`, bytes per second.
    /// `may_grow`: positive feedback is given to it.
    pub fn give(&mut self, spacing: Duration, bytes: f64, asked: f64, may_grow: bool) -> f64 {
        let growth = if may_grow { self.per_second * spacing.as_secs_f64() } else { 0.0 };
        let mut positive = self.positive.min(growth);
        let mut negative = self.negative.min(self.per_byte * bytes);
        let feedback = positive - negative;
        // A router downstream, or the sender itself, wants less: what it leaves is for others.
        if asked < feedback {
            negative = self.negative.min(negative + feedback - asked);
            positive = (asked + negative).max(0.0);
        }
        self.positive = (self.positive - positive).max(0.0);
        self.negative -= negative;
        feedback.min(asked)
    }
}
