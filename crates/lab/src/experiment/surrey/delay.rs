//! The open question of the paper (§2, §5): how long should duplicate ACKs be delayed?

use super::super::lossy_link::SCENARIO;
use super::super::{Curves, Experiment, Lab, Measure, Output};
use super::SOURCE;
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column};

pub(in super::super) const DELAY: Experiment = Experiment {
    name: "surrey-delay",
    title: "How long to delay duplicate ACKs, by the link's round trip",
    source: SOURCE,
    plan: Plan::fixed(30),
    run: Some(delay),
    on_kernel: None,
};

/// Round-trip times of the link, milliseconds.
const RTTS_MS: [u32; 5] = [50, 150, 300, 600, 1000];
/// Delays of duplicate ACKs, in round trips of the link.
const DELAYS: [f64; 13] = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0];
/// The indices of 0.5, 1.5 and 3.
const HALF: usize = 2;
const RULE: usize = 8;
const TWICE_THE_RULE: usize = 11;
/// The share of the best goodput that is taken as good.
const GOOD: f64 = 0.85;
const PER: &str = "1%";

/// One connection with a window that fills the link.
fn settings(rtt_ms: u32, delay: f64) -> Vec<String> {
    let (rtt_ms, one_way) = (f64::from(rtt_ms), f64::from(rtt_ms) / 2.0);
    [
        format!("link.satellite.delay={one_way}ms"),
        format!("link.satellite.per={PER}"),
        format!("link.satellite.delayed_dup_acks={{ at = \"client\", delay = \"{}ms\" }}", rtt_ms * delay),
        "link.satellite.arq={ delivery = \"immediate\" }".to_owned(),
    ]
    .into()
}

fn delay(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, &RTTS_MS, &DELAYS, settings)?;
    let labels = RTTS_MS.map(|rtt| (format!("RTT {rtt} ms"), format!("rtt_{rtt}ms")));
    let goodput = Curves::of_runs(labels, Measure::mbps("goodput_bps"), &runs, |runs| {
        runs.first_flow(|flow| flow.goodput_bps)
    });
    let table = goodput.table(
        "Goodput over a minute at PER 1% by the delay d of duplicate ACKs",
        [Column::new("d, round trips of the link", "d_rtts")],
        DELAYS.map(|delay| vec![Cell::Number(delay, 2)]),
    );
    let plot = Plot::new(
        "Reno over a link with ARQ, 10 Mbit/s, PER 1%",
        Axis::new("delay d of duplicate ACKs", "round trips of the link"),
        Axis::new("goodput", "Mbit/s"),
    );
    let (plot, curves) = (goodput.plot(plot, DELAYS), goodput.all());
    let claims = vec![too_short(curves), rule_is_good(curves), longer_costs_little(curves)];
    Ok(Output {
        claims,
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot), Part::new("rule", rule(curves))],
    })
}

/// The curve's greatest value. Which one that is the data decide, so that it is a little too great.
fn best(curve: &[Sample]) -> &Sample {
    let by_mean = |one: &&Sample, other: &&Sample| one.mean().total_cmp(&other.mean());
    curve.iter().max_by(by_mean).expect("there are delays")
}

fn at_rtts() -> impl Iterator<Item = String> {
    RTTS_MS.into_iter().map(|rtt| format!("at RTT {rtt} ms"))
}

fn too_short(curves: &[Vec<Sample>]) -> Claim {
    let half = |curve: &Vec<Sample>| Range::below(0.5).of_ratio(&curve[HALF], best(curve));
    Claim::ours(
        "Too short: half a round trip of the link has less than half of the best goodput, at every round \
         trip",
    )
    .with_all(curves.iter().zip(at_rtts()).map(|(curve, rtt)| half(curve).at(rtt)))
}

fn rule_is_good(curves: &[Vec<Sample>]) -> Claim {
    let share = |curve: &Vec<Sample>| Range::at_least(GOOD).of_ratio(&curve[RULE], best(curve));
    let least: Vec<String> = curves.iter().map(|curve| DELAYS[good(curve)].to_string()).collect();
    Claim::ours(
        "A rule: d = 1.5 round trips of the link has 85% of the best goodput or more, at every round trip",
    )
    .with_all(curves.iter().zip(at_rtts()).map(|(curve, rtt)| share(curve).at(rtt)))
    .noting(format!("the least d with as much is {}", least.join(", ")))
}

fn longer_costs_little(curves: &[Vec<Sample>]) -> Claim {
    let tests = curves.iter().zip(RTTS_MS).flat_map(|(curve, rtt)| {
        (RULE..=TWICE_THE_RULE).map(move |at| {
            let test = Range::at_least(GOOD).of_ratio(&curve[at], best(curve));
            test.at(format!("at RTT {rtt} ms and d = {}", DELAYS[at]))
        })
    });
    Claim::ours(
        "Too long costs little: from 1.5 to 3 round trips it has 85% of the best goodput or more, at every \
         round trip",
    )
    .with_all(tests)
}

/// The index of the least delay with a good goodput.
fn good(curve: &[Sample]) -> usize {
    let best = best(curve).mean();
    curve.iter().position(|value| value.mean() >= GOOD * best).expect("the best itself is good")
}

/// The delay to choose, by the link's round-trip time.
fn rule(curves: &[Vec<Sample>]) -> Plot {
    let milliseconds = |rtt: u32, index: usize| Point::new(f64::from(rtt), DELAYS[index] * f64::from(rtt));
    let least = RTTS_MS.into_iter().zip(curves).map(|(rtt, curve)| milliseconds(rtt, good(curve)));
    Plot::new("The delay to choose", Axis::new("round trip of the link", "ms"), Axis::new("delay d", "ms"))
        .with(Series::new("least d with 85% of the best goodput", Style::Line, least))
        .with(Series::new("1.5 round trips", Style::Curve, RTTS_MS.map(|rtt| milliseconds(rtt, RULE))))
}
