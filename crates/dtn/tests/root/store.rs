//! A file system that is full, or read-only: a small tmpfs in a mount namespace of the test's own.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bentpipe_dtn::store::{Change, Record, Store, StoreError};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change, mount_remount};
use rustix::thread::UnshareFlags;

use crate::store_common::{bytes, files, keep, open, payload, read, record};

/// Runs `test` with a folder that is a tmpfs of 8 MiB; threads that it starts see it too, others do not.
fn on_a_small_disk(test: impl FnOnce(&Path) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root: mounts a tmpfs");
        return;
    }
    let run = move || {
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: the thread, new and about to end, gets mounts of its own; no memory or descriptors are
        // concerned.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), Some(c"size=8m")).unwrap();
        test(folder.path());
        rustix::mount::unmount(folder.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    };
    std::thread::spawn(run).join().unwrap();
}

/// Takes all that is free.
fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("ballast");
    let mut ballast = File::create(&path).unwrap();
    for len in [1 << 16, 1] {
        let zeros = vec![0; len];
        while ballast.write_all(&zeros).is_ok() {}
    }
    path
}

fn put(store: &Store, number: u64, len: usize) -> Result<Record, StoreError> {
    let record = record(store, number, payload(store, number, len)?);
    store.commit(vec![Change::Put(record.clone())])?;
    Ok(record)
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    on_a_small_disk(|folder| {
        let (store, _) = open(folder);
        let mut kept = Vec::new();
        let error = loop {
            match put(&store, kept.len() as u64, 300_000) {
                Ok(record) => kept.push(record),
                Err(error) => break error,
            }
        };
        assert!(error.is_full() && kept.len() > 5, "{error} after {}", kept.len());
        let ballast = fill(folder);
        let error = loop {
            match put(&store, kept.len() as u64, 1000) {
                Ok(record) => kept.push(record),
                Err(error) => break error,
            }
        };
        assert!(error.is_full() && error.to_string().contains("make room"), "{error}");
        assert_eq!(store.usage().bundles, kept.len());
        // What goes makes room, if need be after someone else has made some.
        let first = kept.remove(0);
        if store.commit(vec![Change::Remove(first.key)]).is_err() {
            std::fs::remove_file(&ballast).unwrap();
            store.commit(vec![Change::Remove(first.key)]).unwrap();
        }
        let _ = std::fs::remove_file(&ballast);
        kept.push(put(&store, 1000, 200_000).unwrap());
        drop(store);
        all_there(folder, &kept);
    });
}

#[test]
fn a_disk_that_fills_under_a_reception_is_an_error_of_this_reception() {
    on_a_small_disk(|folder| {
        let (store, _) = open(folder);
        let old = put(&store, 1, 100_000).unwrap();
        let mut writer = store.begin(Some(4_000_000)).unwrap();
        writer.write(&bytes(2, 1_000_000)).unwrap();
        let ballast = fill(folder);
        let error = writer.write(&bytes(2, 1_000_000)).unwrap_err();
        assert!(error.is_full() && error.to_string().contains("cannot write"), "{error}");
        assert_eq!((store.usage().bytes.get(), files(folder).len()), (100_000, 1));
        assert!(writer.finish().is_err());
        std::fs::remove_file(ballast).unwrap();
        let new = put(&store, 3, 1_000_000).unwrap();
        drop(store);
        all_there(folder, &[old, new]);
    });
}

/// Where the index itself finds no room: the bundles are rows, and only the write that would make it longer
/// fails.
#[test]
fn an_index_without_room_is_opened_again() {
    on_a_small_disk(|folder| {
        let (store, _) = open(folder);
        let mut kept = vec![put(&store, 0, 100).unwrap()];
        let waiting: Vec<Record> =
            (1..1000).map(|number| record(&store, number, payload(&store, number, 4000).unwrap())).collect();
        let ballast = fill(folder);
        let mut refused = 0;
        for record in waiting {
            match store.commit(vec![Change::Put(record.clone())]) {
                Ok(()) => kept.push(record),
                Err(error) => {
                    assert!(error.is_full(), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0);
        assert_eq!(store.usage().bundles, kept.len());
        assert!(read(&store, &kept[0].payload) == bytes(0, 100));
        std::fs::remove_file(ballast).unwrap();
        kept.push(put(&store, 2000, 3000).unwrap());
        kept.push(put(&store, 2001, 30_000).unwrap());
        drop(store);
        all_there(folder, &kept);
    });
}

#[test]
fn a_disk_that_becomes_read_only_says_so() {
    on_a_small_disk(|folder| {
        let (store, _) = open(folder);
        let old = put(&store, 1, 100_000).unwrap();
        drop(store);
        become_read_only(folder);
        let error = Store::open(crate::store_common::config(folder)).unwrap_err().to_string();
        assert!(error.contains("mount its file system for writing"), "{error}");
        mount_remount(folder, MountFlags::empty(), "").unwrap();
        all_there(folder, &[old]);
    });
}

/// A process that another test starts has a copy of our open files until it executes its program, and a
/// file system with files open for writing does not become read-only.
fn become_read_only(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = mount_remount(folder, MountFlags::RDONLY, "") {
        assert!(error == Errno::BUSY && Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn all_there(folder: &Path, kept: &[Record]) {
    let (store, records) = open(folder);
    assert!(store.recovery().damaged.is_empty() && store.recovery().unreadable == 0);
    let keys = |records: &[Record]| records.iter().map(|record| record.key).collect::<Vec<_>>();
    assert_eq!(keys(&records), keys(kept));
    for record in &records {
        let len = record.payload.len() as usize;
        assert!(read(&store, &record.payload) == bytes(record.bundle.id.sequence, len));
    }
    keep(&store, 5000, 10_000).unwrap();
}
