//! What a worker lends to flows while their data is in flight: buffers or pipes.

use crate::config::RelayKind;
use crate::relay::{Buffer, Pipe, Vessel};

/// Empty vessels that are kept for the next flow; those beyond this number go back to the system.
pub(crate) const KEPT: usize = 64;

/// A worker's empty vessels. The last one returned is lent first: its memory is still in the processor's cache.
#[derive(Debug)]
pub(crate) struct Pool {
    kind: RelayKind,
    buffers: Vec<Buffer>,
    pipes: Vec<Pipe>,
    /// Vessels that are out with flows.
    lent: usize,
    /// Bytes that a vessel is filled with at most.
    most: usize,
}

impl Pool {
    pub(crate) fn new(kind: RelayKind) -> Self {
        Self { kind, buffers: Vec::new(), pipes: Vec::new(), lent: 0, most: usize::MAX }
    }

    /// Fills vessels with no more than this from now on, whatever they could hold.
    pub(crate) fn fill_at_most(&mut self, bytes: usize) {
        self.most = bytes;
    }

    /// Bytes that a vessel may be filled with.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Lends an empty vessel of the kind that is configured for bulk.
    pub(crate) fn lend_for_bulk(&mut self) -> Vessel {
        match self.kind {
            RelayKind::Copy => self.lend_buffer(),
            RelayKind::Splice => self.lend_pipe(),
        }
    }

    /// Lends an empty buffer, whatever kind is configured.
    pub(crate) fn lend_buffer(&mut self) -> Vessel {
        self.lent += 1;
        Vessel::Buffer(self.buffers.pop().unwrap_or_else(Buffer::new))
    }

    /// A pipe needs two descriptors; where there are none left a buffer does its work.
    fn lend_pipe(&mut self) -> Vessel {
        match self.pipes.pop().map_or_else(Pipe::new, Ok) {
            Ok(pipe) => {
                self.lent += 1;
                Vessel::Pipe(pipe)
            }
            Err(error) => {
                tracing::debug!(%error, "cannot make a pipe; this data is copied");
                self.lend_buffer()
            }
        }
    }

    /// Takes a vessel back. One that still holds data, of a flow that was reset, is not lent again.
    pub(crate) fn give_back(&mut self, vessel: Vessel) {
        self.lent -= 1;
        match vessel {
            Vessel::Buffer(buffer) if buffer.is_empty() => keep(&mut self.buffers, buffer),
            Vessel::Pipe(pipe) if pipe.is_empty() => keep(&mut self.pipes, pipe),
            Vessel::Buffer(_) | Vessel::Pipe(_) => {}
        }
    }

    /// Takes note of so many vessels that flows have brought with them, and that will come back like any other.
    pub(crate) fn count_as_lent(&mut self, vessels: usize) {
        self.lent += vessels;
    }

    /// Takes note of so many vessels that have gone with their flows.
    pub(crate) fn count_as_gone(&mut self, vessels: usize) {
        self.lent = self.lent.saturating_sub(vessels);
    }

    /// Vessels that are out with flows.
    pub(crate) fn lent(&self) -> usize {
        self.lent
    }
}

fn keep<T>(empty: &mut Vec<T>, vessel: T) {
    if empty.len() < KEPT {
        empty.push(vessel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_vessel_is_lent_again() {
        let mut pool = Pool::new(RelayKind::Copy);
        let (first, second) = (pool.lend_for_bulk(), pool.lend_for_bulk());
        assert_eq!(pool.lent(), 2);
        pool.give_back(first);
        pool.give_back(second);
        assert_eq!((pool.lent(), pool.buffers.len()), (0, 2));
        let _again = pool.lend_for_bulk();
        assert_eq!((pool.lent(), pool.buffers.len()), (1, 1));
    }

    #[test]
    fn a_burst_of_flows_does_not_keep_its_memory() {
        let mut pool = Pool::new(RelayKind::Copy);
        let burst: Vec<Vessel> = (0..KEPT + 10).map(|_| pool.lend_for_bulk()).collect();
        burst.into_iter().for_each(|vessel| pool.give_back(vessel));
        assert_eq!((pool.lent(), pool.buffers.len()), (0, KEPT));
    }
}
