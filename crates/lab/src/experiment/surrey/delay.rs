//! The open question of the paper (§2, §5): how long should duplicate ACKs be delayed?

use super::super::{Experiment, Findings, Lab, Runs};
use super::{SCENARIO, SOURCE};
use crate::Error;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::Summary;
use crate::table::{Cell, Column, Table};

pub(in super::super) const DELAY: Experiment = Experiment {
    name: "surrey-delay",
    title: "How long to delay duplicate ACKs, by the link's round trip",
    source: SOURCE,
    seeds: 10,
    run: delay,
    on_kernel: None,
};

/// Round trips of the link, milliseconds.
const RTTS_MS: [u32; 5] = [50, 150, 300, 600, 1000];
/// Delays in round trips of the link.
const DELAYS: [f64; 11] = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0];
/// The least delay in round trips that the link layer needs for one retransmission, less a hair.
const ONE_ROUND_TRIP: usize = 5;
const PER: &str = "1%";
const MBIT: f64 = 1e6;

/// One connection over the link alone, with a window that fills it.
fn settings(rtt_ms: u32, delay: f64) -> Vec<String> {
    let one_way = f64::from(rtt_ms) / 2.0;
    let delay_ms = f64::from(rtt_ms) * delay;
    [
        "link.ground.delay=1ms".to_owned(),
        "link.ground.rate=100Mbit/s".to_owned(),
        format!("link.satellite.delay={one_way}ms"),
        format!("link.satellite.per={PER}"),
        format!("link.satellite.delayed_dup_acks={{ at = \"terminal\", delay = \"{delay_ms}ms\" }}"),
        "link.satellite.arq={ delivery = \"immediate\" }".to_owned(),
        "tcp.reno.recovery=newreno".to_owned(),
        "tcp.reno.receive_buffer=8MB".to_owned(),
        "tcp.reno.rto.min=200ms".to_owned(),
        "flow.file.bytes=20MB".to_owned(),
    ]
    .into()
}

fn delay(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut scenarios = Vec::new();
    for rtt in RTTS_MS {
        for delay in DELAYS {
            scenarios.push(lab.scenario(&SCENARIO, &settings(rtt, delay))?);
        }
    }
    let goodput = |runs: &Runs| runs.first_flow(|flow| flow.goodput_bps);
    let curves: Vec<Vec<Summary>> =
        lab.run(&scenarios).chunks(DELAYS.len()).map(|runs| runs.iter().map(goodput).collect()).collect();
    Ok(Findings {
        verdicts: vec![
            too_short(&curves),
            one_round_trip_is_enough(&curves),
            a_little_more_costs_little(&curves),
        ],
        tables: vec![Part::new("goodput", table(&curves))],
        figures: vec![Part::new("goodput", plot(&curves))],
    })
}

fn table(curves: &[Vec<Summary>]) -> Table {
    let column = |rtt: u32| {
        Column::new(format!("RTT {rtt} ms"), format!("rtt_{rtt}ms_goodput_bps")).shown_in("Mbit/s", MBIT)
    };
    let mut table = Table::new(
        "Goodput of 20 MB at PER 1% by the delay d of duplicate ACKs",
        [Column::new("d, round trips of the link", "d_rtts")]
            .into_iter()
            .chain(RTTS_MS.map(column))
            .collect(),
    );
    for (at, delay) in DELAYS.into_iter().enumerate() {
        let cells = curves.iter().map(|curve| Cell::interval(Some(curve[at]), 2));
        table.push([Cell::Number(delay, 2)].into_iter().chain(cells).collect());
    }
    table
}

fn plot(curves: &[Vec<Summary>]) -> Plot {
    let plot = Plot::new(
        "NewReno over a link with ARQ, 10 Mbit/s, PER 1%",
        Axis::new("delay d of duplicate ACKs", "round trips of the link"),
        Axis::new("goodput", "Mbit/s"),
    );
    RTTS_MS.into_iter().zip(curves).fold(plot, |plot, (rtt, curve)| {
        let points = DELAYS.into_iter().zip(curve);
        let points = points.map(|(delay, value)| Point::new(delay, value.estimate().in_unit(MBIT)));
        plot.with(Series::new(format!("RTT {rtt} ms"), Style::Line, points))
    })
}

fn best(curve: &[Summary]) -> f64 {
    curve.iter().map(|value| value.mean).fold(0.0, f64::max)
}

fn told(values: impl Iterator<Item = f64>) -> String {
    let values: Vec<String> = values.map(|value| format!("{value:.2}")).collect();
    format!("{} at RTT {} ms", values.join(", "), RTTS_MS.map(|rtt| rtt.to_string()).join(", "))
}

fn too_short(curves: &[Vec<Summary>]) -> Verdict {
    let half = |curve: &Vec<Summary>| curve[2].mean / best(curve);
    Verdict::new(
        "Half a round trip of the link is too short: less than half of the best goodput",
        curves.iter().all(|curve| half(curve) < 0.5),
        told(curves.iter().map(half)),
    )
}

fn one_round_trip_is_enough(curves: &[Vec<Summary>]) -> Verdict {
    let reached = |curve: &Vec<Summary>| {
        let place = curve.iter().position(|value| value.mean >= 0.9 * best(curve));
        DELAYS[place.unwrap_or(0)]
    };
    Verdict::new(
        "The least delay with 90% of the best goodput is 1 to 1.5 round trips of the link, at every round trip",
        curves.iter().all(|curve| (1.0..=1.5).contains(&reached(curve))),
        told(curves.iter().map(reached)),
    )
}

fn a_little_more_costs_little(curves: &[Vec<Summary>]) -> Verdict {
    let worst = |curve: &Vec<Summary>| {
        curve[ONE_ROUND_TRIP + 2..].iter().map(|value| value.mean / best(curve)).fold(1.0, f64::min)
    };
    Verdict::new(
        "A longer delay costs little: from 1.25 to 3 round trips the goodput is within a fifth of the best",
        curves.iter().all(|curve| worst(curve) >= 0.8),
        told(curves.iter().map(worst)),
    )
}
