//! The file that exists while the bypass is on, so that it outlives the daemon.

use bentpipe_proxy::config::AdminSettings;

use super::kept_file::{KeptFile, from_manager};

/// Where the state of the bypass is kept.
#[derive(Debug)]
pub(super) struct BypassFile(KeptFile);

impl BypassFile {
    /// The file of a daemon with these settings, started with this process's environment.
    pub(super) fn locate(settings: &AdminSettings) -> Self {
        Self(KeptFile::at(settings.bypass_file(from_manager().as_deref())))
    }

    /// Whether the bypass was on when the last daemon ended. Where that cannot be told, it is off.
    pub(super) fn is_on(&self) -> bool {
        self.0.path().try_exists().unwrap_or_else(|error| {
            tracing::error!(
                "cannot tell whether the bypass was on: {}: {error}; it is off",
                self.0.path().display()
            );
            false
        })
    }

    /// Keeps the state. The error says what the daemon that has it now does, and what one that is started
    /// later would do.
    pub(super) fn keep(&self, on: bool) -> Result<(), String> {
        let path = self.0.path().display();
        if on {
            self.0.write(b"bentpipe: new connections pass unsplit until `bentpipe bypass off`\n").map_err(|error| {
                format!(
                    "the bypass is on, but only until this daemon ends: cannot create {path}: {error}; make the \
                     folder writable for the daemon's account, or choose another with admin.state_folder"
                )
            })
        } else {
            self.0.remove().map_err(|error| {
                format!(
                    "the bypass is off, but a restart switches it on again: cannot remove {path}: {error}; \
                     remove the file"
                )
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_and_taken_back_any_number_of_times() {
        let folder = tempfile::tempdir().unwrap();
        let file = BypassFile(KeptFile::at(folder.path().join("bypass")));
        assert!(!file.is_on());
        for _ in 0..2 {
            file.keep(true).unwrap();
            file.keep(true).unwrap();
            assert!(BypassFile(KeptFile::at(folder.path().join("bypass"))).is_on());
            file.keep(false).unwrap();
            file.keep(false).unwrap();
            assert!(!file.is_on());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_with_what_holds_until_the_end() {
        let file = BypassFile(KeptFile::at("/nonexistent/bypass".into()));
        let error = file.keep(true).unwrap_err();
        for part in ["the bypass is on, but only until", "/nonexistent/bypass", "admin.state_folder"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(!file.is_on());
        file.keep(false).unwrap();
    }
}
