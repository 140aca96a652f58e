//! The SYN as it comes from the device: who wants to speak to whom.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The header of IPv4 without options, of IPv6, and of TCP without options, in bytes.
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
/// The protocol number of TCP.
const TCP: u8 = 6;
/// Bits of the TCP header's flags (RFC 9293 §3.1).
const SYN: u8 = 0x02;
const FIN_SYN_RST_ACK: u8 = 0x17;

/// A client's wish to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Syn {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The differentiated services code point.
    pub(crate) dscp: u8,
    /// The initial sequence number. A SYN that is repeated has that of the first, a new connection has another.
    pub(crate) isn: u32,
}

/// What the IP header says besides the addresses.
struct Carried<'a> {
    dscp: u8,
    segment: &'a [u8],
}

impl Syn {
    /// Reads a packet that begins with its IP header. `None` for everything that is not a whole, intact SYN between
    /// addresses of one host each, and for IPv6 with extension headers.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let carried = match packet.first()? >> 4 {
            4 => ipv4(packet)?,
            6 => ipv6(packet)?,
            _ => return None,
        };
        let Carried { dscp, segment } = carried;
        let [source, destination] = addresses(packet)?;
        let header = segment.first_chunk::<TCP_HEADER>()?;
        let length = usize::from(header[12] >> 4) * 4;
        let is_syn = header[13] & FIN_SYN_RST_ACK == SYN && (TCP_HEADER..=segment.len()).contains(&length);
        let is_intact = sum([pseudo_header(source, destination, segment.len()), add(0, segment)]) == u16::MAX;
        let client = SocketAddr::new(source, u16::from_be_bytes([header[0], header[1]]));
        let server = SocketAddr::new(destination, u16::from_be_bytes([header[2], header[3]]));
        let isn = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let are_hosts = [client, server].iter().all(|end| is_host(end.ip()) && end.port() != 0);
        (is_syn && is_intact && are_hosts).then_some(Self { client, server, dscp, isn })
    }
}

/// Whether a packet has come from somewhere and goes elsewhere. What the kernel itself has to say on a device, such as an
/// MLD report (RFC 3810 §5.2), has not.
pub(crate) fn is_between_hosts(packet: &[u8]) -> bool {
    addresses(packet).is_some_and(|addresses| addresses.into_iter().all(is_host))
}

/// Gives a packet the hop back that its way into the device has taken from its time to live: when it goes on from here it
/// has made one hop, through one router.
pub(crate) fn restore_hop(packet: &mut [u8]) {
    match packet.first().map(|byte| byte >> 4) {
        Some(4) => {
            let length = usize::from(packet[0] & 15) * 4;
            if let Some(header) = packet.get_mut(..length).filter(|header| header.len() >= IPV4_HEADER) {
                header[8] = header[8].saturating_add(1);
                header[10..12].fill(0);
                let checksum = !sum([add(0, header)]);
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
        }
        Some(6) if packet.len() >= IPV6_HEADER => packet[7] = packet[7].saturating_add(1),
        _ => {}
    }
}

/// The source and the destination, in either family.
fn addresses(packet: &[u8]) -> Option<[IpAddr; 2]> {
    let four = |at: usize| packet.get(at..)?.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes));
    let six = |at: usize| packet.get(at..)?.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes));
    match packet.first()? >> 4 {
        4 => Some([four(12)?, four(16)?]),
        6 => Some([six(8)?, six(24)?]),
        _ => None,
    }
}

/// RFC 791 §3.1; the header's checksum is not looked at, for the kernel has done so and has written a new one.
fn ipv4(packet: &[u8]) -> Option<Carried<'_>> {
    let header = packet.first_chunk::<IPV4_HEADER>()?;
    let length = usize::from(header[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    // More fragments, or an offset.
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    if length < IPV4_HEADER || is_fragment || header[9] != TCP {
        return None;
    }
    Some(Carried { dscp: header[1] >> 2, segment: packet.get(length..total)? })
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
        segment: packet.get(IPV6_HEADER..IPV6_HEADER + length)?,
    })
}

/// Nobody connects in the name of an address that is nobody's, everybody's or this host's alone.
fn is_host(address: IpAddr) -> bool {
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast)
}

/// What the checksum of TCP covers besides the segment (RFC 9293 §3.1).
fn pseudo_header(source: IpAddr, destination: IpAddr, length: usize) -> u32 {
    let addresses = [source, destination].iter().fold(0, |sum, address| match address {
        IpAddr::V4(address) => add(sum, &address.octets()),
        IpAddr::V6(address) => add(sum, &address.octets()),
    });
    addresses + u32::from(TCP) + length as u32
}

/// Adds 16-bit words; below 64 KiB of them cannot overflow 32 bits.
fn add(sum: u32, bytes: &[u8]) -> u32 {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| low.into()));
    sum + words.sum::<u32>()
}

/// The one's complement sum of the Internet checksum (RFC 1071 §1).
fn sum<const N: usize>(parts: [u32; N]) -> u16 {
    let mut sum: u32 = parts.iter().map(|part| (part & 0xffff) + (part >> 16)).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
