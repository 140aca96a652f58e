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

/// Both directions of a connection, on threads of their own.
pub struct Exchange {
    readers: Vec<JoinHandle<io::Result<bool>>>,
    writers: Vec<JoinHandle<io::Result<()>>>,
    progress: Arc<Progress>,
    bytes: usize,
}

struct Progress {
    received: [AtomicU64; 2],
    /// Readers stop at half of the bytes until this is set.
    go_on: AtomicBool,
}

impl Exchange {
    /// Sends `bytes` each way and ends each way in order.
    pub fn start(ends: (TcpStream, TcpStream), bytes: usize) -> Self {
        Self::begin(ends, bytes, true)
    }

    /// The same, but nobody reads more than half until [`let_go`](Self::let_go).
    pub fn start_and_hold(ends: (TcpStream, TcpStream), bytes: usize) -> Self {
        Self::begin(ends, bytes, false)
    }

    fn begin((client, server): (TcpStream, TcpStream), bytes: usize, go_on: bool) -> Self {
        let progress = Arc::new(Progress { received: Default::default(), go_on: AtomicBool::new(go_on) });
        let (mut readers, mut writers) = (Vec::new(), Vec::new());
        for (way, (from, to)) in [(&client, &server), (&server, &client)].into_iter().enumerate() {
            let (from, to) = (patient(from), patient(to));
            writers.push(std::thread::spawn(move || send(from, &pattern(way as u64, bytes))));
            let progress = progress.clone();
            readers
                .push(std::thread::spawn(move || receive(to, &pattern(way as u64, bytes), way, &progress)));
        }
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
            assert!(reader.join().unwrap().unwrap(), "the bytes that arrived are not those that were sent");
        }
    }

    /// What arrived is the beginning of what was sent, and both ends were told that it is not all.
    pub fn expect_resets(self) {
        for reader in self.readers {
            let error = reader.join().unwrap().expect_err("an error, not an end of file");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        }
        for writer in self.writers {
            let _ = writer.join().unwrap();
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

/// Reads up to the end; whether it was what was expected. A difference ends it at once.
fn receive(mut from: TcpStream, expected: &[u8], way: usize, progress: &Progress) -> io::Result<bool> {
    let (mut chunk, mut done) = (vec![0; 65536], 0);
    loop {
        while done >= expected.len() / 2 && !progress.go_on.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(2));
        }
        let count = from.read(&mut chunk)?;
        if count == 0 || !expected[done..].starts_with(&chunk[..count]) {
            return Ok(count == 0 && done == expected.len());
        }
        done += count;
        progress.received[way].store(done as u64, Ordering::Relaxed);
    }
}
