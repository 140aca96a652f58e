//! The manifest of a plan: which runs it has, with all that repeats them, and what has become of each.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::file::Setting;
use crate::results::RunResult;
use crate::scenario::Scenario;
use crate::sweep::Plan;

/// What has become of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It has not been run, or its sweep ended before all were.
    Pending,
    /// It has been run, and each of its flows that has an end is finished.
    Finished,
    /// It has been run, and a flow was not finished at its end.
    Unfinished,
}

impl State {
    /// The state of a run that has this result.
    pub fn of(scenario: &Scenario, result: &RunResult) -> Self {
        let flows = scenario.flows.iter().zip(&result.flows);
        let is_finished = flows.clone().all(|(spec, flow)| spec.bytes.is_none() || flow.finished);
        if is_finished { Self::Finished } else { Self::Unfinished }
    }
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number, from 1 on, as in the names of the folders of traces.
    pub run: usize,
    /// The number of its point, from 1 on.
    pub point: usize,
    /// The name of its case, where cases are swept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub case: Option<String>,
    /// All that is set, by key: from outside, by sweeps and by its case.
    pub settings: BTreeMap<String, String>,
    /// Its seed.
    pub seed: u64,
    /// What has become of it.
    pub state: State,
}

impl Entry {
    /// Whether both are the same run, whatever has become of it.
    fn is_the_same(&self, other: &Self) -> bool {
        (&self.settings, &self.case, self.seed) == (&other.settings, &other.case, other.seed)
    }
}

/// All runs of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of bentpipe that runs them.
    pub version: String,
    /// The scenario's path, or what errors call it.
    pub scenario: String,
    /// SHA-256 of the scenario's text, in hexadecimal. Files that it names, as traces of outages, are not
    /// part of it.
    pub scenario_sha256: String,
    /// The runs, in order.
    pub runs: Vec<Entry>,
}

/// A manifest could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the manifest {}: {source}; free space or choose another place", path.display())]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

impl Manifest {
    /// That of a plan of which nothing has been run.
    pub fn new(plan: &Plan) -> Self {
        let source = plan.source();
        let seeds = plan.seeds();
        let points = plan.points().iter().enumerate();
        let runs = points.flat_map(|(index, point)| {
            let settings = plan.settings(point).into_iter();
            let settings: BTreeMap<_, _> = settings.map(|Setting { key, value }| (key, value)).collect();
            seeds.iter().enumerate().map(move |(number, &seed)| Entry {
                run: index * seeds.len() + number + 1,
                point: index + 1,
                case: point.case().map(str::to_owned),
                settings: settings.clone(),
                seed,
                state: State::Pending,
            })
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: source.name().to_owned(),
            scenario_sha256: sha256(source.text()),
            runs: runs.collect(),
        }
    }

    /// Whether both are of the same runs, whatever has become of them.
    pub fn is_of_the_same_runs(&self, other: &Self) -> bool {
        (&self.version, &self.scenario_sha256) == (&other.version, &other.scenario_sha256)
            && self.runs.len() == other.runs.len()
            && self.runs.iter().zip(&other.runs).all(|(one, other)| one.is_the_same(other))
    }

    /// Writes it as JSON, in one piece: a reader sees the file as it was or as it is.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        let fail = |source| WriteError { path: path.to_owned(), source };
        let text = serde_json::to_string_pretty(self).map_err(|error| fail(error.into()))? + "\n";
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let part = path.with_file_name(name);
        std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path)).map_err(fail)
    }
}

/// SHA-256 of a text, in hexadecimal.
pub fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Source;

    const TEXT: &str = r#"
duration = "10s"
[[link]]
name = "sat"
between = ["a", "b"]
rate = "10M"
delay = "300ms"
[[flow]]
name = "f"
from = "a"
to = "b"
bytes = "100kB"
[[flow]]
name = "endless"
from = "a"
to = "b"
"#;

    fn plan(source: &Source) -> Plan {
        let fixed = ["link.sat.per=1%".parse().unwrap()];
        let sweeps = ["case=short,long:flow.f.bytes=100MB".parse().unwrap()];
        Plan::new(source, &fixed, &sweeps, &[7, 8]).unwrap()
    }

    #[test]
    fn each_run_has_all_that_repeats_it() {
        let source = Source::parse("s.toml", TEXT).unwrap();
        let manifest = Manifest::new(&plan(&source));
        // From `sha256sum`.
        assert_eq!(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!((manifest.scenario_sha256.clone(), manifest.runs.len()), (sha256(TEXT), 4));
        let last = &manifest.runs[3];
        assert_eq!((last.run, last.point, last.case.as_deref(), last.seed), (4, 2, Some("long"), 8));
        let settings: Vec<_> = last.settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(settings, ["flow.f.bytes=100MB", "link.sat.per=1%"]);
        let mut changed = manifest.clone();
        changed.runs[0].state = State::Finished;
        assert!(changed.is_of_the_same_runs(&manifest));
        changed.runs[0].seed = 9;
        assert!(!changed.is_of_the_same_runs(&manifest));
    }

    #[test]
    fn a_flow_without_end_does_not_make_a_run_unfinished() {
        let source = Source::parse("s.toml", TEXT).unwrap();
        let plan = plan(&source);
        let state = |number| {
            let job = plan.job(number).unwrap();
            State::of(&job.scenario, &crate::run(&job.scenario, job.seed, &mut crate::Unobserved))
        };
        assert_eq!([0, 2].map(state), [State::Finished, State::Unfinished]);
    }

    #[test]
    fn it_is_read_as_it_was_written_and_a_full_disk_is_an_error() {
        let source = Source::parse("s.toml", TEXT).unwrap();
        let manifest = Manifest::new(&plan(&source));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.json");
        manifest.write(&path).unwrap();
        let read: Manifest = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(read, manifest);
        std::os::unix::fs::symlink("/dev/full", folder.path().join("n.json.part")).unwrap();
        let text = manifest.write(&folder.path().join("n.json")).unwrap_err().to_string();
        assert!(text.contains("n.json: No space left") && text.contains("free space"), "{text}");
    }
}
