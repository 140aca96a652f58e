//! Numbers that follow from a seed.

use std::hash::{BuildHasher, RandomState};

/// A generator whose sequence follows from its seed (Steele and others 2014, SplitMix64).
#[derive(Debug)]
pub(crate) struct Random(u64);

/// Another one each time.
pub(crate) fn any_seed() -> u64 {
    RandomState::new().hash_one(0) >> 32
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator of its own, which this one's later numbers do not disturb.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True so often, in percent.
    pub(crate) fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// Bytes of a transfer: most are short, few are long.
    pub(crate) fn size(&mut self) -> u64 {
        let magnitude = self.below(22);
        (1 << magnitude) + self.below(1 << magnitude) - 1
    }

    pub(crate) fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}
