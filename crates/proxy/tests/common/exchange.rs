//! A transfer in both directions at once, whose readers can be held half-way.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use super::pattern;

/// Longer than the timers of two hosts that have backed off together.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of those who are held; left to itself, the kernel would take several megabytes.
const RECEIVE_BUFFER: usize = 256 * 1024;

/// What a reader that is held reads now and then while the other way is behind: as much as makes Linux announce
/// a window again.
const TRICKLE: usize = 16 * 1024;
const TRICKLE_INTERVAL: Duration = Duration::from_millis(200);

/// Most bytes of one call otherwise.
const CHUNK: usize = 64 * 1024;

/// The two directions, as numbers.
const UP: usize = 0;
const DOWN: usize = 1;

/// Both directions of a connection, on threads of their own.
pub struct Exchange {
    /// Of what goes up to the server, and down to the client.
    readers: [JoinHandle<io::Result<Ending>>; 2],
    writers: [JoinHandle<io::Result<()>>; 2],
    progress: Arc<Progress>,
    bytes: usize,
}

/// What a reader had got at the end of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Identical,
    Truncated,
    /// Something else than was sent.
    Different,
}

struct Progress {
    received: [AtomicU64; 2],
    /// Readers stop at half of the bytes until this is set, or nearly so while the other way is behind.
    go_on: AtomicBool,
}

impl Exchange {
    /// Sends `bytes` each way and ends each way in order.
    pub fn start(ends: (TcpStream, TcpStream), bytes: usize) -> Self {
        Self::begin(ends, bytes, true)
    }

    /// The same, but nobody reads more than half until [`let_go`](Self::let_go). Little of the other half
    /// arrives before.
    pub fn start_and_hold(ends: (TcpStream, TcpStream), bytes: usize) -> Self {
        for end in [&ends.0, &ends.1] {
            rustix::net::sockopt::set_socket_recv_buffer_size(end, RECEIVE_BUFFER).unwrap();
        }
        Self::begin(ends, bytes, false)
    }

    fn begin((client, server): (TcpStream, TcpStream), bytes: usize, go_on: bool) -> Self {
        let progress = Arc::new(Progress { received: Default::default(), go_on: AtomicBool::new(go_on) });
        let readers = [(UP, &server), (DOWN, &client)].map(|(way, end)| {
            let (end, expected, progress) = (patient(end), pattern(way as u64, bytes), progress.clone());
            std::thread::spawn(move || receive(end, &expected, way, &progress))
        });
        let writers = [(UP, &client), (DOWN, &server)].map(|(way, end)| {
            let (end, sent) = (patient(end), pattern(way as u64, bytes));
            std::thread::spawn(move || send(end, &sent))
        });
        Self { readers, writers, progress, bytes }
    }

    /// Waits until at least this many bytes have arrived each way.
    pub fn wait_for(&self, bytes: usize) {
        let start = Instant::now();
        while self.received() < bytes as u64 {
            assert!(start.elapsed() < PATIENCE, "{} of {bytes} bytes arrived", self.received());
            sleep(Duration::from_millis(2));
        }
    }

    /// Bytes that have arrived in the direction that has got less of them.
    pub fn received(&self) -> u64 {
        let received = self.progress.received.iter().map(|way| way.load(Ordering::Relaxed));
        received.min().unwrap_or_default()
    }

    pub fn is_complete(&self) -> bool {
        self.received() == self.bytes as u64
    }

    pub fn let_go(&self) {
        self.progress.go_on.store(true, Ordering::Relaxed);
    }

    /// Everything has arrived as it was sent, each way, and then the end of file.
    pub fn expect_identical(self) {
        for writer in self.writers {
            writer.join().unwrap().unwrap();
        }
        for reader in self.readers {
            assert_eq!(reader.join().unwrap().unwrap(), Ending::Identical);
        }
    }

    /// Everything has arrived, or not all of it has and that end was told so; how many of the two ends have
    /// everything.
    pub fn expect_whole_or_reset(self) -> usize {
        let [to_server, to_client] = self.readers.map(|reader| reader.join().unwrap());
        let [from_client, from_server] = self.writers.map(|writer| writer.join().unwrap());
        let whole = |(end, read, written): (_, io::Result<Ending>, io::Result<()>)| match read {
            Ok(Ending::Identical) => true,
            Ok(Ending::Truncated) => {
                assert!(written.is_err(), "the {end} was told nothing");
                false
            }
            Ok(Ending::Different) => panic!("the {end} has read something else"),
            Err(_) => false,
        };
        let ends = [("client", to_client, from_client), ("server", to_server, from_server)];
        ends.into_iter().map(whole).filter(|is_whole| *is_whole).count()
    }

    /// Nothing wrong has arrived, not all of it has, and both ends were told so. The kernel tells of a reset
    /// once: to the thread that reads or to the one that writes, whichever comes first, and the other sees a
    /// closed connection.
    pub fn expect_resets(self) {
        let [to_server, to_client] = self.readers.map(|reader| reader.join().unwrap());
        let [from_client, from_server] = self.writers.map(|writer| writer.join().unwrap());
        for (end, read, written) in [("client", to_client, from_client), ("server", to_server, from_server)] {
            let told = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
            let was_told = read.as_ref().is_err_and(told) || written.as_ref().is_err_and(told);
            assert!(was_told, "the {end} was told nothing: {read:?}, {written:?}");
            assert!(matches!(read, Err(_) | Ok(Ending::Truncated)), "the {end} read: {read:?}");
        }
    }
}

fn patient(stream: &TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.try_clone().unwrap()
}

fn send(mut to: TcpStream, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.shutdown(Shutdown::Write)
}

/// Reads up to the end of file, or to the first byte that is wrong.
fn receive(mut from: TcpStream, expected: &[u8], way: usize, progress: &Progress) -> io::Result<Ending> {
    let (mut chunk, mut done) = (vec![0; CHUNK], 0);
    loop {
        let most = if done >= expected.len() / 2 {
            progress.wait_to_go_on(1 - way, expected.len() / 2)
        } else {
            CHUNK
        };
        let count = from.read(&mut chunk[..most])?;
        if !expected[done..].starts_with(&chunk[..count]) {
            return Ok(Ending::Different);
        } else if count == 0 {
            return Ok(if done == expected.len() { Ending::Identical } else { Ending::Truncated });
        }
        done += count;
        progress.received[way].store(done as u64, Ordering::Relaxed);
    }
}

impl Progress {
    /// Waits until readers may go on; returns how many bytes to read next.
    ///
    /// While the other way has not got its half, a little is read all the same. Where small packets fill a
    /// receive buffer, Linux takes back the window that it has announced, and from then on refuses all that
    /// its peer sends as beyond the window, acknowledgements included: the other way would stand still.
    fn wait_to_go_on(&self, other: usize, half: usize) -> usize {
        let start = Instant::now();
        while !self.go_on.load(Ordering::Relaxed) {
            let behind = self.received[other].load(Ordering::Relaxed) < half as u64;
            if behind && start.elapsed() > TRICKLE_INTERVAL {
                return TRICKLE;
            }
            sleep(Duration::from_millis(2));
        }
        CHUNK
    }
}
