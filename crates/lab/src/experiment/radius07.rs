//! RADIUS07: Peoples, Wood, Parr, Scotney, Moore, "TCP's protocol radius", IWSSC 2007.

use bentpipe_sim::{FlowResult, Scenario};

use super::{Experiment, Findings, Lab, Runs};
use crate::Error;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::table::{Cell, Column, Table};

const SOURCE: &str = "Peoples, Wood, Parr, Scotney, Moore: TCP's protocol radius, IWSSC 2007";
const SCENARIO: (&str, &str) =
    ("scenarios/radius07.toml", include_str!("../../../../scenarios/radius07.toml"));

pub(super) const REACH: Experiment = Experiment {
    name: "radius07-reach",
    title: "Where setting up a TCP connection fails",
    source: SOURCE,
    seeds: 1,
    run: reach,
};

pub(super) const STEP: Experiment = Experiment {
    name: "radius07-step",
    title: "Transfer time and efficiency of TCP over distance",
    source: SOURCE,
    seeds: 1,
    run: step,
};

/// A way of calling, and how far it reaches by its schedule, in seconds of light one way.
struct Caller {
    name: &'static str,
    key: &'static str,
    settings: &'static [&'static str],
    expected_s: Option<f64>,
}

/// Linux' reach is that of the listener: it forgets a caller 63 s after the SYN, which the caller's next segment reaches two
/// one-way delays later.
const CALLERS: [Caller; 4] = [
    Caller { name: "OPNET 11.5", key: "opnet", settings: &["tcp.host.syn=opnet"], expected_s: Some(22.5) },
    Caller {
        name: "Windows 2003",
        key: "windows_2003",
        settings: &["tcp.host.syn=windows-2003"],
        expected_s: Some(4.5),
    },
    Caller { name: "ns", key: "ns", settings: &["tcp.host.syn=ns"], expected_s: None },
    Caller {
        name: "Linux",
        key: "linux",
        settings: &["tcp.host.base=linux", "tcp.host.syn=linux", "tcp.host.syn_ack=linux"],
        expected_s: Some(31.5),
    },
];

/// One-way delays, in tenths of a second: each half second to 70 s, and each tenth around what is expected.
fn delays(caller: &Caller) -> Vec<u32> {
    let around = caller.expected_s.map(|limit| (limit * 10.0) as u32);
    let fine = around.into_iter().flat_map(|limit| limit - 10..=limit + 10);
    let mut delays: Vec<u32> = (0..=700).step_by(5).skip(1).chain(fine).collect();
    delays.sort_unstable();
    delays.dedup();
    delays
}

fn reach(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut table = Table::new(
        "One-way delays at which a file of 1 kB arrives",
        vec![
            Column::new("caller", "caller"),
            Column::new("longest that works", "longest_working_delay_s").shown_in("s", 1.0),
            Column::new("shortest that fails", "shortest_failing_delay_s").shown_in("s", 1.0),
            Column::new("by the schedule", "expected_delay_s").shown_in("s", 1.0),
        ],
    );
    let mut verdicts = Vec::new();
    let mut plot = Plot::new(
        "Setting up a connection over distance",
        Axis::new("one-way delay", "s of light"),
        Axis::new("time until the file has arrived", "s"),
    );
    for caller in &CALLERS {
        let outcomes = outcomes(lab, caller)?;
        let works = |outcome: &&(f64, Option<f64>)| outcome.1.is_some();
        let longest = outcomes.iter().filter(works).map(|outcome| outcome.0).next_back();
        let shortest = outcomes.iter().find(|outcome| !works(outcome)).map(|outcome| outcome.0);
        let number = |value: Option<f64>| value.map_or(Cell::Missing, |value| Cell::Number(value, 1));
        table.push(vec![
            Cell::text(caller.name),
            number(longest),
            number(shortest),
            number(caller.expected_s),
        ]);
        verdicts.push(verdict(caller, longest, shortest));
        let points = outcomes.iter().filter_map(|&(delay, seconds)| Some(Point::new(delay, seconds?)));
        plot = plot.with(Series::new(caller.name, Style::Curve, points));
    }
    Ok(Findings {
        verdicts,
        tables: vec![Part::new("delays", table)],
        figures: vec![Part::new("time", plot)],
    })
}

/// At each one-way delay, how long a small file took; nothing if it never arrived.
fn outcomes(lab: &Lab<'_>, caller: &Caller) -> Result<Vec<(f64, Option<f64>)>, Error> {
    let delays = delays(caller);
    let scenario = |delay: &u32| {
        let mut settings: Vec<String> = caller.settings.iter().map(|&setting| setting.to_owned()).collect();
        settings.push(format!("link.space.delay={}ms", delay * 100));
        settings.push("flow.file.bytes=1kB".into());
        lab.scenario(&SCENARIO, &settings)
    };
    let scenarios = delays.iter().map(scenario).collect::<Result<Vec<Scenario>, _>>()?;
    let arrived = |runs: &Runs| {
        let flow = &runs.0[0].flows[0];
        flow.complete.then_some(flow.seconds)
    };
    let seconds = |delay: u32| f64::from(delay) / 10.0;
    Ok(delays.into_iter().map(seconds).zip(lab.run(&scenarios).iter().map(arrived)).collect())
}

/// Below the limit everything works, beyond it nothing; at the limit itself answer and deadline meet.
fn verdict(caller: &Caller, longest: Option<f64>, shortest: Option<f64>) -> Verdict {
    let claim = match caller.expected_s {
        Some(limit) => {
            format!("{} reaches {limit} light-seconds: every shorter delay works, no longer one", caller.name)
        }
        None => format!("{} reaches any distance: every delay works", caller.name),
    };
    let monotone = match (longest, shortest) {
        (Some(longest), Some(shortest)) => longest < shortest,
        _ => true,
    };
    let agrees = monotone
        && match caller.expected_s {
            Some(limit) => {
                longest.is_some_and(|longest| (longest - limit).abs() < 0.11)
                    && shortest.is_some_and(|shortest| (shortest - limit).abs() < 0.11)
            }
            None => shortest.is_none(),
        };
    let told =
        |value: Option<f64>, without: &str| value.map_or(without.to_owned(), |value| format!("{value:.1} s"));
    let observed = format!(
        "the longest delay that works is {}, the shortest that fails {} (up to 70 s tried)",
        told(longest, "none"),
        told(shortest, "none"),
    );
    Verdict::new(claim, agrees, observed)
}

/// The variants of RADIUS07's figures.
const VARIANTS: [(&str, &str, &[&str]); 3] = [
    ("Reno", "reno", &["tcp.host.recovery=reno", "tcp.host.sack=false", "tcp.host.timestamps=false"]),
    ("SACK", "sack", &["tcp.host.timestamps=false"]),
    ("SACK, timestamps", "timestamps", &[]),
];
const FILES_KB: [u32; 3] = [50, 100, 500];
const BUFFERS_KB: [u32; 2] = [64, 1000];
/// The initial retransmission timeout of 3 s is a round trip of this one-way delay.
const STEP_S: f64 = 1.5;

/// One-way delays in milliseconds: dense around the step, to beyond where OPNET fails.
fn step_delays() -> Vec<u32> {
    (100..3000)
        .step_by(100)
        .chain([1_490, 1_510])
        .chain((3_000..=22_000).step_by(500))
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect()
}

struct Case {
    variant: usize,
    file_kb: u32,
    buffer_kb: u32,
    delay_ms: u32,
}

fn step(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut cases = Vec::new();
    for variant in 0..VARIANTS.len() {
        for file_kb in FILES_KB {
            for buffer_kb in BUFFERS_KB {
                for delay_ms in step_delays() {
                    cases.push(Case { variant, file_kb, buffer_kb, delay_ms });
                }
            }
        }
    }
    let scenario = |case: &Case| {
        let mut settings: Vec<String> =
            VARIANTS[case.variant].2.iter().map(|&setting| setting.to_owned()).collect();
        settings.push(format!("link.space.delay={}ms", case.delay_ms));
        settings.push(format!("flow.file.bytes={}kB", case.file_kb));
        settings.push(format!("tcp.host.receive_buffer={}kB", case.buffer_kb));
        lab.scenario(&SCENARIO, &settings)
    };
    let scenarios = cases.iter().map(scenario).collect::<Result<Vec<_>, _>>()?;
    let flows: Vec<FlowResult> = lab.run(&scenarios).iter().map(|runs| runs.0[0].flows[0].clone()).collect();
    let measured: Vec<(&Case, &FlowResult)> = cases.iter().zip(&flows).collect();
    Ok(Findings {
        verdicts: vec![full_within(&measured), less_beyond(&measured), same_for_all(&measured)],
        tables: vec![Part::new("transfers", step_table(&measured))],
        figures: vec![
            Part::new("efficiency", efficiency_plot(&measured)),
            Part::new("time", time_plot(&measured)),
        ],
    })
}

/// Goodput over throughput: which part of what was sent was worth sending.
fn efficiency(flow: &FlowResult) -> f64 {
    flow.bytes as f64 / flow.legs[0].bytes_sent as f64
}

fn delay_s(case: &Case) -> f64 {
    f64::from(case.delay_ms) / 1e3
}

fn full_within(measured: &[(&Case, &FlowResult)]) -> Verdict {
    let within: Vec<f64> = measured
        .iter()
        .filter(|(case, _)| delay_s(case) <= STEP_S)
        .map(|(_, flow)| efficiency(flow))
        .collect();
    let least = within.iter().copied().fold(1.0, f64::min);
    Verdict::new(
        "Up to 1.5 s one way nothing is sent twice: goodput over throughput is 1",
        least == 1.0,
        format!("{least:.3} at the least, in {} transfers", within.len()),
    )
}

fn less_beyond(measured: &[(&Case, &FlowResult)]) -> Verdict {
    let beyond: Vec<f64> = measured
        .iter()
        .filter(|(case, _)| delay_s(case) > STEP_S)
        .map(|(_, flow)| efficiency(flow))
        .collect();
    let most = beyond.iter().copied().fold(0.0, f64::max);
    Verdict::new(
        "Beyond 1.5 s it is lower in every transfer",
        most < 1.0,
        format!("{most:.3} at the most, in {} transfers", beyond.len()),
    )
}

/// The step of each combination of variant, file and buffer: the longest delay with full efficiency.
fn same_for_all(measured: &[(&Case, &FlowResult)]) -> Verdict {
    let mut steps: Vec<f64> = Vec::new();
    for combination in measured
        .chunk_by(|(a, _), (b, _)| (a.variant, a.file_kb, a.buffer_kb) == (b.variant, b.file_kb, b.buffer_kb))
    {
        let full =
            combination.iter().take_while(|(_, flow)| efficiency(flow) == 1.0).map(|(case, _)| delay_s(case));
        steps.push(full.last().unwrap_or(0.0));
    }
    let (least, most) =
        steps.iter().fold((f64::INFINITY, 0.0f64), |(least, most), &step| (least.min(step), most.max(step)));
    Verdict::new(
        "The step's place does not depend on the size of file or buffer, nor on the variant",
        least == most,
        format!(
            "full efficiency up to {least} s in one combination and {most} s in another, of {}",
            steps.len()
        ),
    )
}

fn step_table(measured: &[(&Case, &FlowResult)]) -> Table {
    let mut table = Table::new(
        "Transfers over distance",
        vec![
            Column::new("variant", "variant"),
            Column::new("file", "file_bytes").shown_in("kB", 1e3),
            Column::new("receive buffer", "receive_buffer_bytes").shown_in("kB", 1e3),
            Column::new("one-way delay", "delay_s").shown_in("s", 1.0),
            Column::new("time", "transfer_s").shown_in("s", 1.0),
            Column::new("goodput / throughput", "efficiency"),
            Column::new("timeouts", "timeouts"),
        ],
    );
    for (case, flow) in measured {
        let time = if flow.complete { Cell::Number(flow.seconds, 2) } else { Cell::Missing };
        table.push(vec![
            Cell::text(VARIANTS[case.variant].0),
            Cell::Number(f64::from(case.file_kb) * 1e3, 0),
            Cell::Number(f64::from(case.buffer_kb) * 1e3, 0),
            Cell::Number(delay_s(case), 2),
            time,
            Cell::Number(efficiency(flow), 4),
            Cell::Number(flow.timeouts as f64, 0),
        ]);
    }
    table
}

/// A curve for each variant and size of file, with the larger buffer.
fn curves<'a>(
    measured: &'a [(&'a Case, &'a FlowResult)],
    value: impl Fn(&FlowResult) -> f64 + 'a,
) -> impl Iterator<Item = Series> + 'a {
    let of = |variant: usize, file_kb: u32| {
        measured.iter().filter(move |(case, flow)| {
            case.variant == variant
                && case.file_kb == file_kb
                && case.buffer_kb == BUFFERS_KB[1]
                && flow.complete
        })
    };
    let kinds =
        (0..VARIANTS.len()).flat_map(|variant| [FILES_KB[0], FILES_KB[2]].map(|file| (variant, file)));
    kinds.map(move |(variant, file_kb)| {
        let points: Vec<Point> =
            of(variant, file_kb).map(|(case, flow)| Point::new(delay_s(case), value(flow))).collect();
        Series::new(format!("{}, {file_kb} kB", VARIANTS[variant].0), Style::Curve, points)
    })
}

fn efficiency_plot(measured: &[(&Case, &FlowResult)]) -> Plot {
    let plot = Plot::new(
        "Goodput over throughput by distance",
        Axis::new("one-way delay", "s of light").log(),
        Axis::dimensionless("goodput / throughput"),
    );
    curves(measured, efficiency).fold(plot, Plot::with)
}

fn time_plot(measured: &[(&Case, &FlowResult)]) -> Plot {
    let plot = Plot::new(
        "Time to transfer a file by distance",
        Axis::new("one-way delay", "s of light"),
        Axis::new("transfer time", "s"),
    );
    curves(measured, |flow| flow.seconds).fold(plot, Plot::with)
}
