//! Time as bundles carry it.

mod date;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Milliseconds since 2000-01-01 00:00:00 UTC, leap seconds not counted (RFC 9171 §4.2.6). Zero says that the
/// clock was not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DtnTime(u64);

/// 2000-01-01 in Unix time, milliseconds.
const EPOCH_MS: u64 = 946_684_800_000;

impl DtnTime {
    /// The source has no clock that it trusts.
    pub const UNKNOWN: Self = Self(0);

    /// A time on the wire.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// The same time on a clock that counts from the beginning of 1970; what lies before 2000 is
    /// [`UNKNOWN`](Self::UNKNOWN).
    pub fn from_unix(since_1970: Duration) -> Self {
        let millis = u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX);
        Self(millis.saturating_sub(EPOCH_MS))
    }

    /// Milliseconds since 2000.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Since the beginning of 1970.
    pub fn to_unix(self) -> Duration {
        Duration::from_millis(self.0.saturating_add(EPOCH_MS))
    }

    /// How long ago `earlier` was; zero if it was not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Earlier by `span`; `None` before 2000.
    pub fn before(self, span: Duration) -> Option<Self> {
        self.0.checked_sub(u64::try_from(span.as_millis()).ok()?).map(Self)
    }

    /// Later by `span`, or the end of time.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for DtnTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9171 §4.2.6: DTN time counts milliseconds from the year 2000 on.
    #[test]
    fn the_epoch_is_the_year_2000() {
        let noon = Duration::from_secs(946_684_800 + 12 * 3600);
        assert_eq!(DtnTime::from_unix(noon).millis(), 12 * 3_600_000);
        assert_eq!(DtnTime::from_unix(noon).to_unix(), noon);
        assert_eq!(DtnTime::from_unix(Duration::ZERO), DtnTime::UNKNOWN);
    }

    #[test]
    fn time_ends_instead_of_wrapping() {
        assert_eq!(DtnTime::from_millis(5).after(Duration::MAX).millis(), u64::MAX);
        assert_eq!(DtnTime::from_millis(5).since(DtnTime::from_millis(7)), Duration::ZERO);
    }
}
