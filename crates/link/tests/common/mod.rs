//! TCP segments as bytes, for tests and benchmarks of what reads them.
#![allow(dead_code, reason = "each test uses some of it")]

use std::net::Ipv4Addr;

use bentpipe_link::ip::internet_checksum;

/// A segment of IPv4 without IP options.
#[derive(Debug, Clone)]
pub(crate) struct Segment<'a> {
    pub(crate) source: (Ipv4Addr, u16),
    pub(crate) destination: (Ipv4Addr, u16),
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// Selective acknowledgements; they stand behind two NOPs.
    pub(crate) sack: &'a [(u32, u32)],
    /// Payload bytes, all zeroes.
    pub(crate) payload: usize,
}

impl Segment<'_> {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if !self.sack.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * self.sack.len() as u8]);
            for (first, end) in self.sack {
                options.extend(first.to_be_bytes());
                options.extend(end.to_be_bytes());
            }
        }
        let mut tcp = Vec::new();
        tcp.extend(self.source.1.to_be_bytes());
        tcp.extend(self.destination.1.to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(((20 + options.len()) / 4) << 4) as u8, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(std::iter::repeat_n(0, self.payload));
        let checksum = self.checksum(&tcp);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());

        let mut packet = vec![0x45, 0];
        packet.extend(((20 + tcp.len()) as u16).to_be_bytes());
        packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        packet.extend(self.source.0.octets());
        packet.extend(self.destination.0.octets());
        let checksum = internet_checksum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(tcp);
        packet
    }

    fn checksum(&self, tcp: &[u8]) -> u16 {
        let mut covered = Vec::new();
        covered.extend(self.source.0.octets());
        covered.extend(self.destination.0.octets());
        covered.extend([0, 6]);
        covered.extend((tcp.len() as u16).to_be_bytes());
        covered.extend(tcp);
        internet_checksum(&covered)
    }
}
