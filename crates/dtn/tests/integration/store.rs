//! What the store promises, and what it refuses.

use std::io::Read;
use std::os::unix::fs::FileExt;

use bentpipe_dtn::DtnTime;
use bentpipe_dtn::store::{
    Change, Extent, Limit, Payload, Purpose, Record, SEEN_PER_BUNDLE, Store, StoreConfig, StoreError,
};
use bentpipe_units::ByteCount;

use crate::store_common::{bundle, bytes, config, files, keep, open, payload, read, record, wait_for_files};

#[test]
fn committed_bundles_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (store, none) = open(folder.path());
    assert!(none.is_empty());
    let lengths = [0, 1, 100, 4096, 4097, 65_536, 65_537, 3_000_000];
    for (number, len) in lengths.into_iter().enumerate() {
        keep(&store, number as u64, len).unwrap();
    }
    let before = store.usage();
    drop(store);
    let (store, records) = open(folder.path());
    assert_eq!(store.recovery(), &Default::default());
    assert_eq!(store.usage(), before);
    assert_eq!(before.bundles, lengths.len());
    assert_eq!(before.bytes.get(), lengths.iter().sum::<usize>() as u64);
    for (number, len) in lengths.into_iter().enumerate() {
        let record = &records[number];
        assert_eq!(*record.bundle, bundle(number as u64, len as u64));
        assert_eq!(read(&store, &record.payload), bytes(number as u64, len), "{len} bytes");
        assert!(store.knows(&record.bundle.id));
    }
    assert!(store.next_key() > records.last().unwrap().key);
}

#[test]
fn keys_are_not_used_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let key = keep(&store, 1, 10).unwrap();
    store.commit(vec![Change::Remove(key)]).unwrap();
    drop(store);
    assert!(open(folder.path()).0.next_key() > key);
}

#[test]
fn a_file_lives_as_long_as_a_fragment_needs_it() {
    for len in [3000, 300_000] {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = open(folder.path());
        let whole = payload(&store, 7, len).unwrap();
        let cut = len as u64 / 3;
        let parts = [whole.slice(0..cut), whole.slice(cut..len as u64)];
        let records: Vec<Record> = (0..).zip(parts).map(|(n, part)| record(&store, n, part)).collect();
        store.commit(records.iter().cloned().map(Change::Put).collect()).unwrap();
        assert_eq!(store.usage().bytes.get(), len as u64);
        store.commit(vec![Change::Remove(records[0].key)]).unwrap();
        drop(store);
        let (store, left) = open(folder.path());
        assert_eq!(left.len(), 1);
        assert_eq!(read(&store, &left[0].payload), bytes(7, len)[cut as usize..]);
        assert_eq!(store.usage().bytes.get(), len as u64);
        store.commit(vec![Change::Remove(left[0].key)]).unwrap();
        assert_eq!(store.usage().bytes.get(), 0);
        wait_for_files(folder.path(), 0);
    }
}

#[test]
fn fragments_are_joined_without_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let parts = [(1, 5000), (2, 40), (3, 100_000)].map(|(number, len)| {
        let record = record(&store, number, payload(&store, number, len).unwrap());
        store.commit(vec![Change::Put(record.clone())]).unwrap();
        record
    });
    let joined = Payload(parts.iter().flat_map(|part| part.payload.0.clone()).collect());
    let whole = record(&store, 4, joined);
    let mut changes: Vec<Change> = parts.iter().map(|part| Change::Remove(part.key)).collect();
    changes.push(Change::Put(whole.clone()));
    store.commit(changes).unwrap();
    let expected = [bytes(1, 5000), bytes(2, 40), bytes(3, 100_000)].concat();
    assert_eq!(read(&store, &whole.payload), expected);
    let mut reader = store.read(&whole.payload);
    let mut part = [0; 100];
    assert_eq!(reader.read_at(5010, &mut part).unwrap(), 30, "the rest of the second fragment");
    assert_eq!(part[..30], expected[5010..5040]);
    reader.set_position(5030);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, expected[5030..]);
    assert_eq!(read(&store, &whole.payload.slice(4990..5050)), expected[4990..5050]);
}

#[test]
fn a_payload_being_read_stays_readable_to_its_end() {
    for len in [1000, 200_000] {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = open(folder.path());
        let record = record(&store, 1, payload(&store, 1, len).unwrap());
        store.commit(vec![Change::Put(record.clone())]).unwrap();
        let mut reader = store.read(&record.payload);
        store.commit(vec![Change::Remove(record.key)]).unwrap();
        assert!(!store.knows(&record.bundle.id));
        // A second one would delete what the first had left to be deleted.
        store.commit(vec![Change::Remove(record.key)]).unwrap();
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert_eq!(all, bytes(1, len));
        drop(reader);
        assert_eq!(store.usage().bytes.get(), 0);
        wait_for_files(folder.path(), 0);
        let error = store.read(&record.payload).read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }
}

#[test]
fn a_writer_that_is_dropped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let mut writer = store.begin(Some(1_000_000)).unwrap();
    writer.write(&bytes(1, 300_000)).unwrap();
    assert_eq!((writer.len(), store.usage().bytes.get()), (300_000, 1_000_000));
    assert_eq!(files(folder.path()).len(), 1);
    drop(writer);
    assert_eq!((store.usage().bytes.get(), files(folder.path()).len()), (0, 0));
}

#[test]
fn a_payload_without_a_record_can_be_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let kept = record(&store, 2, payload(&store, 2, 10_000).unwrap());
    store.commit(vec![Change::Put(kept.clone())]).unwrap();
    let lost = payload(&store, 1, 10_000).unwrap();
    store.discard(lost.clone());
    store.discard(kept.payload.clone());
    wait_for_files(folder.path(), 1);
    assert_eq!(read(&store, &kept.payload), bytes(2, 10_000));
    // A record of it comes too late, and takes nothing along.
    let late = record(&store, 1, lost);
    let error = store.commit(vec![Change::Remove(kept.key), Change::Put(late)]).unwrap_err();
    assert!(matches!(error, StoreError::NoSuchBytes { .. }), "{error}");
    assert_eq!(read(&store, &kept.payload), bytes(2, 10_000));
}

#[test]
fn a_record_cannot_name_bytes_beyond_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    for (offset, len) in [(1, 10_000), (u64::MAX, 2), (0, u64::MAX)] {
        let Extent { file, .. } = payload(&store, 1, 10_000).unwrap().0[0];
        let wrong = record(&store, 1, Payload(vec![Extent { file, offset, len }]));
        assert!(matches!(store.commit(vec![Change::Put(wrong)]), Err(StoreError::NoSuchBytes { .. })));
    }
}

#[test]
fn a_full_store_refuses_and_accepts_again() {
    let folder = tempfile::tempdir().unwrap();
    let small = StoreConfig { quota: ByteCount::new(100_000), ..config(folder.path()) };
    let (store, _) = Store::open(small).unwrap();
    let refused = |error: StoreError| {
        assert!(error.is_full() && error.to_string().contains("raise quota"), "{error}");
        assert!(matches!(error, StoreError::Full { limit: Limit::Quota { .. }, .. }));
    };
    refused(store.begin(Some(100_001)).unwrap_err());
    refused(store.begin(Some(u64::MAX)).unwrap_err());
    let key = keep(&store, 1, 60_000).unwrap();
    refused(store.begin(Some(40_001)).unwrap_err());
    // Who announces little, or nothing, and sends more gets no further, and leaves nothing behind.
    for announced in [None, Some(10)] {
        let mut writer = store.begin(announced).unwrap();
        writer.write(&bytes(2, 30_000)).unwrap();
        refused(writer.write(&bytes(2, 10_001)).unwrap_err());
        refused(writer.write(&[1]).unwrap_err());
        assert_eq!(store.usage().bytes.get(), 60_000);
        refused(writer.finish().unwrap_err());
    }
    keep(&store, 2, 40_000).unwrap();
    refused(store.begin(Some(1)).unwrap_err());
    store.commit(vec![Change::Remove(key)]).unwrap();
    keep(&store, 3, 60_000).unwrap();
}

#[test]
fn there_is_a_limit_of_bundles() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(StoreConfig { max_bundles: 2, ..config(folder.path()) }).unwrap();
    let whole = payload(&store, 1, 10_000).unwrap();
    let waiting = store.begin(None).unwrap();
    let error = store.begin(None).unwrap_err();
    assert!(error.is_full() && error.to_string().contains("max_bundles"), "{error}");
    drop(waiting);
    // Fragments are bundles too.
    let parts = |first: u64, count: u64| -> Vec<Record> {
        let part = |n| record(&store, first + n, whole.slice(n * 10..n * 10 + 10));
        (0..count).map(part).collect()
    };
    let two = parts(0, 2);
    store.commit(two.iter().cloned().map(Change::Put).collect()).unwrap();
    let put = |record: &Record| Change::Put(record.clone());
    assert!(store.commit(parts(2, 1).iter().map(put).collect()).unwrap_err().is_full());
    assert_eq!(store.usage().bundles, 2);
    // One for one, and the same once more, is no more than there were.
    let third = parts(2, 1);
    store.commit(vec![put(&third[0]), Change::Remove(two[0].key)]).unwrap();
    store.commit(vec![put(&third[0])]).unwrap();
    assert_eq!(store.usage().bundles, 2);
    assert!(!store.knows(&two[0].bundle.id) && store.knows(&third[0].bundle.id));
}

#[test]
fn room_is_left_for_others() {
    let folder = tempfile::tempdir().unwrap();
    let greedy = StoreConfig { keep_free: ByteCount::new(u64::MAX / 2), ..config(folder.path()) };
    let (store, _) = Store::open(greedy).unwrap();
    let error = store.begin(Some(1)).unwrap_err();
    assert!(error.is_full() && error.to_string().contains("keep_free"), "{error}");
}

#[test]
fn a_folder_belongs_to_one_store() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let error = Store::open(config(folder.path())).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }) && error.to_string().contains("another process"));
    keep(&store, 1, 10_000).unwrap();
    let clone = store.clone();
    drop(store);
    assert!(Store::open(config(folder.path())).is_err());
    drop(clone);
    open(folder.path());
}

#[test]
fn names_are_remembered_until_their_time() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(StoreConfig { max_bundles: 2, ..config(folder.path()) }).unwrap();
    let seen =
        |number: u64, until| Change::Seen { id: bundle(number, 0).id, until: DtnTime::from_millis(until) };
    store.commit(vec![seen(1, 100), seen(2, 200), seen(2, 150), seen(3, 300)]).unwrap();
    store.commit(vec![Change::Forget(DtnTime::from_millis(200))]).unwrap();
    let known = |store: &Store| (1..=3).map(|number| store.knows(&bundle(number, 0).id)).collect::<Vec<_>>();
    assert_eq!(known(&store), [false, true, true]);
    drop(store);
    let (store, _) = Store::open(StoreConfig { max_bundles: 2, ..config(folder.path()) }).unwrap();
    assert_eq!(known(&store), [false, true, true]);
    // Where there are too many, those give way that would be forgotten first.
    let many = 2 * SEEN_PER_BUNDLE as u64;
    store.commit((0..many).map(|n| seen(10 + n, 1000 + n)).collect()).unwrap();
    assert_eq!(known(&store), [false, false, false]);
    assert!((0..many).all(|n| store.knows(&bundle(10 + n, 0).id)));
}

#[test]
fn a_purpose_changes_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let key = keep(&store, 1, 100).unwrap();
    let unknown = store.next_key();
    store
        .commit(vec![Change::Purpose(key, Purpose::Deliver), Change::Purpose(unknown, Purpose::Deliver)])
        .unwrap();
    store.commit(vec![Change::Remove(unknown)]).unwrap();
    drop(store);
    let (store, records) = open(folder.path());
    assert_eq!((records.len(), records[0].purpose), (1, Purpose::Deliver));
    assert_eq!(read(&store, &records[0].payload), bytes(1, 100));
}

#[test]
fn a_damaged_payload_costs_its_bundle_only() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let keys: Vec<_> = (0..5).map(|number| keep(&store, number, 10_000).unwrap()).collect();
    drop(store);
    let payloads = folder.path().join("store/payloads");
    let names = files(folder.path());
    std::fs::remove_file(payloads.join(&names[1])).unwrap();
    let short = std::fs::OpenOptions::new().write(true).open(payloads.join(&names[3])).unwrap();
    short.set_len(9_999).unwrap();
    // The leftover of an interrupted payload, and files of others.
    std::fs::write(payloads.join("00000000000000ff"), [0; 100]).unwrap();
    std::fs::write(payloads.join("README"), "keep out").unwrap();
    let (store, records) = open(folder.path());
    assert_eq!(records.iter().map(|record| record.key).collect::<Vec<_>>(), [keys[0], keys[2], keys[4]]);
    assert_eq!(store.recovery().damaged, [bundle(1, 0).id, bundle(3, 0).id]);
    assert_eq!(store.recovery().orphans, 2, "the short one, and the interrupted one");
    assert_eq!(files(folder.path()).len(), 4);
    assert!(!store.knows(&bundle(1, 0).id), "it may come again");
    keep(&store, 1, 10_000).unwrap();
    drop(store);
    let (store, records) = open(folder.path());
    assert_eq!((records.len(), store.recovery()), (4, &Default::default()));
}

#[test]
fn a_file_that_shrinks_is_an_error_and_no_end() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let record = record(&store, 1, payload(&store, 1, 100_000).unwrap());
    store.commit(vec![Change::Put(record.clone())]).unwrap();
    let path = folder.path().join("store/payloads").join(&files(folder.path())[0]);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(50_000).unwrap();
    file.write_at(b"x", 0).unwrap();
    let error = store.read(&record.payload).read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn without_its_payloads_an_index_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    keep(&store, 1, 10_000).unwrap();
    drop(store);
    let (payloads, away) = (folder.path().join("store/payloads"), folder.path().join("away"));
    std::fs::rename(&payloads, &away).unwrap();
    assert!(matches!(Store::open(config(folder.path())), Err(StoreError::NoPayloads { .. })));
    std::fs::rename(&away, &payloads).unwrap();
    assert_eq!(open(folder.path()).1.len(), 1);
}

#[test]
fn a_folder_that_cannot_be_made_or_an_index_that_is_none_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let error = Store::open(config(&folder.path().join("missing"))).unwrap_err().to_string();
    assert!(error.contains("cannot make") && error.contains("make the folder"), "{error}");
    std::fs::create_dir_all(folder.path().join("store/payloads")).unwrap();
    std::fs::write(folder.path().join("store/index.redb"), vec![7; 10_000]).unwrap();
    let error = Store::open(config(folder.path())).unwrap_err().to_string();
    assert!(error.contains("cannot open") && error.contains("index.redb"), "{error}");
}

#[test]
fn many_callers_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    std::thread::scope(|scope| {
        for caller in 0..16_u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..8 {
                    let number = caller * 8 + round;
                    let key = keep(store, number, 64 * (round as usize * 20 + 1)).unwrap();
                    if round % 2 == 1 {
                        store.commit(vec![Change::Remove(key)]).unwrap();
                    }
                }
            });
        }
    });
    drop(store);
    let (store, records) = open(folder.path());
    assert_eq!((records.len(), store.recovery()), (64, &Default::default()));
    for record in &records {
        let len = record.payload.len() as usize;
        assert_eq!(read(&store, &record.payload), bytes(record.bundle.id.sequence, len));
    }
}

#[test]
fn ten_thousand_bundles_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    for batch in 0..100_u64 {
        let number = |n| batch * 100 + n;
        let put = |n| Change::Put(record(&store, number(n), payload(&store, number(n), 50).unwrap()));
        store.commit((0..100).map(put).collect()).unwrap();
    }
    drop(store);
    let (store, records) = open(folder.path());
    assert_eq!((records.len(), store.usage().bundles), (10_000, 10_000));
    assert!(records.is_sorted_by_key(|record| record.key));
    assert_eq!(read(&store, &records[9_999].payload), bytes(9_999, 50));
}
