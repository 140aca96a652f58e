//! Values that have bounds, or that may be written in several ways.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ops::Deref;
use std::str::FromStr;
use std::time::Duration;

use bentpipe_units::{ByteCount, Span};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use crate::de::{DATE, LIST, WRITTEN};
use crate::node::{MAX_NAME, is_name};

/// A value that is read by way of a type of its own.
pub trait Plain {
    /// The value's usual type.
    type Value;

    /// The value.
    fn get(self) -> Self::Value;
}

impl Plain for bool {
    type Value = bool;

    fn get(self) -> bool {
        self
    }
}

/// A quantity or a word that `T` parses. It may be written as a text or, where that is enough, as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written<T>(pub T);

impl<T> Plain for Written<T> {
    type Value = T;

    fn get(self) -> T {
        self.0
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_newtype_struct(WRITTEN, TextVisitor)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// Takes the text that the deserializer makes of a value.
struct TextVisitor;

impl Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// What may be written as a text or as a whole number.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
pub enum Scalar {
    /// In quotation marks.
    Text(String),
    /// Without.
    Number(i64),
}

/// One value, or a list of them that is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T>(Vec<T>);

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> From<T> for List<T> {
    fn from(value: T) -> Self {
        Self(vec![value])
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
            type Value = List<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<List<T>, D::Error> {
                T::deserialize(value).map(List::from)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<List<T>, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = elements.next_element()? {
                    values.push(value);
                }
                match values.is_empty() {
                    true => Err(A::Error::custom(
                        "an empty list says nothing: write a value, or leave the key out",
                    )),
                    false => Ok(List(values)),
                }
            }
        }
        deserializer.deserialize_newtype_struct(LIST, ListVisitor(PhantomData))
    }
}

/// A word that stands for "none"; see [`keyword!`](crate::keyword).
pub trait Keyword {
    /// The name by which the deserializer is asked for it.
    const NAME: &'static str;
}

/// Declares a type for a word that may be written instead of a value: `keyword!(Endless = "endless");`, for
/// `Or<Endless, T>`.
#[macro_export]
macro_rules! keyword {
    ($type:ident = $word:literal) => {
        #[doc = concat!("The word `", $word, "` instead of a value.")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $type;

        impl $crate::Keyword for $type {
            const NAME: &'static str = concat!("$or:", $word);
        }
    };
}

keyword!(Off = "off");

/// A value, or the word `W` where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Or<W, T> {
    /// The value; `None` is the word.
    pub value: Option<T>,
    word: PhantomData<W>,
}

impl<W, T> From<Option<T>> for Or<W, T> {
    fn from(value: Option<T>) -> Self {
        Self { value, word: PhantomData }
    }
}

impl<W, T: Plain> Plain for Or<W, T> {
    type Value = Option<T::Value>;

    fn get(self) -> Option<T::Value> {
        self.value.map(T::get)
    }
}

impl<'de, W: Keyword, T: Deserialize<'de>> Deserialize<'de> for Or<W, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OrVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for OrVisitor<T> {
            type Value = Option<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a word")
            }

            fn visit_unit<E>(self) -> Result<Option<T>, E> {
                Ok(None)
            }

            fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<Option<T>, D::Error> {
                T::deserialize(value).map(Some)
            }
        }
        deserializer.deserialize_newtype_struct(W::NAME, OrVisitor(PhantomData)).map(Self::from)
    }
}

/// A whole number between `MIN` and `MAX`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole<T, const MIN: u64, const MAX: u64>(T);

impl<T: Copy, const MIN: u64, const MAX: u64> Whole<T, MIN, MAX> {
    /// The number.
    pub const fn get(self) -> T {
        self.0
    }
}

impl<T, const MIN: u64, const MAX: u64> Plain for Whole<T, MIN, MAX> {
    type Value = T;

    fn get(self) -> T {
        self.0
    }
}

impl<'de, T: TryFrom<u64>, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<T, MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RangeVisitor<const MIN: u64, const MAX: u64>;

        impl<const MIN: u64, const MAX: u64> Visitor<'_> for RangeVisitor<MIN, MAX> {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number between {MIN} and {MAX}")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<u64, E> {
                let out_of_range = || E::invalid_value(serde::de::Unexpected::Unsigned(number), &self);
                (MIN..=MAX).contains(&number).then_some(number).ok_or_else(out_of_range)
            }
        }
        let number = deserializer.deserialize_u64(RangeVisitor::<MIN, MAX>)?;
        T::try_from(number).map(Self).map_err(|_| D::Error::custom(format!("{number} is too large")))
    }
}

/// A number above zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Positive(f64);

impl Plain for Positive {
    type Value = f64;

    fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Positive {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        match number.is_finite() && number > 0.0 {
            true => Ok(Self(number)),
            false => Err(D::Error::custom(format!("{number} is not a number above 0"))),
        }
    }
}

/// A length of time of at least `NANOS` nanoseconds, as [`Span`] is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanFrom<const NANOS: u64>(Duration);

impl<const NANOS: u64> Plain for SpanFrom<NANOS> {
    type Value = Duration;

    fn get(self) -> Duration {
        self.0
    }
}

impl<'de, const NANOS: u64> Deserialize<'de> for SpanFrom<NANOS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let span = Written::<Span>::deserialize(deserializer)?.0;
        let least = Span(Duration::from_nanos(NANOS));
        match span >= least {
            true => Ok(Self(span.get())),
            false => Err(D::Error::custom(format!("{span} is too short: write {least} or more"))),
        }
    }
}

/// An amount of data between `MIN` and `MAX` bytes, both included, as [`ByteCount`] is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes<const MIN: u64, const MAX: u64>(ByteCount);

impl<const MIN: u64, const MAX: u64> Plain for Bytes<MIN, MAX> {
    type Value = ByteCount;

    fn get(self) -> ByteCount {
        self.0
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Bytes<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Written::<ByteCount>::deserialize(deserializer)?.0;
        if (MIN..=MAX).contains(&bytes.get()) {
            return Ok(Self(bytes));
        }
        let (least, most) = (ByteCount::new(MIN), ByteCount::new(MAX));
        Err(D::Error::custom(format!("{bytes} is not possible: write {least} to {most}")))
    }
}

/// A name of the file's own: 1 to [`MAX_NAME`] letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match is_name(&name) {
            true => Ok(Self(name)),
            false => Err(format!(
                "\"{name}\" is not a name: write 1 to {MAX_NAME} letters (a to z), digits, - or _"
            )),
        }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

/// An address with a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct Address(pub SocketAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let example = "write for example \"127.0.0.1:7690\" or \"[::1]:7690\"";
        text.parse().map(Self).map_err(|_| format!("\"{text}\" is not an address with a port; {example}"))
    }
}

/// A date, a time, or both.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DateTime(pub toml::value::Datetime);

impl<'de> Deserialize<'de> for DateTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_newtype_struct(DATE, TextVisitor)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bentpipe_units::Rate;
    use proptest::prelude::*;

    use super::*;
    use crate::Document;

    fn read<T: serde::de::DeserializeOwned>(value: &str) -> Result<T, String> {
        let document = Document::parse("f", &format!("x = {value}\n")).unwrap();
        let read = document.read::<BTreeMap<String, T>>();
        read.map(|mut table| table.remove("x").unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_quantity_may_be_a_text_or_a_number() {
        let bytes = |text| read::<Written<ByteCount>>(text).map(|bytes| bytes.0.get());
        assert_eq!((bytes("'10MB'"), bytes("1_500"), bytes("0x10")), (Ok(10_000_000), Ok(1500), Ok(16)));
        assert!(bytes("-1").unwrap_err().contains("must be zero or more"));
        assert!(read::<SpanFrom<0>>("600").unwrap_err().contains("unit is missing"));
        assert_eq!(read::<Written<Rate>>("true").unwrap_err(), "f:1: x: true is not a text or a number");
        assert_eq!(read::<Written<Rate>>("[1]").unwrap_err(), "f:1: x: a list is not a text or a number");
        let error = read::<SpanFrom<1_000_000>>("'1us'").unwrap_err();
        assert_eq!(error, "f:1: x: 1us is too short: write 1ms or more");
        let error = read::<Bytes<1000, 2000>>("'1B'").unwrap_err();
        assert_eq!(error, "f:1: x: 1B is not possible: write 1kB to 2kB");
    }

    #[test]
    fn a_number_out_of_range_is_answered_with_the_range() {
        type Digit = Whole<u32, 1, 10>;
        assert_eq!(read::<Digit>("10").map(Plain::get), Ok(10));
        for wrong in ["11", "0", "1.5", "-1", "'3'", "99999999999999999999", "true"] {
            let error = read::<Digit>(wrong).unwrap_err();
            let is_text = wrong.starts_with('\'');
            let error = if is_text { error.trim_end_matches("; write 3") } else { &error };
            assert!(error.ends_with("is not a whole number between 1 and 10"), "{error}");
        }
        for wrong in ["0", "nan", "inf", "-120.0", "'120'"] {
            assert!(read::<Positive>(wrong).is_err(), "{wrong}");
        }
        assert_eq!(read::<Positive>("120").map(Plain::get), Ok(120.0));
    }

    #[test]
    fn a_word_may_stand_instead_of_a_value() {
        type Limit = Or<Off, Whole<u32, 1, 9>>;
        assert_eq!(
            (read::<Limit>("'off'").map(Plain::get), read::<Limit>("9").map(Plain::get)),
            (Ok(None), Ok(Some(9)))
        );
        let error = read::<Limit>("'never'").unwrap_err();
        assert_eq!(error, "f:1: x: \"never\" is not a whole number between 1 and 9; or write \"off\"");
    }

    #[test]
    fn a_value_may_stand_alone_or_in_a_list_that_is_not_empty() {
        let list = |text| read::<List<u8>>(text).map(|list| list.to_vec());
        assert_eq!((list("7"), list("[7, 8]")), (Ok(vec![7]), Ok(vec![7, 8])));
        assert!(list("[]").unwrap_err().starts_with("f:1: x: an empty list"));
        assert!(list("[1, 'a']").unwrap_err().starts_with("f:1: x[2]: \"a\" is not a whole number"));
        assert_eq!(
            read::<List<Scalar>>("['a', 1]").unwrap()[..],
            [Scalar::Text("a".into()), Scalar::Number(1)]
        );
    }

    #[test]
    fn a_name_can_be_part_of_a_file_name() {
        let name = |text: &str| Name::try_from(text.to_owned());
        for text in ["", "a b", "a/b", "..", "a.b", "é", &"x".repeat(65)] {
            assert!(name(text).unwrap_err().contains("is not a name: write 1 to 64 letters"), "{text}");
        }
        assert!(name("rto-10s_2").is_ok());
    }

    #[test]
    fn a_date_is_not_a_text() {
        assert!(read::<DateTime>("2007-01-01").is_ok());
        assert_eq!(read::<DateTime>("'2007-01-01'").unwrap_err(), "f:1: x: \"2007-01-01\" is not a date");
        assert_eq!(
            read::<Written<Span>>("2007-01-01").unwrap_err(),
            "f:1: x: the date 2007-01-01 is not a text or a number"
        );
    }

    proptest! {
        #[test]
        fn any_value_is_a_quantity_or_lines_of_errors(text in "\\PC*") {
            if let Ok(document) = Document::parse("f", &format!("x = {text}")) {
                let read = document.read::<BTreeMap<String, Or<Off, Written<Rate>>>>();
                let is_line = |line: &str| line.starts_with("f:");
                prop_assert!(read.err().is_none_or(|error| error.to_string().lines().all(is_line)));
            }
        }
    }
}
