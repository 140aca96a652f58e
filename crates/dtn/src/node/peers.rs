//! The nodes that this one speaks with, and the tasks that connect to them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::config::PeerSettings;

/// A configured peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) settings: PeerSettings,
    /// Rings when there may be something to send to it.
    pub(crate) ready: Notify,
    /// Sessions that are established.
    sessions: AtomicUsize,
    /// What ended the last session, or kept one from beginning.
    trouble: Mutex<Option<String>>,
    must_prove: AtomicBool,
    address: Mutex<Option<SocketAddr>>,
}

impl Peer {
    pub(crate) fn new(settings: PeerSettings) -> Self {
        Self {
            settings,
            ready: Notify::new(),
            sessions: AtomicUsize::new(0),
            trouble: Mutex::default(),
            must_prove: AtomicBool::new(false),
            address: Mutex::default(),
        }
    }

    /// Whether it has to prove who it is.
    pub(crate) fn must_prove(&self) -> bool {
        self.must_prove.load(Ordering::Relaxed)
    }

    pub(crate) fn require_proof(&self, is_encrypted: bool) {
        self.must_prove.store(is_encrypted, Ordering::Relaxed);
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.sessions.load(Ordering::Acquire) > 0
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Acquire)
    }

    pub(crate) fn session_began(&self, address: SocketAddr) {
        self.sessions.fetch_add(1, Ordering::AcqRel);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    pub(crate) fn session_ended(&self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }

    /// Notes what is in the way; says whether that is new.
    pub(crate) fn has_trouble(&self, what: &str) -> bool {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = trouble.as_deref() != Some(what);
        *trouble = Some(what.to_owned());
        is_new
    }

    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The other end of its last session.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
