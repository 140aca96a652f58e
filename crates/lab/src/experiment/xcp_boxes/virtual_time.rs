//! The boxes in virtual time.

use super::super::{Findings, Lab};
use super::{Comparison, LINKS, WAYS};
use crate::Error;

const SCENARIO: (&str, &str) =
    ("scenarios/xcp-boxes.toml", include_str!("../../../../../scenarios/xcp-boxes.toml"));

pub(super) fn run(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut scenarios = Vec::new();
    for way in WAYS {
        for link in LINKS {
            scenarios.push(lab.scenario(&SCENARIO, &settings(way, link))?);
        }
    }
    let goodputs: Vec<Vec<f64>> = lab
        .run(&scenarios)
        .iter()
        .map(|runs| runs.0.iter().map(|run| run.flows[0].goodput_bps).collect())
        .collect();
    let by_way: Vec<Vec<Vec<f64>>> = goodputs.chunks(LINKS.len()).map(<[_]>::to_vec).collect();
    Ok(Comparison::of(&by_way).findings())
}

fn settings(way: &str, (per, rtt_ms): (f64, u64)) -> Vec<String> {
    let router = match way {
        "hybla" => "link.satellite.xcp=off".to_owned(),
        variant => format!("link.satellite.xcp.variant={variant}"),
    };
    vec![
        format!("link.satellite.per={per}"),
        format!("link.satellite.delay={}ms", rtt_ms / 2),
        format!("tcp.satellite.congestion={way}"),
        router,
    ]
}
