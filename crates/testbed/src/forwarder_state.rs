use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bentpipe_link::{Counters, Direction};
use rustix::io::Errno;

use crate::lateness::Lateness;
use crate::outage::CommandedOutages;

/// The state of a forwarder that other threads read and change.
#[derive(Debug)]
pub(crate) struct ForwarderState {
    direction: Mutex<Direction>,
    pub(crate) outages: Arc<CommandedOutages>,
    pub(crate) lateness: Lateness,
    /// Frames that have crossed the link, without duplicates.
    arrived: AtomicU64,
    arrived_bytes: AtomicU64,
    written: AtomicU64,
    written_bytes: AtomicU64,
    pub(crate) refused: AtomicU64,
    cut: AtomicU64,
    cut_bytes: AtomicU64,
    /// Why the forwarder has stopped, if it has failed.
    pub(crate) failure: OnceLock<Errno>,
}

impl ForwarderState {
    pub(crate) fn new(direction: Direction, outages: Arc<CommandedOutages>) -> Self {
        Self {
            direction: Mutex::new(direction),
            outages,
            lateness: Lateness::new(),
            arrived: AtomicU64::new(0),
            arrived_bytes: AtomicU64::new(0),
            written: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            cut_bytes: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    /// A commanded outage has lost a packet of `bytes`.
    pub(crate) fn count_cut(&self, bytes: usize) {
        self.cut_bytes.fetch_add(bytes as u64, Ordering::Release);
        self.cut.fetch_add(1, Ordering::Release);
    }

    /// A frame of `bytes` has crossed the link.
    pub(crate) fn count_arrived(&self, bytes: usize) {
        self.arrived_bytes.fetch_add(bytes as u64, Ordering::Release);
        self.arrived.fetch_add(1, Ordering::Release);
    }

    /// Frames that have crossed the link, and their bytes.
    pub(crate) fn arrived(&self) -> (u64, u64) {
        (self.arrived.load(Ordering::Acquire), self.arrived_bytes.load(Ordering::Acquire))
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

    /// The model's counters, with the packets that a commanded outage lost moved to where the model counts
    /// outages.
    pub(crate) fn counters(&self) -> Counters {
        // Before the model's, so that no packet is counted as cut and not yet as delivered.
        let (cut, cut_bytes) = (self.cut.load(Ordering::Acquire), self.cut_bytes.load(Ordering::Acquire));
        let mut counters = *self.direction().counters();
        counters.delivered -= cut;
        counters.delivered_bytes -= cut_bytes;
        counters.dropped.outage += cut;
        counters
    }

    pub(crate) fn written(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.written_bytes.load(Ordering::Relaxed))
    }

    /// The model of the link, also after a thread has panicked while it held the lock.
    pub(crate) fn direction(&self) -> MutexGuard<'_, Direction> {
        self.direction.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
