//! What the tests of the store share: bundles, and payloads whose bytes follow from their number.
#![allow(dead_code)]

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bentpipe_dtn::DtnTime;
use bentpipe_dtn::bundle::Bundle;
use bentpipe_dtn::store::{Change, Key, Payload, Purpose, Record, Store, StoreConfig, StoreError};
use bentpipe_units::ByteCount;

pub(crate) fn config(folder: &Path) -> StoreConfig {
    StoreConfig {
        folder: folder.join("store"),
        quota: ByteCount::new(1 << 30),
        max_bundles: 100_000,
        keep_free: ByteCount::new(0),
    }
}

/// A process that another test starts has a copy of our open files until it executes its program, the lock of
/// a store that we have closed among them.
pub(crate) fn open(folder: &Path) -> (Store, Vec<Record>) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match Store::open(config(folder)) {
            Err(StoreError::Locked(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10))
            }
            opened => return opened.unwrap(),
        }
    }
}

/// The bundle number `number`.
pub(crate) fn bundle(number: u64, len: u64) -> Bundle {
    let (source, destination) = ("dtn://gs1/test".parse().unwrap(), "dtn://gs2/in".parse().unwrap());
    let created = DtnTime::from_millis(1_000_000);
    let mut bundle = Bundle::new(source, created, number, destination, Duration::from_secs(3600));
    bundle.payload_len = len;
    bundle
}

pub(crate) fn record(store: &Store, number: u64, payload: Payload) -> Record {
    let bundle = bundle(number, payload.len());
    Record {
        key: store.next_key(),
        bundle: Arc::new(bundle),
        payload,
        received: DtnTime::from_millis(1_000_000),
        expires: DtnTime::from_millis(4_600_000),
        from: None,
        purpose: Purpose::Forward,
    }
}

/// The bytes of payload `number`.
pub(crate) fn bytes(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(next).collect()
}

pub(crate) fn payload(store: &Store, number: u64, len: usize) -> Result<Payload, StoreError> {
    let mut writer = store.begin(None)?;
    writer.write(&bytes(number, len))?;
    writer.finish()
}

/// Keeps bundle `number` with a payload of `len` bytes.
pub(crate) fn keep(store: &Store, number: u64, len: usize) -> Result<Key, StoreError> {
    let record = record(store, number, payload(store, number, len)?);
    let key = record.key;
    store.commit(vec![Change::Put(record)])?;
    Ok(key)
}

pub(crate) fn read(store: &Store, payload: &Payload) -> Vec<u8> {
    let mut all = Vec::new();
    store.read(payload).read_to_end(&mut all).unwrap();
    all
}

/// Names in the folder of payloads.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("store/payloads")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Waits until the folder of payloads has so many files: they are deleted after the commit has returned.
pub(crate) fn wait_for_files(folder: &Path, count: usize) {
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while files(folder).len() != count {
        assert!(std::time::Instant::now() < until, "{:?} instead of {count} files", files(folder));
        std::thread::sleep(Duration::from_millis(1));
    }
}
