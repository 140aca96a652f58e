use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bentpipe_lab::experiment::{self, Experiment, Progress};
use bentpipe_lab::results::{Results, Seeds, Written};
use clap::{Args, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

const BAR: &str = "{prefix:18} {bar:40} {pos:>5} of {len:5} runs  {elapsed}";
const TICK: Duration = Duration::from_millis(100);
/// All experiments, where the name of one is expected.
const ALL: &str = "all";

/// Repeat the published experiments, and compare what comes out with what was published.
#[derive(Debug, Args)]
pub(crate) struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    List(List),
    Run(Run),
}

/// List the experiments.
#[derive(Debug, Args)]
struct List {
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

/// Run experiments: print tables and verdicts, write figures, CSV and a page for each.
///
/// A verdict that does not agree is a result like any other: the exit code is 0 when the experiments have run.
#[derive(Debug, Args)]
struct Run {
    /// The experiments, by name; "all" for all of them.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Where they run.
    #[arg(long, default_value = "sim")]
    on: World,
    /// Where figures, tables and pages go.
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// With how many seeds each setting runs; each experiment has its own default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON document instead of the tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum World {
    /// In virtual time.
    Sim,
}

impl Lab {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            LabCommand::List(list) => list.run(),
            LabCommand::Run(run) => run.run(),
        }
    }
}

impl List {
    fn run(self) -> anyhow::Result<ExitCode> {
        let text = if self.json {
            let entry = |experiment: &Experiment| {
                serde_json::json!({
                    "name": experiment.name,
                    "title": experiment.title,
                    "source": experiment.source,
                    "seeds": experiment.seeds,
                })
            };
            let entries: Vec<_> = experiment::ALL.iter().map(entry).collect();
            serde_json::to_string_pretty(&serde_json::json!({ "experiments": entries }))? + "\n"
        } else {
            experiment::ALL.iter().map(|found| format!("{:18} {}\n", found.name, found.title)).collect()
        };
        super::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Run {
    fn run(self) -> anyhow::Result<ExitCode> {
        let World::Sim = self.on;
        let mut documents = Vec::new();
        for experiment in self.experiments()? {
            let results = self.conduct(experiment)?;
            let written = results.write(&self.out)?;
            if self.json {
                documents.push(serde_json::to_value(results.document(&written))?);
            } else {
                super::print(&format!("{}\n", results.to_text()))?;
                tell_files(&written);
            }
        }
        if self.json {
            let document = match documents.len() {
                1 => documents.remove(0),
                _ => serde_json::json!({ "experiments": documents }),
            };
            super::print(&(serde_json::to_string_pretty(&document)? + "\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn experiments(&self) -> anyhow::Result<Vec<&'static Experiment>> {
        if self.names.iter().any(|name| name == ALL) {
            return Ok(experiment::ALL.iter().collect());
        }
        let found = self.names.iter().map(|name| experiment::find(name)).collect::<Result<_, _>>();
        found.context("no experiment was run")
    }

    fn conduct(&self, experiment: &Experiment) -> anyhow::Result<Results> {
        let seeds = Seeds { first: self.seed, count: self.seeds.unwrap_or(experiment.seeds) };
        let progress = Progress::default();
        let style = ProgressStyle::with_template(BAR).expect("the template is valid");
        let bar = ProgressBar::new(0).with_style(style).with_prefix(experiment.name);
        let results = std::thread::scope(|scope| {
            let run = scope.spawn(|| experiment.run(seeds, &progress));
            while !run.is_finished() {
                let (done, planned) = progress.get();
                bar.set_length(planned);
                bar.set_position(done);
                std::thread::sleep(TICK);
            }
            bar.finish_and_clear();
            run.join().expect("an experiment does not panic")
        });
        results.with_context(|| format!("cannot run {}", experiment.name))
    }
}

fn tell_files(written: &Written) {
    if let Some(page) = &written.page {
        eprintln!("Tables, figures and verdicts: {}", page.display());
    }
}
