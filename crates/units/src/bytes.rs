use std::fmt;
use std::str::FromStr;

use crate::{ParseError, serde_as_text, split_number};

/// An amount of data in bytes: `1500`, `64KiB`, `10MB`. Decimal prefixes are powers of 1000, binary prefixes
/// are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteCount(u64);

const KIND: &str = "byte count";
const EXAMPLE: &str = "1500, 64KiB, 10MB or 1.5GB";

impl ByteCount {
    /// `bytes` bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteCount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (number, unit) = split_number(text, KIND, EXAMPLE)?;
        let scale = match unit {
            "" | "B" => 1.0,
            "k" | "K" | "kB" | "KB" => 1e3,
            "M" | "MB" => 1e6,
            "G" | "GB" => 1e9,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(ParseError::unknown_unit(text, KIND, unit, EXAMPLE)),
        };
        let bytes = (number * scale).round();
        if bytes > 1e15 {
            return Err(ParseError::new(text, KIND, "it must not exceed 10^15 bytes"));
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            1_000_000_000.. => write!(f, "{}GB", bytes / 1e9),
            1_000_000.. => write!(f, "{}MB", bytes / 1e6),
            1_000.. => write!(f, "{}kB", bytes / 1e3),
            _ => write!(f, "{bytes}B"),
        }
    }
}

serde_as_text!(ByteCount);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimal_and_binary_prefixes_differ() {
        assert_eq!("64KiB".parse::<ByteCount>().unwrap().get(), 65_536);
        assert_eq!("64kB".parse::<ByteCount>().unwrap().get(), 64_000);
        assert_eq!("1500".parse::<ByteCount>().unwrap().get(), 1500);
    }

    #[test]
    fn bits_are_not_bytes() {
        assert!("10Mbit".parse::<ByteCount>().unwrap_err().to_string().contains("unknown unit"));
    }

    proptest! {
        #[test]
        fn display_reads_back(bytes in 0u64..1_000_000_000_000) {
            prop_assert_eq!(ByteCount::new(bytes).to_string().parse::<ByteCount>().unwrap().get(), bytes);
        }
    }
}
