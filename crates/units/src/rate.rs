use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{ParseError, serde_as_text, split_number};

/// A bit rate, above zero, in bits per second.
///
/// A unit is required: `10Mbit/s`, or as tc(8) and iperf3(1) write it, `10mbit`, `10m`, `10M`. Prefixes are
/// decimal, as everywhere in transmission, and may be small letters: `10k` is 10,000 bit/s; tc's binary ones
/// are taken before `bit` (`10mibit` is 10 · 2²⁰ bit/s).
///
/// `10Mbps` is 10,000,000 bit/s, as for everybody but tc, whose `mbps` is megabytes per second. So spellings
/// in small letters, as in tc's manual (`kbps`, `mbps`, `gbps`, `tbps`), are refused, as bytes per second
/// are.
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
    #[inline]
    pub fn time_for(self, bytes: u64) -> Duration {
        const BIT_NANOS: u64 = 8 * 1_000_000_000;
        Duration::from_nanos(match bytes.checked_mul(BIT_NANOS) {
            // Up to 2 GB, where a division in one word is an order of magnitude cheaper than in two.
            Some(work) => work.div_ceil(self.0),
            None => {
                let nanos = (u128::from(bytes) * u128::from(BIT_NANOS)).div_ceil(u128::from(self.0));
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        })
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
        let out_of_range = || ParseError::new(text, KIND, "it must lie between 1 bit/s and 10^6 Gbit/s");
        if number == 0.0 {
            return Err(out_of_range());
        }
        let scale = scale(unit).map_err(|unit_error| {
            let reason = match unit_error {
                UnitError::Missing => format!("it has no unit; write \"{}\"", likely(number)),
                UnitError::Bytes => {
                    format!("\"{unit}\" is bytes per second; write bits, for example {EXAMPLE}")
                }
                UnitError::Ambiguous(unit) => format!(
                    "tc takes it for bytes per second and everybody else for bits; write \"{number}{unit}\" for bits, \
                     \"{}{unit}\" for bytes",
                    number * 8.0
                ),
                UnitError::Unknown => return ParseError::unknown_unit(text, KIND, unit, EXAMPLE),
            };
            ParseError::new(text, KIND, reason)
        })?;
        let bits = (number * scale).round();
        if !(1.0..=1e15).contains(&bits) {
            return Err(out_of_range());
        }
        Ok(Self(bits as u64))
    }
}

/// Why a unit is none of a rate.
enum UnitError {
    Missing,
    Bytes,
    /// The unit that says bits.
    Ambiguous(&'static str),
    Unknown,
}

/// Bits per second in a unit.
fn scale(unit: &str) -> Result<f64, UnitError> {
    match unit {
        "" => return Err(UnitError::Missing),
        "kbps" => return Err(UnitError::Ambiguous("kbit/s")),
        "mbps" => return Err(UnitError::Ambiguous("Mbit/s")),
        "gbps" => return Err(UnitError::Ambiguous("Gbit/s")),
        "tbps" => return Err(UnitError::Ambiguous("Tbit/s")),
        _ if unit.trim_end_matches("/s").ends_with('B') => return Err(UnitError::Bytes),
        _ => {}
    }
    let small = unit.to_ascii_lowercase();
    let suffix = |suffix: &&str| small.strip_suffix(suffix);
    let prefix = ["bits/sec", "bits/s", "bit/sec", "bit/s", "bits", "bit", "bps"].iter().find_map(suffix);
    match (prefix.unwrap_or(&small), prefix.is_some()) {
        ("", true) => Ok(1.0),
        ("k", _) => Ok(1e3),
        ("m", _) => Ok(1e6),
        ("g", _) => Ok(1e9),
        ("t", _) => Ok(1e12),
        ("ki", true) => Ok(f64::from(1 << 10)),
        ("mi", true) => Ok(f64::from(1 << 20)),
        ("gi", true) => Ok(f64::from(1 << 30)),
        _ => Err(UnitError::Unknown),
    }
}

/// What a number without a unit was probably meant to be: large ones bits per second, small ones megabits.
fn likely(number: f64) -> Rate {
    let bits = if number < 1000.0 { number * 1e6 } else { number };
    Rate::from_bps(bits.min(1e15) as u64).unwrap_or(Rate::mbps(10))
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
        for text in [
            "10M",
            "10m",
            "10Mbit/s",
            "10mbit",
            "10 Mbps",
            "10000k",
            "10000Kbit",
            "1e7bit",
            "0.01G",
            "10Mbit",
            "10 Mbits/sec",
            "0.01gbit",
        ] {
            assert_eq!(text.parse::<Rate>().unwrap(), Rate::mbps(10), "{text}");
        }
    }

    #[test]
    fn an_invalid_rate_is_refused_with_the_accepted_form() {
        for text in ["", "fast", "10MB/s", "10Mb", "-1M", "0", "0M", "NaN", "1e99G", "1e7"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains("is not a bit rate"), "{error}");
        }
        let binary = "1mibit".parse::<Rate>().unwrap();
        assert_eq!(binary.bps(), 1 << 20);
        assert!("10X".parse::<Rate>().unwrap_err().to_string().contains("10Mbit/s"));
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_the_rate_that_was_probably_meant() {
        for (text, meant) in [("10", "10Mbit/s"), ("10000000", "10Mbit/s"), ("1.5", "1.5Mbit/s")] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert_eq!(error, format!("\"{text}\" is not a bit rate: it has no unit; write \"{meant}\""));
            assert!(meant.parse::<Rate>().is_ok());
        }
    }

    #[test]
    fn what_tc_takes_for_bytes_is_refused_with_both_readings() {
        let error = "10mbps".parse::<Rate>().unwrap_err().to_string();
        assert!(error.ends_with("write \"10Mbit/s\" for bits, \"80Mbit/s\" for bytes"), "{error}");
        for text in ["10kbps", "10gbps", "10tbps", "10MB/s", "10kB", "10 B/s"] {
            assert!(text.parse::<Rate>().unwrap_err().to_string().contains("bytes per second"), "{text}");
        }
        let number: Rate = serde_json::from_str("\"10m\"").unwrap();
        assert_eq!(number, Rate::mbps(10));
    }

    #[test]
    fn a_full_size_packet_takes_1200_microseconds_at_10_mbit() {
        assert_eq!(Rate::mbps(10).time_for(1500), Duration::from_micros(1200));
        assert_eq!(Rate::mbps(10).bytes_in(Duration::from_millis(600)), 750_000);
    }

    #[test]
    fn bytes_whose_work_needs_two_words_take_as_long_as_by_the_definition() {
        let most_in_one_word = u64::MAX / 8_000_000_000;
        for bytes in [most_in_one_word, most_in_one_word + 1, u64::MAX / 8] {
            for bits in [1_000_000_000, 999_999_999_999_989] {
                let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(bits));
                let expected = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                assert_eq!(Rate::from_bps(bits).unwrap().time_for(bytes), expected, "{bytes} at {bits}");
            }
        }
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
