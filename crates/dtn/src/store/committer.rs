//! The thread that writes the index. All waiting callers share its next transaction.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::handle::Core;
use super::index::Tables;
use super::state::FIRST_ROW;
use super::{Change, Payload, StoreError, lock};

/// The most jobs in a transaction.
const MAX_BATCH: usize = 1024;

/// A handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Committer {
    sender: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

enum Job {
    Commit { changes: Vec<Change>, reply: Reply },
    Discard(Payload),
}

/// Learns the outcome, on the committer's thread.
pub(crate) type Reply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The changes of one caller.
struct Request {
    changes: Vec<Change>,
    reply: Reply,
    /// The outcome so far.
    result: Result<(), StoreError>,
}

impl Request {
    fn lets_go(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, Change::Remove(_)))
    }

    fn answer(self) {
        (self.reply)(self.result);
    }
}

impl Committer {
    pub(crate) fn start(core: Arc<Core>) -> Result<Self, StoreError> {
        let (sender, jobs) = channel();
        let folder = core.files.folder().to_owned();
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || run(&core, &jobs))
            .map_err(|error| StoreError::io("start the thread of", &folder, error))?;
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    /// Has the changes brought to the disk, and `reply` called then. Gives `reply` back if the thread has
    /// ended.
    pub(crate) fn submit(&self, changes: Vec<Change>, reply: Reply) -> Result<(), Reply> {
        let Some(sender) = &self.sender else { return Err(reply) };
        sender.send(Job::Commit { changes, reply }).map_err(|error| match error.0 {
            Job::Commit { reply, .. } => reply,
            Job::Discard(_) => Box::new(drop),
        })
    }

    pub(crate) fn discard(&self, payload: Payload) {
        if let Some(sender) = &self.sender {
            let _ = sender.send(Job::Discard(payload));
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.sender = None;
        // A reply that held the last handle of the store is dropped by the thread itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn run(core: &Core, jobs: &Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let mut requests = Vec::new();
        for job in std::iter::once(first).chain(jobs.try_iter().take(MAX_BATCH - 1)) {
            match job {
                Job::Commit { changes, reply } => requests.push(Request { changes, reply, result: Ok(()) }),
                Job::Discard(payload) => {
                    let unreferenced = lock(&core.state).discard(&payload);
                    core.files.delete(&unreferenced);
                }
            }
        }
        let unreferenced = commit_batch(core, &mut requests);
        // Whoever lets a bundle go may count on its room when the answer comes; others need not wait for it.
        let (letting_go, others): (Vec<Request>, Vec<Request>) =
            requests.into_iter().partition(Request::lets_go);
        others.into_iter().for_each(Request::answer);
        core.files.delete(&unreferenced);
        letting_go.into_iter().for_each(Request::answer);
    }
}

/// Carries out the requests. Returns the files to delete.
fn commit_batch(core: &Core, requests: &mut [Request]) -> Vec<u64> {
    if requests.is_empty() {
        return Vec::new();
    }
    for request in requests.iter_mut() {
        request.result = pin(core, &request.changes);
    }
    let pinned: Vec<Payload> = requests
        .iter()
        .filter(|request| request.result.is_ok())
        .flat_map(|request| payloads(&request.changes))
        .collect();
    let mut unreferenced = Vec::new();
    if let Err(error) = transact(core, requests, &mut unreferenced) {
        // If new bundles do not fit, requests that only free space may still succeed.
        let makes_room = |request: &Request| payloads(&request.changes).next().is_none();
        let again = error.is_full() && !requests.iter().all(makes_room);
        for request in
            requests.iter_mut().filter(|request| request.result.is_ok() && !(again && makes_room(request)))
        {
            request.result = Err(error.clone());
        }
        if again && let Err(error) = transact(core, requests, &mut unreferenced) {
            for request in requests.iter_mut().filter(|request| request.result.is_ok()) {
                request.result = Err(error.clone());
            }
        }
    }
    let mut state = lock(&core.state);
    for payload in &pinned {
        unreferenced.extend(state.unpin(payload));
    }
    for request in requests.iter().filter(|request| request.result.is_err()) {
        for payload in payloads(&request.changes) {
            unreferenced.extend(state.discard(&payload));
        }
    }
    unreferenced
}

fn payloads(changes: &[Change]) -> impl Iterator<Item = Payload> {
    changes.iter().filter_map(|change| match change {
        Change::Put(record) => Some(record.payload.clone()),
        _ => None,
    })
}

/// Pins the files of new records until the commit is over: all of them, or none.
fn pin(core: &Core, changes: &[Change]) -> Result<(), StoreError> {
    let mut state = lock(&core.state);
    let mut pinned: Vec<&Payload> = Vec::new();
    for change in changes {
        let Change::Put(record) = change else { continue };
        if let Err(missing) = state.pin(&record.payload) {
            let unreferenced: Vec<u64> =
                pinned.into_iter().flat_map(|payload| state.unpin(payload)).collect();
            core.files.delete(&unreferenced);
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

/// One transaction for all requests that have not failed. Those that do not fit fail alone.
fn transact(core: &Core, requests: &mut [Request], unreferenced: &mut Vec<u64>) -> Result<(), StoreError> {
    let (new_files, dead_rows) = {
        let mut state = lock(&core.state);
        let new = requests
            .iter()
            .filter(|request| request.result.is_ok())
            .flat_map(|request| payloads(&request.changes));
        (new.into_iter().any(|payload| state.has_fresh_files(&payload)), state.take_dead_rows())
    };
    let outcome = (|| {
        if new_files {
            core.files.sync_payloads()?;
        }
        core.index.transact(|tables| {
            for row in &dead_rows {
                tables.remove_row(*row)?;
            }
            let mut room = BundleCount::default();
            for request in requests.iter_mut().filter(|request| request.result.is_ok()) {
                match room.for_these(core, tables, &request.changes)? {
                    Ok(()) => write(core, tables, &request.changes)?,
                    Err(full) => request.result = Err(full),
                }
            }
            Ok(())
        })
    })();
    match outcome {
        Ok(((), effects)) => {
            unreferenced.extend(lock(&core.state).follow(&effects));
            Ok(())
        }
        Err(error) => {
            lock(&core.state).return_dead_rows(dead_rows);
            Err(error)
        }
    }
}

fn write(core: &Core, tables: &mut Tables<'_>, changes: &[Change]) -> Result<(), redb::Error> {
    for change in changes {
        if let Change::Put(record) = change {
            for extent in record.payload.0.iter().filter(|extent| extent.file >= FIRST_ROW) {
                let bytes = lock(&core.state).memory(extent.file);
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
struct BundleCount {
    added: usize,
    gone: usize,
}

impl BundleCount {
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
        let allowed = if added == self.added { Ok(()) } else { lock(&core.state).allows(added, gone) };
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

    fn request(changes: Vec<Change>) -> Request {
        Request { changes, reply: Box::new(drop), result: Ok(()) }
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
    fn waiting_commits_share_a_transaction_and_fail_alone() {
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
        let mut requests = [
            request(vec![put(1, fine.clone())]),
            request(vec![put(2, lost.clone()), put(3, nowhere)]),
            request(vec![put(4, empty()), put(5, empty()), put(6, empty())]),
            request(vec![put(7, empty())]),
            request(vec![Change::Remove(Key(4)), put(8, empty())]),
            request(vec![Change::Remove(Key(5))]),
        ];
        let before = store.core.index.serial();
        let unreferenced = commit_batch(&store.core, &mut requests);
        assert_eq!(store.core.index.serial(), before + 1, "one transaction");
        let fine_or_not = requests.map(|request| request.result.map_err(|error| error.is_full()));
        assert_eq!(fine_or_not, [Ok(()), Err(false), Ok(()), Err(true), Ok(()), Ok(())]);
        assert_eq!(unreferenced, [lost.0[0].file]);
        assert_eq!((store.usage().bundles, store.usage().files), (3, 1));
    }
}
