//! A bundle that is sent to another node: its head, its payload from the store, its tail.

use std::io::{self, Read};
use std::time::Duration;

use crate::bundle::{Bundle, Tail};
use crate::convergence::{BundleHandle, Outgoing};
use crate::store::{Key, PayloadReader};

use super::{Node, clock};

/// A bundle that cannot be read is tried again after this time; others go first.
const UNREADABLE_FOR: Duration = Duration::from_secs(600);

/// The source of an outgoing transfer.
pub(crate) struct Sending {
    node: Node,
    key: Key,
    len: u64,
    /// The head, later the tail.
    block: io::Cursor<Vec<u8>>,
    payload: PayloadReader,
    payload_left: u64,
    tail: Option<Tail>,
}

impl Sending {
    pub(crate) fn new(node: Node, key: Key, bundle: &Bundle, payload: PayloadReader) -> Self {
        Self {
            node,
            key,
            len: bundle.encoded_len(),
            block: io::Cursor::new(bundle.head()),
            payload,
            payload_left: bundle.payload_len,
            tail: Some(bundle.tail()),
        }
    }
}

impl Outgoing for Sending {
    fn handle(&self) -> BundleHandle {
        self.key.0
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fill(buffer).inspect_err(|error| {
            // TCPCL cannot cancel a transfer, so the session ends. The next session should not start with
            // this bundle.
            tracing::error!("cannot read bundle {}, retrying in {UNREADABLE_FOR:?}: {error}", self.key.0);
            self.node.queue().postpone(self.key, clock().after(UNREADABLE_FOR));
        })
    }
}

impl Sending {
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = self.block.read(buffer)?;
        while filled < buffer.len() && self.payload_left > 0 {
            let room = buffer.len() - filled;
            let most = usize::try_from(self.payload_left).unwrap_or(usize::MAX).min(room);
            let got = self.payload.read(&mut buffer[filled..filled + most])?;
            if got == 0 {
                let lacking = format!("the stored payload is {} bytes too short", self.payload_left);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, lacking));
            }
            if let Some(tail) = &mut self.tail {
                tail.update(&buffer[filled..filled + got]);
            }
            filled += got;
            self.payload_left -= got as u64;
        }
        if self.payload_left == 0
            && filled < buffer.len()
            && let Some(tail) = self.tail.take()
        {
            self.block = io::Cursor::new(tail.finish());
        }
        if self.payload_left == 0 && filled < buffer.len() {
            filled += self.block.read(&mut buffer[filled..])?;
        }
        Ok(filled)
    }
}
