//! The configured peers and their sessions.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bentpipe_ltp::Statistics;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use crate::config::PeerSettings;

/// The most sessions with one peer. A peer that reconnects often leaves old ones that have not timed out.
const MAX_SESSIONS: usize = 16;

/// A configured peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) settings: PeerSettings,
    /// Notified when a connection attempt may succeed again.
    pub(crate) dial: Notify,
    /// Whether it has to authenticate itself by a certificate.
    pub(crate) requires_tls: bool,
    state: Mutex<PeerState>,
}

/// The exchange by LTP with a peer.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct LtpStatus {
    /// Whether blocks are on their way.
    pub active: bool,
    /// Whether it has not answered lately.
    pub silent: bool,
    /// Segments of data sent.
    pub segments: u64,
    /// Those that were sent again.
    pub repeated: u64,
    /// Checkpoints and reports that were not answered in time.
    pub timeouts: u64,
    /// Sessions that were cancelled by either side.
    pub cancelled: u64,
    /// Segments that were dropped because they are not authentic.
    pub not_authentic: u64,
    /// Segments of data that were dropped for want of memory.
    pub without_memory: u64,
    /// The last round trip, from a checkpoint to its report.
    pub round_trip_s: Option<f64>,
}

impl LtpStatus {
    pub(crate) fn of(statistics: &Statistics, active: bool, silent: bool) -> Self {
        Self {
            active,
            silent,
            segments: statistics.segments,
            repeated: statistics.repeated,
            timeouts: statistics.timeouts,
            cancelled: statistics.cancelled,
            not_authentic: statistics.not_authentic,
            without_memory: statistics.without_memory,
            round_trip_s: statistics.round_trip.map(|time| time.as_secs_f64()),
        }
    }
}

/// The sessions with a peer.
#[derive(Debug, Default)]
struct PeerState {
    /// Established ones, the newest last. Only the newest sends: an older one may be half-open, as after a
    /// crash of the peer's host.
    sessions: Vec<Arc<SessionHandle>>,
    /// Why the last one ended or could not begin.
    last_error: Option<String>,
    /// The peer's address in the last one, or in an attempt to connect since then.
    address: Option<SocketAddr>,
    ltp: Option<LtpStatus>,
}

/// An established session.
#[derive(Debug, Default)]
pub(crate) struct SessionHandle {
    /// Notified when there may be something to send.
    pub(crate) ready: Notify,
    /// Whether a newer session exists.
    pub(crate) superseded: watch::Sender<bool>,
}

impl Peer {
    /// A peer of a node that has a certificate or has none.
    pub(crate) fn new(settings: PeerSettings, has_identity: bool) -> Self {
        let requires_tls = settings.is_encrypted(has_identity);
        Self { settings, dial: Notify::new(), requires_tls, state: Mutex::default() }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.session_count() > 0
    }

    pub(crate) fn session_count(&self) -> usize {
        self.state().sessions.len()
    }

    fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells its session that there may be something to send.
    pub(crate) fn wake(&self) {
        if let Some(handle) = self.state().sessions.last() {
            handle.ready.notify_one();
        }
    }

    /// Whether this session is the one that sends.
    pub(crate) fn sends_by(&self, handle: &Arc<SessionHandle>) -> bool {
        self.state().sessions.last().is_some_and(|newest| Arc::ptr_eq(newest, handle))
    }

    /// `None` if there are too many sessions already.
    pub(crate) fn session_began(&self, address: SocketAddr) -> Option<Arc<SessionHandle>> {
        let handle = Arc::new(SessionHandle::default());
        let mut state = self.state();
        if state.sessions.len() >= MAX_SESSIONS {
            return None;
        }
        for older in &state.sessions {
            older.superseded.send_replace(true);
        }
        state.sessions.push(handle.clone());
        (state.last_error, state.address) = (None, Some(address));
        Some(handle)
    }

    pub(crate) fn session_ended(&self, handle: &Arc<SessionHandle>) {
        self.state().sessions.retain(|other| !Arc::ptr_eq(other, handle));
        // The remaining session continues with its bundles.
        self.wake();
    }

    /// Records why there is no session. Returns whether that is news.
    pub(crate) fn record_error(&self, error: &str) -> bool {
        let last = self.state().last_error.replace(error.to_owned());
        last.as_deref() != Some(error)
    }

    /// What was wrong is over.
    pub(crate) fn forget_error(&self) {
        self.state().last_error = None;
    }

    pub(crate) fn record_ltp(&self, status: LtpStatus) {
        self.state().ltp = Some(status);
    }

    /// The exchange by LTP, if there is one.
    pub(crate) fn ltp(&self) -> Option<LtpStatus> {
        self.state().ltp
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.state().last_error.clone()
    }

    /// This node tries to connect to this address.
    pub(crate) fn trying(&self, address: SocketAddr) {
        let mut state = self.state();
        // The peer may have connected meanwhile.
        if state.sessions.is_empty() {
            state.address = Some(address);
        }
    }

    /// Its address in the last session, or in an attempt to connect since then.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.state().address
    }
}
