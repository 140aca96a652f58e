//! Sweeps: a scenario run at every combination of some parameters' values and with several seeds, on all
//! cores.
//!
//! A [`Plan`] is checked as a whole before its first run. Its results come in the order of the points and
//! seeds, however many threads there are.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::file::{self, Setting, Source};
use crate::scenario::Scenario;

pub use crate::file::{CASE, NotASweep, Sweep, SweepError};

/// The most combinations of values.
pub const MAX_POINTS: usize = 100_000;
/// The most flows whose results one plan may gather: points, times seeds, times flows and receivers of UDP
/// streams.
pub const MAX_RESULTS: u64 = 1_000_000;

/// Why a plan cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A point is not a scenario.
    #[error(transparent)]
    Scenario(#[from] file::Error),
    /// Two sweeps of the same parameter, or two lists of cases.
    #[error("the sweep of {file} has {key} twice: put all that it takes into one sweep")]
    Twice {
        /// The scenario's path.
        file: String,
        /// The parameter, or [`CASE`].
        key: String,
    },
    /// Each point is well, all of them are too much.
    #[error("the sweep of {file} is too large: {what}")]
    TooLarge {
        /// The scenario's path.
        file: String,
        /// How much it is, and how much is accepted.
        what: String,
    },
}

/// One combination of values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Point {
    /// The parameters that the sweeps set, in their order; empty where nothing is swept.
    pub settings: Vec<Setting>,
    /// What distinguishes the point in results: the same, but of named cases the name alone, under the key
    /// [`CASE`]. All points of a plan have the same keys in the same order.
    pub labels: Vec<Setting>,
}

impl Point {
    /// The name of its case, where cases are swept.
    pub fn case(&self) -> Option<&str> {
        self.labels.iter().find(|label| label.key == CASE).map(|label| label.value.as_str())
    }
}

/// A run to be done.
#[derive(Debug)]
pub struct Job<'a> {
    /// Its number among all runs of the plan, from 0.
    pub number: usize,
    /// The parameters that are swept.
    pub point: &'a Point,
    /// The scenario with these parameters.
    pub scenario: Scenario,
    /// The seed.
    pub seed: u64,
}

/// The result of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run<R> {
    /// Which parameters were swept to which values.
    pub point: Point,
    /// The seed of the run.
    pub seed: u64,
    /// Its result.
    pub result: R,
}

/// A scenario and the points at which it is to be run, all of them checked.
#[derive(Debug, Clone)]
pub struct Plan {
    source: Source,
    fixed: Vec<Setting>,
    points: Vec<Point>,
    seeds: Vec<u64>,
}

impl Plan {
    /// The product of all sweeps, those of the file and `sweeps`; a parameter in `fixed` has that value
    /// throughout.
    ///
    /// Settings from outside take precedence: what `fixed` or `sweeps` set is left out of the file's sweeps
    /// and cases, and cases in `sweeps` replace those of the file.
    ///
    /// # Errors
    /// A parameter in two sweeps; more than [`MAX_POINTS`] or [`MAX_RESULTS`]; the first point that is not a
    /// scenario.
    pub fn new(source: &Source, fixed: &[Setting], sweeps: &[Sweep], seeds: &[u64]) -> Result<Self, Error> {
        let outside: HashSet<&str> = sweeps.iter().flat_map(Sweep::keys).collect();
        let said_outside =
            |key: &str| outside.contains(key) || fixed.iter().any(|setting| setting.key == key);
        let cases_replaced = sweeps.iter().any(Sweep::is_cases);
        let of_file = source.sweeps().iter().filter(|sweep| !(cases_replaced && sweep.is_cases()));
        let of_file = of_file.filter_map(|sweep| sweep.without(said_outside));
        let axes: Vec<Sweep> = of_file.chain(sweeps.iter().cloned()).collect();
        if let Some(key) = twice(&axes) {
            return Err(Error::Twice { file: source.name().to_owned(), key });
        }
        let too_large = |what| Error::TooLarge { file: source.name().to_owned(), what };
        let points = product(&axes).map_err(too_large)?;
        let plan = Self { source: source.clone(), fixed: fixed.to_vec(), points, seeds: seeds.to_vec() };
        plan.check()?;
        Ok(plan)
    }

    /// The points, in the order in which they are run: the last sweep changes fastest.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The scenario's file.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The seeds.
    pub fn seeds(&self) -> &[u64] {
        &self.seeds
    }

    /// What is set at every point.
    pub fn fixed(&self) -> &[Setting] {
        &self.fixed
    }

    /// All that is set at a point, in the order in which it is set.
    pub fn settings(&self, point: &Point) -> Vec<Setting> {
        [&self.fixed[..], &point.settings[..]].concat()
    }

    /// How many runs it is: points times seeds.
    pub fn len(&self) -> usize {
        self.points.len() * self.seeds.len()
    }

    /// Whether there are no runs, because there is no seed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The scenario at one of the points.
    ///
    /// # Errors
    /// If a file that it names has changed since the plan was checked.
    pub fn scenario(&self, point: &Point) -> Result<Scenario, file::Error> {
        self.source.with(&self.settings(point))
    }

    /// The run of this number, from 0 on: all seeds of the first point, then all of the second.
    ///
    /// # Errors
    /// If a file that the scenario names has changed since the plan was checked.
    ///
    /// # Panics
    /// If there are not so many runs.
    pub fn job(&self, number: usize) -> Result<Job<'_>, file::Error> {
        let (point, seed) = (number / self.seeds.len(), self.seeds[number % self.seeds.len()]);
        let point = &self.points[point];
        Ok(Job { number, point, scenario: self.scenario(point)?, seed })
    }

    /// Runs `job` for each point and seed, on all cores, and reports to `progress` the number of completed
    /// runs after each.
    ///
    /// The results are in order: all seeds of the first point, then all of the second.
    ///
    /// # Errors
    /// If a file that the scenario names has changed since the plan was checked.
    pub fn run<R: Send>(
        &self,
        job: impl Fn(&Job<'_>) -> R + Sync,
        progress: impl Fn(usize) + Sync,
    ) -> Result<Vec<Run<R>>, file::Error> {
        let done = AtomicUsize::new(0);
        let run = |number: usize| {
            let planned = self.job(number)?;
            let result = job(&planned);
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            Ok(Run { point: planned.point.clone(), seed: planned.seed, result })
        };
        // One at a time: runs differ in length by orders of magnitude.
        (0..self.len()).into_par_iter().with_max_len(1).map(run).collect()
    }

    /// Reads every point, and counts the results that there will be.
    fn check(&self) -> Result<(), Error> {
        let results = AtomicU64::new(0);
        let check = |point: &Point| {
            let scenario = self.scenario(point)?;
            let receivers: usize = scenario.udp.iter().map(|stream| stream.receivers.len()).sum();
            let flows = (scenario.flows.len() + receivers) as u64 * self.seeds.len() as u64;
            if results.fetch_add(flows, Ordering::Relaxed) + flows <= MAX_RESULTS {
                return Ok(());
            }
            let what = format!("points times seeds times flows exceed {MAX_RESULTS}");
            Err(Error::TooLarge { file: self.source.name().to_owned(), what })
        };
        let outcomes: Option<Result<(), Error>> =
            self.points.par_iter().map(check).find_first(Result::is_err);
        outcomes.unwrap_or(Ok(()))
    }
}

/// A parameter that two sweeps set, or [`CASE`].
fn twice(axes: &[Sweep]) -> Option<String> {
    let mut seen = HashSet::new();
    let names = |axis: &Sweep| {
        let own = axis.keys().into_iter().map(str::to_owned);
        own.chain(axis.is_cases().then(|| CASE.to_owned())).collect::<BTreeSet<String>>()
    };
    axes.iter().flat_map(names).find(|name| !seen.insert(name.clone()))
}

/// All combinations, the last axis changing fastest; a single point without settings where there is no axis.
fn product(axes: &[Sweep]) -> Result<Vec<Point>, String> {
    let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.len()));
    if count.is_none_or(|count| count > MAX_POINTS) {
        let sizes: Vec<String> = axes.iter().map(|axis| axis.len().to_string()).collect();
        return Err(format!("{} points, at most {MAX_POINTS} are run", sizes.join(" × ")));
    }
    let mut points = vec![Point::default()];
    for axis in axes {
        let extend = |base: &Point| {
            let steps = axis.steps().iter().map(|step| Point {
                settings: [&base.settings[..], &step.settings[..]].concat(),
                labels: [&base.labels[..], &step.labels()[..]].concat(),
            });
            steps.collect::<Vec<_>>()
        };
        points = points.iter().flat_map(extend).collect();
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

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
bytes = "1MB"
[sweep]
link.sat.per = ["0", 0.01]
"flow.f.bytes" = ["1MB", "2MB", "3MB"]
"#;

    fn source() -> Source {
        Source::parse("s.toml", TEXT).unwrap()
    }

    fn described(plan: &Plan) -> Vec<String> {
        let point =
            |point: &Point| point.settings.iter().map(Setting::to_string).collect::<Vec<_>>().join(" ");
        plan.points().iter().map(point).collect()
    }

    #[test]
    fn sweeps_of_the_file_are_multiplied_in_the_order_of_its_lines() {
        let source = source();
        let plan = Plan::new(&source, &[], &[], &[1]).unwrap();
        let points = described(&plan);
        assert_eq!(points.len(), 6);
        assert_eq!(points[0], "link.sat.per=0 flow.f.bytes=1MB");
        assert_eq!(points[1], "link.sat.per=0 flow.f.bytes=2MB");
        assert_eq!(points[5], "link.sat.per=0.01 flow.f.bytes=3MB");
        let scenario = plan.scenario(&plan.points()[5]).unwrap();
        assert_eq!(
            (scenario.flows[0].bytes, scenario.links[0].config.reverse.per.get()),
            (Some(3_000_000), 0.01)
        );
    }

    #[test]
    fn command_line_values_replace_the_files_sweep() {
        let source = source();
        let fixed = ["link.sat.per=5%".parse().unwrap()];
        let sweeps = ["flow.f.bytes=7MB,8MB".parse().unwrap()];
        let plan = Plan::new(&source, &fixed, &sweeps, &[1]).unwrap();
        assert_eq!(described(&plan), ["flow.f.bytes=7MB", "flow.f.bytes=8MB"]);
        assert_eq!(plan.scenario(&plan.points()[0]).unwrap().links[0].config.forward.per.get(), 0.05);
    }

    #[test]
    fn cases_and_pairs_are_points_too_and_settings_from_outside_go_before() {
        let text = TEXT.replace(
            "[sweep]\nlink.sat.per = [\"0\", 0.01]",
            "[sweep]\n\"link.sat.per+link.sat.delay\" = [[0, \"1ms\"], [0.5, \"2ms\"]]\n\
             case = [{ name = \"small\", set = { flow.f.start = \"1s\" } }, { name = \"same\" }]",
        );
        let source = Source::parse("s.toml", &text).unwrap();
        let plan = Plan::new(&source, &[], &["flow.f.bytes=7MB".parse().unwrap()], &[1]).unwrap();
        assert_eq!(
            described(&plan),
            [
                "link.sat.per=0 link.sat.delay=1ms flow.f.start=1s flow.f.bytes=7MB",
                "link.sat.per=0 link.sat.delay=1ms flow.f.bytes=7MB",
                "link.sat.per=0.5 link.sat.delay=2ms flow.f.start=1s flow.f.bytes=7MB",
                "link.sat.per=0.5 link.sat.delay=2ms flow.f.bytes=7MB",
            ]
        );
        let labels: Vec<&str> = plan.points()[0].labels.iter().map(|label| label.key.as_str()).collect();
        assert_eq!(labels, ["link.sat.per", "link.sat.delay", "case", "flow.f.bytes"]);
        assert_eq!(plan.points()[3].case(), Some("same"));
        let fixed = ["link.sat.delay=9ms".parse().unwrap()];
        let sweeps = ["case=one,two:flow.f.bytes=1MB".parse().unwrap()];
        let plan = Plan::new(&source, &fixed, &sweeps, &[1]).unwrap();
        assert_eq!(
            described(&plan),
            [
                "link.sat.per=0",
                "link.sat.per=0 flow.f.bytes=1MB",
                "link.sat.per=0.5",
                "link.sat.per=0.5 flow.f.bytes=1MB"
            ]
        );
    }

    #[test]
    fn a_parameter_in_two_sweeps_is_refused() {
        let source = source();
        let sweep = |text: &str| text.parse().unwrap();
        for [one, other] in [
            ["flow.f.bytes=1MB", "flow.f.bytes=2MB"],
            ["flow.f.bytes=1MB", "case=a:flow.f.bytes=2MB"],
            ["case=a", "case=b"],
        ] {
            let text = Plan::new(&source, &[], &[sweep(one), sweep(other)], &[1]).unwrap_err().to_string();
            assert!(text.starts_with("the sweep of s.toml has ") && text.contains(" twice"), "{text}");
        }
    }

    #[test]
    fn results_come_in_order_on_any_number_of_threads() {
        let source = source();
        let plan = Plan::new(&source, &[], &[], &[1, 2, 3]).unwrap();
        let order = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let most = AtomicUsize::new(0);
            let progress = |done| {
                most.fetch_max(done, Ordering::Relaxed);
            };
            let runs = pool
                .install(|| plan.run(|job| (job.number, job.scenario.flows[0].bytes, job.seed), progress))
                .unwrap();
            assert_eq!(most.into_inner(), 18);
            runs
        };
        let alone = order(1);
        assert_eq!((alone.len(), alone[3].seed, alone[3].result), (18, 1, (3, Some(2_000_000), 1)));
        assert_eq!(alone, order(7));
    }

    #[test]
    fn a_point_that_is_no_scenario_is_found_before_the_first_run() {
        let source = source();
        let error = Plan::new(&source, &[], &["link.sat.per=0,1%,101%".parse().unwrap()], &[1]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("s.toml with link.sat.per=101%: link.sat.per: \"101%\" is not a prob"),
            "{text}"
        );
    }

    #[test]
    fn too_many_points_or_results_are_refused_at_once() {
        let source = source();
        let many: Vec<String> = (1..=400).map(|n| n.to_string()).collect();
        let sweep = |key: &str| Sweep::of(key, many.clone()).unwrap();
        let sweeps = [sweep("flow.f.bytes"), sweep("link.sat.queue")];
        let text = Plan::new(&source, &[], &sweeps, &[1]).unwrap_err().to_string();
        assert!(text.contains("2 × 400 × 400 points, at most 100000"), "{text}");
        let seeds: Vec<u64> = (0..170_000).collect();
        let text = Plan::new(&source, &[], &[], &seeds).unwrap_err().to_string();
        assert!(text.contains("exceed 1000000"), "{text}");
    }
}
