//! Split, snooped and protected flows together on one leg, on the kernel: who gets how much of it, and the
//! queue in front of the link.
//!
//! A flow of QUIC over protected legs is to have what a split one has, times the weight of the protected leg;
//! a snooped one, which nobody tells a rate, stays within the leg's share of cross traffic.

use std::time::Duration;

use bentpipe_units::{Probability, Rate};

use super::{Experiment, Lab, Load, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};
use crate::trial::{CrossTraffic, Flow, Trial};

pub(super) const LEG_SHARES: Experiment = Experiment {
    name: "leg-shares",
    title: "Split, snooped and protected flows together on one leg",
    source: "ours",
    plan: Plan::doubling(3),
    run: None,
    on_kernel: Some((3, kernel)),
};

const RATE: Rate = Rate::mbps(20);
const RTT: Duration = Duration::from_millis(600);
const PER: f64 = 0.001;
const LASTS: Duration = Duration::from_secs(90);
const QUICK: Duration = Duration::from_secs(45);
/// Slow start is over.
const WARMUP: Duration = Duration::from_secs(30);
/// Split downloads, and as many of QUIC over protected legs; beside them one is snooped.
const FLOWS: usize = 2;
/// The share of the snooped one: a fifth, what each of five flows would have.
const SNOOPED: f64 = 0.2;
/// Weights of the protected leg.
const WEIGHTS: [u32; 2] = [1, 2];

/// The claims' thresholds: of what the weight says; of the link above the share of cross traffic; of the
/// limit; the queue, seconds.
const OF_WEIGHT: f64 = 0.85;
const ABOVE_SHARE: f64 = 0.04;
const USED: f64 = 0.95;
const QUEUE_S: f64 = 0.03;

fn trial(lab: &Lab<'_>, weight: u32, seed: u64) -> Trial {
    let snooped = Flow { snooped: true, ..Flow::default() };
    Trial {
        flows: [vec![Flow::default(); FLOWS], vec![snooped]].concat(),
        cross_traffic: CrossTraffic {
            quic: FLOWS,
            protected: Some(weight),
            share: Probability::new(SNOOPED),
            ..CrossTraffic::default()
        },
        lasts: if lab.quick { QUICK } else { LASTS },
        warmup: WARMUP,
        ..Trial::of_a_minute(RATE, RTT, PER, "explicit", seed)
    }
}

/// What one run has measured: the payload of each kind of flow, and the link.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    split_bps: f64,
    snooped_bps: f64,
    protected_bps: f64,
    limit_bps: f64,
    queue_95_s: f64,
}

impl Run {
    fn of_limit(&self) -> f64 {
        (self.split_bps + self.snooped_bps + self.protected_bps) / self.limit_bps
    }

    fn snooped_share(&self) -> f64 {
        self.snooped_bps / self.limit_bps
    }
}

/// For each seed, both weights at the same time.
fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let jobs = lab.seeds().flat_map(|seed| {
        WEIGHTS.map(|weight| {
            let trial = trial(lab, weight, seed);
            move || {
                let measured = trial.run()?;
                let (split, snooped) = measured.goodputs_bps.split_at(FLOWS);
                Ok(Run {
                    split_bps: split.iter().sum(),
                    snooped_bps: snooped.iter().sum(),
                    protected_bps: measured.cross_traffic_bps.iter().sum(),
                    limit_bps: measured.limit_bps,
                    queue_95_s: crate::statistics::at_95(&measured.queue_s),
                })
            }
        })
    });
    Ok(output(&Runs(rows(
        lab.side_by_side(WEIGHTS.len(), Load::of_link(RATE).encrypted(), jobs.collect())?,
        WEIGHTS.len(),
    ))))
}

/// By seed, then by weight.
struct Runs(Vec<Vec<Run>>);

impl Runs {
    fn sample(&self, weight: usize, measure: fn(&Run) -> f64) -> Sample {
        over_seeds(self.0.iter().map(|runs| measure(&runs[weight])))
    }

    /// A test of the mean at both weights.
    fn at_both(&self, range: Range, measure: fn(&Run) -> f64) -> [crate::claim::Test; 2] {
        [0, 1].map(|at| range.of_mean(&self.sample(at, measure)).at(format!("weight {}", WEIGHTS[at])))
    }
}

fn output(runs: &Runs) -> Output {
    Output { claims: claims(runs), tables: vec![Part::new("shares", table(runs))], figures: Vec::new() }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let weights = WEIGHTS.iter().enumerate().map(|(at, &weight)| {
        let range = Range::between(OF_WEIGHT * f64::from(weight), f64::from(weight) / OF_WEIGHT);
        let [protected, split] = [|run: &Run| run.protected_bps, |run: &Run| run.split_bps];
        Claim::ours(format!(
            "With weight {weight}, two downloads of QUIC over protected legs have {weight} times as much as two split \
             ones, within 15%"
        ))
        .shown_in("times", 1.0, 2)
        .with(range.of_ratio(&runs.sample(at, protected), &runs.sample(at, split)))
    });
    let others = [
        Claim::ours("The snooped one has its share of 20% of the link or less, and at most 4% more")
            .shown_in("%", 0.01, 1)
            .with_all(runs.at_both(Range::at_most(SNOOPED + ABOVE_SHARE), Run::snooped_share)),
        Claim::ours("All together have 95% of the limit or more")
            .shown_in("%", 0.01, 1)
            .with_all(runs.at_both(Range::at_least(USED), Run::of_limit)),
        Claim::ours("The queue in front of the link is below 30 ms (95th percentile)")
            .shown_in("ms", 0.001, 0)
            .with_all(runs.at_both(Range::below(QUEUE_S), |run| run.queue_95_s)),
    ];
    weights.chain(others).collect()
}

fn table(runs: &Runs) -> Table {
    let columns = vec![
        Column::new("weight", "weight"),
        Column::new(format!("{FLOWS} split"), "split_goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("1 snooped", "snooped_goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new(format!("{FLOWS} of QUIC, protected"), "protected_goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("together, of the limit", "of_limit").shown_in("%", 0.01),
        Column::new("queue, 95%", "queue_95_s").shown_in("ms", 0.001),
    ];
    let mut table = Table::new("Payload that arrives, and the queue, from the 30th second on", columns);
    for (at, &weight) in WEIGHTS.iter().enumerate() {
        let cell = |measure, decimals| Cell::interval(Some(runs.sample(at, measure)), decimals);
        table.push(vec![
            Cell::Number(f64::from(weight), 0),
            cell(|run| run.split_bps, 2),
            cell(|run| run.snooped_bps, 2),
            cell(|run| run.protected_bps, 2),
            cell(Run::of_limit, 1),
            cell(|run| run.queue_95_s, 0),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Outcome;
    use crate::results::Plan;

    /// Three seeds of a link of 20 Mbit/s: the protected flows with so many times what the split ones have.
    fn runs(ratios: [f64; 2], snooped: f64, queue_95_s: f64) -> Runs {
        let run = |ratio: f64, seed: u64| {
            let rest = (0.98 - snooped) * 2e7 * (1.0 + 0.001 * seed as f64);
            Run {
                split_bps: rest / (1.0 + ratio),
                snooped_bps: snooped * 2e7,
                protected_bps: rest * ratio / (1.0 + ratio),
                limit_bps: 2e7,
                queue_95_s,
            }
        };
        Runs((1..=3).map(|seed| ratios.map(|ratio| run(ratio, seed)).into()).collect())
    }

    fn outcomes(runs: &Runs) -> Vec<Outcome> {
        claims(runs).iter().map(|claim| claim.judge(Plan::fixed(3).level()).outcome).collect()
    }

    #[test]
    fn each_weight_is_judged_by_itself() {
        use Outcome::{Agrees, Contradicts};
        assert_eq!(outcomes(&runs([0.95, 1.9], 0.15, 0.02)), [Agrees; 5]);
        let expected = [Contradicts, Contradicts, Contradicts, Agrees, Contradicts];
        assert_eq!(outcomes(&runs([0.5, 1.0], 0.4, 0.1)), expected);
    }

    #[test]
    fn the_table_has_a_row_for_each_weight() {
        let table = table(&runs([1.0, 2.0], 0.2, 0.02));
        assert_eq!(table.rows().len(), WEIGHTS.len());
        assert!(table.to_csv().lines().any(|line| line.starts_with("2,")), "{}", table.to_csv());
    }
}
