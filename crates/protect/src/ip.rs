//! What is read of the IP packets inside, and the one thing that is changed: their ECN field.

use std::hash::Hasher;

/// The protocol numbers whose headers begin with two ports, or with an SPI (RFC 4303 §2): four bytes that
/// do not change within a flow. TCP, UDP, DCCP, ESP, SCTP, UDP-Lite.
const PROTOCOLS_WITH_PORTS: [u8; 6] = [6, UDP, 33, 50, 132, 136];
/// UDP.
pub(crate) const UDP: u8 = 17;
/// Bytes of an IPv4 header without options.
pub(crate) const IPV4_HEADER: usize = 20;
/// Bytes of an IPv6 header.
pub(crate) const IPV6_HEADER: usize = 40;
/// The bits of ECN in the traffic class (RFC 3168 §5), and what "congestion experienced" is.
const ECN: u8 = 0b11;

/// What identifies the flow of a packet: addresses, protocol, and ports or SPI where they can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow<'a> {
    /// Source and destination.
    addresses: &'a [u8],
    protocol: u8,
    /// Empty for fragments, and for protocols without ports or SPI.
    ports: &'a [u8],
}

impl<'a> Flow<'a> {
    /// `None` for what is no IP packet.
    ///
    /// IPv6 extension headers are not walked through: their packets belong to the flow of their addresses.
    /// Nor are ports of fragments read, of which only the first has any.
    pub(crate) fn of(packet: &'a [u8]) -> Option<Self> {
        let (addresses, protocol, header) = match packet.first()? >> 4 {
            4 => {
                let header = usize::from(packet[0] & 15) * 4;
                let fixed = packet.first_chunk::<IPV4_HEADER>().filter(|_| header >= IPV4_HEADER)?;
                let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
                (&packet[12..20], fixed[9], if fragment { packet.len() } else { header })
            }
            6 => {
                let fixed = packet.first_chunk::<IPV6_HEADER>()?;
                (&packet[8..40], fixed[6], IPV6_HEADER)
            }
            _ => return None,
        };
        let ports = if has_ports(protocol) { packet.get(header..header + 4) } else { None };
        Some(Self { addresses, protocol, ports: ports.unwrap_or_default() })
    }

    /// A hash that those who do not know the seed cannot predict (SipHash, whose key the seed is part of).
    pub(crate) fn hash(&self, seed: u64) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write_u64(seed);
        hasher.write(self.addresses);
        hasher.write_u8(self.protocol);
        hasher.write(self.ports);
        hasher.finish()
    }
}

/// Whether the first four bytes behind the IP header are ports or an SPI.
pub(crate) fn has_ports(protocol: u8) -> bool {
    PROTOCOLS_WITH_PORTS.contains(&protocol)
}

/// Whether the sender of a packet understands marks (RFC 3168 §5): its field says ECT(0), ECT(1) or CE.
pub(crate) fn can_be_marked(packet: &[u8]) -> bool {
    match packet.first().map(|first| first >> 4) {
        Some(4) => packet.len() >= IPV4_HEADER && packet[1] & ECN != 0,
        // The traffic class lies across the first two bytes.
        Some(6) => packet.len() >= IPV6_HEADER && packet[1] >> 4 & ECN != 0,
        _ => false,
    }
}

/// Marks a packet "congestion experienced" if its sender understands that. Whether it does.
pub(crate) fn mark(packet: &mut [u8]) -> bool {
    let can = can_be_marked(packet);
    match packet.first().map(|first| first >> 4) {
        Some(4) if can => {
            let before = u16::from_be_bytes([packet[0], packet[1]]);
            packet[1] |= ECN;
            let after = u16::from_be_bytes([packet[0], packet[1]]);
            let checksum = u16::from_be_bytes([packet[10], packet[11]]);
            packet[10..12].copy_from_slice(&updated_checksum(checksum, before, after).to_be_bytes());
        }
        Some(6) if can => packet[1] |= ECN << 4,
        _ => {}
    }
    can
}

/// A checksum after one word has changed (RFC 1624 §3, equation 3).
fn updated_checksum(checksum: u16, before: u16, after: u16) -> u16 {
    !folded(u32::from(!checksum) + u32::from(!before) + u32::from(after))
}

fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of an IPv4 header (RFC 791 §3.1), whose own field counts as it is: 0 for one that is to be
/// filled in; the result is 0 for one that is right.
pub(crate) fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    !folded(words.sum())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 packet with UDP, whose don't-fragment bit is set.
    pub(crate) fn ipv4_udp(source_port: u16, ecn: u8, payload: &[u8]) -> Vec<u8> {
        let length = (28 + payload.len()) as u16;
        let mut packet = vec![0x45, ecn];
        packet.extend_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(&[0, 0, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let checksum = checksum(&packet);
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        packet.extend_from_slice(&source_port.to_be_bytes());
        packet.extend_from_slice(&443u16.to_be_bytes());
        packet.extend_from_slice(&(length - 20).to_be_bytes());
        packet.extend_from_slice(&[0xab, 0xcd]);
        packet.extend_from_slice(payload);
        packet
    }

    /// An IPv6 packet with UDP.
    pub(crate) fn ipv6_udp(source_port: u16, ecn: u8, payload: &[u8]) -> Vec<u8> {
        let length = (8 + payload.len()) as u16;
        let mut packet = vec![0x60, ecn << 4 | 7, 0x12, 0x34];
        packet.extend_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(&[UDP, 63]);
        packet.extend_from_slice(&[0x20; 16]);
        packet.extend_from_slice(&[0x30; 16]);
        packet.extend_from_slice(&source_port.to_be_bytes());
        packet.extend_from_slice(&443u16.to_be_bytes());
        packet.extend_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(&[0xab, 0xcd]);
        packet.extend_from_slice(payload);
        packet
    }

    #[test]
    fn flows_differ_by_ports_or_spi_and_fragments_by_addresses_alone() {
        let hash = |packet: &[u8]| Flow::of(packet).unwrap().hash(5);
        for udp in [ipv4_udp, ipv6_udp] {
            assert_eq!(hash(&udp(1, 0, b"a")), hash(&udp(1, 2, b"bc")));
            assert_ne!(hash(&udp(1, 0, b"a")), hash(&udp(2, 0, b"a")));
            assert_ne!(hash(&udp(1, 0, b"a")), Flow::of(&udp(1, 0, b"a")).unwrap().hash(6));
        }
        let changed = |at: usize, to: u8, port| {
            let mut packet = ipv4_udp(port, 0, b"a");
            packet[at] = to;
            packet
        };
        assert_eq!(hash(&changed(7, 9, 1)), hash(&changed(6, 0x20, 2)), "fragments");
        assert_ne!(hash(&changed(9, 50, 1)), hash(&changed(9, 50, 2)), "SPI");
        assert_eq!(hash(&changed(9, 1, 1)), hash(&changed(9, 1, 2)), "ICMP");
        for none in [&[][..], &[0x45; 19], &[0x60; 39], &[0x44; 40], &[0x12; 60]] {
            assert_eq!(Flow::of(none), None);
        }
    }

    #[test]
    fn only_what_is_capable_is_marked() {
        for ecn in 0..4 {
            let mut packet = ipv6_udp(1, ecn, b"x");
            assert_eq!(mark(&mut packet), ecn != 0);
            assert_eq!(packet, ipv6_udp(1, if ecn == 0 { 0 } else { 3 }, b"x"));
        }
        assert!(!mark(&mut []) && !mark(&mut [0x45, 1]) && !mark(&mut [0x60, 0x30]));
    }

    proptest! {
        /// Against a checksum that is calculated anew.
        #[test]
        fn the_checksum_is_right_after_marking(header: [u8; 18], ecn in 0u8..4) {
            let mut packet = vec![0x45, header[0] & !ECN | ecn];
            packet.extend_from_slice(&header);
            packet[10..12].fill(0);
            let right = checksum(&packet);
            packet[10..12].copy_from_slice(&right.to_be_bytes());
            prop_assert_eq!(mark(&mut packet), ecn != 0);
            prop_assert_eq!(packet[1] & ECN, if ecn == 0 { 0 } else { ECN });
            prop_assert_eq!(checksum(&packet), 0);
        }
    }
}
