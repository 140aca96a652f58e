use std::fs;
use std::os::fd::{AsFd, BorrowedFd};

use bentpipe_kernel::tun;
use rustix::io::Errno;

use crate::{Error, Namespace, Result};

/// Limit of the packets that the kernel queues for the forwarder: 120 ms of full-size packets at 1 Gbit/s. An
/// overflow is not part of the model, so that it must not happen, and is counted if it does.
const TX_QUEUE_LEN: u32 = 10_000;

/// One end of the satellite link: a point-to-point IP device whose far side is this process.
///
/// Packets that the namespace sends are read here; packets that are written here arrive in the namespace. The
/// kernel segments TCP data to the MTU before, so that every packet is one of the wire. The device is removed
/// when this value is dropped.
#[derive(Debug)]
pub(crate) struct Tun {
    device: tun::Tun,
    namespace: Namespace,
}

impl Tun {
    /// A new device, up, without an address.
    pub(crate) fn create(namespace: &Namespace, interface: &str, mtu: u32) -> Result<Self> {
        let device = namespace
            .run(|| tun::Tun::create(interface))?
            .map_err(|source| Error::Tun { namespace: namespace.name().to_owned(), source })?;
        silence(namespace, interface)?;
        namespace
            .ip(&format!("link set dev {interface} mtu {mtu} txqueuelen {TX_QUEUE_LEN} multicast off up"))?;
        Ok(Self { device, namespace: namespace.clone() })
    }

    pub(crate) fn interface(&self) -> &str {
        self.device.name()
    }

    /// The next packet that the namespace sent; its length. `EAGAIN` if there is none.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        self.device.read(buffer).map_err(number)
    }

    /// Lets a packet arrive in the namespace.
    pub(crate) fn write(&self, packet: &[u8]) -> rustix::io::Result<()> {
        self.device.write(packet).map_err(number)
    }

    /// Packets that the kernel dropped on the device, in either direction, since it was made.
    pub(crate) fn kernel_drops(&self) -> Result<u64> {
        let table = self.namespace.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        Ok(drops_of(self.interface(), &table.unwrap_or_default()))
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Reading and writing fail with system errors only, which have numbers.
fn number(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Keeps the kernel from sending packets of its own: without a link-local address there are no router
/// solicitations and no multicast reports, and the counters show only the packets of the hosts.
fn silence(namespace: &Namespace, interface: &str) -> Result<()> {
    if namespace.has_ipv6() {
        namespace.sysctl(&format!("net/ipv6/conf/{interface}/addr_gen_mode"), "1")?;
        namespace.sysctl(&format!("net/ipv6/conf/{interface}/router_solicitations"), "0")?;
    }
    Ok(())
}

/// Receive and transmit drops of one row of `/proc/net/dev`: columns 4 and 12 behind the name
/// (proc_pid_net(5)).
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
