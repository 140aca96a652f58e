//! The thread that writes the index: whoever waits for it shares its next transaction.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use super::handle::Core;
use super::index::Tables;
use super::ledger::FIRST_ROW;
use super::{Change, Payload, StoreError, lock};

/// Jobs in a transaction at the most.
const GROUP: usize = 1024;

/// The thread, as others see it. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Committer {
    inbox: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Commit { changes: Vec<Change>, reply: SyncSender<Result<(), StoreError>> },
    GiveUp(Payload),
}

/// The changes of one caller.
struct Order {
    changes: Vec<Change>,
    reply: SyncSender<Result<(), StoreError>>,
    /// What has become of it so far.
    result: Result<(), StoreError>,
}

impl Committer {
    pub(crate) fn start(core: Arc<Core>) -> Result<Self, StoreError> {
        let (inbox, jobs) = channel();
        let folder = core.files.folder().to_owned();
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || run(&core, &jobs))
            .map_err(|error| StoreError::io("start the thread of", &folder, error))?;
        Ok(Self { inbox: Some(inbox), thread: Some(thread) })
    }

    /// Waits until the changes are on the disk; `None` if the thread has ended.
    pub(crate) fn commit(&self, changes: Vec<Change>) -> Option<Result<(), StoreError>> {
        let (reply, result) = sync_channel(1);
        self.inbox.as_ref()?.send(Job::Commit { changes, reply }).ok()?;
        result.recv().ok()
    }

    pub(crate) fn give_up(&self, payload: Payload) {
        if let Some(inbox) = &self.inbox {
            let _ = inbox.send(Job::GiveUp(payload));
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(core: &Core, jobs: &Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let mut orders = Vec::new();
        for job in std::iter::once(first).chain(jobs.try_iter().take(GROUP - 1)) {
            match job {
                Job::Commit { changes, reply } => orders.push(Order { changes, reply, result: Ok(()) }),
                Job::GiveUp(payload) => {
                    let doomed = lock(&core.ledger).give_up(&payload);
                    core.files.delete(&doomed);
                }
            }
        }
        let doomed = settle(core, &mut orders);
        for order in orders {
            let _ = order.reply.send(order.result);
        }
        core.files.delete(&doomed);
    }
}

/// Carries out what was ordered. Returns the files that are to be deleted.
fn settle(core: &Core, orders: &mut [Order]) -> Vec<u64> {
    if orders.is_empty() {
        return Vec::new();
    }
    for order in orders.iter_mut() {
        order.result = pin(core, &order.changes);
    }
    let pinned: Vec<Payload> = orders
        .iter()
        .filter(|order| order.result.is_ok())
        .flat_map(|order| payloads(&order.changes))
        .collect();
    let mut doomed = Vec::new();
    if let Err(error) = transact(core, orders, &mut doomed) {
        // Where there is no room for new bundles there may be room for the changes that make room.
        let makes_room = |order: &Order| payloads(&order.changes).next().is_none();
        let again = error.is_full() && !orders.iter().all(makes_room);
        for order in orders.iter_mut().filter(|order| order.result.is_ok() && !(again && makes_room(order))) {
            order.result = Err(error.clone());
        }
        if again && let Err(error) = transact(core, orders, &mut doomed) {
            for order in orders.iter_mut().filter(|order| order.result.is_ok()) {
                order.result = Err(error.clone());
            }
        }
    }
    let mut ledger = lock(&core.ledger);
    for payload in &pinned {
        doomed.extend(ledger.unpin(payload));
    }
    for order in orders.iter().filter(|order| order.result.is_err()) {
        for payload in payloads(&order.changes) {
            doomed.extend(ledger.give_up(&payload));
        }
    }
    doomed
}

fn payloads(changes: &[Change]) -> impl Iterator<Item = Payload> {
    changes.iter().filter_map(|change| match change {
        Change::Put(record) => Some(record.payload.clone()),
        _ => None,
    })
}

/// Keeps the files of new records until they are settled. All of them, or none.
fn pin(core: &Core, changes: &[Change]) -> Result<(), StoreError> {
    let mut ledger = lock(&core.ledger);
    let mut pinned: Vec<&Payload> = Vec::new();
    for change in changes {
        let Change::Put(record) = change else { continue };
        if let Err(missing) = ledger.pin(&record.payload) {
            let doomed: Vec<u64> = pinned.into_iter().flat_map(|payload| ledger.unpin(payload)).collect();
            core.files.delete(&doomed);
            return Err(StoreError::NoSuchBytes {
                bundle: record.bundle.id.to_string(),
                file: missing.file,
                end: missing.offset.saturating_add(missing.len),
            });
        }
        pinned.push(&record.payload);
    }
    Ok(())
}

/// One transaction for all orders that have not failed; those that the store has no room for fail alone.
fn transact(core: &Core, orders: &mut [Order], doomed: &mut Vec<u64>) -> Result<(), StoreError> {
    let (new_files, dead_rows) = {
        let mut ledger = lock(&core.ledger);
        let new =
            orders.iter().filter(|order| order.result.is_ok()).flat_map(|order| payloads(&order.changes));
        (new.into_iter().any(|payload| ledger.has_fresh_files(&payload)), ledger.take_dead_rows())
    };
    let outcome = (|| {
        if new_files {
            core.files.sync_payloads()?;
        }
        core.index.transact(|tables| {
            for row in &dead_rows {
                tables.remove_row(*row)?;
            }
            let mut room = Room::default();
            for order in orders.iter_mut().filter(|order| order.result.is_ok()) {
                match room.for_these(core, tables, &order.changes)? {
                    Ok(()) => write(core, tables, &order.changes)?,
                    Err(full) => order.result = Err(full),
                }
            }
            Ok(())
        })
    })();
    match outcome {
        Ok(((), effects)) => {
            doomed.extend(lock(&core.ledger).follow(&effects));
            Ok(())
        }
        Err(error) => {
            lock(&core.ledger).give_back_dead_rows(dead_rows);
            Err(error)
        }
    }
}

fn write(core: &Core, tables: &mut Tables<'_>, changes: &[Change]) -> Result<(), redb::Error> {
    for change in changes {
        if let Change::Put(record) = change {
            for extent in record.payload.0.iter().filter(|extent| extent.file >= FIRST_ROW) {
                let bytes = lock(&core.ledger).memory(extent.file);
                if let Some(bytes) = bytes {
                    tables.put_row(extent.file, &bytes)?;
                }
            }
        }
        tables.apply(change)?;
    }
    Ok(())
}

/// How many bundles a transaction has added and removed so far.
#[derive(Default)]
struct Room {
    added: usize,
    gone: usize,
}

impl Room {
    fn for_these(
        &mut self,
        core: &Core,
        tables: &Tables<'_>,
        changes: &[Change],
    ) -> Result<Result<(), StoreError>, redb::Error> {
        let (mut added, mut gone) = (self.added, self.gone);
        for change in changes {
            match change {
                Change::Put(record) => added += usize::from(!tables.has(record.key)?),
                Change::Remove(key) => gone += usize::from(tables.has(*key)?),
                _ => {}
            }
        }
        // An order that only lets go needs no room, however full the store is.
        let allowed = if added == self.added { Ok(()) } else { lock(&core.ledger).allows(added, gone) };
        if let Err((wanted, limit)) = allowed {
            return Ok(Err(StoreError::Full { folder: core.files.folder().to_owned(), wanted, limit }));
        }
        (self.added, self.gone) = (added, gone);
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bentpipe_units::ByteCount;

    use super::*;
    use crate::DtnTime;
    use crate::bundle::Bundle;
    use crate::store::{Extent, Key, Purpose, Record, Store, StoreConfig};

    fn order(changes: Vec<Change>) -> Order {
        Order { changes, reply: sync_channel(1).0, result: Ok(()) }
    }

    fn put(key: u64, payload: Payload) -> Change {
        let eid = |text: &str| text.parse().unwrap();
        let bundle =
            Bundle::new(eid("dtn://a/"), DtnTime::UNKNOWN, key, eid("dtn://b/"), Duration::from_secs(1));
        Change::Put(Record {
            key: Key(key),
            bundle: Arc::new(bundle),
            payload,
            received: DtnTime::UNKNOWN,
            expires: DtnTime::UNKNOWN,
            from: None,
            purpose: Purpose::Forward,
        })
    }

    #[test]
    fn who_waits_together_shares_a_transaction_and_fails_alone() {
        let folder = tempfile::tempdir().unwrap();
        let config = StoreConfig {
            folder: folder.path().join("store"),
            quota: ByteCount::new(1 << 20),
            max_bundles: 4,
            keep_free: ByteCount::new(0),
        };
        let (store, _) = Store::open(config).unwrap();
        let payload = || {
            let mut writer = store.begin(None).unwrap();
            writer.write(&[7; 5000]).unwrap();
            writer.finish().unwrap()
        };
        let (fine, lost) = (payload(), payload());
        let nowhere = Payload(vec![Extent { file: 77, offset: 0, len: 1 }]);
        let empty = Payload::default;
        let mut orders = [
            order(vec![put(1, fine.clone())]),
            order(vec![put(2, lost.clone()), put(3, nowhere)]),
            order(vec![put(4, empty()), put(5, empty()), put(6, empty())]),
            order(vec![put(7, empty())]),
            order(vec![Change::Remove(Key(4)), put(8, empty())]),
            order(vec![Change::Remove(Key(5))]),
        ];
        let before = store.core.index.serial();
        let doomed = settle(&store.core, &mut orders);
        assert_eq!(store.core.index.serial(), before + 1, "one transaction");
        let fine_or_not = orders.map(|order| order.result.map_err(|error| error.is_full()));
        assert_eq!(fine_or_not, [Ok(()), Err(false), Ok(()), Err(true), Ok(()), Ok(())]);
        assert_eq!(doomed, [lost.0[0].file]);
        assert_eq!((store.usage().bundles, store.usage().files), (3, 1));
    }
}
