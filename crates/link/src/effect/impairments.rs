//! A path that reorders, duplicates and corrupts: what striped trunks, link-layer retransmission and bad
//! memory do.

use std::time::Duration;

use bentpipe_units::Probability;
use serde::Serialize;

use super::corrupt::Corrupt;
use super::duplicate::Duplicate;
use super::reorder::Reorder;
use super::{AnyEffect, Copies};
use crate::random::derive_seeds;

/// How a path impairs the packets that it delivers. The default leaves them alone.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Impairments {
    /// Probability that a packet is held back, so that later ones overtake it.
    pub reorder: Probability,
    /// How long a packet is held back. If no packet follows within this time, it is late, but not reordered.
    pub reorder_by: Duration,
    /// Probability that a packet arrives twice.
    pub duplicate: Probability,
    /// Probability that one bit of a copy is flipped, anywhere in the IP packet.
    ///
    /// The Internet checksum (RFC 1071) finds every single flipped bit that it covers: in IPv4 all of the
    /// packet, in IPv6, whose header has no checksum, the addresses and what TCP or UDP carries.
    pub corrupt: Probability,
}

/// Packets impaired so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ImpairmentCounters {
    /// Copies that were held back.
    pub held_back: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Copies with a flipped bit.
    pub corrupted: u64,
}

impl Impairments {
    /// How long packets are held back where nothing else is configured: at 10 Mbit/s eight of full size
    /// overtake each.
    pub const DEFAULT_REORDER_BY: Duration = Duration::from_millis(10);

    /// True if packets pass unchanged.
    pub fn is_nothing(&self) -> bool {
        [self.reorder, self.duplicate, self.corrupt] == [Probability::ZERO; 3]
    }

    /// The effects, each with a generator of its own. Duplication is the first, so that the others act on
    /// both copies.
    pub(crate) fn effects(&self, seed: u64) -> Vec<AnyEffect> {
        if self.is_nothing() {
            return Vec::new();
        }
        let [reorder_seed, duplicate_seed, corrupt_seed] = derive_seeds(seed);
        vec![
            Duplicate::new(self.duplicate, duplicate_seed).into(),
            Reorder::new(self.reorder, self.reorder_by, reorder_seed).into(),
            Corrupt::new(self.corrupt, corrupt_seed).into(),
        ]
    }
}

impl ImpairmentCounters {
    pub(crate) fn count(&mut self, copies: &Copies) {
        self.duplicated += u64::from(copies.duplicate.is_some());
        for copy in [Some(copies.packet), copies.duplicate].into_iter().flatten() {
            self.held_back += u64::from(copy.held_back.is_some());
            self.corrupted += u64::from(copy.flipped_bit.is_some());
        }
    }
}
