//! What travels: a bundle's blocks, its name, and its form on the wire (RFC 9171 §4).

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{DtnTime, Eid};

/// The name of a bundle, or of a fragment of one: no two have the same (RFC 9171 §4.2.7).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleId {
    /// The endpoint that made it.
    pub source: Eid,
    /// When it was made, by the source's clock.
    pub created: DtnTime,
    /// Tells apart what was made in the same millisecond, or without a clock.
    pub sequence: u64,
    /// Which part of a bundle it is; `None` is a whole one.
    pub fragment: Option<Fragment>,
}

/// A part of a payload, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fragment {
    /// Where it begins.
    pub offset: u64,
    /// Its length.
    pub len: u64,
    /// The length of the whole payload.
    pub total: u64,
}

/// Which bundles go first where several wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// When nothing else waits.
    Bulk,
    /// What applications get that say nothing.
    #[default]
    Normal,
    /// Before all others.
    Expedited,
}

/// What its source wants to be told about, by status reports (RFC 9171 §4.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReportRequests {
    /// A node has received it.
    pub reception: bool,
    /// A node has passed it on.
    pub forwarding: bool,
    /// An application has it.
    pub delivery: bool,
    /// A node has given it up.
    pub deletion: bool,
}

/// How many nodes a bundle may pass (RFC 9171 §4.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopCount {
    /// At the most, 1–255.
    pub limit: u8,
    /// So far.
    pub count: u8,
}

/// The integrity check of a block (RFC 9171 §4.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrcType {
    /// None.
    #[default]
    None,
    /// CRC-16/X-25.
    Crc16,
    /// CRC-32C.
    Crc32,
}

/// A bundle without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    /// Its name.
    pub id: BundleId,
    /// Who gets it.
    pub destination: Eid,
    /// Who gets reports of it; nobody where [`Eid::None`].
    pub report_to: Eid,
    /// How long it is of use after its creation, to the millisecond.
    pub lifetime: Duration,
    /// Its payload is an administrative record (RFC 9171 §6).
    pub is_admin: bool,
    /// It must travel in one piece.
    pub must_not_fragment: bool,
    /// What is to be reported.
    pub reports: ReportRequests,
    /// Reports are to say when.
    pub report_times: bool,
    /// How urgent it is. On the wire it is an extension block of ours that other nodes pass on unread.
    pub priority: Priority,
    /// How far it may travel.
    pub hops: Option<HopCount>,
    /// How old it was when it was received, or made.
    pub age: Option<Duration>,
    /// The node that it came from last.
    pub previous_node: Option<Eid>,
    /// Bytes of payload in this bundle or fragment.
    pub payload_len: u64,
    /// The check over the payload block.
    pub payload_crc: CrcType,
}

impl fmt::Display for BundleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.source, self.created, self.sequence)?;
        self.fragment.map_or(Ok(()), |part| write!(f, "-{}-{}-{}", part.offset, part.len, part.total))
    }
}
