//! A place at a known distance.

use std::time::Duration;

/// A place with a name, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// The one-way light time.
    pub delay: Duration,
    /// Where the distance stands.
    pub source: String,
}
