//! What a node changes in a bundle that it passes on, and when a bundle is of no more use.

use super::blocks::{HOP_COUNT_BLOCK, PREVIOUS_NODE_BLOCK};
use super::{Bundle, HopCount};
use crate::{DtnTime, Eid};

/// The bundle has been passed on as often as it may be; it is to be deleted, with the reason
/// [`HOP_LIMIT_EXCEEDED`](super::report::ReasonCode::HOP_LIMIT_EXCEEDED).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bundle may pass {limit} nodes and has passed them; its source has to allow more")]
pub struct HopLimitExceeded {
    /// The limit.
    pub limit: u8,
}

impl Bundle {
    /// When it is of no more use (RFC 9171 §4.3.1, §4.4.2), by the clock of the node that received it at
    /// `received`, or made it then.
    pub fn expires(&self, received: DtnTime) -> DtnTime {
        if self.id.created == DtnTime::UNKNOWN {
            received.after(self.lifetime.saturating_sub(self.age.unwrap_or_default()))
        } else {
            self.id.created.after(self.lifetime)
        }
    }

    /// The bundle as `node` passes it on at `now`, having received it at `received`: this node is the
    /// previous one, it has made one hop more, and has grown older (RFC 9171 §4.4).
    ///
    /// # Errors
    /// The hop limit is reached.
    pub fn for_next_hop(
        &self,
        node: &Eid,
        now: DtnTime,
        received: DtnTime,
    ) -> Result<Self, HopLimitExceeded> {
        let mut next = self.clone();
        // Without a limit it gets the highest, so that a circle ends; there is one such block at most.
        let none = HopCount { limit: u8::MAX, count: 0 };
        let hops = self.hops.or_else(|| (!self.has_unknown_block_of(HOP_COUNT_BLOCK)).then_some(none));
        if let Some(HopCount { limit, count }) = hops {
            let count = count.checked_add(1).filter(|&count| count <= limit);
            next.hops = Some(HopCount { limit, count: count.ok_or(HopLimitExceeded { limit })? });
        }
        next.age = self.age.map(|age| age.saturating_add(now.since(received)));
        if self.id.created == DtnTime::UNKNOWN {
            next.age = next.age.or(Some(now.since(received)));
        }
        next.drop_unknown_blocks_of(PREVIOUS_NODE_BLOCK);
        next.previous_node = Some(node.node()).filter(|node| *node != Eid::None);
        Ok(next)
    }
}
