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
    /// What the socket said.
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
        if let Ok(info) = tcp_info(&socket) {
            samples.push(Sample { at: started.elapsed(), info });
        }
        if last {
            return samples;
        }
        std::thread::sleep(interval);
    }
}
