//! One flow of 10 MB over 10 Mbit/s and 300 ms one way: goodput, retransmissions, timeouts, side by side.

use std::time::Duration;

use bentpipe_lab::statistics::Summary;
use bentpipe_link::{Cause, Fate};
use bentpipe_sim::{Observer, OfferedPacket, Scenario, Unobserved, run};
use bentpipe_tcp::Config;
use bentpipe_units::Probability;
use rayon::prelude::*;
use serde::Serialize;

use crate::ns3::{Error, Ns3, SingleFlow};
use crate::pairs::Pair;
use crate::scene::{RATE, as_ns3, direction, flow, one_link};

/// The packet error rates of the comparison.
pub(crate) const PERS: [f64; 3] = [0.0, 1e-3, 1e-2];

const BYTES: u64 = 10_000_000;
const ONE_WAY: Duration = Duration::from_millis(300);
/// A bandwidth-delay product of the round trip.
const QUEUE: u64 = 750_000;
/// ns-3's program gives a flow as long.
const LIMIT: Duration = Duration::from_secs(36_000);

/// Which losses the two sides meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Losses {
    /// Acknowledgements arrive.
    Data,
    /// Both directions lose.
    Both,
}

/// A pair at one packet error rate. Without errors there is no chance in a run, and there is one of each
/// side.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) pair: &'static str,
    pub(crate) per: f64,
    pub(crate) ours: Measured,
    pub(crate) ns3: Measured,
    /// Whether the 95% intervals of the goodputs overlap.
    pub(crate) overlap: Option<bool>,
    /// Our goodput over ns-3's in runs in which both lose the same packets, or none.
    pub(crate) ratio_with_same_losses: Option<Summary>,
}

/// What one side did in all its runs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Measured {
    pub(crate) goodput_bps: Summary,
    pub(crate) retransmissions: Summary,
    pub(crate) timeouts: Summary,
}

/// Compares the pairs at each packet error rate with `seeds` seeds.
pub(crate) fn compare(ns3: &Ns3, pairs: &[Pair], seeds: u64, losses: Losses) -> Result<Vec<Row>, Error> {
    let cases = pairs.iter().flat_map(|pair| PERS.map(|per| (pair, per)));
    cases.map(|(pair, per)| compare_one(ns3, pair, per, seeds, losses)).collect()
}

/// Our single flow with its link.
pub(crate) fn scenario(config: Config, per: f64, losses: Losses) -> Scenario {
    let per = Probability::new(per).expect("a probability");
    let back = if losses == Losses::Both { per } else { Probability::ZERO };
    let to = |per| direction(RATE, ONE_WAY, QUEUE, per);
    let mut scenario = one_link(to(per), to(back), LIMIT);
    scenario.flows.push(flow("flow", &[0], Some(BYTES), config));
    scenario
}

/// ns-3's single flow over a link that loses the packets which ours loses with this seed.
pub(crate) fn their_run_with_our_losses(
    ns3: &Ns3,
    pair: &Pair,
    per: f64,
    seed: u64,
    more: Option<String>,
) -> Result<SingleFlow, Error> {
    let lost = lost_packets(per, seed);
    let drop = (!lost.is_empty()).then(|| format!("--drop={}", lost.join(",")));
    their_run(ns3, pair, drop.into_iter().chain(more))
}

/// The runs of one seed.
struct Runs {
    ours: SingleFlow,
    ns3: SingleFlow,
    ratio_with_same_losses: Option<f64>,
}

fn compare_one(ns3: &Ns3, pair: &Pair, per: f64, seeds: u64, losses: Losses) -> Result<Row, Error> {
    let seeds = if per > 0.0 { seeds } else { 1 };
    let runs: Vec<Runs> = (1..=seeds)
        .into_par_iter()
        .map(|seed| run_both(ns3, pair, per, seed, losses))
        .collect::<Result<_, Error>>()?;
    let ours = measured(runs.iter().map(|runs| &runs.ours));
    let theirs = measured(runs.iter().map(|runs| &runs.ns3));
    let ratios: Vec<f64> = runs.iter().filter_map(|runs| runs.ratio_with_same_losses).collect();
    Ok(Row {
        pair: pair.name,
        per,
        overlap: ours.goodput_bps.overlaps(&theirs.goodput_bps),
        ours,
        ns3: theirs,
        ratio_with_same_losses: Summary::of(&ratios),
    })
}

fn run_both(ns3: &Ns3, pair: &Pair, per: f64, seed: u64, losses: Losses) -> Result<Runs, Error> {
    let ours = our_run(pair.ours(), per, seed, losses);
    let mut options = vec![format!("--per={per}"), format!("--seed={seed}")];
    if losses == Losses::Both {
        options.push(format!("--ack-per={per}"));
    }
    let theirs = their_run(ns3, pair, options)?;
    // ns-3 can be told which packets to lose in one direction only.
    let ratio_with_same_losses = match losses {
        Losses::Data => {
            let same = their_run_with_our_losses(ns3, pair, per, seed, None)?;
            Some(ours.goodput_bps / same.goodput_bps)
        }
        Losses::Both => None,
    };
    if !ours.complete || !theirs.complete {
        let run = format!("{}, PER {per}, seed {seed}", pair.name);
        return Err(format!("{run}: 10 MB did not arrive; give other seeds or leave this pair out"));
    }
    Ok(Runs { ours, ns3: theirs, ratio_with_same_losses })
}

fn our_run(config: Config, per: f64, seed: u64, losses: Losses) -> SingleFlow {
    let result = run(&scenario(config, per, losses), seed, &mut Unobserved);
    let flow = &result.flows[0];
    SingleFlow {
        goodput_bps: flow.goodput_bps,
        retransmissions: flow.retransmissions,
        timeouts: flow.timeouts,
        complete: flow.finished,
    }
}

fn their_run(ns3: &Ns3, pair: &Pair, options: impl IntoIterator<Item = String>) -> Result<SingleFlow, Error> {
    let options: Vec<String> = pair.ns3.iter().map(ToString::to_string).chain(options).collect();
    ns3.ask("single_flow", &options)
}

fn measured<'a>(runs: impl Iterator<Item = &'a SingleFlow> + Clone) -> Measured {
    let summary = |value: fn(&SingleFlow) -> f64| {
        let values: Vec<f64> = runs.clone().map(value).collect();
        Summary::of(&values).expect("finite values of one run or more")
    };
    Measured {
        goodput_bps: summary(|run| run.goodput_bps),
        retransmissions: summary(|run| run.retransmissions as f64),
        timeouts: summary(|run| run.timeouts as f64),
    }
}

/// The places of the packets that our link loses, counted from the SYN's 0: they depend on the seed alone, so
/// a flow of twice the length tells more of them than any sender will meet.
fn lost_packets(per: f64, seed: u64) -> Vec<String> {
    let mut scenario = scenario(as_ns3(), per, Losses::Data);
    scenario.flows[0].bytes = Some(2 * BYTES);
    let mut losses = LostPlaces::default();
    run(&scenario, seed, &mut losses);
    losses.places.iter().map(ToString::to_string).collect()
}

/// Notes which of the packets that are sent over the link are lost on it.
#[derive(Debug, Default)]
struct LostPlaces {
    sent: u64,
    places: Vec<u64>,
}

impl Observer for LostPlaces {
    fn watches_packets(&self) -> bool {
        true
    }

    fn packet(&mut self, offered: &OfferedPacket<'_>) {
        if !offered.forward || offered.fate == Fate::Drop(Cause::QueueFull) {
            return;
        }
        if matches!(offered.fate, Fate::Drop(_)) {
            self.places.push(self.sent);
        }
        self.sent += 1;
    }
}
