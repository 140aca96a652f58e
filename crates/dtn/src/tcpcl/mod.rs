//! TCPCLv4: how bundles move between two nodes over TCP (RFC 9174).
//!
//! This module knows nothing of bundles: what it transfers is bytes, and whom it serves is a [`BundleAgent`].

mod driver;
pub mod identity;
pub mod message;
pub mod session;
mod settings;
mod tls;

pub use driver::run;
pub use settings::{EndedBy, PeerOverride, Role, SessionEnd, SessionSettings};
pub use tls::{Tls, TlsConfig};

use std::io;

use crate::Eid;

/// Why a transfer was refused (RFC 9174 §5.2.4, XFER_REFUSE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The receiver has it already (0x01).
    Completed,
    /// The receiver has no room (0x02).
    NoResources,
    /// It must be sent again from the beginning (0x03).
    Retransmit,
    /// It, or something in it, cannot be accepted, now or later (0x04).
    NotAcceptable,
    /// The transfer's extensions were not understood (0x05).
    ExtensionFailure,
    /// The session ends (0x06).
    SessionTerminating,
    /// Another reason, by its code.
    Other(u8),
}

/// A number that tells transfers of a node apart; it is the host's.
pub type BundleHandle = u64;

/// Something to send: read from beginning to end, once.
pub trait Outgoing: Send {
    /// What the host is told of its fate by.
    fn handle(&self) -> BundleHandle;
    /// Bytes in all.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Fills the buffer, but for the end. May block on a disk.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
}

/// Something that is being received. Dropped before [`finish`](Self::finish) it leaves nothing behind.
pub trait Incoming: Send {
    /// Takes the next bytes. May block on a disk.
    ///
    /// # Errors
    /// The rest is not wanted.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal>;
    /// All is here: when it returns, the node is responsible for it. May block on a disk.
    ///
    /// # Errors
    /// It is not accepted.
    fn finish(self: Box<Self>) -> Result<(), Refusal>;
}

/// What sessions need of their node.
pub trait BundleAgent: Send + Sync + 'static {
    /// Whether the other end may be who it says, given what its certificate proves. An `Err` is the reason for the log; the session ends.
    fn admit(&self, peer: &Eid, proven: Option<&Eid>) -> Result<(), String>;
    /// A transfer begins; its length, where the other end announced it.
    ///
    /// # Errors
    /// It is not wanted.
    fn receive(&self, peer: &Eid, announced: Option<u64>) -> Result<Box<dyn Incoming>, Refusal>;
    /// The next thing to send to `peer`, no longer than `limit` bytes, if there is one. It stays the session's until `sent`, `refused` or `returned`.
    fn next(&self, peer: &Eid, limit: u64) -> Option<Box<dyn Outgoing>>;
    /// Waits until [`next`](Self::next) may have something, or might have had something since it was last asked.
    fn ready(&self, peer: &Eid) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// Waits until the host has a newer session with the same peer. This one then has to prove that its other end is still there, or ends.
    fn superseded(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
    /// The other end has acknowledged all of it.
    fn sent(&self, peer: &Eid, handle: BundleHandle);
    /// The other end does not want it.
    fn refused(&self, peer: &Eid, handle: BundleHandle, why: Refusal);
    /// The session ended before its fate was known.
    fn returned(&self, peer: &Eid, handle: BundleHandle);
}
