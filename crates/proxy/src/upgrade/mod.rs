//! An upgrade: a new process takes over the listeners and connections of the running one, and no connection
//! breaks.
//!
//! ```text
//! successor                                  predecessor
//!    Hello ─────────────────────────────────────►    refuses another protocol version
//!    ◄───────────────────────────────── Inventory    what the successor need not open itself
//!    reads its configuration, loads eBPF, drops its privileges; all of this may take time and may fail
//!    Freeze ────────────────────────────────────►    stops its workers: nothing is read or written from now on
//!    ◄────────────────────────────────── Snapshot    descriptors, buffered bytes, counters
//!    builds flows and listeners, uses none of them
//!    Ready ─────────────────────────────────────►
//!    ◄──────────────────────────────────── Commit    never touches the connections again
//!    Acknowledge ───────────────────────────────►    ends, without undoing anything
//!    starts to serve
//! ```
//!
//! Until the predecessor receives `Acknowledge` it holds everything that it hands over. It resumes if the
//! successor ends, reports a failure, or sends nothing for [`PATIENCE`] where `Ready` is due. At that point
//! the successor holds copies of descriptors and has used none of them, so a program that cannot start, or
//! dies on its way, costs at most a pause. If the predecessor dies while its successor is ready, the
//! successor sees the socket close without a message, and serves.
//!
//! Bytes in flight stay where they are: in the kernel's socket buffers, which belong to the sockets, and in
//! pipes, which are handed over as descriptors. Only the relay's own buffers are copied, into a memfd, which
//! is one more descriptor.

use std::time::Duration;

mod error;
mod memfd;
mod message;
mod predecessor;
mod successor;

pub use error::UpgradeError;
pub use message::Inventory;
pub use predecessor::Predecessor;
pub use successor::{Caller, Successor, accept_caller, wait_for_caller, wait_for_successor};

/// The version of the messages and of the snapshot. A field with a default may be added within a version;
/// anything else needs a new one, between which an upgrade is refused and a restart is the way.
pub(crate) const PROTOCOL_VERSION: u32 = 2;

/// How long either side waits for the other's next message while the flows stand still.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What the program around the daemon hands over with it: its own sockets and state.
#[derive(Debug, Default)]
pub struct ExtraFds {
    /// Descriptors by name.
    pub descriptors: Vec<(String, std::os::fd::OwnedFd)>,
    /// The program's state, as JSON.
    pub memory: serde_json::Value,
}

/// A snapshot of these bytes, if they are one: for the fuzz target `snapshot`.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn read_bytes(
    bytes: &[u8],
    descriptors: Vec<std::os::fd::OwnedFd>,
) -> Option<crate::snapshot::Snapshot> {
    use std::io::Write as _;
    let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
    let mut file = std::fs::File::from(file);
    file.write_all(bytes).ok()?;
    memfd::read(&file, descriptors).ok()
}

#[cfg(test)]
mod tests;
