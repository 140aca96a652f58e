//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

use super::TCP;

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
