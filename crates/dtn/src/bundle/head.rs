//! The blocks before the payload: parsing them as they arrive, checking them, and building a bundle.

use std::time::Duration;

use super::blocks::{KNOWN, ReceivedForm, Slot};
use super::cbor::{Item, ItemStart, Reader, Walker};
use super::decode::{BLOCKS_LIMIT, Malformed, Problem};
use super::wire::{BlockCrc, Tail, VERSION, flag};
use super::{Bundle, CrcType, Fragment, ReportRequests};
use crate::DtnTime;

/// The longest payload, and the longest that a fragment may be part of: positions in files are signed.
const PAYLOAD_LIMIT: u64 = i64::MAX as u64;

/// An incomplete head.
#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) raw: Vec<u8>,
    pub(super) walker: Walker,
    /// How many blocks the bundle says it has; `None` if a break ends it.
    declared: Option<u64>,
    /// After the head of the bundle's array.
    first: usize,
    blocks: Vec<RawBlock>,
}

/// A block's position and elements in the head.
#[derive(Debug)]
struct RawBlock {
    start: usize,
    /// After its last byte; 0 while it has not ended.
    end: usize,
    /// How many elements it says it has; `None` if a break ends it.
    declared: Option<u64>,
    /// Its elements, and where each one's head ends. No block has more than eleven.
    elements: Vec<(Item, usize)>,
}

impl Head {
    /// Notes what has begun with the last byte, and says whether it was the head of the payload.
    pub(super) fn is_complete_after(&mut self, started: Option<ItemStart>) -> Result<bool, Malformed> {
        let at = self.raw.len();
        let error = |problem| Err(Malformed { at: at as u64 - 1, problem });
        match started {
            Some(ItemStart { depth: 0, item: Item::Array(len @ (None | Some(2..))), .. }) => {
                (self.declared, self.first) = (len, at);
            }
            Some(ItemStart { depth: 0, .. }) => {
                return error(Problem::Block("a bundle is an array of two blocks or more"));
            }
            Some(ItemStart { depth: 1, item: Item::Array(len), .. }) => {
                if self.blocks.len() == BLOCKS_LIMIT {
                    return error(Problem::TooManyBlocks);
                }
                // The head of an array of known length may be longer than a byte, but begins where the block
                // before ended.
                let start = self.blocks.last().map_or(self.first, |block| block.end);
                self.blocks.push(RawBlock { start, end: 0, declared: len, elements: vec![] });
            }
            Some(ItemStart { depth: 1, .. }) => return error(Problem::Block("a block is an array")),
            Some(ItemStart { depth: 2, item, index }) => {
                let is_extension = self.blocks.len() > 1;
                let Some(block) = self.blocks.last_mut() else { return Ok(false) };
                if block.elements.len() == 11 {
                    return error(Problem::Block("no block has more than eleven elements"));
                }
                block.elements.push((item, at));
                if is_extension && index == 4 && block.is_payload() {
                    return Ok(true);
                }
            }
            _ => {}
        }
        self.close_blocks(at)
    }

    /// Notes that the last block has ended, if it has; a bundle that ends has no payload.
    fn close_blocks(&mut self, at: usize) -> Result<bool, Malformed> {
        let depth = self.walker.depth();
        if depth < 2
            && let Some(block) = self.blocks.last_mut()
            && block.end == 0
        {
            block.end = at;
        }
        if depth == 0 && !self.raw.is_empty() && self.walker.is_between() {
            let problem = Problem::Block("there is no payload block");
            return Err(Malformed { at: at as u64 - 1, problem });
        }
        Ok(false)
    }

    /// Where the item begins whose head is half read, or the next one.
    pub(super) fn item_start(&self) -> u64 {
        (self.raw.len() - self.walker.half_read()) as u64
    }

    pub(super) fn bundle(&self) -> Result<(Bundle, Tail), Malformed> {
        let [primary, extensions @ .., payload] = &self.blocks[..] else {
            return Err(Malformed { at: 0, problem: Problem::Block("there is no payload block") });
        };
        primary.check_primary(&self.raw)?;
        let mut slots = self.slots(extensions)?;
        let (payload_slot, payload_len, tail) = self.payload(payload)?;
        let mut reader = Reader::new(primary.bytes(&self.raw));
        let mut bundle = bundle_of(&mut reader, payload_len).map_err(|what| primary.error(what))?;
        bundle.primary_crc = primary.crc_type(2)?;
        bundle.payload_crc = payload_slot.crc;
        for (slot, block) in slots.iter_mut().zip(extensions) {
            let is_field = bundle.take_content(slot.kind, block.content(&self.raw)?).is_some();
            slot.raw = (!is_field).then(|| block.bytes(&self.raw).into());
        }
        if bundle.id.created == DtnTime::UNKNOWN && bundle.age.is_none() {
            return Err(primary.error("without a creation time a bundle needs an age"));
        }
        bundle.keep(primary.bytes(&self.raw), payload_slot.flags, slots, &self.raw);
        Ok((bundle, tail))
    }

    /// The extension blocks' headers, checked.
    fn slots(&self, extensions: &[RawBlock]) -> Result<Vec<Slot>, Malformed> {
        let slots = extensions.iter().map(|block| block.slot(&self.raw)).collect::<Result<Vec<_>, _>>()?;
        check_numbers(extensions, &slots)?;
        Ok(slots)
    }

    /// The payload block's header, the payload's length, and what closes the bundle.
    fn payload(&self, block: &RawBlock) -> Result<(Slot, u64, Tail), Malformed> {
        if self.declared.is_some_and(|len| len != self.blocks.len() as u64) {
            return Err(block.error("the payload block has to be the last"));
        }
        let (header, len) = block.payload()?;
        let start = &self.raw[block.start..];
        let tail = Tail::after(start, header.crc, block.declared.is_none(), self.declared.is_none());
        Ok((header, len, tail))
    }
}

/// Block numbers tell blocks apart, and of a known type there is one (RFC 9171 §4.3.2, §4.4).
fn check_numbers(blocks: &[RawBlock], slots: &[Slot]) -> Result<(), Malformed> {
    for (index, (block, slot)) in blocks.iter().zip(slots).enumerate() {
        let before = &slots[..index];
        if slot.number < 2 {
            return Err(block.error("numbers 0 and 1 are those of the primary and the payload block"));
        }
        if before.iter().any(|other| other.number == slot.number) {
            return Err(block.error("two blocks have the same number"));
        }
        if KNOWN.contains(&slot.kind) && before.iter().any(|other| other.kind == slot.kind) {
            return Err(block.error("there may be only one block of this type"));
        }
    }
    Ok(())
}

impl RawBlock {
    fn bytes<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        &head[self.start..self.end]
    }

    fn error(&self, what: &'static str) -> Malformed {
        Malformed { at: self.start as u64, problem: Problem::Block(what) }
    }

    fn uint(&self, index: usize) -> Option<u64> {
        match self.elements.get(index) {
            Some(&(Item::Uint(number), _)) => Some(number),
            _ => None,
        }
    }

    fn is_payload(&self) -> bool {
        self.uint(0) == Some(1)
    }

    fn crc_type(&self, index: usize) -> Result<CrcType, Malformed> {
        let code = self.uint(index).ok_or_else(|| self.error("a block's type of CRC is a number"))?;
        CrcType::from_code(code).ok_or_else(|| self.error("there is no such type of CRC"))
    }

    /// Checks version, CRC, and number of elements (RFC 9171 §4.3.1).
    fn check_primary(&self, head: &[u8]) -> Result<(), Malformed> {
        match self.uint(0) {
            Some(VERSION) => {}
            Some(version) => {
                return Err(Malformed { at: self.start as u64, problem: Problem::Version(version) });
            }
            None => return Err(self.error("a bundle begins with the protocol's version")),
        }
        let flags = self.uint(1).ok_or_else(|| self.error("a bundle's flags are a number"))?;
        let is_fragment = flags & flag::IS_FRAGMENT != 0;
        self.check_crc(head, self.crc_type(2)?, if is_fragment { 10 } else { 8 }, 0)
    }

    /// An extension block's header, checked.
    fn slot(&self, head: &[u8]) -> Result<Slot, Malformed> {
        let header = self.header()?;
        self.check_crc(head, header.crc, 5, header.number)?;
        Ok(header)
    }

    /// An extension block's content.
    fn content<'a>(&self, head: &'a [u8]) -> Result<&'a [u8], Malformed> {
        match self.elements.get(4) {
            Some(&(Item::Bytes(len), at)) => {
                Reader::new(&head[at..]).string(len).map_err(|what| self.error(what))
            }
            _ => Err(self.error("a block's content is a byte string")),
        }
    }

    /// The payload block's header, checked, and the payload's length.
    fn payload(&self) -> Result<(Slot, u64), Malformed> {
        let header = self.header()?;
        let has_crc = header.crc != CrcType::None;
        if self.declared.is_some_and(|len| len != 5 + u64::from(has_crc)) {
            return Err(self.error("a block has more elements than it may have, or fewer"));
        }
        if header.number != 1 {
            return Err(self.error("the payload block's number is 1"));
        }
        match self.elements.last() {
            Some(&(Item::Bytes(len), _)) if len <= PAYLOAD_LIMIT => Ok((header, len)),
            Some((Item::Bytes(_), _)) => Err(self.error("no payload is as long as that")),
            _ => Err(self.error("a payload is a byte string")),
        }
    }

    /// Type, number, flags and type of CRC (RFC 9171 §4.3.2).
    fn header(&self) -> Result<Slot, Malformed> {
        let number = |index, what| self.uint(index).ok_or_else(|| self.error(what));
        Ok(Slot {
            kind: number(0, "a block's type is a number")?,
            number: number(1, "a block's number is a number")?,
            flags: number(2, "a block's flags are a number")?,
            crc: self.crc_type(3)?,
            raw: None,
        })
    }

    /// Whether there are `len` elements, and a CRC after them that is right.
    fn check_crc(&self, head: &[u8], crc: CrcType, len: usize, number: u64) -> Result<(), Malformed> {
        if self.elements.len() != len + usize::from(crc != CrcType::None) {
            return Err(self.error("a block has more elements than it may have, or fewer"));
        }
        let at = match self.elements.last() {
            _ if crc == CrcType::None => return Ok(()),
            Some(&(Item::Bytes(len), at)) if len == crc.len() => at,
            _ => return Err(self.error("a CRC is a byte string of two or four bytes")),
        };
        let after = at + usize::try_from(crc.len()).unwrap_or_default();
        let mut running = BlockCrc::new(crc);
        running.update(&head[self.start..at]);
        running.update(&[0; 4][..after - at]);
        running.update(&head[after..self.end]);
        if running.value() != head[at..after] {
            return Err(Malformed { at: at as u64, problem: Problem::Crc(number) });
        }
        Ok(())
    }
}

/// A bundle from its primary block (RFC 9171 §4.3.1), whose elements have been counted.
fn bundle_of(reader: &mut Reader<'_>, payload_len: u64) -> Result<Bundle, &'static str> {
    let (_array, _version, flags, _crc) = (reader.item()?, reader.uint()?, reader.uint()?, reader.uint()?);
    let (destination, source, report_to) = (reader.endpoint()?, reader.endpoint()?, reader.endpoint()?);
    let (created, sequence) = reader.pair(|reader| Ok((reader.uint()?, reader.uint()?)))?;
    let lifetime = Duration::from_millis(reader.uint()?);
    let mut bundle = Bundle::new(source, DtnTime::from_millis(created), sequence, destination, lifetime);
    bundle.age = None;
    bundle.payload_len = payload_len;
    bundle.report_to = report_to;
    bundle.is_admin = flags & flag::IS_ADMIN != 0;
    bundle.must_not_fragment = flags & flag::MUST_NOT_FRAGMENT != 0;
    bundle.report_times = flags & flag::REPORT_TIMES != 0;
    bundle.reports = ReportRequests {
        reception: flags & flag::REPORT_RECEPTION != 0,
        forwarding: flags & flag::REPORT_FORWARDING != 0,
        delivery: flags & flag::REPORT_DELIVERY != 0,
        deletion: flags & flag::REPORT_DELETION != 0,
    };
    if flags & flag::IS_FRAGMENT != 0 {
        let (offset, total) = (reader.uint()?, reader.uint()?);
        let end = offset.checked_add(payload_len);
        if total > PAYLOAD_LIMIT || end.is_none_or(|end| end > total) {
            return Err("a fragment is longer than what it is a part of");
        }
        if !bundle.id.is_unique() {
            return Err("a bundle without a source cannot be a fragment");
        }
        bundle.id.fragment = Some(Fragment { offset, len: payload_len, total });
    }
    // Those that are no fields.
    bundle.received.flags = flags & !bundle.flags();
    Ok(bundle)
}

impl Bundle {
    /// Keeps what came, unless it is what this node would write by itself.
    fn keep(&mut self, primary: &[u8], payload_flags: u64, slots: Vec<Slot>, head: &[u8]) {
        let flags = self.received.flags;
        let rewritten = self.own_primary();
        if flags == 0 && payload_flags == 0 && *rewritten == *primary && self.head() == head {
            return;
        }
        let is_own = *rewritten == *primary;
        self.received = ReceivedForm {
            primary: (!is_own).then(|| primary.into()),
            rewritten: if is_own { Box::default() } else { rewritten.into() },
            flags,
            payload_flags,
            slots,
        };
    }
}
