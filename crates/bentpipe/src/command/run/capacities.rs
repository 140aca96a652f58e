//! The file of the capacities that the daemon has found, so that the next one need not search for them.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;

use bentpipe_proxy::config::AdminSettings;
use bentpipe_units::Rate;

use super::kept_file::{KeptFile, from_manager};

/// A capacity is written again when it has changed by more than this part of it.
const CHANGED: f64 = 0.1;

/// The capacities of satellite legs by the legs' names, in a file of JSON.
#[derive(Debug)]
pub(super) struct CapacitiesFile {
    file: KeptFile,
    written: BTreeMap<String, Rate>,
    /// Writing has failed, and the log says so.
    failed: bool,
}

impl CapacitiesFile {
    /// The file of a daemon with these settings, started with this process's environment; `None` if there is
    /// no folder for what outlives it.
    pub(super) fn locate(settings: &AdminSettings) -> Option<Self> {
        let folder = from_manager();
        let folder = settings.kept_in(folder.as_deref())?;
        Some(Self::at(KeptFile::at(folder.join("capacities.json"))))
    }

    fn at(file: KeptFile) -> Self {
        Self { file, written: BTreeMap::new(), failed: false }
    }

    /// What the last daemon has found. Without a file that can be read, nothing.
    pub(super) fn read(&mut self) -> BTreeMap<String, Rate> {
        let path = self.file.path();
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return BTreeMap::new(),
            Err(error) => {
                tracing::warn!("capacities are searched for anew: cannot read {}: {error}", path.display());
                return BTreeMap::new();
            }
        };
        self.written = serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::warn!("capacities are searched for anew: {} is invalid: {error}", path.display());
            BTreeMap::new()
        });
        self.written.clone()
    }

    /// Writes what has been found, if it differs by more than a tenth from what is in the file. Legs whose
    /// capacity is not known now keep what is there.
    pub(super) fn keep(&mut self, capacities: Vec<(String, Rate)>) {
        let differs = |(leg, rate): &(String, Rate)| {
            let before = self.written.get(leg).map_or(0.0, |before| before.bps() as f64);
            (rate.bps() as f64 - before).abs() > CHANGED * before
        };
        if !capacities.iter().any(differs) {
            return;
        }
        self.written.extend(capacities);
        let text = serde_json::to_string_pretty(&self.written).unwrap_or_default() + "\n";
        let outcome = self.file.write(text.as_bytes());
        if let (Err(error), false) = (&outcome, self.failed) {
            tracing::warn!(
                "the next start must search for the capacities again: cannot write {}: {error}; make the folder \
                 writable for the daemon's account, or choose another with admin.state_folder",
                self.file.path().display()
            );
        }
        self.failed = outcome.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_and_small_changes_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("capacities.json");
        let file = || CapacitiesFile::at(KeptFile::at(path.clone()));
        assert!(file().read().is_empty());
        let of = |mbps: u64| ("geo".to_owned(), Rate::mbps(mbps));
        let mut writer = file();
        writer.keep(vec![of(100), ("a \"leg\"".into(), Rate::mbps(2))]);
        for (found, kept) in [(105, 100), (91, 100), (120, 120), (60, 60)] {
            writer.keep(vec![of(found)]);
            assert_eq!(file().read()["geo"], Rate::mbps(kept), "{found} Mbit/s");
        }
        assert_eq!(file().read()["a \"leg\""], Rate::mbps(2), "a leg without news");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_is_broken_or_a_folder_that_is_missing_costs_only_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("capacities.json");
        for broken in ["", "[]", "{\"geo\": 3}", "{\"geo\": \"0bit/s\"}", "\u{0}"] {
            fs::write(&path, broken).unwrap();
            let mut file = CapacitiesFile::at(KeptFile::at(path.clone()));
            assert!(file.read().is_empty(), "{broken}");
            file.keep(vec![("geo".into(), Rate::mbps(1))]);
            assert_eq!(file.read().len(), 1);
        }
        CapacitiesFile::at(KeptFile::at("/nonexistent/x".into())).keep(vec![("geo".into(), Rate::mbps(1))]);
    }
}
