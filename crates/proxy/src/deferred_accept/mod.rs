//! Deferred accept: completes a client's handshake only once the server's is complete.
//!
//! Linux answers a SYN as soon as it reaches a listener, so the rules route it into a TUN device instead. A thread reads
//! it there, keeps it, and connects to the server in the client's name. Once the server has answered, the SYN is given back
//! through the same device: the rules hand it to its path's listener, the kernel answers, and the worker that accepts the
//! connection claims the server's side from the [`PendingTable`]. If the server refuses, or somebody says in its place that it
//! cannot be reached, the SYN is given back through another device, which the rules leave alone: it goes to the server,
//! unsplit, and what the client sees is the answer that it would have had without a proxy. And where nobody answers the
//! client hears nothing.
//!
//! ```text
//! SYN ══► rules ══► held device ──► thread ──► connect ══► server
//!                       ▲  answered    │  failed
//!  listener ◄══ rules ══╧◄─────────────┴────► passed device ══► server
//! ```
//!
//! The devices end with the process, and with them the route that leads into one: without the daemon the SYN takes the way
//! that it always took.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bentpipe_legs::Legs;

use crate::admission::AdmissionControl;
use crate::config::{AtLimit, Interface};
use crate::error::Error;
use crate::stats::Counters;
use crate::types::mailbox::{Heartbeat, Mailbox};

mod devices;
mod pending_table;
mod recent_syns;
mod syn;
mod syn_handler;

pub(crate) use devices::Devices;
pub(crate) use pending_table::{Claim, Connected, Entry, PendingTable};
pub(crate) use recent_syns::RecentSyns;
pub(crate) use syn::is_between_hosts;
use syn_handler::SynHandler;

/// The settings of deferred accept; a reload changes them.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) legs: Arc<Legs>,
    /// The interfaces of the satellite legs, in the order of [`LegId::Satellite`](crate::types::leg_pair::LegId::Satellite).
    pub(crate) interfaces: Vec<Interface>,
    /// What happens to a SYN that is not admitted.
    pub(crate) at_limit: AtLimit,
}

/// Deferred accept while it is paused. SYNs wait in the devices.
#[derive(Debug)]
pub(crate) struct Paused {
    handler: SynHandler,
}

/// The running service; it stops when it is dropped, and forgets pending connections.
#[derive(Debug)]
pub(crate) struct DeferredAccept {
    thread: Option<JoinHandle<Option<SynHandler>>>,
    mailbox: Arc<Mailbox<Settings>>,
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
}

impl DeferredAccept {
    /// Starts to serve `devices`. Admitted connections are entered in `pending`, where the workers find them. `recent_syns` is what another process
    /// remembers that had the devices before, and so many handshakes of its are `held` in the pending.
    pub(crate) fn spawn(
        devices: Arc<Devices>,
        settings: Settings,
        admission: Arc<AdmissionControl>,
        pending: Arc<PendingTable>,
        recent_syns: RecentSyns,
        held: usize,
    ) -> Result<Self, Error> {
        let action = "start deferred accept";
        let mailbox = Arc::new(Mailbox::new("deferred accept".into()).map_err(Error::system(action))?);
        let (stop, counters) = (Arc::<AtomicBool>::default(), Arc::<Counters>::default());
        let handler = SynHandler::new(
            devices,
            settings,
            mailbox.clone(),
            admission,
            pending,
            counters.clone(),
            recent_syns,
        );
        let handler = handler.map_err(Error::system(action))?;
        counters.held_total.add(held as u64);
        let mut deferred_accept = Self { thread: None, mailbox, stop, counters };
        deferred_accept.resume(Paused { handler })?;
        Ok(deferred_accept)
    }

    /// Pauses, so that another process may take over; `None` if the thread has failed.
    pub(crate) fn pause(&mut self) -> Option<Paused> {
        self.stop.store(true, Ordering::Release);
        self.mailbox.wake();
        let outcome = self.thread.take()?.join();
        let handler =
            outcome.inspect_err(|_| tracing::error!("the thread of deferred accept panicked")).ok().flatten();
        handler.map(|handler| Paused { handler })
    }

    /// Resumes after a pause.
    pub(crate) fn resume(&mut self, paused: Paused) -> Result<(), Error> {
        self.stop.store(false, Ordering::Release);
        let until = self.stop.clone();
        let work = move || {
            let outcome = paused.handler.run(&until);
            outcome
                .inspect_err(
                    |error| tracing::error!(%error, "deferred accept failed: new connections pass unsplit"),
                )
                .ok()
        };
        let thread = std::thread::Builder::new().name("bentpipe-defer".into()).spawn(work);
        self.thread = Some(thread.map_err(Error::system("start deferred accept"))?);
        Ok(())
    }

    /// Applies other settings from the next SYN on.
    pub(crate) fn replace_settings(&self, settings: Settings) {
        self.mailbox.send(settings);
    }

    /// Its heartbeat.
    pub(crate) fn heartbeat(&self) -> Box<dyn Heartbeat> {
        Box::new(self.mailbox.clone())
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Paused {
    pub(crate) fn recent_syns(&self) -> &RecentSyns {
        self.handler.recent_syns()
    }
}

impl Drop for DeferredAccept {
    fn drop(&mut self) {
        self.pause();
    }
}
