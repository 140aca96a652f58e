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

use std::sync::{Arc, Weak};

use bentpipe_kernel::tun::Tun;
use bentpipe_link::agent::snoop::SnoopConfig;

use super::thread::ServiceThread;
use super::{Context, Preparation, Service};
use crate::config::Config;
use crate::error::Error;
use crate::intercept::{Names, TunDivert, tun};
use crate::snapshot::{Fd, Section, SnapshotError};
use crate::stats::Counters;
use crate::types::mailbox::Heartbeat;

mod supervisor;
mod thread;

use thread::Forwarder;

const NAME: &str = "snoop";

/// Packets that wait in a device to be read: at 1500 bytes 6 MB, eight bandwidth-delay products of 10 Mbit/s
/// and 600 ms. Further packets are dropped, as by any full queue.
const QUEUE: usize = 4096;

/// The devices, up. They vanish when this value is dropped, or with the process.
#[derive(Debug)]
struct Devices {
    /// For packets to a satellite.
    to_link: Tun,
    /// For packets from a satellite.
    from_link: Tun,
}

/// Snoop.
#[derive(Debug, Default)]
pub(super) struct Snoop {
    /// The devices, until the thread has them.
    unused: Option<Arc<Devices>>,
    /// The devices, to hand them over. If the thread fails, they are gone.
    devices: Weak<Devices>,
    thread: Option<ServiceThread<SnoopConfig>>,
    counters: Arc<Counters>,
}

impl Devices {
    /// Duplicates of the descriptors, to hand them over.
    fn descriptors(&self) -> std::io::Result<[Fd; 2]> {
        Ok([self.to_link.descriptor()?.into(), self.from_link.descriptor()?.into()])
    }

    /// The devices that another process has made and handed over.
    fn resume([to_link, from_link]: [Fd; 2], names: &Names) -> std::io::Result<Self> {
        let to_link = Tun::inherited(to_link.into_owned()?, &names.to_link.device);
        Ok(Self { to_link, from_link: Tun::inherited(from_link.into_owned()?, &names.from_link.device) })
    }

    /// Makes the devices in the network namespace of the calling thread. Needs `CAP_NET_ADMIN` and
    /// `/dev/net/tun`.
    fn open(names: &Names) -> Result<Self, Error> {
        let open = |name| tun::open(name, QUEUE, "action = \"snoop\"", "write \"split\" or \"pass\"");
        Ok(Self { to_link: open(&names.to_link.device)?, from_link: open(&names.from_link.device)? })
    }
}

impl Snoop {
    /// Makes the devices, unless they come from a predecessor.
    pub(super) fn prepare(preparation: &Preparation<'_>) -> Result<Self, Error> {
        let mut service = Self::default();
        if preparation.config.wants_snoop() && !preparation.inherits(NAME) {
            service.set_devices(Devices::open(preparation.names)?);
        }
        Ok(service)
    }

    fn set_devices(&mut self, devices: Devices) {
        let devices = Arc::new(devices);
        (self.devices, self.unused) = (Arc::downgrade(&devices), Some(devices));
    }
}

impl Service for Snoop {
    fn name(&self) -> &'static str {
        NAME
    }

    fn check(&self, config: &Config) -> Result<(), Error> {
        match config.wants_snoop() && self.thread.is_none() {
            true => Err(Error::Restart { what: "the first rule with action = \"snoop\"" }),
            false => Ok(()),
        }
    }

    fn resume(&mut self, section: Option<Section>, context: &Context) -> Result<(), Error> {
        let Some(section) = section.filter(|_| context.config.wants_snoop()) else { return Ok(()) };
        let devices = Devices::resume(section.read().map_err(Error::snapshot)?, &context.names);
        self.set_devices(devices.map_err(Error::system("take over a TUN device"))?);
        Ok(())
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        let (Some(devices), Some(config)) = (self.unused.take(), context.config.snoop_config()) else {
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
        let Some(devices) = self.devices.upgrade() else { return Ok(None) };
        Section::of(&devices.descriptors()?).map(Some)
    }

    fn tun_diverts(&self, names: &Names) -> Vec<TunDivert> {
        let diverts = |_| vec![names.to_link.clone(), names.from_link.clone()];
        self.devices.upgrade().map(diverts).unwrap_or_default()
    }

    fn heartbeat(&self) -> Option<Arc<dyn Heartbeat>> {
        self.thread.as_ref().map(ServiceThread::heartbeat)
    }

    fn counters(&self) -> Option<Arc<Counters>> {
        Some(self.counters.clone())
    }
}

impl Drop for Snoop {
    fn drop(&mut self) {
        if let Some(mut thread) = self.thread.take() {
            thread.stop();
            tracing::info!(stats = ?self.counters.snoop.read(), "Snoop has stopped");
        }
    }
}
