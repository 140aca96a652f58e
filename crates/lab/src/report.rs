//! The report: one page of HTML on all results of a folder, or of several.
//!
//! A run keeps a [`Journal`]: each experiment leaves its results with their [`Origin`] in a file of its own,
//! `NAME.result.json`, and until then an [`Attempt`] in `NAME.unfinished.json`. The page is made of these
//! files alone ([`Report`]), by a run after each experiment and by anybody later. So a run that is stopped
//! leaves a page that says what has not finished, and results of several runs and worlds are joined by
//! reading them.

mod origin;
mod page;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use bentpipe_units::human::rfc3339;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::experiment::ALL;
use crate::figure::Figure;
use crate::file::write_whole;
use crate::results::{Invocation, Part, Results, World, Written};
use crate::table::Table;
pub use origin::{Machine, Origin};

/// The page's name in a folder of results.
pub const PAGE: &str = "report.html";
/// The endings of the files that it is made of.
const RESULT: &str = ".result.json";
const UNFINISHED: &str = ".unfinished.json";

/// The results of an experiment, and where they were made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Record {
    /// The results.
    pub results: Results,
    /// Where and when.
    pub origin: Origin,
}

/// A record in its file. [`Results`] leave tables and figures out, which other documents have as files.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    results: Results,
    tables: Vec<Part<Table>>,
    figures: Vec<Part<Figure>>,
    origin: Origin,
}

/// An experiment that has not finished.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// What was to run.
    #[serde(flatten)]
    pub invocation: Invocation,
    /// When this was written: UTC, RFC 3339.
    pub at: String,
    /// How far it came.
    pub state: State,
}

/// How far an experiment came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Others were to run before it.
    Waiting,
    /// It was running.
    Running,
    /// It failed, with this error.
    Failed(String),
}

/// The files that a run of several experiments keeps up to date in its folder.
#[derive(Debug)]
pub struct Journal {
    folder: PathBuf,
    machine: Machine,
}

/// An experiment that runs.
#[derive(Debug)]
pub struct Started {
    invocation: Invocation,
    began: SystemTime,
    since: Instant,
}

/// All that is known of some folders of results.
#[derive(Debug, Default)]
pub struct Report {
    entries: Vec<Entry>,
    /// Files that are not what their names say, and why.
    unreadable: Vec<(PathBuf, String)>,
}

/// An experiment, by world.
#[derive(Debug, Default)]
struct Entry {
    name: String,
    sim: Ran,
    kernel: Ran,
}

/// What is known of an experiment in one world.
#[derive(Debug, Default)]
struct Ran {
    record: Option<Record>,
    attempt: Option<Attempt>,
}

impl Journal {
    /// Begins a run of these experiments: all are unfinished, and the page says so. Earlier results in the
    /// folder stay until there are new ones.
    ///
    /// # Errors
    /// [`Error::Write`] if the folder takes no files.
    pub fn begin(folder: &Path, invocations: &[Invocation]) -> Result<Self, Error> {
        let journal = Self { folder: folder.to_owned(), machine: Machine::this() };
        for invocation in invocations {
            journal.write_attempt(invocation, State::Waiting)?;
        }
        journal.write_page()?;
        Ok(journal)
    }

    /// An experiment begins.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn started(&self, invocation: &Invocation) -> Result<Started, Error> {
        let (began, since) = (SystemTime::now(), Instant::now());
        self.write_attempt(invocation, State::Running)?;
        self.write_page()?;
        Ok(Started { invocation: invocation.clone(), began, since })
    }

    /// An experiment has results. They are written as files and in the page.
    ///
    /// # Errors
    /// Those of [`Results::write`].
    pub fn finished(&self, started: Started, results: &Results) -> Result<Written, Error> {
        let Started { invocation, began, since } = started;
        let seconds = since.elapsed().as_secs_f64();
        let origin = Origin { machine: self.machine.clone(), began: rfc3339(began), seconds };
        let written = results.write(&self.folder)?;
        let record = self.folder.join(format!("{}{RESULT}", results.name));
        write_json(&record, &Record { results: results.clone(), origin })?;
        let unfinished = self.unfinished(&invocation);
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(refused(&unfinished, &error)),
            _ => Ok(Written { record: Some(record), report: Some(self.write_page()?), ..written }),
        }
    }

    /// An experiment has failed.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub fn failed(&self, started: Started, message: impl Into<String>) -> Result<(), Error> {
        self.write_attempt(&started.invocation, State::Failed(message.into()))?;
        self.write_page().map(drop)
    }

    fn unfinished(&self, invocation: &Invocation) -> PathBuf {
        self.folder.join(format!("{}{UNFINISHED}", invocation.name()))
    }

    fn write_attempt(&self, invocation: &Invocation, state: State) -> Result<(), Error> {
        let attempt = Attempt { invocation: invocation.clone(), at: rfc3339(SystemTime::now()), state };
        write_json(&self.unfinished(invocation), &attempt)
    }

    fn write_page(&self) -> Result<PathBuf, Error> {
        let page = self.folder.join(PAGE);
        Report::read(&[&self.folder])?.write(&page)?;
        Ok(page)
    }
}

impl Report {
    /// Reads what runs have left in these folders. Where several have an experiment in the same world, the
    /// newest results count, and those of the last folder if they are of the same time.
    ///
    /// # Errors
    /// [`Error::Read`] if a folder cannot be read. A file that cannot be is named in the page.
    pub fn read<P: AsRef<Path>>(folders: &[P]) -> Result<Self, Error> {
        let mut report = Self::default();
        for folder in folders {
            for path in files(folder.as_ref())? {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if name.ends_with(RESULT) {
                    if let Some(record) = report.parse(&path) {
                        report.add_record(record);
                    }
                } else if name.ends_with(UNFINISHED)
                    && let Some(attempt) = report.parse(&path)
                {
                    report.add_attempt(attempt);
                }
            }
        }
        report.entries.sort_by_key(|entry| (place(&entry.name), entry.name.clone()));
        Ok(report)
    }

    /// Whether the folders had neither results nor attempts.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The page: one document without anything outside it.
    ///
    /// # Errors
    /// [`Error::Write`] if a figure cannot be drawn.
    pub fn to_html(&self) -> Result<String, Error> {
        page::html(self, &rfc3339(SystemTime::now()))
            .map_err(|message| Error::Write { path: PAGE.into(), message })
    }

    /// Writes the page as a whole or not at all.
    ///
    /// # Errors
    /// [`Error::Write`] if a figure cannot be drawn or the file not be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_whole(path, &self.to_html()?)
    }

    fn add_record(&mut self, record: Record) {
        let invocation = record.results.invocation();
        let place = &mut self.ran(&invocation).record;
        // Times of RFC 3339 in UTC with the same digits are in the order of their texts.
        if place.as_ref().is_none_or(|known| known.origin.began <= record.origin.began) {
            *place = Some(record);
        }
    }

    fn add_attempt(&mut self, attempt: Attempt) {
        let place = &mut self.ran(&attempt.invocation).attempt;
        if place.as_ref().is_none_or(|known| known.at <= attempt.at) {
            *place = Some(attempt);
        }
    }

    fn ran(&mut self, Invocation { experiment, world, .. }: &Invocation) -> &mut Ran {
        let known = self.entries.iter().position(|entry| entry.name == *experiment);
        let index = known.unwrap_or_else(|| {
            self.entries.push(Entry { name: experiment.clone(), ..Entry::default() });
            self.entries.len() - 1
        });
        self.entries[index].ran_mut(*world)
    }

    /// `None` for a file that is gone, as that of an attempt which has just finished, or unreadable.
    fn parse<T: DeserializeOwned>(&mut self, path: &Path) -> Option<T> {
        let outcome = match fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| error.to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
        };
        outcome.map_err(|message| self.unreadable.push((path.to_owned(), message))).ok()
    }
}

impl Entry {
    fn ran(&self, world: World) -> &Ran {
        match world {
            World::Sim => &self.sim,
            World::Kernel => &self.kernel,
        }
    }

    fn ran_mut(&mut self, world: World) -> &mut Ran {
        match world {
            World::Sim => &mut self.sim,
            World::Kernel => &mut self.kernel,
        }
    }
}

impl From<Stored> for Record {
    fn from(Stored { results, tables, figures, origin }: Stored) -> Self {
        Self { results: Results { tables, figures, ..results }, origin }
    }
}

impl From<Record> for Stored {
    fn from(Record { mut results, origin }: Record) -> Self {
        let (tables, figures) = (std::mem::take(&mut results.tables), std::mem::take(&mut results.figures));
        Self { results, tables, figures, origin }
    }
}

/// The place of an experiment among all; those that this version does not know come last.
fn place(name: &str) -> usize {
    ALL.iter().position(|experiment| experiment.name == name).unwrap_or(ALL.len())
}

/// The files of a folder in the order of their names.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let list = |entry: std::io::Result<fs::DirEntry>| entry.map(|entry| entry.path());
    let paths = fs::read_dir(folder).and_then(|entries| entries.map(list).collect::<Result<Vec<_>, _>>());
    let mut paths = paths
        .map_err(|error| Error::Read { path: folder.display().to_string(), message: error.to_string() })?;
    paths.sort();
    Ok(paths)
}

fn write_json(path: &Path, document: &impl Serialize) -> Result<(), Error> {
    let text = serde_json::to_string(document).expect("all keys are texts");
    write_whole(path, &format!("{text}\n"))
}

fn refused(path: &Path, error: &std::io::Error) -> Error {
    Error::Write { path: path.display().to_string(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Axis, BarChart, BarGroup};
    use crate::file::tests::Folder;
    use crate::results::Plan;
    use crate::results::tests::results;
    use crate::statistics::Estimate;
    use crate::table::{Cell, Column};

    pub(super) fn on_kernel() -> Results {
        let mut results = Results {
            name: "psats09-fig4-kernel".into(),
            world: World::Kernel,
            plan: Plan::fixed(3),
            ..results()
        };
        results.verdicts[0].outcome = crate::claim::Outcome::Contradicts;
        results
    }

    /// A folder in which these results were written, one after the other.
    pub(super) fn folder_of(test: &str, all: &[Results]) -> Folder {
        let folder = Folder::new(test);
        let invocations: Vec<_> = all.iter().map(Results::invocation).collect();
        let journal = Journal::begin(&folder.0, &invocations).unwrap();
        for (results, invocation) in all.iter().zip(&invocations) {
            let started = journal.started(invocation).unwrap();
            journal.finished(started, results).unwrap();
        }
        folder
    }

    fn page(folder: &Folder) -> String {
        fs::read_to_string(folder.0.join(PAGE)).unwrap()
    }

    #[test]
    fn results_come_back_from_their_file_with_tables_and_figures_and_numbers_that_json_lacks() {
        let mut results = results();
        let mut table = Table::new("odd", vec![Column::new("n", "n"), Column::new("t", "t")]);
        table.push(vec![Cell::Number(f64::INFINITY, 1), Cell::Missing]);
        table.push(vec![Cell::Interval(f64::NEG_INFINITY.into(), 2), Cell::text("<&")]);
        results.tables.push(Part::new("odd", table));
        let bar = Estimate { value: 0.5, half_width: Some(0.25) };
        let bars = BarChart::new("b", Axis::new("a", "s").log(), Axis::new("b", "s"), ["c", "d"]);
        results.figures.push(Part::new("bars", bars.with(BarGroup::new("g", [Some(bar), None]))));
        let folder = folder_of("back", std::slice::from_ref(&results));
        let report = Report::read(&[&folder.0]).unwrap();
        let record = report.entries[0].sim.record.as_ref().unwrap();
        assert_eq!(record.results, results);
        assert!(record.origin.machine.cpus > 0 && record.origin.began.ends_with('Z'));
        assert!(report.unreadable.is_empty() && report.entries[0].kernel.record.is_none());
    }

    #[test]
    fn a_run_that_is_stopped_leaves_what_it_has_and_says_what_is_missing() {
        let folder = Folder::new("stopped");
        let [first, second] = [results(), on_kernel()];
        let third = Invocation { experiment: "pepsal-per".into(), ..first.invocation() };
        let invocations = [first.invocation(), second.invocation(), third];
        let journal = Journal::begin(&folder.0, &invocations).unwrap();
        assert_eq!(page(&folder).matches("has not begun").count(), 3);
        let started = journal.started(&invocations[0]).unwrap();
        journal.finished(started, &first).unwrap();
        journal.started(&invocations[1]).unwrap();
        drop(journal);
        let page = page(&folder);
        assert_eq!((page.matches("has not begun").count(), page.matches("has not finished").count()), (1, 1));
        assert!(page.contains("Over the railway") && page.contains("33 tunnels"));
        assert!(folder.names().contains(&"psats09-fig4-kernel.unfinished.json".into()));
        assert!(!folder.names().contains(&"psats09-fig4.unfinished.json".into()));
    }

    #[test]
    fn a_failure_is_told_with_its_error_beside_the_earlier_results() {
        let folder = folder_of("failure", &[results()]);
        let invocation = results().invocation();
        let journal = Journal::begin(&folder.0, std::slice::from_ref(&invocation)).unwrap();
        let started = journal.started(&invocation).unwrap();
        journal.failed(started, "no <namespaces> here").unwrap();
        let failed = page(&folder);
        assert!(
            failed.contains("failed: no &lt;namespaces&gt; here") && failed.contains("33 tunnels"),
            "{failed}"
        );
        let started = journal.started(&invocation).unwrap();
        journal.finished(started, &results()).unwrap();
        assert!(!page(&folder).contains("failed:"));
    }

    #[test]
    fn results_of_several_folders_are_joined_and_the_newest_count() {
        let (sim, kernel) = (folder_of("sim", &[results()]), folder_of("kernel", &[on_kernel()]));
        let mut newer = results();
        newer.title = "Newer".into();
        let newer = folder_of("newer", &[newer]);
        for folders in [[&newer.0, &sim.0, &kernel.0], [&kernel.0, &sim.0, &newer.0]] {
            let report = Report::read(&folders).unwrap();
            assert_eq!(report.entries.len(), 1);
            let [sim, kernel] = [World::Sim, World::Kernel].map(|world| report.entries[0].ran(world));
            assert_eq!(sim.record.as_ref().unwrap().results.title, "Newer");
            assert_eq!(kernel.record.as_ref().unwrap().results, on_kernel());
        }
    }

    #[test]
    fn what_is_no_result_is_named_and_spoils_nothing() {
        let folder = folder_of("spoilt", &[results()]);
        fs::write(folder.0.join("pepsal-per.result.json"), "{}").unwrap();
        fs::write(folder.0.join("other.json"), "not ours").unwrap();
        let html = Report::read(&[&folder.0]).unwrap().to_html().unwrap();
        assert!(html.contains("pepsal-per.result.json") && html.contains("missing field"), "{html}");
        assert!(html.contains("33 tunnels") && !html.contains("other.json"));
        assert!(Report::read(&[folder.0.join("absent")]).unwrap_err().to_string().contains("absent"));
    }
}
