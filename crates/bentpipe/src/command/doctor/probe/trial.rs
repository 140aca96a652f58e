//! One connection through the copy.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::daemon::Daemon;
use super::scratch::Gateway;
use super::topology::{Path, Plan};

/// Longer than a SYN takes to be repeated, and what a user waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The port of the server: one that firewalls let clients connect to.
pub(super) const PORT: u16 = 443;
/// The state of an established connection in /proc/net/tcp (`TCP_ESTABLISHED`).
const ESTABLISHED: &str = "01";

pub(super) struct Trial<'a> {
    pub(super) plan: &'a Plan,
    pub(super) path: &'a Path,
    pub(super) copy: Gateway,
    listener: TcpListener,
}

/// What became of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It came through, unsplit.
    Through,
    Split,
    /// It came through unsplit beside a daemon, which said so or said nothing.
    Passed(Option<String>),
    Refused(ErrorKind),
    Silent,
    /// There was no daemon to split it.
    NoDaemon(String),
}

impl<'a> Trial<'a> {
    pub(super) fn new(plan: &'a Plan, path: &'a Path) -> anyhow::Result<Self> {
        let copy = Gateway::new(plan, path)?;
        let address = SocketAddr::new(path.server, PORT);
        let listener = copy.server.run(|| TcpListener::bind(address))?.context("cannot start the server")?;
        listener.set_nonblocking(true)?;
        Ok(Self { plan, path, copy, listener })
    }

    /// A connection that carries a byte each way.
    pub(super) fn attempt(&self, daemon: Option<&Daemon>) -> Outcome {
        while self.listener.accept().is_ok() {}
        let outcome = match self.connect() {
            Ok(_ends) if self.is_split() => Outcome::Split,
            Ok(_ends) => match daemon {
                None => Outcome::Through,
                Some(daemon) => Outcome::Passed(daemon.complaint()),
            },
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                Outcome::Silent
            }
            Err(error) => Outcome::Refused(error.kind()),
        };
        tracing::debug!(?outcome, path = %self.path, "probe");
        outcome
    }

    fn connect(&self) -> anyhow::Result<(TcpStream, TcpStream), io::Error> {
        let address = SocketAddr::new(self.path.server, PORT);
        let connect = || TcpStream::connect_timeout(&address, PATIENCE);
        let mut client = self.copy.client.run(connect).map_err(io::Error::other)??;
        client.set_read_timeout(Some(PATIENCE))?;
        client.write_all(b"?")?;
        let mut server = self.accept(&client)?;
        server.set_nonblocking(false)?;
        server.set_read_timeout(Some(PATIENCE))?;
        server.read_exact(&mut [0])?;
        server.write_all(b"!")?;
        client.read_exact(&mut [0])?;
        Ok((client, server))
    }

    fn accept(&self, client: &TcpStream) -> io::Result<TcpStream> {
        let start = Instant::now();
        loop {
            match self.listener.accept() {
                Ok((server, _)) => return Ok(server),
                Err(error) if start.elapsed() > PATIENCE => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
            if let Some(error) = client.take_error()? {
                return Err(error);
            }
        }
    }

    /// Only a gateway that splits has an end of a connection to the server.
    fn is_split(&self) -> bool {
        let is_established = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let port =
                |end: &str| end.rsplit_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            words.len() > 3 && words[3] == ESTABLISHED && port(words[2]) == Some(PORT)
        };
        let read = || {
            let tables =
                ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")));
            tables.into_iter().flatten().any(|table| table.lines().skip(1).any(is_established))
        };
        self.copy.gateway.run(read).unwrap_or(false)
    }
}

impl Outcome {
    pub(super) fn is_through(&self) -> bool {
        matches!(self, Self::Through | Self::Split | Self::Passed(_))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Through => f.write_str("comes through"),
            Self::Split => f.write_str("is split and comes through"),
            Self::Passed(None) => f.write_str("comes through unsplit, and the daemon does not say why"),
            Self::Passed(Some(line)) => write!(f, "comes through unsplit: {line}"),
            Self::Refused(kind) => write!(f, "is refused ({kind})"),
            Self::Silent => write!(f, "gets no answer within {} s", PATIENCE.as_secs()),
            Self::NoDaemon(error) => write!(f, "is not split, because no daemon starts: {error}"),
        }
    }
}
