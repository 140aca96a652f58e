//! Whether the rules are in force and the daemon's threads are alive.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Crossing, PATIENCE};

/// Whether connections are split, and what shows that they come through; for all threads.
#[derive(Debug)]
pub(crate) struct Liveness {
    epoch: Instant,
    /// When the rules were last renewed, in milliseconds since `epoch`; zero is never.
    last: AtomicU64,
    /// When every thread last acknowledged its heartbeat, in the same unit.
    alive: AtomicU64,
    /// Connections that the workers have accepted, of IPv6 and of IPv4.
    accepted: [AtomicU64; 2],
    /// Until when nothing is taken because nothing came of it, in the same unit.
    suspended_until: AtomicU64,
    /// Sides of connections of late, at most one of each family for each interface.
    crossings: Mutex<BTreeMap<(u32, bool), Noted>>,
    /// The last suspension that nobody has looked at.
    suspension: Mutex<Option<Suspension>>,
}

/// Connections pass unsplit because nothing has come of those that were taken.
#[derive(Debug)]
pub(crate) struct Suspension {
    pub(crate) time: Duration,
    /// The connection of which nothing has come.
    pub(crate) connection: String,
}

/// The side of a connection of late.
#[derive(Debug)]
struct Noted {
    crossing: Crossing,
    at: Instant,
    /// When one of its interface and family was last looked at, and whether it had gone astray.
    looked: Instant,
    is_astray: bool,
}

/// How often crossings of one interface and family are looked at, at the most.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// As many interfaces as are remembered.
const CROSSINGS: usize = 64;
/// How long a connection is of late. Its client may have moved to another interface by then.
const OF_LATE: Duration = Duration::from_secs(60);

impl Liveness {
    pub(crate) fn new() -> Self {
        Self::since(Instant::now())
    }

    fn since(epoch: Instant) -> Self {
        Self {
            epoch,
            last: AtomicU64::new(0),
            alive: AtomicU64::new(0),
            accepted: Default::default(),
            suspended_until: AtomicU64::new(0),
            crossings: Mutex::default(),
            suspension: Mutex::default(),
        }
    }

    pub(crate) fn note_accepted(&self, is_ipv4: bool) {
        self.accepted[usize::from(is_ipv4)].fetch_add(1, Ordering::Relaxed);
    }

    /// How many connections of a family have been accepted so far.
    pub(crate) fn accepted(&self, is_ipv4: bool) -> u64 {
        self.accepted[usize::from(is_ipv4)].load(Ordering::Relaxed)
    }

    /// Lets new connections pass for a time: nothing has come of one that was taken.
    pub(crate) fn suspend(&self, time: Duration, connection: String) {
        let until = self.now().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.suspended_until.store(until, Ordering::Release);
        *self.suspension.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Suspension { time, connection });
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.now() < self.suspended_until.load(Ordering::Acquire)
    }

    /// A suspension that has not been asked for yet.
    pub(crate) fn take_suspension(&self) -> Option<Suspension> {
        self.suspension.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Remembers one side of a connection, and says whether its packets go astray. One of each interface and
    /// family is looked at in 100 ms.
    pub(crate) fn note_crossing(&self, crossing: Crossing, look: impl FnOnce() -> bool) -> bool {
        let mut crossings = self.crossings.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (crossing.input, crossing.from.is_ipv4());
        let at = Instant::now();
        let (looked, is_astray) = match crossings.get(&key) {
            Some(noted) if at - noted.looked < LOOK_INTERVAL => (noted.looked, noted.is_astray),
            _ => (at, look()),
        };
        if crossings.len() < CROSSINGS || crossings.contains_key(&key) {
            crossings.insert(key, Noted { crossing, at, looked, is_astray });
        }
        is_astray
    }

    /// The sides of connections of late.
    pub(crate) fn crossings(&self) -> Vec<Crossing> {
        let mut crossings = self.crossings.lock().unwrap_or_else(PoisonError::into_inner);
        crossings.retain(|_, noted| noted.at.elapsed() < OF_LATE);
        crossings.values().map(|noted| noted.crossing).collect()
    }

    pub(crate) fn forget_crossings(&self, input: u32) {
        let mut crossings = self.crossings.lock().unwrap_or_else(PoisonError::into_inner);
        crossings.retain(|(of, _), _| *of != input);
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
        moment.store(self.now().max(1), Ordering::Release);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
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
        let stale = Liveness::since(epoch);
        stale.last.store(1, Ordering::Release);
        assert!(!stale.is_fresh());
        stale.note();
        assert!(stale.is_fresh());
    }
}
