//! The segments of one flow that have left for the terminal and are not acknowledged.

use std::collections::VecDeque;

use bentpipe_units::Time;

use super::super::Packet;
use super::super::packet::is_before;
use super::overflow::DelayClass;

/// A segment that is kept.
#[derive(Debug, Clone)]
pub(super) struct CachedSegment<P> {
    pub(super) seq: u32,
    /// The sequence number behind its last.
    pub(super) end: u32,
    /// None once it has been selectively acknowledged. RFC 2018 §8 lets a receiver take that back; then it is the sender's care.
    pub(super) packet: Option<P>,
    /// When its latest copy went out, and as which of all the flow's segments.
    pub(super) sent_at: Time,
    pub(super) order: u64,
    /// How often Snoop has sent it again.
    pub(super) resent: u32,
    /// It has been sent again as often as it may be: its loss is the sender's care.
    pub(super) given_up: bool,
    /// Its sender has sent it again: it knows of the loss, or suspects it, and the rest is its care.
    pub(super) by_sender: bool,
    pub(super) sacked: bool,
    /// The queueing that it met, if it has arrived.
    pub(super) delay: DelayClass,
    /// It is to be sent again and waits for its turn: that copy, of which `order` is the number, has not left yet.
    pub(super) waiting: bool,
    /// Copies of it that went out beside the latest one: each that arrives is a duplicate at the receiver.
    pub(super) extra: u32,
}

impl<P> CachedSegment<P> {
    /// It went out once.
    pub(super) fn is_original(&self) -> bool {
        self.resent == 0 && !self.by_sender
    }
}

impl<P: Packet> CachedSegment<P> {
    /// IP bytes that it takes of the cache.
    pub(super) fn held_bytes(&self) -> u64 {
        self.packet.as_ref().map_or(0, |packet| packet.ip_length() as u64)
    }
}

/// CachedSegment segments in the order of their sequence numbers, without overlaps.
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
        let at = self.place_of(segment.seq);
        self.0.insert(at, segment);
    }

    /// Takes out the first segment if it lies wholly before `ack`.
    pub(super) fn pop_before(&mut self, ack: u32) -> Option<CachedSegment<P>> {
        let done = !is_before(ack, self.0.front()?.end);
        if done { self.0.pop_front() } else { None }
    }

    /// The segment that begins at or after `seq`, as an index.
    pub(super) fn place_of(&self, seq: u32) -> usize {
        self.0.partition_point(|kept| is_before(kept.seq, seq))
    }

    pub(super) fn get(&self, index: usize) -> Option<&CachedSegment<P>> {
        self.0.get(index)
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut CachedSegment<P>> {
        self.0.get_mut(index)
    }

    /// The segment that begins at `seq`.
    pub(super) fn at_mut(&mut self, seq: u32) -> Option<&mut CachedSegment<P>> {
        let place = self.place_of(seq);
        self.0.get_mut(place).filter(|kept| kept.seq == seq)
    }

    /// Those that share a sequence number with the range.
    pub(super) fn overlapping(
        &mut self,
        first: u32,
        end: u32,
    ) -> impl Iterator<Item = &mut CachedSegment<P>> {
        let from = self.0.partition_point(|kept| !is_before(first, kept.end));
        let to = self.0.partition_point(|kept| is_before(kept.seq, end));
        self.0.range_mut(from..to.max(from))
    }

    /// Gives memory back that is not needed now.
    pub(super) fn shrink(&mut self) {
        self.0.shrink_to_fit();
    }
}
