//! A worker as the daemon sees it.

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::budget;
use crate::error::Error;
use crate::services::Context;
use crate::stats::Counters;
use crate::telemetry::WorkerSource;
use crate::types::mailbox::Mailbox;
use crate::worker::{Command, Worker};

#[derive(Debug)]
pub(super) struct WorkerHandle {
    index: usize,
    thread: Option<JoinHandle<()>>,
    pub(super) mailbox: Arc<Mailbox<Command>>,
    pub(super) counters: Arc<Counters>,
}

impl WorkerHandle {
    pub(super) fn spawn(index: usize, context: &Context) -> Result<Self, Error> {
        let name = format!("worker {index}");
        let mailbox = Mailbox::new(name.clone()).map_err(Error::system(format!("start {name}")))?;
        let mut handle = Self { index, thread: None, mailbox: Arc::new(mailbox), counters: Arc::default() };
        handle.respawn(context)?;
        Ok(handle)
    }

    /// Starts the thread, which must not run.
    pub(super) fn respawn(&mut self, context: &Context) -> Result<(), Error> {
        let index = self.index;
        let action = || format!("start worker {index}");
        let (mailbox, counters) = (self.mailbox.clone(), self.counters.clone());
        let shared = context.shared.clone();
        mailbox.send(Command::SetFlowLimits(budget::flow_limits(&context.config)));
        let relay = context.config.proxy.relay;
        let worker = Worker::new(relay, context.shared.clone(), context.pending.clone(), mailbox, counters);
        let worker = worker.map_err(Error::system(action()))?;
        let thread = std::thread::Builder::new()
            .name(format!("bentpipe-{index}"))
            .spawn(move || {
                if let Err(reason) = worker.supervise(index) {
                    shared.fail(reason);
                }
            })
            .map_err(Error::system(action()))?;
        self.thread = Some(thread);
        Ok(())
    }

    pub(super) fn send(&self, command: Command) {
        self.mailbox.send(command);
    }

    /// Waits for the end of the thread, which has been told to stop.
    pub(super) fn join(&mut self) {
        self.mailbox.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("worker {} panicked", self.index);
        }
    }

    /// The worker, for the telemetry.
    pub(super) fn source(&self) -> WorkerSource {
        let mailbox = self.mailbox.clone();
        let query = move |query| mailbox.send(Command::QueryFlows(query));
        WorkerSource { query: Box::new(query), counters: self.counters.clone() }
    }
}
