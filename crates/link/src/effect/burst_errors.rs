//! Packet errors that come in bursts.

use std::time::Duration;

use bentpipe_units::{Probability, Time};

use super::{Effect, Transit};
use crate::Cause;
use crate::random::{Bernoulli, derive_seeds};

/// A channel with a good and a bad state, stepped once for each packet that is sent, or once in each slot of
/// time (Elliott, "Estimates of
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
    /// The channel moves in slots of this length, whether packets are sent or not: the probabilities to leave
    /// a state are for each slot, and a state lasts this divided by them in the mean. Without it the channel
    /// stands still while nothing is sent, so that a bad state outlasts any back-off.
    pub slot: Option<Duration>,
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
    /// Slots that have begun.
    slots: u64,
    random: Bernoulli,
    /// Of losses, where the channel moves in slots: their draws do not depend on how many packets are sent.
    loss_random: Bernoulli,
}

/// After so many slots without a packet the state is taken from the long run, and not stepped through.
const MOST_SLOTS: u64 = 10_000_000;

impl BurstErrors {
    pub(crate) fn new(model: GilbertElliott, seed: u64) -> Self {
        let mut random = Bernoulli::new(seed);
        let [loss_seed] = derive_seeds(seed);
        let bad = random.happens(model.stationary_bad());
        Self { model, bad, slots: 0, random, loss_random: Bernoulli::new(loss_seed) }
    }

    /// Steps the channel by one.
    fn step(&mut self) {
        let leave = if self.bad { self.model.bad_to_good } else { self.model.good_to_bad };
        self.bad ^= self.random.happens(leave);
    }

    /// Moves the channel to the slot of a time that is not before that of an earlier packet, and says whether
    /// a packet is lost there. Takes a draw for each slot, and one for the packet.
    fn lose_at(&mut self, now: Time, slot: Duration) -> bool {
        let slots = u64::try_from(now.as_nanos() as u128 / slot.as_nanos().max(1)).unwrap_or(u64::MAX);
        if slots.saturating_sub(self.slots) > MOST_SLOTS {
            self.bad = self.random.happens(self.model.stationary_bad());
        } else {
            (self.slots..slots).for_each(|_| self.step());
        }
        self.slots = self.slots.max(slots);
        self.loss_random.happens(if self.bad { self.model.loss_in_bad } else { self.model.loss_in_good })
    }

    /// Steps the channel by one packet and says whether it is lost. Takes two draws.
    fn lose_next(&mut self) -> bool {
        self.step();
        self.random.happens(if self.bad { self.model.loss_in_bad } else { self.model.loss_in_good })
    }
}

impl Effect for BurstErrors {
    #[inline]
    fn apply(&mut self, packet: &mut Transit) {
        let lost = match self.model.slot {
            Some(slot) => self.lose_at(packet.departure, slot),
            None => self.lose_next(),
        };
        if lost {
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
        GilbertElliott { good_to_bad, bad_to_good, loss_in_good, loss_in_bad, slot: None }
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
    fn a_channel_in_slots_moves_whether_packets_are_sent_or_not() {
        let slot = Duration::from_millis(1);
        // A bad state lasts 100 ms in the mean, a good one 400 ms.
        let model = GilbertElliott { slot: Some(slot), ..channel(0.0025, 0.01, 0.0, 1.0) };
        let at = |millis: u64| Time::ZERO + Duration::from_millis(millis);
        let mut dense = BurstErrors::new(model, 7);
        let lost: Vec<bool> = (0..100_000).map(|millis| dense.lose_at(at(millis), slot)).collect();
        let share = lost.iter().filter(|&&lost| lost).count() as f64 / lost.len() as f64;
        assert!((0.12..0.28).contains(&share), "{share}: 20% in the long run");
        // One packet in a second meets the same channel.
        let mut sparse = BurstErrors::new(model, 7);
        for second in 0..100u64 {
            assert_eq!(sparse.lose_at(at(1000 * second), slot), lost[1000 * second as usize]);
        }
        assert!(!BurstErrors::new(channel(0.0, 1.0, 0.0, 1.0), 7).lose_at(Time::MAX, slot));
    }

    #[test]
    fn a_channel_starts_in_its_long_run_state() {
        let in_the_end_bad = channel(1e-9, 0.0, 0.0, 1.0);
        assert!(BurstErrors::new(in_the_end_bad, 7).lose_next(), "it need not wait 10^9 packets for that");
    }
}
