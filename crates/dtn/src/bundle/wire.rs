//! A bundle as bytes: the head before the payload, and the tail after it.

use std::time::Duration;

use crc::{CRC_16_IBM_SDLC, Crc, Digest, Table};

use super::blocks::Slot;
use super::cbor::{BREAK, Item, put, put_endpoint};
use super::{Bundle, CrcType};

/// The version of the protocol.
pub(super) const VERSION: u64 = 7;

/// The bundle's flags (RFC 9171 §4.2.3).
pub(super) mod flag {
    pub(in super::super) const IS_FRAGMENT: u64 = 0x1;
    pub(in super::super) const IS_ADMIN: u64 = 0x2;
    pub(in super::super) const MUST_NOT_FRAGMENT: u64 = 0x4;
    pub(in super::super) const REPORT_TIMES: u64 = 0x40;
    pub(in super::super) const REPORT_RECEPTION: u64 = 0x4000;
    pub(in super::super) const REPORT_FORWARDING: u64 = 0x1_0000;
    pub(in super::super) const REPORT_DELIVERY: u64 = 0x2_0000;
    pub(in super::super) const REPORT_DELETION: u64 = 0x4_0000;
}

/// CRC-16/X-25 (RFC 9171 §4.2.1), sixteen bytes at a time. CRC-32C, which all that we make has, is left to
/// the processor.
static CRC16: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&CRC_16_IBM_SDLC);

/// The bytes after a payload: the payload block's CRC, if it has one, and the end of the bundle. The payload
/// has to pass through it.
#[derive(Clone)]
pub struct Tail {
    crc: BlockCrc,
    /// The payload block's array ends with a break too.
    pub(super) block_break: bool,
    /// The bundle's array ends with a break.
    pub(super) bundle_break: bool,
}

/// A running CRC of a block.
#[derive(Clone)]
pub(super) enum BlockCrc {
    None,
    Crc16(Digest<'static, u16, Table<16>>),
    Crc32(u32),
}

impl Bundle {
    /// Everything before the payload's bytes.
    pub fn head(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        put(&mut out, [Item::Array(None)]);
        self.put_primary(&mut out);
        for slot in self.slots() {
            self.put_block(&mut out, &slot);
        }
        out.extend(self.payload_head());
        out
    }

    /// Everything after the payload's bytes, once they have passed through it.
    pub fn tail(&self) -> Tail {
        Tail::after(&self.payload_head(), self.payload_crc, false, true)
    }

    /// The length of head, payload and tail together, bytes.
    pub fn encoded_len(&self) -> u64 {
        let around = self.head().len() + self.tail().finish().len();
        self.payload_len.saturating_add(around as u64)
    }

    /// The primary block as this node writes it.
    pub(super) fn own_primary(&self) -> Vec<u8> {
        self.primary_with(self.primary_crc)
    }

    /// The primary block with this CRC.
    pub(super) fn primary_with(&self, crc: CrcType) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        let elements = if self.id.fragment.is_some() { 10 } else { 8 } + u64::from(crc != CrcType::None);
        put(&mut out, [Item::Array(Some(elements)), Item::Uint(VERSION)]);
        put(&mut out, [Item::Uint(self.flags()), Item::Uint(crc.code())]);
        for eid in [&self.destination, &self.id.source, &self.report_to] {
            put_endpoint(&mut out, eid);
        }
        put(&mut out, [Item::Array(Some(2))]);
        put(&mut out, [self.id.created.millis(), self.id.sequence].map(Item::Uint));
        put(&mut out, [Item::Uint(clamped_millis(self.lifetime))]);
        let part = self.id.fragment.into_iter();
        put(&mut out, part.flat_map(|part| [part.offset, part.total].map(Item::Uint)));
        with_crc(out, crc)
    }

    fn put_primary(&self, out: &mut Vec<u8>) {
        let own = self.own_primary();
        match &self.received.primary {
            // The primary block does not change on the way (RFC 9171 §4.3.1).
            Some(raw) if *own == *self.received.rewritten => out.extend_from_slice(raw),
            _ => out.extend(own),
        }
    }

    /// The bundle's flags.
    pub(super) fn flags(&self) -> u64 {
        let known = [
            (self.id.fragment.is_some(), flag::IS_FRAGMENT),
            (self.is_admin, flag::IS_ADMIN),
            (self.must_not_fragment, flag::MUST_NOT_FRAGMENT),
            (self.report_times, flag::REPORT_TIMES),
            (self.reports.reception, flag::REPORT_RECEPTION),
            (self.reports.forwarding, flag::REPORT_FORWARDING),
            (self.reports.delivery, flag::REPORT_DELIVERY),
            (self.reports.deletion, flag::REPORT_DELETION),
        ];
        known.iter().filter(|(set, _)| *set).fold(self.received.flags, |flags, (_, flag)| flags | flag)
    }

    /// The payload block up to the payload.
    fn payload_head(&self) -> Vec<u8> {
        let (flags, crc) = (self.received.payload_flags, self.payload_crc);
        Slot { kind: 1, number: 1, flags, crc, raw: None }.head(self.payload_len)
    }
}

impl Tail {
    /// A tail whose block begins with these bytes.
    pub(super) fn after(head: &[u8], crc: CrcType, block_break: bool, bundle_break: bool) -> Self {
        let mut crc = BlockCrc::new(crc);
        crc.update(head);
        Self { crc, block_break, bundle_break }
    }

    /// The next bytes of the payload.
    pub fn update(&mut self, payload: &[u8]) {
        self.crc.update(payload);
    }

    /// The bytes that follow the payload: 1 to 7.
    pub fn finish(mut self) -> Vec<u8> {
        // The CRC is one over the whole block, with zeros in its place (RFC 9171 §4.2.1).
        let mut out = match &self.crc {
            BlockCrc::None => vec![],
            BlockCrc::Crc16(_) => vec![0x42, 0, 0],
            BlockCrc::Crc32(_) => vec![0x44, 0, 0, 0, 0],
        };
        out.extend(self.block_break.then_some(BREAK));
        self.crc.update(&out);
        let value = self.crc.value();
        if let Some(place) = out.get_mut(1..=value.len()) {
            place.copy_from_slice(&value);
        }
        out.extend(self.bundle_break.then_some(BREAK));
        out
    }
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tail").finish_non_exhaustive()
    }
}

impl BlockCrc {
    pub(super) fn new(crc: CrcType) -> Self {
        match crc {
            CrcType::None => Self::None,
            CrcType::Crc16 => Self::Crc16(CRC16.digest()),
            CrcType::Crc32 => Self::Crc32(0),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::None => {}
            Self::Crc16(digest) => digest.update(bytes),
            Self::Crc32(crc) => *crc = crc32c::crc32c_append(*crc, bytes),
        }
    }

    /// The CRC.
    pub(super) fn value(self) -> Vec<u8> {
        match self {
            Self::None => vec![],
            Self::Crc16(digest) => digest.finalize().to_be_bytes().to_vec(),
            Self::Crc32(crc) => crc.to_be_bytes().to_vec(),
        }
    }
}

impl CrcType {
    /// Its number on the wire.
    pub(super) fn code(self) -> u64 {
        self as u64
    }

    /// The kind with this number.
    pub(super) fn from_code(code: u64) -> Option<Self> {
        [Self::None, Self::Crc16, Self::Crc32].into_iter().find(|kind| kind.code() == code)
    }

    /// Bytes.
    pub(super) fn len(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Crc16 => 2,
            Self::Crc32 => 4,
        }
    }
}

/// A block of which only the CRC is missing, with it.
pub(super) fn with_crc(mut block: Vec<u8>, crc: CrcType) -> Vec<u8> {
    let tail = Tail::after(&block, crc, false, false);
    block.extend(tail.finish());
    block
}

/// Milliseconds, as many as the wire can say.
pub(super) fn clamped_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
