//! Relay by copy: `recv(2)` into a buffer, `send(2)` from it.

use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::{Deserialize, Serialize, Serializer};
use serde_bytes::ByteBuf;

use super::RelaySocket;

/// Bytes that one read takes at most. 256 KiB measured slower with ten flows.
const SIZE: usize = super::BULK;

/// Memory for one read, written from `start` as the destination accepts it.
#[derive(Debug, Deserialize)]
#[serde(from = "ByteBuf")]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; SIZE].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Reads behind what the buffer already holds, which nothing was written of, until it holds `most`.
    pub(super) fn fill(&mut self, from: &mut RelaySocket, most: usize) -> rustix::io::Result<usize> {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
        }
        let space = &mut self.bytes[self.end..SIZE.min(most)];
        let wanted = space.len();
        let (_, count) = recv(&from.socket, space, RecvFlags::empty())?;
        // A short read leaves nothing behind (epoll(7)), which saves a system call for each small message.
        from.readable = count == wanted || from.read_to_the_end;
        self.end += count;
        Ok(count)
    }

    /// Writes what is held. The last segment waits for the end of file that follows if this `is_last`
    /// (send(2), `MSG_MORE`).
    pub(super) fn flush(&mut self, to: &mut RelaySocket, is_last: bool) -> rustix::io::Result<usize> {
        let more = if is_last { SendFlags::MORE } else { SendFlags::empty() };
        let count = send(&to.socket, &self.bytes[self.start..self.end], SendFlags::NOSIGNAL | more)?;
        self.start += count;
        Ok(count)
    }

    /// A read of as much as makes `most` would find no room.
    pub(super) fn is_full(&self, most: usize) -> bool {
        self.end >= SIZE.min(most)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held() == 0
    }

    pub(super) fn held(&self) -> usize {
        self.end - self.start
    }
}

/// Only the bytes that it holds go to another process.
impl Serialize for Buffer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.bytes[self.start..self.end])
    }
}

impl From<ByteBuf> for Buffer {
    fn from(held: ByteBuf) -> Self {
        let (end, mut bytes) = (held.len(), held.into_vec());
        bytes.resize(SIZE.max(end), 0);
        Self { bytes: bytes.into(), start: 0, end }
    }
}

#[cfg(test)]
impl Buffer {
    /// One that held these bytes, the first so many of which have been written.
    pub(super) fn holding(bytes: &[u8], written: usize) -> Self {
        Self { start: written, ..Self::from(ByteBuf::from(bytes)) }
    }
}
