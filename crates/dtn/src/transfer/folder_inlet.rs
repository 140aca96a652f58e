//! Files that are put into a folder become bundles.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::block_in_place;

use crate::node::{Node, NodeError, Refused, SendOptions};

use super::envelope::Envelope;

/// How often the folder is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// How deep folders may lie in each other.
const DEEPEST: usize = 16;
/// Files of which it is known when they changed last; the rest has to wait.
const MOST_FILES: usize = 10_000;
/// Bytes that are read at once.
const PART: usize = 256 * 1024;
/// How long a file that could not be sent is left alone.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// A folder that is watched.
#[derive(Debug)]
pub(super) struct Inlet {
    folder: PathBuf,
    settle: Duration,
    options: SendOptions,
    seen: HashMap<PathBuf, Seen>,
}

/// A file as it was last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    len: u64,
    changed: Option<SystemTime>,
    since: Instant,
    not_before: Option<Instant>,
}

/// Whether files can be taken out of the folder.
pub(super) fn check(folder: &Path) -> Result<(), NodeError> {
    let trial = folder.join(format!(".bentpipe-{}.trial", std::process::id()));
    let made = File::create(&trial).and_then(|_| fs::remove_file(&trial));
    made.map_err(NodeError::system(format!("use the folder {}", folder.display())))
}

impl Inlet {
    pub(super) fn new(folder: PathBuf, settle: Duration, options: SendOptions) -> Self {
        Self { folder, settle, options, seen: HashMap::new() }
    }

    /// Sends what is put there, for ever.
    pub(super) async fn watch(mut self, node: Node) {
        loop {
            block_in_place(|| self.look(&node));
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Sends the files that have not changed for a while.
    fn look(&mut self, node: &Node) {
        let mut found = Vec::new();
        if let Err(error) = files(&self.folder, DEEPEST, &mut found) {
            tracing::warn!("cannot look into {}: {error}", self.folder.display());
            return;
        }
        let now = Instant::now();
        self.seen.retain(|path, _| found.iter().any(|(file, _)| file == path));
        for (path, about) in found {
            if !self.is_settled(&path, &about, now) {
                continue;
            }
            match self.send(node, &path, about.len()) {
                Ok(id) => {
                    tracing::info!("{} is on its way as {id}", path.display());
                    self.seen.remove(&path);
                }
                Err(error) => {
                    tracing::warn!(
                        "cannot send {}, trying again in {AFTER_FAILURE:?}: {error}",
                        path.display()
                    );
                    if let Some(seen) = self.seen.get_mut(&path) {
                        seen.not_before = Some(now + AFTER_FAILURE);
                    }
                }
            }
        }
    }

    fn is_settled(&mut self, path: &Path, about: &Metadata, now: Instant) -> bool {
        let (len, changed) = (about.len(), about.modified().ok());
        match self.seen.get(path) {
            Some(seen) if (seen.len, seen.changed) == (len, changed) => {
                now.duration_since(seen.since) >= self.settle && seen.not_before.is_none_or(|at| at <= now)
            }
            _ => {
                self.seen.insert(path.to_owned(), Seen { len, changed, since: now, not_before: None });
                self.settle.is_zero()
            }
        }
    }

    /// Makes a bundle of a file and removes it: in between both are there, and the other side gets it twice if this host fails then.
    fn send(&self, node: &Node, path: &Path, len: u64) -> Result<String, Trouble> {
        let name = path.strip_prefix(&self.folder).unwrap_or(path);
        let head = Envelope { target: target(name), server: None, fields: Vec::new() }.encode();
        let bundle = node.bundle(&self.options)?;
        let id = bundle.id.to_string();
        let mut file = File::open(path)?;
        let mut reception = node.begin(bundle, Some(len + head.len() as u64))?;
        reception.write(&head)?;
        let mut part = vec![0; PART];
        loop {
            match file.read(&mut part)? {
                0 => break,
                bytes => reception.write(&part[..bytes])?,
            }
        }
        reception.finish()?;
        fs::remove_file(path)?;
        Ok(id)
    }
}

/// Why a file was not sent.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    Node(#[from] Refused),
}

/// Ordinary files whose names begin with no dot, in this folder and those in it.
fn files(folder: &Path, deep: usize, found: &mut Vec<(PathBuf, Metadata)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") || found.len() >= MOST_FILES {
            continue;
        }
        // What a link leads to may be none of this folder's.
        let kind = entry.file_type()?;
        if kind.is_dir() && deep > 0 {
            files(&entry.path(), deep - 1, found)?;
        } else if kind.is_file() {
            found.push((entry.path(), entry.metadata()?));
        }
    }
    Ok(())
}

/// A relative path as the target of a request, with percent signs where they are needed (RFC 3986 §2.1).
fn target(name: &Path) -> String {
    let mut target = String::from("/");
    for byte in name.as_os_str().as_encoded_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                target.push(char::from(*byte));
            }
            _ => target.push_str(&format!("%{byte:02X}")),
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_targets() {
        assert_eq!(target(Path::new("a b/c%.txt")), "/a%20b/c%25.txt");
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
        files(folder.path(), DEEPEST, &mut found).unwrap();
        let mut names: Vec<_> =
            found.iter().map(|(path, _)| path.strip_prefix(folder.path()).unwrap()).collect();
        names.sort();
        assert_eq!(names, [Path::new("a"), Path::new("in/b")]);
    }
}
