//! Writing payloads.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use super::files::start_writeback;
use super::handle::Core;
use super::{Extent, Payload, StoreError, lock};

/// The longest payload that becomes a row of the index instead of a file, bytes. With 16 callers rows of this
/// length are five times as quick as files; longer ones gain less, and a large index makes the start after a
/// crash longer, when redb reads all of it.
pub(crate) const MAX_ROW: usize = 4096;

/// Size of the buffer, bytes. A shorter payload opens its file only for a moment.
const BUFFER: usize = 64 << 10;

/// Bytes that are reserved at a time for a payload of unknown or exceeded length.
const STEP: u64 = 1 << 20;

/// Writeback starts after this many bytes, so that the final fsync waits for no more than this.
const WRITEBACK: u64 = 8 << 20;

/// A payload that is being received. If it is dropped before it is finished, its file is removed and its room
/// given back.
#[derive(Debug)]
pub struct PayloadWriter {
    core: Arc<Core>,
    buffer: Vec<u8>,
    file: Option<(u64, File)>,
    /// Bytes in the file, and those of them whose writeback has started.
    written: u64,
    started: u64,
    reserved: u64,
    /// Why it has failed.
    failed: Option<StoreError>,
    /// The reservation has been given back.
    closed: bool,
}

impl PayloadWriter {
    pub(crate) fn begin(core: Arc<Core>, announced: Option<u64>) -> Result<Self, StoreError> {
        let reserved = announced.unwrap_or(0);
        let free = core.files.free()?;
        lock(&core.state).open_writer(reserved, free).map_err(|limit| core.full(limit))?;
        Ok(Self {
            core,
            buffer: Vec::new(),
            file: None,
            written: 0,
            started: 0,
            reserved,
            failed: None,
            closed: false,
        })
    }

    /// Writes the next bytes. The announced length is not binding: a longer payload is accepted while there
    /// is room.
    ///
    /// # Errors
    /// [`StoreError::Full`], [`StoreError::Io`]: then all of the payload is given up, and the writer says the
    /// same again.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.take(bytes).inspect_err(|error| self.fail(error))
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Whether there are none so far.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Brings the payload to the disk. It is part of the store when a record of it is
    /// [committed](super::Store::commit), until the next start of the store, or until it is [given
    /// up](super::Store::discard).
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn finish(mut self) -> Result<Payload, StoreError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let number = self.close_file()?;
        let len = self.len();
        let mut state = lock(&self.core.state);
        state.close_writer(self.reserved, self.written);
        self.closed = true;
        if len == 0 {
            return Ok(Payload::default());
        }
        let memory = self.file.is_none().then(|| self.buffer.as_slice().into());
        state.finished(number, len, memory);
        self.file = None;
        drop(state);
        Ok(Payload(vec![Extent { file: number, offset: 0, len }]))
    }

    /// Returns the payload's number: of its file, which is on the disk, or of its row.
    fn close_file(&mut self) -> Result<u64, StoreError> {
        if self.file.is_none() && self.buffer.len() <= self.core.max_row {
            return Ok(self.core.next_row());
        }
        let buffer = std::mem::take(&mut self.buffer);
        self.put(&buffer)?;
        let (number, file) = self.file()?;
        file.sync_all().map_err(|error| StoreError::io("sync", &self.core.files.path(number), error))?;
        Ok(number)
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.reserve(self.len().saturating_add(bytes.len() as u64))?;
        if self.buffer.len() + bytes.len() <= BUFFER {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        self.put(&buffer)?;
        buffer.clear();
        self.buffer = buffer;
        if bytes.len() >= BUFFER {
            return self.put(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let (number, mut file) = self.file()?;
        file.write_all(bytes)
            .map_err(|error| StoreError::io("write", &self.core.files.path(number), error))?;
        self.written += bytes.len() as u64;
        lock(&self.core.state).wrote(bytes.len() as u64);
        if self.written - self.started >= WRITEBACK {
            let (from, len) = (self.started, self.written - self.started);
            start_writeback(self.file()?.1, from, len);
            self.started = self.written;
        }
        Ok(())
    }

    fn file(&mut self) -> Result<(u64, &File), StoreError> {
        if self.file.is_none() {
            let number = self.core.next_file();
            self.file = Some((number, self.core.files.create(number)?));
        }
        match &self.file {
            Some((number, file)) => Ok((*number, file)),
            None => unreachable!("it has just been made"),
        }
    }

    fn reserve(&mut self, len: u64) -> Result<(), StoreError> {
        if len <= self.reserved {
            return Ok(());
        }
        let free = self.core.files.free()?;
        let mut state = lock(&self.core.state);
        // The last steps are smaller, so that a payload fits that fits exactly.
        let (missing, step) = (len - self.reserved, (len - self.reserved).max(STEP));
        let granted = match state.reserve(step, free) {
            Ok(()) => step,
            Err(_) => {
                state.reserve(missing, free).map(|()| missing).map_err(|limit| self.core.full(limit))?
            }
        };
        self.reserved += granted;
        Ok(())
    }

    fn fail(&mut self, error: &StoreError) {
        self.failed = Some(error.clone());
        self.abandon();
    }

    fn abandon(&mut self) {
        self.buffer = Vec::new();
        if let Some((number, _)) = self.file.take() {
            self.core.files.delete(&[number]);
        }
        if !self.closed {
            self.closed = true;
            lock(&self.core.state).close_writer(self.reserved, self.written);
        }
    }
}

impl Drop for PayloadWriter {
    fn drop(&mut self) {
        self.abandon();
    }
}
