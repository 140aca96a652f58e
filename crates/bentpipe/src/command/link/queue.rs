//! The length of a queue.

use std::str::FromStr;

use bentpipe_link::FULL_SIZE_PACKET;
use bentpipe_units::ByteCount;

/// The most that waits, written in bytes or in full-size packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Queue(ByteCount);

impl Queue {
    pub(super) fn bytes(self) -> ByteCount {
        self.0
    }
}

impl FromStr for Queue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = ["packets", "packet"].into_iter().find_map(|unit| text.trim().strip_suffix(unit));
        let Some(number) = unit else {
            return text.parse().map(Self).map_err(|error| format!("{error}, or in packets 100packets"));
        };
        let bytes =
            number.trim().parse::<u64>().ok().and_then(|count| count.checked_mul(FULL_SIZE_PACKET.get()));
        match bytes {
            Some(bytes) => Ok(Self(ByteCount::new(bytes))),
            None => {
                Err(format!("\"{}\" is no number of packets; write for example 100packets", number.trim()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_full_size_ones() {
        let bytes = |text: &str| text.parse::<Queue>().map(|queue| queue.bytes().get());
        assert_eq!(bytes("100packets"), Ok(150_000));
        assert_eq!(bytes("1 packet"), Ok(1500));
        assert_eq!(bytes("64kB"), Ok(64_000));
        for text in ["packets", "-1packets", "99999999999999999999packets", "many"] {
            assert!(bytes(text).unwrap_err().contains("100packets"), "{text}");
        }
    }
}
