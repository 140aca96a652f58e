//! The experiment in virtual time.

use super::super::{Lab, Output};
use super::{CONTROLS, LINKS, Shares};
use crate::Error;

const SCENARIO: (&str, &str) =
    ("scenarios/xcp-boxes.toml", include_str!("../../../../../scenarios/xcp-boxes.toml"));

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, &CONTROLS, &LINKS, settings)?;
    let goodputs: Vec<Vec<Vec<f64>>> = runs
        .iter()
        .map(|links| {
            links.iter().map(|runs| runs.results().map(|run| run.flows[0].goodput_bps).collect()).collect()
        })
        .collect();
    Ok(Shares::of(&goodputs).output())
}

fn settings(control: &str, (per, rtt_ms): (f64, u64)) -> Vec<String> {
    let router = match control {
        "hybla" => "link.satellite.xcp=off".to_owned(),
        variant => format!("link.satellite.xcp.variant={variant}"),
    };
    vec![
        format!("link.satellite.per={per}"),
        format!("link.satellite.delay={}ms", rtt_ms / 2),
        format!("tcp.satellite.congestion={control}"),
        router,
    ]
}
