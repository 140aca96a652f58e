//! What of a flow goes to the next process.

use std::net::SocketAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::telemetry::FlowPhase;

/// A flow. Its descriptors and bytes are places in the [`Snapshot`](super::Snapshot).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FlowSnapshot {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    #[serde(default)]
    pub(crate) dscp: u8,
    /// The names of the satellite legs that the client and the server are on; none is the terrestrial one.
    pub(crate) legs: [Option<String>; 2],
    #[serde(default)]
    pub(crate) weight: u16,
    pub(crate) phase: FlowPhase,
    /// The sockets of both sides, client first.
    pub(crate) sockets: [usize; 2],
    /// Whether urgent data stands in their streams.
    #[serde(default)]
    pub(crate) urgent: [bool; 2],
    pub(crate) up: ChannelSnapshot,
    pub(crate) down: ChannelSnapshot,
    /// Since it was accepted, ms.
    #[serde(default)]
    pub(crate) age_ms: u64,
    #[serde(default)]
    pub(crate) idle: IdleSnapshot,
}

/// For how long nothing has moved, and what was seen when that began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct IdleSnapshot {
    /// Nothing where it has not been looked at yet.
    pub(crate) seconds: Option<u32>,
    pub(crate) bytes: u64,
    pub(crate) unacknowledged: usize,
    pub(crate) segments: Option<u32>,
}

/// Handshakes that were begun with the server before the client is answered, and what became of those before them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PendingSnapshot {
    pub(crate) entries: Vec<EntrySnapshot>,
    /// The oldest first.
    pub(crate) syn_outcomes: Vec<SynOutcomeSnapshot>,
}

/// One of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EntrySnapshot {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The connection to the server; nothing where the server has reset it.
    pub(crate) socket: Option<usize>,
    pub(crate) other_port: bool,
    /// What waits for the server's answer; nothing once there is one.
    pub(crate) held: Option<HeldSynSnapshot>,
    /// Since it was made or, later, answered, ms.
    pub(crate) age_ms: u64,
}

/// A SYN that waits.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HeldSynSnapshot {
    pub(crate) isn: u32,
    /// Bytes of the snapshot.
    pub(crate) packet: Range<usize>,
    /// Since it was repeated last, and between that and the one before, ms.
    pub(crate) last_ms: u64,
    pub(crate) gap_ms: u64,
}

/// What became of a SYN.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SynOutcomeSnapshot {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) isn: u32,
    /// The client was answered; else the SYN has gone on to the server.
    pub(crate) is_answered: bool,
}

/// One direction.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChannelSnapshot {
    pub(crate) bytes: u64,
    pub(crate) ended: bool,
    pub(crate) shut: bool,
    #[serde(default)]
    pub(crate) is_bulk: bool,
    pub(crate) held: Option<RelayBufferSnapshot>,
}

/// What is between the two sockets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RelayBufferSnapshot {
    /// Bytes of the snapshot.
    Buffer(Range<usize>),
    /// A pipe with so many bytes in it.
    Pipe { read: usize, write: usize, held: usize },
}
