//! Columns of tables: the names, kinds and values that every output of results and traces has in common.

use std::fmt;

/// What a column holds. Any value of it may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A name or a word.
    Text,
    /// A whole number, zero or more.
    Count,
    /// A measured quantity, in the unit that the column's name ends with.
    Number,
    /// Yes or no.
    Flag,
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its name, with the unit at its end: `docs/results.md` lists them all.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
}

/// The name and the columns of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schema {
    /// The name of the table: `flows`.
    pub name: &'static str,
    /// Its columns, in order.
    pub columns: &'static [Column],
}

/// A value of a row. It prints as in a CSV file: a flag as 0 or 1, a missing value as nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// See [`Kind::Text`].
    Text(&'a str),
    /// See [`Kind::Count`].
    Count(u64),
    /// See [`Kind::Number`].
    Number(f64),
    /// See [`Kind::Flag`].
    Flag(bool),
    /// There is none.
    Missing,
}

impl Value<'_> {
    /// Whether a column of this kind can hold it.
    pub fn fits(&self, kind: Kind) -> bool {
        match self {
            Value::Text(_) => kind == Kind::Text,
            Value::Count(_) => kind == Kind::Count,
            Value::Number(_) => kind == Kind::Number,
            Value::Flag(_) => kind == Kind::Flag,
            Value::Missing => true,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Count(count) => count.fmt(f),
            Value::Number(number) => number.fmt(f),
            Value::Flag(flag) => u8::from(*flag).fmt(f),
            Value::Missing => Ok(()),
        }
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Value::Text(text)
    }
}

impl<'a> From<&'a String> for Value<'a> {
    fn from(text: &'a String) -> Self {
        Value::Text(text)
    }
}

impl From<u64> for Value<'_> {
    fn from(count: u64) -> Self {
        Value::Count(count)
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Value::Number(number)
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Value::Flag(flag)
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Value::Missing, Into::into)
    }
}

/// The columns of a schema: `columns![flow: Text, goodput_bps: Number]`.
macro_rules! columns {
    ($($name:ident: $kind:ident),* $(,)?) => {
        &[$($crate::columns::Column {
            name: stringify!($name),
            kind: $crate::columns::Kind::$kind,
        }),*]
    };
}
pub(crate) use columns;
