//! The IP header.

use std::net::IpAddr;

use super::{IPV4_HEADER, IPV6_HEADER, TCP, internet_checksum};

/// A TCP segment in its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried<'a> {
    /// The differentiated services code point.
    pub dscp: u8,
    /// The offset of the segment in the packet.
    pub offset: usize,
    /// The segment. It is not checked.
    pub segment: &'a [u8],
}

/// The source and the destination, in either family. `None` for packets of no IP version.
pub fn addresses(packet: &[u8]) -> Option<[IpAddr; 2]> {
    let four = |at: usize| packet.get(at..)?.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes));
    let six = |at: usize| packet.get(at..)?.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes));
    match packet.first()? >> 4 {
        4 => Some([four(12)?, four(16)?]),
        6 => Some([six(8)?, six(24)?]),
        _ => None,
    }
}

/// The TCP segment that a packet carries. `None` for other protocols, for fragments, for packets that are cut
/// off, and for IPv6 with extension headers.
pub fn carried_tcp(packet: &[u8]) -> Option<Carried<'_>> {
    match packet.first()? >> 4 {
        4 => ipv4(packet),
        6 => ipv6(packet),
        _ => None,
    }
}

/// Restores the hop that a router has subtracted from the time to live.
pub fn restore_hop(packet: &mut [u8]) {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => {
            let length = usize::from(packet[0] & 15) * 4;
            if let Some(header) = packet.get_mut(..length).filter(|header| header.len() >= IPV4_HEADER) {
                header[8] = header[8].saturating_add(1);
                header[10..12].fill(0);
                let checksum = internet_checksum(header);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
        }
        Some(6) if packet.len() >= IPV6_HEADER => packet[7] = packet[7].saturating_add(1),
        _ => {}
    }
}

/// RFC 791 §3.1. The header's checksum is not verified: hosts do so, and the checksum of TCP covers the
/// fields used here.
fn ipv4(packet: &[u8]) -> Option<Carried<'_>> {
    let header = packet.first_chunk::<IPV4_HEADER>()?;
    let offset = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // More fragments, or an offset.
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if offset < IPV4_HEADER || is_fragment || header[9] != TCP {
        return None;
    }
    Some(Carried { dscp: header[1] >> 2, offset, segment: packet.get(offset..total)? })
}

/// RFC 8200 §3.
fn ipv6(packet: &[u8]) -> Option<Carried<'_>> {
    let header = packet.first_chunk::<IPV6_HEADER>()?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[6] != TCP {
        return None;
    }
    Some(Carried {
        dscp: (u16::from_be_bytes([header[0], header[1]]) >> 6 & 63) as u8,
        offset: IPV6_HEADER,
        segment: packet.get(IPV6_HEADER..IPV6_HEADER + length)?,
    })
}
