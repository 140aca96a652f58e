//! The nodes that this one speaks with, and the tasks that connect to them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::config::PeerSettings;

/// Sessions with one peer at the most. A peer that comes back again and again has old ones that have not noticed.
const MOST_SESSIONS: usize = 16;

/// A configured peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) settings: PeerSettings,
    /// Rings when it may be possible to connect that was not.
    pub(crate) dial: Notify,
    /// Sessions that are established, the newest last. That one gets what is sent: an older one may have lost its other end without
    /// knowing it, as when the peer's host has vanished and come back.
    lines: Mutex<Vec<Arc<Line>>>,
    /// What ended the last session, or kept one from beginning.
    trouble: Mutex<Option<String>>,
    must_prove: AtomicBool,
    address: Mutex<Option<SocketAddr>>,
}

/// An established session.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Rings when there may be something to send.
    pub(crate) ready: Notify,
    /// Whether there is a newer one.
    pub(crate) outdated: watch::Sender<bool>,
}

impl Peer {
    pub(crate) fn new(settings: PeerSettings) -> Self {
        Self {
            settings,
            dial: Notify::new(),
            lines: Mutex::default(),
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
        self.sessions() > 0
    }

    pub(crate) fn sessions(&self) -> usize {
        self.lines().len()
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Arc<Line>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There may be something to send to it.
    pub(crate) fn wake(&self) {
        if let Some(line) = self.lines().last() {
            line.ready.notify_one();
        }
    }

    /// Whether this session is the one that sends.
    pub(crate) fn sends_by(&self, line: &Arc<Line>) -> bool {
        self.lines().last().is_some_and(|newest| Arc::ptr_eq(newest, line))
    }

    /// `None` if there are too many sessions already.
    pub(crate) fn session_began(&self, address: SocketAddr) -> Option<Arc<Line>> {
        let line = Arc::new(Line::default());
        let mut lines = self.lines();
        if lines.len() >= MOST_SESSIONS {
            return None;
        }
        for older in lines.iter() {
            older.outdated.send_replace(true);
        }
        lines.push(line.clone());
        drop(lines);
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
        Some(line)
    }

    pub(crate) fn session_ended(&self, line: &Arc<Line>) {
        self.lines().retain(|other| !Arc::ptr_eq(other, line));
        // What it had, and what it was told of, is another's now.
        self.wake();
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
