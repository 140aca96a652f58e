//! Values that stand alone or in a list, numbers that have names.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, SeqAccess, Visitor};

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
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<List<T>, E> {
        T::deserialize(number.into_deserializer()).map(List::from)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<List<T>, E> {
        T::deserialize(text.into_deserializer()).map(List::from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<List<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = elements.next_element()? {
            values.push(value);
        }
        if values.is_empty() {
            return Err(A::Error::custom(
                "an empty list matches nothing; leave the key out to match everything",
            ));
        }
        Ok(List(values))
    }
}

/// What may be written as a number or as a text.
#[derive(Debug)]
pub(super) enum Scalar {
    Number(i64),
    Text(String),
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }
}
