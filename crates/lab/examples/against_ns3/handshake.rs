//! Up to which delay does a connection come about, and does 1 kB get through?

use std::time::Duration;

use bentpipe_lab::table::{Cell, Column, Table};
use bentpipe_sim::{Unobserved, run};
use bentpipe_tcp::{Config, SynSchedule};
use bentpipe_units::Probability;
use serde::Serialize;

use crate::ns3::{self, Error, Ns3};
use crate::scene::{RATE, as_ns3, direction, flow, one_link};

/// One-way delays, seconds.
const DELAYS: std::ops::RangeInclusive<u64> = 1..=60;
const BYTES: u64 = 1000;
const QUEUE: u64 = 1_000_000;
/// Virtual time after which nothing comes any more.
const LIMIT: Duration = Duration::from_secs(3600);

/// A way of repeating SYNs, and over which delays it connects.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Reach {
    name: &'static str,
    /// One-way delays at which the kilobyte arrived, whole seconds.
    arrived_s: Vec<u64>,
    /// Up to the largest of them every delay works.
    monotone: bool,
    /// SYNs and their answers sent at the largest of them.
    syns: Option<u64>,
}

/// Ours with the schedules of the stacks, and ns-3.
pub(crate) fn compare(ns3: &Ns3) -> Result<Vec<Reach>, Error> {
    let long = SynSchedule { waits: Some(12), ..SynSchedule::NS };
    let ways = [
        ("ours, Linux' schedule", Config::linux()),
        ("ours, RFC 6298", Config { syn: SynSchedule::RFC6298, syn_ack: SynSchedule::RFC6298, ..as_ns3() }),
        ("ours, ns-3's schedule (3 s, 6 SYNs)", as_ns3()),
        ("ours, 12 SYNs", Config { syn: long, syn_ack: long, ..as_ns3() }),
        ("ours, SYNs for ever", Config { syn: SynSchedule::NS, syn_ack: SynSchedule::NS, ..as_ns3() }),
    ];
    let mut reaches: Vec<Reach> = ways
        .into_iter()
        .map(|(name, config)| Reach::of(name, DELAYS.map(|delay| ours(config, delay))))
        .collect();
    for (name, options) in
        [("ns-3, 6 SYNs", vec![]), ("ns-3, 12 SYNs", vec!["--ns3::TcpSocket::ConnCount=12".to_owned()])]
    {
        let answers: Vec<ns3::Handshake> = ns3.ask("handshake", &options)?;
        let outcome = |answer: ns3::Handshake| Outcome {
            one_way_s: answer.one_way_s,
            arrived: answer.delivered,
            syns: answer.syns + answer.syn_acks,
        };
        reaches.push(Reach::of(name, answers.into_iter().map(outcome)));
    }
    Ok(reaches)
}

struct Outcome {
    one_way_s: u64,
    arrived: bool,
    syns: u64,
}

fn ours(config: Config, one_way_s: u64) -> Outcome {
    let direction = direction(RATE, Duration::from_secs(one_way_s), QUEUE, Probability::ZERO);
    let mut scenario = one_link(direction.clone(), direction, LIMIT);
    scenario.flows.push(flow("flow", &[0], Some(BYTES), config));
    let flow = run(&scenario, 1, &mut Unobserved).flows.remove(0);
    Outcome { one_way_s, arrived: flow.bytes == BYTES, syns: flow.legs[0].syns.unwrap_or_default() }
}

impl Reach {
    fn of(name: &'static str, outcomes: impl Iterator<Item = Outcome>) -> Self {
        let arrived: Vec<Outcome> = outcomes.filter(|outcome| outcome.arrived).collect();
        let arrived_s: Vec<u64> = arrived.iter().map(|outcome| outcome.one_way_s).collect();
        Reach {
            name,
            monotone: arrived_s.iter().copied().eq(DELAYS.take(arrived_s.len())),
            syns: arrived.last().map(|outcome| outcome.syns),
            arrived_s,
        }
    }

    /// `1 to 22, 47 to 60`.
    fn spans(&self) -> String {
        let chunks = self.arrived_s.chunk_by(|one, next| one + 1 == *next);
        let spans: Vec<String> =
            chunks.map(|chunk| format!("{} to {}", chunk[0], chunk[chunk.len() - 1])).collect();
        spans.join(", ")
    }
}

pub(crate) fn table(reaches: &[Reach]) -> Table {
    let mut table = Table::new(
        "One-way delays of 1 to 60 s over which 1 kB gets through",
        vec![
            Column::new("SYNs", "schedule"),
            Column::new("one-way delays, s", "one_way_s"),
            Column::new("without a gap", "monotone"),
            Column::new("SYNs and answers at the largest", "syns"),
        ],
    );
    for reach in reaches {
        table.push(vec![
            Cell::text(reach.name),
            Cell::text(reach.spans()),
            Cell::text(if reach.monotone { "yes" } else { "no" }),
            reach.syns.map_or(Cell::Missing, |syns| Cell::Number(syns as f64, 0)),
        ]);
    }
    table
}
