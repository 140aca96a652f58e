//! Reading payloads.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::handle::Core;
use super::state::FIRST_ROW;
use super::{Extent, Payload, StoreError, lock};

/// Reads a payload, from its beginning or from anywhere. One file is open at a time. The payload stays
/// readable until the reader is dropped, even if the bundle is removed.
#[derive(Debug)]
pub struct PayloadReader {
    core: Arc<Core>,
    payload: Payload,
    /// Where each extent ends in the payload.
    ends: Vec<u64>,
    at: u64,
    open: Option<(u64, Source)>,
    /// A part that was not in the store when the reader was made.
    missing: Option<Extent>,
}

#[derive(Debug)]
enum Source {
    File(File),
    Row(Arc<[u8]>),
}

impl PayloadReader {
    pub(crate) fn new(core: Arc<Core>, payload: &Payload) -> Self {
        let missing = lock(&core.state).pin(payload).err();
        let payload = if missing.is_none() { payload.clone() } else { Payload::default() };
        let mut end = 0;
        let ends = payload.0.iter().map(|extent| {
            end += extent.len;
            end
        });
        Self { ends: ends.collect(), core, payload, at: 0, open: None, missing }
    }

    /// Whether all of it is in the index: a few kilobytes, whose reading waits for no disk as a rule.
    pub(crate) fn is_small(&self) -> bool {
        self.missing.is_none() && self.payload.0.iter().all(|extent| extent.file >= FIRST_ROW)
    }

    /// Where [`read`](Read::read) goes on.
    pub fn set_position(&mut self, at: u64) {
        self.at = at;
    }

    /// Reads some of what is at `at`, without a change to where [`read`](Read::read) goes on; 0 is the end.
    ///
    /// # Errors
    /// `NotFound` if the payload was not in the store any more when the reader was made, `UnexpectedEof` if a
    /// file is shorter than it was, else what the operating system says, with the file's name.
    pub fn read_at(&mut self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        if let Some(extent) = self.missing {
            let text = format!("file {} of the payload is not in the store any more", extent.file);
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let index = self.ends.partition_point(|end| *end <= at);
        let (Some(extent), Some(end)) = (self.payload.0.get(index).copied(), self.ends.get(index)) else {
            return Ok(0);
        };
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(into.len());
        let Some(into) = into.get_mut(..len).filter(|into| !into.is_empty()) else { return Ok(0) };
        let from = extent.offset + (extent.len - (end - at));
        let read = match self.source(extent.file).map_err(as_io)? {
            Source::File(file) => file.read_at(into, from),
            Source::Row(bytes) => {
                let rest = usize::try_from(from).ok().and_then(|from| bytes.get(from..)).unwrap_or_default();
                let len = rest.len().min(into.len());
                into[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            }
        };
        match read {
            Ok(0) => {
                let path = self.core.files.path(extent.file);
                let text = format!("{} is shorter than the payload that was written to it", path.display());
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, text))
            }
            Ok(read) => Ok(read),
            Err(error) => Err(as_io(StoreError::io("read", &self.core.files.path(extent.file), error))),
        }
    }

    fn source(&mut self, number: u64) -> Result<&Source, StoreError> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != number) {
            // The old one is closed first, so that one descriptor is enough.
            self.open = None;
            self.open = Some((number, open(&self.core, number)?));
        }
        match &self.open {
            Some((_, source)) => Ok(source),
            None => unreachable!("it has just been opened"),
        }
    }
}

fn open(core: &Core, number: u64) -> Result<Source, StoreError> {
    if number < FIRST_ROW {
        return core.files.read(number).map(Source::File);
    }
    let memory = lock(&core.state).memory(number);
    if let Some(bytes) = memory {
        return Ok(Source::Row(bytes));
    }
    let row = core.index.row(number)?.ok_or_else(|| {
        StoreError::io(
            "find a payload in",
            &core.files.index_path(),
            io::Error::from(io::ErrorKind::NotFound),
        )
    })?;
    Ok(Source::Row(row.into()))
}

/// Keeps the whole error as the source.
fn as_io(error: StoreError) -> io::Error {
    let kind = match &error {
        StoreError::Io { source, .. } => source.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl Read for PayloadReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(self.at, into)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Drop for PayloadReader {
    fn drop(&mut self) {
        let unreferenced = lock(&self.core.state).unpin(&self.payload);
        self.core.files.delete(&unreferenced);
    }
}
