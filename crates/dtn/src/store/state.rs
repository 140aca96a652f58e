//! The state of a store in memory: references to files, used space, known bundles. It touches no disk.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

use bentpipe_units::ByteCount;

use super::{Extent, Limit, Payload, StoreConfig, Usage, Wanted};

/// Files from this number on are rows of the index.
pub(crate) const FIRST_ROW: u64 = 1 << 63;

/// A change that a transaction has made to the state.
#[derive(Debug)]
pub(crate) enum Effect {
    Put { name: Vec<u8>, payload: Payload },
    Gone { name: Vec<u8>, payload: Payload },
    Seen { name: Vec<u8>, until: u64 },
    Forgotten { name: Vec<u8>, until: u64 },
}

#[derive(Debug)]
pub(crate) struct StoreState {
    limits: StoreConfig,
    files: HashMap<u64, Entry>,
    /// Those of `files` that are rows of the index.
    rows: usize,
    /// Unused rows of the index; the next transaction removes them.
    dead_rows: Vec<u64>,
    /// Bytes of `files`.
    bytes: u64,
    /// Finished payloads without a record.
    fresh: usize,
    writers: usize,
    /// Bytes reserved by writers, and written ones of these.
    reserved: u64,
    written: u64,
    bundles: usize,
    /// Numbers of bundles by ID. IDs are kept as hashes with a secret key, so that nobody can cause
    /// collisions; with 10^6 of them the probability of one is 3·10^-8.
    names: HashMap<u64, u32>,
    /// Until when names of bundles that are gone are remembered, milliseconds of [`DtnTime`](crate::DtnTime).
    seen: HashMap<u64, u64>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Entry {
    len: u64,
    /// Extents of records.
    refs: u64,
    /// Readers, and commits under way.
    pins: u64,
    /// A record that refers to it is still expected.
    fresh: bool,
    /// The bytes of a row that is not in the index yet.
    memory: Option<Arc<[u8]>>,
}

impl StoreState {
    pub(crate) fn new(limits: StoreConfig) -> Self {
        Self {
            limits,
            files: HashMap::new(),
            rows: 0,
            dead_rows: Vec::new(),
            bytes: 0,
            fresh: 0,
            writers: 0,
            reserved: 0,
            written: 0,
            bundles: 0,
            names: HashMap::new(),
            seen: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    /// Adds a file that was found at the start. Records that refer to it follow as effects.
    pub(crate) fn found(&mut self, file: u64, len: u64) {
        self.insert(file, Entry { len, refs: 0, pins: 0, fresh: false, memory: None });
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            bytes: ByteCount::new(self.bytes + self.reserved),
            files: self.files.len() - self.rows,
            bundles: self.bundles,
            quota: self.limits.quota,
        }
    }

    /// Whether a bundle with this ID is here, or is remembered.
    pub(crate) fn knows(&self, name: &[u8]) -> bool {
        let hash = self.hasher.hash_one(name);
        self.names.contains_key(&hash) || self.seen.contains_key(&hash)
    }

    /// Reserves room for another bundle of at least `bytes`; `free` is the free space of the file system.
    pub(crate) fn open_writer(&mut self, bytes: u64, free: u64) -> Result<(), (Wanted, Limit)> {
        if self.bundles + self.fresh + self.writers >= self.limits.max_bundles {
            return Err((Wanted::Bundle, Limit::Bundles { max: self.limits.max_bundles }));
        }
        self.reserve(bytes, free)?;
        self.writers += 1;
        Ok(())
    }

    /// Reserves `bytes` more for a writer.
    pub(crate) fn reserve(&mut self, bytes: u64, free: u64) -> Result<(), (Wanted, Limit)> {
        let StoreConfig { quota, keep_free, .. } = self.limits;
        let taken = self.bytes + self.reserved;
        if taken.saturating_add(bytes) > quota.get() {
            let limit = Limit::Quota { quota, taken: ByteCount::new(taken) };
            return Err((Wanted::Bytes(bytes), limit));
        }
        let reserved = keep_free.get().saturating_add(self.reserved - self.written);
        if reserved.saturating_add(bytes) > free {
            let limit = Limit::FileSystem { free: ByteCount::new(free), reserved: ByteCount::new(reserved) };
            return Err((Wanted::Bytes(bytes), limit));
        }
        self.reserved += bytes;
        Ok(())
    }

    /// `bytes` of the reservation are written.
    pub(crate) fn wrote(&mut self, bytes: u64) {
        self.written += bytes;
    }

    /// A writer has ended, with a payload or without.
    pub(crate) fn close_writer(&mut self, reserved: u64, written: u64) {
        self.writers -= 1;
        self.reserved -= reserved;
        self.written -= written;
    }

    /// Adds a finished payload: `memory` has its bytes if it becomes a row of the index.
    pub(crate) fn finished(&mut self, file: u64, len: u64, memory: Option<Arc<[u8]>>) {
        self.fresh += 1;
        self.insert(file, Entry { len, refs: 0, pins: 0, fresh: true, memory });
    }

    /// Whether `added` more bundles are allowed if `gone` leave.
    pub(crate) fn allows(&self, added: usize, gone: usize) -> Result<(), (Wanted, Limit)> {
        if added == 0 || self.bundles + added <= self.limits.max_bundles + gone {
            return Ok(());
        }
        Err((Wanted::Bundle, Limit::Bundles { max: self.limits.max_bundles }))
    }

    /// Pins a payload's files until [`unpin`](Self::unpin): all of them, or none and returns a missing
    /// extent.
    pub(crate) fn pin(&mut self, payload: &Payload) -> Result<(), Extent> {
        let has = |extent: &Extent| {
            let end = extent.offset.checked_add(extent.len)?;
            self.files.get(&extent.file).filter(|entry| end <= entry.len)
        };
        if let Some(missing) = payload.0.iter().find(|extent| has(extent).is_none()) {
            return Err(*missing);
        }
        for extent in &payload.0 {
            if let Some(entry) = self.files.get_mut(&extent.file) {
                entry.pins += 1;
            }
        }
        Ok(())
    }

    /// Ends a [`pin`](Self::pin). Returns the files to delete.
    #[must_use]
    pub(crate) fn unpin(&mut self, payload: &Payload) -> Vec<u64> {
        for extent in &payload.0 {
            if let Some(entry) = self.files.get_mut(&extent.file) {
                entry.pins -= 1;
            }
        }
        self.sweep(payload)
    }

    /// Drops a payload if it has no record. Returns the files to delete.
    #[must_use]
    pub(crate) fn discard(&mut self, payload: &Payload) -> Vec<u64> {
        for extent in &payload.0 {
            self.settle(extent.file);
        }
        self.sweep(payload)
    }

    /// Whether a payload has files that the folder on the disk may not have yet.
    pub(crate) fn has_fresh_files(&self, payload: &Payload) -> bool {
        let fresh = |file| self.files.get(&file).is_some_and(|entry: &Entry| entry.fresh);
        payload.0.iter().any(|extent| extent.file < FIRST_ROW && fresh(extent.file))
    }

    /// The bytes of a row that is not in the index yet.
    pub(crate) fn memory(&self, file: u64) -> Option<Arc<[u8]>> {
        self.files.get(&file)?.memory.clone()
    }

    /// Takes the unused rows. The caller returns them if it cannot remove them.
    pub(crate) fn take_dead_rows(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.dead_rows)
    }

    pub(crate) fn return_dead_rows(&mut self, rows: Vec<u64>) {
        self.dead_rows.extend(rows);
    }

    /// Applies the effects of a transaction. Returns the files to delete.
    #[must_use]
    pub(crate) fn follow(&mut self, effects: &[Effect]) -> Vec<u64> {
        for effect in effects {
            match effect {
                Effect::Put { name, payload } => {
                    self.bundles += 1;
                    *self.names.entry(self.hasher.hash_one(name.as_slice())).or_default() += 1;
                    for extent in &payload.0 {
                        self.settle(extent.file);
                        if let Some(entry) = self.files.get_mut(&extent.file) {
                            entry.refs += 1;
                            entry.memory = None;
                        }
                    }
                }
                Effect::Gone { name, payload } => self.unreference(name, payload),
                Effect::Seen { name, until } => {
                    let end = self.seen.entry(self.hasher.hash_one(name.as_slice())).or_default();
                    *end = (*end).max(*until);
                }
                Effect::Forgotten { name, until } => {
                    let hash = self.hasher.hash_one(name.as_slice());
                    if self.seen.get(&hash).is_some_and(|end| end <= until) {
                        self.seen.remove(&hash);
                    }
                }
            }
        }
        let gone = effects.iter().filter_map(|effect| match effect {
            Effect::Gone { payload, .. } => Some(payload),
            _ => None,
        });
        gone.flat_map(|payload| self.sweep(payload)).collect()
    }

    fn unreference(&mut self, name: &[u8], payload: &Payload) {
        self.bundles -= 1;
        let hash = self.hasher.hash_one(name);
        if let Some(count) = self.names.get_mut(&hash) {
            *count -= 1;
            if *count == 0 {
                self.names.remove(&hash);
            }
        }
        for extent in &payload.0 {
            if let Some(entry) = self.files.get_mut(&extent.file) {
                entry.refs -= 1;
            }
        }
    }

    fn insert(&mut self, file: u64, entry: Entry) {
        self.rows += usize::from(file >= FIRST_ROW);
        self.bytes += entry.len;
        self.files.insert(file, entry);
    }

    fn settle(&mut self, file: u64) {
        if let Some(entry) = self.files.get_mut(&file).filter(|entry| entry.fresh) {
            entry.fresh = false;
            self.fresh -= 1;
        }
    }

    /// Drops unused files and rows of a payload. Returns the files, which are to be deleted.
    fn sweep(&mut self, payload: &Payload) -> Vec<u64> {
        let mut unreferenced = Vec::new();
        for extent in &payload.0 {
            let Some(entry) = self.files.get(&extent.file) else { continue };
            if entry.refs > 0 || entry.pins > 0 || entry.fresh {
                continue;
            }
            self.bytes -= entry.len;
            self.files.remove(&extent.file);
            if extent.file < FIRST_ROW {
                unreferenced.push(extent.file);
            } else {
                self.rows -= 1;
                self.dead_rows.push(extent.file);
            }
        }
        unreferenced
    }
}
