//! The greeter: it completes a client's handshake when the server's is complete, and not before.
//!
//! Linux answers a SYN as soon as it reaches a listener, so the rules route it into a TUN device instead. The greeter reads
//! it there, keeps it, and connects to the server in the client's name. Once the server has answered, the SYN is given back
//! through the same device: the rules hand it to its path's listener, the kernel answers, and the worker that accepts the
//! connection claims the server's side from the [`Book`]. If the server refuses, or somebody says in its place that it
//! cannot be reached, the SYN is given back through another device, which the rules leave alone: it goes to the server,
//! unsplit, and what the client sees is the answer that it would have had without a proxy. And where nobody answers the
//! client hears nothing.
//!
//! ```text
//! SYN ══► rules ══► held device ──► greeter ──► connect ══► server
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

use crate::config::{AtLimit, Interface};
use crate::error::Error;
use crate::gate::Gate;
use crate::handover::FateDeed;
use crate::pulse::{Mailbox, Pulse};
use crate::stats::Counters;

mod book;
mod devices;
mod memory;
mod syn;
mod thread;

pub(crate) use book::{Book, Claim, Connected, Entries};
pub(crate) use devices::Devices;
pub(crate) use syn::is_between_hosts;
use thread::Reception;

/// What a greeter goes by; it changes when the configuration is read again.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) legs: Arc<Legs>,
    /// The interfaces of the satellite legs, in the order of [`LegId::Satellite`](crate::path::LegId::Satellite).
    pub(crate) interfaces: Vec<Interface>,
    /// What becomes of a SYN that the gate does not let in.
    pub(crate) at_limit: AtLimit,
}

/// A greeter that pauses. What comes meanwhile waits in the devices.
#[derive(Debug)]
pub(crate) struct Greeting {
    reception: Reception,
}

/// A running greeter; it ends when it is dropped, and the connections that wait are forgotten.
#[derive(Debug)]
pub(crate) struct Greeter {
    thread: Option<JoinHandle<Option<Reception>>>,
    mailbox: Arc<Mailbox<Settings>>,
    stop: Arc<AtomicBool>,
    counters: Arc<Counters>,
}

impl Greeter {
    /// Starts to serve `devices`. What the gate admits is entered in `book`, where the workers find it. `fates` is what another process
    /// remembers that had the devices before, and so many handshakes of its are `held` in the book.
    pub(crate) fn spawn(
        devices: Arc<Devices>,
        settings: Settings,
        gate: Arc<Gate>,
        book: Arc<Book>,
        fates: Vec<FateDeed>,
        held: usize,
    ) -> Result<Self, Error> {
        let action = "start the greeter";
        let mailbox = Arc::new(Mailbox::new("the greeter".into()).map_err(Error::system(action))?);
        let (stop, counters) = (Arc::<AtomicBool>::default(), Arc::<Counters>::default());
        let reception =
            Reception::new(devices, settings, mailbox.clone(), gate, book, counters.clone(), fates);
        let reception = reception.map_err(Error::system(action))?;
        counters.held_total.add(held as u64);
        let mut greeter = Self { thread: None, mailbox, stop, counters };
        greeter.resume(Greeting { reception })?;
        Ok(greeter)
    }

    /// Stops to serve, for as long as another process may take its place. Nothing where it has failed.
    pub(crate) fn pause(&mut self) -> Option<Greeting> {
        self.stop.store(true, Ordering::Release);
        self.mailbox.wake();
        let outcome = self.thread.take()?.join();
        let reception = outcome.inspect_err(|_| tracing::error!("the greeter had panicked")).ok().flatten();
        reception.map(|reception| Greeting { reception })
    }

    /// Goes on after a pause.
    pub(crate) fn resume(&mut self, greeting: Greeting) -> Result<(), Error> {
        self.stop.store(false, Ordering::Release);
        let until = self.stop.clone();
        let work = move || {
            let outcome = greeting.reception.run(&until);
            outcome
                .inspect_err(
                    |error| tracing::error!(%error, "the greeter failed: new connections pass unsplit"),
                )
                .ok()
        };
        let thread = std::thread::Builder::new().name("bentpipe-greeter".into()).spawn(work);
        self.thread = Some(thread.map_err(Error::system("start the greeter"))?);
        Ok(())
    }

    /// Goes by other settings from the next SYN on.
    pub(crate) fn replace_settings(&self, settings: Settings) {
        self.mailbox.send(settings);
    }

    /// By which it shows that it lives.
    pub(crate) fn pulse(&self) -> Box<dyn Pulse> {
        Box::new(self.mailbox.clone())
    }

    pub(crate) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

impl Greeting {
    /// What became of SYNs that are settled, the oldest first.
    pub(crate) fn fates(&self) -> Vec<FateDeed> {
        self.reception.fates()
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        self.pause();
    }
}
