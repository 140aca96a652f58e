use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{ParseError, serde_as_text, split_number};

/// A bit rate, above zero, in bits per second.
///
/// Prefixes are decimal, as everywhere in transmission: `10M`, `10Mbit/s` and `10Mbps` are 10,000,000 bit/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

const KIND: &str = "bit rate";
const EXAMPLE: &str = "10M, 10Mbit/s, 512kbit/s or 1.5Gbit/s";

impl Rate {
    /// A rate of `bits` per second, or nothing for zero.
    pub const fn from_bps(bits: u64) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// A rate of `mbit` · 10⁶ bits per second. Panics at zero: it is meant for constants.
    pub const fn mbps(mbit: u64) -> Self {
        assert!(mbit > 0, "a rate is above zero");
        Self(mbit * 1_000_000)
    }

    /// Bits per second.
    pub const fn bps(self) -> u64 {
        self.0
    }

    /// How long the transmitter is busy with `bytes`, rounded up to the nanosecond.
    pub fn time_for(self, bytes: u64) -> Duration {
        let nanos = (u128::from(bytes) * 8 * 1_000_000_000).div_ceil(u128::from(self.0));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Bytes that leave in `span`, rounded down: with the round-trip time, the bandwidth-delay product.
    pub fn bytes_in(self, span: Duration) -> u64 {
        u64::try_from(u128::from(self.0) * span.as_nanos() / 8 / 1_000_000_000).unwrap_or(u64::MAX)
    }
}

impl FromStr for Rate {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (number, unit) = split_number(text, KIND, EXAMPLE)?;
        let prefix =
            ["bit/s", "bps", "bit"].iter().find_map(|suffix| unit.strip_suffix(suffix)).unwrap_or(unit);
        let scale = match prefix {
            "" => 1.0,
            "k" | "K" => 1e3,
            "M" => 1e6,
            "G" => 1e9,
            _ => return Err(ParseError::unknown_unit(text, KIND, unit, EXAMPLE)),
        };
        let bits = (number * scale).round();
        if !(1.0..=1e15).contains(&bits) {
            return Err(ParseError::new(text, KIND, "it must lie between 1 bit/s and 10^6 Gbit/s"));
        }
        Ok(Self(bits as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 as f64;
        match self.0 {
            1_000_000_000.. => write!(f, "{}Gbit/s", bits / 1e9),
            1_000_000.. => write!(f, "{}Mbit/s", bits / 1e6),
            1_000.. => write!(f, "{}kbit/s", bits / 1e3),
            _ => write!(f, "{bits}bit/s"),
        }
    }
}

serde_as_text!(Rate);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn common_spellings_are_read() {
        for text in ["10M", "10Mbit/s", "10 Mbps", "10000k", "1e7", "0.01G", "10Mbit"] {
            assert_eq!(text.parse::<Rate>().unwrap(), Rate::mbps(10), "{text}");
        }
    }

    #[test]
    fn an_invalid_rate_is_refused_with_the_accepted_form() {
        for text in ["", "fast", "10MB/s", "10m", "-1M", "0", "NaN", "1e99G"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("is not a bit rate"), "{error}");
        }
        assert!("10X".parse::<Rate>().unwrap_err().to_string().contains("10Mbit/s"));
    }

    #[test]
    fn a_full_size_packet_takes_1200_microseconds_at_10_mbit() {
        assert_eq!(Rate::mbps(10).time_for(1500), Duration::from_micros(1200));
        assert_eq!(Rate::mbps(10).bytes_in(Duration::from_millis(600)), 750_000);
    }

    proptest! {
        #[test]
        fn display_reads_back(bits in 1u64..1_000_000_000_000) {
            let rate = Rate::from_bps(bits).unwrap();
            prop_assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
        }

        #[test]
        fn any_text_is_a_rate_or_an_error(text in "\\PC*") {
            let _ = text.parse::<Rate>();
        }
    }
}
