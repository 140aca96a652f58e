//! One packet in a thousand is lost.

use super::{
    DELAYS_MS, IMPATIENT, Lab, MBIT, Output, P_XCP, PACKET, PAYLOAD, RECOVERIES, RENO, Runs, SACK, SCENARIO,
    STEADY, Scheme, VARIANTS, at_delay,
};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::experiment::observers::WindowTrace;
use crate::experiment::rows;
use crate::figure::{Axis, BarChart, BarGroup, Plot};
use crate::results::Part;
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};

/// The link's rate, bits per second, which the publication does not give.
const LOSSY_RATE: f64 = 5e6;
const PER: f64 = 0.001;
/// What the claims follow from. The publication shows one run, and does not say how often timeouts come.
const FIGURES: &str = "sections IV and V, whose link loses one packet in a thousand";

/// The runs of one variant over one recovery at one delay.
type LossRuns = Runs<WindowTrace>;

pub(super) fn goodput<O>(runs: &Runs<O>) -> Sample {
    runs.first_flow(|flow| flow.goodput_bps)
}

/// Retransmission timeouts of the satellite leg.
fn timeouts(runs: &LossRuns) -> Sample {
    runs.first_flow(|flow| flow.legs[1].timeouts as f64)
}

pub(super) fn settings(variant: Scheme, (delay, recovery): (u32, &str)) -> Vec<String> {
    variant.with([
        "duration=180s".to_owned(),
        "flow.limited.count=0".to_owned(),
        format!("link.satellite.rate={LOSSY_RATE}bit/s"),
        "link.fast.rate=20Mbit/s".to_owned(),
        format!("link.satellite.per={PER}"),
        format!("link.satellite.delay={delay}ms"),
        format!("tcp.satellite.recovery={recovery}"),
    ])
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut by_delay = Vec::new();
    let window = || WindowTrace { leg: 1, packet: PACKET, most: f64::INFINITY, samples: Vec::new() };
    for delay in DELAYS_MS {
        let points = RECOVERIES.map(|(_, recovery)| (delay, recovery));
        let scenarios = lab.scenarios(&SCENARIO, &VARIANTS, &points, settings)?;
        by_delay.push(rows(lab.observe(&scenarios, window)?, RECOVERIES.len()));
    }
    Ok(Output {
        claims: vec![
            drops(&by_delay),
            times_out(&by_delay),
            steady(&by_delay),
            steadier(&by_delay),
            with_sack(at_delays().zip(by_delay.iter().map(|runs| goodput(&runs[P_XCP][SACK])))),
        ],
        tables: vec![Part::new("random", loss_table(&by_delay))],
        figures: vec![
            Part::new("goodput", loss_chart(&by_delay)),
            Part::new("windows", window_plot(&by_delay)),
        ],
    })
}

/// P-XCP's timeouts with one recovery, by delay.
fn p_xcp_timeouts(by_delay: &[Vec<Vec<LossRuns>>], recovery: usize) -> impl Iterator<Item = Sample> {
    by_delay.iter().map(move |variants| timeouts(&variants[P_XCP][recovery]))
}

fn at_delays() -> impl Iterator<Item = String> {
    DELAYS_MS.into_iter().map(at_delay)
}

/// The difference shows where the loss recovery itself costs little.
fn drops(by_delay: &[Vec<Vec<LossRuns>>]) -> Claim {
    let tests = by_delay.iter().zip(at_delays()).map(|(runs, delay)| {
        Range::at_most(DROPPED).of_ratio(&goodput(&runs[0][STEADY]), &goodput(&runs[1][STEADY])).at(delay)
    });
    dropping().with_all(tests)
}

/// The most that XCP may have of P-XCP's goodput.
pub(super) const DROPPED: f64 = 0.95;

/// The claim without its tests.
pub(super) fn dropping() -> Claim {
    Claim::expected(
        "XCP halves its window at each loss, P-XCP does not: over Slow-but-Steady XCP has at most 95% of \
         P-XCP's goodput",
        FIGURES,
    )
}

fn times_out(by_delay: &[Vec<Vec<LossRuns>>]) -> Claim {
    let tests = [(RENO, "Reno"), (IMPATIENT, "Impatient")].into_iter().flat_map(|(recovery, name)| {
        let timeouts = p_xcp_timeouts(by_delay, recovery).zip(at_delays());
        timeouts
            .map(move |(timeouts, delay)| Range::above(1.0).of_mean(&timeouts).at(format!("{name} {delay}")))
    });
    Claim::expected(
        "Losses at random: P-XCP over Reno and over Impatient times out more than once in three minutes",
        FIGURES,
    )
    .shown_in("timeouts", 1.0, 1)
    .with_all(tests)
}

fn steady(by_delay: &[Vec<Vec<LossRuns>>]) -> Claim {
    let timeouts = p_xcp_timeouts(by_delay, STEADY).zip(at_delays());
    steadying().with_all(timeouts.map(|(timeouts, delay)| Range::below(1.0).of_mean(&timeouts).at(delay)))
}

/// The claim without its tests.
pub(super) fn steadying() -> Claim {
    Claim::expected("P-XCP over Slow-but-Steady does so less than once in three minutes", FIGURES)
        .shown_in("timeouts", 1.0, 1)
}

/// As a difference, because there may be no timeouts.
fn steadier(by_delay: &[Vec<Vec<LossRuns>>]) -> Claim {
    let [steady, impatient] = [STEADY, IMPATIENT].map(|recovery| p_xcp_timeouts(by_delay, recovery));
    let tests = steady.zip(impatient).zip(at_delays()).map(|((steady, impatient), delay)| {
        let above = steady.paired(&impatient, |steady, impatient| steady - 0.5 * impatient);
        Range::below(0.0).of_mean(&above.expect("numbers of timeouts are finite")).at(delay)
    });
    Claim::expected("P-XCP over Slow-but-Steady times out less than half as often as over Impatient", FIGURES)
        .shown_in("timeouts more than half", 1.0, 1)
        .with_all(tests)
}

/// With the goodput at each delay.
pub(super) fn with_sack(goodputs: impl Iterator<Item = (String, Sample)>) -> Claim {
    let limit = LOSSY_RATE * PAYLOAD * (1.0 - PER);
    let tests = goodputs.map(|(delay, goodput)| Range::at_least(0.95 * limit).of_mean(&goodput).at(delay));
    Claim::ours("P-XCP over SACK has at least 95% of what the link can carry")
        .shown_in("Mbit/s", MBIT, 2)
        .with_all(tests)
        .noting(format!("it can carry {:.2} Mbit/s", limit / MBIT))
}

fn loss_table(by_delay: &[Vec<Vec<LossRuns>>]) -> Table {
    let columns = VARIANTS.iter().flat_map(|variant| {
        let Scheme { name, key, .. } = variant;
        [
            Column::new(format!("{name}: goodput"), format!("{key}_goodput_bps")).shown_in("Mbit/s", MBIT),
            Column::new(format!("{name}: timeouts"), format!("{key}_timeouts")),
        ]
    });
    let leading =
        [Column::new("one way", "delay_s").shown_in("ms", 1e-3), Column::new("loss recovery", "recovery")];
    let mut table = Table::new(
        "One flow over 5 Mbit/s for three minutes, one packet in a thousand lost",
        leading.into_iter().chain(columns).collect(),
    );
    for (delay, variants) in DELAYS_MS.into_iter().zip(by_delay) {
        for (at, (recovery, _)) in RECOVERIES.into_iter().enumerate() {
            let cells = variants.iter().flat_map(|runs| {
                [Cell::interval(Some(goodput(&runs[at])), 2), Cell::interval(Some(timeouts(&runs[at])), 1)]
            });
            let leading = [Cell::Number(f64::from(delay) * 1e-3, 0), Cell::text(recovery)];
            table.push(leading.into_iter().chain(cells).collect());
        }
    }
    table
}

fn loss_chart(by_delay: &[Vec<Vec<LossRuns>>]) -> BarChart {
    let chart = BarChart::new(
        "Goodput over 5 Mbit/s, one packet in a thousand lost",
        Axis::dimensionless("loss recovery"),
        Axis::new("goodput", "Mbit/s"),
        RECOVERIES.map(|(name, _)| name),
    );
    DELAYS_MS.into_iter().zip(by_delay).fold(chart, |chart, (delay, variants)| {
        VARIANTS.into_iter().zip(variants).fold(chart, |chart, (variant, runs)| {
            let bars = runs.iter().map(|runs| Some(goodput(runs).estimate().in_unit(MBIT)));
            chart.with(BarGroup::new(format!("{}, {delay} ms", variant.name), bars))
        })
    })
}

fn window_plot(by_delay: &[Vec<Vec<LossRuns>>]) -> Plot {
    let (xcp, p_xcp) = (&by_delay[0][0], &by_delay[0][1]);
    let lines = [
        ("XCP, Slow-but-Steady", &xcp[STEADY]),
        ("P-XCP, Impatient", &p_xcp[IMPATIENT]),
        ("P-XCP, Slow-but-Steady", &p_xcp[STEADY]),
    ];
    let plot = Plot::new(
        "The sender's window at 250 ms one way, one run",
        Axis::new("time", "s"),
        Axis::new("window", "packets"),
    );
    lines.into_iter().fold(plot, |plot, (name, runs)| plot.with(runs.0[0].1.series(name)))
}
