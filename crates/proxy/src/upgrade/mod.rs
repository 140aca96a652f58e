//! An upgrade: a new process takes over the listeners and connections of the running one, and no connection
//! breaks.
//!
//! ```text
//! successor                                  predecessor
//!    Hello ─────────────────────────────────────►    refuses another protocol version
//!    ◄───────────────────────────────── Inventory    what the successor need not open itself
//!    reads its configuration, loads eBPF, drops its privileges; all of this may take time and may fail
//!    Freeze ────────────────────────────────────►    stops its workers: nothing is read or written from now on
//!    ◄────────────────────────────────── Snapshot    the word *owner*, descriptors, buffered bytes, counters
//!    builds flows and listeners, uses none of them; counts its steps beside the word
//!    owner: offered → successor                      or, if it takes no step for a second or ends,
//!    serves                                          owner: offered → predecessor, and resumes
//!    Claimed ───────────────────────────────────►    looks at the word; tells the service manager
//!    ◄────────────────────────────────────── Done    ends, without undoing anything
//! ```
//!
//! # Who owns the connections
//!
//! One word in memory that both processes share says so ([`ownership`]). It begins as *offered*, when the
//! predecessor stands still already, and each process tries to change it from there to its own name by one
//! compare-and-swap. It never changes again.
//!
//! | owner | predecessor | successor |
//! |---|---|---|
//! | offered | stands still; may claim at any time | builds; may claim once it has built everything |
//! | successor | its claim fails: never touches the connections again, ends | serves |
//! | predecessor | resumes | its claim fails: never touches them, ends |
//!
//! - **Never two**: a process touches the connections only after its own claim has succeeded, and of all
//!   claims one succeeds.
//! - **Never none**: while the word is *offered* either living process can claim, and the predecessor does so
//!   as soon as it sees the successor end or fail, or take no step for a second. A process
//!   that is frozen before its claim finds, when it goes on, that the claim fails. If the predecessor dies,
//!   the successor claims and serves.
//! - A process that ends after its claim is a daemon that has died: its connections are reset, and new ones
//!   pass unsplit.
//!
//! No message takes part in that: `Claimed` says when to look, `Refusal` why a claim has failed. A message
//! that is lost costs time at most. `ownership/model_tests.rs` enumerates every interleaving of the two and
//! every crash.
//!
//! The service manager hears of its new main process after the claim and never before it. It would not
//! believe the predecessor afterwards that it is the main one still (`NotifyAccess=main`). If the predecessor
//! dies between the claim and that message, the manager ends the service and starts it again.
//!
//! A frozen successor that has lost the connections holds copies of their descriptors until it ends, so the
//! resets of connections that end meanwhile are sent when it does. `bentpipe upgrade` ends it after 45 s.
//!
//! Bytes in flight stay where they are: in the kernel's socket buffers, which belong to the sockets, and in
//! pipes, which are handed over as descriptors. Only the relay's own buffers are copied, into a memfd, which
//! is one more descriptor.

use std::time::Duration;

mod error;
mod memfd;
mod message;
mod ownership;
mod predecessor;
mod successor;

pub use error::UpgradeError;
pub use message::Inventory;
pub use predecessor::Predecessor;
pub use successor::{Caller, Successor, accept_caller, wait_for_caller, wait_for_successor};

/// The version of the messages and of the snapshot. A field with a default may be added within a version;
/// anything else needs a new one, between which an upgrade is refused and a restart is the way.
pub(crate) const PROTOCOL_VERSION: u32 = 3;

/// How long either side waits for the other's next message while the flows do not stand still.
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
