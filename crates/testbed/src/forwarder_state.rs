use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bentpipe_link::{Cause, Counters, Direction, Fate, Mangled, MangledCounters, Mangler, Mangling};
use bentpipe_units::{ByteCount, Time};
use rustix::io::Errno;

use crate::in_flight::Flying;
use crate::lateness::Lateness;
use crate::outage::CommandedOutages;

/// What a carrier's thread shares with those who watch it.
#[derive(Debug)]
pub(crate) struct ForwarderState {
    path: Mutex<Path>,
    outages: Arc<CommandedOutages>,
    lateness: Lateness,
    written: AtomicU64,
    written_bytes: AtomicU64,
    refused: AtomicU64,
    cut: AtomicU64,
    cut_bytes: AtomicU64,
    failure: OnceLock<Errno>,
}

/// What decides over packets: the model, and behind it what mangles those that it delivers.
#[derive(Debug)]
struct Path {
    direction: Direction,
    mangler: Option<Mangler>,
}

impl ForwarderState {
    pub(crate) fn new(direction: Direction, outages: Arc<CommandedOutages>) -> Self {
        Self {
            path: Mutex::new(Path { direction, mangler: None }),
            outages,
            lateness: Lateness::new(),
            written: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            cut_bytes: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    /// Bytes that wait in front of the transmitter, or are being sent.
    pub(crate) fn backlog(&self, now: Time) -> ByteCount {
        self.path().direction.backlog(now)
    }

    /// When the model delivers what is offered `now` with `length` bytes, and what arrives of it; why not, if it is lost. The
    /// mangler flips bits in the `packet` bytes of it that are the IP packet.
    pub(crate) fn offer(&self, now: Time, length: usize, packet: usize) -> Result<(Time, Mangled), Cause> {
        let mut path = self.path();
        let at = match path.direction.offer(now, length) {
            Fate::Deliver { at } => at,
            Fate::Drop(cause) => return Err(cause),
        };
        let mangled =
            path.mangler.as_mut().map_or(Mangled::unharmed(at), |mangler| mangler.mangle(at, packet));
        Ok((at, mangled))
    }

    /// Whether a commanded outage loses what would arrive now; counts it if so.
    pub(crate) fn is_cut<T>(&self, flying: &Flying<T>) -> bool {
        let cut = self.outages.cover(flying.departure);
        if cut && !flying.duplicate {
            self.cut_bytes.fetch_add(flying.length as u64, Ordering::Release);
            self.cut.fetch_add(1, Ordering::Release);
        }
        cut
    }

    /// A packet of `bytes` was written to the far end, which has taken or refused it.
    pub(crate) fn count_written(&self, bytes: usize, taken: bool) {
        if taken {
            self.written.fetch_add(1, Ordering::Relaxed);
            self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        } else {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was to arrive at `due` has arrived `now`.
    pub(crate) fn record_lateness(&self, due: Time, now: Time) {
        self.lateness.record(now - due);
    }

    /// The carrier gives up.
    pub(crate) fn fail(&self, errno: Errno) {
        let _ = self.failure.set(errno);
    }

    /// The model's counters, with the packets that a commanded outage lost moved to where the model counts outages.
    pub(crate) fn counters(&self) -> Counters {
        // Before the model's, so that no packet is counted as cut and not yet as delivered.
        let (cut, cut_bytes) = (self.cut.load(Ordering::Acquire), self.cut_bytes.load(Ordering::Acquire));
        let mut counters = *self.path().direction.counters();
        counters.delivered -= cut;
        counters.delivered_bytes -= cut_bytes;
        counters.dropped.outage += cut;
        counters
    }

    pub(crate) fn written(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.written_bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn lateness(&self) -> &Lateness {
        &self.lateness
    }

    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.failure.get().map(|&errno| errno.into())
    }

    /// Begins to mangle what the model delivers; what is in flight already arrives unharmed.
    pub(crate) fn mangle(&self, mangling: &Mangling, seed: u64) {
        self.path().mangler = (!mangling.is_nothing()).then(|| Mangler::new(mangling, seed));
    }

    /// What has been mangled since [`ForwarderState::mangle`].
    pub(crate) fn mangled(&self) -> MangledCounters {
        self.path().mangler.as_ref().map(|mangler| *mangler.counters()).unwrap_or_default()
    }

    fn path(&self) -> MutexGuard<'_, Path> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
