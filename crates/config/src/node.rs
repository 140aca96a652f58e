//! The tree of a document: values that know where they were written.

use std::collections::BTreeMap;
use std::fmt;

use toml::de::{DeTable, DeValue};

use crate::place::{Place, Step};

/// The key under which a table that stands in a list has its name, and so its place in the path of a key.
const NAME: &str = "name";

/// The longest [`Name`](crate::Name), characters: names become parts of file names.
pub const MAX_NAME: usize = 64;

/// A value, and where it was written.
#[derive(Debug, Clone)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where it was written.
    pub place: Place,
}

/// The values of a table by their keys.
pub(crate) type Table = BTreeMap<String, Node>;

/// A value as TOML has them. Numbers are kept as text, to be parsed as the type that they are for.
#[derive(Debug, Clone)]
pub enum Value {
    /// In quotation marks.
    Text(String),
    /// An integer in decimal, or a float.
    Number(String),
    /// `true` or `false`.
    Boolean(bool),
    /// A date, a time, or both.
    Date(toml::value::Datetime),
    /// From a setting, where quotation marks are not needed: a text, a number or a boolean.
    Word(String),
    /// A list in brackets, or `[[tables]]`.
    List(Vec<Node>),
    /// A table.
    Table(BTreeMap<String, Node>),
    /// What was not accepted: the rest is read as if it were not there.
    Rejected,
}

impl Node {
    /// What is under a step of a key's path.
    pub(crate) fn child(&self, step: &Step) -> Option<&Self> {
        match (&self.value, step) {
            (Value::Table(table), Step::Key(key)) => table.get(key),
            (Value::List(elements), Step::Index(index)) => elements.get(*index),
            _ => None,
        }
    }

    pub(crate) fn child_mut(&mut self, step: &Step) -> Option<&mut Self> {
        match (&mut self.value, step) {
            (Value::Table(table), Step::Key(key)) => table.get_mut(key),
            (Value::List(elements), Step::Index(index)) => elements.get_mut(*index),
            _ => None,
        }
    }

    /// Whether it is to be read.
    pub(crate) fn is_accepted(&self) -> bool {
        !matches!(self.value, Value::Rejected)
    }

    /// The name of a table in a list, if it has one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.text_of(NAME).filter(|name| is_name(name))
    }

    /// The text under `key`, if this is a table that has it.
    pub(crate) fn text_of(&self, key: &str) -> Option<&str> {
        let Value::Table(table) = &self.value else { return None };
        match &table.get(key)?.value {
            Value::Text(text) | Value::Word(text) => Some(text),
            _ => None,
        }
    }
}

/// What was found, as an error says it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) | Value::Word(text) => write!(f, "\"{text}\""),
            Value::Number(number) => f.write_str(number),
            Value::Boolean(boolean) => write!(f, "{boolean}"),
            Value::Date(date) => write!(f, "the date {date}"),
            Value::List(_) => f.write_str("a list"),
            Value::Table(_) => f.write_str("a table"),
            Value::Rejected => f.write_str("a value that is not accepted"),
        }
    }
}

/// Whether it can be a [`Name`](crate::Name).
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed)
}

/// The table as a value whose parts are where `place_of` their offset in the text says.
pub(crate) fn table(found: &DeTable<'_>, place_of: &dyn Fn(usize) -> Place) -> Value {
    let entry = |(key, entry): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        // The key's line: a table's own span does not begin there, nor does that of a list in several lines.
        let place = place_of(key.span().start);
        let key: &std::borrow::Cow<'_, str> = key.get_ref();
        (key.clone().into_owned(), Node { value: value(entry.get_ref(), place_of), place })
    };
    Value::Table(found.iter().map(entry).collect())
}

/// The value, likewise.
pub(crate) fn value(found: &DeValue<'_>, place_of: &dyn Fn(usize) -> Place) -> Value {
    match found {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(integer) => Value::Number(match integer.radix() {
            10 => integer.as_str().to_owned(),
            radix => i128::from_str_radix(integer.as_str(), radix)
                .map_or_else(|_| integer.to_string(), |number| number.to_string()),
        }),
        DeValue::Float(float) => Value::Number(float.as_str().to_owned()),
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        DeValue::Datetime(date) => Value::Date(*date),
        DeValue::Array(array) => {
            let element = |element: &toml::Spanned<DeValue<'_>>| {
                let place = place_of(element.span().start);
                Node { value: value(element.get_ref(), place_of), place }
            };
            Value::List(array.iter().map(element).collect())
        }
        DeValue::Table(entries) => table(entries, place_of),
    }
}
