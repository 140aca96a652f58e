//! The published experiments. Each is a function from seeds to claims with their data, tables and figures, from
//! which [`Results`] are made. As long as a claim is undecided, an experiment runs with more seeds, up to the
//! limit of its [`Plan`].
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

use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bentpipe_sim::file::{Setting, Source};
use bentpipe_sim::{FlowResult, Observer, RunResult, Scenario, Unobserved, run};
use rayon::prelude::*;

use crate::claim::{Claim, Outcome};
use crate::figure::Figure;
use crate::results::{Part, Plan, Results, Seeds, World};
use crate::statistics::Sample;
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

/// How many times the default number of seeds an experiment in virtual time may have.
const MORE: u64 = 2;

/// Runs an experiment.
type RunFn = fn(&Lab<'_>) -> Result<Output, Error>;

/// The part of [`Results`] that a run produces.
#[derive(Debug, Default)]
struct Output {
    claims: Vec<Claim>,
    tables: Vec<Part<Table>>,
    figures: Vec<Part<Figure>>,
}

/// All experiments, in the order of the publications.
pub const ALL: [Experiment; 30] = [
    psats09::FIG3,
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

    /// How many seeds it may have in a world, unless told otherwise: in virtual time twice the default, on
    /// the kernel, where a seed takes minutes, no more than the default.
    pub fn plan_in(&self, world: World) -> Plan {
        let from = self.seeds_in(world);
        match world {
            World::Sim => Plan { from, most: MORE * from },
            World::Kernel => Plan::fixed(from),
        }
    }

    /// Runs it in virtual time, or with the TCP of this machine's kernel, with the seeds from `first` on.
    ///
    /// # Errors
    /// [`Error::Scenario`] if a scenario is invalid, [`Error::NotInThisWorld`] if it cannot run on the
    /// kernel, and there any error of the namespaces, links and proxies.
    pub fn run(&self, world: World, first: u64, plan: Plan, progress: &Progress) -> Result<Results, Error> {
        self.run_in(Lab::new(world, Seeds { first, count: plan.from }, progress), plan)
    }

    /// The same in a quarter of the time where scenarios run on the kernel: a look at it, not a result.
    ///
    /// # Errors
    /// Those of [`run`](Self::run).
    pub fn run_quickly(
        &self,
        world: World,
        first: u64,
        plan: Plan,
        progress: &Progress,
    ) -> Result<Results, Error> {
        let lab = Lab::new(world, Seeds { first, count: plan.from }, progress);
        self.run_in(Lab { quick: true, ..lab }, plan)
    }

    fn run_in(&self, mut lab: Lab<'_>, plan: Plan) -> Result<Results, Error> {
        let world = lab.world;
        let run = match (world, self.on_kernel) {
            (World::Sim, _) => self.run,
            (World::Kernel, Some((_, run))) => run,
            (World::Kernel, None) => return Err(self.not_on_kernel()),
        };
        let looks = plan.looks();
        for (look, &count) in looks.iter().enumerate() {
            lab.begin(count);
            let output = run(&lab)?;
            let verdicts: Vec<_> = output.claims.iter().map(|claim| claim.judge(plan.level())).collect();
            let undecided = verdicts.iter().any(|verdict| verdict.outcome == Outcome::Undecided);
            if undecided && look + 1 < looks.len() {
                continue;
            }
            return Ok(Results {
                name: match world {
                    World::Sim => self.name.into(),
                    World::Kernel => format!("{}-kernel", self.name),
                },
                title: self.title.into(),
                source: self.source.into(),
                world,
                seeds: lab.seeds,
                plan,
                verdicts,
                tables: output.tables,
                figures: output.figures,
            });
        }
        unreachable!("a plan has a look, and the last one returns")
    }

    fn not_on_kernel(&self) -> Error {
        let able =
            ALL.iter().filter(|experiment| experiment.on_kernel.is_some()).map(|experiment| experiment.name);
        Error::NotInThisWorld { name: self.name.into(), able: able.collect::<Vec<_>>().join(", ") }
    }
}

/// How an experiment runs: where, with which seeds, the progress that it reports, and what has already run.
struct Lab<'a> {
    world: World,
    seeds: Seeds,
    /// Runs in real time are shorter.
    quick: bool,
    progress: &'a Progress,
    done: Done,
}

/// The runs of earlier looks. An experiment makes the same calls of [`Lab::observe`] at each look, and only its
/// new seeds run.
#[derive(Debug, Default)]
struct Done {
    calls: AtomicUsize,
    /// By call: a `Vec<Runs<O>>`.
    runs: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Done {
    /// The runs of this call at the look before, and its index.
    fn next<O: Send + Sync + 'static>(&self) -> (usize, Option<Vec<Runs<O>>>) {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let done = self.runs.lock().expect("no run panicked");
        let runs = done.get(call).map(|runs| runs.downcast_ref::<Vec<Runs<O>>>().cloned());
        (call, runs.map(|runs| runs.expect("a look makes the calls of the one before")))
    }

    fn keep<O: Send + Sync + 'static>(&self, call: usize, runs: &[Runs<O>]) {
        let mut done = self.runs.lock().expect("no run panicked");
        let runs: Box<dyn Any + Send> = Box::new(runs.to_vec());
        match done.get_mut(call) {
            Some(place) => *place = runs,
            None => done.push(runs),
        }
    }
}

impl<'a> Lab<'a> {
    fn new(world: World, seeds: Seeds, progress: &'a Progress) -> Self {
        Self { world, seeds, quick: false, progress, done: Done::default() }
    }

    #[cfg(test)]
    fn in_virtual_time(seeds: Seeds, progress: &'a Progress) -> Self {
        Self::new(World::Sim, seeds, progress)
    }

    /// The same in another world, where nothing has run yet.
    fn in_world(&self, world: World) -> Self {
        Self { quick: self.quick, ..Self::new(world, self.seeds, self.progress) }
    }

    /// Begins a look with so many seeds.
    fn begin(&mut self, seeds: u64) {
        self.seeds.count = seeds;
        *self.done.calls.get_mut() = 0;
    }
}

/// Scenarios that run on the kernel at the same time. A link of 10 Mbit/s takes about a twentieth of a CPU.
const SCENARIOS_AT_ONCE: usize = 12;
/// The part of a scenario's time that a quick run in real time has, and its bounds.
const QUICK: u32 = 4;
const QUICK_RANGE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(300)];

impl Lab<'_> {
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

    /// The same where the settings depend on the seed, too.
    fn sweep_by_seed<S: Copy, P: Copy>(
        &self,
        file: &(&str, &str),
        schemes: &[S],
        points: &[P],
        settings: impl Fn(S, P, u64) -> Vec<String>,
    ) -> Result<Vec<Vec<Runs>>, Error> {
        let by_seed = self
            .seeds()
            .map(|seed| self.scenarios(file, schemes, points, |scheme, point| settings(scheme, point, seed)));
        let by_seed = by_seed.collect::<Result<Vec<_>, _>>()?;
        let scenario =
            |index: usize, seed: u64| &by_seed[seed.wrapping_sub(self.seeds.first) as usize][index];
        let count = schemes.len() * points.len();
        Ok(rows(self.observe_each(count, scenario, || Unobserved)?, points.len()))
    }

    /// Runs each scenario with each seed: in virtual time on all cores, on the kernel several at a time. The
    /// results are in the order of the scenarios.
    fn run(&self, scenarios: &[Scenario]) -> Result<Vec<Runs>, Error> {
        self.observe(scenarios, || Unobserved)
    }

    /// The same, with an observer for each run.
    fn observe<O: Observer + Send + Sync + 'static>(
        &self,
        scenarios: &[Scenario],
        observer: impl Fn() -> O + Sync,
    ) -> Result<Vec<Runs<O>>, Error> {
        self.observe_each(scenarios.len(), |index, _| &scenarios[index], observer)
    }

    /// Runs `count` scenarios, of which `scenario` has one for each index and seed.
    fn observe_each<'s, O: Observer + Send + Sync + 'static>(
        &self,
        count: usize,
        scenario: impl Fn(usize, u64) -> &'s Scenario + Sync,
        observer: impl Fn() -> O + Sync,
    ) -> Result<Vec<Runs<O>>, Error> {
        let (call, known) = self.done.next::<O>();
        let mut runs = known.unwrap_or_else(|| vec![Runs(Vec::new()); count]);
        let done = runs.first().map_or(0, |runs| runs.0.len() as u64);
        let fresh = self.seeds.count - done;
        let jobs = count as u64 * fresh;
        let place = |job: u64| ((job / fresh) as usize, self.seeds.first.wrapping_add(done + job % fresh));
        let results = match self.world {
            World::Sim => self.on_all_cores(jobs, |job| {
                let ((index, seed), mut observer) = (place(job), observer());
                (run(scenario(index, seed), seed, &mut observer), observer)
            }),
            World::Kernel => {
                let job = |job: u64| {
                    let (scenario, observer, place) = (&scenario, &observer, &place);
                    move || {
                        let ((index, seed), mut observer) = (place(job), observer());
                        Ok((on_kernel::run(scenario(index, seed), seed, &mut observer)?, observer))
                    }
                };
                self.side_by_side(SCENARIOS_AT_ONCE, (0..jobs).map(job).collect())?
            }
        };
        let results: Vec<Arc<(RunResult, O)>> = results.into_iter().map(Arc::new).collect();
        for (runs, results) in runs.iter_mut().zip(rows(results, fresh as usize)) {
            runs.0.extend(results);
        }
        self.done.keep(call, &runs);
        Ok(runs)
    }

    /// Runs jobs in virtual time. The results are in the order of the jobs.
    fn on_all_cores<T: Send>(&self, jobs: u64, job: impl Fn(u64) -> T + Sync) -> Vec<T> {
        self.progress.planned.fetch_add(jobs, Ordering::Relaxed);
        let job = |index: usize| {
            let result = job(index as u64);
            self.progress.done.fetch_add(1, Ordering::Relaxed);
            result
        };
        // One at a time, because the lengths of runs differ by orders of magnitude.
        (0..jobs as usize).into_par_iter().with_max_len(1).map(job).collect()
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
#[derive(Debug)]
struct Runs<O = Unobserved>(Vec<Arc<(RunResult, O)>>);

impl<O> Clone for Runs<O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<O> Runs<O> {
    fn results(&self) -> impl Iterator<Item = &RunResult> {
        self.0.iter().map(|run| &run.0)
    }

    fn observers(&self) -> impl Iterator<Item = &O> {
        self.0.iter().map(|run| &run.1)
    }

    /// A measure over the seeds.
    fn sample(&self, measure: impl Fn(&RunResult) -> f64) -> Sample {
        over_seeds(self.results().map(measure))
    }

    /// A measure of the observers over the seeds.
    fn observed(&self, measure: impl Fn(&O) -> f64) -> Sample {
        over_seeds(self.observers().map(measure))
    }

    /// A measure of the first flow, which is the one that the scenario is about.
    fn first_flow(&self, measure: impl Fn(&FlowResult) -> f64) -> Sample {
        self.sample(|run| measure(&run.flows[0]))
    }
}

/// A measure over the seeds of an experiment, which has at least one.
fn over_seeds(values: impl Iterator<Item = f64>) -> Sample {
    Sample::of(values.collect::<Vec<_>>()).expect("an experiment has a seed, and measures are finite")
}

/// An experiment with so many seeds from 1 on, and no more.
#[cfg(test)]
fn in_virtual_time(experiment: &Experiment, seeds: u64) -> Results {
    experiment.run(World::Sim, 1, Plan::fixed(seeds), &Progress::default()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_all() {
        let error = find("psats09-fig6").unwrap_err().to_string();
        assert!(ALL.iter().all(|experiment| error.contains(experiment.name)), "{error}");
    }

    /// With more seeds until its claims are decided, of which that of the published Hybla is not at once.
    #[test]
    fn the_results_do_not_depend_on_the_number_of_threads() {
        let outcome = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let plan = Plan { from: 1, most: 2 };
            pool.install(|| pepsal::PER.run(World::Sim, 1, plan, &Progress::default())).unwrap()
        };
        assert_eq!(outcome(1), outcome(3));
        assert_eq!(outcome(1).seeds.count, 2, "a claim of one seed is undecided");
    }

    #[test]
    fn a_look_again_has_the_runs_of_all_seeds_and_runs_only_the_new_ones() {
        let all = |lab: &Lab<'_>| {
            let scenario = lab.scenario(&pepsal::SCENARIO, &["duration=5s".into()]).unwrap();
            lab.run(&[scenario]).unwrap()[0].sample(|run| run.flows[0].goodput_bps)
        };
        let progress = Progress::default();
        let mut lab = Lab::in_virtual_time(Seeds { first: 3, count: 2 }, &progress);
        all(&lab);
        lab.begin(5);
        let looked_again = all(&lab);
        assert_eq!(progress.get(), (5, 5));
        assert_eq!(
            looked_again,
            all(&Lab::in_virtual_time(Seeds { first: 3, count: 5 }, &Progress::default()))
        );
    }
}
