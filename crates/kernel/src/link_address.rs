//! Which link header packets have at an interface, and the interface's own address (netdevice(7),
//! `SIOCGIFHWADDR`).

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

/// Kinds of interfaces that libc does not name (linux/if_arp.h).
const ARPHRD_RAWIP: u16 = 519;
const ARPHRD_IP6GRE: u16 = 823;

/// The link header of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkAddress {
    /// An Ethernet header, and the address of the interface.
    Ethernet([u8; 6]),
    /// None as far as the layers above can see: TUN devices, WireGuard, PPP, tunnels of IP.
    None,
    /// One of another kind (ARPHRD_* of linux/if_arp.h).
    Other(u16),
}

impl LinkAddress {
    /// That of an interface of the calling thread's network namespace.
    pub(crate) fn of(interface: &str) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // SAFETY: an ifreq of zeroes is a valid one, with an empty name.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if interface.len() >= request.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (slot, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *slot = byte as libc::c_char;
        }
        // SAFETY: the call reads and writes one ifreq, which `request` is for its length.
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has written this member of the union, and any bytes are a value of it.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        Ok(Self::from_kind(address.sa_family, address.sa_data.map(|byte| byte as u8)))
    }

    /// The kinds without a header are those that the kernel takes for such when it redirects packets of eBPF.
    fn from_kind(kind: u16, address: [u8; 14]) -> Self {
        match kind {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => {
                let [a, b, c, d, e, f, ..] = address;
                Self::Ethernet([a, b, c, d, e, f])
            }
            libc::ARPHRD_TUNNEL
            | libc::ARPHRD_TUNNEL6
            | libc::ARPHRD_SIT
            | libc::ARPHRD_IPGRE
            | libc::ARPHRD_VOID
            | libc::ARPHRD_NONE
            | libc::ARPHRD_PPP
            | ARPHRD_RAWIP
            | ARPHRD_IP6GRE => Self::None,
            other => Self::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_told_apart_by_their_kind() {
        let address = [1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0];
        let of = |kind| LinkAddress::from_kind(kind, address);
        assert_eq!(of(libc::ARPHRD_ETHER), LinkAddress::Ethernet([1, 2, 3, 4, 5, 6]));
        assert_eq!(of(libc::ARPHRD_NONE), LinkAddress::None);
        assert_eq!(of(libc::ARPHRD_INFINIBAND), LinkAddress::Other(32));
        assert_eq!(LinkAddress::of("lo").unwrap(), LinkAddress::Ethernet([0; 6]));
        let missing = LinkAddress::of("no-such-device").unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENODEV));
    }
}
