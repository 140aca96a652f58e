//! Loss recoveries below XCP and P-XCP: three losses in about a round trip, losses at random, and flows that
//! come and go.

mod at_random;
mod crowd;
mod event;
mod flows;
mod kernel;

use super::{Experiment, Lab, MBIT, Output, PACKET, PAYLOAD, Runs, SCENARIO, SOURCE, Scheme, VARIANTS};
use crate::Error;
use crate::results::Plan;

pub(in super::super) const LOSS: Experiment = Experiment {
    name: "iwssc09-loss",
    title: "XCP and P-XCP over four loss recoveries: three losses in a round trip, losses at random, and \
        flows that come and go",
    source: SOURCE,
    plan: Plan::fixed(15),
    run: Some(run),
    on_kernel: Some((1, kernel::run)),
};

/// The loss recoveries with their names in scenarios. The publication does not have SACK.
const RECOVERIES: [(&str, &str); 4] = [
    ("Reno", "reno"),
    ("NewReno, Impatient", "newreno-impatient"),
    ("NewReno, Slow-but-Steady", "newreno-slow-but-steady"),
    ("SACK", "sack"),
];
const RENO: usize = 0;
const IMPATIENT: usize = 1;
const STEADY: usize = 2;
const SACK: usize = 3;
/// One-way delays, milliseconds.
const DELAYS_MS: [u32; 2] = [250, 500];
/// The satellite among the scenario's links.
const SATELLITE: usize = 2;
/// P-XCP among the variants.
const P_XCP: usize = 1;

fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut output = Output::default();
    for part in [event::run(lab)?, at_random::run(lab)?, flows::run(lab)?, crowd::run(lab)?] {
        output.claims.extend(part.claims);
        output.tables.extend(part.tables);
        output.figures.extend(part.figures);
    }
    Ok(output)
}

fn at_delay(delay_ms: u32) -> String {
    format!("at {delay_ms} ms")
}
