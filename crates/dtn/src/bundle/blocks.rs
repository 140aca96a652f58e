//! The extension blocks of a bundle: those that are kept as received, and the processing of unknown ones.

use std::time::Duration;

use super::cbor::{Item, Reader, put, put_endpoint};
use super::report::ReasonCode;
use super::wire::{clamped_millis, with_crc};
use super::{Bundle, CrcType, HopCount, Priority, security};
use crate::DtnTime;

/// The types of the blocks that are fields (RFC 9171 §4.4), and of our own.
pub(super) const PREVIOUS_NODE_BLOCK: u64 = 6;
const BUNDLE_AGE_BLOCK: u64 = 7;
pub(super) const HOP_COUNT_BLOCK: u64 = 10;
const PRIORITY_BLOCK: u64 = 224;
const FILE_NAME_BLOCK: u64 = 225;

/// The known types, in the order in which they are added.
pub(super) const KNOWN: [u64; 5] =
    [PREVIOUS_NODE_BLOCK, HOP_COUNT_BLOCK, BUNDLE_AGE_BLOCK, PRIORITY_BLOCK, FILE_NAME_BLOCK];

/// The types that every node changes when it passes a bundle on (RFC 9171 §4.4.1–§4.4.3).
pub(super) const CHANGING: [u64; 3] = [PREVIOUS_NODE_BLOCK, BUNDLE_AGE_BLOCK, HOP_COUNT_BLOCK];

/// Flags of blocks (RFC 9171 §4.2.4).
pub(super) const REPLICATE: u64 = 0x01;
const REPORT: u64 = 0x02;
const DELETE_BUNDLE: u64 = 0x04;
const DISCARD: u64 = 0x10;

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
    pub(super) payload_flags: u64,
    /// The extension blocks, in their order.
    pub(super) slots: Vec<Slot>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) kind: u64,
    pub(super) number: u64,
    pub(super) flags: u64,
    pub(super) crc: CrcType,
    /// The whole block, if its content is in no field.
    pub(super) raw: Option<Box<[u8]>>,
}

/// What blocks that cannot be processed demand (RFC 9171 §5.6, step 3). The reasons are
/// [`BLOCK_UNINTELLIGIBLE`](ReasonCode::BLOCK_UNINTELLIGIBLE) for a block of a known type, whose content makes
/// no sense, and [`BLOCK_UNSUPPORTED`](ReasonCode::BLOCK_UNSUPPORTED) for one of another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unprocessable {
    /// Report the bundle's reception, for this reason.
    pub report: Option<ReasonCode>,
    /// Delete the bundle, for this reason.
    pub delete: Option<ReasonCode>,
}

impl Bundle {
    /// Removes the blocks that this node cannot process and whose flags ask for that, and says what else such
    /// blocks ask for. To be called when a bundle has been received, once.
    ///
    /// Security blocks are known, and stay whatever their flags say: a payload whose BCB is gone would pass
    /// for plain text (RFC 9172 §3.8).
    pub fn process_unknown_blocks(&mut self) -> Unprocessable {
        let is_strange = |slot: &Slot| slot.raw.is_some() && !security::KINDS.contains(&slot.kind);
        let asked = |flag| {
            let mut strange = self.received.slots.iter().filter(|slot| is_strange(slot));
            strange.find(|slot| slot.flags & flag != 0).map(|slot| match KNOWN.contains(&slot.kind) {
                true => ReasonCode::BLOCK_UNINTELLIGIBLE,
                false => ReasonCode::BLOCK_UNSUPPORTED,
            })
        };
        // Of a bundle that says that it is a report, or nobody's, nothing may be reported (RFC 9171 §4.2.4).
        let may_report = super::report::allowed(self);
        let result =
            Unprocessable { report: asked(REPORT).filter(|_| may_report), delete: asked(DELETE_BUNDLE) };
        self.received.slots.retain(|slot| !is_strange(slot) || slot.flags & DISCARD == 0);
        result
    }

    /// The extension blocks as they are written: those that came, then those that have been added.
    pub(super) fn slots(&self) -> Vec<Slot> {
        let mut slots = self.received.slots.clone();
        for kind in KNOWN {
            if self.is_written(kind) && !slots.iter().any(|slot| slot.is_field(kind)) {
                let flags = if kind == PREVIOUS_NODE_BLOCK { 0 } else { REPLICATE };
                let number = free_number(&slots);
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
            let mut block = slot.head(content.len() as u64);
            block.extend(content);
            out.extend(with_crc(block, slot.crc));
        }
    }

    fn is_written(&self, kind: u64) -> bool {
        if kind == PRIORITY_BLOCK { self.priority != Priority::Normal } else { self.content(kind).is_some() }
    }

    /// The content of a known block, from the bundle's fields.
    pub(super) fn content(&self, kind: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match kind {
            PREVIOUS_NODE_BLOCK => put_endpoint(&mut out, self.previous_node.as_ref()?),
            HOP_COUNT_BLOCK => {
                let HopCount { limit, count } = self.hops?;
                put(&mut out, [Item::Array(Some(2)), Item::Uint(limit.into()), Item::Uint(count.into())]);
            }
            BUNDLE_AGE_BLOCK => {
                // Without a creation time there has to be an age (RFC 9171 §4.4.2).
                let needed = (self.id.created == DtnTime::UNKNOWN).then(Default::default);
                put(&mut out, [Item::Uint(clamped_millis(self.age.or(needed)?))]);
            }
            PRIORITY_BLOCK => put(&mut out, [Item::Uint(self.priority as u64)]),
            FILE_NAME_BLOCK => {
                let name = self.file_name.as_ref()?.as_str();
                put(&mut out, [Item::Text(name.len() as u64)]);
                out.extend_from_slice(name.as_bytes());
            }
            _ => return None,
        }
        Some(out)
    }

    /// Makes a field of the content of a block; `None` if it is not understood.
    pub(super) fn take_content(&mut self, kind: u64, content: &[u8]) -> Option<()> {
        match kind {
            PREVIOUS_NODE_BLOCK => self.previous_node = Some(whole(content, Reader::endpoint)?),
            HOP_COUNT_BLOCK => {
                let numbers = |reader: &mut Reader<'_>| Ok((reader.uint()?, reader.uint()?));
                let (limit, count) = whole(content, |reader| reader.pair(numbers))?;
                // RFC 9171 §4.4.3: from 1 to 255.
                let limit = limit.try_into().ok().filter(|limit| *limit > 0)?;
                // Beyond 255 it is beyond any limit.
                self.hops = Some(HopCount { limit, count: count.try_into().unwrap_or(u8::MAX) });
            }
            BUNDLE_AGE_BLOCK => self.age = Some(Duration::from_millis(whole(content, Reader::uint)?)),
            PRIORITY_BLOCK => {
                self.priority = match content {
                    [0] => Priority::Bulk,
                    [1] => Priority::Normal,
                    [2] => Priority::Expedited,
                    _ => return None,
                }
            }
            FILE_NAME_BLOCK => {
                let text = whole(content, |reader| match reader.item()? {
                    Item::Text(len) => reader.string(len),
                    _ => Err("something else than text"),
                })?;
                self.file_name = Some(std::str::from_utf8(text).ok()?.parse().ok()?);
            }
            _ => return None,
        }
        Some(())
    }

    /// Drops the blocks that only the first fragment has (RFC 9171 §5.8). The fields stay: what limits the
    /// life of a bundle, its hops and its age, has to limit each part of it, whatever the flags say.
    pub(super) fn drop_unreplicated_blocks(&mut self) {
        self.received.slots.retain(|slot| slot.raw.is_none() || slot.flags & REPLICATE != 0);
    }

    /// Removes the extension block with this number, and what it said.
    pub fn remove_extension_block(&mut self, number: u64) {
        let Some(index) = self.received.slots.iter().position(|slot| slot.number == number) else { return };
        let slot = self.received.slots.remove(index);
        match (slot.raw, slot.kind) {
            (None, PREVIOUS_NODE_BLOCK) => self.previous_node = None,
            (None, HOP_COUNT_BLOCK) => self.hops = None,
            (None, BUNDLE_AGE_BLOCK) => self.age = None,
            (None, PRIORITY_BLOCK) => self.priority = Priority::Normal,
            (None, FILE_NAME_BLOCK) => self.file_name = None,
            _ => {}
        }
    }

    /// Whether there is a block of this type that was not understood.
    pub(super) fn has_unknown_block_of(&self, kind: u64) -> bool {
        self.received.slots.iter().any(|slot| slot.raw.is_some() && slot.kind == kind)
    }

    /// Makes room for our own previous node block, also where the one that came was not understood.
    pub(super) fn drop_unknown_blocks_of(&mut self, kind: u64) {
        self.received.slots.retain(|slot| slot.raw.is_none() || slot.kind != kind);
    }
}

/// The lowest number that no extension block has.
pub(super) fn free_number(slots: &[Slot]) -> u64 {
    let number = (2..).find(|&number| slots.iter().all(|slot| slot.number != number));
    number.expect("there are fewer blocks than numbers")
}

/// What the bytes say, if they say nothing else.
fn whole<'a, T>(bytes: &'a [u8], read: impl FnOnce(&mut Reader<'a>) -> Result<T, &'static str>) -> Option<T> {
    let mut reader = Reader::new(bytes);
    read(&mut reader).ok().filter(|_| reader.is_empty())
}

impl Slot {
    /// The block up to its content, of `len` bytes (RFC 9171 §4.3.2).
    pub(super) fn head(&self, len: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        let elements = if self.crc == CrcType::None { 5 } else { 6 };
        put(&mut out, [Item::Array(Some(elements)), Item::Uint(self.kind), Item::Uint(self.number)]);
        put(&mut out, [Item::Uint(self.flags), Item::Uint(self.crc.code()), Item::Bytes(len)]);
        out
    }

    /// A block of this content that is in no field.
    pub(super) fn with_content(mut self, content: &[u8]) -> Self {
        let mut block = self.head(content.len() as u64);
        block.extend_from_slice(content);
        self.raw = Some(with_crc(block, self.crc).into());
        self
    }

    /// The content of a block that is in no field.
    pub(super) fn raw_content(&self) -> Option<&[u8]> {
        let mut reader = Reader::new(self.raw.as_deref()?);
        let _array = reader.item().ok()?;
        for _header in 0..4 {
            reader.uint().ok()?;
        }
        match reader.item().ok()? {
            Item::Bytes(len) => reader.string(len).ok(),
            _ => None,
        }
    }

    fn is_field(&self, kind: u64) -> bool {
        self.kind == kind && self.raw.is_none()
    }
}
