//! A bundle as bytes: the head before the payload, and the tail after it.

use std::time::Duration;

use bp7::EndpointID;
use bp7::bundle::Block;
use bp7::crc::CrcBlock;
use bp7::dtntime::CreationTimestamp;
use bp7::eid::{DtnAddress, IpnAddress};
use bp7::flags::BundleControlFlags as Flags;
use bp7::primary::PrimaryBlock;
use crc::{CRC_16_IBM_SDLC, Crc, Digest, Table};

use super::cbor::put_bytes_head;
use super::{Bundle, CrcType};
use crate::Eid;

/// An array without a length, and its end.
pub(super) const INDEFINITE_ARRAY: u8 = 0x9f;
pub(super) const BREAK: u8 = 0xff;

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
        let mut out = vec![INDEFINITE_ARRAY];
        self.put_primary(&mut out);
        for slot in self.slots() {
            self.put_block(&mut out, &slot);
        }
        self.put_payload_head(&mut out);
        out
    }

    /// Everything after the payload's bytes, once they have passed through it.
    pub fn tail(&self) -> Tail {
        let mut head = Vec::new();
        self.put_payload_head(&mut head);
        let mut crc = BlockCrc::new(self.payload_crc);
        crc.update(&head);
        Tail { crc, block_break: false, bundle_break: true }
    }

    /// The length of head, payload and tail together, bytes.
    pub fn encoded_len(&self) -> u64 {
        let around = self.head().len() + self.tail().len();
        self.payload_len.saturating_add(around as u64)
    }

    /// The primary block as this node writes it.
    pub(super) fn own_primary(&self) -> Vec<u8> {
        let mut block = PrimaryBlock::new();
        block.bundle_control_flags = self.flags();
        block.destination = endpoint(&self.destination);
        block.source = endpoint(&self.id.source);
        block.report_to = endpoint(&self.report_to);
        block.creation_timestamp =
            CreationTimestamp::with_time_and_seq(self.id.created.millis(), self.id.sequence);
        block.lifetime = Duration::from_millis(clamped_millis(self.lifetime));
        if let Some(part) = self.id.fragment {
            block.fragmentation_offset = part.offset;
            block.total_data_length = part.total;
        }
        closed(block, CrcType::Crc32)
    }

    fn put_primary(&self, out: &mut Vec<u8>) {
        let own = self.own_primary();
        match &self.received.primary {
            // The primary block does not change on the way (RFC 9171 §4.3.1).
            Some(raw) if *own == *self.received.rewritten => out.extend_from_slice(raw),
            _ => out.extend(own),
        }
    }

    /// The bundle's flags (RFC 9171 §4.2.3).
    fn flags(&self) -> u64 {
        let known = [
            (self.id.fragment.is_some(), Flags::BUNDLE_IS_FRAGMENT),
            (self.is_admin, Flags::BUNDLE_ADMINISTRATIVE_RECORD_PAYLOAD),
            (self.must_not_fragment, Flags::BUNDLE_MUST_NOT_FRAGMENTED),
            (self.report_times, Flags::BUNDLE_REQUEST_STATUS_TIME),
            (self.reports.reception, Flags::BUNDLE_STATUS_REQUEST_RECEPTION),
            (self.reports.forwarding, Flags::BUNDLE_STATUS_REQUEST_FORWARD),
            (self.reports.delivery, Flags::BUNDLE_STATUS_REQUEST_DELIVERY),
            (self.reports.deletion, Flags::BUNDLE_STATUS_REQUEST_DELETION),
        ];
        known.iter().filter(|(set, _)| *set).fold(self.received.flags, |flags, (_, flag)| flags | flag.bits())
    }

    /// The payload block up to the payload. Its numbers are all below 24 but the flags, which may need a
    /// second byte.
    fn put_payload_head(&self, out: &mut Vec<u8>) {
        out.push(if self.payload_crc == CrcType::None { 0x85 } else { 0x86 });
        out.extend([1, 1]);
        match self.received.payload_flags {
            flags @ 0..24 => out.push(flags),
            flags => out.extend([0x18, flags]),
        }
        out.push(self.payload_crc.code());
        put_bytes_head(out, self.payload_len);
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

    /// Its length, bytes: 1 to 7.
    fn len(&self) -> usize {
        self.crc.field_len() + usize::from(self.block_break) + usize::from(self.bundle_break)
    }

    /// The bytes that follow the payload.
    pub fn finish(self) -> Vec<u8> {
        let (block_break, bundle_break) = (self.block_break, self.bundle_break);
        // The CRC is one over the whole block, with zeros in its place (RFC 9171 §4.2.1).
        let mut crc = self.crc;
        let mut zeros = crc.zeros();
        zeros.extend(block_break.then_some(BREAK));
        crc.update(&zeros);
        let mut out = crc.field();
        out.extend(block_break.then_some(BREAK));
        out.extend(bundle_break.then_some(BREAK));
        out
    }
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tail").field("len", &self.len()).finish_non_exhaustive()
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

    fn field_len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Crc16(_) => 3,
            Self::Crc32(_) => 5,
        }
    }

    /// The CRC's byte string, as it stands in the block while the CRC is computed.
    fn zeros(&self) -> Vec<u8> {
        match self {
            Self::None => vec![],
            Self::Crc16(_) => vec![0x42, 0, 0],
            Self::Crc32(_) => vec![0x44, 0, 0, 0, 0],
        }
    }

    /// The CRC's byte string, or nothing.
    fn field(self) -> Vec<u8> {
        let mut out = self.zeros();
        let value = self.value();
        if let Some(place) = out.get_mut(1..) {
            place.copy_from_slice(&value);
        }
        out
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
    pub(super) fn code(self) -> u8 {
        match self {
            Self::None => bp7::crc::CRC_NO,
            Self::Crc16 => bp7::crc::CRC_16,
            Self::Crc32 => bp7::crc::CRC_32,
        }
    }

    /// The kind with this number.
    pub(super) fn from_code(code: u64) -> Option<Self> {
        [Self::None, Self::Crc16, Self::Crc32].into_iter().find(|kind| u64::from(kind.code()) == code)
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

/// A block's bytes, with its CRC.
pub(super) fn closed<B: CrcBlock + Block>(mut block: B, crc: CrcType) -> Vec<u8> {
    block.set_crc_type(crc.code());
    block.update_crc();
    block.to_cbor()
}

/// An endpoint as `bp7` has it.
pub(super) fn endpoint(eid: &Eid) -> EndpointID {
    match eid {
        Eid::None => EndpointID::none(),
        Eid::Dtn { node, service } => EndpointID::Dtn(1, DtnAddress::new(node, service)),
        Eid::Ipn { node, service } => EndpointID::Ipn(2, IpnAddress::new(*node, *service)),
    }
}

/// Milliseconds, as many as the wire can say.
pub(super) fn clamped_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
