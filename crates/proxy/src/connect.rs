//! The upstream connection: to the server in the client's name, with the settings of the server's leg.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::sockopt;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use crate::listener::set_relay_options;

/// Who speaks to whom, as both ends see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The differentiated services code point of the client's SYN.
    pub(crate) dscp: u8,
}

/// An upstream connection on its way.
pub(crate) struct Upstream {
    pub(crate) socket: OwnedFd,
    /// The client's port was taken on this host: the server sees the client's address with another one.
    pub(crate) other_port: bool,
}

/// Begins to connect to the server from the client's own address and port. Where the port is taken, any port of the
/// client's address is used instead.
pub(crate) fn start(ends: &Ends, leg: &Leg) -> io::Result<Upstream> {
    match connect_from(ends.client, ends, leg) {
        Ok(socket) => Ok(Upstream { socket, other_port: false }),
        Err(error) if is_taken(&error) => {
            let any_port = SocketAddr::new(ends.client.ip(), 0);
            let socket = connect_from(any_port, ends, leg)?;
            Ok(Upstream { socket, other_port: true })
        }
        Err(error) => Err(error),
    }
}

fn connect_from(source: SocketAddr, ends: &Ends, leg: &Leg) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(ends.server), Type::STREAM.nonblocking(), None)?;
    sockopt::set_transparent(&socket, &source)?;
    socket.set_reuse_address(true)?;
    set_relay_options(&socket, &source)?;
    leg.apply_before_connect(socket.as_fd())?;
    if ends.dscp != 0 {
        sockopt::set_dscp(&socket, &source, ends.dscp)?;
    }
    if source.port() == 0 {
        sockopt::set_bind_address_no_port(&socket)?;
    }
    socket.bind(&source.into())?;
    match socket.connect(&ends.server.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket.into()),
    }
}

fn is_taken(error: &io::Error) -> bool {
    let taken = [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| taken.contains(&code))
}
