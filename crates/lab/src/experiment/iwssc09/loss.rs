//! One packet in a thousand is lost.

use super::super::observers::WindowTrace;
use super::super::rows;
use super::{Lab, MBIT, Output, PACKET, PAYLOAD, Runs, SCENARIO, Scheme, VARIANTS};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup, Plot};
use crate::results::{Part, Verdict};
use crate::statistics::Summary;
use crate::table::{Cell, Column, Table};

/// One-way delays, milliseconds.
const DELAYS_MS: [u32; 2] = [250, 500];
/// The loss recoveries with their names in scenarios. The publication does not have SACK.
const RECOVERIES: [(&str, &str); 4] = [
    ("Reno", "reno"),
    ("NewReno, Impatient", "newreno-impatient"),
    ("NewReno, Slow-but-Steady", "newreno-slow-but-steady"),
    ("SACK", "sack"),
];
const RENO: usize = 0;
const IMPATIENT: usize = 1;
const STEADY: usize = 2;
const SACK: usize = 3;
/// The link's rate, bits per second, which the publication does not give.
const LOSSY_RATE: f64 = 5e6;
const PER: f64 = 0.001;

/// The runs of one variant over one recovery at one delay.
type LossRuns = Runs<WindowTrace>;

fn goodput(runs: &LossRuns) -> Summary {
    runs.first_flow(|flow| flow.goodput_bps)
}

/// Retransmission timeouts of the satellite leg.
fn timeouts(runs: &LossRuns) -> Summary {
    runs.first_flow(|flow| flow.legs[1].timeouts as f64)
}

fn settings(variant: Scheme, (delay, recovery): (u32, &str)) -> Vec<String> {
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
        verdicts: vec![
            drops(&by_delay),
            times_out(&by_delay),
            steady(&by_delay),
            steadier(&by_delay),
            with_sack(&by_delay),
        ],
        tables: vec![Part::new("loss", loss_table(&by_delay))],
        figures: vec![
            Part::new("goodput", loss_chart(&by_delay)),
            Part::new("windows", window_plot(&by_delay)),
        ],
    })
}

fn p_xcp_timeouts(by_delay: &[Vec<Vec<LossRuns>>], recovery: usize) -> Vec<f64> {
    by_delay.iter().map(|variants| timeouts(&variants[1][recovery]).mean).collect()
}

/// The difference shows where the loss recovery itself costs little.
fn drops(by_delay: &[Vec<Vec<LossRuns>>]) -> Verdict {
    let ratio = |runs: &Vec<Vec<LossRuns>>| goodput(&runs[0][STEADY]).mean / goodput(&runs[1][STEADY]).mean;
    let ratios: Vec<f64> = by_delay.iter().map(ratio).collect();
    Verdict::new(
        "XCP halves its window at each loss, P-XCP does not: over Slow-but-Steady XCP has at most 95% of \
         P-XCP's goodput",
        ratios.iter().all(|ratio| *ratio <= 0.95),
        at_delays(ratios.iter().map(|ratio| format!("{:.0} %", 100.0 * ratio))),
    )
}

fn times_out(by_delay: &[Vec<Vec<LossRuns>>]) -> Verdict {
    let [reno, impatient] = [RENO, IMPATIENT].map(|recovery| p_xcp_timeouts(by_delay, recovery));
    Verdict::new(
        "P-XCP over Reno and over Impatient still times out: more than once in three minutes",
        reno.iter().chain(&impatient).all(|timeouts| *timeouts > 1.0),
        format!("Reno {}, Impatient {}", at_delays(tenths(&reno)), at_delays(tenths(&impatient))),
    )
}

fn steady(by_delay: &[Vec<Vec<LossRuns>>]) -> Verdict {
    let timeouts = p_xcp_timeouts(by_delay, STEADY);
    Verdict::new(
        "P-XCP over Slow-but-Steady does not: less than once in three minutes",
        timeouts.iter().all(|timeouts| *timeouts < 1.0),
        at_delays(tenths(&timeouts)),
    )
}

fn steadier(by_delay: &[Vec<Vec<LossRuns>>]) -> Verdict {
    let [steady, impatient] = [STEADY, IMPATIENT].map(|recovery| p_xcp_timeouts(by_delay, recovery));
    let ratios: Vec<f64> =
        steady.iter().zip(&impatient).map(|(steady, impatient)| steady / impatient).collect();
    Verdict::new(
        "P-XCP over Slow-but-Steady times out less than half as often as over Impatient",
        ratios.iter().all(|ratio| *ratio < 0.5),
        at_delays(ratios.iter().map(|ratio| format!("{:.0} %", 100.0 * ratio))),
    )
}

fn with_sack(by_delay: &[Vec<Vec<LossRuns>>]) -> Verdict {
    let limit = LOSSY_RATE * PAYLOAD * (1.0 - PER);
    let shares: Vec<f64> = by_delay.iter().map(|runs| goodput(&runs[1][SACK]).mean / limit).collect();
    Verdict::new(
        "Beyond the paper: P-XCP over SACK has at least 95% of what the link can carry",
        shares.iter().all(|share| *share >= 0.95),
        at_delays(shares.iter().map(|share| format!("{:.1} %", 100.0 * share))),
    )
}

fn tenths(values: &[f64]) -> impl Iterator<Item = String> {
    values.iter().map(|value| format!("{value:.1}"))
}

/// A value for each delay.
fn at_delays(values: impl Iterator<Item = String>) -> String {
    let each = values.zip(DELAYS_MS).map(|(value, delay)| format!("{value} at {delay} ms"));
    each.collect::<Vec<_>>().join(", ")
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
