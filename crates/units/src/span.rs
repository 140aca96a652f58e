use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{ParseError, serde_as_text, split_number};

/// A length of time as it is written in a configuration: `600ms`, `1.5s`, `25m`, `2h`. A unit is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Duration);

const KIND: &str = "time span";
const EXAMPLE: &str = "600ms, 1.5s, 25m or 2h";

impl Span {
    /// The length of time.
    pub const fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (number, unit) = split_number(text, KIND, EXAMPLE)?;
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "" if number == 0.0 => 1.0,
            "" => {
                return Err(ParseError::new(
                    text,
                    KIND,
                    format!("the unit is missing; write for example {EXAMPLE}"),
                ));
            }
            _ => return Err(ParseError::unknown_unit(text, KIND, unit, EXAMPLE)),
        };
        let nanos = (number * seconds * 1e9).round();
        if nanos > 1e18 {
            return Err(ParseError::new(text, KIND, "it must not exceed 30 years"));
        }
        Ok(Self(Duration::from_nanos(nanos as u64)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        match nanos {
            n if n >= 1_000_000_000 => write!(f, "{}s", n as f64 / 1e9),
            n if n >= 1_000_000 => write!(f, "{}ms", n as f64 / 1e6),
            n if n >= 1_000 => write!(f, "{}us", n as f64 / 1e3),
            n => write!(f, "{n}ns"),
        }
    }
}

impl From<Duration> for Span {
    fn from(span: Duration) -> Self {
        Self(span)
    }
}

serde_as_text!(Span);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_the_units_of_a_satellite_and_of_a_train() {
        assert_eq!("600ms".parse::<Span>().unwrap().get(), Duration::from_millis(600));
        assert_eq!("25m".parse::<Span>().unwrap().get(), Duration::from_secs(1500));
        assert_eq!("0".parse::<Span>().unwrap().get(), Duration::ZERO);
    }

    #[test]
    fn a_bare_number_is_refused() {
        assert!("600".parse::<Span>().unwrap_err().to_string().contains("unit is missing"));
    }

    #[test]
    fn text_is_the_serialised_form() {
        let span: Span = serde_json::from_str("\"1.5s\"").unwrap();
        assert_eq!(serde_json::to_string(&span).unwrap(), "\"1.5s\"");
        assert!(
            serde_json::from_str::<Span>("\"soon\"").unwrap_err().to_string().contains("is not a time span")
        );
    }

    proptest! {
        #[test]
        fn display_reads_back(nanos in 0u64..1_000_000_000_000_000) {
            let span = Span(Duration::from_nanos(nanos));
            let back = span.to_string().parse::<Span>().unwrap();
            prop_assert!(back.get().abs_diff(span.get()) <= Duration::from_nanos(1));
        }
    }
}
