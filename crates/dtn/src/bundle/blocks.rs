//! The extension blocks of a bundle: those that are kept as received, and the processing of unknown ones.

use bp7::canonical::{
    BUNDLE_AGE_BLOCK, CanonicalData, HOP_COUNT_BLOCK, PREVIOUS_NODE_BLOCK, new_canonical_block,
};

use super::wire::{clamped_millis, closed, endpoint};
use super::{Bundle, CrcType, Priority};
use crate::DtnTime;

/// The type of the priority block.
pub(super) const PRIORITY_BLOCK: u64 = 224;

/// The known types, in the order in which they are added.
pub(super) const KNOWN: [u64; 4] = [PREVIOUS_NODE_BLOCK, HOP_COUNT_BLOCK, BUNDLE_AGE_BLOCK, PRIORITY_BLOCK];

/// Flags of blocks (RFC 9171 §4.2.4).
const REPLICATE: u8 = 0x01;
const REPORT: u8 = 0x02;
const DELETE_BUNDLE: u8 = 0x04;
const DISCARD: u8 = 0x10;

/// The parts of a received bundle that are in none of its fields. Empty for a bundle that this node would
/// encode in the same way.
#[derive(Debug, Clone, Eq, PartialEq, Default)]
pub(super) struct ReceivedForm {
    /// The primary block's bytes, if this node would encode it differently.
    pub(super) primary: Option<Box<[u8]>>,
    /// This node's encoding of the same primary block. If the fields have changed since, `primary` is stale.
    pub(super) rewritten: Box<[u8]>,
    /// Flags of the bundle that this node does not know.
    pub(super) flags: u64,
    /// Flags of the payload block.
    pub(super) payload_flags: u8,
    /// The extension blocks, in their order.
    pub(super) slots: Vec<Slot>,
}

/// An extension block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) kind: u64,
    pub(super) number: u64,
    pub(super) flags: u8,
    pub(super) crc: CrcType,
    /// The whole block, if its content is in no field.
    pub(super) raw: Option<Box<[u8]>>,
}

/// What unknown blocks demand (RFC 9171 §5.6, step 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unprocessable {
    /// Report the bundle's reception, with the reason
    /// [`BLOCK_UNSUPPORTED`](super::report::ReasonCode::BLOCK_UNSUPPORTED).
    pub report: bool,
    /// Delete the bundle, for the same reason.
    pub delete: bool,
}

impl Bundle {
    /// Removes the blocks that this node does not know and whose flags ask for that, and says what else such
    /// blocks ask for. To be called when a bundle has been received, once.
    pub fn process_unknown_blocks(&mut self) -> Unprocessable {
        let asked =
            |flag| self.received.slots.iter().any(|slot| slot.raw.is_some() && slot.flags & flag != 0);
        // Of a bundle that says that it is a report, or nobody's, nothing may be reported (RFC 9171 §4.2.4).
        let may_report = super::report::allowed(self);
        let result = Unprocessable { report: asked(REPORT) && may_report, delete: asked(DELETE_BUNDLE) };
        self.received.slots.retain(|slot| slot.raw.is_none() || slot.flags & DISCARD == 0);
        result
    }

    /// The extension blocks as they are written: those that came, then those that have been added.
    pub(super) fn slots(&self) -> Vec<Slot> {
        let mut slots = self.received.slots.clone();
        for kind in KNOWN {
            if self.is_written(kind) && !slots.iter().any(|slot| slot.is_field(kind)) {
                let number = (2..).find(|&number| slots.iter().all(|slot| slot.number != number));
                let flags = if kind == PREVIOUS_NODE_BLOCK { 0 } else { REPLICATE };
                let number = number.expect("there are fewer blocks than numbers");
                slots.push(Slot { kind, number, flags, crc: CrcType::Crc32, raw: None });
            }
        }
        slots
    }

    /// Writes one extension block, if there is something to write.
    pub(super) fn put_block(&self, out: &mut Vec<u8>, slot: &Slot) {
        if let Some(raw) = &slot.raw {
            out.extend_from_slice(raw);
        } else if let Some(content) = self.content(slot.kind) {
            out.extend(closed(new_canonical_block(slot.kind, slot.number, slot.flags, content), slot.crc));
        }
    }

    fn is_written(&self, kind: u64) -> bool {
        if kind == PRIORITY_BLOCK { self.priority != Priority::Normal } else { self.content(kind).is_some() }
    }

    /// What a known block says, from the bundle's fields.
    fn content(&self, kind: u64) -> Option<CanonicalData> {
        match kind {
            PREVIOUS_NODE_BLOCK => self.previous_node.as_ref().map(endpoint).map(CanonicalData::PreviousNode),
            HOP_COUNT_BLOCK => self.hops.map(|hops| CanonicalData::HopCount(hops.limit, hops.count)),
            BUNDLE_AGE_BLOCK => {
                // Without a creation time there has to be an age (RFC 9171 §4.4.2).
                let needed = (self.id.created == DtnTime::UNKNOWN).then(Default::default);
                self.age.or(needed).map(|age| CanonicalData::BundleAge(clamped_millis(age)))
            }
            PRIORITY_BLOCK => Some(CanonicalData::Unknown(vec![self.priority as u8])),
            _ => None,
        }
    }

    /// Drops the blocks that only the first fragment has (RFC 9171 §5.8). The fields stay: what limits the
    /// life of a bundle, its hops and its age, has to limit each part of it, whatever the flags say.
    pub(super) fn drop_unreplicated_blocks(&mut self) {
        self.received.slots.retain(|slot| slot.raw.is_none() || slot.flags & REPLICATE != 0);
    }

    /// Makes room for our own previous node block, also where the one that came was not understood.
    pub(super) fn drop_unknown_blocks_of(&mut self, kind: u64) {
        self.received.slots.retain(|slot| slot.raw.is_none() || slot.kind != kind);
    }
}

impl Slot {
    fn is_field(&self, kind: u64) -> bool {
        self.kind == kind && self.raw.is_none()
    }
}
