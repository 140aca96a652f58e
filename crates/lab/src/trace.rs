//! TCP's inner variables over time, as the socket itself reports them.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bentpipe_kernel::tcp_info::{TcpInfo, tcp_info};

/// The inner variables at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Since the recording began.
    pub at: Duration,
    /// The socket's variables.
    pub info: TcpInfo,
}

/// Samples a socket on a thread of its own until it is finished.
#[derive(Debug)]
pub struct Recorder {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Recorder {
    /// Samples `socket` every `interval`, and once more at the end.
    pub fn start(socket: OwnedFd, interval: Duration) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || record(&socket, interval, &stopped));
        Self { stop, thread }
    }

    /// Ends the recording.
    pub fn finish(self) -> Vec<Sample> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn record(socket: impl AsFd, interval: Duration, stopped: &AtomicBool) -> Vec<Sample> {
    let started = Instant::now();
    let mut samples = Vec::new();
    loop {
        let last = stopped.load(Ordering::Relaxed);
        if let Some(info) = consistent(&socket) {
            samples.push(Sample { at: started.elapsed(), info });
        }
        if last {
            return samples;
        }
        std::thread::sleep(interval);
    }
}

/// The kernel reads the window before it takes the socket's lock, and the rest after: an ACK in between would
/// show with the window of the one before. If no ACK came between two readings, the second one's window goes
/// with both.
fn consistent(socket: &impl AsFd) -> Option<TcpInfo> {
    let mut info = tcp_info(socket).ok()?;
    loop {
        let next = tcp_info(socket).ok()?;
        if next.delivered == info.delivered {
            return Some(next);
        }
        info = next;
    }
}
