//! A listener that can be closed for a while, so that connections which a rule would hand over pass instead.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

use super::BACKLOG;

/// Open or closed; either way the port is bound and stays transparent, so that no privilege is needed to open it.
#[derive(Debug)]
pub(super) enum PausableListener {
    Open(TcpListener),
    Closed(StdListener),
}

impl PausableListener {
    /// An open one.
    pub(super) fn new(listener: StdListener) -> io::Result<Self> {
        TcpListener::from_std(listener).map(Self::Open)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(_))
    }

    /// The next connection; of a closed one there is none.
    pub(super) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Self::Open(listener) => listener.accept().await,
            Self::Closed(_) => std::future::pending().await,
        }
    }

    /// Takes what has been connected, and then nothing more (shutdown(2) of a listener makes it a socket that is bound only).
    pub(super) fn close(self) -> io::Result<(Self, Vec<(TcpStream, SocketAddr)>)> {
        let Self::Open(listener) = self else { return Ok((self, Vec::new())) };
        // Out of the runtime's hands: to it a socket that was shut down remains so.
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
