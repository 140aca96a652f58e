//! Files that are put into a folder become bundles.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bentpipe_http::encode_path;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tokio::task::block_in_place;

use crate::node::{Node, NodeError, Refused, SendOptions};

use super::envelope::Envelope;

/// How often the folder is scanned.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum depth of nested folders.
const MAX_DEPTH: usize = 16;
/// The most files that are watched at a time.
const MAX_FILES: usize = 10_000;
/// Bytes per read.
const PART: usize = 256 * 1024;
/// The wait before a failed file is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// The suffix of files that are about to be removed.
const SENT: &str = ".bentpipe-sent";

/// A folder that is watched.
#[derive(Debug)]
pub(super) struct Ingress {
    folder: PathBuf,
    settle: Duration,
    options: SendOptions,
    seen: HashMap<PathBuf, FileState>,
}

/// A version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

/// A file at the last scan.
#[derive(Debug, Clone, Copy)]
struct FileState {
    version: Version,
    since: Instant,
    next: Action,
}

/// What to do with it once it is unchanged for long enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Send,
    SendAfter(Instant),
    /// It was sent but cannot be removed: ignore it.
    Leave,
}

/// Whether files can be taken out of the folder.
pub(super) fn check(folder: &Path) -> Result<(), NodeError> {
    let trial = folder.join(format!(".bentpipe-{}.trial", std::process::id()));
    let made = File::create(&trial).and_then(|_| fs::remove_file(&trial));
    made.map_err(NodeError::system(format!("use the folder {}", folder.display())))
}

impl Ingress {
    pub(super) fn new(folder: PathBuf, settle: Duration, options: SendOptions) -> Self {
        Self { folder, settle, options, seen: HashMap::new() }
    }

    /// Sends files until it is cancelled.
    pub(super) async fn watch(mut self, node: Node) {
        loop {
            for path in block_in_place(|| self.settled(Instant::now())) {
                if self.take(&node, &path).await.is_err() {
                    break;
                }
            }
            tokio::time::sleep(SCAN_INTERVAL).await;
        }
    }

    /// The files to send: those that have not changed for a while.
    fn settled(&mut self, now: Instant) -> Vec<PathBuf> {
        let mut found = Vec::new();
        if let Err(error) = files(&self.folder, MAX_DEPTH, &mut found) {
            tracing::warn!("cannot scan {}: {error}", self.folder.display());
            return Vec::new();
        }
        let mut before = std::mem::take(&mut self.seen);
        let mut settled = Vec::new();
        for (path, version) in found {
            let seen = before.remove(&path).filter(|seen| seen.version == version);
            let seen = seen.unwrap_or(FileState { version, since: now, next: Action::Send });
            let is_next = match seen.next {
                Action::Send => true,
                Action::SendAfter(time) => time <= now,
                Action::Leave => false,
            };
            if is_next && now.duration_since(seen.since) >= self.settle {
                settled.push(path.clone());
            }
            self.seen.insert(path, seen);
        }
        settled
    }

    /// Sends a file and removes it. Fails if the next file would fail, too.
    async fn take(&mut self, node: &Node, path: &Path) -> Result<(), ()> {
        let Some(seen) = self.seen.get(path).copied() else { return Ok(()) };
        let sent = self.send(node, path, seen.version).await;
        let next = match &sent {
            // A crash before the removal sends the file twice.
            Ok(id) => match block_in_place(|| remove(path, seen.version)) {
                Ok(()) => {
                    tracing::info!("sent {} as {id}", path.display());
                    self.seen.remove(path);
                    return Ok(());
                }
                Err(error) => {
                    tracing::error!(
                        "sent {} as {id}, but cannot remove it: {error}; it is not sent again before it \
                         changes \
                         or the node is restarted",
                        path.display()
                    );
                    Action::Leave
                }
            },
            Err(error) => {
                tracing::warn!("cannot send {}, retrying in {RETRY_DELAY:?}: {error}", path.display());
                Action::SendAfter(Instant::now() + RETRY_DELAY)
            }
        };
        self.seen.insert(path.to_owned(), FileState { next, ..seen });
        match sent {
            Err(SendError::Node(_)) => Err(()),
            _ => Ok(()),
        }
    }

    /// Sends a file as a bundle; returns the bundle's ID.
    async fn send(&self, node: &Node, path: &Path, version: Version) -> Result<String, SendError> {
        let name = path.strip_prefix(&self.folder).unwrap_or(path);
        let head = Envelope {
            target: format!("/{}", encode_path(name.as_os_str().as_encoded_bytes())),
            server: None,
            fields: Vec::new(),
        }
        .encode();
        let bundle = node.bundle(&self.options)?;
        let id = bundle.id.to_string();
        let mut file = block_in_place(|| open(path))?;
        if Version::of(&file.metadata()?) != version {
            return Err(SendError::Changed);
        }
        let announced = version.len.saturating_add(head.len() as u64);
        let mut receiver = block_in_place(|| node.begin(bundle, Some(announced)))?;
        receiver.write(&head)?;
        let mut part = vec![0; PART];
        // In parts, so that the node can stop in between.
        loop {
            match block_in_place(|| file.read(&mut part))? {
                0 => break,
                bytes => block_in_place(|| receiver.write(&part[..bytes]))?,
            }
            tokio::task::yield_now().await;
        }
        if Version::of(&file.metadata()?) != version {
            return Err(SendError::Changed);
        }
        block_in_place(|| receiver.finish())?;
        Ok(id)
    }
}

impl Version {
    fn of(about: &Metadata) -> Self {
        Self {
            device: about.dev(),
            inode: about.ino(),
            len: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
        }
    }
}

/// Why a file was not sent.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    Node(#[from] Refused),
    #[error("it changed while it was sent")]
    Changed,
}

/// Opens an ordinary file: a link that has replaced it is not followed, and a pipe does not block.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Removes the file if it is still this version. Another file of the same name stays.
fn remove(path: &Path, version: Version) -> io::Result<()> {
    let mut hidden = OsString::from(".");
    hidden.push(path.file_name().unwrap_or_default());
    hidden.push(SENT);
    let hidden = path.with_file_name(hidden);
    // Rename first: between a check and a removal the file could be replaced.
    fs::rename(path, &hidden)?;
    if Version::of(&fs::symlink_metadata(&hidden)?) == version {
        return fs::remove_file(&hidden);
    }
    match renameat_with(CWD, &hidden, CWD, path, RenameFlags::NOREPLACE) {
        // The name has a still newer file.
        Err(Errno::EXIST) => fs::remove_file(&hidden),
        // The file system does not support this.
        Err(Errno::INVAL | Errno::NOSYS) => fs::rename(&hidden, path),
        other => Ok(other?),
    }
}

/// Ordinary files whose names do not begin with a dot, in this folder and below.
fn files(folder: &Path, deep: usize, found: &mut Vec<(PathBuf, Version)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") || found.len() >= MAX_FILES {
            continue;
        }
        // A link may lead out of the folder.
        let kind = entry.file_type()?;
        if kind.is_dir() && deep > 0 {
            files(&entry.path(), deep - 1, found)?;
        } else if kind.is_file() {
            match entry.metadata() {
                Ok(about) => found.push((entry.path(), Version::of(&about))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_taken_the_name_of_a_sent_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "old").unwrap();
        let sent = Version::of(&fs::symlink_metadata(&path).unwrap());
        fs::write(folder.path().join("b"), "new").unwrap();
        fs::rename(folder.path().join("b"), &path).unwrap();
        remove(&path, sent).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let sent = Version::of(&fs::symlink_metadata(&path).unwrap());
        remove(&path, sent).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_link_is_not_followed_and_a_pipe_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (link, pipe) = (folder.path().join("link"), folder.path().join("pipe"));
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        assert!(open(&link).is_err());
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(open(&pipe).is_ok());
    }

    #[test]
    fn a_file_is_sent_when_it_has_not_changed_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let options = SendOptions::to("dtn://b/files".parse().unwrap());
        let settle = Duration::from_secs(2);
        let mut ingress = Ingress::new(folder.path().to_owned(), settle, options);
        let start = Instant::now();
        let mut settled = |second: u64| ingress.settled(start + Duration::from_secs(second)).len();
        fs::write(&path, "1").unwrap();
        assert_eq!((settled(0), settled(1)), (0, 0));
        fs::write(&path, "12").unwrap();
        assert_eq!((settled(2), settled(3), settled(4)), (0, 0, 1));
        fs::remove_file(&path).unwrap();
        assert_eq!(settled(5), 0);
        fs::write(&path, "12").unwrap();
        assert_eq!((settled(6), settled(8)), (0, 1));
    }

    #[test]
    fn only_ordinary_files_without_a_dot_are_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("in")).unwrap();
        for name in ["a", "in/b", ".hidden", "in/.part"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let mut found = Vec::new();
        files(folder.path(), MAX_DEPTH, &mut found).unwrap();
        let mut names: Vec<_> =
            found.iter().map(|(path, _)| path.strip_prefix(folder.path()).unwrap()).collect();
        names.sort();
        assert_eq!(names, [Path::new("a"), Path::new("in/b")]);
    }
}
