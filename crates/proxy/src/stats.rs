//! What the daemon counts, and the snapshot of it that others read.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// What a daemon has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stats {
    /// Flows that live now, draining ones included.
    pub flows_open: u64,
    /// Connections that wait for their server now.
    pub connecting: u64,
    /// Flows that were ever accepted.
    pub flows_total: u64,
    /// Flows that ended in order at both ends.
    pub flows_finished: u64,
    /// Flows that were reset at both ends because one end was reset, timed out or became unreachable.
    pub flows_reset: u64,
    /// Flows whose server refused or could not be reached: reset to the client.
    pub connects_failed: u64,
    /// Flows that were reset because nothing moved on them for too long; they are among `flows_reset`.
    pub flows_expired: u64,
    /// Connections beyond a limit that had been answered before the rules kept them out: reset, and no flows.
    pub flows_refused: u64,
    /// Upstream connections whose port is not the client's because that one was taken.
    pub other_port: u64,
    /// Connections to the proxy's own port, reset at once.
    pub own_port: u64,
    /// Times that a worker stopped accepting because descriptors had run out.
    pub accept_pauses: u64,
    /// Bytes written towards servers.
    pub bytes_up: u64,
    /// Bytes written towards clients.
    pub bytes_down: u64,
    /// Buffers and pipes that hold data in flight now.
    pub vessels_lent: u64,
    /// Memory that all flows take in the daemon's and the kernel's buffers, bytes, as they were looked at within the last
    /// second or so.
    pub buffered: u64,
}

/// One worker's counters, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    pub(crate) flows_total: Counter,
    pub(crate) flows_finished: Counter,
    pub(crate) flows_reset: Counter,
    pub(crate) connects_failed: Counter,
    pub(crate) flows_expired: Counter,
    pub(crate) flows_refused: Counter,
    pub(crate) other_port: Counter,
    pub(crate) own_port: Counter,
    pub(crate) accept_pauses: Counter,
    pub(crate) bytes_up: Counter,
    pub(crate) bytes_down: Counter,
    pub(crate) vessels_lent: Counter,
    pub(crate) buffered: Counter,
}

/// A number that one worker writes and others read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        // Only this worker writes it: no read-modify-write cycle has to be locked.
        self.0.store(self.get() + amount, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Stats {
    /// Sums the workers' counters. Each number is exact; they are not all of the same instant.
    pub(crate) fn sum<'a>(workers: impl IntoIterator<Item = &'a Counters>) -> Self {
        workers.into_iter().fold(Self::default(), |sum, worker| {
            let ended = worker.flows_finished.get() + worker.flows_reset.get() + worker.connects_failed.get();
            let total = worker.flows_total.get();
            Self {
                flows_open: sum.flows_open + total.saturating_sub(ended),
                connecting: sum.connecting,
                flows_total: sum.flows_total + total,
                flows_finished: sum.flows_finished + worker.flows_finished.get(),
                flows_reset: sum.flows_reset + worker.flows_reset.get(),
                connects_failed: sum.connects_failed + worker.connects_failed.get(),
                flows_expired: sum.flows_expired + worker.flows_expired.get(),
                flows_refused: sum.flows_refused + worker.flows_refused.get(),
                other_port: sum.other_port + worker.other_port.get(),
                own_port: sum.own_port + worker.own_port.get(),
                accept_pauses: sum.accept_pauses + worker.accept_pauses.get(),
                bytes_up: sum.bytes_up + worker.bytes_up.get(),
                bytes_down: sum.bytes_down + worker.bytes_down.get(),
                vessels_lent: sum.vessels_lent + worker.vessels_lent.get(),
                buffered: sum.buffered + worker.buffered.get(),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_open_until_it_has_ended_in_one_way_or_another() {
        let workers = [Counters::default(), Counters::default()];
        workers[0].flows_total.add(5);
        workers[1].flows_total.add(2);
        workers[0].flows_finished.add(1);
        workers[0].flows_reset.add(1);
        workers[1].connects_failed.add(1);
        let stats = Stats::sum(&workers);
        assert_eq!((stats.flows_total, stats.flows_open), (7, 4));
    }
}
