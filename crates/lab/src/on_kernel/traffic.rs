//! The applications at both ends of a flow, on real sockets.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use bentpipe_sim::scenario::{FlowSpec, Side};
use bentpipe_tcp::Config;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketType, bind, connect, listen, socket};

/// What is written at once, and the period of the data.
const CHUNK: usize = 1 << 16;
/// How long an end waits before it looks whether the run is over.
const PATIENCE: Duration = Duration::from_millis(100);

/// What the rest of the run knows of a flow.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Since the scenario's time zero, nanoseconds and one; 0: not yet.
    opened: AtomicU64,
    last_byte: AtomicU64,
    pub received: AtomicU64,
    /// It has ended, well or not.
    pub over: AtomicBool,
    /// The number of [`END`] and one.
    end: AtomicU64,
}

/// The ends of a flow, as [`bentpipe_sim::FlowResult::end`] has them.
const END: [&str; 6] = ["closed", "connect timed out", "refused", "timed out", "reset", "aborted"];

/// One end of a flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct End<'a> {
    pub spec: &'a FlowSpec,
    pub shared: &'a Shared,
    /// Where this end is, and where the other one.
    pub local: Ipv4Addr,
    pub remote: SocketAddr,
    pub config: &'a Config,
    pub zero: Instant,
    /// The run is over.
    pub stop: &'a AtomicBool,
}

impl Shared {
    pub(super) fn opened(&self) -> Option<Duration> {
        moment(&self.opened)
    }

    pub(super) fn last_byte(&self) -> Option<Duration> {
        moment(&self.last_byte)
    }

    pub(super) fn end(&self) -> Option<&'static str> {
        let number = self.end.load(Ordering::Relaxed).checked_sub(1)?;
        END.get(number as usize).copied()
    }

    fn set_end(&self, name: &str) {
        let number = END.iter().position(|end| *end == name).expect("one of the list") as u64 + 1;
        // The first one is what happened; others follow from it.
        let _ = self.end.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
        self.over.store(true, Ordering::Relaxed);
    }
}

fn moment(nanos: &AtomicU64) -> Option<Duration> {
    nanos.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_nanos)
}

fn note(now: Duration, at: &AtomicU64) {
    at.store(now.as_nanos() as u64 + 1, Ordering::Relaxed);
}

impl End<'_> {
    /// The side that does not open the flow: binds at once, so that nobody comes too early.
    pub(super) fn listen(&self, congestion: Option<&str>) -> io::Result<OwnedFd> {
        let listener = self.socket(congestion)?;
        bind(&listener, &SocketAddr::new(self.local.into(), self.remote.port()))?;
        listen(&listener, 8)?;
        Ok(listener)
    }

    /// Takes the connection and plays this end's part.
    ///
    /// # Errors
    /// Those of the machine, and data that is not what was sent. What happens to the connection is a result.
    pub(super) fn accept(&self, side: Side, listener: OwnedFd) -> io::Result<()> {
        let listener = TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        while !self.is_over() {
            if !is_ready(&listener, PollFlags::IN)? {
                continue;
            }
            match listener.accept() {
                Ok((stream, _)) => return self.play(side, stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens the connection at the flow's time and plays this end's part.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub(super) fn open(&self, side: Side, at: Duration, congestion: Option<&str>) -> io::Result<()> {
        std::thread::sleep((self.zero + at).saturating_duration_since(Instant::now()));
        note(self.zero.elapsed(), &self.shared.opened);
        let socket = self.socket(congestion)?;
        bind(&socket, &SocketAddr::new(self.local.into(), 0))?;
        match self.connect(&socket) {
            Ok(true) => self.play(side, TcpStream::from(socket)),
            Ok(false) => Ok(()),
            Err(error) => self.broken(&error, true),
        }
    }

    /// Waits for the connection, but not longer than the run; false if that is over first.
    fn connect(&self, socket: &OwnedFd) -> io::Result<bool> {
        ioctl_fionbio(socket, true)?;
        match connect(socket, &self.remote) {
            Err(Errno::INPROGRESS) => {}
            outcome => return Ok(outcome.map(|()| true)?),
        }
        while !self.is_over() {
            if is_ready(socket, PollFlags::OUT)? {
                return sockopt::take_error(socket)?.map_or(Ok(true), Err);
            }
        }
        Ok(false)
    }

    fn play(&self, side: Side, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        if let Some(limit) = self.config.user_timeout {
            sockopt::set_user_timeout(&stream, limit)?;
        }
        if !self.config.nagle {
            sockopt::set_nodelay(&stream)?;
        }
        // What has not arrived when the run is over need not arrive.
        let abandoned = stream.try_clone()?;
        let outcome = match side {
            Side::Source => self.send(stream),
            Side::Destination => self.receive(stream),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                Ok(sockopt::set_linger_reset(&abandoned)?)
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(error),
            Err(error) => self.broken(&error, false),
        }
    }

    fn send(&self, mut stream: TcpStream) -> io::Result<()> {
        let data = pattern();
        let mut written = 0;
        while self.spec.bytes.is_none_or(|bytes| written < bytes) {
            let from = (written % CHUNK as u64) as usize;
            let left = self.spec.bytes.map_or(u64::MAX, |bytes| bytes - written);
            let until = CHUNK.min(from.saturating_add(usize::try_from(left).unwrap_or(usize::MAX)));
            written += self.patiently(|| stream.write(&data[from..until]))? as u64;
        }
        stream.shutdown(Shutdown::Write)?;
        // The other side ends when it has everything.
        while self.patiently(|| stream.read(&mut [0; 64]))? > 0 {}
        self.shared.set_end("closed");
        Ok(())
    }

    fn receive(&self, mut stream: TcpStream) -> io::Result<()> {
        let data = pattern();
        let (mut received, mut buffer) = (0u64, vec![0; CHUNK]);
        loop {
            let from = (received % CHUNK as u64) as usize;
            let length = self.patiently(|| stream.read(&mut buffer[..CHUNK - from]))?;
            if length == 0 {
                return Ok(());
            }
            if buffer[..length] != data[from..from + length] {
                let what = format!("flow {}: other bytes have arrived than were sent", self.spec.name);
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            if received == 0 {
                // With the first segment the kernel learns how much memory one takes, and sets another clamp.
                self.clamp(&stream)?;
            }
            received += length as u64;
            note(self.zero.elapsed(), &self.shared.last_byte);
            self.shared.received.store(received, Ordering::Relaxed);
        }
    }

    /// Repeats a call that has timed out, until the run is over; after that nothing is sent or read any more,
    /// however well the connection does.
    fn patiently(&self, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
        while !self.stop.load(Ordering::Relaxed) {
            match call() {
                Err(error) if crate::download::is_timeout(&error) => {}
                outcome => return outcome,
            }
        }
        Err(io::ErrorKind::Interrupted.into())
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.shared.over.load(Ordering::Relaxed)
    }

    /// A connection that failed is a result, unless the machine is at fault; that the other end has abandoned
    /// it after the run is none.
    fn broken(&self, error: &io::Error, connecting: bool) -> io::Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let end = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable if connecting => "connect timed out",
            io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable => "timed out",
            io::ErrorKind::ConnectionRefused => "refused",
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                "reset"
            }
            _ => return Err(io::Error::new(error.kind(), format!("flow {}: {error}", self.spec.name))),
        };
        self.shared.set_end(end);
        Ok(())
    }

    /// Bounds the window by the size of a buffer that does not grow; a clamp ends the kernel's own growth.
    fn clamp(&self, socket: impl AsFd) -> io::Result<()> {
        if self.config.receive_autotuning.is_some() {
            return Ok(());
        }
        sockopt::set_window_clamp(socket, u32::try_from(self.config.receive_buffer).unwrap_or(u32::MAX))
    }

    fn socket(&self, congestion: Option<&str>) -> io::Result<OwnedFd> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        self.clamp(&socket)?;
        if let Some(name) = congestion {
            sockopt::set_congestion(&socket, name)?;
        }
        Ok(socket)
    }
}

/// Waits for a socket, but not longer than [`PATIENCE`].
fn is_ready(socket: &impl AsFd, what: PollFlags) -> io::Result<bool> {
    let patience = Timespec { tv_sec: 0, tv_nsec: PATIENCE.as_nanos() as i64 };
    Ok(poll(&mut [PollFd::new(socket, what)], Some(&patience))? > 0)
}

/// Bytes that repeat after a [`CHUNK`] and not sooner: a piece that is missing, repeated or out of place
/// shows unless its length is a multiple of that.
fn pattern() -> Vec<u8> {
    (0..CHUNK as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
