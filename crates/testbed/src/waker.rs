use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes one carrier that sleeps in poll(2), or that will: what was rung before is not forgotten.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

/// Asks all carriers to end, also one that sleeps.
#[derive(Debug)]
pub(crate) struct Stop {
    asked: AtomicBool,
    bell: Waker,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn ring(&self) {
        // It fails only when it has been rung 2⁶⁴ − 1 times and not silenced.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Forgets what was rung. To be called before looking at what it was rung for, so that nothing is overlooked.
    pub(crate) fn silence(&self) {
        // It fails if it was not rung.
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
        Ok(Self { asked: AtomicBool::new(false), bell: Waker::new()? })
    }

    /// The bell is never silenced, so it wakes every carrier, whenever it looks.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
