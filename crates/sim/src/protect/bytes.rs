//! A packet of virtual time as the bytes of an IPv4 packet, and back.
//!
//! ```text
//! │ IPv4 20 │ TCP header with its options │ noise 32, zeros      │
//! │ IPv4 20 │ UDP 8 │ number of the datagram 4 │ noise 32, zeros │
//! ```
//!
//! The packet is as long as its value says, so that headers shrink as those of real packets and overheads are
//! real ones. The noise differs from packet to packet, as what is encrypted does: where a protected leg looks
//! for what packets share, it finds none. Nothing of the value is kept elsewhere: addresses and ports hold the
//! endpoint that sent it, and a transport checksum that is not zero says that a bit is wrong. How many links it
//! has crossed follows from the path of the endpoint, and is not in the bytes.

use bentpipe_link::ip::internet_checksum;
use bentpipe_tcp::Segment;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::packet::{Datagram, Packet, Payload};

const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where the transport checksum lies behind the IP header (RFC 9293 §3.1, RFC 768).
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// Bytes of noise.
const NOISE: usize = 32;
/// In the place of a checksum that is wrong.
const WRONG: [u8; 2] = [0, 1];
const RIGHT: [u8; 2] = [0, 0];

/// The bytes of a packet. `identification` is that of its IPv4 header: Linux numbers the packets of a
/// connection, so that a compressed header has to carry it.
pub(super) fn write(packet: &Packet, identification: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(packet.ip_length());
    let (source, destination) = (Address::of(packet.from), Address::of(packet.from ^ 1));
    let (protocol, identification) = match packet.payload {
        Payload::Tcp(_) => (TCP, identification),
        Payload::Udp(_) => (UDP, 0),
    };
    bytes.extend_from_slice(&[0x45, 0]);
    bytes.extend_from_slice(&(packet.ip_length() as u16).to_be_bytes());
    bytes.extend_from_slice(&identification.to_be_bytes());
    bytes.extend_from_slice(&[0x40, 0, 64, protocol, 0, 0]);
    bytes.extend_from_slice(&source.host);
    bytes.extend_from_slice(&destination.host);
    let sum = internet_checksum(&bytes).to_be_bytes();
    bytes[10..12].copy_from_slice(&sum);
    let checksum = match packet.payload {
        Payload::Tcp(segment) => {
            segment.encode_header(source.port, destination.port, &mut bytes);
            TCP_CHECKSUM
        }
        Payload::Udp(Datagram { number, ip_bytes }) => {
            let length = ip_bytes - IPV4_HEADER as u16;
            for field in [source.port, destination.port, length, 0] {
                bytes.extend_from_slice(&field.to_be_bytes());
            }
            bytes.extend_from_slice(&number.to_be_bytes());
            UDP_CHECKSUM
        }
    };
    if packet.corrupted {
        bytes[IPV4_HEADER + checksum..][..2].copy_from_slice(&WRONG);
    }
    debug_assert!(bytes.len() <= packet.ip_length(), "{packet:?}");
    let number = match packet.payload {
        Payload::Tcp(segment) => segment.seq,
        Payload::Udp(Datagram { number, .. }) => number,
    };
    let room = packet.ip_length() - bytes.len();
    let mut noise = [0; NOISE];
    SplitMix64::seed_from_u64(number.into()).fill_bytes(&mut noise);
    bytes.extend_from_slice(&noise[..room.min(NOISE)]);
    bytes.resize(packet.ip_length(), 0);
    bytes
}

/// The packet of these bytes, which has crossed no link yet; `None` for what [`write`] does not make.
pub(super) fn read(bytes: &[u8]) -> Option<Packet> {
    let header = bytes.first_chunk::<IPV4_HEADER>()?;
    let transport = &bytes[IPV4_HEADER..];
    let port = u16::from_be_bytes(*transport.first_chunk()?);
    let from = Address { host: [header[12], header[13], header[14], header[15]], port }.endpoint();
    let (payload, checksum) = match header[9] {
        TCP => (Payload::Tcp(Segment::decode(transport).ok()?), TCP_CHECKSUM),
        UDP => {
            let number = u32::from_be_bytes(*transport.get(UDP_HEADER..)?.first_chunk()?);
            let ip_bytes = u16::try_from(bytes.len()).ok()?;
            (Payload::Udp(Datagram { number, ip_bytes }), UDP_CHECKSUM)
        }
        _ => return None,
    };
    let corrupted = transport.get(checksum..checksum + 2)? != RIGHT;
    Some(Packet { payload, from, hop: 0, corrupted })
}

/// Where an endpoint is: each has an address and a port of its own.
struct Address {
    host: [u8; 4],
    port: u16,
}

impl Address {
    fn of(endpoint: u32) -> Self {
        let [high, low, port @ ..] = endpoint.to_be_bytes();
        Self { host: [10, 0, high, low], port: u16::from_be_bytes(port) }
    }

    fn endpoint(&self) -> u32 {
        let [high, low] = self.port.to_be_bytes();
        u32::from_be_bytes([self.host[2], self.host[3], high, low])
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_protect::header::Template;
    use bentpipe_tcp::{CongestionOption, Flags, SackBlocks, SynOptions, Timestamps};
    use proptest::prelude::*;

    use super::*;

    fn segments() -> impl Strategy<Value = Segment> {
        let numbers = (any::<(u32, u32, u16, u32, u32)>(), 0u32..1400);
        (numbers, any::<(bool, bool)>(), prop::collection::vec(any::<(u32, u32)>(), 0..=3)).prop_map(
            |(((seq, ack, window, value, echo), len), (is_syn, stamped), blocks)| {
                let mut segment = Segment { seq, ack, window, flags: Flags::ACK, ..Segment::default() };
                segment.timestamps = stamped.then_some(Timestamps { value, echo });
                if is_syn {
                    let syn = SynOptions { mss: Some(1386), window_scale: Some(7), sack_permitted: true };
                    return Segment { flags: Flags::SYN, syn: Some(syn), ..segment };
                }
                let mut sack = SackBlocks::default();
                blocks.iter().for_each(|&(first, end)| sack.push(first, end));
                if blocks.is_empty() {
                    segment.congestion =
                        CongestionOption::Request { rtt: value, spacing: echo, feedback: -7 };
                }
                Segment { len, sack, ..segment }
            },
        )
    }

    fn packets() -> impl Strategy<Value = Packet> {
        let datagram = (any::<u32>(), crate::scenario::UDP_PACKET)
            .prop_map(|(number, ip_bytes)| Payload::Udp(Datagram { number, ip_bytes }));
        (prop_oneof![segments().prop_map(Payload::Tcp), datagram], any::<u32>(), any::<bool>())
            .prop_map(|(payload, from, corrupted)| Packet { payload, from, hop: 0, corrupted })
    }

    proptest! {
        #[test]
        fn a_packet_comes_back_from_its_bytes_and_its_header_can_be_compressed(packet in packets(), id in 1u16..) {
            let bytes = write(&packet, id);
            prop_assert_eq!(bytes.len(), packet.ip_length());
            prop_assert!(Template::of(&bytes).is_some());
            prop_assert_eq!(read(&bytes), Some(packet));
        }

        #[test]
        fn any_bytes_are_a_packet_or_none(bytes: Vec<u8>, protocol in prop::sample::select(&[TCP, UDP, 1][..])) {
            let mut bytes = bytes;
            if let Some(field) = bytes.get_mut(9) { *field = protocol }
            let _ = read(&bytes);
        }
    }

    #[test]
    fn endpoints_differ_in_address_or_port() {
        for endpoint in [0, 1, 2, 65_535, 65_536, 20_000_001, u32::MAX] {
            assert_eq!(Address::of(endpoint).endpoint(), endpoint);
        }
    }
}
