//! Relay by copy: `recv(2)` into a buffer, `send(2)` from it.

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::Endpoint;

/// Bytes that one read takes at most. 256 KiB measured slower with ten flows.
const SIZE: usize = 64 * 1024;

/// Memory for one read, written from `start` as the destination accepts it.
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

    pub(super) fn fill(&mut self, from: &mut Endpoint, most: usize) -> rustix::io::Result<usize> {
        let size = self.bytes.len().min(most);
        let (_, count) = recv(&from.socket, &mut self.bytes[..size], RecvFlags::empty())?;
        // A short read leaves nothing behind (epoll(7)), which saves a system call for each small message.
        from.readable = count == size || from.read_to_the_end;
        (self.start, self.end) = (0, count);
        Ok(count)
    }

    pub(super) fn flush(&mut self, to: &mut Endpoint) -> rustix::io::Result<usize> {
        let count = send(&to.socket, &self.bytes[self.start..self.end], SendFlags::NOSIGNAL)?;
        self.start += count;
        Ok(count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held() == 0
    }

    pub(super) fn held(&self) -> usize {
        self.end - self.start
    }
}
