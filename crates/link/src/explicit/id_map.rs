//! A table of connections by their numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by the number of a connection, [`Report::id`](super::Report::id).
///
/// A decision looks each connection up several times, fifty times a second. The numbers are the kernel's or
/// the simulator's and no peer chooses them, so that they need no hash that resists chosen keys.
pub type IdMap<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

/// Spreads consecutive numbers and addresses over all bits: multiplication by 2⁶⁴/φ (Knuth, "The Art of
/// Computer Programming", volume 3, §6.4).
#[derive(Debug, Clone, Copy, Default)]
pub struct IdHasher(u64);

const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, number: u64) {
        let product = u128::from(self.0 ^ number) * u128::from(SPREAD);
        // The table uses the low bits, which in a product depend on the low bits of the number alone.
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_that_differ_in_some_bits_only_are_spread_over_the_table() {
        for shift in [0, 6, 12, 40, 50] {
            let low_bits = |id: u64| {
                let mut hasher = IdHasher::default();
                hasher.write_u64(id << shift);
                hasher.finish() % 4096
            };
            let found: HashSet<u64> = (0..4096).map(low_bits).collect();
            assert!(found.len() > 1500, "{} of 4096 places with a shift of {shift}", found.len());
        }
    }
}
