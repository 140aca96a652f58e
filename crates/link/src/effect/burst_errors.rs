//! Packet errors that come in bursts.

use bentpipe_units::Probability;

use super::{Effect, Transit};
use crate::Cause;
use crate::random::Bernoulli;

/// A channel with a good and a bad state, stepped once for each packet that is sent (Elliott, "Estimates of
/// error rates for codes on burst-noise channels", 1963, after Gilbert, "Capacity of a burst-noise channel",
/// 1960).
///
/// With `loss_in_good` 0 it is Gilbert's channel, with `loss_in_bad` 1 as well the one of two parameters that
/// most of the literature calls by his name: then bursts have a mean length of 1/`bad_to_good` packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GilbertElliott {
    /// Probability to go from good to bad before a packet.
    pub good_to_bad: Probability,
    /// Probability to go from bad to good before a packet.
    pub bad_to_good: Probability,
    /// Probability that a packet is lost in the good state.
    pub loss_in_good: Probability,
    /// Probability that a packet is lost in the bad state.
    pub loss_in_bad: Probability,
}

impl GilbertElliott {
    /// Share of packets that meet the bad state in the long run; 0 where neither state is ever left.
    pub fn stationary_bad(&self) -> Probability {
        let (p, r) = (self.good_to_bad.get(), self.bad_to_good.get());
        if p == 0.0 { Probability::ZERO } else { Probability::new(p / (p + r)).expect("p is at most p + r") }
    }

    /// Share of packets lost in the long run.
    pub fn stationary_loss(&self) -> Probability {
        let bad = self.stationary_bad().get();
        let loss = (1.0 - bad) * self.loss_in_good.get() + bad * self.loss_in_bad.get();
        Probability::new(loss.min(1.0)).expect("a mean of two probabilities is one")
    }

    /// Mean number of packets lost in a row, in the long run; 0 if none is ever lost, infinite if a burst
    /// never ends.
    ///
    /// It is the share of packets lost divided by the share at which a burst begins, P(sent well, then lost).
    pub fn mean_burst(&self) -> f64 {
        let loss = self.stationary_loss().get();
        if loss == 0.0 { 0.0 } else { loss / self.burst_begins() }
    }

    /// P(this packet arrives and the next is lost), in the long run.
    fn burst_begins(&self) -> f64 {
        let (p, r) = (self.good_to_bad.get(), self.bad_to_good.get());
        let (in_good, in_bad) = (self.loss_in_good.get(), self.loss_in_bad.get());
        let bad = self.stationary_bad().get();
        let next_lost_after_good = (1.0 - p) * in_good + p * in_bad;
        let next_lost_after_bad = r * in_good + (1.0 - r) * in_bad;
        (1.0 - bad) * (1.0 - in_good) * next_lost_after_good + bad * (1.0 - in_bad) * next_lost_after_bad
    }
}

/// A running Gilbert–Elliott channel. It starts in its long-run state, so that short runs are not too lucky.
#[derive(Debug)]
pub(crate) struct BurstErrors {
    model: GilbertElliott,
    bad: bool,
    random: Bernoulli,
}

impl BurstErrors {
    pub(crate) fn new(model: GilbertElliott, seed: u64) -> Self {
        let mut random = Bernoulli::new(seed);
        let bad = random.happens(model.stationary_bad());
        Self { model, bad, random }
    }

    /// Steps the channel by one packet and says whether it is lost. Takes two draws.
    fn lose_next(&mut self) -> bool {
        let leave = if self.bad { self.model.bad_to_good } else { self.model.good_to_bad };
        self.bad ^= self.random.happens(leave);
        self.random.happens(if self.bad { self.model.loss_in_bad } else { self.model.loss_in_good })
    }
}

impl Effect for BurstErrors {
    #[inline]
    fn apply(&mut self, packet: &mut Transit) {
        if self.lose_next() {
            packet.lose(Cause::BurstError);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(p: f64, r: f64, in_good: f64, in_bad: f64) -> GilbertElliott {
        let [good_to_bad, bad_to_good, loss_in_good, loss_in_bad] =
            [p, r, in_good, in_bad].map(|p| Probability::new(p).unwrap());
        GilbertElliott { good_to_bad, bad_to_good, loss_in_good, loss_in_bad }
    }

    #[test]
    fn a_gilbert_channel_has_bursts_of_one_over_r() {
        let gilbert = channel(0.01, 0.25, 0.0, 1.0);
        assert!((gilbert.stationary_loss().get() - 0.01 / 0.26).abs() < 1e-15);
        assert!((gilbert.mean_burst() - 4.0).abs() < 1e-12);
    }

    #[test]
    fn equal_states_make_it_a_uniform_channel() {
        let uniform = channel(0.1, 0.3, 0.2, 0.2);
        assert!((uniform.stationary_loss().get() - 0.2).abs() < 1e-15);
        assert!((uniform.mean_burst() - 1.0 / 0.8).abs() < 1e-12);
    }

    #[test]
    fn the_extremes_have_a_meaning() {
        assert_eq!(channel(0.0, 0.0, 0.0, 1.0).stationary_loss(), Probability::ZERO);
        assert_eq!(channel(0.0, 0.0, 0.0, 1.0).mean_burst(), 0.0);
        assert_eq!(channel(0.5, 0.0, 0.0, 1.0).stationary_loss().get(), 1.0);
        assert_eq!(channel(0.5, 0.0, 0.0, 1.0).mean_burst(), f64::INFINITY);
    }

    #[test]
    fn a_channel_starts_in_its_long_run_state() {
        let in_the_end_bad = channel(1e-9, 0.0, 0.0, 1.0);
        assert!(BurstErrors::new(in_the_end_bad, 7).lose_next(), "it need not wait 10^9 packets for that");
    }
}
