//! One flow of 10 MB over 10 Mbit/s and 300 ms one way: goodput, retransmissions, timeouts, side by side.

use std::time::Duration;

use bentpipe_lab::statistics::Summary;
use bentpipe_lab::table::{Cell, Column, Table};
use bentpipe_link::Fate;
use bentpipe_sim::{Observer, Passage, Scenario, Unobserved, run};
use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::{Algorithm, Components};
use bentpipe_units::Probability;
use rayon::prelude::*;
use serde::Serialize;

use crate::ns3::{Error, Ns3, SingleFlow};
use crate::scene::{RATE, as_ns3, direction, flow, one_link};

const BYTES: u64 = 10_000_000;
const ONE_WAY: Duration = Duration::from_millis(300);
/// A bandwidth-delay product of the round trip.
const QUEUE: u64 = 750_000;
/// ns-3's programs give a flow as long.
const LIMIT: Duration = Duration::from_secs(36_000);
const PERS: [f64; 3] = [0.0, 1e-3, 1e-2];

/// A pair of senders that is compared.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    /// What both are.
    pub(crate) name: &'static str,
    /// How our sender differs from [`as_ns3`].
    pub(crate) ours: fn(Config) -> Config,
    /// ns-3's options.
    pub(crate) ns3: &'static [&'static str],
}

fn every_segment(config: Config) -> Config {
    Config { delayed_ack: None, ..config }
}

fn long_floor(mut config: Config) -> Config {
    config.rto.min = Duration::from_secs(3);
    config
}

fn cubic(config: Config) -> Config {
    Config { congestion: Algorithm::Cubic, ..config }
}

/// RFC 5681 without byte counting: each acknowledgement opens slow start's window by one segment at the most.
pub(crate) fn acks_counted(config: Config) -> Config {
    Config { byte_counting_limit: Some(1), ..config }
}

fn hybla(config: Config, components: Components) -> Config {
    Config { congestion: Algorithm::Hybla(components), ..config }
}

/// Hybla at a ρ of 24, beside what ns-3 calls so.
pub(crate) const HYBLA: &[Pair] = &[
    Pair {
        name: "Hybla as bentpipe has it",
        ours: |config| hybla(config, Components::ALL),
        ns3: &["--congestion=hybla"],
    },
    Pair {
        name: "Hybla as published",
        ours: |config| hybla(config, Components::PUBLISHED),
        ns3: &["--congestion=hybla"],
    },
    Pair {
        name: "Hybla with its growth alone",
        ours: |config| hybla(config, Components { pacing: false, hoe: false, ..Components::PUBLISHED }),
        ns3: &["--congestion=hybla"],
    },
    Pair {
        name: "Hybla with a ρ of 1: NewReno",
        ours: |config| {
            let rho = Components { rho: false, pacing: false, hoe: false, ..Components::PUBLISHED };
            acks_counted(hybla(config, rho))
        },
        ns3: &["--congestion=hybla"],
    },
];

/// The pairs that do the same by their specifications.
pub(crate) const PAIRS: &[Pair] = &[
    Pair { name: "NewReno, bytes counted", ours: |config| config, ns3: &["--congestion=linux-reno"] },
    Pair {
        name: "NewReno, every segment acknowledged",
        ours: every_segment,
        ns3: &["--congestion=newreno", "--delack=1"],
    },
    Pair { name: "NewReno, ACKs counted", ours: acks_counted, ns3: &["--congestion=newreno"] },
    Pair { name: "CUBIC", ours: cubic, ns3: &["--congestion=cubic"] },
    Pair {
        name: "NewReno, bytes counted, RTO at least 3 s",
        ours: long_floor,
        ns3: &["--congestion=linux-reno", "--rto-min=3s"],
    },
    Pair {
        name: "NewReno, every segment acknowledged, RTO at least 3 s",
        ours: |config| long_floor(every_segment(config)),
        ns3: &["--congestion=newreno", "--delack=1", "--rto-min=3s"],
    },
    Pair {
        name: "CUBIC, RTO at least 3 s",
        ours: |config| long_floor(cubic(config)),
        ns3: &["--congestion=cubic", "--rto-min=3s"],
    },
    Pair {
        name: "CUBIC, RFC 6675 recovery",
        ours: |config| long_floor(cubic(config)),
        ns3: &["--congestion=cubic", "--rto-min=3s", "--recovery=classic"],
    },
];

/// What one side did in all its runs.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Measured {
    goodput_bps: Summary,
    retransmissions: Summary,
    timeouts: Summary,
}

/// A pair at one packet error rate.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pair: &'static str,
    per: f64,
    ours: Measured,
    ns3: Measured,
    /// Whether the 95% intervals of the goodputs overlap.
    overlap: Option<bool>,
    /// Our goodput over ns-3's, both sides losing the same packets: the mean over the seeds and its interval.
    same_losses: Option<Summary>,
}

/// Which losses the two sides meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Losses {
    /// Acknowledgements arrive.
    Data,
    /// Both directions lose.
    Both,
}

/// Compares all pairs with `seeds` seeds.
pub(crate) fn compare(ns3: &Ns3, pairs: &[Pair], seeds: u64, losses: Losses) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for pair in pairs {
        for per in PERS {
            rows.push(compare_one(ns3, pair, per, seeds, losses)?);
        }
    }
    Ok(rows)
}

fn compare_one(ns3: &Ns3, pair: &Pair, per: f64, seeds: u64, losses: Losses) -> Result<Row, Error> {
    let config = (pair.ours)(as_ns3());
    let runs: Vec<(SingleFlow, SingleFlow, Option<f64>)> = (1..=seeds)
        .into_par_iter()
        .map(|seed| {
            let ours = our_run(config, per, seed, losses);
            let theirs = their_run(ns3, pair, per, seed, losses)?;
            let ratio = match (losses, per > 0.0) {
                (Losses::Data, true) => {
                    let same = their_run_with(ns3, pair, &lost_packets(per, seed))?;
                    Some(ours.goodput_bps / same.goodput_bps)
                }
                _ => None,
            };
            Ok((ours, theirs, ratio))
        })
        .collect::<Result<_, Error>>()?;
    let ours = measured(runs.iter().map(|run| &run.0));
    let theirs = measured(runs.iter().map(|run| &run.1));
    let ratios: Vec<f64> = runs.iter().filter_map(|run| run.2).collect();
    Ok(Row {
        pair: pair.name,
        per,
        overlap: ours.goodput_bps.overlaps(&theirs.goodput_bps),
        ours,
        ns3: theirs,
        same_losses: Summary::of(&ratios),
    })
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

pub(crate) fn scenario(config: Config, per: f64, bytes: u64, losses: Losses) -> Scenario {
    let per = Probability::new(per).expect("a probability");
    let back = if losses == Losses::Both { per } else { Probability::ZERO };
    let to = |per| direction(RATE, ONE_WAY, QUEUE, per);
    let mut scenario = one_link(to(per), to(back), LIMIT);
    scenario.flows.push(flow("flow", &[0], Some(bytes), config));
    scenario
}

fn our_run(config: Config, per: f64, seed: u64, losses: Losses) -> SingleFlow {
    let result = run(&scenario(config, per, BYTES, losses), seed, &mut Unobserved);
    let flow = &result.flows[0];
    SingleFlow {
        goodput_bps: flow.goodput_bps,
        retransmissions: flow.retransmissions,
        timeouts: flow.timeouts,
        complete: flow.complete,
    }
}

fn their_run(ns3: &Ns3, pair: &Pair, per: f64, seed: u64, losses: Losses) -> Result<SingleFlow, Error> {
    let mut options = vec![format!("--per={per}"), format!("--seed={seed}")];
    if losses == Losses::Both {
        options.push(format!("--ack-per={per}"));
    }
    options.extend(pair.ns3.iter().map(ToString::to_string));
    ns3.ask("single_flow", &options)
}

/// A run in which the link loses the packets of these places, counted from the SYN's 0.
fn their_run_with(ns3: &Ns3, pair: &Pair, lost: &[String]) -> Result<SingleFlow, Error> {
    let mut options: Vec<String> = pair.ns3.iter().map(ToString::to_string).collect();
    if !lost.is_empty() {
        options.push(format!("--drop={}", lost.join(",")));
    }
    ns3.ask("single_flow", &options)
}

/// The places of the packets that our link loses with this seed, whoever sends them: more than a flow of 10 MB has.
pub(crate) fn lost_packets(per: f64, seed: u64) -> Vec<String> {
    let mut losses = LostPlaces::default();
    run(&scenario(as_ns3(), per, 2 * BYTES, Losses::Data), seed, &mut losses);
    losses.places.iter().map(ToString::to_string).collect()
}

/// Notes which of the packets that cross the link are lost on it.
#[derive(Debug, Default)]
struct LostPlaces {
    crossed: u64,
    places: Vec<u64>,
}

impl Observer for LostPlaces {
    fn watches_packets(&self) -> bool {
        true
    }

    fn packet(&mut self, passage: &Passage<'_>) {
        match passage.fate {
            _ if !passage.forward => return,
            Fate::Drop(bentpipe_link::Cause::QueueFull) => return,
            Fate::Drop(_) => self.places.push(self.crossed),
            Fate::Deliver { .. } => {}
        }
        self.crossed += 1;
    }
}

/// The rows for people.
pub(crate) fn table(rows: &[Row], title: &str) -> Table {
    let megabits = |name: &str, key: &str| Column::new(name, key).shown_in("Mbit/s", 1e6);
    let mut table = Table::new(
        title,
        vec![
            Column::new("sender", "sender"),
            Column::new("PER", "per"),
            megabits("goodput, ours", "ours_goodput_bps"),
            megabits("ns-3", "ns3_goodput_bps"),
            Column::new("overlap", "overlap"),
            Column::new("ours / ns-3, same losses", "same_losses"),
            Column::new("sent again, ours", "ours_retransmissions"),
            Column::new("ns-3", "ns3_retransmissions"),
            Column::new("timeouts, ours", "ours_timeouts"),
            Column::new("ns-3", "ns3_timeouts"),
        ],
    );
    for row in rows {
        table.push(vec![
            Cell::text(row.pair),
            Cell::text(format!("{:e}", row.per)),
            Cell::interval(Some(row.ours.goodput_bps), 3),
            Cell::interval(Some(row.ns3.goodput_bps), 3),
            Cell::text(match row.overlap {
                Some(true) => "yes",
                Some(false) => "no",
                None => "–",
            }),
            Cell::interval(row.same_losses, 3),
            Cell::interval(Some(row.ours.retransmissions), 1),
            Cell::interval(Some(row.ns3.retransmissions), 1),
            Cell::interval(Some(row.ours.timeouts), 1),
            Cell::interval(Some(row.ns3.timeouts), 1),
        ]);
    }
    table
}
