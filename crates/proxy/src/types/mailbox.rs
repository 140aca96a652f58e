//! Threads that answer when they are asked whether they live, and the mailbox by which workers are spoken to.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bentpipe_legs::Waker;
use rustix::event::EventfdFlags;

/// A thread that answers a eventfd for as long as it lives.
pub(crate) trait Heartbeat: Send + Sync {
    /// What the log calls the thread.
    fn name(&self) -> &str;
    /// Asks for a sign of life.
    fn ping(&self);
    /// How many times it has answered.
    fn acks(&self) -> u64;
}

/// A thread's queue of messages, with a eventfd. The thread hears the eventfd as a readable descriptor.
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

    /// For the owner, when it hears the eventfd: a sign of life, and what there is to read.
    pub(crate) fn take(&self) -> VecDeque<T> {
        // Fails only when somebody else has read it, and then there was a eventfd all the same.
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        self.acks.fetch_add(1, Ordering::Release);
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn wake(&self) {
        // Fails only when nobody has acks the eventfd for 2^64 - 2 times.
        let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
    }
}

impl<T: Send> Heartbeat for Arc<Mailbox<T>> {
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
        "the controller of rates"
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
