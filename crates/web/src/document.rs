//! A run, and the document that the page reads.

use bentpipe_sim::sweep::{self, Plan};
use bentpipe_sim::{RunResult, Scenario, file};
use serde::Serialize;

use crate::curves::{Curves, Recorder};
use crate::limit::{self, FlowLimit, Outage};

/// What errors call the scenario, which is no file in a page.
pub const FILE: &str = "scenario.toml";

/// Why there is no document. It prints as one line for each thing that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not a scenario.
    #[error(transparent)]
    Scenario(#[from] file::Error),
    /// Its sweeps are too much.
    #[error(transparent)]
    Sweep(#[from] sweep::Error),
    /// The results are no JSON document.
    #[error("cannot write the results: {0}; please report this scenario")]
    Document(#[from] serde_json::Error),
}

/// What the page gets of a run.
#[derive(Debug, Serialize)]
struct Document<'a> {
    /// How many combinations of values the scenario's sweeps are; the run is the first one.
    points: usize,
    results: Results<'a>,
    limits: Vec<FlowLimit>,
    outages: Vec<Outage>,
    curves: Curves<'a>,
}

/// What `bentpipe sim --json` prints of the run, but for what depends on the machine and the command line.
#[derive(Debug, Serialize)]
struct Results<'a> {
    title: &'a str,
    #[serde(flatten)]
    run: &'a RunResult,
}

/// Runs a scenario, with the first value of each of its sweeps, and reports to `progress` which part of its
/// duration is over, from 0 to 1. The JSON document has the results and the curves.
///
/// # Errors
/// If `text` is not a scenario: all errors with line and key.
pub fn run(text: &str, seed: u64, progress: &mut dyn FnMut(f64)) -> Result<String, Error> {
    let source = file::Source::parse(FILE, text)?;
    let plan = Plan::new(&source, &[], &[], &[seed])?;
    let scenario: Scenario = plan.scenario(&plan.points()[0])?;
    let mut recorder = Recorder::new(&scenario, progress);
    let run = bentpipe_sim::run(&scenario, seed, &mut recorder);
    let document = Document {
        points: plan.points().len(),
        results: Results { title: &scenario.title, run: &run },
        limits: limit::of_flows(&scenario),
        outages: limit::outages(&scenario),
        curves: recorder.finish(&scenario, &run),
    };
    Ok(serde_json::to_string(&document)?)
}
