//! The published experiments. Each is a function from seeds to [`Results`]; its verdicts are computed from
//! the data.
//!
//! In virtual time, an experiment sets parameters of a file in `scenarios/` for each scheme and point that it
//! compares, and runs the resulting scenarios with every seed on all cores ([`Lab::sweep`]). On the kernel the
//! same scenarios run in namespaces, several at a time ([`on_kernel`]); some experiments have trials of their
//! own there ([`Lab::side_by_side`]). Either way, one measure over the seeds becomes [`Curves`], from which
//! tables, figures and verdicts are made.

mod agreement;
mod crowd;
mod curves;
mod disruptive;
mod disruptive_kernel;
mod explicit_kernel;
mod explicit_railway;
mod explicit_shares;
mod iwssc09;
mod leo;
mod lossy_link;
mod observers;
mod pepsal;
mod psats09;
mod radius07;
mod rain_fade;
mod return_link;
mod shared_leg;
mod short_downloads;
mod snoop_senders;
mod surrey;
mod told;
mod unknown_capacity;
mod varying;
mod xcp_boxes;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bentpipe_sim::file::{Setting, Source};
use bentpipe_sim::{FlowResult, Observer, RunResult, Scenario, Unobserved, run};
use rayon::prelude::*;

use crate::figure::Figure;
use crate::results::{Part, Results, Seeds, Verdict, World};
use crate::statistics::Summary;
use crate::table::Table;
use crate::{Error, on_kernel};
use curves::{Curves, Measure, Scheme, listed, rows};

/// An experiment of the literature.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name: the publication's, and the figure's or the subject's.
    pub name: &'static str,
    /// What it shows, in a line.
    pub title: &'static str,
    /// The publication.
    pub source: &'static str,
    /// How many seeds it runs with by default.
    pub seeds: u64,
    run: RunFn,
    /// The same on the kernel: the default number of seeds, and the function. `None`: virtual time only.
    on_kernel: Option<(u64, RunFn)>,
}

/// Runs an experiment.
type RunFn = fn(&Lab<'_>) -> Result<Output, Error>;

/// The part of [`Results`] that a run produces.
#[derive(Debug, Default)]
struct Output {
    verdicts: Vec<Verdict>,
    tables: Vec<Part<Table>>,
    figures: Vec<Part<Figure>>,
}

/// All experiments, in the order of the publications.
pub const ALL: [Experiment; 29] = [
    psats09::FIG4,
    psats09::FIG5,
    pepsal::CONGESTION,
    pepsal::PER,
    pepsal::BOTH,
    pepsal::FAIRNESS,
    disruptive::DISRUPTIVE,
    radius07::REACH,
    radius07::STEP,
    surrey::FIG2,
    surrey::FIG3,
    surrey::FIG4,
    iwssc09::ASYMMETRIC,
    iwssc09::LOSS,
    iwssc09::FAIRNESS,
    surrey::DELAY,
    lossy_link::LOSSY_LINK,
    snoop_senders::SNOOP_SENDERS,
    xcp_boxes::XCP_BOXES,
    explicit_railway::RAILWAY,
    explicit_shares::SHARES,
    unknown_capacity::UNKNOWN_CAPACITY,
    leo::LEO,
    rain_fade::RAIN_FADE,
    return_link::RETURN_LINK,
    short_downloads::SHORT_DOWNLOADS,
    crowd::CROWD,
    shared_leg::SHARED_LEG,
    agreement::AGREEMENT,
];

/// Finds an experiment by its name.
///
/// # Errors
/// [`Error::UnknownExperiment`], which lists all names.
pub fn find(name: &str) -> Result<&'static Experiment, Error> {
    ALL.iter().find(|experiment| experiment.name == name).ok_or_else(|| Error::UnknownExperiment {
        name: name.to_owned(),
        known: ALL.map(|experiment| experiment.name).join(", "),
    })
}

/// The progress of an experiment, in runs.
#[derive(Debug, Default)]
pub struct Progress {
    planned: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    /// Runs completed, and runs planned so far.
    pub fn get(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.planned.load(Ordering::Relaxed))
    }
}

impl Experiment {
    /// The worlds that it can run in.
    pub fn worlds(&self) -> &'static [World] {
        match self.on_kernel {
            Some(_) => &[World::Sim, World::Kernel],
            None => &[World::Sim],
        }
    }

    /// The default number of seeds in a world.
    pub fn seeds_in(&self, world: World) -> u64 {
        match (world, self.on_kernel) {
            (World::Kernel, Some((seeds, _))) => seeds,
            _ => self.seeds,
        }
    }

    /// Runs it in virtual time, or with the TCP of this machine's kernel.
    ///
    /// # Errors
    /// [`Error::Scenario`] if a scenario is invalid, [`Error::NotInThisWorld`] if it cannot run on the
    /// kernel, and there any error of the namespaces, links and proxies.
    pub fn run(&self, world: World, seeds: Seeds, progress: &Progress) -> Result<Results, Error> {
        self.run_for(world, seeds, false, progress)
    }

    /// The same in a quarter of the time where scenarios run on the kernel: a look at it, not a result.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_quickly(&self, world: World, seeds: Seeds, progress: &Progress) -> Result<Results, Error> {
        self.run_for(world, seeds, true, progress)
    }

    fn run_for(
        &self,
        world: World,
        seeds: Seeds,
        quick: bool,
        progress: &Progress,
    ) -> Result<Results, Error> {
        let run = match (world, self.on_kernel) {
            (World::Sim, _) => self.run,
            (World::Kernel, Some((_, run))) => run,
            (World::Kernel, None) => return Err(self.not_on_kernel()),
        };
        let output = run(&Lab { world, seeds, quick, progress })?;
        Ok(Results {
            name: match world {
                World::Sim => self.name.into(),
                World::Kernel => format!("{}-kernel", self.name),
            },
            title: self.title.into(),
            source: self.source.into(),
            world,
            seeds,
            verdicts: output.verdicts,
            tables: output.tables,
            figures: output.figures,
        })
    }

    fn not_on_kernel(&self) -> Error {
        let able =
            ALL.iter().filter(|experiment| experiment.on_kernel.is_some()).map(|experiment| experiment.name);
        Error::NotInThisWorld { name: self.name.into(), able: able.collect::<Vec<_>>().join(", ") }
    }
}

/// How an experiment runs: where, with which seeds, and the progress that it reports.
struct Lab<'a> {
    world: World,
    seeds: Seeds,
    /// Runs in real time are shorter.
    quick: bool,
    progress: &'a Progress,
}

/// Scenarios that run on the kernel at the same time. A link of 10 Mbit/s takes about a twentieth of a CPU.
const SCENARIOS_AT_ONCE: usize = 12;
/// The part of a scenario's time that a quick run in real time has, and its bounds.
const QUICK: u32 = 4;
const QUICK_RANGE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(300)];

impl<'a> Lab<'a> {
    #[cfg(test)]
    fn in_virtual_time(seeds: Seeds, progress: &'a Progress) -> Self {
        Self { world: World::Sim, seeds, quick: false, progress }
    }

    /// The same in another world.
    fn in_world(&self, world: World) -> Self {
        Self { world, ..*self }
    }

    fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let Seeds { first, count } = self.seeds;
        (0..count).map(move |index| first.wrapping_add(index))
    }

    /// A scenario of `scenarios/` with parameters set, each as `key=value`.
    fn scenario(&self, file: &(&str, &str), settings: &[String]) -> Result<Scenario, Error> {
        let settings: Vec<Setting> = settings
            .iter()
            .map(|setting| setting.parse().map_err(|error| Error::Scenario(format!("{error}"))))
            .collect::<Result<_, _>>()?;
        let source = Source::parse(file.0, file.1).map_err(|error| Error::Scenario(error.to_string()))?;
        let mut scenario = source.with(&settings).map_err(|error| Error::Scenario(error.to_string()))?;
        if self.quick && self.world == World::Kernel {
            let [least, most] = QUICK_RANGE;
            scenario.duration = (scenario.duration / QUICK).clamp(least, most).min(scenario.duration);
        }
        Ok(scenario)
    }

    /// The scenarios of each scheme at each point, the points of the first scheme first.
    fn scenarios<S: Copy, P: Copy>(
        &self,
        file: &(&str, &str),
        schemes: &[S],
        points: &[P],
        settings: impl Fn(S, P) -> Vec<String>,
    ) -> Result<Vec<Scenario>, Error> {
        let pairs = schemes.iter().flat_map(|&scheme| points.iter().map(move |&point| (scheme, point)));
        pairs.map(|(scheme, point)| self.scenario(file, &settings(scheme, point))).collect()
    }

    /// Runs each scheme at each point with each seed; by scheme, then by point.
    fn sweep<S: Copy, P: Copy>(
        &self,
        file: &(&str, &str),
        schemes: &[S],
        points: &[P],
        settings: impl Fn(S, P) -> Vec<String>,
    ) -> Result<Vec<Vec<Runs>>, Error> {
        Ok(rows(self.run(&self.scenarios(file, schemes, points, settings)?)?, points.len()))
    }

    /// Runs each scenario with each seed: in virtual time on all cores, on the kernel several at a time. The
    /// results are in the order of the scenarios.
    fn run(&self, scenarios: &[Scenario]) -> Result<Vec<Runs>, Error> {
        self.observe(scenarios, || Unobserved)
    }

    /// The same, with an observer for each run.
    fn observe<O: Observer + Send>(
        &self,
        scenarios: &[Scenario],
        observer: impl Fn() -> O + Sync,
    ) -> Result<Vec<Runs<O>>, Error> {
        let seeds = self.seeds.count;
        if self.world == World::Kernel {
            let observer = &observer;
            let jobs = scenarios.iter().flat_map(|scenario| {
                self.seeds().map(move |seed| {
                    move || {
                        let mut observer = observer();
                        Ok((on_kernel::run(scenario, seed, &mut observer)?, observer))
                    }
                })
            });
            let results = self.side_by_side(SCENARIOS_AT_ONCE, jobs.collect())?;
            return Ok(rows(results, seeds as usize).into_iter().map(Runs).collect());
        }
        let jobs = scenarios.len() as u64 * seeds;
        self.progress.planned.fetch_add(jobs, Ordering::Relaxed);
        let job = |index: u64| {
            let (scenario, mut observer) = (&scenarios[(index / seeds) as usize], observer());
            let result = run(scenario, self.seeds.first.wrapping_add(index % seeds), &mut observer);
            self.progress.done.fetch_add(1, Ordering::Relaxed);
            (result, observer)
        };
        // One at a time, because the lengths of runs differ by orders of magnitude.
        let results: Vec<(RunResult, O)> =
            (0..jobs as usize).into_par_iter().with_max_len(1).map(|index| job(index as u64)).collect();
        Ok(rows(results, seeds as usize).into_iter().map(Runs).collect())
    }

    /// Runs jobs in real time, `at_once` of them at the same time, so that a disturbance of the machine
    /// affects all of these alike. The results are in the order of the jobs.
    fn side_by_side<T: Send>(
        &self,
        at_once: usize,
        jobs: Vec<impl FnOnce() -> Result<T, Error> + Send>,
    ) -> Result<Vec<T>, Error> {
        self.progress.planned.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        let mut results = Vec::with_capacity(jobs.len());
        for batch in rows(jobs, at_once) {
            std::thread::scope(|scope| {
                let mut running = Vec::with_capacity(at_once);
                for job in batch {
                    running.push(scope.spawn(move || {
                        let outcome = job();
                        self.progress.done.fetch_add(1, Ordering::Relaxed);
                        outcome
                    }));
                }
                for job in running {
                    results.push(job.join().expect("a measurement does not panic")?);
                }
                Ok::<_, Error>(())
            })?;
        }
        Ok(results)
    }
}

/// The results of one scenario with all seeds, each with its observer.
#[derive(Debug, Clone)]
struct Runs<O = Unobserved>(Vec<(RunResult, O)>);

impl<O> Runs<O> {
    fn results(&self) -> impl Iterator<Item = &RunResult> {
        self.0.iter().map(|(result, _)| result)
    }

    /// A measure over the seeds.
    fn summary(&self, measure: impl Fn(&RunResult) -> f64) -> Summary {
        over_seeds(self.results().map(measure))
    }

    /// A measure of the observers over the seeds.
    fn observed(&self, measure: impl Fn(&O) -> f64) -> Summary {
        over_seeds(self.0.iter().map(|(_, observer)| measure(observer)))
    }

    /// A measure of the first flow, which is the one that the scenario is about.
    fn first_flow(&self, measure: impl Fn(&FlowResult) -> f64) -> Summary {
        self.summary(|run| measure(&run.flows[0]))
    }
}

/// Summarises a measure over the seeds of an experiment, which has at least one.
fn over_seeds(values: impl Iterator<Item = f64>) -> Summary {
    Summary::of(&values.collect::<Vec<_>>()).expect("an experiment has a seed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_all() {
        let error = find("psats09-fig6").unwrap_err().to_string();
        assert!(ALL.iter().all(|experiment| error.contains(experiment.name)), "{error}");
    }

    #[test]
    fn the_results_do_not_depend_on_the_number_of_threads() {
        let outcome = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let seeds = Seeds { first: 1, count: 2 };
            pool.install(|| pepsal::PER.run(World::Sim, seeds, &Progress::default())).unwrap()
        };
        assert_eq!(outcome(1), outcome(3));
    }
}
