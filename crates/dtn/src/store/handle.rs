//! The store's handle, and recovery at its start.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use crate::bundle::BundleId;

use super::committer::Committer;
use super::files::Files;
use super::index::{Contents, Index};
use super::state::{Effect, FIRST_ROW, StoreState};
use super::writer::{MAX_ROW, PayloadWriter};
use super::{
    Change, Extent, Key, Limit, Payload, PayloadReader, Record, SEEN_PER_BUNDLE, StoreConfig, StoreError,
    Usage, Wanted, lock, record,
};

/// A store of bundles. Its clones are the same store; its folder is free for another process when the last of
/// them, of its writers and of its readers is dropped.
///
/// All calls may wait for the disk.
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) core: Arc<Core>,
    committer: Arc<Committer>,
    recovery: Arc<Recovery>,
}

/// Faults found when a store was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// Payloads without a bundle, left by a crash. They have been removed.
    pub orphans: usize,
    /// Bundles whose payload was missing or too short. They have been removed.
    pub damaged: Vec<BundleId>,
    /// Bundles whose row in the index could not be read. They have been removed.
    pub unreadable: usize,
}

/// The part that store, thread, writers and readers share.
pub(crate) struct Core {
    pub(crate) files: Files,
    pub(crate) index: Index,
    pub(crate) state: Mutex<StoreState>,
    /// The longest payload that becomes a row of the index, bytes.
    pub(crate) max_row: usize,
    next_key: AtomicU64,
    next_file: AtomicU64,
    next_row: AtomicU64,
}

impl Store {
    /// Opens the store in a folder, or makes one, and returns what it holds in the order of arrival.
    /// Leftovers of a crash are removed; [`recovery`](Self::recovery) describes them.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process has it open, [`StoreError::NoPayloads`], [`StoreError::Io`],
    /// [`StoreError::Index`].
    pub fn open(config: StoreConfig) -> Result<(Self, Vec<Record>), StoreError> {
        Self::open_with_rows(config, MAX_ROW)
    }

    /// The key of the next bundle: greater than all before, also those of earlier runs that were committed.
    pub fn next_key(&self) -> Key {
        Key(self.core.next_key.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes room for a payload, of which `announced` bytes are to come if that is known.
    ///
    /// # Errors
    /// [`StoreError::Full`] if quota, bundles or file system do not allow it, [`StoreError::Io`].
    pub fn begin(&self, announced: Option<u64>) -> Result<PayloadWriter, StoreError> {
        PayloadWriter::begin(self.core.clone(), announced)
    }

    /// Carries out all of the changes, in their order, or none. They are on the disk when it returns; callers
    /// at the same time share one transaction. Files that no record names any more are deleted soon
    /// afterwards.
    ///
    /// # Errors
    /// [`StoreError::Full`] if there would be too many bundles, [`StoreError::NoSuchBytes`] if the payload of
    /// a record is not in the store, [`StoreError::Io`], [`StoreError::Index`], [`StoreError::Stopped`].
    /// Payloads that were waiting for their record are dropped then and have to be written again.
    pub fn commit(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let (reply, outcome) = sync_channel(1);
        self.submit(changes, move |result| drop(reply.send(result)));
        outcome.recv().unwrap_or_else(|_| Err(self.stopped()))
    }

    /// The same without waiting: `done` learns the outcome. It is called by the thread that writes the index,
    /// which must not wait for anything, least of all for this store. What is submitted meanwhile makes the
    /// next transaction.
    pub fn submit(&self, changes: Vec<Change>, done: impl FnOnce(Result<(), StoreError>) + Send + 'static) {
        if let Err(done) = self.committer.submit(changes, Box::new(done)) {
            done(Err(self.stopped()));
        }
    }

    fn stopped(&self) -> StoreError {
        StoreError::Stopped(self.core.files.folder().to_owned())
    }

    /// Removes a finished payload of which no record was committed. Nothing happens to the payload of a
    /// record.
    pub fn discard(&self, payload: Payload) {
        self.committer.discard(payload);
    }

    /// Whether a bundle is here, or has been and is remembered ([`Change::Seen`]).
    pub fn knows(&self, id: &BundleId) -> bool {
        lock(&self.core.state).knows(&record::name(id))
    }

    /// Reads a payload; for a part of it, read its [`slice`](Payload::slice).
    pub fn read(&self, payload: &Payload) -> PayloadReader {
        PayloadReader::new(self.core.clone(), payload)
    }

    /// Its folder.
    pub fn folder(&self) -> &std::path::Path {
        self.core.files.folder()
    }

    /// Its contents.
    pub fn usage(&self) -> Usage {
        lock(&self.core.state).usage()
    }

    /// Faults found when it was opened.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// With another limit for what becomes a row of the index: to measure which is best.
    #[doc(hidden)]
    pub fn open_with_rows(config: StoreConfig, max_row: usize) -> Result<(Self, Vec<Record>), StoreError> {
        let files = Files::open(&config.folder)?;
        let max_seen = config.max_bundles.saturating_mul(SEEN_PER_BUNDLE) as u64;
        let index = Index::open(files.index_path(), max_seen)?;
        files.sync_folder()?;
        let mut found = Scan::run(&files, index.contents()?)?;
        found.clear(&files, &index)?;
        let core = Arc::new(Core {
            state: Mutex::new(found.state(config)),
            files,
            index,
            max_row,
            next_key: AtomicU64::new(found.contents.next_key),
            next_file: AtomicU64::new(found.next_file),
            next_row: AtomicU64::new(found.next_row),
        });
        let committer = Arc::new(Committer::start(core.clone())?);
        Ok((Self { core, committer, recovery: Arc::new(found.recovery) }, found.contents.records))
    }
}

impl Core {
    pub(crate) fn next_file(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn next_row(&self) -> u64 {
        self.next_row.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn full(&self, (wanted, limit): (Wanted, Limit)) -> StoreError {
        StoreError::Full { folder: self.files.folder().to_owned(), wanted, limit }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("folder", &self.files.folder()).finish_non_exhaustive()
    }
}

/// The contents found at the start.
struct Scan {
    contents: Contents,
    /// Payloads that records refer to, with their lengths.
    kept: Vec<(u64, u64)>,
    orphan_files: Vec<u64>,
    orphan_rows: Vec<u64>,
    lost: Vec<Key>,
    recovery: Recovery,
    next_file: u64,
    next_row: u64,
}

impl Scan {
    fn run(files: &Files, mut contents: Contents) -> Result<Self, StoreError> {
        let mut there = files.list()?;
        let next_file = there.keys().max().map_or(0, |number| number + 1);
        there.extend(contents.rows.iter().copied());
        let next_row =
            contents.rows.iter().map(|(number, _)| number.saturating_add(1)).max().unwrap_or(FIRST_ROW);
        let mut recovery = Recovery { unreadable: contents.unreadable.len(), ..Recovery::default() };
        let mut lost = Vec::new();
        for (key, error) in &contents.unreadable {
            tracing::error!("bundle {} of the store is lost: {error}", key.0);
            lost.push(*key);
        }
        contents.records.retain(|record| {
            let is_there = |extent: &&Extent| {
                let end = extent.offset.checked_add(extent.len);
                there.get(&extent.file).is_some_and(|len| end.is_some_and(|end| end <= *len))
            };
            let hurt = record.payload.0.iter().find(|extent| !is_there(extent));
            let Some(extent) = hurt else { return true };
            let (id, path) = (&record.bundle.id, files.path(extent.file));
            tracing::error!("bundle {id} of the store is lost: {} is missing or too short", path.display());
            lost.push(record.key);
            recovery.damaged.push(id.clone());
            false
        });
        let needed: HashSet<u64> = contents
            .records
            .iter()
            .flat_map(|record| record.payload.0.iter().map(|extent| extent.file))
            .collect();
        let (kept, orphans): (Vec<_>, Vec<_>) =
            there.into_iter().partition(|(file, _)| needed.contains(file));
        let (orphan_rows, orphan_files): (Vec<u64>, Vec<u64>) =
            orphans.into_iter().map(|(number, _)| number).partition(|number| *number >= FIRST_ROW);
        recovery.orphans = orphan_rows.len() + orphan_files.len();
        Ok(Self { contents, kept, orphan_files, orphan_rows, lost, recovery, next_file, next_row })
    }

    /// Removes lost records and unused payloads, from the index first.
    fn clear(&mut self, files: &Files, index: &Index) -> Result<(), StoreError> {
        if !self.lost.is_empty() || !self.orphan_rows.is_empty() {
            index.transact(|tables| {
                self.lost.iter().try_for_each(|key| tables.apply(&Change::Remove(*key)))?;
                self.orphan_rows.iter().try_for_each(|row| tables.remove_row(*row))
            })?;
        }
        if self.recovery.orphans > 0 {
            let (folder, orphans) = (files.folder().display(), self.recovery.orphans);
            tracing::info!("{orphans} payloads of no bundle removed from the store {folder}");
        }
        files.delete(&self.orphan_files);
        Ok(())
    }

    fn state(&mut self, limits: StoreConfig) -> StoreState {
        let mut state = StoreState::new(limits);
        for (file, len) in &self.kept {
            state.found(*file, *len);
        }
        let seen = std::mem::take(&mut self.contents.seen).into_iter();
        let seen = seen.map(|(until, name)| Effect::Seen { name, until });
        let records = self.contents.records.iter().map(|record| Effect::Put {
            name: record::name(&record.bundle.id),
            payload: record.payload.clone(),
        });
        // No effect removes anything, so there is nothing to delete.
        let _ = state.follow(&seen.chain(records).collect::<Vec<_>>());
        state
    }
}
