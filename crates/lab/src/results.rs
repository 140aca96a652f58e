//! The results of an experiment, in either world: verdicts on the claims of the literature, tables, and
//! figures; as text, as files and as one JSON document.

mod page;

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::claim::Level;
pub use crate::claim::{Label, Outcome, Verdict};
use crate::figure::Figure;
use crate::file::write_whole;
use crate::processors::Busy;
use crate::table::Table;

/// What is behind an experiment's name in that of its results from the kernel.
const KERNEL_SUFFIX: &str = "-kernel";

/// The outcome of one experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The experiment's name, also of its files: small letters, digits and hyphens.
    pub name: String,
    /// Its title, one line.
    pub title: String,
    /// The publication that it repeats.
    pub source: String,
    /// Where it ran.
    pub world: World,
    /// The seeds of its runs.
    #[serde(flatten)]
    pub seeds: Seeds,
    /// The seeds with which it began, and with how many it would have ended.
    #[serde(flatten)]
    pub plan: Plan,
    /// Whether scenarios were shortened on the kernel: a look, not a result.
    pub quick: bool,
    /// How busy the machine was on the kernel, where its processors tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Busy>,
    /// The claims, and whether they hold.
    pub verdicts: Vec<Verdict>,
    /// The numbers.
    #[serde(skip)]
    pub tables: Vec<Part<Table>>,
    /// The pictures.
    #[serde(skip)]
    pub figures: Vec<Part<Figure>>,
}

/// Where an experiment ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum World {
    /// In virtual time.
    Sim,
    /// With the TCP of this machine's kernel, in real time.
    Kernel,
}

/// Consecutive seeds, one for each run of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seeds {
    /// How many.
    #[serde(rename = "seeds")]
    pub count: u64,
    /// The first.
    #[serde(rename = "first_seed")]
    pub first: u64,
}

/// How many seeds an experiment has: it looks at the claims after `from` seeds, and again after more as long
/// as one is undecided, up to `most`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The seeds of the first look, one or more.
    #[serde(rename = "from_seeds")]
    pub from: u64,
    /// Those of the last one, as many or more.
    #[serde(rename = "max_seeds")]
    pub most: u64,
}

/// What is run: an experiment, where, and with which seeds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invocation {
    /// The experiment's name, which is the same in both worlds.
    pub experiment: String,
    /// Where it runs.
    pub world: World,
    /// The first seed.
    pub first_seed: u64,
    /// With how many seeds it begins and ends.
    #[serde(flatten)]
    pub plan: Plan,
    /// Whether scenarios are shortened on the kernel.
    pub quick: bool,
}

/// A table or figure, and the suffix of its file's name if the experiment has several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part<T> {
    /// Small letters, digits and hyphens: `by-speed`.
    pub suffix: String,
    /// The table or figure.
    pub content: T,
}

/// The files that were written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Written {
    /// The figures, SVG.
    pub figures: Vec<PathBuf>,
    /// The tables, CSV.
    pub tables: Vec<PathBuf>,
    /// The page that shows everything, Markdown.
    pub page: Option<PathBuf>,
    /// All of it for the report, JSON.
    pub record: Option<PathBuf>,
    /// The report on all results in the folder, HTML.
    pub report: Option<PathBuf>,
}

/// The JSON document of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document<'a> {
    #[serde(flatten)]
    results: &'a Results,
    #[serde(flatten)]
    written: &'a Written,
}

impl Results {
    /// Whether every claim agrees.
    pub fn agrees(&self) -> bool {
        self.verdicts.iter().all(Verdict::agrees)
    }

    /// The claims that the data refute.
    pub fn contradicted(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter().filter(|verdict| verdict.outcome == Outcome::Contradicts)
    }

    /// What was run.
    pub fn invocation(&self) -> Invocation {
        let experiment = match self.world {
            World::Sim => &self.name,
            World::Kernel => self.name.strip_suffix(KERNEL_SUFFIX).unwrap_or(&self.name),
        };
        let (experiment, first_seed) = (experiment.to_owned(), self.seeds.first);
        Invocation { experiment, world: self.world, first_seed, plan: self.plan, quick: self.quick }
    }

    /// The title, the tables and the verdicts for a terminal.
    pub fn to_text(&self) -> String {
        page::text(self)
    }

    /// Writes `NAME.md`, `NAME.csv` and `NAME.svg` into a folder, which is created if need be; of several
    /// tables or figures `NAME-SUFFIX.csv` and `NAME-SUFFIX.svg`. Nothing is written unless everything can be
    /// drawn, and each file is written as a whole or not at all.
    ///
    /// # Errors
    /// [`Error::Write`], with the file, the cause and a remedy: if a figure cannot be drawn, a name is
    /// unsuitable for a file or used twice, or the folder or disk refuses the file.
    pub fn write(&self, folder: &Path) -> Result<Written, Error> {
        let page = file(folder, &self.name, "md")?;
        let tables = files(folder, &self.name, "csv", &self.tables)?;
        let figures = files(folder, &self.name, "svg", &self.figures)?;
        let mut texts = vec![(page.clone(), page::markdown(self, &tables, &figures))];
        for (path, table) in tables.iter().zip(&self.tables) {
            texts.push((path.clone(), table.content.to_csv()));
        }
        for (path, figure) in figures.iter().zip(&self.figures) {
            texts.push((path.clone(), figure.content.to_svg().map_err(|message| refused(path, message))?));
        }
        // The page comes last, so that everything that it shows exists.
        for (path, text) in texts.iter().rev() {
            write_whole(path, text)?;
        }
        Ok(Written { page: Some(page), figures, tables, ..Written::default() })
    }

    /// The results as a JSON document, with the paths of the files that were `written`.
    pub fn document<'a>(&'a self, written: &'a Written) -> Document<'a> {
        Document { results: self, written }
    }
}

impl Invocation {
    /// The name of its results and their files: of those from the kernel, the experiment's with an ending.
    pub fn name(&self) -> String {
        match self.world {
            World::Sim => self.experiment.clone(),
            World::Kernel => format!("{}{KERNEL_SUFFIX}", self.experiment),
        }
    }

    /// The command that repeats it. On the kernel it needs root.
    pub fn command(&self) -> String {
        let Self { experiment, world, first_seed, plan: Plan { from, most }, quick } = self;
        let quick = if *quick { " --quick" } else { "" };
        format!(
            "bentpipe lab run {experiment} --on {world} --seed {first_seed} --seeds {from} --max-seeds \
             {most}{quick}"
        )
    }
}

impl Plan {
    /// A plan that looks once: for claims that twice as many seeds would hardly decide.
    pub const fn fixed(seeds: u64) -> Self {
        Self { from: seeds, most: seeds }
    }

    /// A plan that looks again with twice as many seeds.
    pub const fn doubling(seeds: u64) -> Self {
        Self { from: seeds, most: 2 * seeds }
    }

    /// The number of seeds at each look. They are known before the first one: one look if the number is
    /// fixed, two up to less than four times as many, else three, each with the same factor.
    pub fn looks(self) -> Vec<u64> {
        let Self { from, most } = self;
        match most {
            _ if most <= from => vec![from],
            _ if most < 4 * from => vec![from, most],
            _ => vec![from, (from as f64 * most as f64).sqrt().round() as u64, most],
        }
    }

    /// The level of each look.
    pub fn level(self) -> Level {
        Level::of_looks(self.looks().len() as u32)
    }
}

impl<T> Part<T> {
    /// A part with its suffix, which a single part does not use.
    pub fn new(suffix: impl Into<String>, content: impl Into<T>) -> Self {
        Self { suffix: suffix.into(), content: content.into() }
    }
}

impl fmt::Display for World {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            World::Sim => "sim",
            World::Kernel => "kernel",
        })
    }
}

/// `5 seeds from 1`.
impl fmt::Display for Seeds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(formatter, "seed {}", self.first),
            count => write!(formatter, "{count} seeds from {}", self.first),
        }
    }
}

/// Where the parts go, each under a name of its own: one would take the other's place.
fn files<T>(folder: &Path, name: &str, ending: &str, parts: &[Part<T>]) -> Result<Vec<PathBuf>, Error> {
    let mut taken = HashSet::new();
    let mut paths = Vec::new();
    for part in parts {
        let stem = if parts.len() == 1 { name.to_owned() } else { format!("{name}-{}", part.suffix) };
        let path = file(folder, &stem, ending)?;
        if !taken.insert(stem) {
            return Err(refused(&path, "two parts have this name; give each a suffix of its own".into()));
        }
        paths.push(path);
    }
    Ok(paths)
}

/// A path whose file name is valid on any system and in any link.
fn file(folder: &Path, stem: &str, ending: &str) -> Result<PathBuf, Error> {
    let path = folder.join(format!("{stem}.{ending}"));
    let allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let does =
        !stem.is_empty() && !stem.starts_with('-') && !stem.ends_with('-') && stem.chars().all(allowed);
    if does { Ok(path) } else { Err(refused(&path, "name it in small letters, digits and hyphens".into())) }
}

fn refused(path: &Path, message: String) -> Error {
    Error::Write { path: path.display().to_string(), message }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::*;
    use crate::claim::{Claim, Range};
    use crate::figure::{Axis, BarChart, BarGroup, Plot, Series, Style};
    use crate::file::tests::Folder;
    use crate::statistics::{Sample, Summary};
    use crate::table::{Cell, Column};

    fn claims() -> [Claim; 3] {
        let [reno, hybla, pepsal] =
            [[0.30, 0.31, 0.32], [4.1, 4.2, 4.3], [3.9, 4.2, 4.5]].map(|values| Sample::of(values).unwrap());
        [
            Claim::expected("Hybla is far above Reno: 3 times or more", "figure 4")
                .shown_in("times", 1.0, 1)
                .with(Range::at_least(3.0).of_ratio(&hybla, &reno).at("at 60 km/h")),
            Claim::stated("PEPsal is within 5% of Hybla", "figure 4")
                .with(Range::between(0.95, 1.05).of_ratio(&pepsal, &hybla)),
            Claim::ours("33 tunnels")
                .shown_in("tunnels", 1.0, 0)
                .with(Range::between(33.0, 33.0).of_exact(32.0)),
        ]
    }

    pub(crate) fn results() -> Results {
        let summary = Summary::of(&[4.1e6, 4.3e6, 4.2e6]);
        let columns =
            vec![Column::new("way", "way"), Column::new("goodput", "goodput_bps").shown_in("Mbit/s", 1e6)];
        let mut table = Table::new("Goodput by way", columns);
        table.push(vec![Cell::text("PEPsal"), Cell::interval(summary, 2)]);
        let plot = Plot::new("Goodput", Axis::new("speed", "km/h"), Axis::new("goodput", "Mbit/s"))
            .with(Series::new("PEPsal", Style::Line, [(60.0, 4.2)]));
        Results {
            name: "psats09-fig4".into(),
            title: "Over the railway".into(),
            source: "Caini, Firrincieli, Lacamera, PSATS 2009, figure 4".into(),
            world: World::Sim,
            seeds: Seeds { first: 1, count: 3 },
            plan: Plan { from: 3, most: 12 },
            quick: false,
            busy: None,
            verdicts: claims().map(|claim| claim.judge(Level::of_looks(1))).into(),
            tables: vec![Part::new("by-way", table)],
            figures: vec![Part::new("speed", plot)],
        }
    }

    #[test]
    fn a_single_table_and_figure_have_the_experiments_name() {
        let folder = Folder::new("single");
        let written = results().write(&folder.0.join("new")).unwrap();
        assert_eq!(written.page, Some(folder.0.join("new/psats09-fig4.md")));
        assert_eq!(written.tables, [folder.0.join("new/psats09-fig4.csv")]);
        assert_eq!(written.figures, [folder.0.join("new/psats09-fig4.svg")]);
        let csv = fs::read_to_string(&written.tables[0]).unwrap();
        assert!(csv.starts_with("way,goodput_bps_mean,goodput_bps_ci95\nPEPsal,4200000,"), "{csv}");
    }

    #[test]
    fn several_figures_have_suffixes_and_no_temporary_file_is_left() {
        let folder = Folder::new("several");
        let bars = BarChart::new("b", Axis::new("a", "s"), Axis::new("b", "s"), ["c"]);
        let mut results = results();
        results.figures.push(Part::new("bars", bars));
        results.write(&folder.0).unwrap();
        let names =
            ["psats09-fig4-bars.svg", "psats09-fig4-speed.svg", "psats09-fig4.csv", "psats09-fig4.md"];
        assert_eq!(folder.names(), names);
    }

    #[test]
    fn the_same_results_are_the_same_bytes() {
        let (one, other) = (Folder::new("one"), Folder::new("other"));
        for folder in [&one, &other, &other] {
            results().write(&folder.0).unwrap();
        }
        for name in one.names() {
            assert_eq!(
                fs::read(one.0.join(&name)).unwrap(),
                fs::read(other.0.join(&name)).unwrap(),
                "{name}"
            );
        }
    }

    #[test]
    fn nothing_is_written_if_a_figure_cannot_be_drawn() {
        let folder = Folder::new("undrawable");
        let bars = BarChart::new("b", Axis::new("a", "s"), Axis::new("b", "s"), ["c"]);
        let mut results = results();
        results.figures = vec![Part::new("", bars.with(BarGroup::new("g", [Some(1.0), Some(2.0)])))];
        let message = results.write(&folder.0).unwrap_err().to_string();
        assert!(
            message.contains("psats09-fig4.svg") && message.contains("2 bars for 1 categories"),
            "{message}"
        );
        assert!(folder.names().is_empty());
    }

    #[test]
    fn a_name_that_leads_out_of_the_folder_or_is_taken_is_refused() {
        let folder = Folder::new("names");
        let named = |name: &str| Results { name: name.into(), ..results() };
        for name in ["", "../up", "/tmp/x", "A b", "-x"] {
            let message = named(name).write(&folder.0).unwrap_err().to_string();
            assert!(message.contains("small letters, digits and hyphens"), "{message}");
        }
        let mut twice = results();
        twice.tables.push(twice.tables[0].clone());
        let message = twice.write(&folder.0).unwrap_err().to_string();
        assert!(message.contains("psats09-fig4-by-way.csv: two parts have this name"), "{message}");
        assert!(folder.names().is_empty());
    }

    #[test]
    fn an_unwritable_folder_is_named_with_a_remedy() {
        let folder = Folder::new("unwritable");
        fs::write(folder.0.join("out"), "a file").unwrap();
        let message = results().write(&folder.0.join("out")).unwrap_err().to_string();
        assert!(
            message.starts_with("cannot write ") && message.contains("write to another folder"),
            "{message}"
        );
        assert_eq!(folder.names(), ["out"]);
    }

    #[test]
    fn the_document_has_the_promised_keys() {
        let results = results();
        let written = Written { tables: vec!["out/a.csv".into()], ..Written::default() };
        let json = serde_json::to_value(results.document(&written)).unwrap();
        assert_eq!((json["name"].as_str(), json["world"].as_str()), (Some("psats09-fig4"), Some("sim")));
        assert_eq!((json["seeds"].as_u64(), json["first_seed"].as_u64()), (Some(3), Some(1)));
        assert_eq!((json["from_seeds"].as_u64(), json["max_seeds"].as_u64()), (Some(3), Some(12)));
        let outcomes = [0, 1, 2].map(|at: usize| json["verdicts"][at]["outcome"].as_str().unwrap());
        assert_eq!(outcomes, ["agrees", "undecided", "contradicts"]);
        assert_eq!(json["verdicts"][1]["claim"], "PEPsal is within 5% of Hybla");
        assert_eq!(json["verdicts"][1]["label"], "stated");
        assert_eq!(json["verdicts"][1]["reference"], "figure 4");
        assert_eq!(json["verdicts"][1]["margin"], serde_json::json!([0.95, 1.05]));
        assert_eq!(json["verdicts"][0]["margin"], serde_json::json!([3.0, null]));
        assert!(json["verdicts"][1]["power"].as_f64().unwrap() > 0.05);
        assert!(json["verdicts"][2]["observed"].as_str().unwrap().starts_with("32 tunnels"));
        assert_eq!(json["tables"], serde_json::json!(["out/a.csv"]));
        assert_eq!(json["figures"], serde_json::json!([]));
    }

    #[test]
    fn the_command_repeats_it_in_its_world() {
        let command = "bentpipe lab run psats09-fig4 --on sim --seed 1 --seeds 3 --max-seeds 12";
        assert_eq!(results().invocation().command(), command);
        let quick = Results {
            name: "psats09-fig4-kernel".into(),
            world: World::Kernel,
            quick: true,
            plan: Plan::fixed(1),
            ..results()
        };
        let invocation = quick.invocation();
        assert_eq!(invocation.name(), quick.name);
        let command = "bentpipe lab run psats09-fig4 --on kernel --seed 1 --seeds 1 --max-seeds 1 --quick";
        assert_eq!(invocation.command(), command);
    }

    #[test]
    fn an_experiment_agrees_if_every_verdict_does() {
        assert!(!results().agrees());
        let verdicts = vec![results().verdicts.remove(0)];
        assert!(Results { verdicts, ..results() }.agrees());
    }

    #[test]
    fn the_looks_of_a_plan_are_few_and_known_before_the_first() {
        let looks = |from, most| Plan { from, most }.looks();
        assert_eq!(looks(20, 20), [20]);
        assert_eq!(looks(20, 10), [20]);
        assert_eq!(looks(20, 60), [20, 60]);
        assert_eq!((looks(20, 80), looks(1, 9)), (vec![20, 40, 80], vec![1, 3, 9]));
        assert_eq!(Plan { from: 20, most: 80 }.level(), Level::of_looks(3));
    }
}
