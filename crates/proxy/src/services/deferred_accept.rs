//! [Deferred accept](crate::deferred_accept) as a service.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::devices::Devices;
use super::thread::ServiceThread;
use super::{Context, Preparation, Service};
use crate::config::Config;
use crate::deferred_accept::{Entry, PendingTable, RecentSyns, Settings, SynHandler};
use crate::error::Error;
use crate::intercept::{HELD, PASSED, TunDivert};
use crate::snapshot::{Fd, Section, SnapshotError};
use crate::stats::Counters;
use crate::types::mailbox::Heartbeat;

const NAME: &str = "deferred_accept";
/// What the log calls it.
const TITLE: &str = "deferred accept";

/// Deferred accept. Pending connections end with it.
#[derive(Debug)]
pub(super) struct DeferredAccept {
    devices: Devices,
    thread: Option<ServiceThread<Settings, Option<SynHandler>>>,
    /// The thread's state while it is paused; SYNs wait in the devices.
    paused: Option<SynHandler>,
    counters: Arc<Counters>,
    /// What a predecessor has left: its outcomes of recent SYNs, and how many of its handshakes are pending.
    recent_syns: RecentSyns,
    held: usize,
}

/// What a successor needs.
#[derive(Serialize)]
struct Snapshot<'a> {
    devices: Option<[Fd; 2]>,
    pending: &'a PendingTable,
    recent_syns: Option<&'a RecentSyns>,
}

/// A [`Snapshot`], as the successor reads it.
#[derive(Deserialize)]
struct Predecessor {
    devices: Option<[Fd; 2]>,
    pending: Vec<Entry<()>>,
    recent_syns: Option<RecentSyns>,
}

impl DeferredAccept {
    /// Makes the devices, unless they come from a predecessor.
    pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Self, Error> {
        let mut devices = Devices::new([HELD.device, PASSED]);
        if preparation.config.wants_faithful() && !preparation.inherits(NAME) {
            devices.open("the faithful handshake", "set handshake = \"early\"")?;
        }
        Ok(Self {
            devices,
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

    fn check(&self, config: &Config) -> Result<(), Error> {
        match config.wants_faithful() && self.thread.is_none() {
            true => Err(Error::Restart { what: "a faithful handshake" }),
            false => Ok(()),
        }
    }

    fn resume(&mut self, section: Option<Section>, context: &Context) -> Result<(), Error> {
        let Some(section) = section else { return Ok(()) };
        let Predecessor { devices, pending, recent_syns } = section.read().map_err(Error::snapshot)?;
        (self.held, self.recent_syns) = (pending.len(), recent_syns.unwrap_or_default());
        // Pending handshakes need a thread that completes them or, in time, ends them.
        if let Some(devices) = devices.filter(|_| self.held > 0 || context.config.wants_faithful()) {
            self.devices.resume(devices)?;
        }
        let resumed = context.pending.resume(pending, &context.shared.admission);
        resumed.map_err(Error::system("wait for the servers of pending connections"))
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        let Some(devices) = self.devices.take() else { return Ok(()) };
        let thread = ServiceThread::new(TITLE)?;
        let handler = SynHandler::new(
            devices,
            Settings::of(&context.config, &context.legs),
            thread.mailbox().clone(),
            context.shared.admission.clone(),
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
            thread.send(Settings::of(&context.config, &context.legs));
        }
    }

    fn pause(&mut self) {
        self.paused = self.thread.as_mut().and_then(|thread| thread.stop().flatten());
    }

    fn snapshot(&self, context: &Context) -> Result<Option<Section>, SnapshotError> {
        if self.thread.is_none() {
            return Ok(None);
        }
        let devices = self.devices.descriptors()?;
        let recent_syns = self.paused.as_ref().map(SynHandler::recent_syns);
        Section::of(&Snapshot { devices, pending: &context.pending, recent_syns }).map(Some)
    }

    fn tun_diverts(&self) -> Vec<TunDivert> {
        self.devices.exist().then_some(HELD).into_iter().collect()
    }

    fn heartbeat(&self) -> Option<Arc<dyn Heartbeat>> {
        self.thread.as_ref().map(ServiceThread::heartbeat)
    }

    fn counters(&self) -> Option<Arc<Counters>> {
        Some(self.counters.clone())
    }
}
