//! The file that exists while the bypass is on, so that it outlives the daemon.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use bentpipe_proxy::config::AdminSettings;

/// The folder, or folders with colons between them, that systemd provides (systemd.exec(5),
/// `StateDirectory=`).
const FROM_SYSTEMD: &str = "STATE_DIRECTORY";

/// Where the state of the bypass is kept.
#[derive(Debug)]
pub(super) struct BypassFile(PathBuf);

impl BypassFile {
    /// The file of a daemon with these settings, started with this process's environment.
    pub(super) fn locate(settings: &AdminSettings) -> Self {
        let folders = std::env::var_os(FROM_SYSTEMD);
        let first = folders.as_deref().and_then(|folders| std::env::split_paths(folders).next());
        Self(settings.bypass_file(first.as_deref().filter(|folder| folder.is_absolute())))
    }

    /// Whether the bypass was on when the last daemon ended. Where that cannot be told, it is off.
    pub(super) fn is_on(&self) -> bool {
        self.0.try_exists().unwrap_or_else(|error| {
            tracing::error!(
                "cannot tell whether the bypass was on: {}: {error}; it is off",
                self.0.display()
            );
            false
        })
    }

    /// Keeps the state. The error says what the daemon that has it now does, and what one that is started
    /// later would do.
    pub(super) fn keep(&self, on: bool) -> Result<(), String> {
        let path = self.0.display();
        if on {
            self.create().map_err(|error| {
                format!(
                    "the bypass is on, but only until this daemon ends: cannot create {path}: {error}; make the \
                     folder writable for the daemon's account, or choose another with admin.state_folder"
                )
            })
        } else {
            self.remove().map_err(|error| {
                format!(
                    "the bypass is off, but a restart switches it on again: cannot remove {path}: {error}; \
                     remove the file"
                )
            })
        }
    }

    /// Under another name first: others may write to the folder, and a link of theirs is not followed.
    fn create(&self) -> io::Result<()> {
        let new = self.0.with_extension(format!("{}.new", std::process::id()));
        let written = File::create_new(&new).and_then(|mut file| {
            file.write_all(b"bentpipe: new connections pass unsplit until `bentpipe bypass off`\n")?;
            file.sync_all()
        });
        let created = written.and_then(|()| fs::rename(&new, &self.0)).and_then(|()| self.sync_folder());
        created.inspect_err(|_| {
            let _ = fs::remove_file(&new);
        })
    }

    fn remove(&self) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_and_taken_back_any_number_of_times() {
        let folder = tempfile::tempdir().unwrap();
        let file = BypassFile(folder.path().join("bypass"));
        assert!(!file.is_on());
        for _ in 0..2 {
            file.keep(true).unwrap();
            file.keep(true).unwrap();
            assert!(BypassFile(folder.path().join("bypass")).is_on());
            file.keep(false).unwrap();
            file.keep(false).unwrap();
            assert!(!file.is_on());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_with_what_holds_until_the_end() {
        let file = BypassFile("/nonexistent/bypass".into());
        let error = file.keep(true).unwrap_err();
        for part in ["the bypass is on, but only until", "/nonexistent/bypass", "admin.state_folder"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!file.is_on());
        file.keep(false).unwrap();
    }
}
