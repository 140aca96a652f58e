//! Seeded randomness: the same seed gives the same draws on every machine and in every version.

use bentpipe_units::Probability;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

/// A source of draws, most of them yes or no (xoshiro256++, Blackman and Vigna 2021).
#[derive(Debug, Clone)]
pub(crate) struct Bernoulli(Xoshiro256PlusPlus);

impl Bernoulli {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Whether something of probability `p` happens now. Each call takes one draw, whatever `p` is.
    pub(crate) fn happens(&mut self, p: Probability) -> bool {
        self.uniform() < p.get()
    }

    /// Uniform over the integers below `limit`; nothing where there are none. Takes one draw.
    pub(crate) fn below(&mut self, limit: usize) -> Option<usize> {
        let last = limit.checked_sub(1);
        // The product may round up to `limit` itself.
        let number = (self.uniform() * limit as f64) as usize;
        last.map(|last| number.min(last))
    }

    /// Uniform between two values; the first one if they are the same. Takes one draw.
    pub(crate) fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Of the standard normal distribution (Box and Muller 1958). Takes two draws.
    pub(crate) fn normal(&mut self) -> f64 {
        // One less a value below one is above zero, so that its logarithm exists.
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        radius * libm::cos(2.0 * std::f64::consts::PI * self.uniform())
    }

    /// Uniform over the 2⁵³ equally spaced values in [0, 1): the top 53 bits are what an `f64` holds exactly.
    fn uniform(&mut self) -> f64 {
        const SPACING: f64 = 1.0 / (1u64 << 53) as f64;
        (self.0.next_u64() >> 11) as f64 * SPACING
    }
}

/// `N` seeds for independent streams, derived from one (SplitMix64, Steele, Lea and Flood 2014).
pub(crate) fn derive_seeds<const N: usize>(seed: u64) -> [u64; N] {
    let mut source = SplitMix64::seed_from_u64(seed);
    std::array::from_fn(|_| source.next_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_is_certain_at_both_ends() {
        let mut random = Bernoulli::new(1);
        let one = Probability::new(1.0).unwrap();
        assert!((0..10_000).all(|_| random.happens(one)));
        assert!((0..10_000).all(|_| !random.happens(Probability::ZERO)));
    }

    #[test]
    fn every_integer_below_the_limit_is_drawn_and_no_other() {
        let mut random = Bernoulli::new(1);
        let mut seen = [0; 12];
        (0..12_000).for_each(|_| seen[random.below(12).unwrap()] += 1);
        // 1000 of each are expected; the standard error is 30.
        assert!(seen.iter().all(|&times| (850..1150).contains(&times)), "{seen:?}");
        assert_eq!((random.below(1), random.below(0)), (Some(0), None));
    }

    #[test]
    fn normal_draws_have_the_mean_zero_and_the_variance_one() {
        let mut random = Bernoulli::new(1);
        let draws: Vec<f64> = (0..100_000).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|draw| draw * draw).sum::<f64>() / 1e5;
        // Standard errors: 0.0032 and 0.0045.
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.015, "{mean} {variance}");
        assert!((0..1000).all(|_| (2.0..3.0).contains(&random.between([2.0, 3.0]))));
    }

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        let mut random = Bernoulli::new(42);
        let half = Probability::new(0.5).unwrap();
        let draws: String = (0..32).map(|_| if random.happens(half) { '1' } else { '0' }).collect();
        assert_eq!(draws, "01000010100001101101100001100010");
        assert_eq!(derive_seeds(1477776061723855037), [1985237415132408290, 2979275885539914483]);
    }
}
