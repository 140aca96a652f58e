//! One download: a server that sends a seeded stream, a client that times it and checks every byte.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use bentpipe_kernel::tcp_info::{TcpInfo, tcp_info};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rustix::net::shutdown;
use sha2::{Digest, Sha256};

use crate::trace::{Recorder, Sample};

/// The usual interval between samples of a server's connections.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// How long a client waits for data before it checks whether it should stop.
const READ_TIMEOUT: Duration = Duration::from_millis(200);
const CHUNK: usize = 64 * 1024;

/// The client's request: the seed and the length of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The seed of the stream's bytes.
    pub seed: u64,
    /// The stream's length.
    pub bytes: u64,
}

impl Request {
    pub(crate) const LENGTH: usize = 16;

    pub(crate) fn encode(self) -> [u8; Self::LENGTH] {
        let mut wire = [0; Self::LENGTH];
        wire[..8].copy_from_slice(&self.seed.to_be_bytes());
        wire[8..].copy_from_slice(&self.bytes.to_be_bytes());
        wire
    }

    pub(crate) fn decode(wire: [u8; Self::LENGTH]) -> Self {
        let word = |at: usize| u64::from_be_bytes(wire[at..at + 8].try_into().expect("eight bytes"));
        Self { seed: word(0), bytes: word(8) }
    }

    /// The SHA-256 of the stream as it is sent.
    pub fn digest(self) -> [u8; 32] {
        let mut hash = Sha256::new();
        self.generate(|chunk| {
            hash.update(chunk);
            Ok(())
        })
        .expect("hashing does not fail");
        hash.finalize().into()
    }

    /// The SHA-256 of the first `bytes` of the stream, or of all of it if it is shorter.
    pub(crate) fn digest_of_first(self, bytes: u64) -> [u8; 32] {
        // No more than that is generated: the stream may have no end.
        Self { bytes: bytes.min(self.bytes), ..self }.digest()
    }

    /// Produces the stream piece by piece, the same for the same seed.
    pub(crate) fn generate(self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut stream = self.stream();
        while let Some(chunk) = stream.next_chunk() {
            take(chunk)?;
        }
        Ok(())
    }

    /// The same for a caller that fetches the pieces.
    pub(crate) fn stream(self) -> Stream {
        let random = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        Stream { random, chunk: Box::new([0; CHUNK]), left: self.bytes }
    }
}

/// A stream of which a part has been produced.
pub(crate) struct Stream {
    random: Xoshiro256PlusPlus,
    chunk: Box<[u8; CHUNK]>,
    left: u64,
}

impl Stream {
    /// The next piece; `None` at the end.
    pub(crate) fn next_chunk(&mut self) -> Option<&[u8]> {
        let length = self.left.min(CHUNK as u64) as usize;
        self.left -= length as u64;
        self.random.fill_bytes(&mut self.chunk[..length]);
        (length > 0).then(|| &self.chunk[..length])
    }
}

/// A server on a thread of its own.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    listener: TcpListener,
    traces: Arc<Mutex<Vec<Vec<Sample>>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `address`, in the network namespace of the calling thread, with `congestion` on its side of
    /// every connection (the kernel's default without), and samples the inner variables of each connection
    /// every `interval`.
    pub fn start(address: SocketAddr, congestion: Option<&str>, interval: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        if let Some(name) = congestion {
            sockopt::set_congestion(&listener, name)?;
        }
        let traces = Arc::new(Mutex::new(Vec::new()));
        let (accepting, recorded) = (listener.try_clone()?, Arc::clone(&traces));
        let thread = std::thread::Builder::new().name("server".into()).spawn(move || {
            while let Ok((connection, _)) = accepting.accept() {
                // A client that goes away ends its own download only.
                let recorded = Arc::clone(&recorded);
                std::thread::spawn(move || serve_and_record(connection, interval, &recorded));
            }
        })?;
        Ok(Self { address: listener.local_addr()?, listener, traces, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The recordings of the connections that have ended, in the order of their ends. A connection ends when
    /// its client has closed.
    pub fn traces(&self) -> Vec<Vec<Sample>> {
        self.traces.lock().expect("no one panics with it").clone()
    }
}

impl Drop for Server {
    /// Stops listening; connections go on until their clients close.
    fn drop(&mut self) {
        // It fails only where nobody listens any more.
        let _ = shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve_and_record(
    connection: TcpStream,
    interval: Duration,
    traces: &Mutex<Vec<Vec<Sample>>>,
) -> io::Result<()> {
    let recorder = Recorder::start(connection.try_clone()?.into(), interval);
    let served = serve(connection);
    traces.lock().expect("no one panics with it").push(recorder.finish());
    served
}

fn serve(mut connection: TcpStream) -> io::Result<()> {
    let mut wire = [0; Request::LENGTH];
    connection.read_exact(&mut wire)?;
    Request::decode(wire).generate(|chunk| connection.write_all(chunk))?;
    connection.shutdown(Shutdown::Write)?;
    // The client closes when it has everything.
    connection.read(&mut wire).map(drop)
}

/// The progress of a client, for other threads.
#[derive(Debug, Default)]
pub struct Progress {
    received: AtomicU64,
    cancelled: AtomicBool,
    finished: AtomicBool,
}

impl Progress {
    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether the download has ended, well or not.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Relaxed)
    }

    /// So many bytes have been received since the last call.
    pub(crate) fn add(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn finish(&self) {
        self.finished.store(true, Ordering::Relaxed);
    }

    /// Makes the client give up.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the client was told to give up.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// A download that has finished or was cancelled.
#[derive(Debug, Clone)]
pub struct Download {
    /// From the start of the connection to the last byte that arrived.
    pub duration: Duration,
    /// From the start of the connection to the end of the stream, or until it was cancelled.
    pub elapsed: Duration,
    /// Bytes received.
    pub bytes: u64,
    /// Whether the whole stream arrived, with the SHA-256 of the sent one.
    pub identical: bool,
    /// Whether all bytes that arrived, possibly a part of the stream, are those that were sent.
    pub intact: bool,
    /// Bytes received at instants since the start, at most one point per 20 ms.
    pub timeline: Vec<(Duration, u64)>,
    /// The client's socket at the end.
    pub info: TcpInfo,
}

/// Downloads, in the network namespace of the calling thread, until the stream ends or the caller cancels.
pub fn download(server: SocketAddr, request: Request, progress: &Progress) -> io::Result<Download> {
    let started = Instant::now();
    let mut connection = TcpStream::connect(server)?;
    connection.set_read_timeout(Some(READ_TIMEOUT))?;
    connection.write_all(&request.encode())?;
    let mut hash = Sha256::new();
    let mut timeline = vec![(Duration::ZERO, 0)];
    let mut buffer = vec![0; CHUNK];
    let mut bytes = 0;
    let mut ended = started;
    while !progress.cancelled.load(Ordering::Relaxed) {
        match connection.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                hash.update(&buffer[..length]);
                bytes += length as u64;
                ended = Instant::now();
                progress.received.store(bytes, Ordering::Relaxed);
                note(&mut timeline, ended - started, bytes);
            }
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let digest: [u8; 32] = hash.finalize().into();
    timeline.push((ended - started, bytes));
    let intact = bytes <= request.bytes && digest == request.digest_of_first(bytes);
    Ok(Download {
        duration: ended - started,
        elapsed: started.elapsed(),
        bytes,
        identical: intact && bytes == request.bytes,
        intact,
        timeline,
        info: tcp_info(&connection)?,
    })
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn note(timeline: &mut Vec<(Duration, u64)>, at: Duration, bytes: u64) {
    if timeline.last().is_none_or(|(last, _)| at - *last >= Duration::from_millis(20)) {
        timeline.push((at, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1:0";

    #[test]
    fn the_download_equals_the_sent_bytes() {
        let server = Server::start(LOOPBACK.parse().unwrap(), Some("reno"), SAMPLE_INTERVAL).unwrap();
        let request = Request { seed: 7, bytes: 1_000_001 };
        let got = download(server.address(), request, &Progress::default()).unwrap();
        assert!(got.identical && got.bytes == request.bytes, "{got:?}");
        assert_eq!(got.timeline.last().unwrap().1, request.bytes);
    }

    #[test]
    fn one_changed_seed_is_another_stream() {
        let digest = |seed| Request { seed, bytes: 100_000 }.digest();
        assert_eq!(digest(1), digest(1));
        assert_ne!(digest(1), digest(2));
    }

    #[test]
    fn a_truncated_stream_is_not_identical() {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            connection.read_exact(&mut [0; Request::LENGTH]).unwrap();
            connection.write_all(&[0; 100]).unwrap();
        });
        let got = download(address, Request { seed: 7, bytes: 1000 }, &Progress::default()).unwrap();
        thread.join().unwrap();
        assert!(!got.identical && !got.intact && got.bytes == 100);
    }

    #[test]
    fn a_part_of_the_stream_is_intact_and_not_identical() {
        let server = Server::start(LOOPBACK.parse().unwrap(), None, SAMPLE_INTERVAL).unwrap();
        // The server sends as much as the first request asks for; the check is against a longer stream.
        let (asked, whole) = (Request { seed: 7, bytes: 131_072 }, Request { seed: 7, bytes: 1_000_000 });
        let part = download(server.address(), asked, &Progress::default()).unwrap();
        assert!(part.identical && part.intact);
        assert_eq!(whole.digest_of_first(131_072), asked.digest());
        assert_ne!(whole.digest_of_first(131_071), asked.digest());
        let endless = Request { bytes: u64::MAX, ..whole };
        assert_eq!(endless.digest_of_first(131_072), asked.digest());
    }

    #[test]
    fn a_cancelled_download_ends_without_waiting_for_data() {
        let listener = TcpListener::bind(LOOPBACK).unwrap();
        let progress = Progress::default();
        progress.cancel();
        let got =
            download(listener.local_addr().unwrap(), Request { seed: 7, bytes: 1000 }, &progress).unwrap();
        assert!(!got.identical && got.bytes == 0);
    }
}
