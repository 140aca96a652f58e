//! The segments of one flow that have been sent to the terminal and are not acknowledged.

use std::collections::VecDeque;

use bentpipe_units::Time;

use super::super::Packet;
use super::super::packet::is_before;
use super::overflow::DelayClass;

/// A cached segment.
#[derive(Debug, Clone)]
pub(super) struct CachedSegment<P> {
    pub(super) seq: u32,
    /// The sequence number after its last.
    pub(super) end: u32,
    /// `None` once it has been selectively acknowledged. If the receiver reneges (RFC 2018 §8), the sender
    /// repairs the loss.
    pub(super) packet: Option<P>,
    /// When its latest copy was sent, and the number of that among all transmissions of the flow.
    pub(super) sent_at: Time,
    pub(super) order: u64,
    /// How often Snoop has retransmitted it.
    pub(super) resent: u32,
    /// It has been retransmitted as often as allowed: its loss is left to the sender.
    pub(super) exhausted: bool,
    /// The sender has retransmitted it: it knows of the loss, or suspects it, and repairs it.
    pub(super) by_sender: bool,
    pub(super) sacked: bool,
    /// Its queueing delay, if it has arrived.
    pub(super) delay: DelayClass,
    /// Its retransmission, of which `order` is the number, waits for its turn.
    pub(super) queued: bool,
    /// Copies sent beside the latest one: each that arrives causes a duplicate ACK.
    pub(super) extra: u32,
}

impl<P> CachedSegment<P> {
    /// Whether it was sent only once.
    pub(super) fn is_original(&self) -> bool {
        self.resent == 0 && !self.by_sender
    }
}

impl<P: Packet> CachedSegment<P> {
    /// Its IP bytes in the cache.
    pub(super) fn held_bytes(&self) -> u64 {
        self.packet.as_ref().map_or(0, |packet| packet.ip_length() as u64)
    }
}

/// Cached segments in the order of their sequence numbers, without overlaps.
#[derive(Debug)]
pub(super) struct Segments<P>(VecDeque<CachedSegment<P>>);

impl<P> Segments<P> {
    pub(super) fn new() -> Self {
        Self(VecDeque::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn first(&self) -> Option<&CachedSegment<P>> {
        self.0.front()
    }

    /// Adds a segment that overlaps none.
    pub(super) fn insert(&mut self, segment: CachedSegment<P>) {
        let at = self.index_of(segment.seq);
        self.0.insert(at, segment);
    }

    /// Removes the first segment if it is wholly before `ack`.
    pub(super) fn pop_before(&mut self, ack: u32) -> Option<CachedSegment<P>> {
        let done = !is_before(ack, self.0.front()?.end);
        if done { self.0.pop_front() } else { None }
    }

    /// The index of the first segment that begins at or after `seq`.
    pub(super) fn index_of(&self, seq: u32) -> usize {
        self.0.partition_point(|segment| is_before(segment.seq, seq))
    }

    pub(super) fn get(&self, index: usize) -> Option<&CachedSegment<P>> {
        self.0.get(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut CachedSegment<P>> {
        self.0.get_mut(index)
    }

    /// The segment that begins at `seq`.
    pub(super) fn at_mut(&mut self, seq: u32) -> Option<&mut CachedSegment<P>> {
        let index = self.index_of(seq);
        self.0.get_mut(index).filter(|segment| segment.seq == seq)
    }

    /// The segments that overlap the range.
    pub(super) fn overlapping(
        &mut self,
        first: u32,
        end: u32,
    ) -> impl Iterator<Item = &mut CachedSegment<P>> {
        let from = self.0.partition_point(|segment| !is_before(first, segment.end));
        let to = self.0.partition_point(|segment| is_before(segment.seq, end));
        self.0.range_mut(from..to.max(from))
    }

    /// Frees memory that is not needed now.
    pub(super) fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}
