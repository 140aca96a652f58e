//! Parsing a SYN.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bentpipe_link::ip::{Carried, addresses, carried_tcp, is_intact};

/// The header of TCP without options, in bytes.
const TCP_HEADER: usize = 20;
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
    /// The initial sequence number. A SYN that is repeated has that of the first, a new connection has
    /// another.
    pub(crate) isn: u32,
}

impl Syn {
    /// Reads a packet that begins with its IP header. `None` for everything that is not a whole, intact SYN
    /// between addresses of one host each, and for IPv6 with extension headers.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let Carried { dscp, segment, .. } = carried_tcp(packet)?;
        let [source, destination] = addresses(packet)?;
        let header = segment.first_chunk::<TCP_HEADER>()?;
        let length = usize::from(header[12] >> 4) * 4;
        let is_syn = header[13] & FIN_SYN_RST_ACK == SYN && (TCP_HEADER..=segment.len()).contains(&length);
        let is_intact = is_intact([source, destination], segment);
        let client = SocketAddr::new(source, u16::from_be_bytes([header[0], header[1]]));
        let server = SocketAddr::new(destination, u16::from_be_bytes([header[2], header[3]]));
        let isn = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let are_hosts = [client, server].iter().all(|end| is_host(end.ip()) && end.port() != 0);
        (is_syn && is_intact && are_hosts).then_some(Self { client, server, dscp, isn })
    }
}

/// Whether a packet is between two hosts. Packets that the kernel itself sends on a device, such as an
/// MLD report (RFC 3810 §5.2), are not.
pub(crate) fn is_between_hosts(packet: &[u8]) -> bool {
    addresses(packet).is_some_and(|addresses| addresses.into_iter().all(is_host))
}

/// Whether the address is that of a single host other than this one.
fn is_host(address: IpAddr) -> bool {
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || is_broadcast)
}

#[cfg(test)]
mod tests;
