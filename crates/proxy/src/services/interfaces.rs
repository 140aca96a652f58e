//! The interfaces of the legs, which may come after the daemon, go, and come back as others.
//!
//! The rules know interfaces by their names, so nothing has to be done for a leg whose interface comes: its
//! connections are split from the first one on. Until then no packet crosses the leg. This thread tells the
//! operator which leg waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bentpipe_kernel::link_events::LinkEvents;
use bentpipe_kernel::route::RouteSocket;
use rustix::event::{PollFd, PollFlags, poll};

use super::thread::ServiceThread;
use super::{Context, Service};
use crate::config::Config;
use crate::error::Error;
use crate::host;
use crate::telemetry::Shared;
use crate::types::mailbox::Mailbox;

/// What the log calls the thread.
const TITLE: &str = "the watch over interfaces";

/// The name of the leg of each interface.
type Wanted = BTreeMap<String, String>;

/// The watch over interfaces.
#[derive(Debug, Default)]
pub(super) struct InterfaceWatch {
    thread: Option<ServiceThread<Wanted>>,
}

struct Watcher {
    shared: Arc<Shared>,
    wanted: Wanted,
    /// The index of each interface, if it exists.
    indices: BTreeMap<String, Option<u32>>,
    events: LinkEvents,
    routes: RouteSocket,
}

impl Service for InterfaceWatch {
    fn name(&self) -> &'static str {
        "interfaces"
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        let mut watcher = Watcher::new(context)?;
        watcher.look();
        let mut thread = ServiceThread::new(TITLE)?;
        let mailbox = thread.mailbox().clone();
        thread.run("bentpipe-links", move |stop| watcher.run(&mailbox, stop))?;
        self.thread = Some(thread);
        Ok(())
    }

    fn reload(&mut self, context: &Context) {
        if let Some(thread) = &self.thread {
            thread.send(wanted(&context.config));
        }
    }
}

impl Watcher {
    fn new(context: &Context) -> Result<Self, Error> {
        let failed = || Error::system(format!("start {TITLE}"));
        Ok(Self {
            shared: context.shared.clone(),
            wanted: wanted(&context.config),
            indices: BTreeMap::new(),
            // Before the first look, so that nothing is missed.
            events: LinkEvents::open().map_err(failed())?,
            routes: RouteSocket::open().map_err(failed())?,
        })
    }

    fn run(mut self, mailbox: &Mailbox<Wanted>, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let _ = poll(
                &mut [PollFd::new(&self.events, PollFlags::IN), PollFd::new(mailbox, PollFlags::IN)],
                None,
            );
            self.events.clear();
            if let Some(wanted) = mailbox.take().pop_back() {
                self.wanted = wanted;
            }
            self.look();
        }
    }

    /// Sees which interfaces exist, and tells of each that has come or gone.
    fn look(&mut self) {
        let mut indices = BTreeMap::new();
        for (interface, leg) in &self.wanted {
            let before = self.indices.get(interface).copied();
            let now = self.routes.index_of(interface).unwrap_or_else(|error| {
                tracing::warn!("cannot tell whether interface {interface} exists: {error}");
                before.flatten()
            });
            tell(leg, interface, before, now);
            indices.insert(interface.clone(), now);
        }
        self.shared.interfaces.set(indices.clone());
        self.indices = indices;
    }
}

/// Logs a change. `before` is none if it was not looked for.
fn tell(leg: &str, interface: &str, before: Option<Option<u32>>, now: Option<u32>) {
    match (before, now) {
        (None, None) => {
            tracing::warn!("{}", host::waiting_leg(leg, interface));
        }
        (Some(Some(_)), None) => {
            tracing::warn!("leg {leg}: waiting for interface {interface}, which has gone");
        }
        (Some(None), Some(_)) => {
            tracing::info!("leg {leg}: interface {interface} is there: connections over it are split");
        }
        (Some(Some(before)), Some(now)) if before != now => {
            tracing::info!("leg {leg}: interface {interface} is another one: connections over it are split");
        }
        _ => {}
    }
}

fn wanted(config: &Config) -> Wanted {
    config.legs.iter().map(|(name, leg)| (leg.interface.as_str().to_owned(), name.clone())).collect()
}
