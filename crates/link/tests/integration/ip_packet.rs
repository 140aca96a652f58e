//! Real packets as agents see them.

use std::net::IpAddr;
use std::time::Duration;

use bentpipe_link::IpPacket;
use bentpipe_link::agent::{CongestionHeader, Packet, TcpFlags, TcpHeader};
use bentpipe_link::ip::{carried_tcp, internet_checksum, is_intact};
use proptest::prelude::*;

const TCP: u8 = 6;
/// Two SACK blocks behind two NOPs, as Linux sends them.
const SACK_OPTIONS: [u8; 20] =
    [1, 1, 5, 18, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 9];
const SACK_BLOCKS: [(u32, u32); 2] = [(0x1000, 0x2000), (0xffff_fff0, 9)];
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
/// 600 ms, a segment every 1.2 ms, and 50,000 bytes per second more for this one.
const CONGESTION: [u8; 16] = [254, 16, 0x42, 0x50, 0, 9, 0x27, 0xc0, 0, 0x12, 0x4f, 0x80, 0, 0, 0xc3, 0x50];

/// What a segment and its packet are made of.
#[derive(Debug, Clone)]
struct Recipe {
    is_ipv6: bool,
    ip_options: Vec<u8>,
    tcp_options: Vec<u8>,
    payload: Vec<u8>,
}

impl Recipe {
    fn ipv4() -> Self {
        Self { is_ipv6: false, ip_options: Vec::new(), tcp_options: Vec::new(), payload: Vec::new() }
    }

    fn ipv6() -> Self {
        Self { is_ipv6: true, ..Self::ipv4() }
    }

    fn options(self, tcp_options: &[u8]) -> Self {
        Self { tcp_options: tcp_options.to_vec(), ..self }
    }

    fn payload(self, payload: &[u8]) -> Self {
        Self { payload: payload.to_vec(), ..self }
    }

    fn source(&self) -> IpAddr {
        if self.is_ipv6 { "2001:db8::1".parse().unwrap() } else { "192.0.2.1".parse().unwrap() }
    }

    fn destination(&self) -> IpAddr {
        if self.is_ipv6 { "2001:db8::2".parse().unwrap() } else { "198.51.100.2".parse().unwrap() }
    }

    /// Where the segment begins.
    fn offset(&self) -> usize {
        if self.is_ipv6 { 40 } else { 20 + self.ip_options.len() }
    }

    fn addresses(&self) -> Vec<u8> {
        let octets = |address| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        [octets(self.source()), octets(self.destination())].concat()
    }

    fn segment(&self) -> Vec<u8> {
        let mut segment = vec![0; 20];
        segment[..4].copy_from_slice(&[0x12, 0x34, 0, 80]);
        segment[4..8].copy_from_slice(&0xdead_beef_u32.to_be_bytes());
        segment[8..12].copy_from_slice(&0x0102_0304_u32.to_be_bytes());
        segment[12] = ((20 + self.tcp_options.len()) as u8) << 2;
        segment[13] = 0x18;
        segment[14..16].copy_from_slice(&4321u16.to_be_bytes());
        segment.extend(&self.tcp_options);
        segment.extend(&self.payload);
        let pseudo_header =
            [self.addresses(), vec![0, TCP], (segment.len() as u16).to_be_bytes().to_vec()].concat();
        let checksum = internet_checksum(&[&pseudo_header[..], &segment].concat());
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        segment
    }

    fn bytes(&self) -> Vec<u8> {
        let segment = self.segment();
        let mut header = vec![0; if self.is_ipv6 { 8 } else { 12 }];
        if self.is_ipv6 {
            header[0] = 0x60;
            header[4..6].copy_from_slice(&(segment.len() as u16).to_be_bytes());
            (header[6], header[7]) = (TCP, 64);
            return [header, self.addresses(), segment].concat();
        }
        header[0] = 0x45 + (self.ip_options.len() / 4) as u8;
        header[2..4].copy_from_slice(&((self.offset() + segment.len()) as u16).to_be_bytes());
        header[6] = 0x40;
        (header[8], header[9]) = (64, TCP);
        header.extend(self.addresses());
        header.extend(&self.ip_options);
        let checksum = internet_checksum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        [header, segment].concat()
    }

    fn packet(&self) -> IpPacket {
        IpPacket::new(self.bytes())
    }
}

fn both() -> [Recipe; 2] {
    [Recipe::ipv4(), Recipe::ipv6()]
}

/// Whether the packet's bytes say that they are intact, without asking it.
fn is_right(recipe: &Recipe, bytes: &[u8]) -> bool {
    is_intact([recipe.source(), recipe.destination()], carried_tcp(bytes).unwrap().segment)
}

#[test]
fn the_header_has_the_given_values() {
    for recipe in both() {
        let recipe = recipe.options(&TIMESTAMPS).payload(b"hello");
        let packet = recipe.packet();
        let expected = TcpHeader {
            source: (recipe.source(), 0x1234),
            destination: (recipe.destination(), 80),
            seq: 0xdead_beef,
            ack: 0x0102_0304,
            payload: 5,
            window: 4321,
            flags: TcpFlags(0x18),
            sack: &[],
        };
        assert_eq!(packet.tcp(), Some(expected));
        assert_eq!((packet.ip_length(), packet.bytes()), (recipe.bytes().len(), &recipe.bytes()[..]));
    }
}

#[test]
fn sack_blocks_are_read_wherever_they_stand() {
    for recipe in both() {
        let alone = recipe.clone().options(&SACK_OPTIONS).packet();
        assert_eq!(alone.tcp().unwrap().sack, SACK_BLOCKS);
        let behind =
            recipe.clone().options(&[&TIMESTAMPS[..], &SACK_OPTIONS].concat()).payload(b"x").packet();
        assert_eq!(behind.tcp().unwrap().sack, SACK_BLOCKS);
        // Not aligned, and with the list's end behind.
        let end = [&SACK_OPTIONS[2..], &[0, 0]].concat();
        assert_eq!(recipe.options(&end).packet().tcp().unwrap().sack, SACK_BLOCKS);
    }
}

#[test]
fn an_option_with_something_of_its_own_to_say_is_noticed() {
    // Multipath TCP (RFC 8684 §3): a data ACK, then an address that is gone, a priority, and an end in haste.
    let data_ack = [30, 8, 0x20, 1, 0, 0, 0, 9];
    let signals: [&[u8]; 4] =
        [&[30, 4, 0x40, 7], &[30, 3, 0x51, 1], &[30, 4, 0x70, 0], &[254, 4, 0x12, 0x34]];
    for recipe in both() {
        for ordinary in [&[][..], &TIMESTAMPS, &SACK_OPTIONS, &data_ack, &[0, 30, 3, 0x51], &[1, 30]] {
            let padded = [ordinary, &[0; 3][..(4 - ordinary.len() % 4) % 4]].concat();
            assert!(!recipe.clone().options(&padded).packet().says_more(), "{ordinary:?}");
        }
        for signal in signals {
            let options = [&TIMESTAMPS[..], &data_ack, signal].concat();
            let packet = recipe.clone().options(&options).packet();
            assert!(packet.says_more() && packet.without_sack().says_more(), "{signal:?}");
        }
    }
}

#[test]
fn one_to_four_blocks_have_room() {
    for count in 1..=4usize {
        let mut option = vec![1, 1, 5, 2 + 8 * count as u8];
        (0..count as u8).for_each(|block| option.extend([0, 0, 0, 2 * block, 0, 0, 0, 2 * block + 1]));
        let blocks: Vec<_> = (0..count as u32).map(|block| (2 * block, 2 * block + 1)).collect();
        assert_eq!(Recipe::ipv6().options(&option).packet().tcp().unwrap().sack, blocks);
    }
}

#[test]
fn options_that_are_not_well_formed_are_no_sack_but_the_segment_is_one() {
    let malformed: [&[u8]; 8] = [
        // No blocks; half a block; a length that is none, twice; beyond the header; nothing behind the kind.
        &[5, 2, 1, 1],
        &[5, 6, 0, 0, 0, 1, 1, 1],
        &[5, 0, 0, 0],
        &[8, 1, 5, 10],
        &[5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1],
        &[1, 1, 1, 5],
        // Behind the end of the list.
        &[0, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        // Five blocks do not fit, whatever the length says.
        &[1, 1, 5, 42, 0, 0, 0, 1, 0, 0, 0, 2],
    ];
    for options in malformed {
        for recipe in both() {
            let packet = recipe.options(options).packet();
            assert_eq!(packet.tcp().expect("a segment").sack, [], "{options:?}");
            assert_eq!(packet.without_sack(), packet, "{options:?}");
        }
    }
}

#[test]
fn without_sack_all_else_is_the_same_and_the_checksum_is_right() {
    for recipe in both() {
        // An odd number of bytes behind it.
        let recipe = recipe.options(&[&TIMESTAMPS[..], &SACK_OPTIONS].concat()).payload(b"odd");
        let [packet, bare] = [recipe.packet(), recipe.packet().without_sack()];
        let expected = TcpHeader { sack: &[], ..packet.tcp().unwrap() };
        assert_eq!(bare.tcp(), Some(expected));
        assert!(is_right(&recipe, bare.bytes()), "checksum");
        // The bytes say the same as what it knows of them.
        assert_eq!(IpPacket::new(bare.bytes()), bare);
        let option = recipe.offset() + 20 + 12 + 2..recipe.offset() + 20 + 12 + 20;
        let checksum = recipe.offset() + 16..recipe.offset() + 18;
        for (index, (before, after)) in packet.bytes().iter().zip(bare.bytes()).enumerate() {
            match index {
                index if option.contains(&index) => assert_eq!(*after, 1, "a NOP at {index}"),
                index if checksum.contains(&index) => {}
                _ => assert_eq!(before, after, "byte {index}"),
            }
        }
        assert_eq!(packet.bytes().len(), bare.bytes().len());
        assert_eq!(packet, recipe.packet(), "the original is as it was");
    }
}

#[test]
fn the_congestion_header_is_read_wherever_it_stands_and_its_feedback_is_rewritten() {
    for recipe in both() {
        for before in [&[][..], &TIMESTAMPS, &[1], &[1, 1, 1], &[254, 5, 0x12, 0x34, 0]] {
            let options = [before, &CONGESTION, &[1; 3][..(4 - before.len() % 4) % 4]].concat();
            let recipe = recipe.clone().options(&options).payload(b"odd");
            let header = CongestionHeader {
                rtt: Duration::from_millis(600),
                spacing: Duration::from_micros(1200),
                feedback: 50_000,
            };
            let packet = recipe.packet();
            assert_eq!(packet.congestion_header(), Some(header), "{before:?}");
            assert!(!packet.says_more() || before.len() == 5);
            for feedback in [0, 50_000, -1, i32::MIN, i32::MAX] {
                let changed = packet.clone().with_feedback(feedback);
                assert_eq!(changed.congestion_header(), Some(CongestionHeader { feedback, ..header }));
                assert!(is_right(&recipe, changed.bytes()), "checksum");
                assert_eq!(IpPacket::new(changed.bytes()), changed);
                let differing = packet.bytes().iter().zip(changed.bytes()).filter(|(a, b)| a != b).count();
                assert!(differing <= 6, "only the feedback and the checksum");
            }
            assert_eq!(packet, recipe.packet(), "the original is as it was");
        }
    }
}

#[test]
fn a_lookalike_of_a_congestion_header_is_none() {
    // Other lengths of the same experiment, another experiment, another kind, beyond the header.
    let others: [&[u8]; 6] = [
        &[254, 4, 0x42, 0x50],
        &[254, 8, 0x42, 0x50, 0, 0, 0, 1],
        &[254, 17, 0x42, 0x50, 0, 9, 0x27, 0xc0, 0, 0x12, 0x4f, 0x80, 0, 0, 0xc3, 0x50, 0, 1, 1, 1],
        &[254, 16, 0x50, 0x42, 0, 9, 0x27, 0xc0, 0, 0x12, 0x4f, 0x80, 0, 0, 0xc3, 0x50],
        &[253, 16, 0x42, 0x50, 0, 9, 0x27, 0xc0, 0, 0x12, 0x4f, 0x80, 0, 0, 0xc3, 0x50],
        &[254, 16, 0x42, 0x50, 0, 9, 0x27, 0xc0, 0, 0x12, 0x4f, 0x80],
    ];
    for option in others {
        for recipe in both() {
            let packet = recipe.options(option).packet();
            assert_eq!(packet.congestion_header(), None, "{option:?}");
            assert_eq!(packet.clone().with_feedback(7), packet);
        }
    }
}

#[test]
fn a_wrong_bit_anywhere_in_the_segment_or_the_addresses_and_it_is_none() {
    for recipe in both() {
        let recipe = recipe.options(&SACK_OPTIONS).payload(b"some payload");
        let bytes = recipe.bytes();
        let addresses = if recipe.is_ipv6 { 8..40 } else { 12..20 };
        for bit in (addresses.start * 8..addresses.end * 8).chain(recipe.offset() * 8..bytes.len() * 8) {
            let mut spoilt = bytes.clone();
            spoilt[bit / 8] ^= 0x80 >> (bit % 8);
            assert_eq!(IpPacket::new(spoilt.clone()).tcp(), None, "bit {bit}");
            assert_eq!(IpPacket::new(spoilt.clone()).without_sack().bytes(), spoilt);
        }
        assert!(IpPacket::new(bytes).tcp().is_some());
    }
}

#[test]
fn a_fragment_is_no_segment() {
    let recipe = Recipe::ipv4().payload(b"fragment");
    // More fragments; an offset of 8 bytes; the largest one.
    for (byte, bits) in [(6, 0x20), (7, 0x01), (6, 0x1f)] {
        let mut bytes = recipe.bytes();
        bytes[byte] |= bits;
        assert_eq!(IpPacket::new(bytes).tcp(), None, "byte {byte}: {bits:#x}");
    }
    // IPv6 says it in an extension header (RFC 8200 §4.5).
    let mut bytes = Recipe::ipv6().bytes();
    bytes[6] = 44;
    assert_eq!(IpPacket::new(bytes).tcp(), None);
}

#[test]
fn a_packet_that_is_cut_off_anywhere_is_no_segment() {
    for recipe in both() {
        let bytes = recipe.options(&SACK_OPTIONS).payload(b"payload").bytes();
        for length in 0..bytes.len() {
            let packet = IpPacket::new(&bytes[..length]);
            assert_eq!((packet.tcp(), packet.ip_length()), (None, length));
        }
    }
}

#[test]
fn options_of_ipv4_are_skipped() {
    // A router alert and three NOPs; and as many as there is room for.
    for ip_options in [vec![148, 4, 0, 0], vec![1; 40]] {
        let recipe = Recipe { ip_options, ..Recipe::ipv4().options(&SACK_OPTIONS) };
        let packet = recipe.packet();
        assert_eq!(packet.tcp().unwrap().sack, SACK_BLOCKS);
        assert!(is_right(&recipe, packet.without_sack().bytes()));
    }
}

#[test]
fn a_header_of_ipv4_that_is_too_short_is_none() {
    // 16 bytes, as if the destination were the ports; the checksum is right for that.
    let mut bytes = Recipe::ipv4().bytes();
    bytes.drain(16..20);
    (bytes[0], bytes[3]) = (0x44, 36);
    bytes[32..34].fill(0);
    let pseudo_header = [&bytes[12..20], &[0, TCP, 0, 20]].concat();
    let checksum = internet_checksum(&[&pseudo_header, &bytes[16..]].concat());
    bytes[32..34].copy_from_slice(&checksum.to_be_bytes());
    assert_eq!(IpPacket::new(bytes).tcp(), None);
}

#[test]
fn padding_behind_the_packet_is_not_its_payload_and_stays() {
    for recipe in both() {
        let recipe = recipe.options(&SACK_OPTIONS);
        let bytes = [recipe.bytes(), b"padding".to_vec()].concat();
        let packet = IpPacket::new(bytes.clone());
        let header = packet.tcp().expect("a segment");
        assert_eq!((header.payload, header.sack), (0, &SACK_BLOCKS[..]));
        let bare = packet.without_sack();
        assert!(is_right(&recipe, bare.bytes()) && bare.bytes().ends_with(b"padding"));
        assert_eq!(bare.bytes().len(), bytes.len());
    }
}

#[test]
fn other_protocols_and_headers_that_cannot_be_are_no_segments() {
    let recipe = Recipe::ipv4().options(&TIMESTAMPS);
    let spoilt = |at: usize, byte: u8| {
        let mut bytes = recipe.bytes();
        bytes[at] = byte;
        IpPacket::new(bytes)
    };
    assert_eq!(spoilt(9, 17).tcp(), None, "UDP");
    assert_eq!(spoilt(0, 0x55).tcp(), None, "version 5");
    assert_eq!(IpPacket::new(Vec::new()).tcp(), None, "nothing at all");
    // Data offsets of 16 and of 60 bytes, with a checksum that is right.
    for offset in [0x40, 0xf0] {
        let mut bytes = recipe.bytes();
        let difference = u16::from(bytes[32]) << 8;
        bytes[32] = offset;
        let old = u16::from_be_bytes([bytes[36], bytes[37]]);
        // RFC 1624 (eqn. 3).
        let sum = u32::from(!old) + u32::from(!difference) + (u32::from(offset) << 8);
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !((folded & 0xffff) + (folded >> 16)) as u16;
        bytes[36..38].copy_from_slice(&checksum.to_be_bytes());
        assert!(is_right(&recipe, &bytes), "the checksum is right");
        assert_eq!(IpPacket::new(bytes).tcp(), None, "{offset:#x}");
    }
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let words = |limit| prop::collection::vec(any::<[u8; 4]>(), 0..limit);
    let sack = Just(SACK_OPTIONS.as_chunks::<4>().0.to_vec());
    let congestion = Just(CONGESTION.as_chunks::<4>().0.to_vec());
    let tcp_options = prop_oneof![sack, congestion, words(11)];
    let payload = prop::collection::vec(any::<u8>(), 0..50);
    (any::<bool>(), words(11), tcp_options, payload).prop_map(
        |(is_ipv6, ip_options, tcp_options, payload)| Recipe {
            is_ipv6,
            ip_options: if is_ipv6 { Vec::new() } else { ip_options.concat() },
            tcp_options: tcp_options.concat(),
            payload,
        },
    )
}

/// What must hold of any bytes.
fn check(bytes: &[u8]) -> Result<(), TestCaseError> {
    let packet = IpPacket::new(bytes);
    prop_assert_eq!(packet.bytes(), bytes);
    let bare = packet.without_sack();
    // Reading its bytes again gives the same packet, and it has lost its blocks and nothing else.
    prop_assert_eq!(&IpPacket::new(bare.bytes()), &bare);
    prop_assert_eq!(bare.ip_length(), packet.ip_length());
    let expected = packet.tcp().map(|header| TcpHeader { sack: &[], ..header });
    prop_assert_eq!(bare.tcp(), expected);
    if packet.tcp().is_none_or(|header| header.sack.is_empty()) {
        prop_assert_eq!(bare.bytes(), bytes);
    }
    let granted = packet.clone().with_feedback(-5);
    prop_assert_eq!(&IpPacket::new(granted.bytes()), &granted);
    prop_assert_eq!(granted.tcp(), packet.tcp());
    let expected = packet.congestion_header().map(|header| CongestionHeader { feedback: -5, ..header });
    prop_assert_eq!(granted.congestion_header(), expected);
    if expected.is_none() {
        prop_assert_eq!(granted.bytes(), bytes);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_a_packet(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        check(&bytes)?;
    }

    #[test]
    fn any_options_and_payload_are_a_segment(recipe in recipe()) {
        prop_assert_eq!(recipe.packet().tcp().map(|header| header.payload), Some(recipe.payload.len() as u32));
        check(&recipe.bytes())?;
    }

    #[test]
    fn a_segment_that_was_tampered_with_makes_no_panic(
        recipe in recipe(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut bytes = recipe.bytes();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(length.index(bytes.len() + 1));
        }
        check(&bytes)?;
    }
}
