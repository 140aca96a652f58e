//! What can go wrong with a store, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bentpipe_units::ByteCount;

/// Why the store could not do something. Nothing is half done then, and the store can be used on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// There is no room.
    #[error("the store {} is full: {wanted} more, but {limit}", folder.display())]
    Full {
        /// The store.
        folder: PathBuf,
        /// What was to be put into it.
        wanted: Wanted,
        /// What stands in the way.
        limit: Limit,
    },
    /// The operating system refused something.
    #[error("cannot {attempt} {}: {source}; {}", path.display(), advice(source))]
    Io {
        /// What was attempted, as a verb.
        attempt: &'static str,
        /// With which file.
        path: PathBuf,
        /// What went wrong.
        source: Arc<io::Error>,
    },
    /// The index is not what it should be.
    #[error("cannot {attempt} the index {}: {reason}; if a restart does not help, move the folder away and \
        begin with an empty one", path.display())]
    Index {
        /// What was attempted, as a verb.
        attempt: &'static str,
        /// Its file.
        path: PathBuf,
        /// What the database said.
        reason: String,
    },
    /// The index speaks of payloads, and their folder is not there.
    #[error("the store {} has an index but no folder payloads; put it back, or remove the index \
        too", .0.display())]
    NoPayloads(PathBuf),
    /// Another process uses the folder.
    #[error("the store {} is in use by another process; stop it, or give each node a folder of its \
        own", .0.display())]
    Locked(PathBuf),
    /// A record names bytes that the store does not have.
    #[error(
        "bundle {bundle} was not stored: byte {end} of file {file} of its payload is not in the store, it \
         may have been removed meanwhile"
    )]
    NoSuchBytes {
        /// The bundle.
        bundle: String,
        /// The file's number.
        file: u64,
        /// Where the bytes should end.
        end: u64,
    },
    /// The thread that writes the index has ended.
    #[error("the store {} has stopped after a defect; restart the node", .0.display())]
    Stopped(PathBuf),
}

/// What there was no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// So many bytes of payload.
    Bytes(u64),
    /// Another bundle.
    Bundle,
}

/// What keeps a store from growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Its quota of payload bytes.
    Quota {
        /// The quota.
        quota: ByteCount,
        /// How much of it is taken.
        taken: ByteCount,
    },
    /// How many bundles it may hold.
    Bundles {
        /// That many.
        max: usize,
    },
    /// The file system must keep room for others.
    FileSystem {
        /// Free for the store's user.
        free: ByteCount,
        /// To be kept free, or promised to payloads that are being written.
        reserved: ByteCount,
    },
}

impl StoreError {
    /// Whether it is for want of room, so that it may work later.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Full { .. } => true,
            Self::Io { source, .. } => no_room(source),
            _ => false,
        }
    }

    pub(crate) fn io(attempt: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { attempt, path: path.to_owned(), source: Arc::new(source.into()) }
    }

    /// Of the database: what comes from the operating system is told as such.
    pub(crate) fn index(attempt: &'static str, path: &Path, error: impl Into<redb::Error>) -> Self {
        match error.into() {
            redb::Error::Io(source) => Self::io(attempt, path, source),
            other => Self::Index { attempt, path: path.to_owned(), reason: other.to_string() },
        }
    }
}

fn no_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "make room on its file system",
        io::ErrorKind::QuotaExceeded => "raise the disk quota of the node's user, or make room",
        io::ErrorKind::ReadOnlyFilesystem => {
            "mount its file system for writing, and look into the kernel's log: Linux does this after disk \
             errors"
        }
        io::ErrorKind::PermissionDenied => "give it to the node's user",
        io::ErrorKind::NotFound => "make the folder, or correct its name",
        _ => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => {
                "raise the limit of open files (LimitNOFILE= of the service)"
            }
            Some(libc::EIO) => "look into the kernel's log: the disk may be failing",
            _ => "look into the kernel's log",
        },
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", ByteCount::new(*bytes)),
            Self::Bundle => f.write_str("one bundle"),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota { quota, taken } => {
                write!(f, "{taken} of the quota of {quota} are taken; raise quota")
            }
            Self::Bundles { max } => write!(f, "it may hold {max}; raise max_bundles"),
            Self::FileSystem { free, reserved } => write!(
                f,
                "the file system has {free} left, of which {reserved} are spoken for; make room, or lower \
                 keep_free"
            ),
        }
    }
}
