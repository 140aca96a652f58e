//! Quantities of satellite networking as people write them: `10Mbit/s`, `600ms`, `1%`, `64KiB`.
//!
//! Beside them [`Ranges`], a set of byte ranges.
//!
//! A value that exists is valid: text is always parsed, and a parse error has the accepted forms. No type
//! here uses a clock; [`Time`] is a point on the caller's time line.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods)]

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

mod bytes;
pub mod human;
mod probability;
mod ranges;
mod rate;
mod span;
mod time;

pub use bytes::ByteCount;
pub use probability::Probability;
pub use ranges::Ranges;
pub use rate::Rate;
pub use span::Span;
pub use time::Time;

/// A quantity that could not be parsed, with its text and the accepted forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a {kind}: {reason}")]
pub struct ParseError {
    text: String,
    kind: &'static str,
    reason: String,
}

impl ParseError {
    fn new(text: &str, kind: &'static str, reason: impl Into<String>) -> Self {
        Self { text: text.to_owned(), kind, reason: reason.into() }
    }

    fn unknown_unit(text: &str, kind: &'static str, unit: &str, example: &str) -> Self {
        Self::new(text, kind, format!("unknown unit \"{unit}\"; write for example {example}"))
    }
}

/// Splits `12.5ms` into the number and the unit behind it, both without surrounding space.
fn split_number<'a>(text: &'a str, kind: &'static str, example: &str) -> Result<(f64, &'a str), ParseError> {
    let trimmed = text.trim();
    let fail = |why: &str| ParseError::new(text, kind, format!("{why}; write for example {example}"));
    let mut end = 0;
    let bytes = trimmed.as_bytes();
    while end < bytes.len() {
        let exponent = matches!(bytes[end], b'e' | b'E')
            && bytes.get(end + 1).is_some_and(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+'));
        let sign = matches!(bytes[end], b'-' | b'+') && (end == 0 || matches!(bytes[end - 1], b'e' | b'E'));
        if bytes[end].is_ascii_digit() || bytes[end] == b'.' || exponent || sign {
            end += 1;
        } else {
            break;
        }
    }
    if end == 0 {
        return Err(fail("it does not begin with a number"));
    }
    let number: f64 = trimmed[..end].parse().map_err(|_| fail("its number cannot be read"))?;
    if !number.is_finite() || number < 0.0 {
        return Err(fail("it must be zero or more"));
    }
    Ok((number, trimmed[end..].trim()))
}

/// Takes a quantity's text. A number without quotation marks is the same text: where a unit is needed it is
/// refused like that, with an example.
struct QuantityVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err = ParseError>> serde::de::Visitor<'_> for QuantityVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity in quotation marks")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

/// Text in, text out: `FromStr` and `Display` are the only serialised form of a quantity.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str($crate::QuantityVisitor(std::marker::PhantomData))
            }
        }
    };
}
use serde_as_text;
