//! [Deferred accept](crate::deferred_accept) as a service.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::thread::ServiceThread;
use super::{Context, Preparation, Service};
use crate::config::MarkField;
use crate::deferred_accept::{
    Entry, FourTuple, Inherited, PendingTable, RecentSyns, Settings, SynHandler, SynSockets,
};
use crate::error::Error;
use crate::snapshot::{Section, SnapshotError};
use crate::stats::Counters;
use crate::types::mailbox::Heartbeat;

const NAME: &str = "deferred_accept";
/// What the log calls it.
const TITLE: &str = "deferred accept";

/// Deferred accept. Pending connections end with it.
#[derive(Debug)]
pub(super) struct DeferredAccept {
    /// Until the thread has them.
    sockets: Option<SynSockets>,
    mark: MarkField,
    thread: Option<ServiceThread<Settings, Option<SynHandler>>>,
    /// The thread's state while it is paused; SYNs wait in its socket.
    paused: Option<SynHandler>,
    counters: Arc<Counters>,
    /// What a predecessor has left: its outcomes of recent SYNs, and how many of its handshakes are pending.
    recent_syns: RecentSyns,
    held: usize,
}

/// What a successor needs.
#[derive(Serialize)]
struct Snapshot<'a> {
    sockets: Inherited,
    pending: &'a PendingTable,
    marks: Vec<(FourTuple, u32)>,
    recent_syns: &'a RecentSyns,
}

/// A [`Snapshot`], as the successor reads it.
#[derive(Deserialize)]
struct Predecessor {
    sockets: Inherited,
    pending: Vec<Entry<()>>,
    marks: Vec<(FourTuple, u32)>,
    recent_syns: RecentSyns,
}

impl DeferredAccept {
    /// Opens the sockets, unless they come from a predecessor.
    pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Self, Error> {
        let mark = preparation.config.proxy.mark;
        let is_inherited = preparation.inherits(NAME);
        Ok(Self {
            sockets: if is_inherited { None } else { Some(SynSockets::open(mark)?) },
            mark,
            thread: None,
            paused: None,
            counters: Arc::default(),
            recent_syns: RecentSyns::default(),
            held: 0,
        })
    }

    fn run(&mut self, handler: SynHandler) -> Result<(), Error> {
        let Some(thread) = &mut self.thread else { return Ok(()) };
        thread.run("bentpipe-defer", move |stop| {
            let outcome = handler.run(stop);
            outcome
                .inspect_err(|error| {
                    tracing::error!(%error, "deferred accept failed: new connections pass unsplit");
                })
                .ok()
        })
    }
}

impl Service for DeferredAccept {
    fn name(&self) -> &'static str {
        NAME
    }

    fn resume(&mut self, section: Option<Section>, context: &Context) -> Result<(), Error> {
        let Some(section) = section else {
            // The predecessor has had them, and has failed at them.
            let has_failed = self.sockets.is_none();
            return if has_failed {
                Err(Error::Restart { what: "deferred accept, which has failed" })
            } else {
                Ok(())
            };
        };
        let Predecessor { sockets, pending, marks, recent_syns } = section.read().map_err(Error::snapshot)?;
        (self.held, self.recent_syns) = (pending.len(), recent_syns);
        self.sockets = Some(SynSockets::resume(sockets, self.mark)?);
        let now = Instant::now();
        marks.into_iter().for_each(|(pair, mark)| {
            context.pending.note_mark(pair, mark, now);
        });
        let resumed = context.pending.resume(pending, &context.shared.admission);
        resumed.map_err(Error::system("wait for the servers of pending connections"))
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        let Some(sockets) = self.sockets.take() else { return Ok(()) };
        let thread = ServiceThread::new(TITLE)?;
        let handler = SynHandler::new(
            sockets,
            Settings::of(&context.config, &context.legs, &context.pairs),
            thread.mailbox().clone(),
            context.shared.clone(),
            context.pending.clone(),
            self.counters.clone(),
            std::mem::take(&mut self.recent_syns),
        );
        let handler = handler.map_err(Error::system(format!("start {TITLE}")))?;
        self.counters.held_total.add(self.held as u64);
        self.thread = Some(thread);
        self.run(handler)
    }

    fn unpause(&mut self, _context: &Context) -> Result<(), Error> {
        match self.paused.take() {
            Some(handler) => self.run(handler),
            None => Ok(()),
        }
    }

    fn reload(&mut self, context: &Context) {
        if let Some(thread) = &self.thread {
            thread.send(Settings::of(&context.config, &context.legs, &context.pairs));
        }
    }

    fn pause(&mut self) {
        self.paused = self.thread.as_mut().and_then(|thread| thread.stop().flatten());
    }

    fn snapshot(&self, context: &Context) -> Result<Option<Section>, SnapshotError> {
        let Some(handler) = &self.paused else { return Ok(None) };
        let sockets = handler.sockets().descriptors()?;
        let recent_syns = handler.recent_syns();
        let (pending, marks) = (&*context.pending, context.pending.marks());
        Section::of(&Snapshot { sockets, pending, marks, recent_syns }).map(Some)
    }

    fn is_exclusive(&self) -> bool {
        self.thread.is_some()
    }

    fn heartbeat(&self) -> Option<Arc<dyn Heartbeat>> {
        self.thread.as_ref().map(ServiceThread::heartbeat)
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        vec![self.counters.clone()]
    }
}
