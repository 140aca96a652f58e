//! What of a flow goes to the next process.

use std::net::SocketAddr;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::sight::FlowPhase;

/// A flow. Its descriptors and bytes are places in the [`Estate`](super::Estate).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Deed {
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    pub(crate) dscp: u8,
    /// The names of the satellite legs that the client and the server are on; none is the terrestrial one.
    pub(crate) legs: [Option<String>; 2],
    pub(crate) weight: u16,
    pub(crate) phase: FlowPhase,
    /// The sockets of both sides, client first.
    pub(crate) sockets: [usize; 2],
    /// Whether urgent data stands in their streams.
    pub(crate) urgent: [bool; 2],
    pub(crate) up: ChannelDeed,
    pub(crate) down: ChannelDeed,
    /// Since it was accepted, ms.
    pub(crate) age_ms: u64,
}

/// One direction.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChannelDeed {
    pub(crate) bytes: u64,
    pub(crate) ended: bool,
    pub(crate) shut: bool,
    pub(crate) is_bulk: bool,
    pub(crate) held: Option<VesselDeed>,
}

/// What is between the two sockets.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum VesselDeed {
    /// Bytes of the estate.
    Buffer(Range<usize>),
    /// A pipe with so many bytes in it.
    Pipe { read: usize, write: usize, held: usize },
}
