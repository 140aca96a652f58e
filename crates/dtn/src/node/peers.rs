//! The nodes that this one speaks with, and the tasks that connect to them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::config::PeerSettings;

/// Sessions with one peer at the most. A peer that comes back again and again has old ones that have not noticed.
const MAX_SESSIONS: usize = 16;

/// A configured peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) settings: PeerSettings,
    /// Rings when it may be possible to connect that was not.
    pub(crate) dial: Notify,
    /// Sessions that are established, the newest last. That one gets what is sent: an older one may have lost its other end without
    /// knowing it, as when the peer's host has vanished and come back.
    sessions: Mutex<Vec<Arc<SessionHandle>>>,
    /// What ended the last session, or kept one from beginning.
    last_error: Mutex<Option<String>>,
    requires_tls: AtomicBool,
    address: Mutex<Option<SocketAddr>>,
}

/// An established session.
#[derive(Debug, Default)]
pub(crate) struct SessionHandle {
    /// Rings when there may be something to send.
    pub(crate) ready: Notify,
    /// Whether there is a newer one.
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

    /// Whether it has to prove who it is.
    pub(crate) fn requires_tls(&self) -> bool {
        self.requires_tls.load(Ordering::Relaxed)
    }

    pub(crate) fn set_requires_tls(&self, is_encrypted: bool) {
        self.requires_tls.store(is_encrypted, Ordering::Relaxed);
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

    /// There may be something to send to it.
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
        // What it had, and what it was told of, is another's now.
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

    /// The other end of its last session.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
