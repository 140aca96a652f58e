use super::*;
use std::net::Ipv6Addr;

use bentpipe_link::ip::restore_hop;
use proptest::prelude::*;

/// A SYN from 10.77.1.2:40000 to 10.77.2.2:80, marked EF, with four bytes of options of IP, MSS and data; as
/// tcpdump shows it, both checksums right.
fn ipv4_syn() -> Vec<u8> {
    #[rustfmt::skip]
    let mut packet = vec![
        0x46, 46 << 2, 0, 52, 0x12, 0x34, 0x40, 0, 63, 6, 0, 0, 10, 77, 1, 2, 10, 77, 2, 2,
        1, 1, 1, 0,
        0x9c, 0x40, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x60, 0x02, 0xff, 0xff, 0, 0, 0, 0,
        2, 4, 5, 0xb4,
        b'd', b'a', b't', b'a',
    ];
    finish(&mut packet, 24);
    packet
}

fn ipv6_syn() -> Vec<u8> {
    let mut packet = vec![0x60 | 46 >> 2, (46 << 6) as u8, 0, 0, 0, 20, 6, 63];
    packet.extend("fd77:1::2".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend("fd77:2::2".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend([0x9c, 0x40, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    finish(&mut packet, 40);
    packet
}

/// Writes the checksums, in a way of its own: word by word, with the carry at once.
fn finish(packet: &mut [u8], tcp: usize) {
    let ones = |words: &mut dyn Iterator<Item = u16>| {
        !words.fold(0u16, |sum, word| {
            let (sum, carry) = sum.overflowing_add(word);
            sum + u16::from(carry)
        })
    };
    let words = |bytes: &[u8]| -> Vec<u16> {
        bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
    };
    let addresses = if packet[0] >> 4 == 4 { 12..20 } else { 8..40 };
    let mut all = words(&packet[addresses]);
    all.extend([6, (packet.len() - tcp) as u16]);
    all.extend(words(&packet[tcp..]));
    let checksum = ones(&mut all.into_iter());
    packet[tcp + 16..tcp + 18].copy_from_slice(&checksum.to_be_bytes());
    if packet[0] >> 4 == 4 {
        let checksum = ones(&mut words(&packet[..tcp]).into_iter());
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// The packet with one byte set, and its checksums right again.
fn with(packet: &[u8], place: usize, value: u8) -> Vec<u8> {
    let mut packet = packet.to_vec();
    let tcp = if packet[0] >> 4 == 4 { 24 } else { 40 };
    packet[place] = value;
    packet[tcp + 16..tcp + 18].fill(0);
    if tcp == 24 {
        packet[10..12].fill(0);
    }
    finish(&mut packet, tcp);
    packet
}

#[test]
fn a_syn_is_read_in_both_families() {
    for (packet, client, server) in
        [(ipv4_syn(), "10.77.1.2:40000", "10.77.2.2:80"), (ipv6_syn(), "[fd77:1::2]:40000", "[fd77:2::2]:80")]
    {
        let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
        assert_eq!(Syn::parse(&packet), Some(Syn { client, server, dscp: 46, isn: 0x01020304 }));
    }
}

#[test]
fn other_packets_are_told_from_a_syn() {
    let good = ipv4_syn();
    for (place, value, what) in [
        (0, 0x26, "version 2"),
        (0, 0x44, "a header of 16 bytes"),
        (6, 0x20, "the first fragment"),
        (7, 0x01, "a later fragment"),
        (9, 17, "UDP"),
        (16, 224, "to a multicast address"),
        (12, 127, "from a loopback address"),
        (36, 0x40, "a TCP header of 16 bytes"),
        (36, 0xf0, "a TCP header longer than the packet"),
        (37, 0x12, "SYN and ACK"),
        (37, 0x03, "SYN and FIN"),
        (37, 0x06, "SYN and RST"),
        (37, 0x00, "no flag"),
    ] {
        assert_eq!(Syn::parse(&with(&good, place, value)), None, "{what}");
    }
    assert_eq!(Syn::parse(&with(&with(&good, 24, 0), 25, 0)), None, "from port 0");
    assert_eq!(Syn::parse(&with(&ipv6_syn(), 6, 0)), None, "an extension header");
    assert!(Syn::parse(&with(&good, 37, 0xc2)).is_some(), "with the flags of ECN");
}

#[test]
fn a_corrupted_packet_is_no_syn() {
    let good = ipv4_syn();
    for place in 24..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 4;
        assert_eq!(Syn::parse(&bad), None, "byte {place}");
    }
}

#[test]
fn padding_behind_the_packet_is_not_read() {
    for mut packet in [ipv4_syn(), ipv6_syn()] {
        packet.extend([0xaa; 6]);
        assert!(Syn::parse(&packet).is_some());
    }
}

#[test]
fn the_kernels_own_packets_are_told_from_forwarded_ones() {
    // A report of the listeners on the link, from nobody to ff02::16.
    let mut report = vec![0x60, 0, 0, 0, 0, 0, 0, 1];
    report.extend([0; 16]);
    report.extend("ff02::16".parse::<Ipv6Addr>().unwrap().octets());
    assert!(!is_between_hosts(&report) && !is_between_hosts(&[]) && !is_between_hosts(&[0x45; 19]));
    assert!(is_between_hosts(&ipv4_syn()) && is_between_hosts(&ipv6_syn()));
}

#[test]
fn a_hop_that_is_given_back_leaves_the_packet_whole() {
    for (packet, place) in [(ipv4_syn(), 8), (ipv6_syn(), 7)] {
        let expected = with(&packet, place, 64);
        let mut restored = packet;
        restore_hop(&mut restored);
        assert_eq!(restored, expected);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_syn_or_none(mut bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let _ = (Syn::parse(&bytes), is_between_hosts(&bytes));
        restore_hop(&mut bytes);
    }

    /// As above, but with a version and lengths that lead further in; `with` makes the checksums right.
    #[test]
    fn any_change_of_a_syn_is_a_syn_or_none(
        six in any::<bool>(), place in 0usize..40, value in any::<u8>(), length in 0usize..80
    ) {
        let packet = if six { ipv6_syn() } else { ipv4_syn() };
        let mut changed = if place == 0 { packet } else { with(&packet, place, value) };
        changed.truncate(length);
        restore_hop(&mut changed);
        if let Some(syn) = Syn::parse(&changed) {
            prop_assert!(syn.client.port() != 0 && syn.dscp < 64);
        }
    }
}
