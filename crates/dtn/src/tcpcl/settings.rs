//! The settings of a session, and how it ended.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use super::tls::Tls;
use crate::Eid;

/// The side that connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This node; it is the TLS client.
    Active,
    /// The peer.
    Passive,
}

/// The settings of a session.
#[derive(Debug, Clone)]
pub struct SessionSettings {
    /// This node.
    pub node: Eid,
    /// The keepalive interval that is proposed, whole seconds up to 65,535; the smaller proposal counts, and
    /// zero turns keepalives and the detection of dead peers off. dtn7-rs ends a session at once where it
    /// gets zero.
    pub keepalive: Duration,
    /// The longest data of a segment that is taken, bytes. It costs no memory.
    pub segment_mru: u64,
    /// The longest transfer that is taken, bytes.
    pub transfer_mru: u64,
    /// The longest data of a segment that is sent, bytes; a peer's MRU may make it smaller. A session has one
    /// buffer of this size, and an acknowledgement waits until the segment that is being written is out.
    pub segment_size: usize,
    /// Whether and how TLS is spoken.
    pub tls: Tls,
    /// Configured facts about single peers.
    pub peers: HashMap<Eid, PeerOverride>,
    /// The expected peer; `None`, as on the passive side, accepts every peer that the agent admits.
    pub expected_peer: Option<Eid>,
    /// Overlook what [`PeerOverride::lenient`] does, of every peer.
    pub lenient: bool,
}

/// Configured facts that replace what a peer announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerOverride {
    /// The longest data of a segment that it really takes, bytes.
    pub segment_mru: Option<u64>,
    /// The longest transfer that it really takes, bytes.
    pub transfer_mru: Option<u64>,
    /// Pay no attention to the transfer lengths that it announces, nor to extension items that are malformed
    /// or marked as critical, nor to segments longer than this node's MRU. dtn7-rs needs none of it as it
    /// comes, and where it is told to refuse known bundles it sends their names as transfer lengths.
    pub lenient: bool,
}

/// The side that ended a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// This node.
    Us,
    /// The peer.
    Peer,
    /// The network.
    Network,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEnd {
    /// The side that ended it.
    pub by: EndedBy,
    /// The reason, a sentence for the log.
    pub reason: String,
    /// Both sides ended it, and no transfer was left.
    pub in_order: bool,
    /// The peer, if it announced its node ID.
    pub peer: Option<Eid>,
}

impl SessionSettings {
    /// Settings that suit most: keepalives each 30 s, segments of 256 KiB, transfers of any length, no TLS.
    pub fn new(node: Eid) -> Self {
        Self {
            node,
            keepalive: Duration::from_secs(30),
            segment_mru: 16 << 20,
            transfer_mru: u64::MAX,
            segment_size: 256 << 10,
            tls: Tls::Off,
            peers: HashMap::new(),
            expected_peer: None,
            lenient: false,
        }
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
