use std::fmt;
use std::str::FromStr;

use crate::{ParseError, serde_as_text, split_number};

/// A probability between 0 and 1: `1%`, `0.01` and `1e-2` are the same.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability(f64);

const KIND: &str = "probability";
const EXAMPLE: &str = "1%, 0.01 or 1e-5";

impl Probability {
    /// It never happens.
    pub const ZERO: Probability = Probability(0.0);

    /// `p` if it lies between 0 and 1.
    pub fn new(p: f64) -> Option<Self> {
        (0.0..=1.0).contains(&p).then_some(Self(p))
    }

    /// The value, between 0 and 1.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Probability {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (number, unit) = split_number(text, KIND, EXAMPLE)?;
        let p = match unit {
            "" => number,
            "%" => number / 100.0,
            _ => return Err(ParseError::unknown_unit(text, KIND, unit, EXAMPLE)),
        };
        Self::new(p).ok_or_else(|| ParseError::new(text, KIND, "it must lie between 0 and 1, or 0% and 100%"))
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

serde_as_text!(Probability);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn percent_fraction_and_exponent_agree() {
        for text in ["1%", "0.01", "1e-2", " 1 % "] {
            assert_eq!(text.parse::<Probability>().unwrap().get(), 0.01, "{text}");
        }
    }

    #[test]
    fn one_hundred_and_one_percent_is_refused() {
        for text in ["101%", "1.01", "-0.1", "1‰"] {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn display_reads_back(p in 0.0f64..=1.0) {
            prop_assert_eq!(Probability(p).to_string().parse::<Probability>().unwrap().get(), p);
        }
    }
}
