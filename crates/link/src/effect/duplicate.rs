//! Packets that arrive twice.

use bentpipe_units::Probability;

use super::{Copies, Effect, PacketCopy};
use crate::random::Bernoulli;

/// Duplicates packets at random, as retransmission by a link layer does.
#[derive(Debug)]
pub(crate) struct Duplicate {
    probability: Probability,
    random: Bernoulli,
}

impl Duplicate {
    pub(crate) fn new(probability: Probability, seed: u64) -> Self {
        Self { probability, random: Bernoulli::new(seed) }
    }
}

impl Effect for Duplicate {
    /// Takes one draw.
    fn impair(&mut self, copies: &mut Copies) {
        copies.duplicate = self.random.happens(self.probability).then(PacketCopy::default);
    }
}
