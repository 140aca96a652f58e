//! TCP sockets that servers listen at.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use socket2::{Domain, Socket, Type};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Listens at an address. The socket does not block.
///
/// # Errors
/// The operating system's, as where another process has the port.
pub fn listen(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A restart need not wait for connections in TIME-WAIT.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
