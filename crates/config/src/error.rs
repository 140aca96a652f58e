//! What can be wrong with a file, and where.

use std::fmt::{self, Display, Write};

/// Why a file could not be used. Each is one line of text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file's path.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is longer than any that is meant.
    #[error("{file} is longer than {limit} bytes: is it the right file?")]
    TooLong {
        /// The file's path.
        file: String,
        /// The most that is read, bytes.
        limit: u64,
    },
    /// A value is not accepted.
    #[error("{file}{place}: {}{what}", prefix(.key))]
    Value {
        /// The file's path.
        file: String,
        /// Where the value, or the table that lacks it, is.
        place: Place,
        /// The path of the key; empty for the whole file.
        key: String,
        /// What is wrong and what is accepted.
        what: String,
    },
}

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a line of the file, counted from one.
    Line(usize),
    /// In a setting from a command line, `KEY=VALUE`.
    Setting(String),
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, ":{line}"),
            Place::Setting(setting) => write!(f, " with {}", one_line(setting)),
        }
    }
}

/// What is wrong with a value, before its line is known.
///
/// It is made where the value is judged, with the key as it is called there; each caller adds the key of its
/// own table with [`InTable::inside`]. As a [`serde::de::Error`] it words what serde finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Innermost first.
    path: Vec<Step>,
    what: String,
    /// The key that is missing, if that is the problem.
    missing: Option<&'static str>,
}

/// One part of a key's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A key of a table.
    Key(String),
    /// An element of a list, counted from zero.
    Index(usize),
}

impl From<&str> for Step {
    fn from(key: &str) -> Self {
        Step::Key(key.to_owned())
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Step::Index(index)
    }
}

impl Problem {
    /// Something is wrong with the table, list or value at hand.
    pub fn new(what: impl Display) -> Self {
        Self { path: Vec::new(), what: what.to_string(), missing: None }
    }

    /// Something is wrong with the value of `key` in the table at hand.
    pub fn of(key: &str, what: impl Display) -> Self {
        Self::new(what).inside(key)
    }

    /// The same, seen from the table or list in which this stands under `step`.
    pub fn inside(mut self, step: impl Into<Step>) -> Self {
        self.path.push(step.into());
        self
    }

    /// Adds `; or write "word"` if the problem is the value at hand and not something inside it.
    pub(crate) fn or_word(mut self, word: &str) -> Self {
        if self.path.is_empty() && self.missing.is_none() {
            let _ = write!(self.what, "; or write \"{word}\"");
        }
        self
    }

    /// From the document inwards.
    pub(crate) fn path(&self) -> impl Iterator<Item = &Step> {
        self.path.iter().rev()
    }

    /// What is wrong; where a key is missing, with its example.
    pub(crate) fn text(self, examples: &[(&str, &str)]) -> String {
        let example = examples.iter().find(|(key, _)| Some(*key) == self.missing);
        match example {
            Some((key, value)) => format!("{}; write for example {key} = {value}", self.what),
            None => self.what,
        }
    }
}

/// Adds the table's key to a problem on its way out.
pub trait InTable<T> {
    /// The error, if it is one, seen from the table or list in which this stands under `step`.
    ///
    /// # Errors
    /// The same.
    fn inside(self, step: impl Into<Step>) -> Result<T, Problem>;
}

impl<T> InTable<T> for Result<T, Problem> {
    fn inside(self, step: impl Into<Step>) -> Result<T, Problem> {
        self.map_err(|problem| problem.inside(step))
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Problem {}

impl serde::de::Error for Problem {
    fn custom<T: Display>(message: T) -> Self {
        Problem::new(message)
    }

    fn invalid_type(found: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Problem::new(format!("{} is not {}", described(found), expectation(expected)))
    }

    fn invalid_value(found: serde::de::Unexpected<'_>, expected: &dyn serde::de::Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let hint = did_you_mean(variant, expected);
        Problem::new(format!("\"{variant}\" is not accepted{hint}: choose {}", alternatives(expected)))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let hint = did_you_mean(field, expected);
        Problem::new(format!("there is no such key{hint}; there is {}", expected.join(", ")))
    }

    fn missing_field(field: &'static str) -> Self {
        Self { missing: Some(field), ..Problem::new(format!("{field} is missing")) }
    }
}

fn described(found: serde::de::Unexpected<'_>) -> String {
    use serde::de::Unexpected;
    match found {
        Unexpected::Str(text) => format!("\"{text}\""),
        Unexpected::Bool(boolean) => boolean.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => number.to_string(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a table".into(),
        other => other.to_string(),
    }
}

/// What was expected, in words where serde names a type of Rust.
pub(crate) fn expectation(expected: &dyn serde::de::Expected) -> String {
    match expected.to_string().as_str() {
        "u8" => format!("a whole number between 0 and {}", u8::MAX),
        "u16" => format!("a whole number between 0 and {}", u16::MAX),
        "u32" => format!("a whole number between 0 and {}", u32::MAX),
        "u64" | "usize" => "a whole number that is zero or more".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a string" => "a text in quotation marks".into(),
        other => other.to_owned(),
    }
}

/// `there is no x; there is a, b`: for a name that leads nowhere.
pub fn unknown<S: AsRef<str>>(name: &str, known: &[S]) -> String {
    const SHOWN: usize = 20;
    let names: Vec<&str> = known.iter().map(AsRef::as_ref).take(SHOWN).collect();
    let more = if known.len() > SHOWN { ", …" } else { "" };
    match names.is_empty() {
        true => format!("there is no {name}, nor anything else of its kind"),
        false => {
            format!("there is no {name}{}; there is {}{more}", did_you_mean(name, known), names.join(", "))
        }
    }
}

/// ` (did you mean a?)` if a known name is nearly the same.
fn did_you_mean<S: AsRef<str>>(name: &str, known: &[S]) -> String {
    const LONGEST: usize = 64;
    if name.len() > LONGEST {
        return String::new();
    }
    // A third of the letters, so that a short name is not taken for any other.
    let near =
        |known: &&S| strsim::osa_distance(name, known.as_ref()) <= known.as_ref().len().min(name.len()) / 3;
    let best = known.iter().filter(near).min_by_key(|known| strsim::osa_distance(name, known.as_ref()));
    best.map_or_else(String::new, |best| format!(" (did you mean {}?)", best.as_ref()))
}

/// `a, b or c`.
pub(crate) fn alternatives(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn prefix(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!("{key}: ") }
}

/// The longest text about a value, characters; beyond it, the middle is left out.
const MAX_CHARS: usize = 600;
/// The longest key.
const MAX_KEY_CHARS: usize = 200;

impl Error {
    pub(crate) fn value(file: &str, place: &Place, key: &str, what: &str) -> Self {
        let key = shortened(key, MAX_KEY_CHARS);
        Error::Value { file: file.to_owned(), place: place.clone(), key, what: one_line(what) }
    }
}

fn one_line(text: &str) -> String {
    shortened(text, MAX_CHARS)
}

/// The text without line breaks and other control characters, which could come from the file, and not too
/// long.
fn shortened(text: &str, longest: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let length = text.chars().count();
    if length <= longest {
        return text.chars().map(plain).collect();
    }
    let half = longest / 2;
    let (head, tail) = (text.chars().take(half), text.chars().skip(length - half));
    head.chain(" … ".chars()).chain(tail).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_bearable_length() {
        let message = format!("\"{}\n\u{1b}[2J\" is not a name: write letters", "x".repeat(100_000));
        let text = Error::value("a.toml", &Place::Line(7), "link", &message).to_string();
        assert!(text.starts_with("a.toml:7: link: \"xxx") && text.ends_with("write letters"), "{text}");
        assert!(text.len() < 700 && !text.contains(char::is_control), "{text}");
        let text = Error::value("a.toml", &Place::Line(7), &"k\n".repeat(1000), "is long").to_string();
        assert!(text.len() < 300 && !text.contains(char::is_control), "{text}");
    }

    #[test]
    fn a_name_that_is_nearly_known_is_suggested() {
        let text = unknown("interfce", &["rate", "interface"]);
        assert_eq!(text, "there is no interfce (did you mean interface?); there is rate, interface");
        assert_eq!(unknown("moon", &["sat"]), "there is no moon; there is sat");
        assert_eq!(unknown::<&str>("moon", &[]), "there is no moon, nor anything else of its kind");
    }
}
