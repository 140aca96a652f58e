//! The configured peers and their sessions.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Established sessions, the newest last. Only the newest sends: an older one may be half-open, as after
    /// a crash of the peer's host.
    sessions: Mutex<Vec<Arc<SessionHandle>>>,
    /// Why the last session ended or could not begin.
    last_error: Mutex<Option<String>>,
    requires_tls: AtomicBool,
    address: Mutex<Option<SocketAddr>>,
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
    pub(crate) fn new(settings: PeerSettings) -> Self {
        Self {
            settings,
            dial: Notify::new(),
            sessions: Mutex::default(),
            last_error: Mutex::default(),
            requires_tls: AtomicBool::new(false),
            address: Mutex::default(),
        }
    }

    /// Whether it has to authenticate itself by a certificate.
    pub(crate) fn requires_tls(&self) -> bool {
        self.requires_tls.load(Ordering::Relaxed)
    }

    pub(crate) fn set_requires_tls(&self, required: bool) {
        self.requires_tls.store(required, Ordering::Relaxed);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.session_count() > 0
    }

    pub(crate) fn session_count(&self) -> usize {
        self.sessions().len()
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<SessionHandle>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells its session that there may be something to send.
    pub(crate) fn wake(&self) {
        if let Some(handle) = self.sessions().last() {
            handle.ready.notify_one();
        }
    }

    /// Whether this session is the one that sends.
    pub(crate) fn sends_by(&self, handle: &Arc<SessionHandle>) -> bool {
        self.sessions().last().is_some_and(|newest| Arc::ptr_eq(newest, handle))
    }

    /// `None` if there are too many sessions already.
    pub(crate) fn session_began(&self, address: SocketAddr) -> Option<Arc<SessionHandle>> {
        let handle = Arc::new(SessionHandle::default());
        let mut sessions = self.sessions();
        if sessions.len() >= MAX_SESSIONS {
            return None;
        }
        for older in sessions.iter() {
            older.superseded.send_replace(true);
        }
        sessions.push(handle.clone());
        drop(sessions);
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
        Some(handle)
    }

    pub(crate) fn session_ended(&self, handle: &Arc<SessionHandle>) {
        self.sessions().retain(|other| !Arc::ptr_eq(other, handle));
        // The remaining session continues with its bundles.
        self.wake();
    }

    /// Records why there is no session. Returns whether that is news.
    pub(crate) fn record_error(&self, error: &str) -> bool {
        let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = last.as_deref() != Some(error);
        *last = Some(error.to_owned());
        is_new
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its address in the last session.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
