//! The folder of a store: its lock, and payloads as files.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::StoreError;
use super::state::FIRST_ROW;

#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    payloads: PathBuf,
    /// Open all the time, so that it can be synced when descriptors are scarce.
    payloads_dir: File,
    folder_dir: File,
    /// Holds the lock of the folder.
    _lock: File,
}

impl Files {
    /// Makes what is missing, and takes the folder for this process.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process has it, [`StoreError::NoPayloads`] if only the index is
    /// there, [`StoreError::Io`].
    pub(crate) fn open(folder: &Path) -> Result<Self, StoreError> {
        make_dir(folder)?;
        let path = folder.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| StoreError::io("open", &path, error))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StoreError::Locked(folder.to_owned()));
            }
            Err(error) => return Err(StoreError::io("lock", &path, error)),
        }
        let payloads = folder.join("payloads");
        if !payloads.exists() && folder.join("index.redb").exists() {
            return Err(StoreError::NoPayloads(folder.to_owned()));
        }
        make_dir(&payloads)?;
        let open = |path: &Path| File::open(path).map_err(|error| StoreError::io("open", path, error));
        Ok(Self {
            folder: folder.to_owned(),
            payloads_dir: open(&payloads)?,
            payloads,
            folder_dir: open(folder)?,
            _lock: lock,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn index_path(&self) -> PathBuf {
        self.folder.join("index.redb")
    }

    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.payloads.join(format!("{number:016x}"))
    }

    pub(crate) fn create(&self, number: u64) -> Result<File, StoreError> {
        let path = self.path(number);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        file.map_err(|error| StoreError::io("create", &path, error))
    }

    pub(crate) fn read(&self, number: u64) -> Result<File, StoreError> {
        let path = self.path(number);
        File::open(&path).map_err(|error| StoreError::io("open", &path, error))
    }

    /// Deletes files that nobody needs. What remains because the disk refuses is deleted at the next start.
    pub(crate) fn delete(&self, numbers: &[u64]) {
        for number in numbers {
            let path = self.path(*number);
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let error = StoreError::io("delete", &path, error);
                    tracing::warn!("{error}; the next start of the node tries again");
                }
                _ => {}
            }
        }
    }

    /// New files are in the folder on the disk when it returns.
    pub(crate) fn sync_payloads(&self) -> Result<(), StoreError> {
        self.payloads_dir.sync_all().map_err(|error| StoreError::io("sync", &self.payloads, error))
    }

    /// The index and the folder of payloads are in the store's folder on the disk when it returns.
    pub(crate) fn sync_folder(&self) -> Result<(), StoreError> {
        self.folder_dir.sync_all().map_err(|error| StoreError::io("sync", &self.folder, error))
    }

    /// All payloads that are there, with their lengths. What is not named as a payload is left alone.
    pub(crate) fn list(&self) -> Result<HashMap<u64, u64>, StoreError> {
        let failed = |error| StoreError::io("read", &self.payloads, error);
        let mut found = HashMap::new();
        for entry in std::fs::read_dir(&self.payloads).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let number =
                name.to_str().filter(|name| name.len() == 16).map(|name| u64::from_str_radix(name, 16));
            if let Some(Ok(number)) = number
                && number < FIRST_ROW
            {
                let metadata =
                    entry.metadata().map_err(|error| StoreError::io("look at", &entry.path(), error))?;
                found.insert(number, metadata.len());
            }
        }
        Ok(found)
    }

    /// What the file system has for ordinary users, bytes (statvfs(3)).
    pub(crate) fn free(&self) -> Result<u64, StoreError> {
        let stat = rustix::fs::fstatvfs(&self.payloads_dir)
            .map_err(|error| StoreError::io("look at the file system of", &self.payloads, error))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Starts to bring a part of a file to the disk, and does not wait for it (sync_file_range(2)). It promises
/// nothing: a file still needs its fsync, which then has less to do.
pub(crate) fn start_writeback(file: &File, offset: u64, len: u64) {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
    // SAFETY: the descriptor is open as long as `file` is borrowed, and no memory is passed. Errors come
    // again at fsync.
    unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}

fn make_dir(path: &Path) -> Result<(), StoreError> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(StoreError::io("make", path, error)),
        Ok(()) => {
            let parent =
                path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let synced = File::open(parent).and_then(|parent| parent.sync_all());
            synced.map_err(|error| StoreError::io("sync", parent, error))
        }
    }
}
