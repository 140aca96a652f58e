//! One connection that is tried with and without the daemon, and what becomes of it.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::common::{CLIENT, Host, Net, SERVER, pattern, socket_address, wait_until};

/// Nothing may wait for longer: 3 s, and what a busy machine takes to see that they are over.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(3500);
/// How long a connection is tried that shall not come through: a SYN is repeated once in this time.
const FORBIDDEN_WAIT: Duration = Duration::from_millis(1500);
/// What is transferred each way.
const BYTES: usize = 4 << 20;

/// What must become of a connection beside a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expectation {
    /// It crosses the satellite leg: it is split, or passes with a line in the log.
    Crosses,
    /// It crosses the leg to another address than the client's: it passes.
    Translated,
    /// It comes through, and the daemon has no part in it.
    Elsewhere,
    /// It does not come through.
    Forbidden,
}

/// A connection from one host to an address, which another host answers or nobody.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(crate) from: Host,
    /// The address that it comes from, if not the one that the kernel chooses.
    pub(crate) source: Option<SocketAddr>,
    pub(crate) to: SocketAddr,
    pub(crate) at: Host,
    /// Where the host that answers listens: with NAT it is not where the connection goes to.
    pub(crate) listens: SocketAddr,
    pub(crate) expectation: Expectation,
}

/// What became of a connection that carried a byte each way, or did not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Through { seen_as: IpAddr },
    Refused(ErrorKind),
    Silent,
}

impl Attempt {
    /// From the client to the server.
    pub(crate) fn outward(net: &Net, family: usize, port: u16) -> Self {
        Self::new((&net.client, &net.server), socket_address(SERVER[family], port))
    }

    /// From the server to the client.
    pub(crate) fn inward(net: &Net, family: usize, port: u16) -> Self {
        Self::new((&net.server, &net.client), socket_address(CLIENT[family], port))
    }

    pub(crate) fn new((from, at): (&Host, &Host), to: SocketAddr) -> Self {
        let expectation = Expectation::Crosses;
        Self { from: from.clone(), source: None, to, at: at.clone(), listens: to, expectation }
    }

    pub(crate) fn translated(self) -> Self {
        Self { expectation: Expectation::Translated, ..self }
    }

    pub(crate) fn elsewhere(self) -> Self {
        Self { expectation: Expectation::Elsewhere, ..self }
    }

    pub(crate) fn forbidden(self) -> Self {
        Self { expectation: Expectation::Forbidden, ..self }
    }

    /// The host that answers listens at another address than the connection goes to.
    pub(crate) fn answered_at(self, listens: SocketAddr) -> Self {
        Self { listens, ..self }
    }

    pub(crate) fn coming_from(self, source: SocketAddr) -> Self {
        Self { source: Some(source), ..self }
    }

    pub(crate) fn listen(&self) -> TcpListener {
        let listener = self.at.enter(|| {
            let socket = Socket::new(Domain::for_address(self.listens), Type::STREAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            // The process that another test forks has the former listener for a moment.
            wait_until("nobody listens", || socket.bind(&self.listens.into()).is_ok());
            socket.listen(128).unwrap();
            TcpListener::from(socket)
        });
        SockRef::from(&listener).set_read_timeout(Some(LONGEST_WAIT)).unwrap();
        listener
    }

    /// Tries a connection to `listener` and a byte each way.
    pub(crate) fn try_once(&self, listener: &TcpListener) -> Outcome {
        match self.connect(listener) {
            Ok((_, server)) => Outcome::Through { seen_as: server.peer_addr().unwrap().ip().to_canonical() },
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                Outcome::Silent
            }
            Err(error) => Outcome::Refused(error.kind()),
        }
    }

    /// Both ends of a connection that carries bytes each way.
    pub(crate) fn connect(&self, listener: &TcpListener) -> std::io::Result<(TcpStream, TcpStream)> {
        // Those that an earlier attempt left behind, whose client has given up.
        listener.set_nonblocking(true)?;
        while listener.accept().is_ok() {}
        let mut client = self.dial()?;
        let start = Instant::now();
        client.write_all(b"?")?;
        let mut server = loop {
            match listener.accept() {
                Ok((server, _)) => break server,
                Err(_) if start.elapsed() < self.patience() => std::thread::sleep(Duration::from_millis(2)),
                // An answer for the client that nobody listens comes first.
                Err(error) => return Err(SockRef::from(&client).take_error()?.unwrap_or(error)),
            }
            if let Some(error) = SockRef::from(&client).take_error()? {
                return Err(error);
            }
        };
        server.set_nonblocking(false)?;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(LONGEST_WAIT))?;
            stream.set_write_timeout(Some(LONGEST_WAIT))?;
        }
        server.read_exact(&mut [0])?;
        server.write_all(b"!")?;
        client.read_exact(&mut [0])?;
        Ok((client, server))
    }

    fn dial(&self) -> std::io::Result<TcpStream> {
        self.from.enter(|| {
            let socket = Socket::new(Domain::for_address(self.to), Type::STREAM, None)?;
            if let Some(source) = self.source {
                socket.bind(&source.into())?;
            }
            socket.connect_timeout(&self.to.into(), self.patience())?;
            Ok(socket.into())
        })
    }

    fn patience(&self) -> Duration {
        if self.expectation == Expectation::Forbidden { FORBIDDEN_WAIT } else { LONGEST_WAIT }
    }
}

/// A name for messages and rows.
impl std::fmt::Display for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "connection to {} answered at {}", self.to, self.listens)
    }
}

/// Sends [`BYTES`] each way at once and ends each way in order; an error tells what was not as it should be.
pub(crate) fn transfer(ends: (TcpStream, TcpStream)) -> Result<(), String> {
    transfer_of(ends, BYTES)
}

/// The same with another number of bytes.
pub(crate) fn transfer_of((client, server): (TcpStream, TcpStream), bytes: usize) -> Result<(), String> {
    let clone = |stream: &TcpStream| stream.try_clone().unwrap();
    let work: Vec<JoinHandle<Result<(), String>>> = vec![
        std::thread::spawn({
            let client = clone(&client);
            move || send(client, "the client", 1, bytes)
        }),
        std::thread::spawn({
            let server = clone(&server);
            move || send(server, "the server", 2, bytes)
        }),
        std::thread::spawn(move || receive(server, "the server", 1, bytes)),
        std::thread::spawn(move || receive(client, "the client", 2, bytes)),
    ];
    let results: Vec<_> = work.into_iter().map(|thread| thread.join().unwrap()).collect();
    results.into_iter().collect()
}

fn send(mut to: TcpStream, name: &str, seed: u64, bytes: usize) -> Result<(), String> {
    let sent = to.write_all(&pattern(seed, bytes)).and_then(|()| to.shutdown(std::net::Shutdown::Write));
    sent.map_err(|error| format!("{name} sends: {error}"))
}

fn receive(mut from: TcpStream, name: &str, seed: u64, bytes: usize) -> Result<(), String> {
    let (expected, mut chunk, mut done) = (pattern(seed, bytes), vec![0; 1 << 16], 0);
    loop {
        // The read times out where nothing comes for longer than it may.
        let read = from.read(&mut chunk);
        match read.map_err(|error| format!("{name} after {done} of {bytes} bytes: {error}"))? {
            0 if done == bytes => return Ok(()),
            0 => return Err(format!("{name}: an end of file after {done} of {bytes} bytes")),
            read if !expected[done..].starts_with(&chunk[..read]) => {
                return Err(format!("{name}: other bytes than were sent, after {done} of {bytes}"));
            }
            read => done += read,
        }
    }
}
