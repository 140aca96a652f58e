//! Where a value is: in a file, and in the tables and lists of it.

use std::fmt::{self, Display};

use crate::text::one_line;

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
