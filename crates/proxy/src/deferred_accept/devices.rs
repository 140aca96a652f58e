//! The two devices through which SYNs are taken and given back.

use bentpipe_kernel::tun::Tun;

use crate::error::Error;
use crate::intercept::Names;
use crate::intercept::tun;
use crate::snapshot::Fd;

/// SYNs that wait in a device to be read: as many as may wait for their servers. What comes beyond is
/// dropped, and repeated by its client.
const QUEUE: usize = 4096;

/// The devices of deferred accept, up. They vanish when this value is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Devices {
    /// What is routed into it is read here; what is written here goes to the listeners.
    pub(super) held: Tun,
    /// What is written here is forwarded, unsplit.
    pub(super) passed: Tun,
}

impl Devices {
    /// Other descriptors of the same devices, to hand them on.
    pub(crate) fn descriptors(&self) -> std::io::Result<[Fd; 2]> {
        Ok([self.held.descriptor()?.into(), self.passed.descriptor()?.into()])
    }

    /// The devices that another process has made and handed over.
    pub(crate) fn resume([held, passed]: [Fd; 2], names: &Names) -> std::io::Result<Self> {
        let held = Tun::inherited(held.into_owned()?, &names.held.device);
        Ok(Self { held, passed: Tun::inherited(passed.into_owned()?, &names.passed) })
    }

    /// Makes the devices in the network namespace of the calling thread. Needs `CAP_NET_ADMIN` and
    /// `/dev/net/tun`.
    pub(crate) fn open(names: &Names) -> Result<Self, Error> {
        let open = |name| tun::open(name, QUEUE, "the faithful handshake", "set handshake = \"early\"");
        Ok(Self { held: open(&names.held.device)?, passed: open(&names.passed)? })
    }
}
