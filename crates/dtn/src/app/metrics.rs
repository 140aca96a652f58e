//! The status of a node as metrics for Prometheus.
//!
//! What the node counts is declared in [`Counts`], the rest here.

use bentpipe_metrics::{Exposition, Metric};

use crate::node::{Counts, NodeStatus, PeerStatus};

/// The beginning of each metric's name.
const PREFIX: &str = "bentpipe_dtn";

const NODE: &[Metric<NodeStatus>] = &[
    Metric::gauge("uptime_seconds", "seconds", "Time since the node started.", |s| Some(s.uptime_s)),
    Metric::gauge("store_bundles", "bundles", "Bundles in the store.", |s| Some(s.store.bundles as f64)),
    Metric::gauge("store_payload_bytes", "bytes", "Payload in the store.", |s| {
        Some(s.store.payload_bytes as f64)
    }),
    Metric::gauge("store_quota_bytes", "bytes", "Limit of payload in the store.", |s| {
        Some(s.store.quota_bytes as f64)
    }),
    Metric::gauge("waiting_queued", "bundles", "Bundles that wait for a session with the next node.", |s| {
        Some(s.waiting.queued as f64)
    }),
    Metric::gauge("waiting_parked", "bundles", "Bundles that wait for a contact or a route.", |s| {
        Some(s.waiting.parked as f64)
    }),
    Metric::gauge("waiting_in_hand", "bundles", "Bundles that wait for an acknowledgement.", |s| {
        Some(s.waiting.in_hand as f64)
    }),
    Metric::gauge("waiting_deliverable", "bundles", "Bundles that wait for an application.", |s| {
        Some(s.waiting.deliverable as f64)
    }),
    Metric::gauge(
        "waiting_fragments",
        "fragments",
        "Fragments that wait for the rest of their bundle.",
        |s| Some(s.waiting.fragments as f64),
    ),
];

const PEERS: &[Metric<PeerStatus>] = &[
    Metric::gauge("peer_sessions", "sessions", "Established sessions with a peer.", |p| {
        Some(p.sessions as f64)
    }),
    Metric::gauge("peer_queued", "bundles", "Bundles in the queue to a peer.", |p| Some(p.queued as f64)),
    Metric::gauge("peer_ltp_silent", "", "Whether a peer gives no answer by LTP.", |p| {
        p.ltp.map(|ltp| f64::from(u8::from(ltp.silent)))
    }),
    Metric::counter("peer_ltp_segments_total", "segments", "Segments of data sent to a peer by LTP.", |p| {
        p.ltp.map(|ltp| ltp.segments as f64)
    }),
    Metric::counter("peer_ltp_repeated_total", "segments", "Those of them that were sent again.", |p| {
        p.ltp.map(|ltp| ltp.repeated as f64)
    }),
    Metric::counter(
        "peer_ltp_timeouts_total",
        "timeouts",
        "Checkpoints and reports that a peer has not answered in time.",
        |p| p.ltp.map(|ltp| ltp.timeouts as f64),
    ),
    Metric::counter(
        "peer_ltp_without_memory_total",
        "segments",
        "Segments of data from a peer that were dropped for want of memory.",
        |p| p.ltp.map(|ltp| ltp.without_memory as f64),
    ),
    Metric::counter(
        "peer_ltp_not_authentic_total",
        "segments",
        "Segments from a peer's address that were dropped because they are not authentic.",
        |p| p.ltp.map(|ltp| ltp.not_authentic as f64),
    ),
];

/// All metrics at one moment.
pub(crate) fn text(status: &NodeStatus) -> String {
    let mut exposition = Exposition::default();
    exposition.add(Counts::METRICS, &status.totals);
    exposition.add(NODE, status);
    let peers: Vec<_> = status.peers.iter().map(|peer| (vec![("peer", peer.peer.clone())], peer)).collect();
    exposition.add_each(PEERS, &peers);
    exposition.encode(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_metric_as_it_is_declared() {
        let mut rows = String::new();
        bentpipe_metrics::table(&mut rows, PREFIX, Counts::METRICS);
        bentpipe_metrics::table(&mut rows, PREFIX, NODE);
        bentpipe_metrics::table(&mut rows, PREFIX, PEERS);
        let page = include_str!("../../../../docs/metrics.md");
        assert!(page.contains(&rows), "the rows of docs/metrics.md should be:\n{rows}");
    }
}
