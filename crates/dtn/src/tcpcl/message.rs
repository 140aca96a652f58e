//! The messages of RFC 9174 as bytes: no clock, no socket, no state.
//!
//! Only the head of a segment is decoded; its data is never buffered. The longest head is a SESS_INIT of
//! [`MAX_HEAD`] bytes, which bounds a reader's memory.

use crate::convergence::Refusal;

/// The longest node ID that is accepted, bytes.
pub const MAX_NODE_ID: usize = 1024;
/// The longest list of extension items that is accepted, bytes.
pub const MAX_EXTENSIONS: usize = 4096;
/// The longest message that is not data, bytes: a SESS_INIT with the longest node ID and list of extensions.
pub const MAX_HEAD: usize = 1 + 2 + 8 + 8 + 2 + MAX_NODE_ID + 4 + MAX_EXTENSIONS;
/// The length of a contact header, bytes.
pub const CONTACT_LEN: usize = 6;
/// The supported version.
pub const VERSION: u8 = 4;

/// Message types (RFC 9174 §9.7).
pub mod kind {
    /// XFER_SEGMENT.
    pub const XFER_SEGMENT: u8 = 1;
    /// XFER_ACK.
    pub const XFER_ACK: u8 = 2;
    /// XFER_REFUSE.
    pub const XFER_REFUSE: u8 = 3;
    /// KEEPALIVE.
    pub const KEEPALIVE: u8 = 4;
    /// SESS_TERM.
    pub const SESS_TERM: u8 = 5;
    /// MSG_REJECT.
    pub const MSG_REJECT: u8 = 6;
    /// SESS_INIT.
    pub const SESS_INIT: u8 = 7;
}

const MAGIC: &[u8; 4] = b"dtn!";
const CAN_TLS: u8 = 1;
const REPLY: u8 = 1;
const CRITICAL: u8 = 1;
/// The Transfer Length extension (RFC 9174 §5.2.5.1).
const TRANSFER_LENGTH: u16 = 1;

/// The contact header (RFC 9174 §4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// The protocol's version.
    pub version: u8,
    /// The sender offers TLS.
    pub can_tls: bool,
}

/// A SESS_INIT (RFC 9174 §4.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessInit {
    /// Seconds between keepalives; 0 is none.
    pub keepalive: u16,
    /// The most data that is accepted in a segment, bytes.
    pub segment_mru: u64,
    /// The longest transfer that is accepted, bytes.
    pub transfer_mru: u64,
    /// The node, as text.
    pub node: String,
    /// A critical extension item; none is supported.
    pub critical_extension: Option<u16>,
}

/// Why a session ends, by its code (RFC 9174 §6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TermReason(pub u8);

/// Why a message is rejected, by its code (RFC 9174 §5.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RejectReason(pub u8);

/// The flags of an XFER_SEGMENT, which its XFER_ACK repeats, those included that RFC 9174 reserves (§5.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFlags(pub u8);

/// The head of an XFER_SEGMENT (RFC 9174 §5.2.2); `len` bytes of data follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHead {
    /// Whether it is the first or the last of its transfer.
    pub flags: SegmentFlags,
    /// The transfer.
    pub id: u64,
    /// Its extensions; none unless it is the first.
    pub extensions: TransferExtensions,
    /// Bytes of data.
    pub len: u64,
}

/// The extension items of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferExtensions {
    /// The transfer's length, bytes. An item of this type whose value is not 8 bytes long counts as unknown.
    pub length: Option<u64>,
    /// An unknown item is critical.
    pub critical_unknown: bool,
    /// The items do not add up to the length of their list.
    pub malformed: bool,
}

/// A message, without data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// SESS_INIT.
    SessInit(SessInit),
    /// SESS_TERM.
    SessTerm {
        /// It is a reply.
        reply: bool,
        /// Why.
        reason: TermReason,
    },
    /// XFER_SEGMENT.
    Segment(SegmentHead),
    /// XFER_ACK.
    Ack {
        /// The flags of the segment that is acknowledged.
        flags: SegmentFlags,
        /// The transfer.
        id: u64,
        /// Bytes of it that have arrived.
        len: u64,
    },
    /// XFER_REFUSE.
    Refuse {
        /// Why.
        reason: Refusal,
        /// The transfer.
        id: u64,
    },
    /// KEEPALIVE.
    Keepalive,
    /// MSG_REJECT.
    Reject {
        /// Why.
        reason: RejectReason,
        /// The type of what is rejected.
        header: u8,
    },
}

/// Bytes that are not a message. What follows them cannot be decoded either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// No contact header.
    #[error("it does not begin with \"dtn!\": no TCPCL speaks there; check address and port")]
    NotTcpcl,
    /// A type that RFC 9174 does not have.
    #[error("it sent a message of the unknown type {0:#04x}")]
    UnknownType(u8),
    /// A node ID that is too long.
    #[error("its node ID has {0} bytes, and {MAX_NODE_ID} are allowed")]
    NodeIdTooLong(u16),
    /// A node ID that is no text.
    #[error("its node ID is not UTF-8")]
    NodeIdNotText,
    /// A list of extensions that is too long.
    #[error("it sent {0} bytes of extension items, and {MAX_EXTENSIONS} are allowed")]
    ExtensionsTooLong(u32),
    /// Session extensions whose lengths contradict each other.
    #[error("its session extension items do not add up to the length of their list")]
    MalformedExtensions,
}

impl SegmentFlags {
    /// The last segment of its transfer.
    pub const END: Self = Self(1);
    /// The first one.
    pub const START: Self = Self(2);
    /// The only one.
    pub const WHOLE: Self = Self(3);

    /// Those of a segment that is the first, the last, both or neither.
    pub const fn of(start: bool, end: bool) -> Self {
        Self((start as u8 * Self::START.0) | (end as u8 * Self::END.0))
    }

    /// Whether it is the first of its transfer.
    pub const fn is_start(self) -> bool {
        self.0 & Self::START.0 != 0
    }

    /// Whether it is the last of its transfer.
    pub const fn is_end(self) -> bool {
        self.0 & Self::END.0 != 0
    }
}

impl Contact {
    /// The contact header as bytes.
    pub fn encode(self) -> [u8; CONTACT_LEN] {
        let [d, t, n, bang] = *MAGIC;
        [d, t, n, bang, self.version, if self.can_tls { CAN_TLS } else { 0 }]
    }

    /// A contact header of any version.
    ///
    /// # Errors
    /// [`MessageError::NotTcpcl`] if the magic is missing.
    pub fn decode(bytes: [u8; CONTACT_LEN]) -> Result<Self, MessageError> {
        if &bytes[..4] != MAGIC {
            return Err(MessageError::NotTcpcl);
        }
        Ok(Self { version: bytes[4], can_tls: bytes[5] & CAN_TLS != 0 })
    }
}

impl Message {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::SessInit(init) => encode_init(init, out),
            Self::SessTerm { reply, reason } => {
                out.extend([kind::SESS_TERM, if *reply { REPLY } else { 0 }, reason.0]);
            }
            Self::Segment(head) => encode_segment(head, out),
            Self::Ack { flags, id, len } => {
                out.extend([kind::XFER_ACK, flags.0]);
                out.extend(id.to_be_bytes());
                out.extend(len.to_be_bytes());
            }
            Self::Refuse { reason, id } => {
                out.extend([kind::XFER_REFUSE, reason.code()]);
                out.extend(id.to_be_bytes());
            }
            Self::Keepalive => out.push(kind::KEEPALIVE),
            Self::Reject { reason, header } => out.extend([kind::MSG_REJECT, reason.0, *header]),
        }
    }

    /// The message at the beginning of `input` and its length, without a segment's data; `None` if more bytes
    /// are needed. [`MAX_HEAD`] bytes are always enough.
    ///
    /// # Errors
    /// [`MessageError`] if it is not a message, or longer than accepted.
    pub fn decode(input: &[u8]) -> Result<Option<(Self, usize)>, MessageError> {
        let mut reader = Reader { input, at: 0 };
        let message = match input.first() {
            None => return Ok(None),
            Some(&kind::SESS_INIT) => decode_init(&mut reader)?,
            Some(&kind::XFER_SEGMENT) => decode_segment(&mut reader)?,
            Some(&kind::KEEPALIVE) => reader.u8().map(|_| Self::Keepalive),
            Some(&(kind::SESS_TERM | kind::XFER_ACK | kind::XFER_REFUSE | kind::MSG_REJECT)) => {
                decode_short(&mut reader)
            }
            Some(&other) => return Err(MessageError::UnknownType(other)),
        };
        Ok(message.map(|message| (message, reader.at)))
    }
}

#[expect(missing_docs, reason = "the text of each is below")]
impl TermReason {
    pub const UNKNOWN: Self = Self(0);
    pub const IDLE_TIMEOUT: Self = Self(1);
    pub const VERSION_MISMATCH: Self = Self(2);
    pub const BUSY: Self = Self(3);
    pub const CONTACT_FAILURE: Self = Self(4);
    pub const RESOURCE_EXHAUSTION: Self = Self(5);
}

impl std::fmt::Display for TermReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match *self {
            Self::UNKNOWN => "no reason given",
            Self::IDLE_TIMEOUT => "idle timeout",
            Self::VERSION_MISMATCH => "version mismatch",
            Self::BUSY => "busy",
            Self::CONTACT_FAILURE => "contact failure",
            Self::RESOURCE_EXHAUSTION => "resource exhaustion",
            Self(code) => return write!(f, "reason {code:#04x}"),
        })
    }
}

impl RejectReason {
    /// The type is unknown.
    pub const TYPE_UNKNOWN: Self = Self(1);
    /// Its content cannot be complied with.
    pub const UNSUPPORTED: Self = Self(2);
    /// It does not fit the session's state.
    pub const UNEXPECTED: Self = Self(3);
}

impl std::fmt::Display for RejectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match *self {
            Self::TYPE_UNKNOWN => "unknown type",
            Self::UNSUPPORTED => "not supported",
            Self::UNEXPECTED => "not expected",
            Self(code) => return write!(f, "reason {code:#04x}"),
        })
    }
}

/// The refusals that have a name, by their codes from 1 on.
const REFUSALS: [Refusal; 6] = [
    Refusal::Completed,
    Refusal::NoResources,
    Refusal::Retransmit,
    Refusal::NotAcceptable,
    Refusal::ExtensionFailure,
    Refusal::SessionTerminating,
];

impl Refusal {
    /// The code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Self::Other(code) => code,
            named => (1..).zip(REFUSALS).find(|(_, other)| *other == named).map_or(0, |(code, _)| code),
        }
    }

    /// The meaning of a code.
    pub fn from_code(code: u8) -> Self {
        let named = (1..).zip(REFUSALS).find(|(other, _)| *other == code);
        named.map_or(Self::Other(code), |(_, refusal)| refusal)
    }
}

/// Reads integers in network order; `None` where the input ends.
struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.input.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Returns from the surrounding function with "more bytes are needed".
macro_rules! need {
    ($value:expr) => {
        match $value {
            Some(value) => value,
            None => return Ok(None),
        }
    };
}

fn encode_init(init: &SessInit, out: &mut Vec<u8>) {
    // An Eid has at most MAX_NODE_ID bytes.
    let node = &init.node.as_bytes()[..init.node.len().min(MAX_NODE_ID)];
    out.push(kind::SESS_INIT);
    out.extend(init.keepalive.to_be_bytes());
    out.extend(init.segment_mru.to_be_bytes());
    out.extend(init.transfer_mru.to_be_bytes());
    out.extend((node.len() as u16).to_be_bytes());
    out.extend(node);
    match init.critical_extension {
        None => out.extend(0_u32.to_be_bytes()),
        Some(item) => {
            out.extend(5_u32.to_be_bytes());
            out.push(CRITICAL);
            out.extend(item.to_be_bytes());
            out.extend(0_u16.to_be_bytes());
        }
    }
}

fn encode_segment(head: &SegmentHead, out: &mut Vec<u8>) {
    out.extend([kind::XFER_SEGMENT, head.flags.0]);
    out.extend(head.id.to_be_bytes());
    if head.flags.is_start() {
        match head.extensions.length {
            None => out.extend(0_u32.to_be_bytes()),
            Some(length) => {
                out.extend(13_u32.to_be_bytes());
                // Not critical: a receiver can do without it.
                out.push(0);
                out.extend(TRANSFER_LENGTH.to_be_bytes());
                out.extend(8_u16.to_be_bytes());
                out.extend(length.to_be_bytes());
            }
        }
    }
    out.extend(head.len.to_be_bytes());
}

fn decode_init(reader: &mut Reader<'_>) -> Result<Option<Message>, MessageError> {
    need!(reader.u8());
    let keepalive = need!(reader.u16());
    let segment_mru = need!(reader.u64());
    let transfer_mru = need!(reader.u64());
    let node_len = need!(reader.u16());
    if usize::from(node_len) > MAX_NODE_ID {
        return Err(MessageError::NodeIdTooLong(node_len));
    }
    let node = need!(reader.bytes(node_len.into()));
    let node = str::from_utf8(node).map_err(|_| MessageError::NodeIdNotText)?.to_owned();
    let items = need!(extension_list(reader)?);
    let mut critical_extension = None;
    for item in Items(items) {
        let item = item.ok_or(MessageError::MalformedExtensions)?;
        if item.critical {
            critical_extension.get_or_insert(item.kind);
        }
    }
    Ok(Some(Message::SessInit(SessInit { keepalive, segment_mru, transfer_mru, node, critical_extension })))
}

fn decode_segment(reader: &mut Reader<'_>) -> Result<Option<Message>, MessageError> {
    need!(reader.u8());
    let flags = SegmentFlags(need!(reader.u8()));
    let id = need!(reader.u64());
    let mut extensions = TransferExtensions::default();
    if flags.is_start() {
        for item in Items(need!(extension_list(reader)?)) {
            match item {
                None => extensions.malformed = true,
                Some(Item { kind: TRANSFER_LENGTH, value, .. }) if value.len() == 8 => {
                    extensions.length = value.try_into().ok().map(u64::from_be_bytes);
                }
                Some(item) => extensions.critical_unknown |= item.critical,
            }
        }
    }
    let len = need!(reader.u64());
    Ok(Some(Message::Segment(SegmentHead { flags, id, extensions, len })))
}

fn decode_short(reader: &mut Reader<'_>) -> Option<Message> {
    let kind = reader.u8()?;
    let second = reader.u8()?;
    Some(match kind {
        kind::SESS_TERM => Message::SessTerm { reply: second & REPLY != 0, reason: TermReason(reader.u8()?) },
        kind::XFER_ACK => Message::Ack { flags: SegmentFlags(second), id: reader.u64()?, len: reader.u64()? },
        kind::XFER_REFUSE => Message::Refuse { reason: Refusal::from_code(second), id: reader.u64()? },
        _ => Message::Reject { reason: RejectReason(second), header: reader.u8()? },
    })
}

fn extension_list<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, MessageError> {
    let len = need!(reader.u32());
    if len as usize > MAX_EXTENSIONS {
        return Err(MessageError::ExtensionsTooLong(len));
    }
    Ok(reader.bytes(len as usize))
}

/// An extension item (RFC 9174 §4.8 and §5.2.5).
struct Item<'a> {
    critical: bool,
    kind: u16,
    value: &'a [u8],
}

/// The items of a list; one `None` at the end if they do not add up to its length.
struct Items<'a>(&'a [u8]);

impl<'a> Iterator for Items<'a> {
    type Item = Option<Item<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let mut reader = Reader { input: self.0, at: 0 };
        let mut read = || {
            let (flags, kind, len) = (reader.u8()?, reader.u16()?, reader.u16()?);
            Some(Item { critical: flags & CRITICAL != 0, kind, value: reader.bytes(len.into())? })
        };
        let item = read();
        self.0 = if item.is_some() { &self.0[reader.at..] } else { &[] };
        Some(item)
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
