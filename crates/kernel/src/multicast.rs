//! Static multicast routes (linux/mroute.h; RFC 5110 §2 calls the protocols that usually set them): which
//! interfaces of this host a datagram to a group is copied to.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::sockopt::{set, set_int};

/// Options of a raw IGMP socket, linux/mroute.h.
const MRT_INIT: libc::c_int = 200;
const MRT_ADD_VIF: libc::c_int = 202;
const MRT_ADD_MFC: libc::c_int = 204;
/// `MAXVIFS` of linux/mroute.h: the most interfaces that multicast routes of a host may use.
pub const MAX_INTERFACES: usize = 32;
/// A datagram with a smaller time to live does not leave by an interface.
const THRESHOLD: u8 = 1;
/// In the kernel's table, an interface by which nothing leaves.
const NOT_BY_IT: u8 = 255;

/// The multicast routes of a network namespace. They are gone when this value is dropped or the process ends,
/// and a namespace has one such value at a time.
#[derive(Debug)]
pub struct MulticastRoutes {
    socket: OwnedFd,
    /// The interfaces that are in use, by an address of each; an interface's number is its place.
    interfaces: Vec<Ipv4Addr>,
}

/// `struct vifctl`, of an interface that is named by its address.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Interface {
    number: u16,
    flags: u8,
    threshold: u8,
    rate_limit: libc::c_uint,
    local: [u8; 4],
    remote: [u8; 4],
}

/// `struct mfcctl`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Route {
    source: [u8; 4],
    group: [u8; 4],
    parent: u16,
    thresholds: [u8; MAX_INTERFACES],
    /// Counters, which the kernel does not read.
    counters: [libc::c_uint; 3],
    expire: libc::c_int,
}

impl MulticastRoutes {
    /// Whether this kernel has multicast routes (`CONFIG_IP_MROUTE`).
    pub fn are_supported() -> bool {
        Path::new("/proc/thread-self/net/ip_mr_vif").exists()
    }

    /// Begins to route in the namespace of the calling thread. Needs `CAP_NET_RAW` and `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// `ENOPROTOOPT` if the kernel has no multicast routes, `EADDRINUSE` if somebody else sets them here.
    pub fn begin() -> io::Result<Self> {
        let igmp = Some(ipproto::IGMP);
        let socket = socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, igmp)?;
        set_int(&socket, libc::IPPROTO_IP, MRT_INIT, 1)?;
        Ok(Self { socket, interfaces: Vec::new() })
    }

    /// Copies datagrams from `source` to `group` that come in by one interface to the others. An interface is
    /// named by an address that it has.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if there is no such interface, `ENFILE` beyond [`MAX_INTERFACES`].
    pub fn add(
        &mut self,
        [source, group]: [Ipv4Addr; 2],
        comes_by: Ipv4Addr,
        leaves_by: &[Ipv4Addr],
    ) -> io::Result<()> {
        let parent = self.interface(comes_by)?;
        let mut thresholds = [NOT_BY_IT; MAX_INTERFACES];
        for &address in leaves_by {
            thresholds[usize::from(self.interface(address)?)] = THRESHOLD;
        }
        let [source, group] = [source, group].map(|address| address.octets());
        let route = Route { source, group, parent, thresholds, counters: [0; 3], expire: 0 };
        set(&self.socket, libc::IPPROTO_IP, MRT_ADD_MFC, &route)
    }

    /// The number of an interface, which is added if it is new.
    fn interface(&mut self, address: Ipv4Addr) -> io::Result<u16> {
        if let Some(number) = self.interfaces.iter().position(|&other| other == address) {
            return Ok(number as u16);
        }
        let number = self.interfaces.len();
        if number == MAX_INTERFACES {
            return Err(io::Error::from_raw_os_error(libc::ENFILE));
        }
        let (number, local) = (number as u16, address.octets());
        let interface =
            Interface { number, flags: 0, threshold: THRESHOLD, rate_limit: 0, local, remote: [0; 4] };
        set(&self.socket, libc::IPPROTO_IP, MRT_ADD_VIF, &interface)?;
        self.interfaces.push(address);
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_as_long_as_the_kernels() {
        // 2 + 1 + 1, 4, 4, 4; and 4, 4, 2 + 32 + 2 of padding, 12, 4.
        assert_eq!((size_of::<Interface>(), size_of::<Route>()), (16, 60));
    }
}
