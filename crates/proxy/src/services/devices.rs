//! The two TUN devices of a service.

use std::sync::{Arc, Weak};

use bentpipe_kernel::tun::Tun;

use crate::error::Error;
use crate::intercept::tun;
use crate::snapshot::Fd;

/// Two devices, which are up. They vanish if the thread that has them fails, and with the process.
#[derive(Debug)]
pub(super) struct Devices {
    names: [&'static str; 2],
    /// Until the thread has them.
    unused: Option<Arc<[Tun; 2]>>,
    alive: Weak<[Tun; 2]>,
}

impl Devices {
    /// Devices that do not exist yet.
    pub(super) fn new(names: [&'static str; 2]) -> Self {
        Self { names, unused: None, alive: Weak::new() }
    }

    /// Makes the devices in the network namespace of the calling thread. `instead` is what an operator can do
    /// without `purpose`. Needs `CAP_NET_ADMIN` and `/dev/net/tun`.
    pub(super) fn open(&mut self, purpose: &'static str, instead: &'static str) -> Result<(), Error> {
        let [one, other] = self.names.map(|name| tun::open(name, purpose, instead));
        self.set([one?, other?]);
        Ok(())
    }

    /// Takes over the devices that another process has made.
    pub(super) fn resume(&mut self, descriptors: [Fd; 2]) -> Result<(), Error> {
        let action = || Error::system("take over a TUN device");
        let [one, other] = descriptors.map(Fd::into_owned);
        let [name, other_name] = self.names;
        let one = Tun::inherited(one.map_err(action())?, name);
        self.set([one, Tun::inherited(other.map_err(action())?, other_name)]);
        Ok(())
    }

    fn set(&mut self, devices: [Tun; 2]) {
        let devices = Arc::new(devices);
        (self.alive, self.unused) = (Arc::downgrade(&devices), Some(devices));
    }

    /// The devices, for the thread.
    pub(super) fn take(&mut self) -> Option<Arc<[Tun; 2]>> {
        self.unused.take()
    }

    /// Whether they exist.
    pub(super) fn exist(&self) -> bool {
        self.alive.strong_count() > 0
    }

    /// Duplicates of the descriptors, to hand them over.
    pub(super) fn descriptors(&self) -> std::io::Result<Option<[Fd; 2]>> {
        let Some(devices) = self.alive.upgrade() else { return Ok(None) };
        let [one, other] = &*devices;
        Ok(Some([one.descriptor()?.into(), other.descriptor()?.into()]))
    }
}
