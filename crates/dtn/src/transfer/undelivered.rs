//! Transfers that cannot be delivered, kept in a folder for the operator.

use std::fs::{self, DirBuilder};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::store::Record;

use super::file;

/// The longest part of a source's name in a file's name.
const MAX_SOURCE: usize = 100;

/// The folder, made when it is needed. Files are named after their bundles and contain the payload: the head
/// of the PUT and its body.
#[derive(Debug, Clone)]
pub(super) struct Undelivered {
    folder: PathBuf,
    /// Its quota in bytes, so that undeliverable transfers do not fill the disk.
    quota: u64,
}

impl Undelivered {
    pub(super) fn new(folder: PathBuf, quota: u64) -> Self {
        Self { folder, quota }
    }

    /// Writes a payload there. The error is text for the log.
    pub(super) fn keep(&self, record: &Record, payload: &mut impl Read) -> Result<PathBuf, String> {
        let failed = |error: std::io::Error| format!("cannot keep it in {}: {error}", self.folder.display());
        DirBuilder::new().recursive(true).mode(0o750).create(&self.folder).map_err(failed)?;
        let kept = size(&self.folder).map_err(failed)?;
        if kept.saturating_add(record.bundle.payload_len) > self.quota {
            return Err(format!(
                "{} has {kept} of {} bytes; remove files that are no longer needed",
                self.folder.display(),
                self.quota
            ));
        }
        let path = self.folder.join(name(record));
        let partial = self.folder.join(file::partial(record.key.0));
        file::put(payload, &partial, &path).map_err(failed)?;
        Ok(path)
    }
}

/// Bytes of the folder's files.
fn size(folder: &Path) -> std::io::Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder)? {
        size += entry?.metadata()?.len();
    }
    Ok(size)
}

fn name(record: &Record) -> String {
    let id = &record.bundle.id;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let source: String = id.source.to_string().chars().take(MAX_SOURCE).map(plain).collect();
    format!("{source}-{}-{}.http", id.created.millis(), id.sequence)
}
