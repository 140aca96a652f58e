//! Snoop: retransmits lost segments of flows that are not split.
//!
//! The rules route their packets into two TUN devices, one per direction. A thread reads them, passes them to the
//! agent ([`Snoop`](bentpipe_link::agent::snoop::Snoop)), and writes its output back to the same devices, from
//! where the kernel forwards it; so only the kernel knows the interfaces, the routes and the neighbours.
//!
//! ```text
//! ground ══► rules ══► to_link ═══► agent ══► to_link ══► satellite
//! ground ◄══ from_link ◄══ agent ◄═══ from_link ◄══ rules ◄══ satellite
//! ```
//!
//! What the agent keeps are copies. So whatever happens to it, the ends have all that they need: without the devices, which end
//! with the process, without a sign of life, or after a fault of the agent's, packets take the direction that they always took. With a
//! pace some packets wait in the agent for their turn; where it is given up in order, they go on at once. Where it is not,
//! they are lost, as those in a full queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bentpipe_kernel::tun::Tun;
use bentpipe_link::agent::snoop::SnoopConfig;

use crate::error::Error;
use crate::intercept::Names;
use crate::intercept::tun;
use crate::snapshot::Fd;
use crate::stats::SnoopStats;
use crate::types::mailbox::{Heartbeat, Mailbox};

mod counters;
mod supervisor;
mod thread;

use counters::SharedCounters;
use thread::Forwarder;

/// Packets that wait in a device to be read: at 1500 bytes 6 MB, eight bandwidth-delay products of 10 Mbit/s and 600 ms. What
/// comes beyond is dropped, as by any full queue.
const QUEUE: usize = 4096;

/// The devices, up. They vanish when this value is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Devices {
    /// For packets on their direction to a satellite.
    to_link: Tun,
    /// For packets that have come over one.
    from_link: Tun,
}

/// The running service; it stops when it is dropped.
#[derive(Debug)]
pub(crate) struct Snoop {
    thread: Option<JoinHandle<()>>,
    mailbox: Arc<Mailbox<SnoopConfig>>,
    stop: Arc<AtomicBool>,
    counters: Arc<SharedCounters>,
}

impl Devices {
    /// Other descriptors of the same devices, to hand them on.
    pub(crate) fn descriptors(&self) -> std::io::Result<[Fd; 2]> {
        Ok([self.to_link.descriptor()?.into(), self.from_link.descriptor()?.into()])
    }

    /// The devices that another process has made and handed over.
    pub(crate) fn resume([to_link, from_link]: [Fd; 2], names: &Names) -> std::io::Result<Self> {
        let to_link = Tun::inherited(to_link.into_owned()?, &names.to_link.device);
        Ok(Self { to_link, from_link: Tun::inherited(from_link.into_owned()?, &names.from_link.device) })
    }

    /// Makes the devices in the network namespace of the calling thread. Needs `CAP_NET_ADMIN` and `/dev/net/tun`.
    pub(crate) fn open(names: &Names) -> Result<Self, Error> {
        let open = |name| tun::open(name, QUEUE, "action = \"snoop\"", "write \"split\" or \"pass\"");
        Ok(Self { to_link: open(&names.to_link.device)?, from_link: open(&names.from_link.device)? })
    }
}

impl Snoop {
    /// Starts to look after what is routed into `devices`.
    pub(crate) fn spawn(devices: Arc<Devices>, config: SnoopConfig) -> Result<Self, Error> {
        let action = "start Snoop";
        let mailbox = Arc::new(Mailbox::new("Snoop".into()).map_err(Error::system(action))?);
        let (stop, counters) = (Arc::<AtomicBool>::default(), Arc::<SharedCounters>::default());
        let forwarder = Forwarder::new(devices, config, mailbox.clone(), counters.clone());
        let until = stop.clone();
        let thread = std::thread::Builder::new()
            .name("bentpipe-snoop".into())
            .spawn(move || forwarder.run(&until))
            .map_err(Error::system(action))?;
        Ok(Self { thread: Some(thread), mailbox, stop, counters })
    }

    /// Goes by other settings from the next packet on; the agent begins anew where they differ.
    pub(crate) fn replace_settings(&self, config: SnoopConfig) {
        self.mailbox.send(config);
    }

    /// Its heartbeat.
    pub(crate) fn heartbeat(&self) -> Box<dyn Heartbeat> {
        Box::new(self.mailbox.clone())
    }

    /// What it has done so far.
    pub(crate) fn stats(&self) -> SnoopStats {
        self.counters.stats()
    }

    /// The same for somebody who looks on by himself.
    pub(crate) fn view(&self) -> impl Fn() -> SnoopStats + Send + Sync + use<> {
        let counters = self.counters.clone();
        move || counters.stats()
    }
}

impl Drop for Snoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.mailbox.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the Snoop thread panicked");
        }
        let SnoopStats {
            packets,
            cached,
            retransmitted,
            timed_out,
            suppressed,
            yielded,
            queue_dropped,
            most_queued_bytes,
            most_held_bytes,
            ..
        } = self.stats();
        tracing::info!(
            packets,
            cached,
            retransmitted,
            timed_out,
            suppressed,
            yielded,
            queue_dropped,
            most_queued_bytes,
            most_held_bytes,
            "snooping ended"
        );
    }
}
