//! The file format of libpcap (draft-ietf-opsawg-pcap), which Wireshark and tcpdump read: IP packets without
//! a link-layer header, times in nanoseconds.
//!
//! A file is the [`file_header`], and for each packet a [`record_header`] and the bytes that were captured.

/// Times in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// 2.4, the minor version in the upper half.
const VERSION: u32 = 0x0004_0002;
/// Limit of the bytes captured of a packet.
const SNAPSHOT_LENGTH: u32 = 65_535;
/// Packets begin with an IPv4 or IPv6 header.
const LINKTYPE_RAW: u32 = 101;

/// The bytes with which a file begins.
pub fn file_header() -> [u8; 24] {
    little_endian([MAGIC, VERSION, 0, 0, SNAPSHOT_LENGTH, LINKTYPE_RAW])
}

/// What stands before the `captured` bytes of a packet of `length` bytes. `nanos` is the time of the packet,
/// since the beginning of 1970 or of a run.
pub fn record_header(nanos: u64, captured: usize, length: usize) -> [u8; 16] {
    let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    little_endian([seconds as u32, rest as u32, captured as u32, length as u32])
}

/// `BYTES` is four times `WORDS`.
fn little_endian<const WORDS: usize, const BYTES: usize>(words: [u32; WORDS]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_with_the_magic_number_of_nanoseconds_version_2_4_and_raw_ip() {
        let header = file_header();
        assert_eq!(header[..8], [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0]);
        assert_eq!(header[8..], [0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 101, 0, 0, 0]);
    }

    #[test]
    fn a_record_has_seconds_nanoseconds_and_both_lengths() {
        let header = record_header(3_000_000_007, 40, 1500);
        assert_eq!(header, [3, 0, 0, 0, 7, 0, 0, 0, 40, 0, 0, 0, 0xdc, 5, 0, 0]);
    }
}
