//! The thread of a service: its mailbox, its heartbeat, and how it ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::error::Error;
use crate::types::mailbox::{Heartbeat, Mailbox};

/// A thread that reads messages `M` and returns `R`. It stops when this is dropped.
#[derive(Debug)]
pub(super) struct ServiceThread<M, R = ()> {
    /// What the log calls it.
    name: &'static str,
    mailbox: Arc<Mailbox<M>>,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<R>>,
}

impl<M: fmt::Debug + Send + 'static, R: Send + 'static> ServiceThread<M, R> {
    /// A thread that does not run yet.
    pub(super) fn new(name: &'static str) -> Result<Self, Error> {
        let mailbox = Mailbox::new(name.into()).map_err(Error::system(format!("start {name}")))?;
        Ok(Self { name, mailbox: Arc::new(mailbox), stop: Arc::default(), handle: None })
    }

    pub(super) fn mailbox(&self) -> &Arc<Mailbox<M>> {
        &self.mailbox
    }

    /// Runs `work` in the network namespace of the calling thread until the flag is set, which the mailbox's
    /// eventfd signals. The kernel calls the thread `comm`.
    pub(super) fn run(
        &mut self,
        comm: &str,
        work: impl FnOnce(&AtomicBool) -> R + Send + 'static,
    ) -> Result<(), Error> {
        self.stop.store(false, Ordering::Release);
        let stop = self.stop.clone();
        let thread = std::thread::Builder::new().name(comm.into()).spawn(move || work(&stop));
        self.handle = Some(thread.map_err(Error::system(format!("start {}", self.name)))?);
        Ok(())
    }

    pub(super) fn send(&self, message: M) {
        self.mailbox.send(message);
    }

    pub(super) fn heartbeat(&self) -> Arc<dyn Heartbeat> {
        self.mailbox.clone()
    }
}

impl<M, R> ServiceThread<M, R> {
    /// Stops it; `None` if it does not run or has panicked.
    pub(super) fn stop(&mut self) -> Option<R> {
        self.stop.store(true, Ordering::Release);
        self.mailbox.wake();
        let outcome = self.handle.take()?.join();
        outcome.inspect_err(|_| tracing::error!("{} panicked", self.name)).ok()
    }
}

impl<M, R> Drop for ServiceThread<M, R> {
    fn drop(&mut self) {
        self.stop();
    }
}
