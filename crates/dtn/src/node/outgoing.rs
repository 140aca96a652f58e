//! A bundle on its way to another node: its head, its payload from the store, its end.

use std::io::{self, Read};

use crate::bundle::{Bundle, Tail};
use crate::store::{Key, PayloadReader};
use crate::tcpcl::{Outgoing, Ticket};

/// See the module.
pub(crate) struct Sending {
    key: Key,
    len: u64,
    /// The head, then the end.
    block: io::Cursor<Vec<u8>>,
    payload: PayloadReader,
    payload_left: u64,
    tail: Option<Tail>,
}

impl Sending {
    pub(crate) fn new(key: Key, bundle: &Bundle, payload: PayloadReader) -> Self {
        Self {
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
    fn ticket(&self) -> Ticket {
        self.key.0
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = self.block.read(buffer)?;
        while filled < buffer.len() && self.payload_left > 0 {
            let room = buffer.len() - filled;
            let most = usize::try_from(self.payload_left).unwrap_or(usize::MAX).min(room);
            let got = self.payload.read(&mut buffer[filled..filled + most])?;
            if got == 0 {
                let lacking = format!("the stored payload ends {} bytes too soon", self.payload_left);
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
