//! Which senders Snoop helps: the same download without it and with it, by the server's congestion control,
//! the queue in front of the satellite and the packet error rate, in both worlds.

#[cfg(test)]
mod tests;

use bentpipe_units::{ByteCount, Rate};

use super::lossy_link::kernel::Download;
use super::lossy_link::{Measured, Mitigation, RTT, SCENARIO, SenderCounts, TIME};
use super::{Experiment, Lab, Load, Output, Runs, lossy_link, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart, BarGroup};
use crate::results::{Part, Plan};
use crate::statistics::{Estimate, Sample};
use crate::table::{Cell, Column, Table};

pub(super) const SNOOP_SENDERS: Experiment = Experiment {
    name: "snoop-senders",
    title: "Which senders Snoop helps, by the queue in front of the satellite and its packet errors",
    source: "ours; Snoop: Balakrishnan, Seshan, Amir, Katz, MobiCom 1995",
    plan: Plan::doubling(8),
    run: Some(in_virtual_time),
    on_kernel: Some((3, on_the_kernel)),
};

/// The link's rate.
const RATE: Rate = Rate::mbps(10);
/// The queue in front of the satellite in bandwidth-delay products, and how figures write it.
const QUEUES: [(f64, &str); 2] = [(0.125, "1/8"), (1.0, "1")];
/// Packet error rates, each way.
const PERS: [f64; 3] = [0.0, 0.001, 0.01];
const NO_LOSS: f64 = PERS[0];
const ONE_PERCENT: f64 = PERS[2];
const COMPARED: [Mitigation; 2] = [Mitigation::EndToEnd, Mitigation::Snoop];
/// The share of its goodput without Snoop that every sender must keep.
const KEEPS: f64 = 0.9;
/// The factor by which the goodput of a loss-based sender must grow.
const GAINS: f64 = 3.0;
const MBIT: f64 = 1e6;
const MB: f64 = 1e6;

/// A run without Snoop and one with it, with the same seed.
type Pair = [Measured; 2];

/// A congestion control of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sender {
    name: &'static str,
    /// Its name in the kernel or in scenarios.
    key: &'static str,
    /// Whether Snoop is to multiply its goodput.
    must_gain: bool,
}

/// The congestion controls that the simulator has.
const SIMULATED: [Sender; 2] = [
    Sender { name: "NewReno", key: "newreno", must_gain: true },
    Sender { name: "CUBIC", key: "cubic", must_gain: true },
];
/// Those of the kernel.
const IN_KERNEL: [Sender; 3] = [
    Sender { name: "Reno", key: "reno", must_gain: true },
    Sender { name: "CUBIC", key: "cubic", must_gain: true },
    Sender { name: "BBR", key: "bbr", must_gain: false },
];

/// A sender with a queue and a packet error rate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Case {
    sender: Sender,
    /// In bandwidth-delay products.
    queue_bdps: f64,
    per: f64,
}

impl Case {
    /// The size of the queue.
    fn queue(&self) -> ByteCount {
        ByteCount::new((self.queue_bdps * RATE.bytes_in(RTT) as f64).round() as u64)
    }

    fn is_in_longest_queue(&self) -> bool {
        self.queue_bdps == QUEUES[QUEUES.len() - 1].0
    }
}

/// All cases: by sender, then by queue, then by packet error rate.
fn cases(senders: &[Sender]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &sender in senders {
        for (queue_bdps, _) in QUEUES {
            cases.extend(PERS.map(|per| Case { sender, queue_bdps, per }));
        }
    }
    cases
}

fn in_virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let cases = cases(&SIMULATED);
    let by_case = lab.sweep(&SCENARIO, &cases, &COMPARED, settings)?;
    let pairs = |runs: &Vec<Runs>| -> Vec<Pair> {
        let [without, with] = [0, 1].map(|with: usize| runs[with].results().map(lossy_link::measured));
        without.zip(with).map(|(without, with)| [without, with]).collect()
    };
    Ok(Comparison::of(&cases, &by_case.iter().map(pairs).collect::<Vec<_>>()).output())
}

fn settings(case: Case, mitigation: Mitigation) -> Vec<String> {
    let mut settings = lossy_link::settings(mitigation, case.per);
    settings.push(format!("tcp.host.congestion={}", case.sender.key));
    settings.push(format!("link.satellite.queue=\"{}B\"", case.queue().get()));
    settings
}

/// A download without Snoop and the one with it run at the same time; no others do, except in a quick look, so
/// that they do not disturb each other.
fn on_the_kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let cases = cases(&IN_KERNEL);
    let lasts = if lab.quick { TIME / 2 } else { TIME };
    let mut jobs = Vec::new();
    for case in &cases {
        for seed in lab.seeds() {
            for mitigation in COMPARED {
                let (sender, queue) = (case.sender.key, Some(case.queue()));
                let download = Download { mitigation, sender, queue, per: case.per, lasts, seed };
                jobs.push(move || download.measure());
            }
        }
    }
    let measured = lab.side_by_side(COMPARED.len(), Load::of_link(RATE), jobs)?;
    let pairs: Vec<Pair> = measured.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
    Ok(Comparison::of(&cases, &rows(pairs, lab.seeds().count())).output())
}

/// The measures of a case over the seeds, without Snoop and with it.
struct CaseSummary {
    case: Case,
    goodput: [Sample; 2],
    /// The most bytes that Snoop held at a time.
    held: Sample,
    /// `None` if no sender's socket has reported.
    retransmissions: [Option<Sample>; 2],
    timeouts: [Option<Sample>; 2],
}

impl CaseSummary {
    fn of(case: &Case, pairs: &[Pair]) -> Self {
        let goodput = |with: usize| over_seeds(pairs.iter().map(|pair| pair[with].goodput_bps));
        let counted = |with: usize, count: fn(SenderCounts) -> u64| {
            let reported = pairs.iter().filter_map(|pair| pair[with].sender);
            Sample::of(reported.map(|counts| count(counts) as f64).collect::<Vec<_>>())
        };
        Self {
            case: *case,
            goodput: [0, 1].map(goodput),
            held: over_seeds(pairs.iter().map(|[_, with]| with.held_bytes)),
            retransmissions: [0, 1].map(|with| counted(with, |counts| counts.retransmissions)),
            timeouts: [0, 1].map(|with| counted(with, |counts| counts.timeouts)),
        }
    }

    /// The goodput with Snoop as a multiple of that without it.
    fn gain(&self) -> Estimate {
        let [without, with] = &self.goodput;
        with.ratio_to(without)
    }
}

/// All cases in one world.
struct Comparison(Vec<CaseSummary>);

impl Comparison {
    fn of(cases: &[Case], runs: &[Vec<Pair>]) -> Self {
        Self(cases.iter().zip(runs).map(|(case, pairs)| CaseSummary::of(case, pairs)).collect())
    }

    fn output(&self) -> Output {
        let claims = vec![self.costs_nothing(), self.multiplies(), self.harms_nobody()];
        Output {
            claims,
            tables: vec![Part::new("goodput", self.goodputs()), Part::new("sender", self.sender_counts())],
            figures: vec![Part::new("goodput", self.chart())],
        }
    }

    fn costs_nothing(&self) -> Claim {
        let claim = "Without losses on the link no sender loses more than 10% by Snoop, at either queue";
        self.at_least(claim, KEEPS, |case| case.per == NO_LOSS)
    }

    fn multiplies(&self) -> Claim {
        let selected =
            |case: &Case| case.sender.must_gain && case.per == ONE_PERCENT && case.is_in_longest_queue();
        let senders: Vec<&str> = self.select(selected).map(|compared| compared.case.sender.name).collect();
        let senders = senders.join(" and ");
        let claim =
            format!("At PER 1% and a queue of one bandwidth-delay product {senders} gain 3 times or more");
        self.at_least(claim, GAINS, selected)
    }

    fn harms_nobody(&self) -> Claim {
        let claim = "At PER 1% no sender loses more than 10% by Snoop, at either queue";
        self.at_least(claim, KEEPS, |case| case.per == ONE_PERCENT)
    }

    fn select(&self, selected: impl Fn(&Case) -> bool) -> impl Iterator<Item = &CaseSummary> {
        self.0.iter().filter(move |compared| selected(&compared.case))
    }

    /// Whether the goodput with Snoop is so many times that without it, in all selected cases.
    fn at_least(&self, claim: impl Into<String>, times: f64, selected: impl Fn(&Case) -> bool) -> Claim {
        let tests = self.select(selected).map(|compared| {
            let [without, with] = &compared.goodput;
            Range::at_least(times).of_ratio(with, without).at(describe(&compared.case))
        });
        Claim::ours(claim).with_all(tests).noting("of the goodput without")
    }

    fn goodputs(&self) -> Table {
        let goodput =
            |name, key: &str| Column::new(name, format!("{key}_goodput_bps")).shown_in("Mbit/s", MBIT);
        let gain = Column::new("times", "gain");
        let held = Column::new("the most in Snoop's cache and queue", "held_bytes").shown_in("MB", MB);
        self.table(
            "Goodput over a minute",
            vec![goodput("without Snoop", "without"), goodput("with Snoop", "with"), gain, held],
            |compared| {
                let [without, with] = compared.goodput.each_ref().map(|value| Cell::interval(Some(value), 2));
                let gain = Cell::interval(Some(compared.gain()), 2);
                vec![without, with, gain, Cell::interval(Some(&compared.held), 2)]
            },
        )
    }

    fn sender_counts(&self) -> Table {
        let columns = [
            ("retransmissions without Snoop", "without_retransmissions"),
            ("with Snoop", "with_retransmissions"),
            ("timeouts without Snoop", "without_timeouts"),
            ("with Snoop", "with_timeouts"),
        ];
        let columns = columns.map(|(name, key)| Column::new(name, key)).to_vec();
        self.table("What the sender had to repair", columns, |compared| {
            let retransmissions =
                compared.retransmissions.each_ref().map(|value| Cell::interval(value.as_ref(), 0));
            let timeouts = compared.timeouts.each_ref().map(|value| Cell::interval(value.as_ref(), 1));
            retransmissions.into_iter().chain(timeouts).collect()
        })
    }

    /// A row for each case, which begins with the case.
    fn table(&self, title: &str, columns: Vec<Column>, cells: impl Fn(&CaseSummary) -> Vec<Cell>) -> Table {
        let case = [
            Column::new("sender", "sender"),
            Column::new("queue, BDPs", "queue_bdps"),
            Column::new("PER", "per").shown_in("%", 0.01),
        ];
        let mut table = Table::new(title, case.into_iter().chain(columns).collect());
        for compared in &self.0 {
            let Case { sender, queue_bdps, per } = compared.case;
            let case = [Cell::text(sender.name), Cell::Number(queue_bdps, 3), Cell::Number(per, 1)];
            table.push(case.into_iter().chain(cells(compared)).collect());
        }
        table
    }

    /// For each queue and packet error rate, each sender without Snoop and with it.
    fn chart(&self) -> BarChart {
        let situations =
            QUEUES.iter().flat_map(|(_, queue)| PERS.map(|per| format!("{queue} BDP, {} %", per * 100.0)));
        let chart = BarChart::new(
            "A minute of a download, 10 Mbit/s, 600 ms",
            Axis::dimensionless("queue in front of the satellite, packet error rate"),
            Axis::new("goodput", "Mbit/s"),
            situations,
        );
        self.0.chunks(QUEUES.len() * PERS.len()).fold(chart, |chart, of_sender| {
            let name = of_sender[0].case.sender.name;
            let bars = |with: usize| {
                of_sender.iter().map(move |compared| Some(compared.goodput[with].estimate().in_unit(MBIT)))
            };
            chart.with(BarGroup::new(name, bars(0))).with(BarGroup::new(format!("{name}, Snoop"), bars(1)))
        })
    }
}

/// `CUBIC (1/8 BDP)`.
fn describe(case: &Case) -> String {
    let queue = QUEUES.iter().find(|(bdps, _)| *bdps == case.queue_bdps).map_or("?", |(_, name)| name);
    format!("{} ({queue} BDP)", case.sender.name)
}
