//! Any sequence of changes, with restarts in between, against a map in memory.

use std::collections::BTreeMap;
use std::path::Path;

use bentpipe_dtn::DtnTime;
use bentpipe_dtn::store::{Change, Key, Purpose, Record, Store};
use proptest::prelude::*;

use crate::store_common::{bundle, bytes, keep, open, payload, read, record, wait_for_files};

#[derive(Debug, Clone)]
enum Step {
    Put(usize),
    /// A part of one of the bundles becomes another bundle, in thousandths.
    Cut(usize, u64, u64),
    /// One bundle of two; they go.
    Join(usize, usize),
    Remove(usize),
    Deliver(usize),
    Seen(u64, u64),
    Forget(u64),
    GiveUp(usize),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![Just(0_usize), 1..5000_usize, 60_000..70_000_usize];
    prop_oneof![
        4 => len.clone().prop_map(Step::Put),
        3 => (any::<usize>(), 0..1000_u64, 0..1000_u64).prop_map(|(of, a, b)| Step::Cut(of, a.min(b), a.max(b))),
        2 => (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Step::Join(a, b)),
        4 => any::<usize>().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::Deliver),
        1 => (0..5_u64, 0..100_u64).prop_map(|(number, until)| Step::Seen(number, until)),
        1 => (0..100_u64).prop_map(Step::Forget),
        1 => len.prop_map(Step::GiveUp),
        2 => Just(Step::Restart),
    ]
}

/// What should be in the store.
#[derive(Default)]
struct Model {
    bundles: BTreeMap<Key, (Record, Vec<u8>)>,
    seen: BTreeMap<u64, u64>,
    next: u64,
}

impl Model {
    fn pick(&self, which: usize) -> Option<&(Record, Vec<u8>)> {
        let len = self.bundles.len().max(1);
        self.bundles.values().nth(which % len)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        1000 + self.next
    }

    fn put(&mut self, record: Record, content: Vec<u8>) -> Change {
        self.bundles.insert(record.key, (record.clone(), content));
        Change::Put(record)
    }

    fn take(&mut self, key: Key) -> Change {
        self.bundles.remove(&key);
        Change::Remove(key)
    }

    fn step(&mut self, store: &Store, step: &Step) {
        let changes = match *step {
            Step::Put(len) => {
                let number = self.number();
                let new = record(store, number, payload(store, number, len).unwrap());
                vec![self.put(new, bytes(number, len))]
            }
            Step::Cut(of, from, to) => {
                let number = self.number();
                let Some((whole, content)) = self.pick(of).cloned() else { return };
                let at = |thousandths| content.len() as u64 * thousandths / 1000;
                let range = at(from)..at(to);
                let part = record(store, number, whole.payload.slice(range.clone()));
                vec![self.put(part, content[range.start as usize..range.end as usize].to_vec())]
            }
            Step::Join(a, b) => {
                let number = self.number();
                let (Some(a), Some(b)) = (self.pick(a).cloned(), self.pick(b).cloned()) else { return };
                let mut joined = a.0.payload.clone();
                joined.0.extend(b.0.payload.0);
                let mut changes = vec![self.take(a.0.key), self.take(b.0.key)];
                changes.push(self.put(record(store, number, joined), [a.1, b.1].concat()));
                changes
            }
            Step::Remove(which) => {
                let Some(key) = self.pick(which).map(|(record, _)| record.key) else { return };
                vec![self.take(key)]
            }
            Step::Deliver(which) => {
                let Some((mut record, content)) = self.pick(which).cloned() else { return };
                record.purpose = Purpose::Deliver;
                let key = record.key;
                self.put(record, content);
                vec![Change::Purpose(key, Purpose::Deliver)]
            }
            Step::Seen(number, until) => {
                let end = self.seen.entry(number).or_default();
                *end = until.max(*end);
                vec![Change::Seen { id: bundle(number, 0).id, until: DtnTime::from_millis(until) }]
            }
            Step::Forget(before) => {
                self.seen.retain(|_, until| *until >= before);
                vec![Change::Forget(DtnTime::from_millis(before))]
            }
            Step::GiveUp(len) => {
                store.discard(payload(store, 5, len).unwrap());
                return;
            }
            Step::Restart => return,
        };
        store.commit(changes).unwrap();
    }

    fn check(&self, folder: &Path, store: &Store, records: Option<&[Record]>) {
        if let Some(records) = records {
            let expected = self.bundles.values().map(|(record, _)| format!("{record:?}"));
            let found = records.iter().map(|record| format!("{record:?}"));
            assert!(found.eq(expected), "{records:?}");
        }
        for (record, content) in self.bundles.values() {
            assert!(read(store, &record.payload) == *content && store.knows(&record.bundle.id));
        }
        for number in 0..5 {
            assert_eq!(store.knows(&bundle(number, 0).id), self.seen.contains_key(&number), "name {number}");
        }
        assert_eq!(store.usage().bundles, self.bundles.len());
        let extents = self.bundles.values().flat_map(|(record, _)| &record.payload.0);
        let mut numbers: Vec<u64> =
            extents.map(|extent| extent.file).filter(|file| *file < 1 << 63).collect();
        numbers.sort_unstable();
        numbers.dedup();
        wait_for_files(folder, numbers.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn the_store_is_a_map_that_survives_restarts(steps in proptest::collection::vec(step(), 1..40)) {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = open(folder.path());
        let mut model = Model::default();
        for step in &steps {
            if matches!(step, Step::Restart) {
                // Files that nobody needs any more go without a restart.
                model.check(folder.path(), &store, None);
                drop(store);
                let records;
                (store, records) = open(folder.path());
                // A small payload that nobody needs any more goes with the next transaction: there was none,
                // perhaps.
                let recovery = store.recovery();
                prop_assert!(recovery.damaged.is_empty() && recovery.unreadable == 0, "{:?}", recovery);
                model.check(folder.path(), &store, Some(&records));
            } else {
                model.step(&store, step);
            }
        }
        model.check(folder.path(), &store, None);
        keep(&store, 1, 10).unwrap();
    }
}
