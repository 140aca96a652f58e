//! What a worker lends to flows while their data is in flight: buffers or pipes.

use crate::config::RelayKind;
use crate::relay::{Buffer, Pipe, RelayBuffer};

/// Empty buffers that are kept for the next flow; those beyond this number go back to the system.
pub(crate) const KEPT: usize = 64;

/// A worker's empty buffers. The last one returned is in_use first: its memory is still in the processor's cache.
#[derive(Debug)]
pub(crate) struct BufferPool {
    kind: RelayKind,
    buffers: Vec<Buffer>,
    pipes: Vec<Pipe>,
    /// Buffers that are out with flows.
    in_use: usize,
    /// Bytes that a buffer is filled with at most.
    most: usize,
}

impl BufferPool {
    pub(crate) fn new(kind: RelayKind) -> Self {
        Self { kind, buffers: Vec::new(), pipes: Vec::new(), in_use: 0, most: usize::MAX }
    }

    /// Fills buffers with no more than this from now on, whatever they could hold.
    pub(crate) fn fill_at_most(&mut self, bytes: usize) {
        self.most = bytes;
    }

    /// Bytes that a buffer may be filled with.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Lends an empty buffer of the kind that is configured for bulk.
    pub(crate) fn acquire_for_bulk(&mut self) -> RelayBuffer {
        match self.kind {
            RelayKind::Copy => self.acquire_buffer(),
            RelayKind::Splice => self.acquire_pipe(),
        }
    }

    /// Lends an empty buffer, whatever kind is configured.
    pub(crate) fn acquire_buffer(&mut self) -> RelayBuffer {
        self.in_use += 1;
        RelayBuffer::Buffer(self.buffers.pop().unwrap_or_else(Buffer::new))
    }

    /// A pipe needs two descriptors; where there are none left a buffer does its work.
    fn acquire_pipe(&mut self) -> RelayBuffer {
        match self.pipes.pop().map_or_else(Pipe::new, Ok) {
            Ok(pipe) => {
                self.in_use += 1;
                RelayBuffer::Pipe(pipe)
            }
            Err(error) => {
                tracing::debug!(%error, "cannot make a pipe; this data is copied");
                self.acquire_buffer()
            }
        }
    }

    /// Takes a buffer back. One that still holds data, of a flow that was reset, is not in_use again.
    pub(crate) fn release(&mut self, buffer: RelayBuffer) {
        self.in_use -= 1;
        match buffer {
            RelayBuffer::Buffer(buffer) if buffer.is_empty() => keep(&mut self.buffers, buffer),
            RelayBuffer::Pipe(pipe) if pipe.is_empty() => keep(&mut self.pipes, pipe),
            RelayBuffer::Buffer(_) | RelayBuffer::Pipe(_) => {}
        }
    }

    /// Takes note of so many buffers that flows have brought with them, and that will come back like any other.
    pub(crate) fn count_as_acquired(&mut self, buffers: usize) {
        self.in_use += buffers;
    }

    /// Takes note of so many buffers that have gone with their flows.
    pub(crate) fn count_as_released(&mut self, buffers: usize) {
        self.in_use = self.in_use.saturating_sub(buffers);
    }

    /// Buffers that are out with flows.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use
    }
}

fn keep<T>(empty: &mut Vec<T>, buffer: T) {
    if empty.len() < KEPT {
        empty.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_vessel_is_lent_again() {
        let mut pool = BufferPool::new(RelayKind::Copy);
        let (first, second) = (pool.acquire_for_bulk(), pool.acquire_for_bulk());
        assert_eq!(pool.in_use(), 2);
        pool.release(first);
        pool.release(second);
        assert_eq!((pool.in_use(), pool.buffers.len()), (0, 2));
        let _again = pool.acquire_for_bulk();
        assert_eq!((pool.in_use(), pool.buffers.len()), (1, 1));
    }

    #[test]
    fn a_burst_of_flows_does_not_keep_its_memory() {
        let mut pool = BufferPool::new(RelayKind::Copy);
        let burst: Vec<RelayBuffer> = (0..KEPT + 10).map(|_| pool.acquire_for_bulk()).collect();
        burst.into_iter().for_each(|buffer| pool.release(buffer));
        assert_eq!((pool.in_use(), pool.buffers.len()), (0, KEPT));
    }
}
