//! What one box does for QUIC without a peer: it shares the leg, and keeps the queue short by signalling
//! early. It repairs nothing. On the kernel, beside split downloads.

use std::time::Duration;

use bentpipe_units::Rate;

use super::{Experiment, Lab, Load, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};
use crate::trial::{CrossTraffic, Flow, Measured, Trial};

pub(super) const QUIC_ONE_BOX: Experiment = Experiment {
    name: "quic-one-box",
    title: "Two downloads by QUIC beside two by TCP over 10 Mbit/s and 600 ms, with one box and without",
    source: "ours",
    plan: Plan::doubling(3),
    run: None,
    on_kernel: Some((3, kernel)),
};

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const LASTS: Duration = Duration::from_secs(60);
const QUICK: Duration = Duration::from_secs(30);
/// Slow start and what it overfills are over.
const WARMUP: Duration = Duration::from_secs(20);
/// Downloads of each kind.
const FLOWS: usize = 2;
const PERS: [f64; 2] = [0.0, 0.01];

/// The claims' thresholds: the queue, seconds; of the half that QUIC may have; of the limit.
const QUEUE_S: f64 = 0.05;
const OF_HALF: f64 = 0.8;
const OF_HALF_WITH_LOSSES: f64 = 0.25;
const USED_WITH_LOSSES: f64 = 0.85;

/// What is at the near end of the link.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scheme {
    name: &'static str,
    /// `cross_traffic_aqm` of a box that splits TCP; `None`: there is no box, and TCP has CUBIC.
    aqm: Option<&'static str>,
}

const SCHEMES: [Scheme; 4] = [
    Scheme { name: "no box", aqm: None },
    Scheme { name: "one box, no AQM", aqm: Some("off") },
    Scheme { name: "one box, marks", aqm: Some("mark") },
    Scheme { name: "one box, drops", aqm: Some("drop") },
];
/// The default.
const MARKS: usize = 2;

fn trial(lab: &Lab<'_>, scheme: Scheme, per: f64, seed: u64) -> Trial {
    let aqm = scheme.aqm.map(str::to_owned);
    let congestion = if scheme.aqm.is_some() { "explicit" } else { "cubic" };
    Trial {
        split: scheme.aqm.is_some(),
        flows: vec![Flow::default(); FLOWS],
        cross_traffic: CrossTraffic { quic: FLOWS, aqm, ..CrossTraffic::default() },
        lasts: if lab.quick { QUICK } else { LASTS },
        warmup: WARMUP,
        ..Trial::of_a_minute(RATE, RTT, per, congestion, seed)
    }
}

/// What one run has measured.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    tcp_bps: f64,
    quic_bps: f64,
    limit_bps: f64,
    queue_95_s: f64,
}

impl From<Measured> for Run {
    fn from(measured: Measured) -> Self {
        Self {
            tcp_bps: measured.goodputs_bps.iter().sum(),
            quic_bps: measured.cross_traffic_bps.iter().sum(),
            limit_bps: measured.limit_bps,
            queue_95_s: crate::statistics::at_95(&measured.queue_s),
        }
    }
}

impl Run {
    fn of_half(&self) -> f64 {
        self.quic_bps / (self.limit_bps / 2.0)
    }

    fn of_limit(&self) -> f64 {
        (self.tcp_bps + self.quic_bps) / self.limit_bps
    }
}

/// For each packet error rate and seed, all schemes at the same time.
fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let jobs = PERS.iter().flat_map(|&per| {
        lab.seeds().flat_map(move |seed| {
            SCHEMES.map(|scheme| {
                let trial = trial(lab, scheme, per, seed);
                move || Ok(Run::from(trial.run()?))
            })
        })
    });
    let by_seed = rows(
        lab.side_by_side(SCHEMES.len(), Load::of_link(RATE).encrypted(), jobs.collect())?,
        SCHEMES.len(),
    );
    Ok(output(&Runs(rows(by_seed, lab.seeds().count()))))
}

/// By packet error rate, seed and scheme.
struct Runs(Vec<Vec<Vec<Run>>>);

impl Runs {
    fn sample(&self, per: usize, scheme: usize, measure: fn(&Run) -> f64) -> Sample {
        over_seeds(self.0[per].iter().map(|schemes| measure(&schemes[scheme])))
    }
}

fn output(runs: &Runs) -> Output {
    Output { claims: claims(runs), tables: vec![Part::new("goodput", table(runs))], figures: Vec::new() }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let [clean, lossy] = [0, 1];
    let percent = |claim: Claim| claim.shown_in("%", 0.01, 1);
    vec![
        Claim::ours("Where nothing is lost, a box that marks keeps the queue below 50 ms (95th percentile)")
            .shown_in("ms", 0.001, 0)
            .with(Range::below(QUEUE_S).of_mean(&runs.sample(clean, MARKS, |run| run.queue_95_s)))
            .noting(format!(
                "without a box {:.0} ms",
                1e3 * runs.sample(clean, 0, |run| run.queue_95_s).mean()
            )),
        percent(Claim::ours("Where nothing is lost, QUIC has 80% or more of its half beside split TCP"))
            .with(Range::at_least(OF_HALF).of_mean(&runs.sample(clean, MARKS, Run::of_half))),
        percent(Claim::ours("At PER 1% one box is no help to QUIC: it has less than 25% of its half"))
            .with(Range::below(OF_HALF_WITH_LOSSES).of_mean(&runs.sample(lossy, MARKS, Run::of_half)))
            .noting(format!("without a box {:.1}%", 100.0 * runs.sample(lossy, 0, Run::of_half).mean())),
        percent(Claim::ours("At PER 1% split TCP takes what QUIC leaves: together 85% of the limit or more"))
            .with(Range::at_least(USED_WITH_LOSSES).of_mean(&runs.sample(lossy, MARKS, Run::of_limit))),
    ]
}

fn table(runs: &Runs) -> Table {
    let columns = vec![
        Column::new("PER", "per").shown_in("%", 0.01),
        Column::new("", "case"),
        Column::new(format!("{FLOWS} by TCP"), "tcp_goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new(format!("{FLOWS} by QUIC"), "quic_goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("together, of the limit", "of_limit").shown_in("%", 0.01),
        Column::new("queue, 95%", "queue_95_s").shown_in("ms", 0.001),
    ];
    let mut table = Table::new("Payload that arrives, and the queue, from the 20th second on", columns);
    for (at, &per) in PERS.iter().enumerate() {
        for (index, scheme) in SCHEMES.iter().enumerate() {
            let cell = |measure, decimals| Cell::interval(Some(runs.sample(at, index, measure)), decimals);
            table.push(vec![
                Cell::Number(per, 0),
                Cell::text(scheme.name),
                cell(|run| run.tcp_bps, 2),
                cell(|run| run.quic_bps, 2),
                cell(Run::of_limit, 1),
                cell(|run| run.queue_95_s, 0),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Outcome;
    use crate::results::Plan;

    /// Three seeds: QUIC with this part of the link in the scheme that marks, and TCP with the rest of 90%.
    fn runs(quic: [f64; 2], queue_95_s: f64) -> Runs {
        let run = |quic: f64, seed: f64| Run {
            tcp_bps: 1e7 * (0.9 - quic) * (1.0 + 0.001 * seed),
            quic_bps: 1e7 * quic * (1.0 + 0.001 * seed),
            limit_bps: 1e7,
            queue_95_s,
        };
        let schemes = |quic: f64, seed: f64| {
            (0..SCHEMES.len()).map(|at| run(if at == MARKS { quic } else { 0.3 }, seed)).collect()
        };
        Runs(quic.map(|quic| [1.0, 2.0, 3.0].map(|seed| schemes(quic, seed)).into()).into())
    }

    #[test]
    fn a_box_that_repaired_would_contradict_the_claim_that_it_does_not() {
        use Outcome::{Agrees, Contradicts};
        let outcomes = |runs: &Runs| -> Vec<Outcome> {
            claims(runs).iter().map(|claim| claim.judge(Plan::fixed(3).level()).outcome).collect()
        };
        assert_eq!(outcomes(&runs([0.45, 0.1], 0.03)), [Agrees; 4]);
        assert_eq!(outcomes(&runs([0.3, 0.4], 0.06)), [Contradicts, Contradicts, Contradicts, Agrees]);
    }

    #[test]
    fn the_table_has_a_row_for_each_scheme_and_rate_of_errors() {
        let table = table(&runs([0.45, 0.1], 0.03));
        assert_eq!(table.rows().len(), PERS.len() * SCHEMES.len());
        assert!(table.to_csv().lines().any(|line| line.contains("0.01,") && line.contains("one box, marks")));
    }
}
