//! RADIUS07: Peoples, Wood, Parr, Scotney, Moore, "TCP's protocol radius", IWSSC 2007.

mod linux;

use bentpipe_sim::{FlowResult, Scenario};

use super::{Experiment, Lab, Output, Runs, Scheme};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart, BarGroup, Plot, Point, Series, Style};
use crate::results::{Part, Plan};
use crate::statistics::Estimate;
use crate::table::{Cell, Column, Table};

const SOURCE: &str = "Peoples, Wood, Parr, Scotney, Moore: TCP's protocol radius, IWSSC 2007";
const SCENARIO: (&str, &str) =
    ("scenarios/radius07.toml", include_str!("../../../../../scenarios/radius07.toml"));

pub(super) const REACH: Experiment = Experiment {
    name: "radius07-reach",
    title: "Where setting up a TCP connection fails",
    source: SOURCE,
    plan: Plan::doubling(1),
    run: Some(reach),
    on_kernel: Some((3, linux::reach)),
};

pub(super) const STEP: Experiment = Experiment {
    name: "radius07-step",
    title: "Transfer time and efficiency of TCP over distance",
    source: SOURCE,
    plan: Plan::doubling(1),
    run: Some(step),
    on_kernel: Some((3, linux::step)),
};

/// A client, with the reach that follows from its SYN schedule in seconds of light, one way.
struct Caller {
    name: &'static str,
    settings: &'static [&'static str],
    expected_s: Option<f64>,
}

/// Linux' reach is that of the listener, which forgets a half-open connection some time after the SYN; the
/// client's next segment arrives two one-way delays after its SYN. Each repeated SYN restarts the listener's
/// running wait, which extends the reach from 31.5 to 49.5 s. On a real machine, SYN and expiry coincide at
/// some distances beyond 33.5 s, and chance decides which comes first; in virtual time, the one that was
/// scheduled first does.
const CALLERS: [Caller; 4] = [
    Caller { name: "OPNET 11.5", settings: &["tcp.host.syn=opnet"], expected_s: Some(22.5) },
    Caller { name: "Windows 2003", settings: &["tcp.host.syn=windows-2003"], expected_s: Some(4.5) },
    Caller { name: "ns", settings: &["tcp.host.syn=ns"], expected_s: None },
    Caller {
        name: LINUX,
        settings: &["tcp.host.base=linux", "tcp.host.syn=linux", "tcp.host.syn_ack=linux"],
        expected_s: Some(49.5),
    },
];

/// Its reach is not the publication's.
const LINUX: &str = "Linux";
/// A tenth of a second between two delays around the expected reach, and a little for rounding, seconds.
const STEP_TRIED: f64 = 0.11;
/// The longest delay that is tried, seconds.
const FARTHEST: f64 = 70.0;

/// One-way delays in tenths of a second: each half second up to 70 s, and each tenth around the expected
/// reach.
fn delays(caller: &Caller) -> Vec<u32> {
    let around = caller.expected_s.map(|limit| (limit * 10.0) as u32);
    let fine = around.into_iter().flat_map(|limit| limit - 10..=limit + 10);
    let mut delays: Vec<u32> = (0..=700).step_by(5).skip(1).chain(fine).collect();
    delays.sort_unstable();
    delays.dedup();
    delays
}

fn reach(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut table = Table::new(
        "One-way delays at which a file of 1 kB arrives",
        vec![
            Column::new("caller", "caller"),
            Column::new("longest that works", "longest_working_delay_s").shown_in("s", 1.0),
            Column::new("shortest that fails", "shortest_failing_delay_s").shown_in("s", 1.0),
            Column::new("by the schedule", "expected_delay_s").shown_in("s", 1.0),
        ],
    );
    let mut claims = Vec::new();
    let mut longest_of_each = Vec::new();
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
        claims.push(claim(caller, longest, shortest));
        longest_of_each.push(longest.map(Estimate::from));
    }
    let chart = BarChart::new(
        "How far away a TCP connection can be set up, of 70 s tried",
        Axis::dimensionless("caller"),
        Axis::new("longest one-way delay that works", "s of light"),
        CALLERS.each_ref().map(|caller| caller.name),
    )
    .with(BarGroup::new("a file of 1 kB arrives", longest_of_each));
    Ok(Output { claims, tables: vec![Part::new("delays", table)], figures: vec![Part::new("delays", chart)] })
}

/// The transfer time of a small file at each one-way delay; `None` if it never arrived.
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
        let flow = &runs.0[0].0.flows[0];
        flow.finished.then_some(flow.seconds)
    };
    let seconds = |delay: u32| f64::from(delay) / 10.0;
    Ok(delays.into_iter().map(seconds).zip(lab.run(&scenarios)?.iter().map(arrived)).collect())
}

/// Below the limit everything works, beyond it nothing. At the limit itself, the answer meets the deadline.
/// Nothing is random.
fn claim(caller: &Caller, longest: Option<f64>, shortest: Option<f64>) -> Claim {
    let sentence = match caller.expected_s {
        Some(limit) => {
            format!("{} reaches {limit} light-seconds: every shorter delay works, no longer one", caller.name)
        }
        None => format!("{} reaches any distance: every delay works", caller.name),
    };
    let claim = match caller.name {
        LINUX => Claim::ours(sentence),
        _ => Claim::stated(sentence, "the schedules of SYNs"),
    };
    let (longest, shortest) = (longest.unwrap_or(0.0), shortest.unwrap_or(f64::INFINITY));
    let claim = claim.shown_in("s", 1.0, 1);
    let claim = match caller.expected_s {
        Some(limit) => claim
            .with(
                Range::between(limit - STEP_TRIED, limit + STEP_TRIED)
                    .of_exact(longest)
                    .at("works at the longest"),
            )
            .with(
                Range::between(limit - STEP_TRIED, limit + STEP_TRIED)
                    .of_exact(shortest)
                    .at("fails at the shortest"),
            )
            .with(Range::above(0.0).of_exact(shortest - longest).at("from the one to the other")),
        None => claim
            .with(Range::at_least(FARTHEST).of_exact(longest).at("works at the longest"))
            .with(Range::above(FARTHEST).of_exact(shortest).at("fails at the shortest")),
    };
    claim.noting("up to 70 s tried")
}

/// The variants of TCP in RADIUS07's figures.
const VARIANTS: [Scheme; 3] = [
    Scheme {
        name: "Reno",
        key: "reno",
        settings: &["tcp.host.recovery=reno", "tcp.host.sack=false", "tcp.host.timestamps=false"],
    },
    Scheme { name: "SACK", key: "sack", settings: &["tcp.host.timestamps=false"] },
    Scheme { name: "SACK, timestamps", key: "timestamps", settings: &[] },
];
/// The index of the variant with timestamps.
const WITH_TIMESTAMPS: usize = 2;
const FILES_KB: [u32; 3] = [50, 100, 500];
const BUFFERS_KB: [u32; 2] = [64, 1000];
/// The initial retransmission timeout of 3 s is a round trip of this one-way delay.
const STEP_S: f64 = 1.5;

/// One-way delays in milliseconds: dense around the step, and up to the publication's 30 s.
fn step_delays() -> Vec<u32> {
    (100..3000)
        .step_by(100)
        .chain([1_490, 1_510])
        .chain((3_000..=30_000).step_by(500))
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

fn step(lab: &Lab<'_>) -> Result<Output, Error> {
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
        let settings = VARIANTS[case.variant].with([
            format!("link.space.delay={}ms", case.delay_ms),
            format!("flow.file.bytes={}kB", case.file_kb),
            format!("tcp.host.receive_buffer={}kB", case.buffer_kb),
            // OPNET's five SYNs reach 22.5 s; the same schedule without an end reaches all of them.
            "tcp.host.syn=ns".into(),
            format!("tcp.host.rto.max={}s", MAX_RTOS_S[0]),
        ]);
        lab.scenario(&SCENARIO, &settings)
    };
    let scenarios = cases.iter().map(scenario).collect::<Result<Vec<_>, _>>()?;
    let flows: Vec<FlowResult> =
        lab.run(&scenarios)?.iter().map(|runs| runs.0[0].0.flows[0].clone()).collect();
    let measured: Vec<Measured<'_>> = cases.iter().zip(&flows).collect();
    let ceilings = ceilings(lab)?;
    let rest = linux::step(lab)?;
    let output = Output {
        claims: vec![
            full_within(&measured),
            less_beyond(&measured),
            same_for_all(&measured),
            same_with_timestamps(&measured),
            third_radius(&ceilings),
        ],
        tables: vec![
            Part::new("step", around_the_step(&measured)),
            Part::new("transfers", step_table(&measured)),
            Part::new("ceiling", ceiling_table(&ceilings)),
        ],
        figures: vec![
            Part::new("efficiency", efficiency_plot(&measured)),
            Part::new("time", time_plot(&measured)),
            Part::new("ceiling", ceiling_plot(&ceilings)),
        ],
    };
    Ok(Output {
        claims: [output.claims, rest.claims].concat(),
        tables: [output.tables, rest.tables].concat(),
        figures: [output.figures, rest.figures].concat(),
    })
}

/// Goodput over throughput: the share of the bytes sent that was not sent in vain.
fn efficiency(flow: &FlowResult) -> f64 {
    flow.bytes as f64 / flow.legs[0].bytes_sent.max(1) as f64
}

fn delay_s(case: &Case) -> f64 {
    f64::from(case.delay_ms) / 1e3
}

type Measured<'a> = (&'a Case, &'a FlowResult);

fn without_timestamps((case, _): &&Measured<'_>) -> bool {
    case.variant != WITH_TIMESTAMPS
}

/// At 1.5 s itself, the answer is late by the transmission time of its packets.
fn full_within(measured: &[Measured<'_>]) -> Claim {
    let within = measured.iter().filter(|(case, _)| delay_s(case) < STEP_S);
    let values: Vec<f64> = within.map(|(_, flow)| efficiency(flow)).collect();
    let least = values.iter().copied().fold(1.0, f64::min);
    Claim::stated(
        "Below 1.5 s one way nothing is sent twice: goodput over throughput is 1",
        "the figures of goodput over throughput",
    )
    .shown_in("", 1.0, 3)
    .with(Range::at_least(1.0).of_exact(least).at("at the least"))
    .noting(format!("{} transfers", values.len()))
}

fn less_beyond(measured: &[Measured<'_>]) -> Claim {
    let beyond = measured.iter().filter(without_timestamps).filter(|(case, _)| delay_s(case) >= STEP_S);
    let values: Vec<f64> = beyond.map(|(_, flow)| efficiency(flow)).collect();
    let most = values.iter().copied().fold(0.0, f64::max);
    Claim::stated(
        "Beyond 1.5 s it steps down, with Reno and with SACK: it is lower in every transfer",
        "the figures of goodput over throughput",
    )
    .shown_in("", 1.0, 3)
    .with(Range::below(1.0).of_exact(most).at("at the most"))
    .noting(format!("{} transfers", values.len()))
}

/// The variant and the step of each combination of variant, file and buffer. The step is the longest delay
/// with full efficiency.
fn steps(measured: &[Measured<'_>]) -> Vec<(usize, f64)> {
    let same = |(a, _): &Measured<'_>, (b, _): &Measured<'_>| {
        (a.variant, a.file_kb, a.buffer_kb) == (b.variant, b.file_kb, b.buffer_kb)
    };
    let step = |combination: &[Measured<'_>]| {
        let full = combination.iter().take_while(|(_, flow)| efficiency(flow) == 1.0);
        (combination[0].0.variant, full.map(|(case, _)| delay_s(case)).last().unwrap_or(0.0))
    };
    measured.chunk_by(same).map(step).collect()
}

fn same_for_all(measured: &[Measured<'_>]) -> Claim {
    let steps: Vec<f64> = steps(measured)
        .into_iter()
        .filter(|(variant, _)| *variant != WITH_TIMESTAMPS)
        .map(|(_, step)| step)
        .collect();
    let (least, most) = extremes(&steps);
    Claim::stated(
        "The step's place does not depend on the size of file or buffer",
        "the figures of goodput over throughput",
    )
    .shown_in("s", 1.0, 2)
    .with(Range::between(0.0, 0.0).of_exact(most - least).at("apart"))
    .noting(format!("full efficiency up to {least} s to {most} s, in {} combinations", steps.len()))
}

/// Timestamps are one of the publication's variants.
fn same_with_timestamps(measured: &[Measured<'_>]) -> Claim {
    let (with, without): (Vec<_>, Vec<_>) =
        steps(measured).into_iter().partition(|(variant, _)| *variant == WITH_TIMESTAMPS);
    let [with, without] =
        [with, without].map(|steps| extremes(&steps.iter().map(|step| step.1).collect::<Vec<_>>()));
    let apart = (with.0 - without.0).abs().max((with.1 - without.1).abs());
    Claim::stated(
        "The variant with timestamps has its step at the same place",
        "the figures of goodput over throughput",
    )
    .shown_in("s", 1.0, 2)
    .with(Range::between(0.0, 0.0).of_exact(apart).at("apart"))
    .noting(format!("full efficiency up to {} s with timestamps, {} s without", with.1, without.1))
}

/// Maximum RTOs, seconds: that of the publication, and Linux'.
const MAX_RTOS_S: [u32; 2] = [64, 120];
/// The file of the third radius, kB.
const CEILING_FILE_KB: u32 = 100;

/// A transfer with timestamps at a distance, by maximum RTO: seconds one way, and its efficiency.
type Ceilings = [Vec<(f64, f64)>; 2];

/// The inner radius hides the third one, but not from a connection that has measured its round trip at once.
fn ceilings(lab: &Lab<'_>) -> Result<Ceilings, Error> {
    let delays: Vec<u32> = (20..=70).collect();
    let scenario = |max_rto: u32, delay: u32| {
        lab.scenario(
            &SCENARIO,
            &VARIANTS[WITH_TIMESTAMPS].with([
                format!("link.space.delay={delay}s"),
                format!("flow.file.bytes={CEILING_FILE_KB}kB"),
                "tcp.host.receive_buffer=1000kB".into(),
                "tcp.host.syn=ns".into(),
                "tcp.host.retries=endless".into(),
                format!("tcp.host.rto.max={max_rto}s"),
            ]),
        )
    };
    let pairs = MAX_RTOS_S.iter().flat_map(|&max_rto| delays.iter().map(move |&delay| (max_rto, delay)));
    let scenarios = pairs.map(|(max_rto, delay)| scenario(max_rto, delay)).collect::<Result<Vec<_>, _>>()?;
    let runs = lab.run(&scenarios)?;
    let points = |max_rto: usize| {
        let runs = runs[max_rto * delays.len()..].iter();
        let efficiencies = runs.map(|runs| efficiency(&runs.0[0].0.flows[0]));
        delays.iter().map(|&delay| f64::from(delay)).zip(efficiencies).collect()
    };
    Ok([0, 1].map(points))
}

/// At half the maximum RTO itself, the transmission time of the packets decides.
fn third_radius(ceilings: &Ceilings) -> Claim {
    let tests = ceilings.iter().zip(MAX_RTOS_S).flat_map(|(points, max_rto)| {
        let radius = f64::from(max_rto) / 2.0;
        let least = points.iter().filter(|point| point.0 < radius).map(|point| point.1).fold(1.0, f64::min);
        let most = points.iter().filter(|point| point.0 > radius).map(|point| point.1).fold(0.0, f64::max);
        [
            Range::at_least(1.0)
                .of_exact(least)
                .at(format!("below {radius} s with {max_rto} s, at the least")),
            Range::below(1.0).of_exact(most).at("beyond it, at the most"),
        ]
    });
    Claim::ours(
        "A third radius is where the round trip passes the maximum RTO: with timestamps nothing is sent twice \
         below half of 64 and of 120 s one way, and something is beyond",
    )
    .shown_in("", 1.0, 3)
    .with_all(tests)
}

fn ceiling_table(ceilings: &Ceilings) -> Table {
    let columns = MAX_RTOS_S.map(|max_rto| {
        Column::new(
            format!("goodput / throughput, maximum RTO {max_rto} s"),
            format!("max_rto_{max_rto}_efficiency"),
        )
    });
    let delay = Column::new("one-way delay", "delay_s").shown_in("s", 1.0);
    let title = format!("A file of {CEILING_FILE_KB} kB with timestamps, beyond the third radius");
    let mut table = Table::new(title, [delay].into_iter().chain(columns).collect());
    for (&(delay, first), &(_, second)) in ceilings[0].iter().zip(&ceilings[1]) {
        table.push(vec![Cell::Number(delay, 0), Cell::Number(first, 3), Cell::Number(second, 3)]);
    }
    table
}

fn ceiling_plot(ceilings: &Ceilings) -> Plot {
    let plot = Plot::new(
        "The third radius: a round trip above the maximum RTO",
        Axis::new("one-way delay", "s of light"),
        Axis::dimensionless("goodput / throughput").including(0.0),
    );
    MAX_RTOS_S.iter().zip(ceilings).fold(plot, |plot, (max_rto, points)| {
        let points = points.iter().map(|&(delay, efficiency)| Point::new(delay, Estimate::from(efficiency)));
        plot.with(Series::new(format!("maximum RTO {max_rto} s"), Style::Line, points))
    })
}

fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, 0.0f64), |(least, most), &value| (least.min(value), most.max(value)))
}

/// One file and one buffer, at a few distances.
fn around_the_step(measured: &[Measured<'_>]) -> Table {
    let shown = [300, 1_000, 1_490, 1_500, 2_000, 5_000, 10_000, 22_000, 30_000];
    let heading = |Scheme { name, key, .. }: &Scheme| {
        [
            Column::new(format!("{name}: time"), format!("{key}_transfer_s")).shown_in("s", 1.0),
            Column::new("goodput / throughput", format!("{key}_efficiency")),
        ]
    };
    let columns = [Column::new("one-way delay", "delay_s").shown_in("s", 1.0)];
    let columns = columns.into_iter().chain(VARIANTS.iter().flat_map(heading)).collect();
    let mut table = Table::new("A file of 100 kB, receive buffer of 1 MB", columns);
    for delay_ms in shown {
        let of_interest = |(case, _): &&Measured<'_>| {
            (case.delay_ms, case.file_kb, case.buffer_kb) == (delay_ms, FILES_KB[1], BUFFERS_KB[1])
        };
        let cells = measured
            .iter()
            .filter(of_interest)
            .flat_map(|(_, flow)| [Cell::Number(flow.seconds, 1), Cell::Number(efficiency(flow), 3)]);
        table.push([Cell::Number(f64::from(delay_ms) / 1e3, 2)].into_iter().chain(cells).collect());
    }
    table
}

fn step_table(measured: &[Measured<'_>]) -> Table {
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
        let time = if flow.finished { Cell::Number(flow.seconds, 2) } else { Cell::Missing };
        table.push(vec![
            Cell::text(VARIANTS[case.variant].name),
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
    measured: &'a [Measured<'a>],
    value: impl Fn(&FlowResult) -> f64 + 'a,
) -> impl Iterator<Item = Series> + 'a {
    let of = |variant: usize, file_kb: u32| {
        measured.iter().filter(move |(case, flow)| {
            case.variant == variant
                && case.file_kb == file_kb
                && case.buffer_kb == BUFFERS_KB[1]
                && flow.finished
        })
    };
    let kinds =
        (0..VARIANTS.len()).flat_map(|variant| [FILES_KB[0], FILES_KB[2]].map(|file| (variant, file)));
    kinds.map(move |(variant, file_kb)| {
        let points: Vec<Point> =
            of(variant, file_kb).map(|(case, flow)| Point::new(delay_s(case), value(flow))).collect();
        Series::new(format!("{}, {file_kb} kB", VARIANTS[variant].name), Style::Curve, points)
    })
}

fn efficiency_plot(measured: &[Measured<'_>]) -> Plot {
    let plot = Plot::new(
        "Goodput over throughput by distance",
        Axis::new("one-way delay", "s of light").log(),
        Axis::dimensionless("goodput / throughput"),
    );
    curves(measured, efficiency).fold(plot, Plot::with)
}

fn time_plot(measured: &[Measured<'_>]) -> Plot {
    let plot = Plot::new(
        "Time to transfer a file by distance",
        Axis::new("one-way delay", "s of light"),
        Axis::new("transfer time", "s"),
    );
    curves(measured, |flow| flow.seconds).fold(plot, Plot::with)
}
