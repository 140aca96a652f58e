//! The sockets and folders of a node. They are made while the process may still have root's privileges.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use bentpipe_http::unix::{self, BindError};
use bentpipe_kernel::Weight;
use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::privileges::Account;
use bentpipe_kernel::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

use crate::node::NodeError;
use crate::transfer;

/// Backlog of the TCPCL listeners.
const BACKLOG: i32 = 128;

/// A TCP socket that does not block. IPv4 and IPv6 addresses have a socket each.
pub(super) fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))
}

fn unbound_listener(address: SocketAddr) -> io::Result<Socket> {
    let socket = stream_socket(address)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

fn listen(socket: Socket, address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// A listener whose connections inherit the settings of a leg.
pub(super) fn bind(address: SocketAddr, leg: &Leg) -> io::Result<TcpListener> {
    let socket = unbound_listener(address)?;
    leg.apply_weighted(socket.as_fd(), Weight::default())?;
    listen(socket, address, BACKLOG)
}

/// A listener that also accepts connections to other hosts, if privileges allow it and a rule diverts them
/// here.
pub(super) fn bind_transparent(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = unbound_listener(address)?;
    if let Err(error) = sockopt::set_transparent(&socket, &address) {
        tracing::warn!(
            "cannot make the socket at {address} transparent: {error}; it accepts PUTs to {address} itself, \
             but none that a rule diverts"
        );
    }
    listen(socket, address, transfer::BACKLOG)
}

/// The socket for applications. It belongs to the account if one is given.
pub(super) fn bind_unix(path: &Path, account: Option<&Account>) -> Result<UnixListener, NodeError> {
    match unix::listen(path, unix::Type::STREAM, account.map(owner)) {
        Ok(socket) => Ok(socket.into()),
        Err(BindError::Occupied) => Err(NodeError::SocketTaken(path.to_owned())),
        Err(other) => {
            let action = format!("listen for applications at {}", path.display());
            Err(NodeError::System { action, source: io::Error::other(other) })
        }
    }
}

/// Makes a private folder that belongs to the account. An existing one stays as it is.
pub(super) fn make_folder(path: &Path, account: Option<&Account>) -> Result<(), NodeError> {
    unix::make_folder(path, 0o750, account.map(owner))
        .map_err(NodeError::system(format!("make the folder {}", path.display())))
}

fn owner(account: &Account) -> unix::Owner {
    (account.uid(), account.gid())
}
