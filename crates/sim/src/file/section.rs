//! Reading values out of the document: each reader says what it found and what it accepts.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use bentpipe_units::Span;

use super::document::{Node, Table, Value};
use super::error::{Fault, Place};

/// The longest name, characters: names become parts of file names.
const MAX_NAME: usize = 64;

/// A table whose keys are all known.
#[derive(Debug, Clone)]
pub(crate) struct Section<'a> {
    /// How errors call it: `link.satellite`; empty for the document.
    name: String,
    place: &'a Place,
    table: &'a Table,
}

impl<'a> Section<'a> {
    /// The table in `node`, refused if it has a key that is not one of `keys`.
    pub(crate) fn new(name: &str, node: &'a Node, keys: &[&str]) -> Result<Self, Fault> {
        let Value::Table(table) = &node.value else {
            let accepted = keys.join(", ");
            return Err(Fault::new(
                &node.place,
                name,
                format!("{} is not a table with {accepted}", node.value),
            ));
        };
        let section = Self { name: name.to_owned(), place: &node.place, table };
        match table.iter().find(|(key, _)| !keys.contains(&key.as_str())) {
            Some((key, value)) => {
                let message = format!("there is no such key; there is {}", keys.join(", "));
                Err(Fault::new(&value.place, &section.key(key), message))
            }
            None => Ok(section),
        }
    }

    /// The value of `key`, if there is one.
    pub(crate) fn get(&self, key: &str) -> Option<Field<'a>> {
        self.table.get(key).map(|node| Field { key: self.key(key), node })
    }

    /// The value of `key`; `example` is what an error shows where it is missing.
    pub(crate) fn required(&self, key: &str, example: &str) -> Result<Field<'a>, Fault> {
        let missing = || self.fault(format!("{key} is missing; write for example {key} = {example}"));
        self.get(key).ok_or_else(missing)
    }

    /// The value of `key` as `read` reads it, if there is one.
    pub(crate) fn read<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Field<'a>) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        self.get(key).map(|field| read(&field)).transpose()
    }

    /// Writes the value of `key`, if there is one, to `target`.
    pub(crate) fn update<T>(
        &self,
        key: &str,
        target: &mut T,
        read: impl FnOnce(&Field<'a>) -> Result<T, Fault>,
    ) -> Result<(), Fault> {
        if let Some(value) = self.read(key, read)? {
            *target = value;
        }
        Ok(())
    }

    /// Something is wrong with the section as a whole.
    pub(crate) fn fault(&self, message: impl Display) -> Fault {
        Fault::new(self.place, &self.name, message)
    }

    fn key(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }
}

/// A value with the path to it.
#[derive(Debug, Clone)]
pub(crate) struct Field<'a> {
    key: String,
    node: &'a Node,
}

impl<'a> Field<'a> {
    /// Something is wrong with it.
    pub(crate) fn fault(&self, message: impl Display) -> Fault {
        Fault::new(&self.node.place, &self.key, message)
    }

    /// A text.
    pub(crate) fn text(&self) -> Result<&'a str, Fault> {
        match &self.node.value {
            Value::Text(text) | Value::Word(text) => Ok(text),
            other => Err(self.fault(format!("{other} is not a text in quotation marks"))),
        }
    }

    /// Whether it is this very text.
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(&self.node.value, Value::Text(found) | Value::Word(found) if found == text)
    }

    /// Whether it is a table, and not a text or a number.
    pub(crate) fn is_table(&self) -> bool {
        matches!(self.node.value, Value::Table(_))
    }

    /// A name: letters, digits, `-` and `_`.
    pub(crate) fn name(&self) -> Result<&'a str, Fault> {
        let name = self.text()?;
        if is_name(name) {
            return Ok(name);
        }
        let accepted = format!("write 1 to {MAX_NAME} letters (a to z), digits, - or _");
        Err(self.fault(format!("\"{name}\" is not a name: {accepted}")))
    }

    /// A quantity with its unit, or any other value with a textual form.
    pub(crate) fn value<T: FromStr<Err: Display>>(&self) -> Result<T, Fault> {
        match &self.node.value {
            Value::Text(text) | Value::Word(text) | Value::Number(text) => {
                text.parse().map_err(|error: T::Err| self.fault(error))
            }
            // The type's own error says what it accepts.
            other => {
                let reason = other.to_string().parse::<T>().err().map(|error| error.to_string());
                Err(self.fault(reason.unwrap_or_else(|| format!("{other} is not accepted here"))))
            }
        }
    }

    /// A span of time.
    pub(crate) fn span(&self) -> Result<Duration, Fault> {
        self.value::<Span>().map(Span::get)
    }

    /// A span of time of at least `least`.
    pub(crate) fn span_from(&self, least: Duration) -> Result<Duration, Fault> {
        let span = self.span()?;
        if span >= least {
            return Ok(span);
        }
        Err(self.fault(format!("{} is too short: write {} or more", Span(span), Span(least))))
    }

    /// A whole number.
    pub(crate) fn whole(&self, accepted: RangeInclusive<u64>) -> Result<u64, Fault> {
        let number = match &self.node.value {
            Value::Number(text) | Value::Word(text) => text.parse().ok(),
            _ => None,
        };
        number.filter(|number| accepted.contains(number)).ok_or_else(|| {
            let (least, most) = accepted.into_inner();
            self.fault(format!("{} is not a whole number between {least} and {most}", self.node.value))
        })
    }

    /// A whole number in the range of `u32`, or nothing where it is the word `none`.
    pub(crate) fn whole_or(&self, none: &str, accepted: RangeInclusive<u32>) -> Result<Option<u32>, Fault> {
        if self.is(none) {
            return Ok(None);
        }
        let (least, most) = accepted.into_inner();
        match self.whole(least.into()..=most.into()) {
            Ok(number) => Ok(u32::try_from(number).ok()),
            Err(_) => {
                let found = &self.node.value;
                Err(self.fault(format!(
                    "{found} is neither \"{none}\" nor a whole number between {least} and {most}"
                )))
            }
        }
    }

    /// A positive number.
    pub(crate) fn positive(&self) -> Result<f64, Fault> {
        let number = match &self.node.value {
            Value::Number(text) | Value::Word(text) => text.parse().ok(),
            _ => None,
        };
        let accepted = |number: &f64| number.is_finite() && *number > 0.0;
        number
            .filter(accepted)
            .ok_or_else(|| self.fault(format!("{} is not a number above 0", self.node.value)))
    }

    /// `true` or `false`.
    pub(crate) fn boolean(&self) -> Result<bool, Fault> {
        match &self.node.value {
            Value::Boolean(boolean) => Ok(*boolean),
            Value::Word(word) if word == "true" => Ok(true),
            Value::Word(word) if word == "false" => Ok(false),
            other => Err(self.fault(format!("{other} is neither true nor false"))),
        }
    }

    /// The elements of a list.
    pub(crate) fn list(&self) -> Result<Vec<Field<'a>>, Fault> {
        let Value::Array(elements) = &self.node.value else {
            return Err(self.fault(format!("{} is not a list in brackets", self.node.value)));
        };
        let element = |(index, node)| Field { key: format!("{}[{}]", self.key, index + 1), node };
        Ok(elements.iter().enumerate().map(element).collect())
    }

    /// The table with these keys.
    pub(crate) fn section(&self, keys: &[&str]) -> Result<Section<'a>, Fault> {
        Section::new(&self.key, self.node, keys)
    }

    /// The table with these keys, which errors call by its own name, as `link.satellite`, where it has one.
    pub(crate) fn named_section(&self, kind: &str, keys: &[&str]) -> Result<Section<'a>, Fault> {
        let name = match &self.node.value {
            Value::Table(table) => table.get("name").map(|node| Field { key: kind.to_owned(), node }),
            _ => None,
        };
        let name = name.and_then(|field| field.name().ok());
        Section::new(&name.map_or_else(|| self.key.clone(), |name| format!("{kind}.{name}")), self.node, keys)
    }

    /// The entries of a table whose keys are names.
    pub(crate) fn entries(&self) -> Result<Vec<(&'a str, Field<'a>)>, Fault> {
        let Value::Table(table) = &self.node.value else {
            return Err(self.fault(format!("{} is not a table of named ones", self.node.value)));
        };
        let entry = |(name, node): (&'a String, &'a Node)| {
            let field = Field { key: format!("{}.{name}", self.key), node };
            (name.as_str(), field)
        };
        Ok(table.iter().map(entry).collect())
    }
}

/// Whether it can be the name of a link, a node, a flow or a set of TCP's parameters.
pub(crate) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::{ByteCount, Rate};

    fn read<T>(text: &str, read: impl Fn(&Field<'_>) -> Result<T, Fault>) -> Result<T, String> {
        let document = Node::parse(text).unwrap();
        let section = Section::new("", &document, &["x"]).map_err(|fault| fault.in_file("f").to_string())?;
        read(&section.get("x").unwrap()).map_err(|fault| fault.in_file("f").to_string())
    }

    #[test]
    fn a_quantity_may_be_a_text_or_a_number() {
        assert_eq!(read("x = '10MB'", |field| field.value()).map(ByteCount::get), Ok(10_000_000));
        assert_eq!(read("x = 1_500", |field| field.value()).map(ByteCount::get), Ok(1500));
        assert_eq!(read("x = 0x10", |field| field.value()).map(ByteCount::get), Ok(16));
        assert!(read("x = 600", |field| field.span()).unwrap_err().contains("unit is missing"));
        assert!(
            read("x = true", |field| field.value::<Rate>())
                .unwrap_err()
                .contains("\"true\" is not a bit rate")
        );
        assert!(
            read("x = [1]", |field| field.value::<Rate>())
                .unwrap_err()
                .contains("\"a list\" is not a bit rate")
        );
        assert!(read("x = -1", |field| field.value::<Rate>()).unwrap_err().contains("must be zero or more"));
    }

    #[test]
    fn a_number_out_of_range_is_answered_with_the_range() {
        let text = read("x = 11", |field| field.whole(1..=10)).unwrap_err();
        assert_eq!(text, "f:1: x: 11 is not a whole number between 1 and 10");
        for wrong in ["x = 1.5", "x = -1", "x = '3'", "x = 99999999999999999999"] {
            assert!(read(wrong, |field| field.whole(0..=10)).is_err(), "{wrong}");
        }
        let text = read("x = 'never'", |field| field.whole_or("endless", 1..=9)).unwrap_err();
        assert!(text.contains("neither \"endless\" nor a whole number between 1 and 9"), "{text}");
        for wrong in ["x = 0", "x = nan", "x = inf", "x = -120.0", "x = '120'"] {
            assert!(read(wrong, |field| field.positive()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_unknown_key_is_answered_with_the_known_ones() {
        assert_eq!(
            read("\ny = 1", |field| field.boolean()),
            Err("f:2: y: there is no such key; there is x".into())
        );
    }

    #[test]
    fn a_name_can_be_part_of_a_file_name() {
        for name in ["", "a b", "a/b", "..", "a.b", "é", &"x".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
        assert!(is_name("rto-10s_2"));
    }
}
