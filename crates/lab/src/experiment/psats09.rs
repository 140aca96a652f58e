//! PSATS09: Caini, Firrincieli, Lacamera, "PEPsal Performance Analysis on Disruptive Radio Channels", PSATS
//! 2009.

use super::{Curves, Experiment, Lab, Measure, Output, Runs, Scheme, listed};
use crate::Error;
use crate::figure::{Axis, BarChart, Plot};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column};

const SOURCE: &str =
    "Caini, Firrincieli, Lacamera: PEPsal Performance Analysis on Disruptive Radio Channels, PSATS 2009";
pub(super) const SCENARIO: (&str, &str) =
    ("scenarios/psats09.toml", include_str!("../../../../scenarios/psats09.toml"));

/// The length of the line from Bologna to Florence, kilometres.
const LINE_KM: u32 = 96;
pub(super) const SPEEDS_KMH: [u32; 3] = [60, 120, 180];
/// Maximum RTOs of the satellite leg, seconds.
const CEILINGS_S: [u32; 5] = [120, 60, 30, 10, 1];
pub(super) const GOODPUT: Measure = Measure::mbps("clear_sky_goodput_bps");

pub(super) const FIG4: Experiment = Experiment {
    name: "psats09-fig4",
    title: "End-to-end TCP and PEPsal through the tunnels of a railway",
    source: SOURCE,
    seeds: 20,
    run: fig4,
    on_kernel: Some((1, fig4)),
};

pub(super) const FIG5: Experiment = Experiment {
    name: "psats09-fig5",
    title: "The maximum RTO on the satellite leg, through the tunnels of a railway",
    source: SOURCE,
    seeds: 20,
    run: fig5,
    on_kernel: Some((1, fig5)),
};

/// The scenario is PEPsal's. End to end, nothing is split.
const SCHEMES: [Scheme; 3] = [
    Scheme { name: "Reno, end to end", key: "reno", settings: &["flow.download.split=[]"] },
    Scheme {
        name: "Hybla, end to end",
        key: "hybla",
        settings: &["flow.download.split=[]", "flow.download.tcp=satellite"],
    },
    Scheme { name: "PEPsal (Hybla)", key: "pepsal", settings: &[] },
];
const RENO: usize = 0;
const HYBLA: usize = 1;
const PEPSAL: usize = 2;

/// One connection for the whole journey at a speed.
pub(super) fn journey(scheme: Scheme, speed_kmh: u32) -> Vec<String> {
    let seconds = 3600 * LINE_KM / speed_kmh;
    scheme.with([format!("duration={seconds}s"), format!("link.satellite.outages.speed_kmh={speed_kmh}")])
}

pub(super) fn clear_sky(runs: &Runs) -> Summary {
    runs.first_flow(|flow| flow.clear_sky_goodput_bps)
}

/// The leading cells of a table with a row for each speed.
pub(super) fn by_speed() -> (Column, impl Iterator<Item = Vec<Cell>>) {
    let column = Column::new("speed", "speed_kmh").shown_in("km/h", 1.0);
    (column, SPEEDS_KMH.into_iter().map(|speed| vec![Cell::Number(speed.into(), 0)]))
}

/// An empty chart with a category for each speed.
pub(super) fn chart_by_speed(title: &str) -> BarChart {
    let (x, y) = (Axis::new("train speed", "km/h"), Axis::new("clear-sky goodput", "Mbit/s"));
    BarChart::new(title, x, y, SPEEDS_KMH.map(|speed| speed.to_string()))
}

fn fig4(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, &SCHEMES, &SPEEDS_KMH, journey)?;
    let goodput = Curves::of_runs(SCHEMES, GOODPUT, &runs, clear_sky);
    let (column, speeds) = by_speed();
    let table = goodput.table("Clear-sky goodput for a journey", [column], speeds);
    let chart = goodput.chart(chart_by_speed("Clear-sky goodput from Bologna to Florence"));
    Ok(Output {
        verdicts: vec![
            far_above(&goodput.ratios(HYBLA, RENO)),
            within(&goodput.ratios(PEPSAL, HYBLA)),
            lower_at_higher_speed(&goodput),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", chart)],
    })
}

/// "Far above" is taken as three times, because the figure is printed without numbers.
fn far_above(hybla_to_reno: &[Estimate]) -> Verdict {
    Verdict::new(
        "Hybla's goodput is far above Reno's (3 times or more) at each speed",
        hybla_to_reno.iter().all(|ratio| ratio.value >= 3.0),
        format!("{} times at {} km/h", listed(hybla_to_reno, 1, " / "), speeds()),
    )
}

fn within(pepsal_to_hybla: &[Estimate]) -> Verdict {
    Verdict::new(
        "PEPsal is within 5% of Hybla end to end at each speed",
        pepsal_to_hybla.iter().all(|ratio| ratio.may_be_at_least(0.95) && ratio.may_be_at_most(1.05)),
        format!("{} of it at {} km/h", listed(pepsal_to_hybla, 3, " / "), speeds()),
    )
}

fn lower_at_higher_speed(goodput: &Curves) -> Verdict {
    let observed: Vec<String> =
        goodput.named().map(|(name, values)| format!("{name}: {} Mbit/s", in_mbps(values))).collect();
    Verdict::new(
        "The goodput of each is lower at a higher speed",
        goodput.all().iter().all(|values| falls(values.iter())),
        format!("at {} km/h, {}", speeds(), observed.join("; ")),
    )
}

/// Whether the values fall from the first to the last, and no step between two of them rises by more than
/// chance: a ratio of at most 1 lies within the 95% interval.
fn falls<'a>(values: impl Iterator<Item = &'a Summary> + Clone) -> bool {
    let first_and_last = values.clone().next().zip(values.clone().last());
    let mut steps = values.clone().zip(values.skip(1));
    steps.all(|(before, after)| after.ratio_to(before).may_be_at_most(1.0))
        && first_and_last.is_some_and(|(first, last)| last.mean < first.mean)
}

fn in_mbps(values: &[Summary]) -> String {
    listed(values.iter().map(|value| value.estimate().in_unit(1e6)), 2, " / ")
}

fn speeds() -> String {
    listed(SPEEDS_KMH, 0, "/")
}

fn fig5(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, &SPEEDS_KMH, &CEILINGS_S, |speed, ceiling| {
        let mut settings = journey(SCHEMES[PEPSAL], speed);
        settings.push(format!("tcp.satellite.rto.max={ceiling}s"));
        settings
    })?;
    let labels = SPEEDS_KMH.map(|speed| (format!("{speed} km/h"), format!("clear_sky_goodput_{speed}_kmh")));
    let goodput = Curves::of_runs(labels, Measure::mbps("bps"), &runs, clear_sky);
    let table = goodput.table(
        "Clear-sky goodput of PEPsal by the maximum RTO of the satellite leg",
        [Column::new("maximum RTO", "rto_max_s").shown_in("s", 1.0)],
        CEILINGS_S.map(|ceiling| vec![Cell::Number(ceiling.into(), 0)]),
    );
    let plot = Plot::new(
        "PEPsal from Bologna to Florence",
        Axis::new("maximum RTO", "s").log(),
        Axis::new("clear-sky goodput", "Mbit/s"),
    );
    let plot = goodput.plot(plot, CEILINGS_S.map(f64::from));
    let goodput = goodput.all();
    Ok(Output {
        verdicts: vec![rises(goodput), most_at_the_highest_speed(goodput), one_second(goodput)],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot)],
    })
}

/// The published ceilings, 120 to 10 s, are the first four.
const PUBLISHED: usize = 4;

fn rises(goodput: &[Vec<Summary>]) -> Verdict {
    let observed: Vec<String> = SPEEDS_KMH
        .iter()
        .zip(goodput)
        .map(|(speed, values)| format!("{speed} km/h: {}", in_mbps(&values[..PUBLISHED])))
        .collect();
    Verdict::new(
        "The goodput rises as the maximum RTO falls from 120 s over 60 and 30 to 10 s, at each speed",
        goodput.iter().all(|values| falls(values[..PUBLISHED].iter().rev())),
        format!("{} Mbit/s", observed.join("; ")),
    )
}

fn most_at_the_highest_speed(goodput: &[Vec<Summary>]) -> Verdict {
    let gains: Vec<Estimate> =
        goodput.iter().map(|values| values[PUBLISHED - 1].ratio_to(&values[0])).collect();
    let last = gains[gains.len() - 1];
    let reach = |gain: &Estimate| gain.half_width.unwrap_or(0.0) + last.half_width.unwrap_or(0.0);
    Verdict::new(
        "The gain of 10 s over 120 s is largest at 180 km/h",
        gains.iter().all(|gain| gain.value <= last.value + reach(gain)),
        format!("{} times at {} km/h", listed(&gains, 3, " / "), speeds()),
    )
}

/// Not in the paper. A ceiling of 1 s, the lowest that Linux accepts, is below the round trip of a link with
/// a full queue.
fn one_second(goodput: &[Vec<Summary>]) -> Verdict {
    let changes: Vec<Estimate> =
        goodput.iter().map(|values| values[PUBLISHED].ratio_to(&values[PUBLISHED - 1])).collect();
    Verdict::new(
        "Beyond the paper: with a maximum RTO of 1 s, too close to the round trip, it is lower again than \
         with 10 s",
        changes.iter().all(|change| change.value < 1.0),
        format!("{} times at {} km/h", listed(&changes, 3, " / "), speeds()),
    )
}
