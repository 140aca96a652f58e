//! What can be wrong with a scenario, and where it stands.

use std::fmt;

/// Why a scenario could not be used. Each is one line of text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("cannot read the scenario {file}: {source}")]
    Read {
        /// The file's path.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is longer than a scenario can be.
    #[error(
        "{file} is longer than {limit} bytes: is it a scenario? Outages by the thousand go into a file of their own"
    )]
    TooLong {
        /// The file's path.
        file: String,
        /// The most that is read, bytes.
        limit: u64,
    },
    /// A line says something that is not accepted.
    #[error("{file}:{line}: {what}")]
    Line {
        /// The file's path.
        file: String,
        /// The line, counted from one.
        line: usize,
        /// The key, what was found and what would be accepted.
        what: String,
    },
    /// A setting from outside says something that is not accepted.
    #[error("{file} with {setting}: {what}")]
    Setting {
        /// The scenario's path.
        file: String,
        /// The setting as it was written, `KEY=VALUE`.
        setting: String,
        /// The key, what was found and what would be accepted.
        what: String,
    },
    /// Each point of a sweep is well, all of them are too much.
    #[error("the sweep of {file} is too large: {what}")]
    Sweep {
        /// The scenario's path.
        file: String,
        /// How much it is, and how much would be accepted.
        what: String,
    },
}

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a line of the file, counted from one.
    Line(usize),
    /// In a setting from outside, `KEY=VALUE`.
    Setting(String),
}

/// Something wrong at a place, before it is known in which file.
#[derive(Debug)]
pub(crate) struct Fault {
    place: Place,
    what: String,
}

impl Fault {
    /// `message` is about the value of `key` at `place`; about the whole file where `key` is empty.
    pub(crate) fn new(place: &Place, key: &str, message: impl fmt::Display) -> Self {
        let what = if key.is_empty() { message.to_string() } else { format!("{key}: {message}") };
        Self { place: place.clone(), what: one_line(&what) }
    }

    /// The error that people see.
    pub(crate) fn in_file(self, file: &str) -> Error {
        let (file, what) = (file.to_owned(), self.what);
        match self.place {
            Place::Line(line) => Error::Line { file, line, what },
            Place::Setting(setting) => Error::Setting { file, setting: one_line(&setting), what },
        }
    }
}

/// The longest text of an error, characters; what is beyond it is left out in the middle.
const MAX_CHARS: usize = 600;

/// The text without line breaks and other control characters, which could come from the file, and not too long.
fn one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let length = text.chars().count();
    if length <= MAX_CHARS {
        return text.chars().map(plain).collect();
    }
    let half = MAX_CHARS / 2;
    let (head, tail) = (text.chars().take(half), text.chars().skip(length - half));
    head.chain(" … ".chars()).chain(tail).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_bearable_length() {
        let message = format!("\"{}\n\u{1b}[2J\" is not a name: write letters", "x".repeat(100_000));
        let text = Fault::new(&Place::Line(7), "link", message).in_file("a.toml").to_string();
        assert!(text.starts_with("a.toml:7: link: \"xxx") && text.ends_with("write letters"), "{text}");
        assert!(text.len() < 700 && !text.contains(char::is_control), "{text}");
    }
}
