//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

use super::header::{Carried, addresses, carried_tcp};
use super::{TCP, TCP_HEADER};

/// Where the checksum lies in the TCP header, in bytes (RFC 9293 §3.1).
const CHECKSUM: usize = 16;

/// The one's complement of the one's complement sum of 16-bit words: the checksum of an IPv4 header, computed
/// with zeroes in its place.
pub fn internet_checksum(bytes: &[u8]) -> u16 {
    !fold(add(0, bytes))
}

/// Whether the checksum in a TCP segment is right for it and for its addresses (RFC 9293 §3.1).
pub fn is_intact([source, destination]: [IpAddr; 2], segment: &[u8]) -> bool {
    fold(add(pseudo_header(source, destination, segment.len()), segment)) == u16::MAX
}

/// The checksum of a TCP segment, computed with zeroes in its place.
pub(super) fn tcp_checksum([source, destination]: [IpAddr; 2], segment: &[u8]) -> u16 {
    !fold(add(pseudo_header(source, destination, segment.len()), segment))
}

/// Completes the checksum of a TCP segment whose sender has left it to its device, with the sum of the
/// pseudo-header in its place (`CHECKSUM_PARTIAL` of Linux). Any other one stays as it is. `packet` begins
/// with its IP header.
pub fn complete_checksum(packet: &mut [u8]) {
    let partial = || {
        let ends @ [source, destination] = addresses(packet)?;
        let Carried { offset, segment, .. } = carried_tcp(packet)?;
        let found = u16::from_be_bytes(*segment.get(CHECKSUM..)?.first_chunk()?);
        let is_partial = found == fold(pseudo_header(source, destination, segment.len()));
        is_partial.then_some((ends, offset..offset + segment.len()))
    };
    let Some((ends, range)) = partial() else { return };
    let segment = &mut packet[range];
    segment[CHECKSUM..CHECKSUM + 2].fill(0);
    let checksum = tcp_checksum(ends, segment);
    segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Writes a number at an even place of the TCP header, in bytes from its beginning, and the checksum that
/// belongs to it. `packet` begins with its IP header; one without a whole TCP header stays as it is.
pub fn overwrite_tcp(packet: &mut [u8], at: usize, value: u16) {
    let (Some(ends), Some(Carried { offset, segment, .. })) = (addresses(packet), carried_tcp(packet)) else {
        return;
    };
    let range = offset..offset + segment.len();
    let segment = &mut packet[range];
    if segment.len() < TCP_HEADER {
        return;
    }
    segment[at..at + 2].copy_from_slice(&value.to_be_bytes());
    segment[CHECKSUM..CHECKSUM + 2].fill(0);
    let checksum = tcp_checksum(ends, segment);
    segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// The new checksum after these 16-bit words have changed (RFC 1624, equation 3).
pub(super) fn corrected_checksum(checksum: u16, before: &[u8; 6], after: &[u8; 6]) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!fold(add(0, before))) + u64::from(fold(add(0, after))))
}

/// The sum of the pseudo-header, which the checksum of TCP covers besides the segment.
fn pseudo_header(source: IpAddr, destination: IpAddr, length: usize) -> u64 {
    let addresses = [source, destination].iter().fold(0, |sum, address| match address {
        IpAddr::V4(address) => add(sum, &address.octets()),
        IpAddr::V6(address) => add(sum, &address.octets()),
    });
    addresses + u64::from(TCP) + length as u64
}

/// Adds 32-bit words, which is the same as adding their halves (RFC 1071 §2.C); below 2³² of them cannot
/// overflow 64 bits.
fn add(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: u64 = words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum + words + u64::from(u32::from_be_bytes(last))
}

/// The one's complement sum of the 16-bit parts.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A SYN without options from 10.0.0.1:1 to 10.0.0.2:2 with this checksum.
    fn syn(checksum: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.extend([0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 0, 0]);
        packet.extend(checksum.to_be_bytes());
        packet.extend([0, 0]);
        packet
    }

    #[test]
    fn only_a_checksum_that_is_left_to_the_device_is_completed() {
        let [source, destination] = addresses(&syn(0)).unwrap();
        let mut partial = syn(fold(pseudo_header(source, destination, 20)));
        complete_checksum(&mut partial);
        assert!(is_intact([source, destination], &partial[20..]));
        let (whole, mut damaged) = (partial.clone(), syn(0x1234));
        complete_checksum(&mut partial);
        complete_checksum(&mut damaged);
        assert_eq!((partial, damaged), (whole, syn(0x1234)));
    }

    #[test]
    fn a_number_is_overwritten_with_its_checksum() {
        let mut packet = syn(0);
        overwrite_tcp(&mut packet, 18, 7602);
        assert_eq!(packet[38..40], 7602u16.to_be_bytes());
        assert!(is_intact(addresses(&packet).unwrap(), &packet[20..]));
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_checksum(&bytes), !0xddf2);
    }

    proptest! {
        #[test]
        fn words_of_any_width_give_the_same_sum(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut sum = 0u32;
            for word in bytes.chunks(2) {
                sum += u32::from(word[0]) << 8 | word.get(1).map_or(0, |&low| low.into());
            }
            while sum > 0xffff {
                sum = (sum & 0xffff) + (sum >> 16);
            }
            prop_assert_eq!(internet_checksum(&bytes), !(sum as u16));
        }
    }
}
