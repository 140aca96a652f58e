//! Settings from a command line.

use std::fmt;
use std::str::FromStr;

/// A value that is set from outside: `link.satellite.per=1%`.
///
/// The key is the path to the value: `duration`, `link.NAME.per`, `flow.NAME.split.NODE.buffer`. The value is
/// written as in the file, without quotation marks where it is a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Setting {
    /// The path to the value, its parts separated by dots.
    pub key: String,
    /// The value.
    pub value: String,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// A text that is not `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a setting: write KEY=VALUE, for example link.satellite.per=1%")]
pub struct NotASetting(String);

impl FromStr for Setting {
    type Err = NotASetting;

    fn from_str(text: &str) -> Result<Self, NotASetting> {
        let fail = || NotASetting(text.to_owned());
        let (key, value) = text.split_once('=').ok_or_else(fail)?;
        let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
        if key.is_empty() { Err(fail()) } else { Ok(Self { key, value }) }
    }
}
