//! A worker's pool of relay buffers, which flows hold while their data is in flight.

use crate::config::RelayKind;
use crate::relay::{Buffer, Pipe, RelayBuffer};

/// The most idle buffers that the pool keeps; others are freed.
pub(crate) const KEPT: usize = 64;

/// A worker's idle buffers. The last one released is acquired first: its memory is still in the processor's
/// cache.
#[derive(Debug)]
pub(crate) struct BufferPool {
    kind: RelayKind,
    buffers: Vec<Buffer>,
    pipes: Vec<Pipe>,
    /// Buffers that flows hold.
    in_use: usize,
    /// The most bytes that a buffer is filled with.
    pub(crate) most: usize,
}

impl BufferPool {
    pub(crate) fn new(kind: RelayKind) -> Self {
        Self { kind, buffers: Vec::new(), pipes: Vec::new(), in_use: 0, most: usize::MAX }
    }

    /// The kind that is configured for bulk data.
    pub(crate) fn kind(&self) -> RelayKind {
        self.kind
    }

    /// Acquires an empty buffer of the kind that is configured for bulk data.
    pub(crate) fn acquire_for_bulk(&mut self) -> RelayBuffer {
        match self.kind {
            RelayKind::Copy => self.acquire_buffer(),
            RelayKind::Splice => self.acquire_pipe(),
        }
    }

    /// Acquires an empty memory buffer, whatever kind is configured.
    pub(crate) fn acquire_buffer(&mut self) -> RelayBuffer {
        self.in_use += 1;
        RelayBuffer::Buffer(self.buffers.pop().unwrap_or_else(Buffer::new))
    }

    /// A pipe needs two descriptors; if none are left, a memory buffer takes its place.
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

    /// Releases a buffer. One that still holds data, of a flow that was reset, is freed.
    pub(crate) fn release(&mut self, buffer: RelayBuffer) {
        self.in_use -= 1;
        match buffer {
            RelayBuffer::Buffer(buffer) if buffer.is_empty() => keep(&mut self.buffers, buffer),
            RelayBuffer::Pipe(pipe) if pipe.is_empty() => keep(&mut self.pipes, pipe),
            RelayBuffer::Buffer(_) | RelayBuffer::Pipe(_) => {}
        }
    }

    /// Counts buffers that flows have brought with them; they are released like any others.
    pub(crate) fn count_as_acquired(&mut self, buffers: usize) {
        self.in_use += buffers;
    }

    /// Counts buffers that have left with their flows.
    pub(crate) fn count_as_released(&mut self, buffers: usize) {
        self.in_use = self.in_use.saturating_sub(buffers);
    }

    /// Buffers that flows hold.
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
    fn a_released_buffer_is_acquired_again() {
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
