//! The two devices through which SYNs are taken and given back.

use std::fs;
use std::io;

use bentpipe_kernel::tun::Tun;

use crate::error::Error;
use crate::intercept::{Names, ip};

/// SYNs that wait in a device to be read: as many as may wait for their servers. What comes beyond is dropped, and
/// repeated by its client.
const QUEUE: usize = 4096;
/// The longest packet of IP: whatever has come in by one interface fits into ours.
pub(super) const MTU: usize = 65535;

/// The devices of a greeter, up. They vanish when this value is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Devices {
    /// What is routed into it is read here; what is written here goes to the listeners.
    pub(super) held: Tun,
    /// What is written here is forwarded, unsplit.
    pub(super) passed: Tun,
}

impl Devices {
    /// Makes the devices in the network namespace of the calling thread. Needs `CAP_NET_ADMIN` and `/dev/net/tun`.
    pub(crate) fn open(names: &Names) -> Result<Self, Error> {
        Ok(Self { held: device(&names.held)?, passed: device(&names.passed)? })
    }
}

fn device(name: &str) -> Result<Tun, Error> {
    let tun = Tun::create(name)?;
    // A source that is reached by another interface is what everything here has.
    set("ipv4", name, "rp_filter", "0")?;
    set("ipv4", name, "forwarding", "1")?;
    if fs::exists(format!("/proc/sys/net/ipv6/conf/{name}")).unwrap_or(false) {
        set("ipv6", name, "forwarding", "1")?;
        // No link-local address, so that the kernel has nothing to say here: no router solicitation, no multicast report.
        set("ipv6", name, "addr_gen_mode", "1")?;
    }
    ip(
        "set up the devices of the faithful handshake",
        &format!("link set {name} mtu {MTU} txqueuelen {QUEUE} multicast off up"),
    )?;
    Ok(tun)
}

/// Sets a device's sysctl where it has another value. /proc/sys/net is that of the calling thread's namespace.
fn set(family: &str, device: &str, key: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{family}/conf/{device}/{key}");
    let write = || -> io::Result<()> {
        if fs::read_to_string(&path)?.trim() == value { Ok(()) } else { fs::write(&path, value) }
    };
    write().map_err(Error::system(format!("set {path} to {value}")))
}
