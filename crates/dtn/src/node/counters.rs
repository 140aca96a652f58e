//! What the node counts: every counter's declaration.

use bentpipe_metrics::{SharedCounter, metrics};
use serde::Serialize;

use super::Node;

metrics! {
    /// What the node has done since it started.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
    pub struct Counts {
        originated: Counter("originated_total", "bundles", "Bundles sent by applications of this node."),
        received: Counter("received_total", "bundles", "Bundles received from other nodes."),
        received_bytes: Counter("received_payload_bytes_total", "bytes", "Payload received from other \
            nodes."),
        sent: Counter("sent_total", "bundles", "Bundles acknowledged by other nodes."),
        sent_bytes: Counter("sent_payload_bytes_total", "bytes", "Payload acknowledged by other nodes."),
        delivered: Counter("delivered_total", "bundles", "Bundles acknowledged by applications."),
        delivered_bytes: Counter("delivered_payload_bytes_total", "bytes", "Payload acknowledged by \
            applications."),
        duplicates: Counter("duplicates_total", "bundles", "Received bundles that this node already had."),
        refused: Counter("refused_total", "bundles", "Bundles refused because they were malformed or there \
            was no room."),
        given_up: Counter("given_up_total", "bundles",
            "Deleted bundles: expired, beyond their hop limit, or deleted by an operator."),
        unknown_records: Counter("unknown_records_total", "records",
            "Administrative records that are no status reports, which nothing here can read."),
        security_failed: Counter("security_failed_total", "bundles",
            "Bundles deleted because a security operation on them was missing, false or not supported."),
        strangers: Counter("stranger_datagrams_total", "datagrams",
            "Datagrams of LTP and of bundles over UDP that were ignored: their address is that of no peer."),
        overrun: Counter("overrun_datagrams_total", "datagrams",
            "Datagrams of peers that were dropped because too many waited for this node."),
        sessions: Counter("sessions_total", "sessions", "Established sessions with other nodes."),
        broken_off: Counter("broken_off_total", "transfers",
            "Transfers interrupted by the end of their session; they are sent again."),
    }
    /// The counters.
    #[derive(Debug, Default)]
    pub(crate) struct Counters of SharedCounter {}
}

impl Node {
    /// The counters.
    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }
}
