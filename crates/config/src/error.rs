//! What can be wrong with a file, and where.

use std::fmt::{self, Display, Write};

use crate::node::{Node, Value};
use crate::place::{Place, Step};
use crate::text::{one_line, shortened};

/// Why a file could not be used. It prints as one line of text for each thing that is wrong.
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
    /// Some of what it says is not accepted: all of that, in the order of the lines, at least one.
    #[error("{}", lines(.0))]
    Faults(Vec<Fault>),
}

/// Something in a file that is not accepted, or that is accepted and warned of. It prints as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file's path.
    pub file: String,
    /// Where the value, or the table that lacks it, is.
    pub place: Place,
    /// The path of the key; empty for the whole file.
    pub key: String,
    /// What is wrong and what is accepted.
    pub what: String,
    /// The line of the file, without surrounding space; none for a setting.
    pub written: Option<String>,
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: {}{}", self.file, self.place, prefix(&self.key), self.what)
    }
}

impl Fault {
    pub(crate) fn new(file: &str, place: &Place, key: &str, what: &str) -> Self {
        let key = shortened(key, MAX_KEY_CHARS);
        Self { file: file.to_owned(), place: place.clone(), key, what: one_line(what), written: None }
    }

    /// The same with the line of the text that it is in.
    pub(crate) fn in_text(self, text: &str) -> Self {
        let Place::Line(line) = self.place else { return self };
        let written = text.lines().nth(line.saturating_sub(1)).map(|line| one_line(line.trim()));
        Self { written: written.filter(|line| !line.is_empty()), ..self }
    }

    /// The line of the file, counted from one; none for a setting.
    pub fn line(&self) -> Option<usize> {
        match self.place {
            Place::Line(line) => Some(line),
            Place::Setting(_) => None,
        }
    }

    /// The file and the line, `bentpipe.toml:3`.
    pub fn location(&self) -> String {
        format!("{}{}", self.file, self.place)
    }

    /// What is wrong, with the key, and what to do about it.
    pub fn parts(&self) -> (String, String) {
        let (reason, remedy) = split_remedy(&self.what);
        let remedy = remedy.map_or_else(|| format!("correct {}", self.location()), str::to_owned);
        (format!("{}{reason}", prefix(&self.key)), remedy)
    }
}

/// Every message is what is wrong, then a semicolon, or a colon before `choose` and `write`, and what to do.
/// What the file itself says stands in quotation marks, and is not searched.
fn split_remedy(what: &str) -> (&str, Option<&str>) {
    let outside = |at: &usize| what[..*at].matches('"').count().is_multiple_of(2);
    let ends = ["; ", ": choose ", ": write ", ": give "].iter().filter_map(|mark| {
        let mut found = what.match_indices(mark).map(|(at, _)| at).filter(outside);
        found.next()
    });
    match ends.min() {
        Some(end) => (&what[..end], Some(what[end + 1..].trim_start())),
        None => (what, None),
    }
}

fn lines(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}

/// What is wrong with a value, before its line is known.
///
/// It is made where the value is judged, with the key as it is called there; each caller adds the key of its
/// own table with [`InTable::inside`]. As a [`serde::de::Error`] it words what serde finds. A message says
/// what is wrong and, behind a semicolon, what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Innermost first.
    path: Vec<Step>,
    what: String,
    kind: Kind,
}

/// The problems that are more than a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Other,
    /// This key is missing in the table at hand.
    Missing(&'static str),
    /// The key is unknown; this one was probably meant.
    UnknownKey(Option<String>),
    /// A value stands where a table is expected.
    NotATable,
    /// The same where the table's name is the operator's choice.
    Unnamed,
}

impl Problem {
    /// Something is wrong with the table, list or value at hand.
    pub fn new(what: impl Display) -> Self {
        Self { path: Vec::new(), what: what.to_string(), kind: Kind::Other }
    }

    /// Something is wrong with the value of `key` in the table at hand.
    pub fn of(key: &str, what: impl Display) -> Self {
        Self::new(what).inside(key)
    }

    pub(crate) fn with_kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// The same, seen from the table or list in which this stands under `step`.
    pub fn inside(mut self, step: impl Into<Step>) -> Self {
        self.path.push(step.into());
        self
    }

    /// The same for the value of `key`: a value that is advised becomes a line of the file.
    pub(crate) fn at_key(mut self, key: &str) -> Self {
        if self.is_at_hand() {
            self.what = self.what.replacen("; write \"", &format!("; write {key} = \""), 1);
        }
        self.inside(key)
    }

    /// Adds `; or write "word"` if the problem is the value at hand and not something inside it.
    pub(crate) fn or_word(mut self, word: &str) -> Self {
        if self.is_at_hand() {
            let _ = write!(self.what, "; or write \"{word}\"");
        }
        self
    }

    /// Whether it is the value at hand, and not something inside it.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.path.is_empty() && !matches!(self.kind, Kind::Missing(_))
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// From the document inwards.
    pub(crate) fn path(&self) -> impl Iterator<Item = &Step> {
        self.path.iter().rev()
    }

    /// What is wrong, where `found` is the value at its path and `table` the path of the table around that;
    /// where a key is missing, with its example.
    pub(crate) fn text(self, found: Option<&Value>, table: &str, examples: &[(&str, &str)]) -> String {
        let Self { what, kind, .. } = self;
        match kind {
            Kind::Missing(missing) => match examples.iter().find(|(key, _)| *key == missing) {
                Some((key, value)) => format!("{what}; write for example {key} = {value}"),
                None => what,
            },
            // Only at the top do brackets have the whole name.
            Kind::UnknownKey(Some(meant)) if table.is_empty() => {
                let (open, close) = brackets(found);
                what.replacen(&format!("mean {meant}?"), &format!("mean {open}{meant}{close}?"), 1)
            }
            Kind::Unnamed => format!("{what}; write [{table}.NAME] above it, with a name of your choice"),
            Kind::UnknownKey(_) | Kind::NotATable | Kind::Other => what,
        }
    }
}

/// What a key stands in that has this value, if it is a header.
fn brackets(value: Option<&Value>) -> (&'static str, &'static str) {
    let is_table = |element: &Node| matches!(element.value, Value::Table(_));
    match value {
        Some(Value::Table(_)) => ("[", "]"),
        Some(Value::List(elements)) if elements.iter().all(is_table) => ("[[", "]]"),
        _ => ("", ""),
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
            .with_kind(Kind::UnknownKey(nearest(field, expected).map(str::to_owned)))
    }

    fn missing_field(field: &'static str) -> Self {
        Problem::new(format!("{field} is missing")).with_kind(Kind::Missing(field))
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
    nearest(name, known).map_or_else(String::new, |best| format!(" (did you mean {best}?)"))
}

/// The known name that was probably meant: one that differs in a third of its letters at the most, so that a
/// short name is not taken for any other, or one that is an abbreviation or an extension.
fn nearest<'a, S: AsRef<str>>(name: &str, known: &'a [S]) -> Option<&'a str> {
    const LONGEST: usize = 64;
    const SHORTEST_PART: usize = 3;
    if name.len() > LONGEST {
        return None;
    }
    let name = name.to_lowercase();
    let distance = |known: &str| strsim::osa_distance(&name, &known.to_lowercase());
    let is_part = |part: &str, whole: &str| part.len() >= SHORTEST_PART && whole.starts_with(part);
    let is_near = |known: &&str| {
        distance(known) <= known.len().min(name.len()) / 3 || is_part(&name, known) || is_part(known, &name)
    };
    known.iter().map(AsRef::as_ref).filter(is_near).min_by_key(|known| distance(known))
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

/// The longest key.
const MAX_KEY_CHARS: usize = 200;

impl Error {
    /// What is wrong with what the file says; nothing if it could not be read.
    pub fn faults(&self) -> &[Fault] {
        match self {
            Self::Faults(faults) => faults,
            Self::Read { .. } | Self::TooLong { .. } => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_bearable_length() {
        let message = format!("\"{}\n\u{1b}[2J\" is not a name: write letters", "x".repeat(100_000));
        let text = Fault::new("a.toml", &Place::Line(7), "link", &message).to_string();
        assert!(text.starts_with("a.toml:7: link: \"xxx") && text.ends_with("write letters"), "{text}");
        assert!(text.len() < 700 && !text.contains(char::is_control), "{text}");
        let text = Fault::new("a.toml", &Place::Line(7), &"k\n".repeat(1000), "is long").to_string();
        assert!(text.len() < 300 && !text.contains(char::is_control), "{text}");
    }

    #[test]
    fn a_message_is_a_reason_and_a_remedy() {
        let parts = |key: &str, what: &str| Fault::new("f", &Place::Line(2), key, what).parts();
        let owned = |(reason, remedy): (&str, &str)| (reason.to_owned(), remedy.to_owned());
        for (what, expected) in [
            ("\"a; b\" is odd; write c; or d", ("k: \"a; b\" is odd", "write c; or d")),
            ("\"x\" is not accepted: choose a or b", ("k: \"x\" is not accepted", "choose a or b")),
            ("3 is odd", ("k: 3 is odd", "correct f:2")),
        ] {
            assert_eq!(parts("k", what), owned(expected));
        }
    }

    #[test]
    fn a_name_that_is_nearly_known_is_suggested() {
        let text = unknown("interfce", &["rate", "interface"]);
        assert_eq!(text, "there is no interfce (did you mean interface?); there is rate, interface");
        assert_eq!(unknown("moon", &["sat"]), "there is no moon; there is sat");
        for (name, meant) in [("Rate", "rate"), ("congestion_control", "congestion"), ("int", "interface")] {
            assert_eq!(nearest(name, &["interface", "rate", "congestion"]), Some(meant));
        }
        assert_eq!(nearest("rt", &["rate", "rtt"]), None);
        assert_eq!(unknown::<&str>("moon", &[]), "there is no moon, nor anything else of its kind");
    }
}
