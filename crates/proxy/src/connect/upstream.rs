//! The upstream connection: to the server in the client's name, with the settings of the server's leg.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use bentpipe_kernel::Weight;
use bentpipe_kernel::inject::set_mark;
use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::sockopt;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use crate::connect::early_data::EarlyData;
use crate::connect::listener::set_relay_options;

/// The client and the server of a connection, as both see it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The differentiated services code point of the client's SYN.
    pub(crate) dscp: u8,
}

/// An upstream connection that is being established.
pub(crate) struct Upstream {
    pub(crate) socket: OwnedFd,
    /// The client's port was taken on this host: the server sees the client's address with another one.
    pub(crate) other_port: bool,
    /// Bytes of the client's early data that the SYN carries.
    pub(crate) sent: usize,
}

/// Begins to connect to the server from the client's own address and port, by the route of packets with
/// `mark`. Where the port is taken, any port
/// of the client's address is used instead. With `early_data` the connection uses TCP Fast Open.
pub(crate) fn start(
    ends: &Endpoints,
    mark: u32,
    leg: &Leg,
    weight: Weight,
    early_data: Option<&EarlyData>,
) -> io::Result<Upstream> {
    match connect_from(ends.client, ends, mark, leg, weight, early_data) {
        Err(error) if is_taken(&error) => {
            let any_port = SocketAddr::new(ends.client.ip(), 0);
            let upstream = connect_from(any_port, ends, mark, leg, weight, early_data)?;
            Ok(Upstream { other_port: true, ..upstream })
        }
        outcome => outcome,
    }
}

fn connect_from(
    source: SocketAddr,
    ends: &Endpoints,
    mark: u32,
    leg: &Leg,
    weight: Weight,
    early_data: Option<&EarlyData>,
) -> io::Result<Upstream> {
    let socket = Socket::new(Domain::for_address(ends.server), Type::STREAM.nonblocking(), None)?;
    sockopt::set_transparent(&socket, &source)?;
    socket.set_reuse_address(true)?;
    set_relay_options(&socket, &source)?;
    if mark != 0 {
        set_mark(&socket, mark)?;
    }
    leg.apply_before_connect(socket.as_fd(), weight)?;
    if ends.dscp != 0 {
        sockopt::set_dscp(&socket, &source, ends.dscp)?;
    }
    if source.port() == 0 {
        sockopt::set_bind_address_no_port(&socket)?;
    }
    socket.bind(&source.into())?;
    let sent = match early_data {
        Some(word) => {
            leg.apply_fast_open(socket.as_fd())?;
            word.connect(&socket, &ends.server)?
        }
        None => connect(&socket, &ends.server).map(|()| 0)?,
    };
    Ok(Upstream { socket: socket.into(), other_port: false, sent })
}

/// Begins to connect a non-blocking socket.
pub(crate) fn connect(socket: impl AsFd, server: &SocketAddr) -> io::Result<()> {
    match rustix::net::connect(socket, server) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_taken(error: &io::Error) -> bool {
    let taken = [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| taken.contains(&code))
}
