//! TUN devices through which packets reach the daemon and leave it.

use std::fs;
use std::io;

use bentpipe_kernel::tun::Tun;

use crate::error::Error;
use crate::intercept::ip;

/// The longest packet of IP: whatever has come in by one interface fits into ours.
pub(crate) const MTU: usize = 65535;

/// Packets that may wait in a device to be read. Further ones are dropped, as by any full queue: 6 MB, eight
/// bandwidth-delay products of 10 Mbit/s and 600 ms.
pub(crate) const QUEUE: usize = 4096;

/// A device that is up, for `purpose`, in the network namespace of the calling thread. `instead` is what an
/// operator can do without it. Needs `CAP_NET_ADMIN` and `/dev/net/tun`.
pub(crate) fn open(name: &str, purpose: &'static str, instead: &'static str) -> Result<Tun, Error> {
    let tun = Tun::create(name)
        .map_err(|error| Error::Refused(format!("{purpose} cannot work: {error}; or {instead}")))?;
    // A source that is reached by another interface is what everything here has.
    set("ipv4", name, "rp_filter", "0")?;
    set("ipv4", name, "forwarding", "1")?;
    if fs::exists(format!("/proc/sys/net/ipv6/conf/{name}")).unwrap_or(false) {
        set("ipv6", name, "forwarding", "1")?;
        // No link-local address, so that the kernel has nothing to say here: no router solicitation, no
        // multicast report.
        set("ipv6", name, "addr_gen_mode", "1")?;
    }
    ip("set up a device", &format!("link set {name} mtu {MTU} txqueuelen {QUEUE} multicast off up"))?;
    Ok(tun)
}

/// Sets a device's sysctl where it has another value. /proc/sys/net is that of the calling thread's
/// namespace.
fn set(family: &str, device: &str, key: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{family}/conf/{device}/{key}");
    let write = || -> io::Result<()> {
        if fs::read_to_string(&path)?.trim() == value { Ok(()) } else { fs::write(&path, value) }
    };
    write().map_err(Error::system(format!("set {path} to {value}")))
}
