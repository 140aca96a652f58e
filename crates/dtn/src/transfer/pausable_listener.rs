//! A listener that can be closed for a while, so that connections which a rule would divert pass instead.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use super::BACKLOG;

/// Open or closed; either way the port is bound and stays transparent, so that no privilege is needed to open
/// it.
#[derive(Debug)]
pub(super) enum PausableListener {
    Open(TcpListener),
    Closed(StdListener),
}

impl PausableListener {
    /// An open listener.
    pub(super) fn new(listener: StdListener) -> io::Result<Self> {
        TcpListener::from_std(listener).map(Self::Open)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// The next connection. While the listener is closed, there is none.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Self::Open(listener) => listener.accept().await,
            Self::Closed(_) => std::future::pending().await,
        }
    }

    /// Closes the listener and returns the connections that were established already (shutdown(2) of a
    /// listener leaves a bound socket).
    pub(super) fn close(self) -> io::Result<(Self, Vec<(TcpStream, SocketAddr)>)> {
        let Self::Open(listener) = self else { return Ok((self, Vec::new())) };
        // Deregistered: tokio would treat the socket as shut down for ever.
        let listener = listener.into_std()?;
        let mut last = Vec::new();
        while let Ok((stream, client)) = listener.accept() {
            stream.set_nonblocking(true)?;
            last.push((TcpStream::from_std(stream)?, client));
        }
        SockRef::from(&listener).shutdown(std::net::Shutdown::Both)?;
        Ok((Self::Closed(listener), last))
    }

    /// Listens again.
    pub(super) fn open(self) -> io::Result<Self> {
        let Self::Closed(listener) = self else { return Ok(self) };
        SockRef::from(&listener).listen(BACKLOG)?;
        TcpListener::from_std(listener).map(Self::Open)
    }
}
