//! The comparison in virtual time, with the congestion controls that the simulator has.

use super::super::lossy_link::{Mitigation, SCENARIO, virtual_time};
use super::super::{Lab, Output, Runs};
use super::{COMPARED, Case, Comparison, Pair, Sender, cases};
use crate::Error;

/// With the names of scenarios.
const SENDERS: [Sender; 2] = [
    Sender { name: "NewReno", key: "newreno", must_gain: true },
    Sender { name: "CUBIC", key: "cubic", must_gain: true },
];

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let cases = cases(&SENDERS);
    let by_case = lab.sweep(&SCENARIO, &cases, &COMPARED, settings)?;
    let pairs = |runs: &Vec<Runs>| -> Vec<Pair> {
        let [without, with] = [0, 1].map(|with: usize| runs[with].results().map(virtual_time::measured));
        without.zip(with).map(|(without, with)| [without, with]).collect()
    };
    Ok(Comparison::of(&cases, &by_case.iter().map(pairs).collect::<Vec<_>>()).output())
}

fn settings(case: Case, mitigation: Mitigation) -> Vec<String> {
    let mut settings = virtual_time::settings(mitigation, case.per);
    settings.push(format!("tcp.host.congestion={}", case.sender.key));
    settings.push(format!("link.satellite.queue=\"{}B\"", case.queue().get()));
    settings
}
