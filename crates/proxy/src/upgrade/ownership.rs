//! The word in shared memory that says which of the two processes of an upgrade owns the connections, and a
//! count of the successor's steps beside it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use bentpipe_kernel::shared_words::SharedWords;

/// What `/proc/PID/maps` calls the memory.
const NAME: &str = "bentpipe-ownership";
/// The places of the owner and of the count, and the number of words.
const OWNER: usize = 0;
const PROGRESS: usize = 1;
const WORDS: usize = 2;
/// The owner's word as long as neither process has claimed the connections.
const OFFERED: u64 = 0;

/// A process that claims the connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u64)]
pub(super) enum Claimant {
    Predecessor = 1,
    Successor = 2,
}

/// The memory as either process has it.
#[derive(Debug)]
pub(super) struct Ownership(SharedWords);

impl Ownership {
    /// The predecessor offers the connections, and touches them only if it claims them back. The file is for
    /// the successor.
    pub(super) fn offer() -> io::Result<(Self, OwnedFd)> {
        let (words, file) = SharedWords::create(NAME, WORDS)?;
        Ok((Self(words), file))
    }

    /// The memory that the predecessor has sent.
    pub(super) fn receive(file: impl AsFd) -> io::Result<Self> {
        SharedWords::map(file, WORDS).map(Self)
    }

    /// Claims the connections. True once at most, for one of the two: they are that one's from then on. False
    /// if the other one has claimed them.
    pub(super) fn claim(&self, claimant: Claimant) -> bool {
        let owner = self.word(OWNER);
        owner.compare_exchange(OFFERED, claimant as u64, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The successor has taken another step.
    pub(super) fn advance(&self) {
        self.word(PROGRESS).fetch_add(1, Ordering::Relaxed);
    }

    /// How many steps the successor has taken.
    pub(super) fn progress(&self) -> u64 {
        self.word(PROGRESS).load(Ordering::Relaxed)
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        &self.0.words()[place]
    }
}

#[cfg(test)]
mod model_tests;
