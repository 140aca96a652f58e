//! Packets of others that this process sends: to a listener of this host through `lo`, or on their way as if
//! they had been forwarded.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::ipproto;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, sendto, socket_with};

use crate::sockopt::set_int;

/// The index of `lo` in every network namespace.
const LOOPBACK: libc::c_int = 1;

/// Sends packets to this host itself: they come in by `lo`, with a mark, and pass the hooks `prerouting` and
/// `input` like any packet. Their destination need not be an address of this host if a route says that it
/// is local.
#[derive(Debug)]
pub struct LoopbackInjector {
    socket: OwnedFd,
}

impl LoopbackInjector {
    /// In the network namespace of the calling thread. Needs `CAP_NET_RAW` and `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// `EPERM` without the capabilities.
    pub fn open(mark: u32) -> io::Result<Self> {
        // With protocol 0 it receives nothing.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, None)?;
        set_mark(&socket, mark)?;
        Ok(Self { socket })
    }

    /// The one that another process has opened, with its mark.
    pub fn inherited(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends a packet that begins with its IP header, whose checksums must be right.
    ///
    /// # Errors
    /// `EMSGSIZE` for one longer than 64 KiB, `ENOBUFS` and `EAGAIN` where there is no room.
    pub fn inject(&self, packet: &[u8]) -> io::Result<()> {
        let protocol = if packet.first().is_some_and(|first| first >> 4 == 6) {
            libc::ETH_P_IPV6
        } else {
            libc::ETH_P_IP
        };
        // An address of zeros is that of `lo`.
        // SAFETY: all bytes zero are a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (protocol as u16).to_be();
        address.sll_ifindex = LOOPBACK;
        address.sll_halen = 6;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the buffer and the address are valid for their lengths during the call.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const address).cast(),
                length,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for LoopbackInjector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends packets of others on their way from this host: they pass the hooks `output` and `postrouting`.
#[derive(Debug)]
pub struct RawSender {
    ipv4: OwnedFd,
    /// `None` where this host has no IPv6.
    ipv6: Option<OwnedFd>,
}

impl RawSender {
    /// In the network namespace of the calling thread. Needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// `EPERM` without the capability.
    pub fn open() -> io::Result<Self> {
        let open = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))
        };
        let ipv6 = open(AddressFamily::INET6).ok();
        let ipv4 = open(AddressFamily::INET)?;
        // Their routes are those of packets from their sources, which are not this host's.
        set_int(&ipv4, libc::IPPROTO_IP, libc::IP_FREEBIND, 1)?;
        if let Some(ipv6) = &ipv6 {
            set_int(ipv6, libc::IPPROTO_IPV6, libc::IPV6_HDRINCL, 1)?;
            set_int(ipv6, libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 1)?;
        }
        Ok(Self { ipv4, ipv6 })
    }

    /// The one whose [`sockets`](Self::sockets) another process has opened.
    pub fn inherited(ipv4: OwnedFd, ipv6: Option<OwnedFd>) -> Self {
        Self { ipv4, ipv6 }
    }

    /// Its sockets for IPv4 and, where this host has it, IPv6.
    pub fn sockets(&self) -> (&OwnedFd, Option<&OwnedFd>) {
        (&self.ipv4, self.ipv6.as_ref())
    }

    /// Sends a packet that begins with its IP header, as routing has it for packets from `source` to
    /// `destination` with `mark` and the packet's DSCP; rules for the interface that it came in by (`iif`) do
    /// not apply. Needs `CAP_NET_ADMIN` for a mark other than 0.
    ///
    /// # Errors
    /// `ENETUNREACH` and its like without a route, `EAFNOSUPPORT` for IPv6 where this host has none.
    pub fn send(&self, packet: &[u8], source: IpAddr, destination: IpAddr, mark: u32) -> io::Result<()> {
        let [first, second, ..] = *packet else { return Err(rustix::io::Errno::INVAL.into()) };
        let socket = match destination {
            IpAddr::V4(_) => {
                set_int(&self.ipv4, libc::IPPROTO_IP, libc::IP_TOS, second.into())?;
                &self.ipv4
            }
            IpAddr::V6(_) => {
                let ipv6 = self.ipv6.as_ref().ok_or(rustix::io::Errno::AFNOSUPPORT)?;
                let traffic_class = (first & 0xf) << 4 | second >> 4;
                set_int(ipv6, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, traffic_class.into())?;
                ipv6
            }
        };
        set_mark(socket, mark)?;
        bind(socket, &SocketAddr::new(source, 0))?;
        sendto(socket, packet, SendFlags::empty(), &SocketAddr::new(destination, 0))?;
        Ok(())
    }
}

/// Gives every packet of a socket this mark (`SO_MARK`), by which routes and rules know it. Needs
/// `CAP_NET_ADMIN` or, since Linux 5.17, `CAP_NET_RAW`.
///
/// # Errors
/// `EPERM` without the capability.
pub fn set_mark(socket: impl AsFd, mark: u32) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed())
}
