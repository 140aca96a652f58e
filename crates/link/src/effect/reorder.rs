//! Packets that later ones overtake.

use std::time::Duration;

use bentpipe_units::Probability;

use super::{Copies, Effect};
use crate::random::Bernoulli;

/// Holds packets back at random, as striped trunks do; each copy of a packet by itself.
#[derive(Debug)]
pub(crate) struct Reorder {
    probability: Probability,
    hold_back: Duration,
    random: Bernoulli,
}

impl Reorder {
    pub(crate) fn new(probability: Probability, hold_back: Duration, seed: u64) -> Self {
        Self { probability, hold_back, random: Bernoulli::new(seed) }
    }
}

impl Effect for Reorder {
    /// Takes two draws, whether or not there is a second copy.
    fn impair(&mut self, copies: &mut Copies) {
        copies.for_both(|copy| {
            copy.held_back = self.random.happens(self.probability).then_some(self.hold_back);
        });
    }
}
