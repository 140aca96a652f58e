//! How an experiment runs its scenarios and trials, in either world: several at once, with all seeds, and
//! again with more seeds without repeating those that have run.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bentpipe_sim::file::{Setting, Source};
use bentpipe_sim::{FlowResult, Observer, RunResult, Scenario, Unobserved, run};
use bentpipe_units::Time;
use rayon::prelude::*;

use super::Progress;
use super::curves::rows;
use super::load::{self, Load, MACHINE, Owner};
use crate::results::{Seeds, World};
use crate::statistics::Sample;
use crate::{Error, on_kernel};

/// How an experiment runs: where, with which seeds, the progress that it reports, and what has already run.
pub(super) struct Lab<'a> {
    pub(super) world: World,
    pub(super) seeds: Seeds,
    /// Runs in real time are shorter.
    pub(super) quick: bool,
    progress: &'a Progress,
    owner: Owner,
    done: Arc<Done>,
    /// What has run [with one seed](Lab::with_one_seed).
    done_once: Arc<Done>,
}

/// The runs of earlier looks. An experiment makes the same calls of [`Lab::observe`] at each look, and only
/// its new seeds run; with one seed, nothing does.
#[derive(Debug, Default)]
struct Done {
    calls: AtomicUsize,
    /// By call: a `Vec<Runs<O>>`.
    runs: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl Done {
    /// Begins a look.
    fn begin(&self) {
        self.calls.store(0, Ordering::Relaxed);
    }

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
    pub(super) fn new(world: World, seeds: Seeds, progress: &'a Progress) -> Self {
        let (done, done_once) = (Arc::default(), Arc::default());
        Self { world, seeds, quick: false, progress, owner: Owner::new(), done, done_once }
    }

    #[cfg(test)]
    pub(super) fn in_virtual_time(seeds: Seeds, progress: &'a Progress) -> Self {
        Self::new(World::Sim, seeds, progress)
    }

    /// The same in another world, where nothing has run yet.
    pub(super) fn in_world(&self, world: World) -> Self {
        Self { quick: self.quick, owner: self.owner, ..Self::new(world, self.seeds, self.progress) }
    }

    /// The same with its first seed alone, for runs in which nothing is random.
    pub(super) fn with_one_seed(&self) -> Self {
        let (seeds, done) = (Seeds { count: 1, ..self.seeds }, Arc::clone(&self.done_once));
        Self { quick: self.quick, owner: self.owner, done, ..Self::new(self.world, seeds, self.progress) }
    }

    /// Begins a look with so many seeds.
    pub(super) fn begin(&mut self, seeds: u64) {
        self.seeds.count = seeds;
        self.done.begin();
        self.done_once.begin();
    }
}

/// The most scenarios that run on the kernel at the same time, however little they load it: each has a dozen
/// namespaces.
const MOST_AT_ONCE: usize = 60;
/// The part of a scenario's time that a quick run in real time has, and its bounds.
const QUICK: u32 = 8;
const QUICK_RANGE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(60)];

impl Lab<'_> {
    pub(super) fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let Seeds { first, count } = self.seeds;
        (0..count).map(move |index| first.wrapping_add(index))
    }

    /// The most that may load the machine at once.
    fn most(&self) -> Load {
        if self.quick { load::QUICK } else { load::MEASURED }
    }

    /// A scenario of `scenarios/` with parameters set, each as `key=value`.
    pub(super) fn scenario(&self, file: &(&str, &str), settings: &[String]) -> Result<Scenario, Error> {
        let settings: Vec<Setting> = settings
            .iter()
            .map(|setting| setting.parse().map_err(|error| Error::Scenario(format!("{error}"))))
            .collect::<Result<_, _>>()?;
        let source = Source::parse(file.0, file.1).map_err(|error| Error::Scenario(error.to_string()))?;
        let mut scenario = source.with(&settings).map_err(|error| Error::Scenario(error.to_string()))?;
        if self.quick && self.world == World::Kernel {
            let [least, most] = QUICK_RANGE;
            let least = if is_eventful(&scenario) { most } else { least };
            scenario.duration = (scenario.duration / QUICK).clamp(least, most).min(scenario.duration);
        }
        Ok(scenario)
    }

    /// The scenarios of each scheme at each point, the points of the first scheme first.
    pub(super) fn scenarios<S: Copy, P: Copy>(
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
    pub(super) fn sweep<S: Copy, P: Copy>(
        &self,
        file: &(&str, &str),
        schemes: &[S],
        points: &[P],
        settings: impl Fn(S, P) -> Vec<String>,
    ) -> Result<Vec<Vec<Runs>>, Error> {
        Ok(rows(self.run(&self.scenarios(file, schemes, points, settings)?)?, points.len()))
    }

    /// The same where the settings depend on the seed, too.
    pub(super) fn sweep_by_seed<S: Copy, P: Copy>(
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
        Ok(rows(self.run_each(Load::of, count, scenario)?, points.len()))
    }

    /// Runs each scenario with each seed: in virtual time on all cores, on the kernel several at a time. The
    /// results are in the order of the scenarios.
    pub(super) fn run(&self, scenarios: &[Scenario]) -> Result<Vec<Runs>, Error> {
        self.run_each(Load::of, scenarios.len(), |index, _| &scenarios[index])
    }

    /// The same for scenarios that are nearly idle, because their packets wait for seconds: on the kernel
    /// many more of them run at a time.
    pub(super) fn run_idle(&self, scenarios: &[Scenario]) -> Result<Vec<Runs>, Error> {
        self.run_each(|_| load::NEARLY_IDLE, scenarios.len(), |index, _| &scenarios[index])
    }

    /// Runs that nothing observes: in virtual time those of other experiments are not repeated.
    fn run_each<'s>(
        &self,
        load: impl Fn(&Scenario) -> Load + Sync,
        count: usize,
        scenario: impl Fn(usize, u64) -> &'s Scenario + Sync,
    ) -> Result<Vec<Runs>, Error> {
        let simulate = |scenario: &Scenario, seed| (self.progress.shared.run(scenario, seed), Unobserved);
        self.each(load, count, scenario, || Unobserved, simulate)
    }

    /// The same, with an observer for each run.
    pub(super) fn observe<O: Observer + Send + Sync + 'static>(
        &self,
        scenarios: &[Scenario],
        observer: impl Fn() -> O + Sync,
    ) -> Result<Vec<Runs<O>>, Error> {
        let simulate = |scenario: &Scenario, seed| {
            let mut observer = observer();
            (run(scenario, seed, &mut observer), observer)
        };
        self.each(Load::of, scenarios.len(), |index, _| &scenarios[index], &observer, simulate)
    }

    /// Runs `count` scenarios, of which `scenario` has one for each index and seed: in virtual time by
    /// `simulate`, on the kernel as many at once as their `load` allows.
    fn each<'s, O: Observer + Send + Sync + 'static>(
        &self,
        load: impl Fn(&Scenario) -> Load + Sync,
        count: usize,
        scenario: impl Fn(usize, u64) -> &'s Scenario + Sync,
        observer: impl Fn() -> O + Sync,
        simulate: impl Fn(&Scenario, u64) -> (RunResult, O) + Sync,
    ) -> Result<Vec<Runs<O>>, Error> {
        let (call, known) = self.done.next::<O>();
        let mut runs = known.unwrap_or_else(|| vec![Runs(Vec::new()); count]);
        let done = runs.first().map_or(0, |runs| runs.0.len() as u64);
        let fresh = self.seeds.count - done;
        let jobs = count as u64 * fresh;
        let place = |job: u64| ((job / fresh) as usize, self.seeds.first.wrapping_add(done + job % fresh));
        let results = match self.world {
            World::Sim => self.in_parallel(jobs, |job| {
                let (index, seed) = place(job);
                Ok(simulate(scenario(index, seed), seed))
            })?,
            // The pool's threads begin far apart in the list: its schemes load the machine at the same time,
            // not in turn.
            World::Kernel => pool_of(MOST_AT_ONCE.min(jobs as usize))?.install(|| {
                self.in_parallel(jobs, |job| {
                    let ((index, seed), mut observer) = (place(job), observer());
                    let scenario = scenario(index, seed);
                    let _turn = MACHINE.turn(self.owner, load(scenario), self.most());
                    Ok((on_kernel::run(scenario, seed, &mut observer)?, observer))
                })
            })?,
        };
        let results: Vec<Arc<(RunResult, O)>> = results.into_iter().map(Arc::new).collect();
        for (runs, results) in runs.iter_mut().zip(rows(results, fresh as usize)) {
            runs.0.extend(results);
        }
        self.done.keep(call, &runs);
        Ok(runs)
    }

    /// Runs jobs in parallel, as many at once as the pool of threads has. The results are in the order of the
    /// jobs; jobs that have not begun when one fails do not.
    fn in_parallel<T: Send>(
        &self,
        jobs: u64,
        job: impl Fn(u64) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
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
    /// affects all of these alike, and nothing else beside them. In a quick look each runs as soon as the
    /// machine has room for its `load`, whatever else runs. The results are in the order of the jobs.
    pub(super) fn side_by_side<T: Send>(
        &self,
        at_once: usize,
        load: Load,
        jobs: Vec<impl FnOnce() -> Result<T, Error> + Send>,
    ) -> Result<Vec<T>, Error> {
        self.progress.planned.fetch_add(jobs.len() as u64, Ordering::Relaxed);
        if self.quick {
            let pool = pool_of(MOST_AT_ONCE.min(jobs.len()))?;
            let jobs = jobs.into_par_iter().with_max_len(1).map(|job| {
                let _turn = MACHINE.turn(self.owner, load, self.most());
                let result = job();
                self.progress.done.fetch_add(1, Ordering::Relaxed);
                result
            });
            return pool.install(|| jobs.collect());
        }
        let mut results = Vec::with_capacity(jobs.len());
        for batch in rows(jobs, at_once) {
            let _turn = MACHINE.turn(self.owner, self.most().part(batch.len(), at_once), self.most());
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

/// Whether a shorter run may miss what it is about.
fn is_eventful(scenario: &Scenario) -> bool {
    let directions = scenario.links.iter().flat_map(|link| [&link.config.forward, &link.config.reverse]);
    let late = scenario.flows.iter().any(|flow| flow.start > Time::ZERO);
    late || directions.into_iter().any(|way| !way.losses.is_empty() || !way.outages.is_empty())
}

fn pool_of(threads: usize) -> Result<rayon::ThreadPool, Error> {
    let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    built.map_err(|error| Error::Transfer {
        run: "the scenarios".into(),
        source: std::io::Error::other(error),
    })
}

/// The results of one scenario with all seeds, each with its observer.
#[derive(Debug)]
pub(super) struct Runs<O = Unobserved>(pub(super) Vec<Arc<(RunResult, O)>>);

impl<O> Clone for Runs<O> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<O> Runs<O> {
    pub(super) fn results(&self) -> impl Iterator<Item = &RunResult> {
        self.0.iter().map(|run| &run.0)
    }

    pub(super) fn observers(&self) -> impl Iterator<Item = &O> {
        self.0.iter().map(|run| &run.1)
    }

    /// A measure over the seeds.
    pub(super) fn sample(&self, measure: impl Fn(&RunResult) -> f64) -> Sample {
        over_seeds(self.results().map(measure))
    }

    /// A measure of the observers over the seeds.
    pub(super) fn observed(&self, measure: impl Fn(&O) -> f64) -> Sample {
        over_seeds(self.observers().map(measure))
    }

    /// A measure of the first flow, which is the one that the scenario is about.
    pub(super) fn first_flow(&self, measure: impl Fn(&FlowResult) -> f64) -> Sample {
        self.sample(|run| measure(&run.flows[0]))
    }
}

/// A measure over the seeds of an experiment, which has at least one.
pub(super) fn over_seeds(values: impl Iterator<Item = f64>) -> Sample {
    Sample::of(values.collect::<Vec<_>>()).expect("an experiment has a seed, and measures are finite")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_look_is_long_enough_for_what_happens_at_a_prescribed_time() {
        const FILE: (&str, &str) = ("xcp.toml", include_str!("../../../../scenarios/xcp.toml"));
        let progress = Progress::default();
        let lab = Lab { quick: true, ..Lab::new(World::Kernel, Seeds { first: 1, count: 1 }, &progress) };
        let seconds = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
            lab.scenario(&FILE, &settings).unwrap().duration.as_secs()
        };
        assert_eq!(seconds(&[]), 30);
        assert_eq!(seconds(&["duration=400s"]), 50);
        assert_eq!(seconds(&["duration=1h"]), 60);
        assert_eq!(seconds(&["duration=50s", "link.satellite.losses=[9000]"]), 50);
        assert_eq!(seconds(&["duration=1h", "flow.free.start=40s"]), 60);
        let outage = "link.satellite.outages=[{ start = \"20s\", duration = \"20s\" }]";
        assert_eq!(seconds(&["duration=100s", outage]), 60);
    }
}
