//! Relay by copy: `recv(2)` into a buffer, `send(2)` from it.

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::RelaySocket;

/// Bytes that one read takes at most. 256 KiB measured slower with ten flows.
const SIZE: usize = super::BULK;

/// RecentSyns for one read, written from `start` as the destination accepts it.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; SIZE].into_boxed_slice(), start: 0, end: 0 }
    }

    /// One that holds these bytes.
    pub(super) fn holding(bytes: &[u8]) -> Self {
        let mut buffer =
            Self { bytes: vec![0; SIZE.max(bytes.len())].into_boxed_slice(), start: 0, end: bytes.len() };
        buffer.bytes[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// What is held.
    pub(super) fn content(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
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

    /// Writes what is held. The last segment waits for the end of file that follows if this `is_last` (send(2),
    /// `MSG_MORE`).
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
