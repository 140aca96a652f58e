//! The state of a daemon that drains.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::snapshot;

/// New connections pass unsplit, and the daemon ends with the last flow.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Draining {
    /// When the remaining flows are reset, if ever.
    #[serde(with = "snapshot::optional_instant")]
    pub(crate) until: Option<Instant>,
    /// Before, the daemon does not end although it has no flow, so that draining can still be cancelled.
    #[serde(with = "snapshot::instant")]
    pub(crate) not_before: Instant,
    /// Since when there has been neither a flow nor a handshake, as far as anybody has looked.
    #[serde(skip)]
    pub(crate) quiet_since: Option<Instant>,
}

impl Draining {
    /// Draining that begins now and lasts at least as long as `stay`, but no longer than `time`.
    pub(crate) fn begin(now: Instant, time: Option<Duration>, stay: Duration) -> Self {
        let until = time.and_then(|time| now.checked_add(time));
        let not_before = now.checked_add(stay).unwrap_or(now);
        Self { until, not_before, quiet_since: None }
    }

    /// The time is up.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// Notes whether there is neither a flow nor a handshake now. True once that has been so for as long as
    /// `grace`, and the daemon may end.
    pub(crate) fn note(&mut self, now: Instant, is_quiet: bool, grace: Duration) -> bool {
        self.quiet_since = is_quiet.then(|| self.quiet_since.unwrap_or(now));
        let has_been = |since: Instant| now.saturating_duration_since(since) >= grace;
        now >= self.not_before && self.quiet_since.is_some_and(has_been)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(2);

    #[test]
    fn a_handshake_in_between_begins_the_grace_anew() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut draining = Draining::begin(start, None, Duration::ZERO);
        assert!(!draining.note(at(100), true, GRACE));
        assert!(!draining.note(at(1900), false, GRACE));
        assert!(!draining.note(at(2200), true, GRACE), "quiet since now");
        assert!(!draining.note(at(4199), true, GRACE));
        assert!(draining.note(at(4200), true, GRACE));
    }

    #[test]
    fn an_idle_daemon_stays_for_as_long_as_it_was_asked_to_unless_its_time_is_up() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let stay = Duration::from_secs(20);
        let mut draining = Draining::begin(start, Some(Duration::from_secs(5)), stay);
        assert!(!draining.note(at(0), true, GRACE));
        assert!(!draining.note(at(19_999), true, GRACE));
        assert!(draining.note(at(20_000), true, GRACE));
        assert!(!draining.is_over(at(4999)) && draining.is_over(at(5000)));
        assert!(!Draining::begin(start, None, stay).is_over(at(1_000_000)));
    }
}
