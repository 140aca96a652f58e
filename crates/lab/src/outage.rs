//! A link that is cut during a download, and the restart of the download afterwards.

use std::time::{Duration, Instant};

use crate::download::Progress;
use crate::topology::Topology;

/// The longest wait for a download to restart.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

/// How long after the link's return something came.
#[derive(Debug, Clone, Copy)]
pub struct Restart {
    /// The first segment at the client; it may be one that the client already has.
    pub segment: Duration,
    /// The next byte that the client's application read.
    pub byte: Duration,
}

/// Cuts the link both ways for `length` and measures the restart of the download.
pub fn cut(topology: &Topology, progress: &Progress, length: Duration) -> Restart {
    topology.link.set_outage(true);
    std::thread::sleep(length);
    topology.link.set_outage(false);
    let returned = Instant::now();
    let (packets, bytes) = (topology.link.delivered().0.packets, progress.received());
    let wait_until = |done: &dyn Fn() -> bool| {
        while !done() && returned.elapsed() < RESTART_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
        returned.elapsed()
    };
    let segment = wait_until(&|| topology.link.delivered().0.packets > packets);
    Restart { segment, byte: wait_until(&|| progress.received() > bytes) }
}
