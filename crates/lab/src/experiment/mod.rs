//! The published experiments. Each is a function from seeds to claims with their data, tables and figures,
//! from which [`Results`] are made. As long as a claim is undecided that more seeds may decide, an experiment
//! runs with more, up to the limit of its [`Plan`].
//!
//! In virtual time, an experiment sets parameters of a file in `scenarios/` for each scheme and point that it
//! compares, and runs the resulting scenarios with every seed on all cores ([`Lab::sweep`]). On the kernel
//! the same scenarios run in namespaces, several at a time ([`on_kernel`]); some experiments have trials of
//! their own there ([`Lab::side_by_side`]). Either way, one measure over the seeds becomes [`Curves`], from
//! which tables, figures and verdicts are made.

mod agreement;
mod crowd;
mod curves;
mod disruptive;
mod disruptive_kernel;
mod explicit_kernel;
mod explicit_railway;
mod explicit_shares;
mod iwssc09;
mod leg_shares;
mod leo;
mod load;
mod lossy_link;
mod ltp_reach;
mod observers;
mod one_way;
mod pepsal;
mod psats09;
mod quic;
mod quic_one_box;
mod radius07;
mod rain_fade;
mod return_link;
mod runner;
mod shared_leg;
mod shared_runs;
mod short_downloads;
mod snoop_senders;
mod surrey;
mod told;
mod unknown_capacity;
mod varying;
mod vpn;
mod xcp_boxes;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;
use crate::claim::Claim;
use crate::figure::Figure;
use crate::processors::Watch;
use crate::results::{Invocation, Part, Plan, Results, Seeds, World};
use crate::table::Table;
use curves::{Curves, Measure, Scheme, listed, rows};
use load::Load;
use runner::{Lab, Runs, over_seeds};
pub use shared_runs::SharedRuns;

/// An experiment of the literature.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name: the publication's, and the figure's or the subject's.
    pub name: &'static str,
    /// What it shows, in a line.
    pub title: &'static str,
    /// The publication.
    pub source: &'static str,
    /// With how many seeds it begins and ends by default in virtual time.
    pub plan: Plan,
    /// `None`: on the kernel only.
    run: Option<RunFn>,
    /// The same on the kernel: the default number of seeds, and the function. `None`: virtual time only.
    on_kernel: Option<(u64, RunFn)>,
}

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
pub const ALL: [Experiment; 37] = [
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
    ltp_reach::LTP_REACH,
    surrey::FIG2,
    surrey::FIG3,
    surrey::FIG4,
    iwssc09::ASYMMETRIC,
    iwssc09::LOSS,
    iwssc09::FAIRNESS,
    surrey::SENSITIVITY,
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
    one_way::ONE_WAY,
    short_downloads::SHORT_DOWNLOADS,
    crowd::CROWD,
    shared_leg::SHARED_LEG,
    quic::QUIC,
    quic_one_box::QUIC_ONE_BOX,
    leg_shares::LEG_SHARES,
    vpn::VPN,
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
    shared: SharedRuns,
}

impl Progress {
    /// Nothing done yet by this experiment, which does not repeat what others have run.
    pub fn sharing(shared: &SharedRuns) -> Self {
        Self { shared: shared.clone(), ..Self::default() }
    }

    /// Runs completed, and runs planned so far.
    pub fn get(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.planned.load(Ordering::Relaxed))
    }
}

impl Experiment {
    /// The worlds that it can run in.
    pub fn worlds(&self) -> &'static [World] {
        match (self.run, self.on_kernel) {
            (Some(_), Some(_)) => &[World::Sim, World::Kernel],
            (Some(_), None) => &[World::Sim],
            (None, _) => &[World::Kernel],
        }
    }

    /// Refuses a world that it cannot run in.
    ///
    /// # Errors
    /// [`Error::NotInThisWorld`], which lists the experiments that can; [`Error::NotInVirtualTime`].
    pub fn require(&self, world: World) -> Result<(), Error> {
        if self.worlds().contains(&world) { Ok(()) } else { Err(self.not_in(world)) }
    }

    /// With how many seeds it begins and ends in a world, unless told otherwise: on the kernel, where a seed
    /// takes minutes, there is one look.
    pub fn plan_in(&self, world: World) -> Plan {
        match (world, self.on_kernel) {
            (World::Kernel, Some((seeds, _))) => Plan::fixed(seeds),
            _ => self.plan,
        }
    }

    /// What [`run`](Self::run) does, or if `quick`, [`run_quickly`](Self::run_quickly).
    pub fn invocation(&self, world: World, first_seed: u64, plan: Plan, quick: bool) -> Invocation {
        Invocation { experiment: self.name.into(), world, first_seed, plan, quick }
    }

    /// Runs it in virtual time, or with the TCP of this machine's kernel, with the seeds from `first` on.
    ///
    /// # Errors
    /// [`Error::Scenario`] if a scenario is invalid, [`Error::NotInThisWorld`] if it cannot run on the
    /// kernel, [`Error::NotInVirtualTime`] if only there, and there any error of the namespaces, links and
    /// proxies.
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
        let mut lab = Lab::new(world, Seeds { first, count: plan.from }, progress);
        lab.quick = true;
        self.run_in(lab, plan)
    }

    fn run_in(&self, mut lab: Lab<'_>, plan: Plan) -> Result<Results, Error> {
        let world = lab.world;
        let run = match world {
            World::Sim => self.run,
            World::Kernel => self.on_kernel.map(|(_, run)| run),
        };
        let run = run.ok_or_else(|| self.not_in(world))?;
        let watch = (world == World::Kernel).then(Watch::begin);
        let looks = plan.looks();
        for (look, &count) in looks.iter().enumerate() {
            lab.begin(count);
            let output = run(&lab)?;
            let verdicts: Vec<_> = output.claims.iter().map(|claim| claim.judge(plan.level())).collect();
            let factor = plan.most as f64 / count as f64;
            let is_last = look + 1 == looks.len();
            if !is_last && output.claims.iter().any(|claim| claim.may_yet_be_decided(plan.level(), factor)) {
                continue;
            }
            let quick = lab.quick && world == World::Kernel;
            let invocation = self.invocation(world, lab.seeds.first, plan, quick);
            return Ok(Results {
                name: invocation.name(),
                title: self.title.into(),
                source: self.source.into(),
                world,
                seeds: lab.seeds,
                plan,
                quick,
                busy: watch.and_then(Watch::end),
                verdicts,
                tables: output.tables,
                figures: output.figures,
            });
        }
        unreachable!("a plan has a look, and the last one returns")
    }

    fn not_in(&self, world: World) -> Error {
        let name = self.name.into();
        match world {
            World::Sim => Error::NotInVirtualTime { name },
            World::Kernel => {
                let able = ALL.iter().filter(|experiment| experiment.on_kernel.is_some());
                let able = able.map(|experiment| experiment.name).collect::<Vec<_>>().join(", ");
                Error::NotInThisWorld { name, able }
            }
        }
    }
}

/// An experiment with so many seeds from 1 on, and no more.
#[cfg(test)]
fn in_virtual_time(experiment: &Experiment, seeds: u64) -> Results {
    experiment.run(World::Sim, 1, Plan::fixed(seeds), &Progress::default()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Sample;

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

    /// The goodputs of a short scenario over the seeds.
    fn goodputs(lab: &Lab<'_>) -> Sample {
        let scenario = lab.scenario(&pepsal::SCENARIO, &["duration=5s".into()]).unwrap();
        lab.run(&[scenario]).unwrap()[0].sample(|run| run.flows[0].goodput_bps)
    }

    #[test]
    fn a_look_again_runs_nothing_anew_with_one_seed() {
        let progress = Progress::default();
        let mut lab = Lab::in_virtual_time(Seeds { first: 3, count: 2 }, &progress);
        let look = |lab: &Lab<'_>| [goodputs(&lab.with_one_seed()), goodputs(lab)];
        let [once, _] = look(&lab);
        lab.begin(5);
        assert_eq!(look(&lab)[0], once);
        assert_eq!(progress.get(), (6, 6));
    }

    #[test]
    fn experiments_that_share_runs_do_not_repeat_them() {
        let shared = SharedRuns::default();
        let goodputs_of = |count| {
            let progress = Progress::sharing(&shared);
            goodputs(&Lab::in_virtual_time(Seeds { first: 3, count }, &progress))
        };
        let first = goodputs_of(2);
        assert_eq!((goodputs_of(2), shared.len()), (first, 2));
        goodputs_of(3);
        assert_eq!(shared.len(), 3, "the third seed alone is new");
    }

    #[test]
    fn a_look_again_has_the_runs_of_all_seeds_and_runs_only_the_new_ones() {
        let progress = Progress::default();
        let mut lab = Lab::in_virtual_time(Seeds { first: 3, count: 2 }, &progress);
        goodputs(&lab);
        lab.begin(5);
        let looked_again = goodputs(&lab);
        assert_eq!(progress.get(), (5, 5));
        assert_eq!(
            looked_again,
            goodputs(&Lab::in_virtual_time(Seeds { first: 3, count: 5 }, &Progress::default()))
        );
    }
}
