//! Relay by `splice(2)`: pages move from one socket to the other through a pipe, and are never copied to us.

use std::io;

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use serde::{Deserialize, Serialize};

use super::RelaySocket;
use crate::snapshot::Fd;

/// The pipe's capacity that is asked for; 256 KiB and 1 MiB measured slower. The kernel may grant less
/// (pipe(7), `/proc/sys/fs/pipe-max-size`).
const SIZE: usize = 512 * 1024;

/// The least that is of use: an ordinary user who has many pipes gets them with 8 KiB (pipe(7),
/// `/proc/sys/fs/pipe-user-pages-soft`), and a buffer moves more than that at a time.
const LEAST: usize = 64 * 1024;

/// A pipe and the number of bytes in it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pipe {
    read: Fd,
    write: Fd,
    capacity: usize,
    held: usize,
}

impl Pipe {
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let capacity = fcntl_setpipe_size(&write, SIZE).or_else(|_| fcntl_getpipe_size(&write))?;
        if capacity < LEAST {
            return Err(rustix::io::Errno::NOBUFS.into());
        }
        Ok(Self { read: read.into(), write: write.into(), capacity, held: 0 })
    }

    /// The pipe is empty, so that only the socket can be what would block.
    pub(super) fn fill(&mut self, from: &mut RelaySocket, most: usize) -> rustix::io::Result<usize> {
        self.held = splice(&from.socket, None, &self.write, None, self.capacity.min(most), flags())?;
        Ok(self.held)
    }

    pub(super) fn flush(&mut self, to: &mut RelaySocket) -> rustix::io::Result<usize> {
        let count = splice(&self.read, None, &to.socket, None, self.held, flags())?;
        self.held -= count;
        Ok(count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    pub(super) fn held(&self) -> usize {
        self.held
    }
}

/// Never `SPLICE_F_MORE`: whether more follows is unknown, and a small message would wait for it.
fn flags() -> SpliceFlags {
    SpliceFlags::MOVE | SpliceFlags::NONBLOCK
}
