//! Whether something that happens by chance happens as often as it should.
//!
//! For trials of probabilities p₁, p₂, … given all before them, and outcomes x₁, x₂, … of 0 or 1, the product
//! of e^(λ·xᵢ) / (1 + pᵢ·(e^λ − 1)) has the expectation 1, for any λ. It is a martingale, so that it reaches
//! 1/α with a probability of at most α, however long one looks on and whatever ends the trials (Ville 1939).
//! A positive λ makes it grow where there are too many hits, a negative one where there are too few; the mean
//! over several λ is a martingale, too. The probabilities may differ from trial to trial, and depend on what
//! was before.

/// The probability of a false alarm of each test.
pub(crate) const FALSE_ALARM: f64 = 1e-9;

/// |λ|: about the logarithm of the factor by which the probability is wrong.
const LAMBDAS: [f64; 9] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2];

/// Trials, and what speaks against their probabilities.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trials {
    pub(crate) trials: u64,
    pub(crate) hits: u64,
    pub(crate) expected: f64,
    /// For each λ, and then each −λ, the sum of ln(1 + pᵢ·(e^λ − 1)).
    norms: [f64; 2 * LAMBDAS.len()],
    /// Trials of the same probability that are not in the sums yet.
    same: u64,
    probability: f64,
}

impl Trials {
    pub(crate) fn add(&mut self, probability: f64, hit: bool) {
        self.add_many(probability, 1, hit.into());
    }

    pub(crate) fn add_many(&mut self, probability: f64, trials: u64, hits: u64) {
        if probability != self.probability {
            self.settle();
            self.probability = probability;
        }
        self.same += trials;
        self.trials += trials;
        self.hits += hits;
    }

    fn settle(&mut self) {
        let (same, probability) = (self.same as f64, self.probability);
        for (norm, lambda) in self.norms.iter_mut().zip(lambdas()) {
            *norm += same * (probability * lambda.exp_m1()).ln_1p();
        }
        self.expected += same * probability;
        self.same = 0;
    }

    /// Whether the hits are as many as the probabilities say, as far as chance can tell.
    pub(crate) fn agree(&mut self) -> bool {
        self.settle();
        let evidence =
            self.norms.iter().zip(lambdas()).map(|(norm, lambda)| lambda * self.hits as f64 - norm);
        let most = evidence.fold(f64::NEG_INFINITY, f64::max);
        // The mean over all λ is at least the largest divided by their number.
        most < (self.norms.len() as f64 / FALSE_ALARM).ln()
    }
}

fn lambdas() -> impl Iterator<Item = f64> {
    LAMBDAS.into_iter().chain(LAMBDAS.map(|lambda| -lambda))
}

/// The state of a Gilbert–Elliott channel as far as its losses tell: the probability that it is bad.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    model: GilbertElliott,
    bad: f64,
    slots: u64,
}

/// The parameters of a Gilbert–Elliott channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GilbertElliott {
    pub(crate) good_to_bad: f64,
    pub(crate) bad_to_good: f64,
    pub(crate) loss_in_good: f64,
    pub(crate) loss_in_bad: f64,
    /// Nanoseconds; without it the channel moves once for each packet.
    pub(crate) slot: Option<u64>,
}

impl Channel {
    /// In its long-run state.
    pub(crate) fn new(model: GilbertElliott) -> Self {
        let leaves = model.good_to_bad + model.bad_to_good;
        let bad = if model.good_to_bad > 0.0 { model.good_to_bad / leaves } else { 0.0 };
        Self { model, bad, slots: 0 }
    }

    /// Moves on to a packet whose last bit leaves at this time, and says how probably it is lost.
    pub(crate) fn loss_of(&mut self, departure: u64) -> f64 {
        let steps = match self.model.slot {
            None => 1,
            Some(slot) => {
                let slots = departure / slot.max(1);
                let steps = slots.saturating_sub(self.slots);
                self.slots = self.slots.max(slots);
                steps
            }
        };
        let GilbertElliott { good_to_bad, bad_to_good, loss_in_good, loss_in_bad, .. } = self.model;
        let leaves = good_to_bad + bad_to_good;
        if steps > 0 && leaves > 0.0 {
            let in_the_long_run = good_to_bad / leaves;
            // The difference shrinks by the same factor in each step.
            let rest = (1.0 - leaves).powf(steps as f64);
            self.bad = in_the_long_run + (self.bad - in_the_long_run) * rest;
        }
        self.bad * loss_in_bad + (1.0 - self.bad) * loss_in_good
    }

    /// The packet was lost to the channel, or not: what that says about its state.
    pub(crate) fn observe(&mut self, lost: bool) {
        let GilbertElliott { loss_in_good, loss_in_bad, .. } = self.model;
        let likely = |loss: f64| if lost { loss } else { 1.0 - loss };
        let (bad, good) = (self.bad * likely(loss_in_bad), (1.0 - self.bad) * likely(loss_in_good));
        if bad + good > 0.0 {
            self.bad = bad / (bad + good);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hits spread evenly, at a rate of `rate`.
    fn trials(told: f64, rate: f64, count: u64) -> Trials {
        let mut trials = Trials::default();
        trials.add_many(told, count, (rate * count as f64) as u64);
        trials
    }

    #[test]
    fn a_rate_a_fifth_too_high_or_too_low_is_found_in_a_few_thousand_expected_hits() {
        for rate in [1.0, 1.05, 0.95] {
            assert!(trials(0.01, rate * 0.01, 200_000).agree(), "{rate}");
        }
        for rate in [1.2, 0.8] {
            assert!(!trials(0.01, rate * 0.01, 200_000).agree(), "{rate}");
        }
    }

    #[test]
    fn one_hit_of_something_impossible_and_a_miss_of_something_certain_are_found() {
        assert!(trials(0.0, 0.0, 1000).agree() && trials(1.0, 1.0, 1000).agree());
        assert!(!trials(1e-12, 0.01, 1000).agree());
        assert!(!trials(1.0, 0.98, 1000).agree());
    }

    #[test]
    fn the_channel_that_loses_all_in_its_bad_state_is_known_from_its_losses() {
        let model = GilbertElliott {
            good_to_bad: 0.01,
            bad_to_good: 0.25,
            loss_in_good: 0.0,
            loss_in_bad: 1.0,
            slot: None,
        };
        let mut channel = Channel::new(model);
        assert!((channel.loss_of(0) - 0.01 / 0.26).abs() < 1e-12);
        channel.observe(true);
        assert!((channel.loss_of(1) - 0.75).abs() < 1e-12);
        channel.observe(false);
        assert!((channel.loss_of(2) - 0.01).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn several_steps_at_once_are_as_many_single_ones(p in 0.0f64..1.0, r in 0.0f64..1.0, steps in 1u64..20) {
            let model = GilbertElliott {
                good_to_bad: p, bad_to_good: r, loss_in_good: 0.0, loss_in_bad: 1.0, slot: Some(10),
            };
            let [mut at_once, mut one_by_one] = [Channel::new(model), Channel::new(model)];
            at_once.observe(true);
            one_by_one.observe(true);
            let loss = at_once.loss_of(10 * steps);
            let last = (1..=steps).map(|step| one_by_one.loss_of(10 * step)).last();
            prop_assert!((last.unwrap() - loss).abs() < 1e-9);
        }
    }
}
