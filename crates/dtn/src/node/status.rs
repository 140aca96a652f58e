//! The status document of a node.

use serde::Serialize;

use super::peers::LtpStatus;
use super::{Counts, Node, clock};

/// The status of a node.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Its endpoint.
    pub node: String,
    /// Time since it started, s.
    pub uptime_s: f64,
    /// The store.
    pub store: StoreStatus,
    /// Numbers of waiting bundles.
    pub waiting: WaitingStatus,
    /// The peers.
    pub peers: Vec<PeerStatus>,
    /// The counters since it started.
    pub totals: Counts,
}

/// The contents of the store.
#[derive(Debug, Clone, Serialize)]
pub struct StoreStatus {
    /// Bundles.
    pub bundles: usize,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// Its quota of payload bytes.
    pub quota_bytes: u64,
}

/// Numbers of bundles by what they wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct WaitingStatus {
    /// For a session with the next node.
    pub queued: usize,
    /// For a contact or a route.
    pub parked: usize,
    /// For an acknowledgement of a node or of an application.
    pub in_hand: usize,
    /// For an application.
    pub deliverable: usize,
    /// Fragments for others of their bundle.
    pub fragments: usize,
}

/// The status of a peer.
#[derive(Debug, Clone, Serialize)]
pub struct PeerStatus {
    /// Its endpoint.
    pub peer: String,
    /// The convergence layer by which it is reached: `tcpcl`, `ltp` or `udp`.
    pub layer: &'static str,
    /// Established sessions with it; one of a layer without sessions.
    pub sessions: usize,
    /// Its address in the last session, or in an attempt to connect since then; a name is resolved.
    pub address: Option<String>,
    /// Whether it has to authenticate itself by a certificate.
    pub encrypted: bool,
    /// Whether the contact plan says that it can be reached now.
    pub open: bool,
    /// Bundles that wait to go to it.
    pub queued: usize,
    /// The exchange by LTP, if it is reached by that.
    pub ltp: Option<LtpStatus>,
    /// The error that ended the last session or prevents a new one.
    #[serde(rename = "trouble")]
    pub last_error: Option<String>,
}

/// A bundle in the store.
#[derive(Debug, Clone, Serialize)]
pub struct BundleStatus {
    /// Its number in the store.
    pub key: u64,
    /// Its name.
    pub id: String,
    /// The destination.
    pub destination: String,
    /// Bytes of payload.
    pub payload_bytes: u64,
    /// How urgent it is.
    pub priority: crate::bundle::Priority,
    /// How long it is still of use, seconds.
    pub expires_in_s: f64,
    /// Its state.
    pub state: &'static str,
}

impl Node {
    /// The status of the node.
    pub fn status(&self) -> NodeStatus {
        let now = clock();
        let usage = self.store().usage();
        let queue = self.queue();
        let peer = |peer: &super::Peer| PeerStatus {
            peer: peer.settings.id.to_string(),
            layer: peer.settings.layer(),
            sessions: peer.session_count(),
            address: peer.address().map(|address| address.to_string()),
            encrypted: peer.requires_tls,
            open: queue.is_open(&peer.settings.id, now),
            queued: queue.queued_for(&peer.settings.id),
            ltp: peer.ltp(),
            last_error: peer.last_error(),
        };
        NodeStatus {
            node: self.0.me.to_string(),
            uptime_s: now.since(self.0.started).as_secs_f64(),
            store: StoreStatus {
                bundles: usage.bundles,
                payload_bytes: usage.bytes.get(),
                quota_bytes: usage.quota.get(),
            },
            waiting: queue.waiting(),
            peers: self.0.peers.values().map(peer).collect(),
            totals: self.0.counters.read(),
        }
    }

    /// The first bundles of the store, in the order of arrival.
    pub fn bundles(&self, most: usize) -> Vec<BundleStatus> {
        let now = clock();
        let queue = self.queue();
        let status = |(record, state): (&crate::store::Record, &'static str)| BundleStatus {
            key: record.key.0,
            id: record.bundle.id.to_string(),
            destination: record.bundle.destination.to_string(),
            payload_bytes: record.bundle.payload_len,
            priority: record.bundle.priority,
            expires_in_s: record.expires.since(now).as_secs_f64(),
            state,
        };
        queue.iter().take(most).map(status).collect()
    }
}
