use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bentpipe_link::{Arrivals, Cause, Counters, Direction, ImpairmentCounters, Impairments};
use bentpipe_units::{ByteCount, Time};
use rustix::io::Errno;

use crate::lateness::Lateness;
use crate::outage::CommandedOutages;

/// The state of a forwarder that other threads read and change.
#[derive(Debug)]
pub(crate) struct ForwarderState {
    direction: Mutex<Direction>,
    outages: Arc<CommandedOutages>,
    lateness: Lateness,
    written: AtomicU64,
    written_bytes: AtomicU64,
    refused: AtomicU64,
    cut: AtomicU64,
    cut_bytes: AtomicU64,
    failure: OnceLock<Errno>,
}

impl ForwarderState {
    pub(crate) fn new(direction: Direction, outages: Arc<CommandedOutages>) -> Self {
        Self {
            direction: Mutex::new(direction),
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
        self.direction().backlog(now)
    }

    /// Offers to the model `bytes` of which `ip_bytes` are an IP packet; see [`Direction::transmit`].
    pub(crate) fn transmit(&self, now: Time, bytes: usize, ip_bytes: usize) -> Result<Arrivals, Cause> {
        self.direction().transmit(now, bytes, ip_bytes)
    }

    /// Whether a commanded outage loses a packet whose last bit left at `departure`.
    pub(crate) fn is_cut(&self, departure: Time) -> bool {
        self.outages.cover(departure)
    }

    /// A commanded outage has lost a packet of `bytes`.
    pub(crate) fn count_cut(&self, bytes: usize) {
        self.cut_bytes.fetch_add(bytes as u64, Ordering::Release);
        self.cut.fetch_add(1, Ordering::Release);
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

    /// A packet that was due at `due` has arrived `now`.
    pub(crate) fn record_lateness(&self, due: Time, now: Time) {
        self.lateness.record(now - due);
    }

    /// The forwarder has failed.
    pub(crate) fn fail(&self, errno: Errno) {
        let _ = self.failure.set(errno);
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

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn lateness(&self) -> &Lateness {
        &self.lateness
    }

    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.failure.get().map(|&errno| errno.into())
    }

    /// Impairs packets that are offered from now on; see [`Direction::impair`].
    pub(crate) fn impair(&self, impairments: &Impairments, seed: u64) {
        self.direction().impair(impairments, seed);
    }

    pub(crate) fn impairment_counters(&self) -> ImpairmentCounters {
        *self.direction().impairment_counters()
    }

    fn direction(&self) -> MutexGuard<'_, Direction> {
        self.direction.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
