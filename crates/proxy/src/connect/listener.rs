//! The listening sockets of the leg pairs: on loopback, so that no other host can connect to the proxy.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use bentpipe_kernel::Weight;
use bentpipe_kernel::inject::set_mark;
use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::sockopt;
use socket2::{Domain, Socket, Type};

use crate::config::{Mark, MarkField};
use crate::error::Error;
use crate::intercept::{Family, TTL};

/// Connections that may wait to be accepted; the kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Connections that may wait at each listener, and as many handshakes.
pub(crate) fn backlog() -> u32 {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").ok();
    let most = most.and_then(|text| text.trim().parse().ok());
    most.unwrap_or(u32::MAX).min(BACKLOG.unsigned_abs())
}

/// Connections with data in their SYN whose handshake is not complete, for each listener; more fall back to
/// the usual handshake. At a round trip of 600 ms this lets 1700 connections per second begin this way.
const FAST_OPEN_QUEUE: u16 = 1024;

/// How often, and how long apart, a port is tried that has just been found free.
const BIND_TRIES: u32 = 20;
const BIND_PAUSE: Duration = Duration::from_millis(10);

/// Where the listener of a path stands.
pub(crate) fn address(family: Family, port: u16) -> SocketAddr {
    match family {
        Family::V4 => (Ipv4Addr::LOCALHOST, port).into(),
        Family::V6 => (Ipv6Addr::LOCALHOST, port).into(),
    }
}

/// Opens a listener whose accepted sockets inherit everything that a relayed socket needs, the client leg's
/// settings and the weight included. Each worker has its own on the same address; the kernel spreads
/// connections over them.
pub(crate) fn open(
    address: SocketAddr,
    leg: &Leg,
    weight: Weight,
    mark: MarkField,
) -> Result<OwnedFd, Error> {
    let socket = transparent_socket(address)?;
    let prepare = || -> io::Result<()> {
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        // Accepted sockets have it from the first packet on, and never that of a SYN (`tcp_fwmark_accept`).
        set_mark(&socket, mark.value(Mark::Client))?;
        sockopt::remember_dscp(&socket, &address)?;
        set_relay_options(&socket, &address)?;
        if leg.fast_open() {
            sockopt::set_fast_open_queue(&socket, FAST_OPEN_QUEUE)?;
            leg.apply_fast_open(socket.as_fd())?;
        }
        leg.apply_weighted(socket.as_fd(), weight)
    };
    prepare().map_err(Error::system(format!("prepare the listener on {address} for leg {}", leg.name())))?;
    bind(&socket, address)
        .and_then(|()| socket.listen(BACKLOG))
        .map_err(|source| Error::Port { address, source })?;
    Ok(socket.into())
}

/// Binds to an address that [`check_free`] has found free. The socket by which it did so may live on for a
/// moment: in a child that another thread has forked at that time, until it executes its program.
fn bind(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    for _ in 0..BIND_TRIES {
        match socket.bind(&address.into()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => thread::sleep(BIND_PAUSE),
            outcome => return outcome,
        }
    }
    socket.bind(&address.into())
}

/// Options of every relayed socket, whichever side it faces.
///
/// The reset on close is never taken back: should the daemon die, both ends see a reset and no truncated
/// stream looks complete. Urgent data stays in its place in the stream (RFC 6093 §4), where the relay carries
/// it like any other.
pub(crate) fn set_relay_options(socket: &Socket, family: &SocketAddr) -> io::Result<()> {
    sockopt::set_linger_reset(socket)?;
    sockopt::set_nodelay(socket)?;
    socket.set_out_of_band_inline(true)?;
    match family {
        SocketAddr::V4(_) => socket.set_ttl_v4(TTL),
        SocketAddr::V6(_) => socket.set_unicast_hops_v6(TTL),
    }
}

/// Fails if anybody listens on `address`. The workers' listeners share their ports, so they would not notice.
pub(crate) fn check_free(address: SocketAddr) -> Result<(), Error> {
    let probe = || -> io::Result<()> {
        let socket = new_socket(address)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(1)
    };
    probe().map_err(|source| Error::Port { address, source })
}

/// A new socket that may use foreign addresses.
fn transparent_socket(address: SocketAddr) -> Result<Socket, Error> {
    let socket = new_socket(address).map_err(Error::system("make a listening socket"))?;
    sockopt::set_transparent(&socket, &address).map_err(|source| Error::Privileges { source })?;
    Ok(socket)
}

fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// The families that this host has loopback addresses for.
pub(crate) fn families() -> Vec<Family> {
    let usable = |&family: &Family| {
        let address = address(family, 0);
        new_socket(address).and_then(|socket| socket.bind(&address.into())).is_ok()
    };
    [Family::V4, Family::V6].into_iter().filter(usable).collect()
}

/// Fails unless this process may make transparent sockets.
pub(crate) fn check_privileges() -> Result<(), Error> {
    transparent_socket(address(Family::V4, 0)).map(drop)
}
