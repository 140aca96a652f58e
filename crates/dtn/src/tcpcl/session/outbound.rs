//! Outgoing transfers: IDs, segments, and acknowledgements (RFC 9174 §5.2).

use std::collections::BTreeMap;

use crate::convergence::BundleHandle;
use crate::tcpcl::message::{SegmentFlags, SegmentHead, TransferExtensions};

/// The most unacknowledged transfers; no other begins before one is acknowledged. Each takes about 100 bytes.
pub const MAX_UNACKNOWLEDGED: usize = 65_536;

/// A segment's data, which the driver has to supply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextSegment {
    /// Bytes.
    pub len: usize,
    /// It is the last of its transfer.
    pub end: bool,
}

/// The meaning of a peer's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// A part of a transfer has arrived.
    Progress,
    /// The outcome of this transfer is known.
    Fate(BundleHandle),
    /// A segment of a refused transfer, which was on its way, is refused, too (RFC 9174 §5.2.4).
    Expected,
    /// The outcome was known before: dtn7-rs acknowledges transfers that it then refuses.
    Late,
}

#[derive(Debug)]
struct Transfer {
    handle: BundleHandle,
    len: u64,
    sent: u64,
    acked: u64,
    /// Unacknowledged segments.
    segments: u64,
}

/// The most refused transfers whose other segments may be answered without being counted.
const MAX_REFUSED: usize = 1024;

/// The outgoing transfers.
#[derive(Debug)]
pub(super) struct Outbound {
    segment_size: u64,
    transfer_mru: u64,
    next_id: u64,
    current: Option<u64>,
    transfers: BTreeMap<u64, Transfer>,
    /// Refused transfers, and how many of their segments have no answer yet.
    refused: BTreeMap<u64, u64>,
}

impl Outbound {
    pub(super) fn new(segment_size: usize) -> Self {
        Self {
            segment_size: segment_size.max(1) as u64,
            transfer_mru: 0,
            next_id: 0,
            current: None,
            transfers: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Sets the peer's limits, bytes.
    pub(super) fn agree(&mut self, segment_mru: u64, transfer_mru: u64) {
        self.segment_size = self.segment_size.min(segment_mru).max(1);
        self.transfer_mru = transfer_mru;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    pub(super) fn may_begin(&self) -> Option<u64> {
        let room = self.current.is_none() && self.transfers.len() < MAX_UNACKNOWLEDGED;
        room.then_some(self.transfer_mru)
    }

    pub(super) fn begin(&mut self, handle: BundleHandle, len: u64) {
        // RFC 9174 §5.2.1: from zero, by one. 64 bits last longer than any session.
        let id = self.next_id;
        self.next_id += 1;
        self.current = Some(id);
        self.transfers.insert(id, Transfer { handle, len, sent: 0, acked: 0, segments: 0 });
    }

    pub(super) fn sending(&self) -> Option<BundleHandle> {
        self.current.and_then(|id| self.transfers.get(&id)).map(|transfer| transfer.handle)
    }

    pub(super) fn segment(&mut self) -> Option<(SegmentHead, NextSegment)> {
        let id = self.current?;
        let transfer = self.transfers.get_mut(&id)?;
        let len = (transfer.len - transfer.sent).min(self.segment_size);
        let start = transfer.sent == 0;
        let end = transfer.sent + len == transfer.len;
        // RFC 9174 §5.2.5.1: a transfer of one segment says its length twice otherwise.
        let length = (start && !end).then_some(transfer.len);
        transfer.sent += len;
        transfer.segments += 1;
        if end {
            self.current = None;
        }
        let extensions = TransferExtensions { length, ..TransferExtensions::default() };
        // At most the segment size, which is a usize.
        let flags = SegmentFlags::of(start, end);
        Some((SegmentHead { flags, id, extensions, len }, NextSegment { len: len as usize, end }))
    }

    /// An XFER_ACK. Its flags are ignored; dtn7-rs sets none.
    pub(super) fn on_ack(&mut self, id: u64, len: u64) -> Result<Answer, String> {
        let Some(transfer) = self.transfer(id, "acknowledged")? else { return Ok(Answer::Late) };
        if len > transfer.sent {
            return Err(format!(
                "acknowledged {len} bytes of transfer {id}, of which {} were sent",
                transfer.sent
            ));
        }
        if len < transfer.acked {
            return Err(format!("acknowledged {len} bytes of transfer {id} after {}", transfer.acked));
        }
        if transfer.segments == 0 {
            return Err(format!("acknowledged transfer {id} more often than it got segments"));
        }
        transfer.segments -= 1;
        transfer.acked = len;
        if len < transfer.len {
            return Ok(Answer::Progress);
        }
        let handle = transfer.handle;
        self.transfers.remove(&id);
        Ok(Answer::Fate(handle))
    }

    /// An XFER_REFUSE.
    pub(super) fn on_refuse(&mut self, id: u64) -> Result<Answer, String> {
        let Some(transfer) = self.transfer(id, "refused")? else {
            return Ok(if self.is_of_refused(id) { Answer::Expected } else { Answer::Late });
        };
        let (handle, others) = (transfer.handle, transfer.segments.saturating_sub(1));
        self.transfers.remove(&id);
        if others > 0 {
            self.refused.insert(id, others);
        }
        if self.refused.len() > MAX_REFUSED {
            self.refused.pop_first();
        }
        if self.current == Some(id) {
            self.current = None;
        }
        Ok(Answer::Fate(handle))
    }

    /// Whether another segment of a refused transfer may be answered. It is answered now.
    fn is_of_refused(&mut self, id: u64) -> bool {
        let Some(left) = self.refused.get_mut(&id) else { return false };
        *left -= 1;
        if *left == 0 {
            self.refused.remove(&id);
        }
        true
    }

    /// An unacknowledged transfer; `None` if its outcome is known.
    fn transfer(&mut self, id: u64, did: &str) -> Result<Option<&mut Transfer>, String> {
        if id >= self.next_id {
            return Err(format!("{did} transfer {id}, which was not sent"));
        }
        Ok(self.transfers.get_mut(&id))
    }

    pub(super) fn abandon(&mut self) -> Vec<BundleHandle> {
        self.current = None;
        std::mem::take(&mut self.transfers).into_values().map(|transfer| transfer.handle).collect()
    }
}
