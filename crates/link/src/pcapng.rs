//! The file format pcapng (draft-ietf-opsawg-pcapng), which Wireshark and tcpdump read: IP packets without a
//! link-layer header on any number of interfaces, times in nanoseconds.
//!
//! A file is a [`section`], an [`interface`] for each interface, and a [`packet`] for each packet; at the
//! end, if wanted, the [`statistics`] of the interfaces. Each of these appends one block to bytes that the
//! caller writes wherever it wants. All numbers are little-endian.

use crate::Cause;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// The length of a section that ends with the file.
const UNKNOWN_LENGTH: u64 = u64::MAX;
/// Limit of the bytes captured of a packet; libpcap wants the same of all interfaces.
const SNAPSHOT_LENGTH: u32 = 65_535;
/// `if_tsresol`: 10⁻⁹ s.
const NANOSECONDS: u8 = 9;

/// The numbers of options. They count for their kind of block, [`END`] and [`COMMENT`] for all.
mod option {
    pub(super) const END: u16 = 0;
    pub(super) const COMMENT: u16 = 1;
    pub(super) const SECTION_APPLICATION: u16 = 4;
    pub(super) const INTERFACE_NAME: u16 = 2;
    pub(super) const INTERFACE_DESCRIPTION: u16 = 3;
    pub(super) const INTERFACE_SPEED: u16 = 8;
    pub(super) const INTERFACE_RESOLUTION: u16 = 9;
    pub(super) const PACKET_FLAGS: u16 = 2;
    pub(super) const STATISTICS_RECEIVED: u16 = 4;
    pub(super) const STATISTICS_INTERFACE_DROPS: u16 = 5;
    pub(super) const STATISTICS_SYSTEM_DROPS: u16 = 7;
}

/// What the packets of an interface begin with; of all interfaces of a file the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    /// A header of IPv4 or of IPv6. libpcap (1.10, and so tcpdump) reads it in files with one interface only:
    /// it compares the type of each further one with another number of the same type.
    Raw = 101,
    /// A header of IPv4.
    Ipv4 = 228,
}

/// An interface that packets are captured on. The first one of a file has the number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interface<'a> {
    /// What its packets begin with.
    pub link_type: LinkType,
    /// Its name, which Wireshark's `frame.interface_name` is compared with.
    pub name: &'a str,
    /// What it is, for people.
    pub description: &'a str,
    /// The rate of what it sends, in bit/s, if that is constant and known.
    pub speed: Option<u64>,
}

/// The way of a packet through its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heading {
    /// The host receives it.
    Inbound = 1,
    /// The host sends it.
    Outbound = 2,
}

/// A packet that was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The number of its interface.
    pub interface: u32,
    /// When, in nanoseconds since the beginning of 1970 or of a run.
    pub nanos: u64,
    /// Its way.
    pub heading: Heading,
    /// Its first bytes, at most 65,535, from the header of IP on.
    pub bytes: &'a [u8],
    /// How many bytes it had, at least those that were captured.
    pub length: usize,
    /// What there is to say about it, or nothing.
    pub comment: &'a str,
}

/// The counters of an interface at the end of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Packets that crossed the interface, both ways.
    pub received: u64,
    /// Packets that the interface had no room for.
    pub dropped: u64,
    /// Packets that are not in the file because it could not be written as fast as they came.
    pub missed: u64,
}

/// Appends what a file begins with. `application` is the name of the program that writes it.
pub fn section(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0.
        out.extend_from_slice(&[1, 0, 0, 0]);
        out.extend_from_slice(&UNKNOWN_LENGTH.to_le_bytes());
        text(out, option::SECTION_APPLICATION, application);
        end_of_options(out);
    });
}

/// Appends the description of the next interface.
pub fn interface(out: &mut Vec<u8>, interface: &Interface<'_>) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&(interface.link_type as u16).to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&SNAPSHOT_LENGTH.to_le_bytes());
        text(out, option::INTERFACE_NAME, interface.name);
        text(out, option::INTERFACE_DESCRIPTION, interface.description);
        if let Some(speed) = interface.speed {
            put(out, option::INTERFACE_SPEED, &speed.to_le_bytes());
        }
        put(out, option::INTERFACE_RESOLUTION, &[NANOSECONDS]);
        end_of_options(out);
    });
}

/// Appends a packet.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    let captured = &packet.bytes[..packet.bytes.len().min(SNAPSHOT_LENGTH as usize)];
    block(out, ENHANCED_PACKET, |out| {
        out.extend_from_slice(&packet.interface.to_le_bytes());
        time(out, packet.nanos);
        let length = u32::try_from(packet.length).unwrap_or(u32::MAX);
        out.extend_from_slice(&(captured.len() as u32).to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(captured);
        pad(out, captured.len());
        text(out, option::COMMENT, packet.comment);
        put(out, option::PACKET_FLAGS, &(packet.heading as u32).to_le_bytes());
        end_of_options(out);
    });
}

/// Appends the counters of the interface with this number. `nanos` is the time of the end.
pub fn statistics(out: &mut Vec<u8>, interface: u32, nanos: u64, statistics: &Statistics) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend_from_slice(&interface.to_le_bytes());
        time(out, nanos);
        put(out, option::STATISTICS_RECEIVED, &statistics.received.to_le_bytes());
        put(out, option::STATISTICS_INTERFACE_DROPS, &statistics.dropped.to_le_bytes());
        put(out, option::STATISTICS_SYSTEM_DROPS, &statistics.missed.to_le_bytes());
        end_of_options(out);
    });
}

/// The comment on a packet that its sender offers to a link which then loses it.
pub fn lost(cause: Cause) -> &'static str {
    match cause {
        Cause::QueueFull => "lost: queue full",
        Cause::Outage => "lost: outage",
        Cause::BurstError => "lost: burst error",
        Cause::PacketError => "lost: packet error",
    }
}

/// A block has its length before and behind its body.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    // No block here is longer than a packet and its options, 65,535 bytes each.
    let length = ((out.len() + 4 - start) as u32).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&length);
    out.extend_from_slice(&length);
}

/// The upper half of a time comes first.
fn time(out: &mut Vec<u8>, nanos: u64) {
    out.extend_from_slice(&((nanos >> 32) as u32).to_le_bytes());
    out.extend_from_slice(&(nanos as u32).to_le_bytes());
}

/// An option that is text; none if that is empty. Its end is cut off where it is longer than options can be.
fn text(out: &mut Vec<u8>, code: u16, value: &str) {
    if !value.is_empty() {
        let longest = value.len().min(usize::from(u16::MAX));
        let end = (0..=longest).rev().find(|&end| value.is_char_boundary(end)).unwrap_or(0);
        put(out, code, &value.as_bytes()[..end]);
    }
}

fn put(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn end_of_options(out: &mut Vec<u8>) {
    put(out, option::END, &[]);
}

/// Values are filled up with zeros to a multiple of four bytes.
fn pad(out: &mut Vec<u8>, length: usize) {
    out.resize(out.len() + length.wrapping_neg() % 4, 0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The blocks of a file: their kind and body.
    fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let length = word(file, 4) as usize;
            assert!(length.is_multiple_of(4) && length >= 12, "{length}");
            assert_eq!(word(file, length - 4) as usize, length, "before and behind");
            blocks.push((word(file, 0), &file[8..length - 4]));
            file = &file[length..];
        }
        blocks
    }

    /// The options of a block, without the end.
    fn options(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
        let mut options = Vec::new();
        loop {
            let (code, length) = (word(rest, 0) as u16, (word(rest, 0) >> 16) as usize);
            let padded = length.next_multiple_of(4);
            assert!(rest[4 + length..4 + padded].iter().all(|byte| *byte == 0));
            if code == option::END {
                assert_eq!((length, rest.len()), (0, 4));
                return options;
            }
            options.push((code, &rest[4..4 + length]));
            rest = &rest[4 + padded..];
        }
    }

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    #[test]
    fn a_file_begins_with_the_magic_numbers_and_version_1_0() {
        let mut file = Vec::new();
        section(&mut file, "bentpipe");
        let head = [0x0a, 0x0d, 0x0d, 0x0a, 44, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0];
        assert_eq!(file[..16], head);
        let [(SECTION_HEADER, body)] = blocks(&file)[..] else { panic!("{file:?}") };
        assert_eq!(options(&body[16..]), [(option::SECTION_APPLICATION, &b"bentpipe"[..])]);
    }

    #[test]
    fn an_interface_has_raw_ip_and_nanoseconds() {
        let mut file = Vec::new();
        let (link_type, speed) = (LinkType::Raw, Some(10_000_000));
        interface(&mut file, &Interface { link_type, name: "sat", description: "", speed });
        let [(INTERFACE_DESCRIPTION, body)] = blocks(&file)[..] else { panic!("{file:?}") };
        assert_eq!(body[..8], [101, 0, 0, 0, 0xff, 0xff, 0, 0]);
        let speed = 10_000_000u64.to_le_bytes();
        let expected = [
            (option::INTERFACE_NAME, &b"sat"[..]),
            (option::INTERFACE_SPEED, &speed),
            (option::INTERFACE_RESOLUTION, &[9]),
        ];
        assert_eq!(options(&body[8..]), expected);
    }

    #[test]
    fn the_counters_at_the_end_are_64_bits_each() {
        let mut file = Vec::new();
        statistics(&mut file, 3, 5, &Statistics { received: 1 << 40, dropped: 2, missed: 9 });
        let [(INTERFACE_STATISTICS, body)] = blocks(&file)[..] else { panic!("{file:?}") };
        assert_eq!([0, 4, 8].map(|at| word(body, at)), [3, 0, 5]);
        let numbers: Vec<u64> = options(&body[12..])
            .iter()
            .map(|(_, value)| u64::from_le_bytes(*value.first_chunk().unwrap()))
            .collect();
        assert_eq!(numbers, [1 << 40, 2, 9]);
    }

    #[test]
    fn text_that_is_too_long_for_an_option_ends_with_a_whole_character() {
        let mut file = Vec::new();
        let comment = "é".repeat(40_000);
        let link_type = LinkType::Ipv4;
        interface(&mut file, &Interface { link_type, name: &comment, description: "", speed: None });
        let [(_, body)] = blocks(&file)[..] else { panic!() };
        let (_, name) = options(&body[8..])[0];
        assert_eq!((name.len(), std::str::from_utf8(name)), (65_534, Ok(&comment[..65_534])));
    }

    /// A packet with its bytes and its comment.
    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Owned {
        interface: u32,
        nanos: u64,
        heading: Heading,
        bytes: Vec<u8>,
        length: usize,
        comment: String,
    }

    fn packets() -> impl Strategy<Value = Owned> {
        let heading = prop_oneof![Just(Heading::Inbound), Just(Heading::Outbound)];
        let bytes = prop::collection::vec(any::<u8>(), 0..70);
        (any::<(u32, u64)>(), heading, bytes, 0usize..9000, ".{0,9}").prop_map(
            |((interface, nanos), heading, bytes, more, comment)| {
                let length = bytes.len() + more;
                Owned { interface, nanos, heading, bytes, length, comment }
            },
        )
    }

    fn read(body: &[u8]) -> Owned {
        let captured = word(body, 12) as usize;
        let options = options(&body[20 + captured.next_multiple_of(4)..]);
        let value = |code| options.iter().find(|option| option.0 == code).map(|option| option.1);
        Owned {
            interface: word(body, 0),
            nanos: u64::from(word(body, 4)) << 32 | u64::from(word(body, 8)),
            heading: match value(option::PACKET_FLAGS) {
                Some([1, 0, 0, 0]) => Heading::Inbound,
                Some([2, 0, 0, 0]) => Heading::Outbound,
                flags => panic!("{flags:?}"),
            },
            bytes: body[20..20 + captured].to_vec(),
            length: word(body, 16) as usize,
            comment: String::from_utf8(value(option::COMMENT).unwrap_or_default().to_vec()).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn each_packet_comes_back_as_it_was(packets in prop::collection::vec(packets(), 0..5)) {
            let mut file = Vec::new();
            section(&mut file, "");
            for Owned { interface, nanos, heading, bytes, length, comment } in &packets {
                let (interface, nanos, heading, length) = (*interface, *nanos, *heading, *length);
                packet(&mut file, &Packet { interface, nanos, heading, bytes, length, comment });
            }
            let blocks = blocks(&file);
            prop_assert!(blocks[1..].iter().all(|(kind, _)| *kind == ENHANCED_PACKET));
            let found: Vec<Owned> = blocks[1..].iter().map(|(_, body)| read(body)).collect();
            prop_assert_eq!(found, packets);
        }
    }
}
