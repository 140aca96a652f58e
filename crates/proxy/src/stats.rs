//! What the daemon counts, and the snapshot of it that others read.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// What a daemon has done since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
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
    /// Connections that wait now for their server's answer, or with it for their client's.
    pub held_open: u64,
    /// Connections whose server was asked before the client was answered.
    pub held_total: u64,
    /// Those of them whose server refused or could not be reached: their SYNs went on, unsplit.
    pub held_refused: u64,
    /// Those of them that ended without a word: the server was silent, or the client had gone.
    pub held_forgotten: u64,
    /// SYNs that were held and then went on unsplit, repeated ones included.
    pub syns_passed: u64,
    /// Times that a worker stopped accepting because descriptors had run out.
    pub accept_pauses: u64,
    /// Bytes written towards servers.
    pub bytes_up: u64,
    /// Bytes written towards clients.
    pub bytes_down: u64,
    /// Buffers and pipes that hold data in flight now.
    #[serde(rename = "vessels_lent")]
    pub relay_buffers_in_use: u64,
    /// RecentSyns that all flows take in the daemon's and the kernel's buffers, bytes, as they were looked at within the last
    /// second or so.
    pub buffered: u64,
    /// Flows that are not split but snooped.
    pub snoop: SnoopStats,
    /// The routers of legs with `congestion = "xcp"` or `"p-xcp"`.
    pub router: RouterStats,
}

/// What the XCP routers have done, in packets on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RouterStats {
    /// Packets that left by their interfaces.
    pub xcp_packets: u64,
    /// Those with a congestion header.
    pub xcp_headers: u64,
    /// Those of them whose sender got less than it asked for.
    pub xcp_lowered: u64,
    /// Segments with TCP options that could not be read; they passed.
    pub xcp_malformed: u64,
    /// Control intervals that have ended.
    pub xcp_intervals: u64,
}

/// What has been done for the flows that are not split but looked after packet by packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SnoopStats {
    /// Packets that came to the daemon, both ways.
    pub packets: u64,
    /// Segments kept since the beginning.
    pub cached: u64,
    /// Segments that found no room and passed.
    pub not_cached: u64,
    /// Segments sent again, for whatever reason.
    pub retransmitted: u64,
    /// How often the local timer expired.
    pub timed_out: u64,
    /// Duplicate ACKs that were not passed on.
    pub suppressed: u64,
    /// ACKs whose SACK blocks were taken out.
    pub sack_hidden: u64,
    /// Times that a loss was taken for congestion and left to the sender.
    pub yielded: u64,
    /// Flows that are looked after now.
    pub flows: u64,
    /// Segments of flows that found no room; they passed.
    pub flows_passed: u64,
    /// Segments that found no room in the queue of those that wait for their turn; they were dropped, as by any queue.
    pub queue_dropped: u64,
    /// IP bytes that wait for their turn now.
    pub queued_bytes: u64,
    /// The most that waited at any time.
    pub most_queued_bytes: u64,
    /// IP bytes of segments that are kept now.
    pub held_bytes: u64,
    /// The most that were kept at any time.
    pub most_held_bytes: u64,
    /// Packets that could not be given back to the kernel.
    pub dropped: u64,
    /// Times that the agent began anew, knowing nothing: other settings, a pause of the daemon, a fault of its own.
    pub restarts: u64,
}

/// The counters of one worker, or of the deferred_accept, on cache lines of their own.
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
    pub(crate) held_total: Counter,
    pub(crate) held_refused: Counter,
    pub(crate) held_forgotten: Counter,
    pub(crate) held_claimed: Counter,
    pub(crate) syns_passed: Counter,
    pub(crate) accept_pauses: Counter,
    pub(crate) bytes_up: Counter,
    pub(crate) bytes_down: Counter,
    pub(crate) relay_buffers_in_use: Counter,
    pub(crate) buffered: Counter,
}

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        // Only this thread writes it: no read-modify-write cycle has to be locked.
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
    /// Sums the threads' counters. Each number is exact; they are not all of the same instant.
    pub(crate) fn sum<'a>(threads: impl IntoIterator<Item = &'a Counters>) -> Self {
        let (mut sum, mut claimed) = (Self::default(), 0);
        for worker in threads {
            let ended = worker.flows_finished.get() + worker.flows_reset.get() + worker.connects_failed.get();
            let total = worker.flows_total.get();
            sum.flows_open += total.saturating_sub(ended);
            sum.flows_total += total;
            sum.flows_finished += worker.flows_finished.get();
            sum.flows_reset += worker.flows_reset.get();
            sum.connects_failed += worker.connects_failed.get();
            sum.flows_expired += worker.flows_expired.get();
            sum.flows_refused += worker.flows_refused.get();
            sum.other_port += worker.other_port.get();
            sum.own_port += worker.own_port.get();
            sum.accept_pauses += worker.accept_pauses.get();
            sum.bytes_up += worker.bytes_up.get();
            sum.bytes_down += worker.bytes_down.get();
            sum.relay_buffers_in_use += worker.relay_buffers_in_use.get();
            sum.buffered += worker.buffered.get();
            sum.held_total += worker.held_total.get();
            sum.held_refused += worker.held_refused.get();
            sum.held_forgotten += worker.held_forgotten.get();
            sum.syns_passed += worker.syns_passed.get();
            claimed += worker.held_claimed.get();
        }
        let ended = sum.held_refused + sum.held_forgotten + claimed;
        sum.held_open = sum.held_total.saturating_sub(ended);
        sum
    }

    /// What is there now is left out, and with it what is not over: flows that live were not *ever accepted*, for whoever goes on
    /// with them counts them himself.
    pub(crate) fn without_the_present(self) -> Self {
        let snoop = SnoopStats { flows: 0, queued_bytes: 0, held_bytes: 0, ..self.snoop };
        Self {
            flows_total: self.flows_total - self.flows_open,
            held_total: self.held_total - self.held_open,
            flows_open: 0,
            connecting: 0,
            held_open: 0,
            relay_buffers_in_use: 0,
            buffered: 0,
            snoop,
            ..self
        }
    }

    /// Both together.
    pub(crate) fn plus(self, other: &Self) -> Self {
        Self {
            flows_open: self.flows_open + other.flows_open,
            connecting: self.connecting + other.connecting,
            flows_total: self.flows_total + other.flows_total,
            flows_finished: self.flows_finished + other.flows_finished,
            flows_reset: self.flows_reset + other.flows_reset,
            connects_failed: self.connects_failed + other.connects_failed,
            flows_expired: self.flows_expired + other.flows_expired,
            flows_refused: self.flows_refused + other.flows_refused,
            other_port: self.other_port + other.other_port,
            own_port: self.own_port + other.own_port,
            held_open: self.held_open + other.held_open,
            held_total: self.held_total + other.held_total,
            held_refused: self.held_refused + other.held_refused,
            held_forgotten: self.held_forgotten + other.held_forgotten,
            syns_passed: self.syns_passed + other.syns_passed,
            accept_pauses: self.accept_pauses + other.accept_pauses,
            bytes_up: self.bytes_up + other.bytes_up,
            bytes_down: self.bytes_down + other.bytes_down,
            relay_buffers_in_use: self.relay_buffers_in_use + other.relay_buffers_in_use,
            buffered: self.buffered + other.buffered,
            snoop: self.snoop.plus(&other.snoop),
            router: self.router.plus(&other.router),
        }
    }
}

impl RouterStats {
    fn plus(self, other: &Self) -> Self {
        Self {
            xcp_packets: self.xcp_packets + other.xcp_packets,
            xcp_headers: self.xcp_headers + other.xcp_headers,
            xcp_lowered: self.xcp_lowered + other.xcp_lowered,
            xcp_malformed: self.xcp_malformed + other.xcp_malformed,
            xcp_intervals: self.xcp_intervals + other.xcp_intervals,
        }
    }
}

impl SnoopStats {
    fn plus(self, other: &Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            cached: self.cached + other.cached,
            not_cached: self.not_cached + other.not_cached,
            retransmitted: self.retransmitted + other.retransmitted,
            timed_out: self.timed_out + other.timed_out,
            suppressed: self.suppressed + other.suppressed,
            sack_hidden: self.sack_hidden + other.sack_hidden,
            yielded: self.yielded + other.yielded,
            flows: self.flows + other.flows,
            flows_passed: self.flows_passed + other.flows_passed,
            queue_dropped: self.queue_dropped + other.queue_dropped,
            queued_bytes: self.queued_bytes + other.queued_bytes,
            most_queued_bytes: self.most_queued_bytes.max(other.most_queued_bytes),
            held_bytes: self.held_bytes + other.held_bytes,
            most_held_bytes: self.most_held_bytes.max(other.most_held_bytes),
            dropped: self.dropped + other.dropped,
            restarts: self.restarts + other.restarts,
        }
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

    #[test]
    fn a_flow_that_goes_on_in_another_process_is_counted_once() {
        let [before, after] = [Counters::default(), Counters::default()];
        before.flows_total.add(10);
        before.flows_finished.add(6);
        before.bytes_up.add(100);
        before.buffered.set(77);
        let mut seen = Stats::sum([&before]);
        seen.snoop = SnoopStats { queue_dropped: 3, queued_bytes: 9, most_queued_bytes: 20, ..seen.snoop };
        let left = seen.without_the_present();
        assert_eq!((left.flows_total, left.flows_open, left.buffered), (6, 0, 0));
        let more =
            SnoopStats { queue_dropped: 1, queued_bytes: 5, most_queued_bytes: 8, ..SnoopStats::default() };
        let SnoopStats { queue_dropped, queued_bytes, most_queued_bytes, .. } = more.plus(&left.snoop);
        assert_eq!((queue_dropped, queued_bytes, most_queued_bytes), (4, 5, 20));
        // The four that are left are taken over, one of them ends, and one more comes.
        after.flows_total.add(5);
        after.flows_reset.add(1);
        after.bytes_up.add(11);
        let stats = Stats::sum([&after]).plus(&left);
        assert_eq!((stats.flows_total, stats.flows_open, stats.flows_finished), (11, 4, 6));
        assert_eq!((stats.flows_reset, stats.bytes_up), (1, 111));
    }

    #[test]
    fn a_held_connection_is_open_until_a_worker_claims_it_or_it_ends() {
        let [deferred_accept, worker] = [Counters::default(), Counters::default()];
        deferred_accept.held_total.add(7);
        deferred_accept.held_refused.add(1);
        deferred_accept.held_forgotten.add(2);
        worker.held_claimed.add(3);
        let stats = Stats::sum([&worker, &deferred_accept]);
        assert_eq!((stats.held_total, stats.held_open, stats.flows_open), (7, 1, 0));
    }
}
