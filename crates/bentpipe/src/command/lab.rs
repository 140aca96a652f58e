use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use bentpipe_lab::experiment::{self, Experiment, Progress, SharedRuns};
use bentpipe_lab::report::{Journal, PAGE, Report, Started};
use bentpipe_lab::results::{self, Invocation, Plan, Results, Written};
use bentpipe_testbed::require;
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Fits into 80 columns.
const BAR: &str = "{prefix:18} {bar:30} {pos:>5} of {len} runs  {elapsed}";
const TICK: Duration = Duration::from_millis(100);
/// Shorter experiments need no bar.
const BAR_DELAY: Duration = Duration::from_secs(1);
/// All experiments, where the name of one is expected.
const ALL: &str = "all";

/// Repeat the published experiments and compare the results with the published ones.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    List(List),
    Run(Run),
    Report(Join),
}

/// List the experiments.
#[derive(Debug, Args)]
struct List {
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Run experiments: print tables and verdicts, write figures, CSV and a page for each, and a report on all.
///
/// The report is report.html in the folder: one page with everything, written anew as each experiment
/// finishes. An experiment that fails is told there, and the others run nevertheless.
///
/// Each claim agrees with the data, is contradicted by them, or is undecided. A claim that is contradicted is
/// a result like any other: the exit code is 0 when the experiments have run.
#[derive(Debug, Args)]
struct Run {
    /// The experiments, by name; "all" for all of them.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Where they run.
    #[arg(long, value_name = "WORLD", default_value = "sim")]
    on: World,
    /// Where figures, tables and pages go.
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// On the kernel, run scenarios in an eighth of their time, 30 s to a minute each, with one seed unless
    /// told otherwise, and all experiments at a time if it is --on kernel: a look, not a result.
    #[arg(long)]
    quick: bool,
    /// With how many seeds each setting runs; each experiment has its own default. A number given here is
    /// not exceeded unless --max-seeds is given, too.
    #[arg(long, value_name = "N", allow_hyphen_values = true,
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// With how many seeds at most: as long as a claim is undecided that more may decide, an experiment
    /// runs with more, in one step, or in two up to four times as many. In virtual time the default is
    /// twice the experiment's own number; on the kernel no more seeds are added.
    #[arg(long, value_name = "N", allow_hyphen_values = true,
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    max_seeds: Option<u64>,
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true)]
    seed: u64,
    /// Print one JSON document instead of the tables.
    #[arg(long)]
    json: bool,
}

/// Write the report of results that were written before, and join those of several folders.
///
/// Each experiment is shown in both worlds side by side. Where several folders have it in the same world, the
/// newest results count.
#[derive(Debug, Args)]
struct Join {
    /// Folders that `lab run` has written to.
    #[arg(required = true, value_name = "FOLDER")]
    folders: Vec<PathBuf>,
    /// The page; without it report.html in the first folder.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum World {
    /// In virtual time.
    Sim,
    /// With the TCP of this machine's kernel, in real time; needs root. Not every experiment has this form.
    Kernel,
    /// In virtual time, and then on the kernel where there is this form.
    Both,
}

impl World {
    fn all(self) -> &'static [results::World] {
        match self {
            World::Sim => &[results::World::Sim],
            World::Kernel => &[results::World::Kernel],
            World::Both => &[results::World::Sim, results::World::Kernel],
        }
    }
}

impl Lab {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            LabCommand::List(list) => list.run(),
            LabCommand::Run(run) => run.run(),
            LabCommand::Report(join) => join.run(),
        }
    }
}

impl List {
    fn run(self) -> anyhow::Result<ExitCode> {
        if self.json {
            let entry = |experiment: &Experiment| {
                let plan = experiment.plan_in(experiment.worlds()[0]);
                serde_json::json!({
                    "name": experiment.name,
                    "title": experiment.title,
                    "source": experiment.source,
                    "seeds": plan.from,
                    "max_seeds": plan.most,
                    "worlds": experiment.worlds(),
                })
            };
            let entries: Vec<_> = experiment::ALL.iter().map(entry).collect();
            super::print_json(&serde_json::json!({ "experiments": entries }))?;
        } else {
            let line = |found: &Experiment| format!("{:18} {}\n", found.name, found.title);
            super::print(&experiment::ALL.iter().map(line).collect::<String>())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    fn run(self) -> anyhow::Result<ExitCode> {
        if self.on.all().contains(&results::World::Kernel) {
            require(super::laboratory::TOPOLOGY_NEEDS).context(
                "no experiment can run on the kernel here; --on sim, the default, runs it in virtual time",
            )?;
            super::log::to_stderr("warn");
        }
        let runs = self.runs()?;
        super::laboratory::prepare_folder(&self.out)?;
        let invocations: Vec<Invocation> =
            runs.iter().map(|&(experiment, world, plan)| self.invocation(experiment, world, plan)).collect();
        let journal = Journal::begin(&self.out, &invocations)?;
        let (mut documents, mut failures) = (BTreeMap::new(), Vec::new());
        self.each_outcome(&runs, &invocations, &journal, |index, started, results, bars| {
            let results = match results {
                Ok(results) => results,
                Err(error) => {
                    journal.failed(started, format!("{error:#}"))?;
                    if invocations.len() > 1 {
                        bars.suspend(|| super::print_note(format_args!("{error:#}")));
                    }
                    failures.push(error);
                    return Ok(());
                }
            };
            let written = journal.finished(started, &results)?;
            if self.json {
                documents.insert(index, serde_json::to_value(results.document(&written))?);
            } else {
                bars.suspend(|| super::print(&format!("{}\n", results.to_text())))?;
                bars.suspend(|| print_files(&written));
            }
            Ok(())
        })?;
        let mut documents: Vec<serde_json::Value> = documents.into_values().collect();
        match (invocations.len(), failures.len()) {
            (1, 1) => return Err(failures.remove(0)),
            (_, 0) => (),
            (all, failed) => {
                let report = self.out.join(PAGE);
                return Err(anyhow!("{failed} of {all} experiments have failed: see {}", report.display()));
            }
        }
        if self.json {
            let document = match documents.len() {
                1 => documents.remove(0),
                _ => serde_json::json!({ "experiments": documents }),
            };
            super::print_json(&document)?;
        } else {
            super::print_note(format_args!("The report: {}", self.out.join(PAGE).display()));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs the experiments and gives each outcome to `keep` as it comes, with the bars of those that still
    /// run, to be suspended where something is printed. Where anything cannot be written, none begins any
    /// more.
    fn each_outcome(
        &self,
        runs: &[(&'static Experiment, results::World, Plan)],
        invocations: &[Invocation],
        journal: &Journal,
        mut keep: impl FnMut(usize, Started, anyhow::Result<Results>, &MultiProgress) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (bars, shared, next) = (MultiProgress::new(), SharedRuns::default(), AtomicUsize::new(0));
        let mut running: Vec<Option<Started>> = runs.iter().map(|_| None).collect();
        std::thread::scope(|scope| {
            let (sender, news) = mpsc::channel();
            for _ in 0..self.at_once(runs.len()) {
                let (sender, bars, shared, next) = (sender.clone(), &bars, &shared, &next);
                scope.spawn(move || {
                    let indexes = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                    for index in indexes.take_while(|index| *index < runs.len()) {
                        let (experiment, world, plan) = runs[index];
                        if sender.send((index, None)).is_err() {
                            return;
                        }
                        let quick = self.is_quick(world);
                        let results =
                            run_with_progress(experiment, world, self.seed, quick, plan, shared, bars);
                        let _ = sender.send((index, Some(results)));
                    }
                });
            }
            drop(sender);
            for (index, results) in news {
                match results {
                    None => running[index] = Some(journal.started(&invocations[index])?),
                    Some(results) => {
                        let started = running[index].take().expect("it begins before it ends");
                        keep(index, started, results, &bars)?;
                    }
                }
            }
            Ok(())
        })
    }

    fn invocation(&self, experiment: &Experiment, world: results::World, plan: Plan) -> Invocation {
        experiment.invocation(world, self.seed, plan, self.is_quick(world))
    }

    fn is_quick(&self, world: results::World) -> bool {
        self.quick && world == results::World::Kernel
    }

    /// How many of all experiments run at once. In a look at the kernel all do, as their runs wait for room
    /// on the machine anyway; virtual time uses all cores for one, and what is measured has the machine to
    /// itself.
    fn at_once(&self, all: usize) -> usize {
        if self.quick && self.on == World::Kernel { all } else { 1 }
    }

    /// The named experiments, each once in each world, with their seeds. All names are looked up, also those
    /// next to "all", which stands for every experiment that can run in one of the worlds.
    fn runs(&self) -> anyhow::Result<Vec<(&'static Experiment, results::World, Plan)>> {
        let mut found: Vec<(&Experiment, results::World, Plan)> = Vec::new();
        let named = |name: &String| match name.as_str() {
            ALL => Ok(experiment::ALL.iter().collect()),
            name => experiment::find(name).map(|found| vec![found]).context("no experiment was run"),
        };
        let named = self.names.iter().map(|name| Ok((name, named(name)?)));
        for (name, experiments) in named.collect::<anyhow::Result<Vec<_>>>()? {
            for experiment in experiments {
                for &world in self.on.all() {
                    let able = experiment.worlds().contains(&world);
                    // Named, and only for a world that it does not have: nothing runs.
                    if name != ALL && self.on != World::Both {
                        experiment.require(world).context("no experiment was run")?;
                    }
                    let new = |(other, at, _): &&(&Experiment, results::World, Plan)| {
                        other.name == experiment.name && *at == world
                    };
                    if able && !found.iter().any(|other| new(&other)) {
                        found.push((experiment, world, self.plan(experiment, world)?));
                    }
                }
            }
        }
        Ok(found)
    }

    /// With how many seeds an experiment begins, and with how many it ends at the latest.
    fn plan(&self, experiment: &Experiment, world: results::World) -> anyhow::Result<Plan> {
        let default = if self.is_quick(world) { Plan::fixed(1) } else { experiment.plan_in(world) };
        let (from, most) = match (self.seeds, self.max_seeds) {
            (None, None) => (default.from, default.most),
            (None, Some(most)) => (default.from.min(most), most),
            (Some(from), most) => (from, most.unwrap_or(from)),
        };
        ensure!(
            from <= most,
            "--max-seeds {most} is less than --seeds {from}: use --max-seeds {from} or more"
        );
        ensure!(
            self.seed.checked_add(most).is_some(),
            "there are no {most} seeds from {} on: use --seed {} or less",
            self.seed,
            u64::MAX - most
        );
        Ok(Plan { from, most })
    }
}

impl Join {
    fn run(self) -> anyhow::Result<ExitCode> {
        let report = Report::read(&self.folders)?;
        let folders = self.folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>();
        ensure!(
            !report.is_empty(),
            "no results in {}: bentpipe lab run NAME --out DIR writes NAME.result.json there",
            folders.join(", ")
        );
        let page = self.out.unwrap_or_else(|| self.folders[0].join(PAGE));
        report.write(&page)?;
        super::print(&format!("{}\n", page.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Runs an experiment, with a bar that appears when it takes more than a second.
fn run_with_progress(
    experiment: &Experiment,
    world: results::World,
    first_seed: u64,
    quick: bool,
    plan: Plan,
    shared: &SharedRuns,
    bars: &MultiProgress,
) -> anyhow::Result<Results> {
    let progress = Progress::sharing(shared);
    let style = ProgressStyle::with_template(BAR).expect("the template is valid");
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
    let bar = bar.with_style(style).with_prefix(experiment.name);
    let started = Instant::now();
    let results = std::thread::scope(|scope| {
        let run = scope.spawn(|| match quick {
            true => experiment.run_quickly(world, first_seed, plan, &progress),
            false => experiment.run(world, first_seed, plan, &progress),
        });
        while !run.is_finished() {
            let (done, planned) = progress.get();
            bar.set_length(planned);
            bar.set_position(done);
            if bar.is_hidden() && started.elapsed() > BAR_DELAY {
                bars.add(bar.clone());
            }
            std::thread::sleep(TICK);
        }
        bar.finish_and_clear();
        // The others go on, and their results are not lost.
        let panicked =
            |_| Err(anyhow!("it panicked, which is a fault of bentpipe: please report what it printed"));
        run.join().map_or_else(panicked, |results| Ok(results?))
    });
    results.with_context(|| format!("cannot run {}", experiment.name))
}

fn print_files(written: &Written) {
    if let Some(page) = &written.page {
        super::print_note(format_args!("Tables, figures and verdicts: {}", page.display()));
    }
}
