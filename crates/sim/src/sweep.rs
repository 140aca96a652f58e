//! Sweeps: a scenario run at every combination of some parameters' values and with several seeds, on all
//! cores.
//!
//! A [`Plan`] is checked as a whole before its first run. Its results come in the order of the points and
//! seeds, however many threads there are.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::file::{self, Setting, Source};
use crate::scenario::Scenario;

pub use crate::file::{NotASweep, Sweep};

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
    /// The parameters that the sweeps set, one for each sweep, in their order; empty where nothing is swept.
    pub settings: Vec<Setting>,
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
#[derive(Debug)]
pub struct Plan<'a> {
    source: &'a Source,
    fixed: Vec<Setting>,
    points: Vec<Point>,
    seeds: Vec<u64>,
}

impl<'a> Plan<'a> {
    /// The product of all sweeps, those of the file and `sweeps`; a parameter in `fixed` has that value
    /// throughout.
    ///
    /// Settings from outside take precedence: `sweeps` replace those of the same key in the file, and a fixed
    /// parameter is not swept by the file.
    ///
    /// # Errors
    /// More than [`MAX_POINTS`] or [`MAX_RESULTS`]; the first point that is not a scenario.
    pub fn new(
        source: &'a Source,
        fixed: &[Setting],
        sweeps: &[Sweep],
        seeds: &[u64],
    ) -> Result<Self, Error> {
        let said_outside = |key: &String| {
            fixed.iter().any(|setting| setting.key == *key) || sweeps.iter().any(|sweep| sweep.key == *key)
        };
        let of_file = source.sweeps().iter().filter(|sweep| !said_outside(&sweep.key));
        let axes: Vec<&Sweep> = of_file.chain(sweeps).collect();
        let too_large = |what| Error::TooLarge { file: source.name().to_owned(), what };
        let points = product(&axes).map_err(too_large)?;
        let plan = Self { source, fixed: fixed.to_vec(), points, seeds: seeds.to_vec() };
        plan.check()?;
        Ok(plan)
    }

    /// The points, in the order in which they are run: the last sweep changes fastest.
    pub fn points(&self) -> &[Point] {
        &self.points
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
        self.source.with(&[&self.fixed[..], &point.settings[..]].concat())
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
            let (point, seed) = (number / self.seeds.len(), self.seeds[number % self.seeds.len()]);
            let point = &self.points[point];
            let result = job(&Job { number, point, scenario: self.scenario(point)?, seed });
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            Ok(Run { point: point.clone(), seed, result })
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

/// All combinations, the last axis changing fastest; a single point without settings where there is no axis.
fn product(axes: &[&Sweep]) -> Result<Vec<Point>, String> {
    let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()));
    if count.is_none_or(|count| count > MAX_POINTS) {
        let sizes: Vec<String> = axes.iter().map(|axis| axis.values.len().to_string()).collect();
        return Err(format!("{} points, at most {MAX_POINTS} are run", sizes.join(" × ")));
    }
    let mut points = vec![Point::default()];
    for axis in axes {
        let extend = |point: &Point| {
            let base = point.settings.clone();
            let setting = |value: &String| Setting { key: axis.key.clone(), value: value.clone() };
            let with = move |value| Point { settings: [&base[..], &[setting(value)]].concat() };
            axis.values.iter().map(with).collect::<Vec<_>>()
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

    fn described(plan: &Plan<'_>) -> Vec<String> {
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
        let sweep = |key: &str| Sweep { key: key.into(), values: many.clone() };
        let sweeps = [sweep("flow.f.bytes"), sweep("link.sat.queue")];
        let text = Plan::new(&source, &[], &sweeps, &[1]).unwrap_err().to_string();
        assert!(text.contains("2 × 400 × 400 points, at most 100000"), "{text}");
        let seeds: Vec<u64> = (0..170_000).collect();
        let text = Plan::new(&source, &[], &[], &seeds).unwrap_err().to_string();
        assert!(text.contains("exceed 1000000"), "{text}");
    }
}
