mod progress;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bentpipe_lab::on_kernel;
use bentpipe_sim::file::{Setting, Source};
use bentpipe_sim::manifest::{Manifest, State};
use bentpipe_sim::sweep::{Job, Plan, Run, Sweep};
use bentpipe_sim::{Observer, PacketLog, RunResult, Trace, TraceContent};
use bentpipe_testbed::require;
use clap::{Args, ValueEnum};
use serde::Serialize;

use self::progress::{Meter, Watch};

/// Run a scenario: links, flows and TCP from a TOML file, described in docs/scenarios.md. In virtual time, or
/// with the TCP of this machine's kernel.
///
/// In virtual time the same file, settings and seed give the same result on any machine. With several seeds
/// the table shows means and their 95% confidence intervals.
#[derive(Debug, Args)]
pub(crate) struct Sim {
    /// The scenario.
    #[arg(value_name = "FILE")]
    scenario: PathBuf,
    /// Where it runs.
    #[arg(long, value_name = "WORLD", default_value = "sim")]
    on: World,
    /// The seed, or the first of several.
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true)]
    seed: u64,
    /// Run with this many consecutive seeds, --seed being the first.
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seeds: u64,
    /// Set a parameter: link.satellite.per=1%, flow.download.bytes=10MB, tcp.space.rto.max=10s.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Run with each of these values of a parameter; several sweeps are multiplied. KEY+KEY=VALUE+VALUE,…
    /// sets parameters together; case=NAME:KEY=VALUE+KEY=VALUE,… are named cases.
    #[arg(long = "sweep", value_name = "KEY=VALUE,…")]
    sweeps: Vec<String>,
    /// Write windows, timers, queues and bytes over time as CSV files into this folder.
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Write every packet too, packets.pcapng, with an interface for each end of each link, for Wireshark and
    /// tcpdump.
    #[arg(long, requires = "trace")]
    packets: bool,
    /// Write what the sender of each leg does too, FLOW-LEG.sqlog, in the format qlog, for qvis.
    #[arg(long, requires = "trace")]
    qlog: bool,
    /// Write the packets of each direction of each link too, LINK-forward.log and LINK-reverse.log, in the format
    /// of mahimahi's logs.
    #[arg(long, requires = "trace")]
    mahimahi: bool,
    /// Log each step of each packet on each link to a CSV file, which bentpipe verify checks against the
    /// scenario. Of one run only.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Write a list of all runs to a JSON file: settings, seed, version, the scenario's SHA-256, and what
    /// became of each.
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Print one JSON document instead of the tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum World {
    /// In virtual time.
    Sim,
    /// On hosts in network namespaces, with this machine's TCP, in real time; needs root.
    Kernel,
}

/// A run, and the time that it took.
struct Outcome {
    result: RunResult,
    state: State,
    wall: Duration,
    /// The folder of its trace.
    trace: Option<PathBuf>,
}

impl Sim {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let settings = self.settings.iter().map(|text| text.parse()).collect::<Result<Vec<Setting>, _>>()?;
        let sweeps = self.sweeps.iter().map(|text| text.parse()).collect::<Result<Vec<Sweep>, _>>()?;
        let seeds: Vec<u64> = (0..self.seeds).map(|n| self.seed.wrapping_add(n)).collect();
        refuse_forgotten_pipe(&self.scenario)?;
        let source = Source::load(&self.scenario)?;
        let plan = Plan::new(&source, &settings, &sweeps, &seeds)?;
        if self.on == World::Kernel {
            self.prepare_kernel(&plan)?;
        }
        ensure!(
            self.log.is_none() || plan.len() == 1,
            "--log is for one run, and these are {}: leave out --seeds and sweeps, also that of the file (--set \
             KEY=VALUE replaces it)",
            plan.len()
        );
        let runs = self.run_listed(&plan)?;
        let title = plan.scenario(&plan.points()[0])?.title;
        if self.json {
            super::print_json(&Document::new(&title, &settings, &runs))?;
        } else {
            super::print(&tables::text(&plan, &title, &runs)?)?;
        }
        if let (Some(directory), false) = (&self.trace, self.json) {
            super::print_note(format_args!(
                "Windows, timers, queues and bytes over time: {}",
                directory.display()
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Checks all points before the first one runs, and says what the kernel does otherwise.
    fn prepare_kernel(&self, plan: &Plan) -> anyhow::Result<()> {
        ensure!(
            !self.packets && !self.qlog && !self.mahimahi && self.log.is_none(),
            "--packets, --qlog, --mahimahi and --log are written in virtual time only: on the kernel, capture with \
             tcpdump, or leave them out"
        );
        require(super::laboratory::TOPOLOGY_NEEDS).context(
            "the scenario cannot run on the kernel here; --on sim, the default, runs it in virtual time",
        )?;
        super::log::to_stderr("warn");
        let mut differences = BTreeSet::new();
        for point in plan.points() {
            differences.extend(on_kernel::differences(&plan.scenario(point)?)?);
        }
        if !differences.is_empty() {
            let list: Vec<String> = differences.into_iter().map(|what| format!("- {what}")).collect();
            super::print_note(format_args!(
                "This kernel does otherwise than the scenario says:\n{}",
                list.join("\n")
            ));
        }
        Ok(())
    }

    /// All runs, in order, and the manifest before and after them.
    fn run_listed(&self, plan: &Plan) -> anyhow::Result<Vec<Run<Outcome>>> {
        let Some(path) = &self.manifest else { return self.run_all(plan) };
        let mut manifest = Manifest::new(plan);
        manifest.write(path)?;
        let runs = self.run_all(plan)?;
        for (entry, run) in manifest.runs.iter_mut().zip(&runs) {
            entry.state = run.result.state;
        }
        manifest.write(path)?;
        Ok(runs)
    }

    /// All runs, in order.
    fn run_all(&self, plan: &Plan) -> anyhow::Result<Vec<Run<Outcome>>> {
        let meter = Meter::new(plan.len() as u64);
        let runs = plan.run(|job| self.run_one(job, plan.len(), &meter), |_| {});
        meter.finish();
        let settle = |run: Run<anyhow::Result<Outcome>>| {
            Ok(Run { point: run.point, seed: run.seed, result: run.result? })
        };
        runs?.into_iter().map(settle).collect()
    }

    fn run_one(&self, job: &Job<'_>, runs: usize, meter: &Meter) -> anyhow::Result<Outcome> {
        let trace = self.trace.as_ref().map(|directory| match runs {
            1 => directory.clone(),
            _ => directory.join(format!("run-{}", job.number + 1)),
        });
        let content = TraceContent { packets: self.packets, qlog: self.qlog, mahimahi: self.mahimahi };
        let begin = |directory: &PathBuf| Trace::create(directory, &job.scenario, content);
        let mut writer = trace.as_ref().map(begin).transpose()?;
        let begin_log = |path: &PathBuf| PacketLog::create(path, &job.scenario);
        let mut log = self.log.as_ref().map(begin_log).transpose()?;
        let mut watch = Watch::new(meter, &job.scenario);
        let mut observers: Vec<&mut dyn Observer> = vec![&mut watch];
        observers.extend(writer.as_mut().map(|writer| writer as &mut dyn Observer));
        observers.extend(log.as_mut().map(|log| log as &mut dyn Observer));
        let started = Instant::now();
        let result = match self.on {
            World::Sim => bentpipe_sim::run(&job.scenario, job.seed, &mut observers),
            World::Kernel => on_kernel::run(&job.scenario, job.seed, &mut observers)?,
        };
        let wall = started.elapsed();
        watch.finish();
        if let Some(writer) = writer {
            let incomplete = || format!("the trace of run {} is not complete", job.number + 1);
            writer.finish().with_context(incomplete)?;
        }
        if let Some((log, path)) = log.zip(self.log.as_ref()) {
            log.finish(path)?;
        }
        let state = State::of(&job.scenario, &result);
        Ok(Outcome { result, state, wall, trace })
    }
}

/// Refuses a named pipe without a writer, which would block for ever. A pipe from the shell, as in
/// `bentpipe sim <(sed … FILE)`, has a writer.
fn refuse_forgotten_pipe(file: &Path) -> anyhow::Result<()> {
    let from_shell = ["/dev", "/proc"].iter().any(|folder| file.starts_with(folder));
    let pipe = std::fs::metadata(file).is_ok_and(|metadata| metadata.file_type().is_fifo());
    ensure!(
        from_shell || !pipe,
        "cannot read the scenario {}: it is a named pipe; give a file",
        file.display()
    );
    Ok(())
}

/// What `--json` prints: one run by itself, or all of them in a list. It borrows the results, of which there
/// may be a million.
#[derive(Debug, Serialize)]
struct Document<'a> {
    title: &'a str,
    #[serde(flatten)]
    single: Option<Entry<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Vec<Entry<'a>>>,
}

/// A run, and which parameters were set.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    result: &'a RunResult,
    settings: BTreeMap<&'a str, &'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    case: Option<&'a str>,
    wall_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
}

impl<'a> Document<'a> {
    fn new(title: &'a str, settings: &'a [Setting], runs: &'a [Run<Outcome>]) -> Self {
        let entry = |run| Entry::new(settings, run);
        match runs {
            [run] => Self { title, single: Some(entry(run)), runs: None },
            runs => Self { title, single: None, runs: Some(runs.iter().map(entry).collect()) },
        }
    }
}

impl<'a> Entry<'a> {
    fn new(settings: &'a [Setting], run: &'a Run<Outcome>) -> Self {
        let settings = settings.iter().chain(&run.point.settings);
        Self {
            result: &run.result.result,
            settings: settings.map(|setting| (setting.key.as_str(), setting.value.as_str())).collect(),
            case: run.point.case(),
            wall_s: run.result.wall.as_secs_f64(),
            trace: run.result.trace.as_ref().map(|directory| directory.display().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        sim: Sim,
    }

    /// What `bentpipe sim` prints with these arguments about the project's GEO download.
    fn outcome(arguments: &[&str]) -> Value {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/geo-download.toml");
        let sim = Arguments::parse_from([&["sim", file], arguments].concat()).sim;
        let settings: Vec<Setting> = sim.settings.iter().map(|text| text.parse().unwrap()).collect();
        let sweeps: Vec<Sweep> = sim.sweeps.iter().map(|text| text.parse().unwrap()).collect();
        let seeds: Vec<u64> = (sim.seed..sim.seed + sim.seeds).collect();
        let source = Source::load(&sim.scenario).unwrap();
        let plan = Plan::new(&source, &settings, &sweeps, &seeds).unwrap();
        let runs = sim.run_all(&plan).unwrap();
        serde_json::to_value(Document::new("a title", &settings, &runs)).unwrap()
    }

    #[test]
    fn a_single_run_is_the_document_itself() {
        let document = outcome(&["--seed", "7", "--set", "flow.split.bytes=1MB"]);
        assert_eq!((&document["seed"], &document["flows"][0]["name"]), (&json!(7), &json!("split")));
        assert_eq!(document["flows"][0]["bytes"], json!(1_000_000));
        assert_eq!(document["settings"], json!({ "flow.split.bytes": "1MB" }));
        for key in ["events", "wall_s", "flows", "links", "title"] {
            assert!(!document[key].is_null(), "{key} is missing");
        }
        for key in ["goodput_bps", "retransmissions", "timeouts", "seconds"] {
            assert!(document["flows"][0][key].is_number(), "{key} is no number");
        }
    }

    #[test]
    fn several_runs_are_a_list_each_with_its_settings_and_seed() {
        let document = outcome(&["--seeds", "2", "--sweep", "flow.split.bytes=1MB,2MB"]);
        let runs = document["runs"].as_array().unwrap();
        let what = |run: &Value| (run["settings"]["flow.split.bytes"].clone(), run["seed"].clone());
        let expected = [("1MB", 1), ("1MB", 2), ("2MB", 1), ("2MB", 2)];
        assert_eq!(runs.iter().map(what).collect::<Vec<_>>(), expected.map(|(b, s)| (json!(b), json!(s))));
    }

    #[test]
    fn a_trace_has_a_row_for_each_sample() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let document = outcome(&["--trace", path.to_str().unwrap()]);
        assert_eq!(document["trace"], json!(path.to_str().unwrap()));
        for name in ["legs.csv", "splitters.csv", "flows.csv", "links.csv"] {
            let text = std::fs::read_to_string(path.join(name)).unwrap();
            let columns = |line: &str| line.split(',').count();
            assert!(text.lines().count() > 100, "{name}");
            assert!(
                text.lines().all(|line| columns(line) == columns(text.lines().next().unwrap())),
                "{name}"
            );
        }
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", directory.path().join("legs.csv")).unwrap();
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/geo-download.toml");
        let trace = directory.path().to_str().unwrap();
        let error = Arguments::parse_from(["sim", file, "--trace", trace]).sim.run().unwrap_err();
        assert!(
            format!("{error:#}").starts_with("the trace of run 1 is not complete")
                && format!("{error:#}").contains("No space left"),
            "{error:#}"
        );
    }
}
