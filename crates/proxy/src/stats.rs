//! What the daemon counts: every counter's declaration, and the sums over all threads.

use bentpipe_metrics::metrics;
use serde::{Deserialize, Serialize};

pub(crate) use bentpipe_metrics::Counter;

metrics! {
    /// What a daemon has done since it started.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Stats {
        flows_open: Gauge("flows_open", "flows", "Open flows, including draining ones."),
        connecting: Gauge("flows_connecting", "flows", "Flows that wait for a connection to their server."),
        flows_total: Counter("flows_total", "flows", "Accepted flows."),
        flows_finished: Counter("flows_finished_total", "flows", "Flows that both ends closed in order."),
        flows_reset: Counter("flows_reset_total", "flows",
            "Flows reset at both ends because one end was reset, timed out or became unreachable."),
        connects_failed: Counter("connects_failed_total", "flows",
            "Flows whose server refused the connection or was unreachable; the client was reset."),
        flows_expired: Counter("flows_expired_total", "flows",
            "Flows reset because they were idle for too long; a subset of flows_reset_total."),
        flows_refused: Counter("flows_refused_total", "connections",
            "Connections reset because they exceeded a limit; they are not flows."),
        other_port: Counter("other_port_total", "flows",
            "Flows whose upstream port differs from the client's, which was in use."),
        own_port: Counter("own_port_total", "connections", "Connections to the proxy's own port, which were reset."),
        held_open: Gauge("held_open", "connections",
            "Connections whose handshake waits for the server's answer."),
        held_total: Counter("held_total", "connections",
            "Connections whose server was contacted before the client was answered."),
        held_refused: Counter("held_refused_total", "connections",
            "Held connections whose server refused or was unreachable; their SYNs passed unsplit."),
        held_forgotten: Counter("held_forgotten_total", "connections",
            "Held connections that ended without an answer: the server was silent or the client had gone."),
        syns_passed: Counter("syns_passed_total", "segments",
            "Taken SYNs that then passed unsplit, including retransmitted ones."),
        accept_pauses: Counter("accept_pauses_total", "pauses",
            "Times that a worker stopped accepting because descriptors had run out."),
        shed_clients: Gauge("shed_clients", "clients",
            "Clients whose new connections pass because they have most of the connections of a daemon near its limits."),
        access_log_lost: Counter("access_log_lost_total", "lines", "Lines of the access log that were lost."),
        worker_restarts: Counter("worker_restarts_total", "restarts",
            "Times that a worker failed and was replaced; its flows were reset."),
        outage_probes: Counter("outage_probes_total", "probes",
            "Probes by which connections learn that their leg is back."),
        bytes_up: Counter("up_bytes_total", "bytes", "Payload sent to servers."),
        bytes_down: Counter("down_bytes_total", "bytes", "Payload sent to clients."),
        relay_buffers_in_use: Gauge("relay_buffers_in_use", "buffers and pipes",
            "Buffers and pipes that hold data in flight."),
        buffered: Gauge("buffered_bytes", "bytes",
            "Memory of all flows in the daemon's and the kernel's buffers, up to a second old."),
        ../// Flows that are snooped instead of split.
        snoop: SnoopStats as SnoopCounters,
        ../// The routers of legs with `congestion = "xcp"` or `"p-xcp"`.
        router: RouterStats as RouterCounters,
        ../// Legs whose packets cross in frames.
        protect: ProtectStats as ProtectCounters,
    }
    /// The counters of one thread, on cache lines of their own. Gauges that are derived from counters stay
    /// zero here.
    #[derive(Debug, Default)]
    #[repr(align(128))]
    pub(crate) struct Counters of Counter { held_claimed, }
}

metrics! {
    /// What the XCP routers have done, in packets on the wire.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct RouterStats {
        xcp_packets: Counter("xcp_packets_total", "packets", "Packets sent through the interfaces of XCP routers."),
        xcp_headers: Counter("xcp_headers_total", "packets", "Packets with a congestion header."),
        xcp_lowered: Counter("xcp_lowered_total", "packets", "Congestion headers whose feedback was reduced."),
        xcp_malformed: Counter("xcp_malformed_total", "packets", "Segments with unreadable TCP options; they passed."),
        xcp_intervals: Counter("xcp_intervals_total", "intervals", "Completed control intervals."),
    }
    /// The counters of the XCP routers' thread.
    #[derive(Debug, Default)]
    pub(crate) struct RouterCounters of Counter {}
}

metrics! {
    /// What the protected legs have done.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct ProtectStats {
        legs: Gauge("protect_legs", "legs", "Legs with a protect table that a rule uses."),
        alive: Gauge("protect_legs_alive", "legs", "Protected legs whose peer answers; without an answer packets are not protected."),
        sessions: Counter("protect_sessions_total", "sessions", "Sessions with peers that have begun."),
        packets_sent: Counter("protect_sent_packets_total", "packets", "Packets that left in frames."),
        bytes_sent: Counter("protect_sent_bytes_total", "bytes", "IP bytes of the packets that left in frames."),
        packets_received: Counter("protect_received_packets_total", "packets", "Packets that arrived in frames or were repaired."),
        bytes_received: Counter("protect_received_bytes_total", "bytes", "IP bytes of the packets that arrived."),
        wire_bytes: Counter("protect_wire_bytes_total", "bytes", "IP bytes of all frames sent."),
        frames_repair: Counter("protect_repair_frames_total", "frames", "Repair frames sent."),
        retransmitted: Counter("protect_retransmitted_total", "packets", "Packets sent once more because the peer asked for them."),
        repaired: Counter("protect_repaired_total", "packets", "Received packets that the code has repaired."),
        skipped: Counter("protect_skipped_total", "packets", "Packets that did not arrive in time, so that later ones were delivered first."),
        refused: Counter("protect_refused_total", "frames", "Frames that were refused: forged, repeated, of another key, session or version."),
        marked: Counter("protect_marked_total", "packets", "Packets marked as having met congestion (ECN)."),
        dropped: Counter("protect_dropped_total", "packets", "Packets dropped in the queue before a protected leg."),
        too_big: Counter("protect_too_big_total", "packets", "Packets too long for the leg, whose senders were told."),
        silent_passed: Counter("protect_silent_passed_total", "packets", "Packets that crossed a leg unprotected because its peer was silent."),
        silent_dropped: Counter("protect_silent_dropped_total", "packets", "Packets that were dropped because the peer was silent."),
        queued_bytes: Gauge("protect_queued_bytes", "bytes", "IP bytes that wait before protected legs."),
        held_bytes: Gauge("protect_held_bytes", "bytes", "Memory of packets and equations that both ends may still need."),
    }
    /// The counters of the thread of a protected leg.
    #[derive(Debug, Default)]
    pub(crate) struct ProtectCounters of Counter {}
}

metrics! {
    /// What the Snoop agent has done for flows that are not split.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
    #[serde(default)]
    pub struct SnoopStats {
        packets: Counter("snoop_packets_total", "packets", "Packets of snooped flows, both ways."),
        cached: Counter("snoop_cached_total", "segments", "Cached segments."),
        not_cached: Counter("snoop_not_cached_total", "segments", "Segments that passed because the cache was full."),
        retransmitted: Counter("snoop_retransmitted_total", "segments", "Segments retransmitted from the cache."),
        timed_out: Counter("snoop_timeouts_total", "expiries", "Expiries of the local retransmission timer."),
        suppressed: Counter("snoop_suppressed_total", "segments", "Suppressed duplicate ACKs."),
        sack_hidden: Counter("snoop_sack_hidden_total", "segments", "ACKs whose SACK blocks were removed."),
        yielded: Counter("snoop_yielded_total", "losses", "Losses left to the sender as congestion."),
        flows: Gauge("snoop_flows_open", "flows", "Snooped flows."),
        flows_passed: Counter("snoop_flows_passed_total", "segments",
            "Segments that passed because the flow table was full."),
        queue_dropped: Counter("snoop_queue_dropped_total", "segments", "Segments dropped because the queue was full."),
        queued_bytes: Gauge("snoop_queued_bytes", "bytes", "IP bytes in the queue."),
        most_queued_bytes: Peak("snoop_most_queued_bytes", "bytes", "Maximum of snoop_queued_bytes so far."),
        held_bytes: Gauge("snoop_held_bytes", "bytes", "IP bytes of cached segments."),
        most_held_bytes: Peak("snoop_most_held_bytes", "bytes", "Maximum of snoop_held_bytes so far."),
        dropped: Counter("snoop_dropped_total", "packets", "Packets that could not be returned to the kernel."),
        restarts: Counter("snoop_restarts_total", "restarts",
            "Times that the agent started without state: after other settings, a pause of the daemon or a fault."),
    }
    /// The counters of the Snoop thread.
    #[derive(Debug, Default)]
    pub(crate) struct SnoopCounters of Counter {}
}

impl Stats {
    /// Sums the threads' counters. Each number is exact; they are not all of the same instant.
    pub(crate) fn sum<'a>(threads: impl IntoIterator<Item = &'a Counters>) -> Self {
        let (mut sum, mut claimed) = (Self::default(), 0);
        for thread in threads {
            let mut stats = thread.read();
            let ended = stats.flows_finished + stats.flows_reset + stats.connects_failed;
            stats.flows_open = stats.flows_total.saturating_sub(ended);
            sum = sum.plus(&stats);
            claimed += thread.held_claimed.get();
        }
        let ended = sum.held_refused + sum.held_forgotten + claimed;
        sum.held_open = sum.held_total.saturating_sub(ended);
        sum
    }

    /// What a successor adds to its own counters. It counts the flows that it takes over itself.
    pub(crate) fn carried_over(self) -> Self {
        Self {
            flows_total: self.flows_total - self.flows_open,
            held_total: self.held_total - self.held_open,
            ..self.without_gauges()
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
        let left = seen.carried_over();
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
