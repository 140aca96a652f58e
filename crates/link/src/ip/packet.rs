use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use super::checksum::tcp_checksum;
use super::{TCP_HEADER, addresses, carried_tcp, is_intact};
use crate::agent::{Packet, TcpFlags, TcpHeader};

/// As many SACK blocks as a header has room for (RFC 2018 §3).
const MAX_SACK_BLOCKS: usize = 4;
/// Kinds of TCP options (RFC 9293 §3.1, RFC 2018 §3).
const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const SACK: u8 = 5;

/// A packet of IPv4 or IPv6, its bytes and what agents need to know of them. Copies share the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct IpPacket {
    bytes: Arc<[u8]>,
    tcp: Option<Tcp>,
}

/// The header of a TCP segment whose checksum is right.
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
    sack: Option<SackOption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SackOption {
    /// Where in the segment the option begins, its kind included.
    offset: u8,
    count: u8,
    blocks: [(u32, u32); MAX_SACK_BLOCKS],
}

impl IpPacket {
    /// Any bytes: what is no whole, intact TCP segment is a packet that has no [`tcp`](Packet::tcp).
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

    /// Puts NOPs in the option's place and corrects the checksum.
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
            sack: SackOption::find(options),
        })
    }
}

impl SackOption {
    /// The SACK option among all of a segment's, if there is one and if it is well-formed.
    fn find(options: &[u8]) -> Option<Self> {
        let mut at = 0;
        loop {
            match *options.get(at)? {
                END => return None,
                NO_OPERATION => at += 1,
                kind => {
                    let length = usize::from(*options.get(at + 1)?);
                    let option = options.get(at..at + length).filter(|option| option.len() >= 2)?;
                    if kind == SACK {
                        return Self::read(at, &option[2..]);
                    }
                    at += length;
                }
            }
        }
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
