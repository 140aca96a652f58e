use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

use crate::{Error, Namespace, Result};

/// The device node that makes TUN devices.
pub(crate) const DEV_NET_TUN: &str = "/dev/net/tun";

/// Packets that the kernel keeps for the driver. At 1 Gbit/s of full-size packets this is a driver that sleeps 120 ms:
/// whatever overflows here is no part of the model, so it must not happen, and is counted if it does.
const TX_QUEUE_LEN: u32 = 10_000;

/// One end of the satellite link: a point-to-point IP device whose far side is this process.
///
/// What the namespace sends is read here, packet by packet; what is written here arrives in the namespace. The device
/// offers no segmentation offload, so the kernel cuts what TCP hands it to the MTU and every packet is one of the wire.
/// It vanishes when this value is dropped.
#[derive(Debug)]
pub(crate) struct Tun {
    fd: OwnedFd,
    namespace: Namespace,
    interface: String,
}

impl Tun {
    /// A new device, up, without an address.
    pub(crate) fn create(namespace: &Namespace, interface: &str, mtu: u32) -> Result<Self> {
        let fd = namespace.run(|| attach(interface))?.map_err(|(step, source)| Error::Tun {
            interface: interface.to_owned(),
            namespace: namespace.name().to_owned(),
            step,
            source,
        })?;
        silence(namespace, interface)?;
        namespace
            .ip(&format!("link set {interface} mtu {mtu} txqueuelen {TX_QUEUE_LEN} multicast off up"))?;
        Ok(Self { fd, namespace: namespace.clone(), interface: interface.to_owned() })
    }

    pub(crate) fn interface(&self) -> &str {
        &self.interface
    }

    /// The next packet that the namespace sent; its length. `EAGAIN` if there is none.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        rustix::io::read(&self.fd, buffer)
    }

    /// Lets a packet arrive in the namespace.
    pub(crate) fn write(&self, packet: &[u8]) -> rustix::io::Result<()> {
        rustix::io::write(&self.fd, packet).map(drop)
    }

    /// Packets that the kernel dropped on the device, in either direction, since it was made.
    pub(crate) fn kernel_drops(&self) -> Result<u64> {
        let table = self.namespace.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        Ok(drops_of(&self.interface, &table.unwrap_or_default()))
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes the device in the namespace of the calling thread.
fn attach(interface: &str) -> Result<OwnedFd, (&'static str, io::Error)> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = open(DEV_NET_TUN, flags, Mode::empty()).map_err(|errno| ("open /dev/net/tun", errno.into()))?;
    // SAFETY: an ifreq of zeroes is a valid one, with an empty name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.is_empty() || interface.len() >= request.ifr_name.len() {
        return Err(("name the device", io::Error::from_raw_os_error(libc::EINVAL)));
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` is for the length of the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF as _, &mut request) } {
        0 => Ok(fd),
        _ => Err(("ioctl TUNSETIFF", io::Error::last_os_error())),
    }
}

/// Keeps the kernel from talking on its own: no link-local address, so no router solicitation and no multicast report.
/// What the counters show is then what the hosts sent.
fn silence(namespace: &Namespace, interface: &str) -> Result<()> {
    if namespace.has_ipv6() {
        namespace.sysctl(&format!("net/ipv6/conf/{interface}/addr_gen_mode"), "1")?;
        namespace.sysctl(&format!("net/ipv6/conf/{interface}/router_solicitations"), "0")?;
    }
    Ok(())
}

/// Receive and transmit drops of one row of `/proc/net/dev`: columns 4 and 12 behind the name (proc_pid_net(5)).
fn drops_of(interface: &str, table: &str) -> u64 {
    let row = table.lines().find_map(|line| {
        let (name, counters) = line.split_once(':')?;
        (name.trim() == interface).then_some(counters)
    });
    let counters: Vec<u64> =
        row.unwrap_or_default().split_whitespace().filter_map(|number| number.parse().ok()).collect();
    [3, 11].iter().filter_map(|&column| counters.get(column)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_from_the_row_of_the_device() {
        let table = "Inter-|   Receive  |  Transmit\n\
                     \u{20}face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop …\n\
                     \u{20}   lo:  1 2 3 400 5 6 7 8 9 10 11 1200 13 14 15 16\n\
                     \u{20} sat0:  1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(drops_of("sat0", table), 16);
        assert_eq!(drops_of("sat1", table), 0);
    }
}
