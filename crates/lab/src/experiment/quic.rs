//! QUIC across a geostationary link that loses packets, end to end and over protected legs, on the kernel:
//! quinn with CUBIC and with BBR.

use std::time::Duration;

use bentpipe_units::{Probability, Rate};

use super::{Experiment, Lab, Load, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart, BarGroup};
use crate::quic::{self, Congestion};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};
use crate::unsplit::{Channel, Class, Crossing, Measured};

pub(super) const QUIC: Experiment = Experiment {
    name: "quic",
    title: "QUIC over 10 Mbit/s and 600 ms, end to end and over protected legs, by what the link loses",
    source: "ours",
    plan: Plan::doubling(3),
    run: None,
    on_kernel: Some((3, kernel)),
};

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const QUICK: Duration = Duration::from_secs(15);

/// The claims' thresholds: of the limit, and of what CUBIC has end to end where nothing is lost.
const AT_1_PERCENT: f64 = 0.85;
const AT_5_PERCENT: f64 = 0.7;
const WITH_BURSTS: f64 = 0.7;
const WITHOUT_LOSS: f64 = 0.98;

/// How QUIC crosses the link.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scheme {
    name: &'static str,
    congestion: Congestion,
    protect: Option<Class>,
}

const SCHEMES: [Scheme; 4] = [
    Scheme { name: "CUBIC, end to end", congestion: Congestion::Cubic, protect: None },
    Scheme { name: "CUBIC, protected", congestion: Congestion::Cubic, protect: Some(Class::Auto) },
    Scheme { name: "BBR, end to end", congestion: Congestion::Bbr, protect: None },
    Scheme { name: "BBR, protected", congestion: Congestion::Bbr, protect: Some(Class::Auto) },
];
const END_TO_END: usize = 0;
const PROTECTED: usize = 1;

/// What the link loses, each way; of bursts the share and the mean length in packets.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Losses {
    Errors(f64),
    Bursts(f64, f64),
}

const LOSSES: [Losses; 4] =
    [Losses::Errors(0.0), Losses::Errors(0.01), Losses::Errors(0.05), Losses::Bursts(0.01, 20.0)];
/// Their places in the list.
const NONE: usize = 0;
const ONE: usize = 1;
const FIVE: usize = 2;
const BURSTS: usize = 3;

impl Losses {
    fn name(self) -> String {
        match self {
            Self::Errors(0.0) => "none".into(),
            Self::Errors(per) => format!("{:.0}%", 100.0 * per),
            Self::Bursts(loss, packets) => format!("{:.0}%, bursts of {packets:.0}", 100.0 * loss),
        }
    }

    fn channel(self) -> Channel {
        let probability = |value| Probability::new(value).expect("a part of one");
        match self {
            Self::Errors(per) => Channel::Errors(probability(per)),
            Self::Bursts(loss, packets) => Channel::Bursts { loss: probability(loss), packets },
        }
    }
}

fn crossing(lab: &Lab<'_>, losses: Losses, scheme: Scheme, seed: u64) -> Crossing {
    let crossing = Crossing::of_a_minute(RATE, RTT, losses.channel(), seed);
    let lasts = if lab.quick { QUICK } else { crossing.lasts };
    Crossing { protect: scheme.protect, lasts, ..crossing }
}

/// For each channel and seed, all schemes at the same time.
fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let jobs = LOSSES.iter().flat_map(|&losses| {
        lab.seeds().flat_map(move |seed| {
            SCHEMES.map(|scheme| {
                let crossing = crossing(lab, losses, scheme, seed);
                move || quic::cross(&crossing, scheme.congestion)
            })
        })
    });
    let measured = lab.side_by_side(SCHEMES.len(), Load::of_link(RATE).encrypted(), jobs.collect())?;
    let by_seed = rows(measured, SCHEMES.len());
    Ok(output(&Runs(rows(by_seed, lab.seeds().count()))))
}

/// By channel, seed and scheme.
struct Runs(Vec<Vec<Vec<Measured>>>);

impl Runs {
    fn sample(&self, losses: usize, scheme: usize, measure: impl Fn(&Measured) -> f64) -> Sample {
        over_seeds(self.0[losses].iter().map(|schemes| measure(&schemes[scheme])))
    }

    fn all(&self) -> impl Iterator<Item = &Measured> {
        self.0.iter().flatten().flatten()
    }
}

fn output(runs: &Runs) -> Output {
    Output {
        claims: claims(runs),
        tables: vec![Part::new("goodput", table(runs))],
        figures: vec![Part::new("goodput", chart(runs))],
    }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let of_limit = |losses: usize, least: f64| {
        let share = runs.sample(losses, PROTECTED, Measured::of_limit);
        let others = SCHEMES.iter().enumerate().filter(|(scheme, _)| *scheme != PROTECTED);
        let others = others.map(|(scheme, Scheme { name, .. })| {
            format!("{name} {:.1}%", 100.0 * runs.sample(losses, scheme, Measured::of_limit).mean())
        });
        Claim::ours(format!(
            "Losses {}: CUBIC over protected legs has {:.0}% of the limit or more",
            LOSSES[losses].name(),
            100.0 * least
        ))
        .shown_in("%", 0.01, 1)
        .with(Range::at_least(least).of_mean(&share))
        .noting(others.collect::<Vec<_>>().join(", "))
    };
    let [protected, end_to_end] =
        [PROTECTED, END_TO_END].map(|scheme| runs.sample(NONE, scheme, |run| run.goodput_bps));
    let cost = Claim::ours("Where nothing is lost, protected legs cost CUBIC 2% or less")
        .shown_in("times", 1.0, 3)
        .with(Range::at_least(WITHOUT_LOSS).of_ratio(&protected, &end_to_end));
    let intact = runs.all().map(|run| f64::from(u8::from(run.intact))).collect();
    let intact = Claim::ours("What arrives is what was sent, in every run (SHA-256)")
        .shown_in("of 1", 1.0, 0)
        .with(Range::at_least(1.0).of_each(intact));
    vec![
        of_limit(ONE, AT_1_PERCENT),
        of_limit(FIVE, AT_5_PERCENT),
        of_limit(BURSTS, WITH_BURSTS),
        cost,
        intact,
    ]
}

fn table(runs: &Runs) -> Table {
    let columns = vec![
        Column::new("losses", "losses"),
        Column::new("", "case"),
        Column::new("goodput", "goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("of the limit", "of_limit").shown_in("%", 0.01),
        Column::new("queue, 95%", "queue_95_s").shown_in("ms", 0.001),
        Column::new("round trip beyond the link's, 95%", "excess_95_s").shown_in("ms", 0.001),
        Column::new("offered to the link", "offered").shown_in("%", 0.01),
    ];
    let mut table = Table::new("QUIC across the link, with its start", columns);
    for (at, losses) in LOSSES.iter().enumerate() {
        for (index, scheme) in SCHEMES.iter().enumerate() {
            let cell = |measure: fn(&Measured) -> f64, decimals| {
                Cell::interval(Some(runs.sample(at, index, measure)), decimals)
            };
            table.push(vec![
                Cell::text(losses.name()),
                Cell::text(scheme.name),
                cell(|run| run.goodput_bps, 2),
                cell(Measured::of_limit, 1),
                cell(Measured::queue_95_s, 0),
                cell(|run| run.excess_95_s().unwrap_or_default(), 0),
                cell(|run| run.offered, 1),
            ]);
        }
    }
    table
}

fn chart(runs: &Runs) -> BarChart {
    let chart = BarChart::new(
        "QUIC over 10 Mbit/s and 600 ms",
        Axis::dimensionless("losses, each way"),
        Axis::new("goodput, of the limit", "%"),
        LOSSES.map(Losses::name),
    );
    SCHEMES.iter().enumerate().fold(chart, |chart, (index, scheme)| {
        let share = |at| runs.sample(at, index, Measured::of_limit).estimate().in_unit(0.01);
        chart.with(BarGroup::new(scheme.name, (0..LOSSES.len()).map(|at| Some(share(at)))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Outcome;
    use crate::results::Plan;

    /// Three seeds, in which each scheme has this share of a limit of 9.5 Mbit/s, and CUBIC end to end all.
    fn runs(shares: [f64; 4], intact: bool) -> Runs {
        let run = |scheme: usize, shares: [f64; 4], at: usize, seed: u64| {
            let of_limit = if scheme == PROTECTED { shares[at] } else { 0.9 } + 0.001 * seed as f64;
            Measured::of_share(of_limit, 9.5e6, intact || seed > 1)
        };
        let by_seed = |at: usize| {
            (1..=3).map(move |seed| (0..SCHEMES.len()).map(|scheme| run(scheme, shares, at, seed)).collect())
        };
        Runs((0..LOSSES.len()).map(|at| by_seed(at).collect()).collect())
    }

    fn outcomes(runs: &Runs) -> Vec<Outcome> {
        claims(runs).iter().map(|claim| claim.judge(Plan::fixed(3).level()).outcome).collect()
    }

    #[test]
    fn each_claim_is_about_its_own_channel() {
        use Outcome::{Agrees, Contradicts};
        assert_eq!(outcomes(&runs([0.9, 0.86, 0.71, 0.71], true)), [Agrees; 5]);
        let expected = [Contradicts, Agrees, Agrees, Agrees, Agrees];
        assert_eq!(outcomes(&runs([0.9, 0.84, 0.71, 0.71], true)), expected);
        let expected = [Agrees, Contradicts, Contradicts, Contradicts, Contradicts];
        assert_eq!(outcomes(&runs([0.87, 0.86, 0.69, 0.69], false)), expected);
    }

    #[test]
    fn the_table_has_a_row_for_each_channel_and_scheme_with_its_own_values() {
        let table = table(&runs([0.9, 0.86, 0.71, 0.7], true));
        assert_eq!(table.rows().len(), LOSSES.len() * SCHEMES.len());
        let csv = table.to_csv();
        let row = csv.lines().find(|line| line.contains("bursts of 20") && line.contains("CUBIC, protected"));
        assert!(row.unwrap().contains("0.702"), "{csv}");
    }

    #[test]
    fn channels_differ_in_names_and_in_what_they_lose() {
        let names = LOSSES.map(Losses::name);
        assert_eq!(names, ["none", "1%", "5%", "1%, bursts of 20"]);
        assert_eq!(LOSSES[NONE].channel(), Channel::Errors(Probability::ZERO));
        assert!(matches!(LOSSES[BURSTS].channel(), Channel::Bursts { packets: 20.0, .. }));
    }
}
