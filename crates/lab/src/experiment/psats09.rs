//! PSATS09: Caini, Firrincieli, Lacamera, "PEPsal Performance Analysis on Disruptive Radio Channels", PSATS 2009.

use super::{Experiment, Findings, Lab, Runs};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup, Plot, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

const SOURCE: &str =
    "Caini, Firrincieli, Lacamera: PEPsal Performance Analysis on Disruptive Radio Channels, PSATS 2009";
const SCENARIO: (&str, &str) = ("scenarios/psats09.toml", include_str!("../../../../scenarios/psats09.toml"));
const MBIT: f64 = 1e6;

/// Kilometres of the line from Bologna to Florence.
const LINE_KM: u32 = 96;
const SPEEDS_KMH: [u32; 3] = [60, 120, 180];
const CEILINGS_S: [u32; 5] = [120, 60, 30, 10, 1];

pub(super) const FIG4: Experiment = Experiment {
    name: "psats09-fig4",
    title: "End-to-end TCP and PEPsal through the tunnels of a railway",
    source: SOURCE,
    seeds: 20,
    run: fig4,
    on_kernel: None,
};

pub(super) const FIG5: Experiment = Experiment {
    name: "psats09-fig5",
    title: "The maximum RTO on the satellite leg, through the tunnels of a railway",
    source: SOURCE,
    seeds: 20,
    run: fig5,
    on_kernel: None,
};

/// One connection for the journey at a speed, by a way across the satellite.
fn journey(speed_kmh: u32, way: Way) -> Vec<String> {
    let seconds = 3600 * LINE_KM / speed_kmh;
    let mut settings =
        vec![format!("duration={seconds}s"), format!("link.satellite.outages.speed_kmh={speed_kmh}")];
    settings.extend(way.settings().iter().map(|&setting| setting.to_owned()));
    settings
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Reno,
    Hybla,
    Pepsal,
}

impl Way {
    const ALL: [Way; 3] = [Way::Reno, Way::Hybla, Way::Pepsal];

    fn name(self) -> &'static str {
        match self {
            Way::Reno => "Reno, end to end",
            Way::Hybla => "Hybla, end to end",
            Way::Pepsal => "PEPsal (Hybla)",
        }
    }

    /// The scenario is PEPsal's; end to end, nothing is split.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Way::Reno => &["flow.download.split=[]"],
            Way::Hybla => &["flow.download.split=[]", "flow.download.tcp=satellite"],
            Way::Pepsal => &[],
        }
    }
}

fn clear_sky(runs: &Runs) -> Summary {
    runs.first_flow(|flow| flow.clear_sky_goodput_bps)
}

fn fig4(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut scenarios = Vec::new();
    for way in Way::ALL {
        for speed in SPEEDS_KMH {
            scenarios.push(lab.scenario(&SCENARIO, &journey(speed, way))?);
        }
    }
    let goodput: Vec<Vec<Summary>> = lab
        .run(&scenarios)
        .chunks(SPEEDS_KMH.len())
        .map(|runs| runs.iter().map(clear_sky).collect())
        .collect();
    let [reno, hybla, pepsal] = [0, 1, 2].map(|way| goodput[way].as_slice());

    let mut table = Table::new(
        "Clear-sky goodput for a journey",
        [Column::new("speed", "speed_kmh").shown_in("km/h", 1.0)]
            .into_iter()
            .chain(["reno", "hybla", "pepsal"].iter().zip(Way::ALL).map(|(key, way)| {
                Column::new(way.name(), format!("{key}_clear_sky_goodput_bps")).shown_in("Mbit/s", MBIT)
            }))
            .collect(),
    );
    for (index, speed) in SPEEDS_KMH.into_iter().enumerate() {
        let cells = goodput.iter().map(|way| Cell::interval(Some(way[index]), 2));
        table.push([Cell::Number(speed.into(), 0)].into_iter().chain(cells).collect());
    }
    let mut chart = BarChart::new(
        "Clear-sky goodput from Bologna to Florence",
        Axis::new("train speed", "km/h"),
        Axis::new("clear-sky goodput", "Mbit/s"),
        SPEEDS_KMH.map(|speed| speed.to_string()),
    );
    for (way, values) in Way::ALL.into_iter().zip(&goodput) {
        chart = chart
            .with(BarGroup::new(way.name(), values.iter().map(|value| Some(value.estimate().in_unit(MBIT)))));
    }
    Ok(Findings {
        verdicts: vec![far_above(hybla, reno), within(pepsal, hybla), lower_at_higher_speed(&goodput)],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", chart)],
    })
}

/// "Far above" is taken as three times: the figure is printed without numbers.
fn far_above(hybla: &[Summary], reno: &[Summary]) -> Verdict {
    let ratios = ratios(hybla, reno);
    Verdict::new(
        "Hybla's goodput is far above Reno's (3 times or more) at each speed",
        ratios.iter().all(|ratio| ratio.value >= 3.0),
        format!("{} times at {} km/h", list(&ratios, 1), speeds()),
    )
}

fn within(pepsal: &[Summary], hybla: &[Summary]) -> Verdict {
    let ratios = ratios(pepsal, hybla);
    Verdict::new(
        "PEPsal is within 5% of Hybla end to end at each speed",
        ratios.iter().all(|ratio| ratio.may_be_at_least(0.95) && ratio.may_be_at_most(1.05)),
        format!("{} of it at {} km/h", list(&ratios, 3), speeds()),
    )
}

fn lower_at_higher_speed(goodput: &[Vec<Summary>]) -> Verdict {
    let told = Way::ALL
        .iter()
        .zip(goodput)
        .map(|(way, values)| format!("{}: {} Mbit/s", way.name(), list(&in_mbit(values), 2)));
    Verdict::new(
        "The goodput of each is lower at a higher speed",
        goodput.iter().all(|values| falls(values.iter())),
        format!("at {} km/h, {}", speeds(), told.collect::<Vec<_>>().join("; ")),
    )
}

/// From the first to the last it falls, and no step between two of them rises by more than chance: a ratio of at most 1
/// lies within the 95% interval.
fn falls<'a>(values: impl Iterator<Item = &'a Summary> + Clone) -> bool {
    let first_and_last = values.clone().next().zip(values.clone().last());
    let mut steps = values.clone().zip(values.skip(1));
    steps.all(|(before, after)| after.ratio_to(before).may_be_at_most(1.0))
        && first_and_last.is_some_and(|(first, last)| last.mean < first.mean)
}

fn ratios(above: &[Summary], below: &[Summary]) -> Vec<Estimate> {
    above.iter().zip(below).map(|(above, below)| above.ratio_to(below)).collect()
}

fn in_mbit(values: &[Summary]) -> Vec<Estimate> {
    values.iter().map(|value| value.estimate().in_unit(MBIT)).collect()
}

fn speeds() -> String {
    SPEEDS_KMH.map(|speed| speed.to_string()).join("/")
}

fn list(values: &[Estimate], decimals: usize) -> String {
    let told = |estimate: &Estimate| match estimate.half_width {
        Some(half) => format!("{:.decimals$} ± {half:.decimals$}", estimate.value),
        None => format!("{:.decimals$}", estimate.value),
    };
    values.iter().map(told).collect::<Vec<_>>().join(" / ")
}

fn fig5(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut scenarios = Vec::new();
    for speed in SPEEDS_KMH {
        for ceiling in CEILINGS_S {
            let mut settings = journey(speed, Way::Pepsal);
            settings.push(format!("tcp.satellite.rto.max={ceiling}s"));
            scenarios.push(lab.scenario(&SCENARIO, &settings)?);
        }
    }
    let goodput: Vec<Vec<Summary>> = lab
        .run(&scenarios)
        .chunks(CEILINGS_S.len())
        .map(|runs| runs.iter().map(clear_sky).collect())
        .collect();

    let columns = SPEEDS_KMH.map(|speed| {
        Column::new(format!("{speed} km/h"), format!("clear_sky_goodput_{speed}_kmh_bps"))
            .shown_in("Mbit/s", MBIT)
    });
    let mut table = Table::new(
        "Clear-sky goodput of PEPsal by the maximum RTO of the satellite leg",
        [Column::new("maximum RTO", "rto_max_s").shown_in("s", 1.0)].into_iter().chain(columns).collect(),
    );
    for (index, ceiling) in CEILINGS_S.into_iter().enumerate() {
        let cells = goodput.iter().map(|speed| Cell::interval(Some(speed[index]), 2));
        table.push([Cell::Number(ceiling.into(), 0)].into_iter().chain(cells).collect());
    }
    let mut plot = Plot::new(
        "PEPsal from Bologna to Florence",
        Axis::new("maximum RTO", "s").log(),
        Axis::new("clear-sky goodput", "Mbit/s"),
    );
    for (speed, values) in SPEEDS_KMH.into_iter().zip(&goodput) {
        let points = CEILINGS_S.into_iter().zip(values);
        let points = points.map(|(ceiling, value)| {
            crate::figure::Point::new(ceiling.into(), value.estimate().in_unit(MBIT))
        });
        plot = plot.with(Series::new(format!("{speed} km/h"), Style::Line, points));
    }
    Ok(Findings {
        verdicts: vec![rises(&goodput), most_at_the_highest_speed(&goodput), one_second(&goodput)],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot)],
    })
}

/// The published ceilings, 120 to 10 s: the first four.
const PUBLISHED: usize = 4;

fn rises(goodput: &[Vec<Summary>]) -> Verdict {
    let told = SPEEDS_KMH
        .iter()
        .zip(goodput)
        .map(|(speed, values)| format!("{speed} km/h: {}", list(&in_mbit(&values[..PUBLISHED]), 2)));
    Verdict::new(
        "The goodput rises as the maximum RTO falls from 120 s over 60 and 30 to 10 s, at each speed",
        goodput.iter().all(|values| falls(values[..PUBLISHED].iter().rev())),
        format!("{} Mbit/s", told.collect::<Vec<_>>().join("; ")),
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
        format!("{} times at {} km/h", list(&gains, 3), speeds()),
    )
}

/// Not in the paper: a ceiling of 1 s, the lowest that Linux takes, lies below the round trip that a queue makes.
fn one_second(goodput: &[Vec<Summary>]) -> Verdict {
    let changes: Vec<Estimate> =
        goodput.iter().map(|values| values[PUBLISHED].ratio_to(&values[PUBLISHED - 1])).collect();
    Verdict::new(
        "Beyond the paper: with a maximum RTO of 1 s, too close to the round trip, it is lower again than with 10 s",
        changes.iter().all(|change| change.value < 1.0),
        format!("{} times at {} km/h", list(&changes, 3), speeds()),
    )
}
