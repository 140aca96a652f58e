//! When packets leave a transmitter that sends one after the other, and which of them its queue takes.

use crate::scenario::Direction;
use crate::steps::{BYTE, Service};

/// A FIFO in front of a transmitter whose rate may change.
#[derive(Debug)]
pub(crate) struct Transmitter<'a> {
    service: Option<&'a Service>,
    /// Wire bytes that may wait or be sent.
    limit: Option<u64>,
    /// What has been done when the last packet has left.
    busy_until: u128,
}

impl<'a> Transmitter<'a> {
    pub(crate) fn new(direction: &'a Direction) -> Self {
        Self { service: direction.service.as_ref(), limit: direction.queue, busy_until: 0 }
    }

    /// The work that is left of the packets before, at a time.
    pub(crate) fn backlog(&self, now: u64) -> u128 {
        self.service.map_or(0, |service| self.busy_until.saturating_sub(service.until(now)))
    }

    /// Whether there is room for a packet behind a backlog. An idle transmitter takes any packet.
    pub(crate) fn has_room(&self, backlog: u128, wire_bytes: u64) -> bool {
        let fits = |limit: u64| backlog + u128::from(wire_bytes) * BYTE <= u128::from(limit) * BYTE;
        self.service.is_none() || backlog == 0 || self.limit.is_none_or(fits)
    }

    /// Takes a packet; says when its last bit leaves.
    pub(crate) fn send(&mut self, now: u64, wire_bytes: u64) -> u64 {
        let Some(service) = self.service else { return now };
        self.busy_until = self.busy_until.max(service.until(now)) + u128::from(wire_bytes) * BYTE;
        if wire_bytes == 0 { now } else { service.time_of(self.busy_until) }
    }

    /// Wire bytes that wait at most.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit
    }
}

/// Bytes of work; a byte partly sent counts.
pub(crate) fn in_bytes(work: u128) -> u64 {
    u64::try_from(work.div_ceil(BYTE)).unwrap_or(u64::MAX)
}
