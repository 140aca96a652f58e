//! The index: records, small payloads and remembered names in a redb database, whose transactions are atomic
//! and durable.
//!
//! After an I/O error the database must be closed and reopened. Its serial number then shows whether the
//! transaction was committed. A transaction whose commit failed but took effect is rolled back, so that the
//! callers' error is true.
//!
//! Commits take one phase: its theoretical weakness needs an attacker who decides the order in which pages
//! reach the disk.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, RwLock};

use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, ReadableTableMetadata, Table, TableDefinition,
};

use super::record::{self, BadRow};
use super::state::Effect;
use super::{Change, Key, Record, StoreError, lock};

const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
const ROWS: TableDefinition<u64, &[u8]> = TableDefinition::new("payloads");
const SEEN: TableDefinition<(u64, &[u8]), ()> = TableDefinition::new("seen");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// The number of the last transaction.
const SERIAL: &str = "serial";
/// A key greater than all keys so far.
const NEXT_KEY: &str = "next key";

/// Memory for pages, bytes: redb's own default is a gibibyte.
const CACHE: usize = 16 << 20;

pub(crate) struct Index {
    path: PathBuf,
    opener: Opener,
    /// Limit of remembered IDs.
    max_seen: u64,
    /// `None` after an error, until it is reopened.
    database: RwLock<Option<Database>>,
    /// A transaction that failed but may have been committed.
    uncertain: Mutex<Option<UncertainCommit>>,
}

#[derive(Debug)]
struct UncertainCommit {
    serial: u64,
    undo: Vec<UndoStep>,
}

/// The state before a step, to undo it.
#[derive(Debug)]
enum UndoStep {
    Record(u64, Option<Vec<u8>>),
    Seen(u64, Vec<u8>, bool),
}

/// The contents of the index at the start.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) records: Vec<Record>,
    pub(crate) unreadable: Vec<(Key, BadRow)>,
    /// Small payloads: number and length.
    pub(crate) rows: Vec<(u64, u64)>,
    pub(crate) seen: Vec<(u64, Vec<u8>)>,
    pub(crate) next_key: u64,
}

type Opener = Box<dyn Fn(&Path) -> Result<Database, redb::DatabaseError> + Send + Sync>;

/// A transaction under way.
pub(crate) struct Tables<'t> {
    records: Table<'t, u64, &'static [u8]>,
    rows: Table<'t, u64, &'static [u8]>,
    seen: Table<'t, (u64, &'static [u8]), ()>,
    meta: Table<'t, &'static str, u64>,
    max_seen: u64,
    undo: Vec<UndoStep>,
    effects: Vec<Effect>,
}

impl Index {
    pub(crate) fn open(path: PathBuf, max_seen: u64) -> Result<Self, StoreError> {
        let opener = |path: &Path| Database::builder().set_cache_size(CACHE).create(path);
        Self::open_by(Box::new(opener), path, max_seen)
    }

    fn open_by(opener: Opener, path: PathBuf, max_seen: u64) -> Result<Self, StoreError> {
        let index = Self { path, opener, max_seen, database: RwLock::new(None), uncertain: Mutex::new(None) };
        index.reopen()?;
        Ok(index)
    }

    /// Runs `work` in a transaction that is on the disk when it returns. If `work` or anything else fails,
    /// nothing has changed.
    pub(crate) fn transact<T>(
        &self,
        work: impl FnOnce(&mut Tables<'_>) -> Result<T, redb::Error>,
    ) -> Result<(T, Vec<Effect>), StoreError> {
        self.reopen()?;
        self.attempt(work).map_err(|error| {
            // Closed, so that nothing uses redb's state in memory. If it cannot be reopened now, the next
            // call tries again.
            *write(&self.database) = None;
            if let Err(error) = self.reopen() {
                tracing::error!("{error}");
            }
            StoreError::index("write", &self.path, error)
        })
    }

    /// A small payload.
    pub(crate) fn row(&self, number: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.reopen()?;
        self.reading(|database| {
            let row = database.begin_read()?.open_table(ROWS)?.get(number)?;
            Ok(row.map(|row| row.value().to_vec()))
        })
    }

    pub(crate) fn contents(&self) -> Result<Contents, StoreError> {
        // A new database has no tables before its first transaction.
        self.transact(|_| Ok(()))?;
        self.reading(|database| {
            let transaction = database.begin_read()?;
            let mut contents = Contents::default();
            for row in transaction.open_table(RECORDS)?.iter()? {
                let (key, row) = row?;
                let key = Key(key.value());
                match record::decode(key, row.value()) {
                    Ok(record) => contents.records.push(record),
                    Err(error) => contents.unreadable.push((key, error)),
                }
                contents.next_key = key.0.saturating_add(1);
            }
            for row in transaction.open_table(ROWS)?.iter()? {
                let (number, bytes) = row?;
                contents.rows.push((number.value(), bytes.value().len() as u64));
            }
            for row in transaction.open_table(SEEN)?.iter()? {
                let (key, _) = row?;
                let (until, name) = key.value();
                contents.seen.push((until, name.to_vec()));
            }
            let next_key = transaction.open_table(META)?.get(NEXT_KEY)?;
            contents.next_key = contents.next_key.max(next_key.map_or(0, |key| key.value()));
            Ok(contents)
        })
    }

    #[cfg(test)]
    pub(crate) fn serial(&self) -> u64 {
        let read = |database: &Database| {
            Ok(database.begin_read()?.open_table(META)?.get(SERIAL)?.map(|n| n.value()))
        };
        self.reading(read).unwrap().unwrap()
    }

    fn reading<T>(&self, work: impl FnOnce(&Database) -> Result<T, redb::Error>) -> Result<T, StoreError> {
        let database = self.database.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let database = database.as_ref().ok_or(redb::Error::DatabaseClosed);
        database.and_then(work).map_err(|error| StoreError::index("read", &self.path, error))
    }

    /// Reopens the database if an error has closed it, and rolls back a failed transaction that was committed
    /// nevertheless.
    fn reopen(&self) -> Result<(), StoreError> {
        if self.database.read().is_ok_and(|database| database.is_some()) && lock(&self.uncertain).is_none() {
            return Ok(());
        }
        let mut database = write(&self.database);
        let database = match database.take() {
            Some(open) => database.insert(open),
            None => database.insert(
                (self.opener)(&self.path).map_err(|error| StoreError::index("open", &self.path, error))?,
            ),
        };
        let mut uncertain = lock(&self.uncertain);
        if let Some(uncertain) = uncertain.as_ref() {
            roll_back(database, uncertain).map_err(|error| StoreError::index("repair", &self.path, error))?;
        }
        *uncertain = None;
        Ok(())
    }

    fn attempt<T>(
        &self,
        work: impl FnOnce(&mut Tables<'_>) -> Result<T, redb::Error>,
    ) -> Result<(T, Vec<Effect>), redb::Error> {
        let database = self.database.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut transaction = database.as_ref().ok_or(redb::Error::DatabaseClosed)?.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        let mut tables = Tables {
            records: transaction.open_table(RECORDS)?,
            rows: transaction.open_table(ROWS)?,
            seen: transaction.open_table(SEEN)?,
            meta: transaction.open_table(META)?,
            max_seen: self.max_seen,
            undo: Vec::new(),
            effects: Vec::new(),
        };
        let serial = tables.next_serial()?;
        let result = work(&mut tables)?;
        let (undo, effects) = tables.close();
        transaction
            .commit()
            .inspect_err(|_| *lock(&self.uncertain) = Some(UncertainCommit { serial, undo }))?;
        Ok((result, effects))
    }
}

impl Tables<'_> {
    pub(crate) fn apply(&mut self, change: &Change) -> Result<(), redb::Error> {
        match change {
            Change::Put(record) => self.put(record),
            Change::Remove(key) => self.remove(*key),
            Change::Seen { id, until } => self.remember(record::name(id), until.millis()),
            Change::Forget(before) => self.forget(before.millis()),
            Change::Purpose(key, purpose) => {
                let row = self.records.get(key.0)?.map(|row| row.value().to_vec());
                let Some(row) = row else { return Ok(()) };
                self.records.insert(key.0, record::with_purpose(&row, *purpose).as_slice())?;
                self.undo.push(UndoStep::Record(key.0, Some(row)));
                Ok(())
            }
        }
    }

    pub(crate) fn has(&self, key: Key) -> Result<bool, redb::Error> {
        Ok(self.records.get(key.0)?.is_some())
    }

    pub(crate) fn put_row(&mut self, number: u64, bytes: &[u8]) -> Result<(), redb::Error> {
        self.rows.insert(number, bytes)?;
        Ok(())
    }

    pub(crate) fn remove_row(&mut self, number: u64) -> Result<(), redb::Error> {
        self.rows.remove(number)?;
        Ok(())
    }

    fn put(&mut self, record: &Record) -> Result<(), redb::Error> {
        let old = self.records.insert(record.key.0, record::encode(record).as_slice())?;
        let old = old.map(|row| row.value().to_vec());
        self.gone(record.key, old);
        self.effects
            .push(Effect::Put { name: record::name(&record.bundle.id), payload: record.payload.clone() });
        if self.meta.get(NEXT_KEY)?.is_none_or(|next| next.value() <= record.key.0) {
            self.meta.insert(NEXT_KEY, record.key.0.saturating_add(1))?;
        }
        Ok(())
    }

    fn remove(&mut self, key: Key) -> Result<(), redb::Error> {
        let old = self.records.remove(key.0)?.map(|row| row.value().to_vec());
        if old.is_some() {
            self.gone(key, old);
        }
        Ok(())
    }

    fn gone(&mut self, key: Key, old: Option<Vec<u8>>) {
        // Unreadable rows are removed at the start, before the state knows of them.
        if let Some(Ok(outline)) = old.as_deref().map(record::outline) {
            self.effects.push(Effect::Gone { name: outline.name, payload: outline.payload });
        }
        self.undo.push(UndoStep::Record(key.0, old));
    }

    fn remember(&mut self, name: Vec<u8>, until: u64) -> Result<(), redb::Error> {
        let was_there = self.seen.insert((until, name.as_slice()), ())?.is_some();
        self.undo.push(UndoStep::Seen(until, name.clone(), was_there));
        self.effects.push(Effect::Seen { name, until });
        while self.seen.len()? > self.max_seen {
            self.forget_first()?;
        }
        Ok(())
    }

    fn forget(&mut self, before: u64) -> Result<(), redb::Error> {
        while self.seen.first()?.is_some_and(|(key, _)| key.value().0 < before) {
            self.forget_first()?;
        }
        Ok(())
    }

    fn forget_first(&mut self) -> Result<(), redb::Error> {
        let first = self.seen.pop_first()?.map(|(key, _)| {
            let (until, name) = key.value();
            (until, name.to_vec())
        });
        if let Some((until, name)) = first {
            self.undo.push(UndoStep::Seen(until, name.clone(), true));
            self.effects.push(Effect::Forgotten { name, until });
        }
        Ok(())
    }

    fn close(self) -> (Vec<UndoStep>, Vec<Effect>) {
        (self.undo, self.effects)
    }

    fn next_serial(&mut self) -> Result<u64, redb::Error> {
        let serial = self.meta.get(SERIAL)?.map_or(0, |serial| serial.value()) + 1;
        self.meta.insert(SERIAL, serial)?;
        Ok(serial)
    }
}

/// Undoes a transaction if it was committed.
fn roll_back(database: &Database, uncertain: &UncertainCommit) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut meta = transaction.open_table(META)?;
        if meta.get(SERIAL)?.map(|serial| serial.value()) != Some(uncertain.serial) {
            return Ok(());
        }
        meta.insert(SERIAL, uncertain.serial + 1)?;
        let mut records = transaction.open_table(RECORDS)?;
        let mut seen = transaction.open_table(SEEN)?;
        for step in uncertain.undo.iter().rev() {
            match step {
                UndoStep::Record(key, Some(row)) => drop(records.insert(key, row.as_slice())?),
                UndoStep::Record(key, None) => drop(records.remove(key)?),
                UndoStep::Seen(until, name, true) => drop(seen.insert((*until, name.as_slice()), ())?),
                UndoStep::Seen(until, name, false) => drop(seen.remove((*until, name.as_slice()))?),
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Duration;

    use redb::StorageBackend;
    use redb::backends::FileBackend;

    use super::*;
    use crate::DtnTime;
    use crate::bundle::Bundle;
    use crate::store::{Payload, Purpose};

    /// A disk that fails: after so many more calls, once or for good. The data has been written nevertheless.
    #[derive(Debug, Default)]
    struct Faults {
        syncs: AtomicI64,
        writes: AtomicI64,
        opens: AtomicI64,
    }

    #[derive(Debug)]
    struct Flaky(FileBackend, Arc<Faults>);

    fn fail_when_due(countdown: &AtomicI64) -> Result<(), io::Error> {
        match countdown.fetch_sub(1, Ordering::Relaxed) {
            1 => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        }
    }

    impl StorageBackend for Flaky {
        fn len(&self) -> Result<u64, io::Error> {
            self.0.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
            self.0.read(offset, out)
        }

        fn set_len(&self, len: u64) -> Result<(), io::Error> {
            self.0.set_len(len)
        }

        fn sync_data(&self) -> Result<(), io::Error> {
            self.0.sync_data()?;
            fail_when_due(&self.1.syncs)
        }

        fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
            self.0.write(offset, data)?;
            fail_when_due(&self.1.writes)
        }
    }

    fn flaky(folder: &Path) -> (Index, Arc<Faults>) {
        let faults = Arc::new(Faults::default());
        let shared = faults.clone();
        let opener = move |path: &Path| {
            fail_when_due(&shared.opens)?;
            let mut options = std::fs::OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
            Database::builder().create_with_backend(Flaky(FileBackend::new(file)?, shared.clone()))
        };
        (Index::open_by(Box::new(opener), folder.join("index.redb"), 100).unwrap(), faults)
    }

    fn record(key: u64) -> Record {
        let eid = |text: &str| text.parse().unwrap();
        let bundle =
            Bundle::new(eid("dtn://a/"), DtnTime::UNKNOWN, key, eid("dtn://b/"), Duration::from_secs(1));
        Record {
            key: Key(key),
            bundle: Arc::new(bundle),
            payload: Payload::default(),
            received: DtnTime::UNKNOWN,
            expires: DtnTime::UNKNOWN,
            from: None,
            purpose: Purpose::Forward,
        }
    }

    fn change(index: &Index, changes: &[Change]) -> Result<(), StoreError> {
        index.transact(|tables| changes.iter().try_for_each(|change| tables.apply(change))).map(|_| ())
    }

    fn state(index: &Index) -> String {
        let contents = index.contents().unwrap();
        format!("{:?} {:?}", contents.records, contents.seen)
    }

    /// All that can change: one comes, one goes, one changes, one is replaced, one name comes, one goes.
    fn changes() -> Vec<Change> {
        let seen = |sequence, until| Change::Seen {
            id: record(sequence).bundle.id.clone(),
            until: DtnTime::from_millis(until),
        };
        let replaced = Record { expires: DtnTime::from_millis(9), ..record(3) };
        vec![
            Change::Forget(DtnTime::from_millis(20)),
            Change::Remove(Key(1)),
            Change::Purpose(Key(2), Purpose::Deliver),
            Change::Put(replaced),
            Change::Put(record(4)),
            seen(7, 30),
            seen(8, 40),
        ]
    }

    fn filled(folder: &Path) -> (Index, Arc<Faults>) {
        let (index, faults) = flaky(folder);
        let mut first: Vec<Change> = (1..=3).map(|key| Change::Put(record(key))).collect();
        first.push(Change::Seen { id: record(6).bundle.id.clone(), until: DtnTime::from_millis(10) });
        first.push(Change::Seen { id: record(7).bundle.id.clone(), until: DtnTime::from_millis(30) });
        change(&index, &first).unwrap();
        (index, faults)
    }

    /// The last sync of a commit fails after all has been written: what counts on the disk is taken back.
    #[test]
    fn a_commit_that_failed_does_not_count_even_if_it_reached_the_disk() {
        for (kind, nth) in (1..=3).map(|nth| ("sync", nth)).chain((1..=12).map(|nth| ("write", nth))) {
            for fails_to_open in [false, true] {
                let folder = tempfile::tempdir().unwrap();
                let (index, faults) = filled(folder.path());
                let before = state(&index);
                let countdown = if kind == "sync" { &faults.syncs } else { &faults.writes };
                countdown.store(nth, Ordering::Relaxed);
                faults.opens.store(i64::from(fails_to_open), Ordering::Relaxed);
                let outcome = change(&index, &changes());
                let struck = countdown.load(Ordering::Relaxed) <= 0;
                countdown.store(0, Ordering::Relaxed);
                if outcome.is_err() {
                    assert!(struck, "{kind} {nth}");
                    assert_eq!(state(&index), before, "{kind} {nth}");
                    change(&index, &changes()).unwrap();
                }
                let after = state(&index);
                assert_ne!(after, before);
                drop(index);
                let again = Index::open(folder.path().join("index.redb"), 100).unwrap();
                assert_eq!(state(&again), after, "{kind} {nth}");
            }
        }
    }
}
