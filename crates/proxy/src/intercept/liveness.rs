//! Whether the rules are in force and the daemon's threads are alive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// When the watchdog last renewed the rules, for other threads to read.
#[derive(Debug)]
pub(crate) struct Liveness {
    epoch: Instant,
    /// When the rules were last renewed, in milliseconds since `epoch`; zero is never.
    last: AtomicU64,
    /// When every thread last acknowledged its heartbeat, in the same unit.
    alive: AtomicU64,
}

impl Liveness {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), last: AtomicU64::new(0), alive: AtomicU64::new(0) }
    }

    /// Whether new connections are split: every thread is alive and the rules are in force.
    pub(crate) fn is_fresh(&self) -> bool {
        self.is_recent(&self.last)
    }

    /// Whether every thread is alive, whether or not new connections are split.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_recent(&self.alive)
    }

    fn is_recent(&self, moment: &AtomicU64) -> bool {
        let moment = moment.load(Ordering::Acquire);
        let age = self.epoch.elapsed().saturating_sub(Duration::from_millis(moment));
        moment > 0 && age < PATIENCE
    }

    pub(crate) fn note(&self) {
        self.stamp(&self.last);
    }

    /// The rules have been told to take no connection.
    pub(crate) fn withdraw(&self) {
        self.last.store(0, Ordering::Release);
    }

    pub(crate) fn note_alive(&self) {
        self.stamp(&self.alive);
    }

    fn stamp(&self, moment: &AtomicU64) {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        moment.store(now.max(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_in_force_from_the_first_sign_of_life_until_its_time_is_over() {
        let liveness = Liveness::new();
        assert!(!liveness.is_fresh(), "there was none yet");
        liveness.note();
        assert!(liveness.is_fresh());
        let Some(epoch) = Instant::now().checked_sub(2 * PATIENCE) else { return };
        let stale = Liveness { epoch, last: AtomicU64::new(1), alive: AtomicU64::new(1) };
        assert!(!stale.is_fresh());
        stale.note();
        assert!(stale.is_fresh());
    }
}
