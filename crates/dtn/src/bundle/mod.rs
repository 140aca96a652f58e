//! Bundles: their blocks, their IDs, and their encoding (RFC 9171 §4).
//!
//! A bundle is on the wire a *head*, all blocks up to the head of the payload's byte string
//! ([`Bundle::head`]), the payload's bytes, and a *tail* ([`Bundle::tail`]); [`Decoder`] takes it in pieces
//! of any size. The payload is never in memory as a whole.
//!
//! **Blocks** that this node knows are fields of [`Bundle`]: previous node (type 6), bundle age (7), hop
//! count (10), and two blocks of our own, in the range for private use. *Priority*, type 224, is the unsigned
//! number 0 (bulk), 1 (normal) or 2 (expedited), and written where the priority is not normal. *File name*,
//! type 225, is the text of a [`FileName`]. Both have the flag "must be replicated in every fragment" and no
//! other, so that other nodes pass them on unread. Hop count and age that this node adds have that flag too.
//!
//! **What came is passed on as it came**: the primary block, and blocks of other types, byte for byte, with
//! their numbers and flags. What is known is written anew, under its number and with its flags and kind of
//! CRC. The bundle's array is always written with a break at its end, as RFC 9171 §4.1 says.
//!
//! **What this node makes** has a CRC-32C in every block, but for those that [`security`] protects. It takes
//! blocks with either CRC or none, the primary block too, which RFC 9171 §4.3.1 does not allow without BPSec,
//! because other nodes send it so. A fragment's primary block has the kind of CRC that the whole bundle's has,
//! so that it can be joined to the same bytes again.
//!
//! **What is refused**, with [`Malformed`], beyond what RFC 9171 forbids: heads longer than [`HEAD_LIMIT`] or
//! with more than [`BLOCKS_LIMIT`] blocks, payloads longer than files can be, tags, and block flags above 255. Arrays may have breaks at their ends, the
//! bundle's a length, and numbers more bytes than they need. A known block whose content is not understood,
//! such as a hop limit of 300, is treated by its flags as an unknown one is, with another reason.
//!
//! **Anonymous bundles**, whose source is `dtn:none`, have no identity: two of them with the same timestamp are
//! two bundles, and none is fragmented (RFC 9171 §4.2.3).

mod blocks;
mod cbor;
mod decode;
mod file_name;
mod forward;
pub mod fragment;
mod head;
mod id;
pub mod report;
pub mod security;
mod wire;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{DtnTime, Eid};

pub use blocks::Unprocessable;
pub use decode::{BLOCKS_LIMIT, Decoder, HEAD_LIMIT, Malformed, Piece, Problem};
pub use file_name::{FileName, FileNameError};
pub use forward::HopLimitExceeded;
pub use id::{BundleId, BundleIdError};
pub use wire::Tail;

use blocks::ReceivedForm;

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
    /// The default.
    #[default]
    Normal,
    /// Before all others.
    Expedited,
}

/// The events that the source wants status reports on (RFC 9171 §4.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReportRequests {
    /// A node has received it.
    pub reception: bool,
    /// A node has forwarded it.
    pub forwarding: bool,
    /// An application has it.
    pub delivery: bool,
    /// A node has deleted it.
    pub deletion: bool,
}

/// The hop limit and the hop count (RFC 9171 §4.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HopCount {
    /// The limit, 1–255.
    pub limit: u8,
    /// Hops so far.
    pub count: u8,
}

/// The integrity check of a block (RFC 9171 §4.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrcType {
    /// None.
    #[default]
    None = 0,
    /// CRC-16/X-25.
    Crc16 = 1,
    /// CRC-32C.
    Crc32 = 2,
}

/// A bundle without its payload. Two are equal if their fields are, and they are written alike.
#[derive(Debug, Clone, Eq)]
pub struct Bundle {
    /// Its ID.
    pub id: BundleId,
    /// The destination.
    pub destination: Eid,
    /// The endpoint that gets status reports; [`Eid::None`] if none does.
    pub report_to: Eid,
    /// Its lifetime from its creation on, in whole milliseconds.
    pub lifetime: Duration,
    /// Its payload is an administrative record (RFC 9171 §6).
    pub is_admin: bool,
    /// It must not be fragmented.
    pub must_not_fragment: bool,
    /// The events to report.
    pub reports: ReportRequests,
    /// Reports have to contain times.
    pub report_times: bool,
    /// Its priority. On the wire it is a private extension block that other nodes forward unread.
    pub priority: Priority,
    /// The name of the file that the payload was. On the wire it is a private extension block, too.
    pub file_name: Option<FileName>,
    /// Its hop limit and count, if it has any.
    pub hops: Option<HopCount>,
    /// How old it was when it was received, or made.
    pub age: Option<Duration>,
    /// The node that it came from.
    pub previous_node: Option<Eid>,
    /// Bytes of payload in this bundle or fragment.
    pub payload_len: u64,
    /// The CRC of the primary block.
    pub primary_crc: CrcType,
    /// The CRC of the payload block.
    pub payload_crc: CrcType,
    /// The rest of its received form.
    received: ReceivedForm,
}

impl Bundle {
    /// A bundle with an empty payload, of normal priority, about which nothing is reported and whose blocks
    /// have CRC-32C. Without a creation time it has an age, as RFC 9171 §4.4.2 asks, and without a source it
    /// must not be fragmented (§4.2.3).
    pub fn new(source: Eid, created: DtnTime, sequence: u64, destination: Eid, lifetime: Duration) -> Self {
        let is_anonymous = source == Eid::None;
        Self {
            id: BundleId { source, created, sequence, fragment: None },
            destination,
            report_to: Eid::None,
            lifetime,
            is_admin: false,
            must_not_fragment: is_anonymous,
            reports: ReportRequests::default(),
            report_times: false,
            priority: Priority::default(),
            file_name: None,
            hops: None,
            age: (created == DtnTime::UNKNOWN).then_some(Duration::ZERO),
            previous_node: None,
            payload_len: 0,
            primary_crc: CrcType::Crc32,
            payload_crc: CrcType::Crc32,
            received: ReceivedForm::default(),
        }
    }
}

impl PartialEq for Bundle {
    fn eq(&self, other: &Self) -> bool {
        fn addresses(bundle: &Bundle) -> impl PartialEq {
            let Bundle { id, destination, report_to, previous_node, file_name, .. } = bundle.clone();
            (id, destination, report_to, previous_node, file_name)
        }
        fn settings(bundle: &Bundle) -> impl PartialEq {
            let Bundle { lifetime, is_admin, must_not_fragment, reports, report_times, .. } = *bundle;
            let Bundle { priority, hops, age, payload_len, primary_crc, payload_crc, .. } = *bundle;
            let flags = (is_admin, must_not_fragment, reports, report_times);
            (flags, primary_crc, payload_crc, lifetime, priority, hops, age, payload_len)
        }
        addresses(self) == addresses(other)
            && settings(self) == settings(other)
            && self.head() == other.head()
    }
}

#[cfg(test)]
mod tests;

/// The body of the fuzz target `cbor`; see `fuzz/README.md`.
///
/// # Panics
/// An item or an endpoint that was read and written again is another, or items in pieces are others than
/// those of the whole.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_cbor(data: &[u8]) {
    use cbor::{Reader, Walker, item, put, put_endpoint};
    let mut rest = data;
    while let Ok(Some((found, length))) = item(rest) {
        let mut again = Vec::new();
        put(&mut again, [found]);
        assert_eq!(item(&again), Ok(Some((found, again.len()))));
        assert!(again.len() <= length, "it is written in as few bytes as it needs");
        rest = &rest[length..];
    }
    if let Ok(endpoint) = Reader::new(data).endpoint() {
        let mut again = Vec::new();
        put_endpoint(&mut again, &endpoint);
        assert_eq!(Reader::new(&again).endpoint(), Ok(endpoint));
    }
    let items = |size: usize| {
        let (mut walker, mut found, mut failure) = (Walker::default(), Vec::new(), None);
        'all: for mut piece in data.chunks(size) {
            while !piece.is_empty() {
                match walker.step(piece) {
                    Ok((taken, start)) => {
                        found.extend(start);
                        piece = &piece[taken..];
                    }
                    Err(error) => {
                        failure = Some(error);
                        break 'all;
                    }
                }
            }
        }
        (found, failure)
    };
    assert_eq!(items(1), items(data.len().max(1)));
}
