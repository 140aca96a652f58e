//! Moving bytes from one socket to the other, in order, holding only what is in flight.

mod copy;
pub(crate) mod pool;
mod splice;

use std::io;

use bentpipe_kernel::paced::PacedSocket;
use rustix::event::epoll::EventFlags;
use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};

use crate::relay::pool::BufferPool;
use crate::snapshot::Fd;

pub(crate) use copy::Buffer;
pub(crate) use splice::Pipe;

/// A read of so many bytes, a full buffer, makes the next one bulk.
const BULK: usize = 64 * 1024;
/// A read of fewer bytes ends bulk.
const NOT_BULK: usize = 16 * 1024;

/// Bytes that one direction of a flow may move before the worker's other flows have their turn.
pub(crate) const TURN: u64 = 1 << 20;

/// A socket of a flow, and what edge-triggered epoll has reported of it since it last would have blocked.
/// Another process registers the socket again, and epoll reports the same again.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RelaySocket {
    pub(crate) socket: Fd,
    #[serde(skip)]
    readable: bool,
    #[serde(skip)]
    pub(crate) writable: bool,
    /// The peer has ended, an error waits, or urgent data did: a short read does not mean that nothing is
    /// left.
    #[serde(skip)]
    read_to_the_end: bool,
    /// Where the leg's controller of explicit rates sets its ceiling.
    #[serde(skip)]
    pub(crate) paced: Option<PacedSocket>,
    /// Urgent data stands in the stream, where `splice(2)` stops as if the stream were empty or had ended.
    has_urgent_data: bool,
}

/// One direction of a flow.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Channel {
    held: Option<RelayBuffer>,
    ended: bool,
    shut: bool,
    /// The last read took so much at once that a pipe is worth its system calls.
    is_bulk: bool,
    bytes: u64,
}

/// The result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing can be done until epoll reports a socket.
    Waiting,
    /// The turn is over and there may be more to do.
    More,
    /// The source has ended, and the destination knows.
    Ended,
}

/// Which call of the relay failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Reading(io::Error),
    Writing(io::Error),
}

/// What carries bytes between two sockets: memory or a pipe. A buffer is filled only when it is empty.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum RelayBuffer {
    Buffer(Buffer),
    Pipe(Pipe),
}

impl RelaySocket {
    pub(crate) fn new(socket: impl Into<Fd>) -> Self {
        Self {
            socket: socket.into(),
            readable: false,
            writable: false,
            read_to_the_end: false,
            paced: None,
            has_urgent_data: false,
        }
    }

    /// Takes note of what epoll reported. End of file and errors are met by reading and writing.
    pub(crate) fn note(&mut self, flags: EventFlags) {
        let unusual = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR | EventFlags::PRI;
        self.has_urgent_data |= flags.contains(EventFlags::PRI);
        self.read_to_the_end |= flags.intersects(unusual);
        self.readable |= flags.intersects(unusual | EventFlags::IN);
        self.writable |= flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR);
    }
}

impl Channel {
    /// A direction of which `bytes` were sent another way, before the relay started.
    pub(crate) fn after(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Moves what can be moved, at most about [`TURN`] bytes. What a buffer holds leaves before more is read,
    /// so that a slow destination costs one buffer, and TCP slows the source down.
    pub(crate) fn pump(
        &mut self,
        from: &mut RelaySocket,
        to: &mut RelaySocket,
        pool: &mut BufferPool,
    ) -> Result<Progress, Failure> {
        let limit = self.bytes + TURN;
        while !self.shut {
            if let Some(buffer) = &mut self.held {
                self.bytes += buffer.flush(to, self.ended).map_err(Failure::Writing)?;
                if !buffer.is_empty() {
                    return Ok(Progress::Waiting);
                }
                self.release(pool);
            }
            if self.ended {
                shut_down_writing(to).map_err(Failure::Writing)?;
                self.shut = true;
            } else if self.bytes >= limit {
                return Ok(Progress::More);
            } else if from.readable && to.writable {
                self.read_some(from, pool).map_err(Failure::Reading)?;
            } else {
                return Ok(Progress::Waiting);
            }
        }
        Ok(Progress::Ended)
    }

    /// The source has ended, all of it was written, and the destination was told so.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut
    }

    /// Bytes written to the destination so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are between the two sockets.
    pub(crate) fn held(&self) -> usize {
        self.held.as_ref().map_or(0, RelayBuffer::held)
    }

    /// Returns what is held to the pool: empty, or with the data of a broken flow.
    pub(crate) fn release(&mut self, pool: &mut BufferPool) {
        if let Some(buffer) = self.held.take() {
            pool.release(buffer);
        }
    }

    /// Buffers that it holds: one or none.
    pub(crate) fn buffers(&self) -> usize {
        self.held.iter().len()
    }

    fn read_some(&mut self, from: &mut RelaySocket, pool: &mut BufferPool) -> io::Result<()> {
        let by_pipe = self.is_bulk && !from.has_urgent_data;
        let mut buffer = if by_pipe { pool.acquire_for_bulk() } else { pool.acquire_buffer() };
        let result = self.fill(&mut buffer, from, pool.most);
        if buffer.is_empty() {
            pool.release(buffer);
        } else {
            self.held = Some(buffer);
        }
        result
    }

    fn fill(&mut self, buffer: &mut RelayBuffer, from: &mut RelaySocket, most: usize) -> io::Result<()> {
        let count = buffer.fill(from, most)?;
        if let Some(count) = count {
            self.is_bulk = count >= if self.is_bulk { NOT_BULK } else { BULK };
        }
        match buffer {
            // An end that splice(2) reports may be urgent data before the end: the next read is by recv(2),
            // which knows.
            RelayBuffer::Pipe(_) => from.has_urgent_data |= count == Some(0),
            RelayBuffer::Buffer(_) if count == Some(0) => self.ended = true,
            // An end that is known before the data are written leaves in the same segment.
            RelayBuffer::Buffer(memory) if from.read_to_the_end && from.readable && !memory.is_full(most) => {
                self.ended = buffer.fill(from, most)? == Some(0);
            }
            RelayBuffer::Buffer(_) => {}
        }
        Ok(())
    }
}

impl RelayBuffer {
    /// Reads from the source: the number of bytes, zero at its end, nothing where it has to be waited for. A
    /// buffer that is not empty is filled up; a pipe must be empty.
    fn fill(&mut self, from: &mut RelaySocket, most: usize) -> io::Result<Option<usize>> {
        let result = match self {
            RelayBuffer::Buffer(buffer) => buffer.fill(from, most),
            RelayBuffer::Pipe(pipe) => pipe.fill(from, most),
        };
        let count = unless_it_would_block(result)?;
        if count.is_none() {
            from.readable = false;
        }
        Ok(count)
    }

    /// Writes to the destination until the buffer is empty or the destination is full; the number of bytes
    /// written. After the last bytes of all the destination is told of the end at once.
    fn flush(&mut self, to: &mut RelaySocket, is_last: bool) -> io::Result<u64> {
        let mut written = 0;
        if let Some(paced) = &to.paced {
            paced.wake();
        }
        while to.writable && !self.is_empty() {
            let result = match self {
                RelayBuffer::Buffer(buffer) => buffer.flush(to, is_last),
                RelayBuffer::Pipe(pipe) => pipe.flush(to),
            };
            match unless_it_would_block(result)? {
                Some(count) => written += count as u64,
                None => to.writable = false,
            }
        }
        Ok(written)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held() == 0
    }

    fn held(&self) -> usize {
        match self {
            RelayBuffer::Buffer(buffer) => buffer.held(),
            RelayBuffer::Pipe(pipe) => pipe.held(),
        }
    }
}

fn unless_it_would_block(result: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sends end of file behind everything that was written.
fn shut_down_writing(to: &RelaySocket) -> io::Result<()> {
    Ok(rustix::net::shutdown(&to.socket, Shutdown::Write)?)
}

#[cfg(test)]
mod tests;
