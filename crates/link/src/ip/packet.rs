use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::checksum::{corrected_checksum, tcp_checksum};
use super::{TCP_HEADER, addresses, carried_tcp, is_intact};
use crate::agent::{CongestionHeader, Packet, TcpFlags, TcpHeader};

/// As many SACK blocks as a header has room for (RFC 2018 §3).
const MAX_SACK_BLOCKS: usize = 4;
/// Kinds of TCP options (RFC 9293 §3.1, RFC 2018 §3).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const SACK: u8 = 5;
/// The options that acknowledgements carry routinely: SACK, timestamps (RFC 7323), signatures (RFC 2385, RFC
/// 5925), the counters of accurate ECN (RFC 9768), which the next one has again.
const ADVICE: [u8; 6] = [SACK, 8, 19, 29, 172, 174];
/// Multipath TCP, and its subtype that acknowledgements carry routinely (RFC 8684 §3.3): the data sequence
/// signal.
const MULTIPATH: u8 = 30;
const DATA_SEQUENCE_SIGNAL: u8 = 2;
/// The option of XCP, as an experiment (RFC 6994): its kind, the experiment's number, and the length of a
/// congestion header, which routers read. The experiment's other options are for the ends alone.
const EXPERIMENT: u8 = 254;
const XCP: [u8; 2] = [0x42, 0x50];
const CONGESTION_HEADER: usize = 16;

/// A packet of IPv4 or IPv6: its bytes, and the fields that agents read. Copies share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct IpPacket {
    bytes: Arc<[u8]>,
    tcp: Option<Tcp>,
}

/// The header of a TCP segment with a correct checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tcp {
    source: (IpAddr, u16),
    destination: (IpAddr, u16),
    seq: u32,
    ack: u32,
    payload: u32,
    window: u16,
    flags: TcpFlags,
    /// Where in the packet the segment begins.
    offset: u16,
    says_more: bool,
    sack: Option<SackOption>,
    congestion: Option<CongestionOption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CongestionOption {
    /// Where in the segment the option begins, its kind included.
    offset: u8,
    header: CongestionHeader,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SackOption {
    /// Where in the segment the option begins, its kind included.
    offset: u8,
    count: u8,
    blocks: [(u32, u32); MAX_SACK_BLOCKS],
}

impl IpPacket {
    /// A packet of any bytes. Without a whole, intact TCP segment, its [`tcp`](Packet::tcp) is `None`.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        let tcp = Tcp::parse(&bytes);
        Self { bytes, tcp }
    }

    /// The packet, from its IP header on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Packet for IpPacket {
    type End = (IpAddr, u16);

    fn ip_length(&self) -> usize {
        self.bytes.len()
    }

    fn tcp(&self) -> Option<TcpHeader<'_, Self::End>> {
        let tcp = self.tcp.as_ref()?;
        let Tcp { source, destination, seq, ack, payload, window, flags, .. } = *tcp;
        let sack = tcp.sack.as_ref().map_or(&[][..], |sack| &sack.blocks[..usize::from(sack.count)]);
        Some(TcpHeader { source, destination, seq, ack, payload, window, flags, sack })
    }

    fn says_more(&self) -> bool {
        self.tcp.is_some_and(|tcp| tcp.says_more)
    }

    /// Replaces the option by NOPs and corrects the checksum.
    fn without_sack(&self) -> Self {
        let Some(tcp @ Tcp { sack: Some(sack), .. }) = self.tcp else { return self.clone() };
        let mut bytes = self.bytes.to_vec();
        let Some(end) = carried_tcp(&bytes).map(|carried| carried.offset + carried.segment.len()) else {
            return self.clone();
        };
        let segment = &mut bytes[usize::from(tcp.offset)..end];
        segment[sack.range()].fill(NO_OPERATION);
        segment[16..18].fill(0);
        let checksum = tcp_checksum([tcp.source.0, tcp.destination.0], segment);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        Self { bytes: bytes.into(), tcp: Some(Tcp { sack: None, ..tcp }) }
    }

    fn congestion_header(&self) -> Option<CongestionHeader> {
        Some(self.tcp?.congestion?.header)
    }

    /// Corrects the checksum by the difference; copies the packet only if others share it.
    fn with_feedback(mut self, feedback: i32) -> Self {
        let Some(Tcp { offset, congestion: Some(option), .. }) = &mut self.tcp else { return self };
        option.header.feedback = feedback;
        let Some(segment) = Arc::make_mut(&mut self.bytes).get_mut(usize::from(*offset)..) else {
            return self;
        };
        option.write_feedback(segment);
        self
    }
}

impl fmt::Debug for IpPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:?}", self.bytes.len(), self.tcp())
    }
}

impl Tcp {
    fn parse(packet: &[u8]) -> Option<Self> {
        let carried = carried_tcp(packet)?;
        let [source, destination] = addresses(packet)?;
        let segment = carried.segment;
        let header = segment.first_chunk::<TCP_HEADER>()?;
        let length = usize::from(header[12] >> 4) * 4;
        let options = segment.get(TCP_HEADER..length)?;
        if !is_intact([source, destination], segment) {
            return None;
        }
        let two = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let four = |at: usize| u32::from(two(at)) << 16 | u32::from(two(at + 2));
        Some(Self {
            source: (source, two(0)),
            destination: (destination, two(2)),
            seq: four(4),
            ack: four(8),
            payload: (segment.len() - length) as u32,
            window: two(14),
            flags: TcpFlags(header[13]),
            offset: carried.offset as u16,
            says_more: list(options).any(|(_, kind, value)| is_signal(kind, value)),
            sack: SackOption::find(options),
            congestion: CongestionOption::find(options),
        })
    }
}

/// The options of a header, up to the end of the list or to the first malformed one: where each begins, its
/// kind and its value.
fn list(options: &[u8]) -> impl Iterator<Item = (usize, u8, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        while *options.get(at)? == NO_OPERATION {
            at += 1;
        }
        let (start, kind) = (at, options[at]);
        if kind == END {
            return None;
        }
        at += usize::from(*options.get(at + 1)?);
        Some((start, kind, options.get(start + 2..at)?))
    })
}

fn is_signal(kind: u8, value: &[u8]) -> bool {
    let is_data_sequence =
        kind == MULTIPATH && value.first().is_some_and(|byte| byte >> 4 == DATA_SEQUENCE_SIGNAL);
    // Requests are for routers, and the next acknowledgement repeats the receiver's running total.
    let is_xcp = kind == EXPERIMENT && value.starts_with(&XCP);
    !(is_data_sequence || is_xcp || ADVICE.contains(&kind))
}

impl CongestionOption {
    /// The feedback in the option, after kind, length, the experiment's number, round-trip time and spacing.
    const FEEDBACK: Range<usize> = 12..CONGESTION_HEADER;

    /// The congestion header among all of a segment's options.
    fn find(options: &[u8]) -> Option<Self> {
        list(options).find_map(|(at, kind, value)| {
            let is_xcp =
                kind == EXPERIMENT && value.len() == CONGESTION_HEADER - 2 && value.starts_with(&XCP);
            let (fields, []) = value.get(XCP.len()..).filter(|_| is_xcp)?.as_chunks::<4>() else {
                return None;
            };
            let [rtt, spacing, feedback] = <[[u8; 4]; 3]>::try_from(fields).ok()?;
            let header = CongestionHeader {
                rtt: Duration::from_micros(u32::from_be_bytes(rtt).into()),
                spacing: Duration::from_nanos(u32::from_be_bytes(spacing).into()),
                feedback: i32::from_be_bytes(feedback),
            };
            Some(Self { offset: (TCP_HEADER + at) as u8, header })
        })
    }

    /// Writes its feedback into the segment.
    fn write_feedback(&self, segment: &mut [u8]) {
        let start = usize::from(self.offset) + Self::FEEDBACK.start;
        // The words of the checksum are aligned; options need not be.
        let words = start & !1..(start + 5) & !1;
        let before: [u8; 6] = padded(&segment[words.clone()]);
        segment[start..start + Self::FEEDBACK.len()].copy_from_slice(&self.header.feedback.to_be_bytes());
        let after = padded(&segment[words]);
        let checksum = corrected_checksum(u16::from_be_bytes([segment[16], segment[17]]), &before, &after);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// At most six bytes, padded with zeroes, which do not change a checksum.
fn padded(words: &[u8]) -> [u8; 6] {
    let mut padded = [0; 6];
    padded.iter_mut().zip(words).for_each(|(to, from)| *to = *from);
    padded
}

impl SackOption {
    /// The SACK option of a segment, if there is a well-formed one.
    fn find(options: &[u8]) -> Option<Self> {
        let (at, _, value) = list(options).find(|(_, kind, _)| *kind == SACK)?;
        Self::read(at, value)
    }

    fn read(at: usize, value: &[u8]) -> Option<Self> {
        let (edges, rest) = value.as_chunks::<8>();
        if edges.is_empty() || edges.len() > MAX_SACK_BLOCKS || !rest.is_empty() {
            return None;
        }
        let mut blocks = [(0, 0); MAX_SACK_BLOCKS];
        for (block, edges) in blocks.iter_mut().zip(edges) {
            let both = u64::from_be_bytes(*edges);
            *block = ((both >> 32) as u32, both as u32);
        }
        Some(Self { offset: (TCP_HEADER + at) as u8, count: edges.len() as u8, blocks })
    }

    fn range(&self) -> Range<usize> {
        let start = usize::from(self.offset);
        start..start + 2 + 8 * usize::from(self.count)
    }
}
