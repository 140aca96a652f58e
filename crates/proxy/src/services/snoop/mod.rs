//! Snoop: retransmits lost segments of flows that are not split.
//!
//! The rules route their packets into two TUN devices, one per direction. A thread reads them, passes them to
//! the agent ([`Snoop`](bentpipe_link::agent::snoop::Snoop)), and writes its output back to the same devices,
//! from where the kernel forwards it; so only the kernel knows the interfaces, the routes and the neighbours.
//!
//! ```text
//! ground ══► rules ══► to_link ═══► agent ══► to_link ══► satellite
//! ground ◄══ from_link ◄══ agent ◄═══ from_link ◄══ rules ◄══ satellite
//! ```
//!
//! The agent keeps copies only. So the ends lose nothing if it fails: without the devices, which vanish with
//! the process, without a renewal of the rules, or after a fault of the agent, packets take their usual
//! route. With a pace some packets wait in the agent; they are sent at once if it is flushed, and otherwise
//! lost, like those in a full queue.

use std::sync::Arc;

use bentpipe_link::agent::snoop::SnoopConfig;

use super::devices::Devices;
use super::thread::ServiceThread;
use super::{Context, Preparation, Service};
use crate::config::{Action, Config};
use crate::error::{Error, Refusal};
use crate::intercept::{FROM_LINK, TO_LINK, TunDivert};
use crate::snapshot::{Section, SnapshotError};
use crate::stats::Counters;
use crate::types::mailbox::Heartbeat;

mod supervisor;
mod thread;

use thread::Forwarder;

const NAME: &str = "snoop";

/// Snoop.
#[derive(Debug)]
pub(super) struct Snoop {
    /// For packets to a satellite, and from one.
    devices: Devices,
    thread: Option<ServiceThread<SnoopConfig>>,
    counters: Arc<Counters>,
}

impl Snoop {
    /// Makes the devices, unless they come from a predecessor.
    pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Self, Error> {
        let mut devices = Devices::new([TO_LINK, FROM_LINK].map(|divert| divert.device));
        if preparation.config.wants_snoop() && !preparation.inherits(NAME) {
            devices.open("action = \"snoop\"", "write \"split\" or \"pass\"")?;
        }
        Ok(Self { devices, thread: None, counters: Arc::default() })
    }
}

impl Service for Snoop {
    fn name(&self) -> &'static str {
        NAME
    }

    fn check(&self, config: &Config) -> Result<(), Refusal> {
        let first = config.rules.iter().position(|rule| rule.action == Action::Snoop);
        match first.filter(|_| self.thread.is_none()) {
            Some(index) => {
                let rule = format!("rules[{}]", index + 1);
                Err(Refusal::until_upgrade(rule, "the first rule with action = \"snoop\""))
            }
            None => Ok(()),
        }
    }

    fn resume(&mut self, section: Option<Section>, context: &Context) -> Result<(), Error> {
        let Some(section) = section.filter(|_| context.config.wants_snoop()) else { return Ok(()) };
        self.devices.resume(section.read().map_err(Error::snapshot)?)
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        let (Some(devices), Some(config)) = (self.devices.take(), context.config.snoop_config()) else {
            return Ok(());
        };
        let mut thread = ServiceThread::new("Snoop")?;
        let forwarder = Forwarder::new(devices, config, thread.mailbox().clone(), self.counters.clone());
        thread.run("bentpipe-snoop", move |stop| forwarder.run(stop))?;
        self.thread = Some(thread);
        Ok(())
    }

    /// The agent starts without state if the settings differ.
    fn reload(&mut self, context: &Context) {
        if let (Some(thread), Some(config)) = (&self.thread, context.config.snoop_config()) {
            thread.send(config);
        }
    }

    /// The thread goes on until the process ends: packets in its queue are not handed over.
    fn snapshot(&self, _context: &Context) -> Result<Option<Section>, SnapshotError> {
        self.devices.descriptors()?.map(|devices| Section::of(&devices)).transpose()
    }

    fn tun_diverts(&self) -> Vec<TunDivert> {
        if self.devices.exist() { vec![TO_LINK, FROM_LINK] } else { Vec::new() }
    }

    fn heartbeat(&self) -> Option<Arc<dyn Heartbeat>> {
        self.thread.as_ref().map(ServiceThread::heartbeat)
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        vec![self.counters.clone()]
    }
}

impl Drop for Snoop {
    fn drop(&mut self) {
        if let Some(mut thread) = self.thread.take() {
            thread.stop();
            tracing::info!("Snoop has stopped");
            tracing::debug!(stats = ?self.counters.snoop.read());
        }
    }
}
