//! The published experiments: each one a function from seeds to [`Results`], whose verdicts are computed from the data.
//!
//! The walk of an experiment: a file of `scenarios/` with some parameters set becomes scenarios ([`Lab::scenario`]); they
//! run with every seed on all cores ([`Lab::run`]); of the runs of one scenario a figure of merit is taken
//! ([`Runs::summary`]); tables, figures and verdicts are made of these.

mod disruptive;
mod disruptive_kernel;
mod explicit_kernel;
mod explicit_railway;
mod explicit_shares;
mod iwssc09;
mod lossy_link;
mod pepsal;
mod psats09;
mod radius07;
mod snoop_senders;
mod surrey;
mod xcp_boxes;

use std::sync::atomic::{AtomicU64, Ordering};

use bentpipe_sim::file::{Setting, Source};
use bentpipe_sim::{FlowResult, Observer, RunResult, Scenario, Unobserved, run};
use rayon::prelude::*;

use crate::Error;
use crate::results::{Results, Seeds, World};
use crate::statistics::Summary;

/// An experiment of the literature.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name: the publication's, and the figure's or the subject's.
    pub name: &'static str,
    /// What it shows, in a line.
    pub title: &'static str,
    /// The publication.
    pub source: &'static str,
    /// With how many seeds it runs unless told otherwise.
    pub seeds: u64,
    run: RunFn,
    /// With how many seeds it runs on the kernel unless told otherwise, and how; none of the published figures does so far.
    on_kernel: Option<(u64, RunFn)>,
}

/// How an experiment is conducted.
type RunFn = fn(&Lab<'_>) -> Result<Findings, Error>;

/// What an experiment finds; the rest of its [`Results`] is known beforehand.
#[derive(Debug, Default)]
struct Findings {
    verdicts: Vec<crate::results::Verdict>,
    tables: Vec<crate::results::Part<crate::table::Table>>,
    figures: Vec<crate::results::Part<crate::figure::Figure>>,
}

/// All of them, in the order of the publications.
pub const ALL: [Experiment; 21] = [
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
];

/// The experiment of a name.
///
/// # Errors
/// With all names, if there is no such experiment.
pub fn find(name: &str) -> Result<&'static Experiment, Error> {
    ALL.iter().find(|experiment| experiment.name == name).ok_or_else(|| Error::UnknownExperiment {
        name: name.to_owned(),
        known: ALL.map(|experiment| experiment.name).join(", "),
    })
}

/// How far an experiment is, in runs.
#[derive(Debug, Default)]
pub struct Progress {
    planned: AtomicU64,
    done: AtomicU64,
}

impl Progress {
    /// Runs done, and runs known to be needed.
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

    /// With how many seeds it runs in a world unless told otherwise.
    pub fn seeds_in(&self, world: World) -> u64 {
        match (world, self.on_kernel) {
            (World::Kernel, Some((seeds, _))) => seeds,
            _ => self.seeds,
        }
    }

    /// Runs it in virtual time, or with the TCP of this machine's kernel.
    ///
    /// # Errors
    /// If a scenario of it is not valid; [`Error::NotInThisWorld`] if it has no form for the kernel; whatever setting up
    /// namespaces, links and the proxy can meet there.
    pub fn run(&self, world: World, seeds: Seeds, progress: &Progress) -> Result<Results, Error> {
        let run = match (world, self.on_kernel) {
            (World::Sim, _) => self.run,
            (World::Kernel, Some((_, run))) => run,
            (World::Kernel, None) => return Err(self.not_on_kernel()),
        };
        let found = run(&Lab { seeds, progress })?;
        Ok(Results {
            name: match world {
                World::Sim => self.name.into(),
                World::Kernel => format!("{}-kernel", self.name),
            },
            title: self.title.into(),
            source: self.source.into(),
            world,
            seeds,
            verdicts: found.verdicts,
            tables: found.tables,
            figures: found.figures,
        })
    }

    fn not_on_kernel(&self) -> Error {
        let able =
            ALL.iter().filter(|experiment| experiment.on_kernel.is_some()).map(|experiment| experiment.name);
        Error::NotInThisWorld { name: self.name.into(), able: able.collect::<Vec<_>>().join(", ") }
    }
}

/// Where experiments run.
struct Lab<'a> {
    seeds: Seeds,
    progress: &'a Progress,
}

impl Lab<'_> {
    /// The seeds, one after the other.
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
        source.with(&settings).map_err(|error| Error::Scenario(error.to_string()))
    }

    /// Runs each scenario with each seed, on all cores; the results are in the order of the scenarios.
    fn run(&self, scenarios: &[Scenario]) -> Vec<Runs> {
        let unobserved = self.observe(scenarios, || Unobserved).into_iter();
        unobserved.map(|runs| Runs(runs.into_iter().map(|(result, _)| result).collect())).collect()
    }

    /// The same with somebody who looks on at each run.
    fn observe<O: Observer + Send>(
        &self,
        scenarios: &[Scenario],
        observer: impl Fn() -> O + Sync,
    ) -> Vec<Vec<(RunResult, O)>> {
        let seeds = self.seeds.count;
        let jobs = scenarios.len() as u64 * seeds;
        self.progress.planned.fetch_add(jobs, Ordering::Relaxed);
        let job = |index: u64| {
            let (scenario, mut observer) = (&scenarios[(index / seeds) as usize], observer());
            let result = run(scenario, self.seeds.first.wrapping_add(index % seeds), &mut observer);
            self.progress.done.fetch_add(1, Ordering::Relaxed);
            (result, observer)
        };
        // One at a time: runs differ in length by orders of magnitude.
        let results: Vec<(RunResult, O)> =
            (0..jobs as usize).into_par_iter().with_max_len(1).map(|index| job(index as u64)).collect();
        let mut results = results.into_iter();
        scenarios.iter().map(|_| results.by_ref().take(seeds as usize).collect()).collect()
    }
}

/// The results of one scenario with all seeds.
#[derive(Debug, Clone)]
struct Runs(Vec<RunResult>);

impl Runs {
    /// A figure of merit over the seeds.
    fn summary(&self, merit: impl Fn(&RunResult) -> f64) -> Summary {
        let values: Vec<f64> = self.0.iter().map(merit).collect();
        Summary::of(&values).expect("an experiment has a seed")
    }

    /// A figure of merit of the first flow, which is the one that the scenario is about.
    fn first_flow(&self, merit: impl Fn(&FlowResult) -> f64) -> Summary {
        self.summary(|run| merit(&run.flows[0]))
    }
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
