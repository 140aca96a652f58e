//! The comparison in virtual time, with the senders that there are there.

use super::super::lossy_link::{Measured, SCENARIO, virtual_time};
use super::super::{Findings, Lab};
use super::{Case, Comparison, Pair, Sender, WAYS, cases};
use crate::Error;

/// Under the names that scenarios have for them.
const SENDERS: [Sender; 2] = [
    Sender { name: "NewReno", key: "newreno", must_gain: true },
    Sender { name: "CUBIC", key: "cubic", must_gain: true },
];

pub(super) fn run(lab: &Lab<'_>) -> Result<Findings, Error> {
    let cases = cases(&SENDERS);
    let mut scenarios = Vec::new();
    for case in &cases {
        for way in WAYS {
            let mut settings = virtual_time::settings(way, case.per);
            settings.extend(of_case(case));
            scenarios.push(lab.scenario(&SCENARIO, &settings)?);
        }
    }
    let runs = lab.run(&scenarios);
    let measured: Vec<Vec<Measured>> =
        runs.iter().map(|runs| runs.0.iter().map(virtual_time::measured).collect()).collect();
    let by_case: Vec<Vec<Pair>> = measured
        .chunks(WAYS.len())
        .map(|ways| ways[0].iter().zip(&ways[1]).map(|(without, with)| [*without, *with]).collect())
        .collect();
    Ok(Comparison::of(&cases, &by_case).findings())
}

fn of_case(case: &Case) -> [String; 2] {
    let queue = format!("link.satellite.queue=\"{}B\"", case.queue().get());
    [format!("tcp.host.congestion={}", case.sender.key), queue]
}
