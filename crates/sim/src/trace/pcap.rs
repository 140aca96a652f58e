//! Packets for Wireshark and tcpdump: IPv4 and TCP headers with valid checksums over a payload of zeros,
//! which is not captured.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use bentpipe_link::{Fate, pcap};

use super::TraceError;
use crate::observer::OfferedPacket;

const IPV4_HEADER: usize = 20;
const TCP: u8 = 6;
const CLIENT_PORT: u16 = 40_000;
const SERVER_PORT: u16 = 80;

/// The packets of one link.
#[derive(Debug)]
pub(super) struct Capture {
    path: PathBuf,
    file: BufWriter<File>,
    packet: Vec<u8>,
}

impl Capture {
    pub(super) fn create(path: PathBuf) -> Result<Self, TraceError> {
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&pcap::file_header())?;
            Ok(BufWriter::new(file))
        });
        match written {
            Ok(file) => Ok(Self { path, file, packet: Vec::with_capacity(100) }),
            Err(source) => Err(TraceError { path, source }),
        }
    }

    /// Writes a packet that is delivered, with the time at which it entered the link. A dropped packet was on
    /// no wire.
    pub(super) fn packet(&mut self, offered: &OfferedPacket<'_>) -> Result<(), TraceError> {
        if matches!(offered.fate, Fate::Drop(_)) {
            return Ok(());
        }
        self.packet.clear();
        headers(offered, &mut self.packet);
        let record =
            pcap::record_header(offered.now.as_nanos(), self.packet.len(), offered.segment.ip_length());
        let written = self.file.write_all(&record).and_then(|()| self.file.write_all(&self.packet));
        written.map_err(|source| TraceError { path: self.path.clone(), source })
    }

    pub(super) fn flush(&mut self) -> Result<(), TraceError> {
        self.file.flush().map_err(|source| TraceError { path: self.path.clone(), source })
    }
}

/// An endpoint's address: 10.0.0.0/8 with its number.
fn address(endpoint: usize) -> [u8; 4] {
    let [_, a, b, c] = (endpoint as u32).to_be_bytes();
    [10, a, b, c]
}

fn port(endpoint: usize) -> u16 {
    if endpoint.is_multiple_of(2) { CLIENT_PORT } else { SERVER_PORT }
}

fn headers(offered: &OfferedPacket<'_>, packet: &mut Vec<u8>) {
    let (from, to) = (offered.endpoint, offered.endpoint ^ 1);
    let length = offered.segment.ip_length() as u16;
    packet.extend_from_slice(&[0x45, 0]);
    packet.extend_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0x40, 0, 64, TCP, 0, 0]);
    packet.extend_from_slice(&address(from));
    packet.extend_from_slice(&address(to));
    let sum = fold(sum_of(packet));
    packet[10..12].copy_from_slice(&(!sum).to_be_bytes());

    offered.segment.encode_header(port(from), port(to), packet);
    let tcp_length = u32::from(length) - IPV4_HEADER as u32;
    let pseudo = sum_of(&address(from)) + sum_of(&address(to)) + u32::from(TCP) + tcp_length;
    // The payload is zeros, which add nothing.
    let sum = fold(pseudo + sum_of(&packet[IPV4_HEADER..]));
    packet[IPV4_HEADER + 16..IPV4_HEADER + 18].copy_from_slice(&(!sum).to_be_bytes());
}

/// RFC 1071.
fn sum_of(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use bentpipe_tcp::{Flags, SackBlocks, Segment, Timestamps};
    use bentpipe_units::Time;

    use super::*;

    fn packet(len: u32) -> Vec<u8> {
        let mut sack = SackBlocks::default();
        sack.push(7, 11);
        let timestamps = Some(Timestamps { value: 0xdead_beef, echo: 5 });
        let (seq, ack, flags) = (u32::MAX, 12, Flags::ACK);
        let segment = Segment { seq, ack, len, window: 99, flags, timestamps, sack, ..Segment::default() };
        let fate = Fate::Deliver { at: Time::ZERO };
        let (now, link, forward, flow, endpoint) = (Time::ZERO, 0, true, 0, 259);
        let offered = OfferedPacket { now, link, forward, flow, endpoint, segment: &segment, fate };
        let mut packet = Vec::new();
        headers(&offered, &mut packet);
        packet
    }

    #[test]
    fn both_checksums_are_right() {
        for len in [0, 1, 1448] {
            let packet = packet(len);
            assert_eq!(fold(sum_of(&packet[..IPV4_HEADER])), 0xffff);
            let tcp_length = packet.len() as u32 - IPV4_HEADER as u32 + len;
            let pseudo = sum_of(&packet[12..20]) + u32::from(TCP) + tcp_length;
            assert_eq!(
                fold(pseudo + sum_of(&packet[IPV4_HEADER..])),
                0xffff,
                "{len} bytes of zeros behind it"
            );
        }
    }

    #[test]
    fn addresses_are_the_endpoints_numbers_and_the_length_counts_the_payload_left_out() {
        let packet = packet(1000);
        assert_eq!(packet[12..20], [10, 0, 1, 3, 10, 0, 1, 2]);
        assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len() + 1000);
        assert_eq!(packet[IPV4_HEADER + 4..IPV4_HEADER + 8], u32::MAX.to_be_bytes());
    }
}
