//! Frames: what one box tells the other, as bytes and as values.
//!
//! All numbers are big-endian. The first byte of a frame has the version in its upper and the kind in its
//! lower half.
//!
//! ```text
//! hello     │ 0x10 │ cipher 1 │ nonce 16 │ number 8 │ sealed: flags 1, echo 16                       │ tag 16 │
//! source    │ 0x11 latency, 0x12 bulk │ key id 1 │ number, lower 3 │ sealed: ESI, lower 3; IP packet  │ tag 16 │
//! repair    │ 0x13 latency, 0x14 bulk │ key id 1 │ number, lower 3 │ sealed: key 2, window, symbol    │ tag 16 │
//! report    │ 0x15 │ key id 1 │ number, lower 3 │ sealed: see `Report`                                │ tag 16 │
//! contexts  │ 0x16 │ key id 1 │ number, lower 3 │ sealed: CID 1, generation 2, length 1, template; …  │ tag 16 │
//! window    │ first ESI, lower 3 │ further ranges 4 bits, length 12 bits │ for each further one: gap 1, length 1 │
//! requests  │ first ESI, lower 4 │ ranges 1 │ length 2 │ then for each further one: gap 2, length 2 │
//! ```
//!
//! Without a cipher there are no tags.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::compress::{ContextId, MAX_CONFIRMATIONS, MAX_OPENINGS};
use crate::header::Template;
use crate::window::{Esi, Window};
use crate::wire::{FrameError, HEADER, SHORT, TAG, VERSION, expand_low, expand_short, short};

/// Bytes that a frame adds to a packet at most: those around a repair symbol with all ranges. The MTU of the
/// leg less this, and less the headers that carry frames (28 bytes of IPv4 and UDP), is the longest packet:
/// the form of an IP packet is never longer than itself, that of other bytes is by one.
pub const MAX_OVERHEAD: usize = HEADER + 2 + SHORT + 2 + 2 * (Window::MAX_RANGES - 1) + 2 + TAG;

/// Bytes that the source frame adds to its packet.
pub const SOURCE_OVERHEAD: usize = HEADER + SHORT + TAG;

/// Ranges of packets that one report asks for at most.
pub const MAX_REQUESTS: usize = 48;

/// What a packet needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Class {
    /// Delivered at once, repaired by the code alone.
    Latency,
    /// Delivered in order within a bound, repaired by the code and by retransmission.
    Bulk,
}

impl Class {
    /// Both.
    pub const ALL: [Class; 2] = [Class::Latency, Class::Bulk];

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// Bits of the length of a window's first range; the others of the 16 count further ranges.
const LENGTH_BITS: u32 = 12;

/// The kinds of frames: the lower half of the first byte.
mod kind {
    pub(super) const HELLO: u8 = 0;
    pub(super) const SOURCE: [u8; 2] = [1, 2];
    pub(super) const REPAIR: [u8; 2] = [3, 4];
    pub(super) const REPORT: u8 = 5;
    pub(super) const CONTEXTS: u8 = 6;
}

const fn head(kind: u8) -> u8 {
    VERSION << 4 | kind
}

/// The first byte of a hello.
pub(crate) const HELLO: u8 = head(kind::HELLO);
/// The first byte of a report.
pub(crate) const REPORT: u8 = head(kind::REPORT);
/// The first byte of a frame that tells contexts.
pub(crate) const CONTEXTS: u8 = head(kind::CONTEXTS);

/// The first byte of a source frame.
pub(crate) const fn source_head(class: Class) -> u8 {
    head(kind::SOURCE[class as usize])
}

/// The first byte of a repair frame.
pub(crate) const fn repair_head(class: Class) -> u8 {
    head(kind::REPAIR[class as usize])
}

/// Whether a frame is a hello, by its first byte.
///
/// # Errors
/// It is empty, or of another version or of no kind.
pub(crate) fn is_hello(frame: &[u8]) -> Result<bool, FrameError> {
    let first = *frame.first().ok_or(FrameError::Truncated { what: "header", bytes: 0 })?;
    match (first >> 4, first & 15) {
        (VERSION, kind @ 0..=kind::CONTEXTS) => Ok(kind == kind::HELLO),
        (VERSION, kind) => Err(FrameError::Kind(kind)),
        (theirs, _) => Err(FrameError::Version { theirs }),
    }
}

/// The content of a frame of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A packet.
    Source {
        /// Its class.
        class: Class,
        /// Its number.
        esi: Esi,
        /// Itself.
        packet: &'a [u8],
    },
    /// A combination of packets.
    Repair {
        /// Their class.
        class: Class,
        /// The key that gives the coefficients.
        key: u16,
        /// Which packets.
        window: Window,
        /// Their sum.
        symbol: &'a [u8],
    },
    /// What the peer has received and wants.
    Report(Report),
    /// What packets that follow leave out.
    Contexts(Vec<(ContextId, Template)>),
}

/// How one box fares with what the other sends, and where it is with what it sends itself. All counts are
/// sums since the session began, so that a report that is lost leaves no gap.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// When it was sent, by the clock of who sent it, in microseconds, lower half.
    pub sent_at: u32,
    /// `sent_at` of the last report that came, and the microseconds since then.
    pub echo: Option<(u32, u32)>,
    /// Frames that came.
    pub received: u64,
    /// Frames that did not.
    pub lost: u64,
    /// Rows of lost frames without one between them that came.
    pub bursts: u64,
    /// For each class the number that the next packet of the reporting box will have: what ends a burst of
    /// traffic may be lost, and nothing behind it would tell.
    pub next: [Esi; 2],
    /// For each class the number before which it needs nothing any more.
    pub needs_from: [Esi; 2],
    /// Packets of the class `bulk` to be sent again, ascending.
    pub requests: Vec<Range<Esi>>,
    /// Contexts that have been told since the last report.
    pub confirmed: Vec<ContextId>,
}

/// Around which full numbers a frame's lower halves lie.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Expected {
    /// What the peer sends: the number behind the last one known, for each class.
    pub(crate) theirs: [Esi; 2],
    /// What this box sends, for each class.
    pub(crate) ours: [Esi; 2],
}

impl<'a> Frame<'a> {
    /// Reads what is behind the header of an authentic frame whose first byte is `head`.
    pub(crate) fn parse(head: u8, body: &'a [u8], expected: &Expected) -> Result<Self, FrameError> {
        let mut reader = Reader { rest: body, length: body.len(), what: "content" };
        let class = |kinds: [u8; 2]| Class::ALL.into_iter().find(|class| kinds[class.index()] == head & 15);
        if let Some(class) = class(kind::SOURCE) {
            reader.what = "packet number";
            let esi = reader.short_esi(expected.theirs[class.index()])?;
            return Ok(Frame::Source { class, esi, packet: reader.rest });
        }
        if let Some(class) = class(kind::REPAIR) {
            reader.what = "window";
            let key = reader.u16()?;
            let window = reader.window(expected.theirs[class.index()])?;
            return Ok(Frame::Repair { class, key, window, symbol: reader.rest });
        }
        if head & 15 == kind::REPORT {
            reader.what = "report";
            return Report::parse(reader, expected).map(Frame::Report);
        }
        if head & 15 == kind::CONTEXTS {
            reader.what = "contexts";
            return reader.contexts().map(Frame::Contexts);
        }
        Err(FrameError::Kind(head & 15))
    }
}

/// Appends the content of a source frame.
pub(crate) fn write_source(out: &mut Vec<u8>, esi: Esi, packet: &[u8]) {
    out.extend_from_slice(&short(esi));
    out.extend_from_slice(packet);
}

/// Appends the content of a repair frame before its symbol, with a key that is filled in later.
pub(crate) fn write_window(out: &mut Vec<u8>, window: &Window) {
    let ranges = window.ranges();
    out.extend_from_slice(&short(window.first()));
    let [first, further @ ..] = ranges else { return };
    let head = (further.len() as u16) << LENGTH_BITS | (first.end - first.start) as u16;
    out.extend_from_slice(&head.to_be_bytes());
    let mut end = first.end;
    for range in further {
        out.extend_from_slice(&[(range.start - end) as u8, (range.end - range.start) as u8]);
        end = range.end;
    }
}

/// Appends the content of a frame that tells contexts.
pub(crate) fn write_contexts(out: &mut Vec<u8>, contexts: &[(ContextId, Template)]) {
    for (id, template) in contexts {
        write_id(out, *id);
        out.push(template.as_bytes().len() as u8);
        out.extend_from_slice(template.as_bytes());
    }
}

fn write_id(out: &mut Vec<u8>, id: ContextId) {
    out.push(id.cid);
    out.extend_from_slice(&id.generation.to_be_bytes());
}

fn write_ranges(out: &mut Vec<u8>, ranges: &[Range<Esi>]) {
    let first = ranges.first().map_or(0, |range| range.start);
    out.extend_from_slice(&(first as u32).to_be_bytes());
    out.push(ranges.len() as u8);
    let mut end = first;
    for (index, range) in ranges.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(&((range.start - end) as u16).to_be_bytes());
        }
        out.extend_from_slice(&((range.end - range.start) as u16).to_be_bytes());
        end = range.end;
    }
}

/// Whether the next range can be told: gaps and lengths have 16 bits.
pub(crate) fn fits_behind(end: Esi, range: &Range<Esi>) -> bool {
    range.start - end <= Esi::from(u16::MAX) && range.end - range.start <= Esi::from(u16::MAX)
}

impl Report {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sent_at.to_be_bytes());
        let (echo, held) = self.echo.unwrap_or((0, u32::MAX));
        out.extend_from_slice(&echo.to_be_bytes());
        out.extend_from_slice(&held.to_be_bytes());
        for count in [self.received, self.lost, self.bursts] {
            out.extend_from_slice(&count.to_be_bytes());
        }
        for esi in self.next.iter().chain(&self.needs_from) {
            out.extend_from_slice(&(*esi as u32).to_be_bytes());
        }
        write_ranges(out, &self.requests);
        out.push(self.confirmed.len() as u8);
        self.confirmed.iter().for_each(|id| write_id(out, *id));
    }

    fn parse(mut reader: Reader<'_>, expected: &Expected) -> Result<Self, FrameError> {
        let sent_at = reader.u32()?;
        let (echo, held) = (reader.u32()?, reader.u32()?);
        let [received, lost, bursts] = [reader.u64()?, reader.u64()?, reader.u64()?];
        let next = [reader.esi(expected.theirs[0])?, reader.esi(expected.theirs[1])?];
        let needs_from = [reader.esi(expected.ours[0])?, reader.esi(expected.ours[1])?];
        let requests = reader.ranges(MAX_REQUESTS, expected.ours[Class::Bulk.index()])?;
        let [confirmed] = reader.take()?;
        if usize::from(confirmed) > MAX_CONFIRMATIONS {
            return Err(FrameError::Malformed("too many confirmations"));
        }
        let confirmed = (0..confirmed).map(|_| reader.id()).collect::<Result<_, _>>()?;
        if bursts > lost {
            return Err(FrameError::Malformed("more bursts than losses"));
        }
        if !reader.rest.is_empty() {
            return Err(FrameError::Malformed("bytes behind its report"));
        }
        let echo = (held != u32::MAX).then_some((echo, held));
        Ok(Self { sent_at, echo, received, lost, bursts, next, needs_from, requests, confirmed })
    }
}

/// Reads numbers off the front of bytes.
struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
    what: &'static str,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let error = FrameError::Truncated { what: self.what, bytes: self.length };
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(error)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, FrameError> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        self.take().map(u64::from_be_bytes)
    }

    fn esi(&mut self, expected: Esi) -> Result<Esi, FrameError> {
        Self::checked(expand_low(self.u32()?, expected))
    }

    fn checked(esi: Option<Esi>) -> Result<Esi, FrameError> {
        // No session lives so long; what is added to a number never overflows.
        esi.filter(|esi| *esi < 1 << 62).ok_or(FrameError::Malformed("a packet number below zero"))
    }

    fn short_esi(&mut self, expected: Esi) -> Result<Esi, FrameError> {
        Self::checked(expand_short(self.take()?, expected))
    }

    fn window(&mut self, expected: Esi) -> Result<Window, FrameError> {
        let mut end = self.short_esi(expected)?;
        let head = self.u16()?;
        let first = end..end + Esi::from(head & ((1 << LENGTH_BITS) - 1));
        end = first.end;
        let mut ranges = vec![first];
        for _ in 0..head >> LENGTH_BITS {
            let [gap, length] = self.take()?;
            let start = end + Esi::from(gap);
            end = start + Esi::from(length);
            ranges.push(start..end);
        }
        Window::new(ranges).ok_or(FrameError::Malformed("a window that is none"))
    }

    fn id(&mut self) -> Result<ContextId, FrameError> {
        let [cid] = self.take()?;
        Ok(ContextId { cid, generation: self.u16()? })
    }

    fn contexts(mut self) -> Result<Vec<(ContextId, Template)>, FrameError> {
        let mut contexts = Vec::new();
        while !self.rest.is_empty() {
            let id = self.id()?;
            let [length] = self.take()?;
            let error = FrameError::Truncated { what: self.what, bytes: self.length };
            let (template, rest) = self.rest.split_at_checked(usize::from(length)).ok_or(error)?;
            let template =
                Template::parse(template).ok_or(FrameError::Malformed("a template that is none"))?;
            self.rest = rest;
            contexts.push((id, template));
            if contexts.len() > MAX_OPENINGS {
                return Err(FrameError::Malformed("too many contexts"));
            }
        }
        Ok(contexts)
    }

    fn ranges(&mut self, most: usize, expected: Esi) -> Result<Vec<Range<Esi>>, FrameError> {
        let mut end = self.esi(expected)?;
        let [count] = self.take()?;
        if usize::from(count) > most {
            return Err(FrameError::Malformed("too many ranges"));
        }
        let mut ranges = Vec::with_capacity(usize::from(count));
        for index in 0..count {
            let gap = if index == 0 { 0 } else { self.u16()? };
            let length = self.u16()?;
            if length == 0 || (index > 0 && gap == 0) {
                return Err(FrameError::Malformed("a range that is empty or touches the one before"));
            }
            let start = end + Esi::from(gap);
            end = start + Esi::from(length);
            ranges.push(start..end);
        }
        Ok(ranges)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::tests::{ipv4_udp, ipv6_udp};

    fn ranges(first: Esi, steps: &[(u16, u16)]) -> Vec<Range<Esi>> {
        let mut end = first;
        let range = |(gap, length): &(u16, u16)| {
            let start = end + Esi::from(*gap);
            end = start + Esi::from(*length);
            start..end
        };
        steps.iter().map(range).collect()
    }

    proptest! {
        #[test]
        fn reports_read_back_as_written(
            numbers: [u32; 3],
            received in 0u64..1 << 60,
            lost in 0u64..1 << 40,
            esi in 1u64 << 34..1 << 40,
            steps in proptest::collection::vec((1u16..500, 1u16..500), 0..MAX_REQUESTS),
            ids in proptest::collection::vec((any::<u8>(), any::<u16>()), 0..=MAX_CONFIRMATIONS),
            near in -1000i64..1000,
        ) {
            let echo = (numbers[1] != u32::MAX).then_some((numbers[2], numbers[1]));
            let report = Report {
                sent_at: numbers[0],
                echo,
                received,
                lost,
                bursts: lost / 3,
                next: [esi + 1, esi + 2],
                needs_from: [esi + 3, esi + 4],
                requests: ranges(esi, &steps),
                confirmed: ids.into_iter().map(|(cid, generation)| ContextId { cid, generation }).collect(),
            };
            let mut bytes = Vec::new();
            report.write(&mut bytes);
            let near = esi.wrapping_add_signed(near);
            let expected = Expected { theirs: [near; 2], ours: [near; 2] };
            prop_assert_eq!(Frame::parse(REPORT, &bytes, &expected), Ok(Frame::Report(report)));
            let cut = &bytes[..bytes.len() - 1];
            let truncated = matches!(Frame::parse(REPORT, cut, &expected), Err(FrameError::Truncated { .. }));
            prop_assert!(truncated);
        }

        #[test]
        fn sources_and_repairs_read_back_as_written(
            esi in 1u64 << 34..1 << 40,
            steps in proptest::collection::vec((1u16..256, 1u16..256), 1..=Window::MAX_RANGES),
            key: u16,
            content in proptest::collection::vec(any::<u8>(), 0..50),
            bulk: bool,
        ) {
            let class = if bulk { Class::Bulk } else { Class::Latency };
            let expected = Expected { theirs: [esi - 9; 2], ours: [0; 2] };
            let mut bytes = Vec::new();
            write_source(&mut bytes, esi, &content);
            let frame = Frame::Source { class, esi, packet: &content };
            prop_assert_eq!(Frame::parse(source_head(class), &bytes, &expected), Ok(frame));

            let window = Window::new(ranges(esi, &steps)).unwrap();
            let mut bytes = key.to_be_bytes().to_vec();
            write_window(&mut bytes, &window);
            bytes.extend_from_slice(&content);
            let frame = Frame::Repair { class, key, window, symbol: &content };
            prop_assert_eq!(Frame::parse(repair_head(class), &bytes, &expected), Ok(frame));
        }

        #[test]
        fn contexts_read_back_as_written(ids in proptest::collection::vec((any::<u8>(), any::<u16>(), any::<bool>()), 0..=MAX_OPENINGS)) {
            let context = |(cid, generation, v6): (u8, u16, bool)| {
                let packet = if v6 { ipv6_udp(generation, 0, b"x") } else { ipv4_udp(generation, 0, b"x") };
                (ContextId { cid, generation }, Template::of(&packet).unwrap())
            };
            let contexts: Vec<_> = ids.into_iter().map(context).collect();
            let mut bytes = Vec::new();
            write_contexts(&mut bytes, &contexts);
            let parse = |bytes: &[u8]| Frame::parse(CONTEXTS, bytes, &Expected::default()).map(|frame| format!("{frame:?}"));
            prop_assert_eq!(parse(&bytes), Ok(format!("{:?}", Frame::Contexts(contexts.clone()))));
            bytes.extend_from_slice(&[0, 0, 0, 1, 0]);
            prop_assert!(parse(&bytes).is_err());
        }

        #[test]
        fn whatever_comes_is_read_or_refused(head: u8, body in proptest::collection::vec(any::<u8>(), 0..120), esi: u64) {
            let expected = Expected { theirs: [esi; 2], ours: [esi; 2] };
            if let Ok(Frame::Report(report)) = Frame::parse(head, &body, &expected) {
                prop_assert!(report.requests.len() <= MAX_REQUESTS && report.bursts <= report.lost);
            }
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let says = |error: FrameError, words: &str| assert!(error.to_string().contains(words), "{error}");
        says(is_hello(&[]).unwrap_err(), "0 bytes ends within its header");
        says(is_hello(&[0x25]).unwrap_err(), "version 2");
        says(is_hello(&[0x1f]).unwrap_err(), "kind 15");
        let parse = |head, body: &[u8]| Frame::parse(head, body, &Expected::default()).unwrap_err();
        says(parse(source_head(Class::Bulk), &[0; 2]), "2 bytes ends within its packet number");
        says(parse(repair_head(Class::Bulk), &[0, 0, 0, 0, 0, 0x40]), "ends within its window");
        says(parse(repair_head(Class::Bulk), &[0, 0, 0, 0, 0, 0, 0]), "a window that is none");
        says(parse(repair_head(Class::Bulk), &[0, 0, 0, 0, 0, 0x10, 1, 0, 1]), "a window that is none");
        let five = [&[0, 0, 0, 0, 0, 0x40, 1][..], &[1; 8]].concat();
        says(parse(repair_head(Class::Bulk), &five), "a window that is none");
        says(parse(source_head(Class::Bulk), &[255; 4]), "below zero");
        let requests = [&[0; 36 + 16][..], &[0, 0, 0, 0, MAX_REQUESTS as u8 + 1]].concat();
        says(parse(REPORT, &requests), "too many ranges");
        let requests = [&[0; 36 + 16][..], &[0, 0, 0, 0, 1, 0, 0]].concat();
        says(parse(REPORT, &requests), "empty");
    }
}
