//! The mailbox of a thread, and the heartbeat that shows that the thread is alive.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bentpipe_legs::Waker;
use rustix::event::EventfdFlags;

/// A thread that acknowledges pings while it is alive.
pub(crate) trait Heartbeat: fmt::Debug + Send + Sync {
    /// The thread's name in the log.
    fn name(&self) -> &str;
    /// Asks for an acknowledgement.
    fn ping(&self);
    /// How many pings it has acknowledged.
    fn acks(&self) -> u64;
}

/// A thread's queue of messages, with an eventfd that wakes the thread.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    owner: String,
    messages: Mutex<VecDeque<T>>,
    eventfd: OwnedFd,
    acks: AtomicU64,
}

impl<T> Mailbox<T> {
    /// A mailbox of the thread that the log calls `owner`.
    pub(crate) fn new(owner: String) -> rustix::io::Result<Self> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { owner, messages: Mutex::default(), eventfd, acks: AtomicU64::new(0) })
    }

    pub(crate) fn send(&self, message: T) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
        self.wake();
    }

    /// For the owner, when the eventfd is readable: acknowledges pings, and returns the messages.
    pub(crate) fn take(&self) -> VecDeque<T> {
        // Fails only if the eventfd has not been written.
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        self.acks.fetch_add(1, Ordering::Release);
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn wake(&self) {
        // Fails only after 2^64 - 2 writes that nobody has read.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }
}

impl<T: fmt::Debug + Send> Heartbeat for Mailbox<T> {
    fn name(&self) -> &str {
        &self.owner
    }

    fn ping(&self) {
        self.wake();
    }

    fn acks(&self) -> u64 {
        self.acks.load(Ordering::Acquire)
    }
}

impl Heartbeat for Waker {
    fn name(&self) -> &str {
        "the rate controller"
    }

    fn ping(&self) {
        self.ping();
    }

    fn acks(&self) -> u64 {
        self.acks()
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
