//! What the node and its convergence layers, TCPCLv4 and LTP, know of each other: transfers of bytes, and who is
//! responsible for them.

use std::io;

use tokio::runtime::{Handle, RuntimeFlavor};

use crate::Eid;

/// Why a transfer was refused: the reasons of TCPCLv4 (RFC 9174 §5.2.4, XFER_REFUSE).
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

/// The agent's number for an outgoing bundle.
pub type BundleHandle = u64;

/// An outgoing transfer, read once from beginning to end.
pub trait Outgoing: Send {
    /// The handle by which the agent learns the outcome.
    fn handle(&self) -> BundleHandle;
    /// Its length, bytes.
    fn len(&self) -> u64;
    /// Whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads into the buffer, and fills it except at the end. May block on a disk.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;
}

impl dyn Outgoing + '_ {
    /// All of it. May block on a disk.
    pub(crate) fn read_all(&mut self) -> io::Result<Vec<u8>> {
        let len = usize::try_from(self.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (mut bytes, mut filled) = (vec![0; len], 0);
        while filled < len {
            match self.read(&mut bytes[filled..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        Ok(bytes)
    }
}

/// An incoming transfer. Dropping it before [`finish`](Self::finish) discards it.
pub trait Incoming: Send {
    /// Writes the next bytes. May block on a disk.
    ///
    /// # Errors
    /// The transfer is refused.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal>;
    /// The transfer is complete: when `outcome` says so, the node is responsible for it. Others may be
    /// received before that.
    fn finish(self: Box<Self>, outcome: Outcome);
}

/// Tells a session the outcome of a complete transfer, from any thread. If it is dropped before, the transfer
/// has to be sent again.
pub struct Outcome(Option<Tell>);

type Tell = Box<dyn FnOnce(Result<(), Refusal>) + Send>;

impl Outcome {
    /// Calls this, once.
    pub fn new(tell: impl FnOnce(Result<(), Refusal>) + Send + 'static) -> Self {
        Self(Some(Box::new(tell)))
    }

    /// The transfer is accepted: its bundle will not be lost; or it is refused.
    pub fn tell(mut self, outcome: Result<(), Refusal>) {
        if let Some(tell) = self.0.take() {
            tell(outcome);
        }
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(Err(Refusal::Retransmit));
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Outcome").finish_non_exhaustive()
    }
}

/// The node as its sessions see it (the bundle protocol agent of RFC 9171).
pub trait BundleAgent: Send + Sync + 'static {
    /// Admits a peer with this node ID, and with the node ID that its certificate proves. An `Err` is the
    /// reason for the log; the session ends.
    fn admit(&self, peer: &Eid, proven: Option<&Eid>) -> Result<(), String>;
    /// A transfer begins, of the announced length if there is one.
    ///
    /// # Errors
    /// The transfer is refused.
    fn receive(&self, peer: &Eid, announced: Option<u64>) -> Result<Box<dyn Incoming>, Refusal>;
    /// The next transfer to `peer`, of at most `limit` bytes. The session holds it until `sent`, `refused` or
    /// `returned`.
    fn next(&self, peer: &Eid, limit: u64) -> Option<Box<dyn Outgoing>>;
    /// Waits until [`next`](Self::next) may return a transfer, or could have since its last call.
    fn ready(&self, peer: &Eid) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>;
    /// Waits until a newer session with the same peer exists. This session then ends unless its peer still
    /// responds.
    fn superseded(&self) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }
    /// The peer has acknowledged the transfer.
    fn sent(&self, peer: &Eid, handle: BundleHandle);
    /// The peer has refused the transfer.
    fn refused(&self, peer: &Eid, handle: BundleHandle, why: Refusal);
    /// The session ended before the outcome was known.
    fn returned(&self, peer: &Eid, handle: BundleHandle);
}

/// Runs work that may block on a disk.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
