//! The bundles that a node is responsible for: payloads as files, an index in an embedded database.
//!
//! A bundle is acknowledged only when it is here, and removed only when the next hop has acknowledged it.
//!
//! ```text
//!  begin ─► PayloadWriter ── finish: fsync(file) ─► Payload ─┐
//!                                                            ├─► commit: fsync(folder), one transaction for all
//!                                        Record, Change … ───┘      └─► unreferenced files are deleted
//! ```
//!
//! In the folder are `lock`, `index.redb` and `payloads/`, a file for each payload, named by its number. A
//! payload of at most 4 KiB is a row of the index instead: that saves a file and two fsyncs. Whatever a crash
//! leaves behind, the index is right: it names only what had reached the disk before, and files that it does
//! not name are deleted at the next start.
//!
//! Bounds: payload bytes [`StoreConfig::quota`], bundles [`StoreConfig::max_bundles`], names remembered of
//! bundles that are gone [`SEEN_PER_BUNDLE`] for each of these, memory of the index 16 MiB, and 64 KiB for
//! each [`PayloadWriter`] and 24 bytes for each file and extent.

mod committer;
mod error;
mod files;
mod handle;
mod index;
mod reader;
mod record;
mod state;
mod writer;

pub use error::{Limit, StoreError, Wanted};
pub use handle::{Recovery, Store};
pub use reader::PayloadReader;
pub(crate) use writer::MAX_ROW;
pub use writer::PayloadWriter;

use crate::bundle::BundleId;
use bentpipe_units::ByteCount;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::bundle::Bundle;
use crate::{DtnTime, Eid};

/// A bundle's number in the store: it grows, so that it is the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// A part of a file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The file's number.
    pub file: u64,
    /// Where it begins, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// Where a payload's bytes are. Fragments share the file of what they were cut from, and a payload that came
/// in fragments is a row of their files: nothing is copied to cut or to join.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload(pub Vec<Extent>);

/// The purpose of a stored bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Forward it to another node.
    Forward,
    /// Deliver it to an application of this node.
    Deliver,
    /// A fragment for this node: keep it until the others arrive.
    Reassemble,
}

/// A bundle in the store.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its number.
    pub key: Key,
    /// Its blocks without the payload.
    pub bundle: Arc<Bundle>,
    /// Where its payload is.
    pub payload: Payload,
    /// When it arrived, by this node's clock.
    pub received: DtnTime,
    /// When it expires.
    pub expires: DtnTime,
    /// The node that it came from; `None` is an application of this one.
    pub from: Option<Eid>,
    /// Its purpose.
    pub purpose: Purpose,
}

/// Where a store is, and its limits.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Its folder, made if it is missing; its parent must exist.
    pub folder: PathBuf,
    /// Limit of payload bytes, including those being received.
    pub quota: ByteCount,
    /// Limit of bundles.
    pub max_bundles: usize,
    /// Bytes that stay free on the file system.
    pub keep_free: ByteCount,
}

/// How many names of bundles that are gone are remembered for each of [`StoreConfig::max_bundles`]; beyond it
/// those are forgotten first whose time ends first.
pub const SEEN_PER_BUNDLE: usize = 8;

/// A step of a [`commit`](Store::commit).
#[derive(Debug, Clone)]
pub enum Change {
    /// Keep a bundle. It replaces one with the same key.
    Put(Record),
    /// Remove a bundle, if it is there.
    Remove(Key),
    /// Remember that a bundle has been here, so that it is known when it comes again.
    Seen {
        /// Its name.
        id: BundleId,
        /// Until when.
        until: DtnTime,
    },
    /// Change a bundle's purpose, if it is there.
    Purpose(Key, Purpose),
    /// Forget IDs that were to be remembered until a time before this.
    Forget(DtnTime),
}

/// The contents of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Payload bytes, with what is announced or written but not committed.
    pub bytes: ByteCount,
    /// Payloads that are files.
    pub files: usize,
    /// Bundles.
    pub bundles: usize,
    /// Limit of payload bytes.
    pub quota: ByteCount,
}

impl Payload {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|extent| extent.len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of it, clipped to its end.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        let mut at = 0;
        let mut part = Vec::new();
        for extent in &self.0 {
            let (begin, end) = (range.start.max(at), range.end.min(at + extent.len));
            if begin < end {
                part.push(Extent {
                    file: extent.file,
                    offset: extent.offset + (begin - at),
                    len: end - begin,
                });
            }
            at += extent.len;
        }
        Self(part)
    }
}

/// Locks a mutex. Data behind a poisoned lock is consistent: nothing that may panic runs under it.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
