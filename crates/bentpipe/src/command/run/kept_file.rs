//! Files that outlive the daemon.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The folder, or folders with colons between them, that systemd provides (systemd.exec(5),
/// `StateDirectory=`).
const FROM_SYSTEMD: &str = "STATE_DIRECTORY";

/// The folder that the service manager provides.
pub(super) fn from_manager() -> Option<PathBuf> {
    let folders = std::env::var_os(FROM_SYSTEMD)?;
    std::env::split_paths(&folders).next().filter(|folder| folder.is_absolute())
}

/// A file that is there with all of its contents, or not at all.
#[derive(Debug)]
pub(super) struct KeptFile(PathBuf);

impl KeptFile {
    pub(super) fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Under another name first: others may write to the folder, and a link of theirs is not followed.
    pub(super) fn write(&self, contents: &[u8]) -> io::Result<()> {
        let new = self.0.with_extension(format!("{}.new", std::process::id()));
        let written = File::create_new(&new).and_then(|mut file| {
            file.write_all(contents)?;
            file.sync_all()
        });
        let created = written.and_then(|()| fs::rename(&new, &self.0)).and_then(|()| self.sync_folder());
        created.inspect_err(|_| {
            let _ = fs::remove_file(&new);
        })
    }

    /// Removes it, if it is there.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            outcome => outcome.and_then(|()| self.sync_folder()),
        }
    }

    /// Until then a power failure takes the change back.
    fn sync_folder(&self) -> io::Result<()> {
        File::open(self.0.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}
