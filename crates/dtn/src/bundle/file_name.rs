//! The name of the file that a payload was.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

/// The longest name, bytes, as file systems have it.
const MAX_LEN: usize = 255;

/// The name of a file within its folder. It cannot lead elsewhere: it has no slash, does not begin with a dot,
/// and has no control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileName(Box<str>);

/// Text that names no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a file's name: it has 1 to {MAX_LEN} bytes, no slash, no dot at its beginning and no control characters"
)]
pub struct FileNameError;

impl FileName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FileName {
    type Err = FileNameError;

    fn from_str(text: &str) -> Result<Self, FileNameError> {
        let is_one = !text.is_empty()
            && text.len() <= MAX_LEN
            && !text.starts_with('.')
            && !text.contains(|character: char| character == '/' || character.is_control());
        if is_one { Ok(Self(text.into())) } else { Err(FileNameError) }
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for FileName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_lead_elsewhere() {
        for name in ["report.pdf", "Übersicht 3.pdf", "a", "-rf", &"x".repeat(MAX_LEN)] {
            assert_eq!(name.parse::<FileName>().unwrap().as_str(), name);
        }
        for name in ["", ".", "..", ".profile", "a/b", "/etc/passwd", "a\0", "a\nb", &"x".repeat(MAX_LEN + 1)]
        {
            assert_eq!(name.parse::<FileName>(), Err(FileNameError), "{name:?}");
        }
    }
}
