use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes one forwarder that sleeps in poll(2), or that is about to: a wake-up before the sleep is not lost.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

/// Asks all forwarders to end, also one that sleeps.
#[derive(Debug)]
pub(crate) struct Stop {
    asked: AtomicBool,
    waker: Waker,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        // It fails only after 2⁶⁴ − 1 calls without a `clear`.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets the wake-ups so far. Call it before looking for the work that they announced, so that nothing
    /// is overlooked.
    pub(crate) fn clear(&self) {
        // It fails if there was no wake-up.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { asked: AtomicBool::new(false), waker: Waker::new()? })
    }

    /// The waker is never cleared, so that it wakes every forwarder, whenever that polls.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
