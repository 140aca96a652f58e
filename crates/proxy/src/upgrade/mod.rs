//! Handing over: a new process takes the place of this one, with its listeners and its connections, and no connection notices.
//!
//! ```text
//! successor                                  predecessor
//!    Hello ─────────────────────────────────────►
//!    ◄───────────────────────────────── Inventory    what there is, so that the successor does not open it itself
//!    reads its configuration, loads eBPF, gives up its rights; all of this may take its time and may fail
//!    Take ──────────────────────────────────────►    stops its workers: nothing is read or written from now on
//!    ◄──────────────────────────────────── Snapshot    descriptors, what was in buffers, what was counted
//!    builds flows and listeners, touches none
//!    Ready ─────────────────────────────────────►
//!    ◄──────────────────────────────────── Commit    touches nothing any more
//!    Mine ──────────────────────────────────────►    ends, without undoing anything
//!    begins
//! ```
//!
//! Until it has heard `Mine` the predecessor holds everything that it hands over, and goes on with it if the successor ends, says that
//! it cannot, or is silent for [`PATIENCE`] where it should say `Ready`. What the successor holds then are copies of descriptors, and it has
//! done nothing with them. So a program that cannot start, or dies on its route, costs a pause at worst. And if it is the predecessor
//! that dies when its successor is ready, the successor hears that the line has ended without a word, and goes on.
//!
//! What bytes were in flight stays where it is: in the kernel's socket buffers, which belong to the sockets; in pipes, which
//! are handed over as descriptors; and what was in buffers of the relay goes into a file in memory, which is one more.

use std::time::Duration;

mod protocol;
mod records;
mod snapshot;

pub use protocol::{
    Caller, Predecessor, Successor, UpgradeError, accept_caller, wait_for_caller, wait_for_successor,
};
pub(crate) use records::{
    ChannelSnapshot, EntrySnapshot, FlowSnapshot, HeldSynSnapshot, IdleSnapshot, PendingSnapshot,
    RelayBufferSnapshot, SynOutcomeSnapshot,
};
pub use snapshot::Inventory;
pub(crate) use snapshot::{
    DrainSnapshot, ListenerSnapshot, Manifest, PortsSnapshot, Snapshot, SnapshotReader, SnapshotWriter,
};

/// How long either side waits for the other's next word once flows stand still.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// What goes with the daemon from process to process that it knows nothing of: the sockets of those who show it, and what they
/// remember.
#[derive(Debug, Default)]
pub struct ExtraFds {
    /// Descriptors by name.
    pub descriptors: Vec<(String, std::os::fd::OwnedFd)>,
    /// Whatever else is to be known, as JSON.
    pub memory: serde_json::Value,
}
