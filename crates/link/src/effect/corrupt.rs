//! Packets with a wrong bit.

use bentpipe_units::Probability;

use super::{Copies, Effect};
use crate::random::Bernoulli;

/// Flips one bit of a packet at random, as bad memory does; in each copy of a packet by itself.
#[derive(Debug)]
pub(crate) struct Corrupt {
    probability: Probability,
    random: Bernoulli,
}

impl Corrupt {
    pub(crate) fn new(probability: Probability, seed: u64) -> Self {
        Self { probability, random: Bernoulli::new(seed) }
    }
}

impl Effect for Corrupt {
    /// Takes four draws, whether or not there is a second copy.
    fn impair(&mut self, copies: &mut Copies) {
        let bits = copies.ip_bytes * 8;
        copies.for_both(|copy| {
            let happens = self.random.happens(self.probability);
            copy.flipped_bit = self.random.below(bits).filter(|_| happens);
        });
    }
}
