//! LTP's segments (RFC 5326 §3).

use crate::authentication::{self, Authentication, Extensions};
use crate::sdnv::{self, Malformed as Number};

/// The version of LTP (RFC 5326 §3.1).
const VERSION: u8 = 0;
/// The most claims of a report. One of 64 KiB could have more; who gets so many gaps in the scope of a report
/// has a link on which nothing arrives.
const MAX_CLAIMS: usize = 4096;

/// The session that a block is sent in (RFC 5326 §3.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    /// The engine that sends the block.
    pub originator: u64,
    /// Its number for it.
    pub number: u64,
}

/// A segment; extensions are skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Its session.
    pub session: SessionId,
    /// What it says.
    pub content: Content<'a>,
}

/// What a segment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content<'a> {
    /// Bytes of the block (§3.2.1).
    Data(Data<'a>),
    /// What has arrived of the block's red part (§3.2.2).
    Report(Report),
    /// The report with this serial number has arrived (§3.2.3).
    ReportAck(u64),
    /// A side cancels the session (§3.2.4).
    Cancel(Side, Reason),
    /// The cancellation by this side has arrived (§3.2.5).
    CancelAck(Side),
}

/// Bytes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data<'a> {
    /// Whom the block is for.
    pub client: u64,
    /// Where they begin in the block.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Their part of the block.
    pub part: Part,
}

/// To which part of a block data belong, and what ends with them (RFC 5326 §3.1.1, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The red part, which is retransmitted until it has arrived.
    Red,
    /// The red part, and a report is asked for.
    Checkpoint(Checkpoint),
    /// The green part, which is sent once.
    Green {
        /// Whether the block ends with them.
        ends_block: bool,
    },
}

/// A request for a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its serial number, from 1.
    pub serial: u64,
    /// The serial number of the report to which it responds, or 0.
    pub report: u64,
    /// What ends with its data.
    pub ends: Ends,
}

/// What ends with the data of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// Nothing.
    Nothing,
    /// The red part; a green one follows.
    RedPart,
    /// The red part, and the block with it.
    Block,
}

/// What has arrived of the red part between two bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Its serial number, from 1.
    pub serial: u64,
    /// The serial number of the checkpoint that asked for it, or 0.
    pub checkpoint: u64,
    /// It says nothing of what lies before.
    pub lower: u64,
    /// It says nothing of what lies from here on.
    pub upper: u64,
    /// What has arrived, as ranges of offsets in the block, ascending.
    pub claims: Vec<(u64, u64)>,
}

/// One of the ends of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one that sends the block.
    Sender,
    /// The one that receives it.
    Receiver,
}

/// Why a session is cancelled (RFC 5326 §3.2.4, table 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The client asked for it (USR_CNCLD).
    Client,
    /// There is no such client (UNREACH).
    Unreachable,
    /// Segments were sent again too often without an answer (RLEXC).
    RetransmissionLimit,
    /// Red data came behind green ones, or the reverse (MISCOLORED).
    Miscoloured,
    /// A fault of the system (SYS_CNCLD).
    System,
    /// Data had to be sent again in too many rounds (RXMTCYCEXC).
    RoundsLimit,
    /// A reserved code.
    Other(u8),
}

/// Why bytes are no segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A number in it cannot be read.
    #[error(transparent)]
    Number(#[from] Number),
    /// It ends too early.
    #[error("it ends within its content")]
    Truncated,
    /// Another version.
    #[error("it has version {0}, and this is version 0")]
    Version(u8),
    /// A type that is not defined.
    #[error("there is no segment of type {0}")]
    Type(u8),
    /// A serial number of zero where there has to be one.
    #[error("a serial number is 0")]
    Serial,
    /// Bytes behind the 64-bit end.
    #[error("its data lie behind what 64 bits can count")]
    Offset,
    /// Claims that are empty, outside of the bounds, overlap or are not in order (§3.2.2).
    #[error("a claim is empty, out of order or out of bounds")]
    Claim,
    /// More claims than this crate takes.
    #[error("it has {0} claims; the limit is {MAX_CLAIMS}")]
    Claims(u64),
}

impl Reason {
    /// Its code.
    pub fn code(self) -> u8 {
        match self {
            Self::Client => 0,
            Self::Unreachable => 1,
            Self::RetransmissionLimit => 2,
            Self::Miscoloured => 3,
            Self::System => 4,
            Self::RoundsLimit => 5,
            Self::Other(code) => code,
        }
    }

    /// The reason with this code.
    pub fn of(code: u8) -> Self {
        match code {
            0 => Self::Client,
            1 => Self::Unreachable,
            2 => Self::RetransmissionLimit,
            3 => Self::Miscoloured,
            4 => Self::System,
            5 => Self::RoundsLimit,
            other => Self::Other(other),
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Client => f.write_str("its client has cancelled it"),
            Self::Unreachable => f.write_str("there is no such client"),
            Self::RetransmissionLimit => f.write_str("retransmissions were not answered"),
            Self::Miscoloured => f.write_str("red and green data were mixed"),
            Self::System => f.write_str("a fault of the system"),
            Self::RoundsLimit => f.write_str("too many rounds of retransmission"),
            Self::Other(code) => write!(f, "reason {code}"),
        }
    }
}

impl Part {
    /// Whether it is the red part.
    pub fn is_red(self) -> bool {
        !matches!(self, Self::Green { .. })
    }

    fn code(self) -> u8 {
        match self {
            Self::Red => 0,
            Self::Checkpoint(Checkpoint { ends: Ends::Nothing, .. }) => 1,
            Self::Checkpoint(Checkpoint { ends: Ends::RedPart, .. }) => 2,
            Self::Checkpoint(Checkpoint { ends: Ends::Block, .. }) => 3,
            Self::Green { ends_block: false } => 4,
            Self::Green { ends_block: true } => 7,
        }
    }
}

impl Content<'_> {
    fn code(&self) -> u8 {
        match self {
            Self::Data(data) => data.part.code(),
            Self::Report(_) => 8,
            Self::ReportAck(_) => 9,
            Self::Cancel(Side::Sender, _) => 12,
            Self::CancelAck(Side::Sender) => 13,
            Self::Cancel(Side::Receiver, _) => 14,
            Self::CancelAck(Side::Receiver) => 15,
        }
    }
}

impl<'a> Segment<'a> {
    /// Reads a segment.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        // Trailer extensions follow the content, and nothing follows them.
        Self::read(bytes, |_, _| ()).map(|(segment, ..)| segment)
    }

    /// Reads a segment with its extensions.
    pub(crate) fn parse_with_extensions(bytes: &'a [u8]) -> Result<(Self, Extensions<'a>), Malformed> {
        let mut extensions = Extensions::default();
        let (segment, trailers, mut rest) = Self::read(bytes, |tag, value| {
            if tag == authentication::TAG {
                extensions.header.push(value);
            }
        })?;
        for _ in 0..trailers {
            extensions.trailer.push(extension(&mut rest)?);
        }
        extensions.is_whole = rest.is_empty();
        Ok((segment, extensions))
    }

    /// Reads a segment, gives the extensions of its header to `each`, and returns how many its trailer has, and
    /// where that begins.
    fn read(bytes: &'a [u8], mut each: impl FnMut(u8, &'a [u8])) -> Result<(Self, u8, &'a [u8]), Malformed> {
        let mut rest = bytes;
        let control = byte(&mut rest)?;
        if control >> 4 != VERSION {
            return Err(Malformed::Version(control >> 4));
        }
        let session = SessionId { originator: sdnv::read(&mut rest)?, number: sdnv::read(&mut rest)? };
        let extensions = byte(&mut rest)?;
        for _ in 0..extensions >> 4 {
            let (tag, value) = extension(&mut rest)?;
            each(tag, value);
        }
        let content = match control & 0x0f {
            code @ (0..=4 | 7) => Content::Data(Data::parse(code, &mut rest)?),
            8 => Content::Report(Report::parse(&mut rest)?),
            9 => Content::ReportAck(sdnv::read(&mut rest)?),
            12 => Content::Cancel(Side::Sender, Reason::of(byte(&mut rest)?)),
            13 => Content::CancelAck(Side::Sender),
            14 => Content::Cancel(Side::Receiver, Reason::of(byte(&mut rest)?)),
            15 => Content::CancelAck(Side::Receiver),
            code => return Err(Malformed::Type(code)),
        };
        Ok((Self { session, content }, extensions & 0x0f, rest))
    }

    /// Appends it, without extensions.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_with(None, out);
    }

    /// Writes it into `out`, which is empty, with the extensions of authentication.
    pub(crate) fn write_with(&self, authentication: Option<&Authentication>, out: &mut Vec<u8>) {
        out.push(VERSION << 4 | self.content.code());
        sdnv::write(self.session.originator, out);
        sdnv::write(self.session.number, out);
        // How many extensions of the header there are, and how many of the trailer.
        out.push(if authentication.is_some() { 0x11 } else { 0 });
        if let Some(authentication) = authentication {
            authentication.write_header(out);
        }
        match &self.content {
            Content::Data(data) => data.write(out),
            Content::Report(report) => report.write(out),
            Content::ReportAck(serial) => sdnv::write(*serial, out),
            Content::Cancel(_, reason) => out.push(reason.code()),
            Content::CancelAck(_) => {}
        }
        if let Some(authentication) = authentication {
            authentication.write_trailer(out);
        }
    }
}

impl<'a> Data<'a> {
    fn parse(code: u8, rest: &mut &'a [u8]) -> Result<Self, Malformed> {
        let (client, offset) = (sdnv::read(rest)?, sdnv::read(rest)?);
        let len = sdnv::read(rest)?;
        let checkpoint = |ends, rest: &mut &[u8]| {
            let (serial, report) = (sdnv::read(rest)?, sdnv::read(rest)?);
            if serial == 0 {
                return Err(Malformed::Serial);
            }
            Ok(Part::Checkpoint(Checkpoint { serial, report, ends }))
        };
        let part = match code {
            0 => Part::Red,
            1 => checkpoint(Ends::Nothing, rest)?,
            2 => checkpoint(Ends::RedPart, rest)?,
            3 => checkpoint(Ends::Block, rest)?,
            _ => Part::Green { ends_block: code == 7 },
        };
        let bytes = take(rest, len)?;
        offset.checked_add(len).ok_or(Malformed::Offset)?;
        Ok(Self { client, offset, bytes, part })
    }

    fn write(&self, out: &mut Vec<u8>) {
        for number in [self.client, self.offset, self.bytes.len() as u64] {
            sdnv::write(number, out);
        }
        if let Part::Checkpoint(Checkpoint { serial, report, .. }) = self.part {
            sdnv::write(serial, out);
            sdnv::write(report, out);
        }
        out.extend_from_slice(self.bytes);
    }
}

impl Report {
    fn parse(rest: &mut &[u8]) -> Result<Self, Malformed> {
        let (serial, checkpoint) = (sdnv::read(rest)?, sdnv::read(rest)?);
        let (upper, lower) = (sdnv::read(rest)?, sdnv::read(rest)?);
        let count = sdnv::read(rest)?;
        if serial == 0 {
            return Err(Malformed::Serial);
        }
        if count > MAX_CLAIMS as u64 {
            return Err(Malformed::Claims(count));
        }
        let (mut claims, mut behind) = (Vec::new(), lower);
        for _ in 0..count {
            let (offset, len) = (sdnv::read(rest)?, sdnv::read(rest)?);
            let from = lower.checked_add(offset).ok_or(Malformed::Claim)?;
            let to = from.checked_add(len).ok_or(Malformed::Claim)?;
            if len == 0 || from < behind || to > upper {
                return Err(Malformed::Claim);
            }
            claims.push((from, to));
            behind = to;
        }
        Ok(Self { serial, checkpoint, lower, upper, claims })
    }

    fn write(&self, out: &mut Vec<u8>) {
        for number in [self.serial, self.checkpoint, self.upper, self.lower, self.claims.len() as u64] {
            sdnv::write(number, out);
        }
        for (from, to) in &self.claims {
            sdnv::write(from - self.lower, out);
            sdnv::write(to - from, out);
        }
    }
}

fn byte(rest: &mut &[u8]) -> Result<u8, Malformed> {
    let (&first, behind) = rest.split_first().ok_or(Malformed::Truncated)?;
    *rest = behind;
    Ok(first)
}

/// The tag and the value of an extension.
fn extension<'a>(rest: &mut &'a [u8]) -> Result<(u8, &'a [u8]), Malformed> {
    let tag = byte(rest)?;
    let len = sdnv::read(rest)?;
    Ok((tag, take(rest, len)?))
}

fn take<'a>(rest: &mut &'a [u8], len: u64) -> Result<&'a [u8], Malformed> {
    let len = usize::try_from(len).map_err(|_| Malformed::Truncated)?;
    let (taken, behind) = rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
    *rest = behind;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SESSION: SessionId = SessionId { originator: 5, number: 300 };

    fn written(content: Content<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        Segment { session: SESSION, content }.write(&mut out);
        out
    }

    #[test]
    fn a_checkpoint_has_the_bytes_of_the_rfc() {
        let checkpoint = Checkpoint { serial: 1, report: 0, ends: Ends::Block };
        let data = Data { client: 1, offset: 128, bytes: b"ab", part: Part::Checkpoint(checkpoint) };
        let bytes = [0x03, 5, 0x82, 0x2c, 0, 1, 0x81, 0x00, 2, 1, 0, b'a', b'b'];
        assert_eq!(written(Content::Data(data)), bytes);
    }

    #[test]
    fn claims_are_relative_to_the_lower_bound() {
        // RFC 5326 §3.2.2, the second example: 0 to 7000 in two reports.
        let report = Report {
            serial: 7,
            checkpoint: 9,
            lower: 1000,
            upper: 6000,
            claims: vec![(1000, 2000), (3000, 6000)],
        };
        let bytes = written(Content::Report(report.clone()));
        assert_eq!(bytes[5..], [7, 9, 0xae, 0x70, 0x87, 0x68, 2, 0, 0x87, 0x68, 0x8f, 0x50, 0x97, 0x38]);
        assert_eq!(Segment::parse(&bytes).unwrap().content, Content::Report(report));
    }

    #[test]
    fn extensions_are_skipped() {
        // Of the header, a cookie of three bytes; of the trailer, one that nobody reads.
        let bytes = [0x09, 5, 6, 0x11, 0x01, 3, 9, 9, 9, 42, 0x00, 1, 0];
        let segment = Segment::parse(&bytes).unwrap();
        assert_eq!(segment.content, Content::ReportAck(42));
        assert_eq!(segment.session, SessionId { originator: 5, number: 6 });
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        for (bytes, why) in [
            (&[][..], Malformed::Truncated),
            (&[0x13, 5, 6, 0], Malformed::Version(1)),
            (&[0x05, 5, 6, 0], Malformed::Type(5)),
            (&[0x0a, 5, 6, 0], Malformed::Type(10)),
            (&[0x03, 5, 6, 0, 1, 0, 2, 0, 0, 1, 2], Malformed::Serial),
            (&[0x00, 5, 6, 0, 1, 0, 9, 1], Malformed::Truncated),
            (&[0x08, 5, 6, 0, 1, 1, 9, 0, 1, 0, 10], Malformed::Claim),
            (&[0x08, 5, 6, 0, 1, 1, 9, 0, 1, 0, 0], Malformed::Claim),
            (&[0x08, 5, 6, 0, 1, 1, 9, 0, 2, 4, 2, 3, 2], Malformed::Claim),
            (&[0x08, 5, 6, 0, 1, 1, 9, 0, 0xff, 0x7f], Malformed::Claims(16383)),
        ] {
            assert_eq!(Segment::parse(bytes), Err(why), "{bytes:?}");
        }
    }

    fn content() -> impl Strategy<Value = (u64, u64, u64, u64, Vec<(u16, u16)>, u8)> {
        (
            any::<u64>(),
            1..u64::MAX,
            any::<u64>(),
            0..u64::MAX / 2,
            prop::collection::vec((0u16.., 1u16..), 0..9),
            0..12u8,
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read((a, serial, report, lower, gaps, kind) in content(), bytes: Vec<u8>) {
            let mut at = lower;
            let claims: Vec<_> = gaps.iter().map(|&(gap, len)| {
                let from = at + u64::from(gap);
                at = from + u64::from(len);
                (from, at)
            }).collect();
            let data = |part| Content::Data(Data { client: a, offset: lower, bytes: &bytes, part });
            let checkpoint = |ends| data(Part::Checkpoint(Checkpoint { serial, report, ends }));
            let content = match kind {
                0 => data(Part::Red),
                1 => checkpoint(Ends::Nothing),
                2 => checkpoint(Ends::RedPart),
                3 => checkpoint(Ends::Block),
                4 => data(Part::Green { ends_block: false }),
                5 => data(Part::Green { ends_block: true }),
                6 => Content::Report(Report { serial, checkpoint: report, lower, upper: at, claims }),
                7 => Content::ReportAck(serial),
                8 => Content::Cancel(Side::Sender, Reason::of(a as u8)),
                9 => Content::Cancel(Side::Receiver, Reason::of(a as u8)),
                10 => Content::CancelAck(Side::Sender),
                _ => Content::CancelAck(Side::Receiver),
            };
            let segment = Segment { session: SessionId { originator: a, number: serial }, content };
            let mut out = Vec::new();
            segment.write(&mut out);
            prop_assert_eq!(Segment::parse(&out), Ok(segment));
        }

        #[test]
        fn anything_else_is_an_error_and_no_more(bytes: Vec<u8>) {
            let _ = Segment::parse(&bytes);
        }
    }
}
