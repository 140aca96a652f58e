//! Real packets: bytes that begin with the header of IPv4 or IPv6.

mod checksum;
mod header;
mod packet;

pub use checksum::{complete_checksum, internet_checksum, is_intact, overwrite_tcp};
pub use header::{Carried, addresses, carried_tcp, restore_hop};
pub use packet::IpPacket;

/// The header of IPv4 without options, of IPv6, and of TCP without options, in bytes.
pub(crate) const IPV4_HEADER: usize = 20;
pub(crate) const IPV6_HEADER: usize = 40;
pub(crate) const TCP_HEADER: usize = 20;
/// The protocol number of TCP.
pub(crate) const TCP: u8 = 6;
