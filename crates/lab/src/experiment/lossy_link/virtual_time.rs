//! The comparison in virtual time.

use bentpipe_sim::RunResult;

use super::super::{Lab, Output, Runs};
use super::{CACHE_BDPS, Comparison, DELAY_RTTS, Measured, Mitigation, PERS, RTT, SCENARIO, SenderCounts};
use crate::Error;

const SATELLITE: usize = 1;
const GATEWAY: &str = "gateway";

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, &Mitigation::ALL, &PERS, settings)?;
    let measured = |runs: &Runs| runs.results().map(measured).collect();
    let measured: Vec<Vec<Vec<Measured>>> =
        runs.iter().map(|pers| pers.iter().map(measured).collect()).collect();
    Ok(Comparison::of(&measured).output())
}

pub(in crate::experiment) fn settings(mitigation: Mitigation, per: f64) -> Vec<String> {
    let delay_ms = DELAY_RTTS * RTT.as_secs_f64() * 1e3;
    let mut settings = vec![format!("link.satellite.per={per}")];
    match mitigation {
        Mitigation::EndToEnd => {}
        Mitigation::Split => settings.push(
            "flow.download.split=[{ at = \"gateway\", buffer = \"2.25MB\", tcp = \"satellite\" }]".into(),
        ),
        Mitigation::Snoop => {
            settings.push(format!("link.satellite.snoop={{ at = \"gateway\", cache_bdps = {CACHE_BDPS:?} }}"))
        }
        Mitigation::DelayedDupAcks => settings.extend([
            format!("link.satellite.delayed_dup_acks={{ at = \"client\", delay = \"{delay_ms}ms\" }}"),
            "link.satellite.arq={ delivery = \"immediate\" }".into(),
        ]),
    }
    settings
}

pub(in crate::experiment) fn measured(run: &RunResult) -> Measured {
    let flow = &run.flows[0];
    let ends = run.links[SATELLITE].ends.iter().filter(|end| end.node == GATEWAY);
    let split = flow.splitters.iter().map(|splitter| splitter.most_bytes);
    let held: u64 = ends.map(|end| end.most_held_bytes).chain(split).sum();
    let sender = SenderCounts { retransmissions: flow.retransmissions, timeouts: flow.timeouts };
    Measured { goodput_bps: flow.goodput_bps, held_bytes: held as f64, sender: Some(sender) }
}
