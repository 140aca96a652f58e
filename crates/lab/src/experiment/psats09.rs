//! PSATS09: Caini, Firrincieli, Lacamera, "PEPsal Performance Analysis on Disruptive Radio Channels", PSATS
//! 2009.

use super::{Curves, Experiment, Lab, Measure, Output, Runs, Scheme};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart, Plot, Series, Style};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};

const SOURCE: &str =
    "Caini, Firrincieli, Lacamera: PEPsal Performance Analysis on Disruptive Radio Channels, PSATS 2009";
pub(super) const SCENARIO: (&str, &str) =
    ("scenarios/psats09.toml", include_str!("../../../../scenarios/psats09.toml"));

const TUNNELS: &str = include_str!("../../../../data/direttissima.csv");
/// The length of the line from Bologna to Florence, kilometres.
const LINE_KM: u32 = 96;
pub(super) const SPEEDS_KMH: [u32; 3] = [60, 120, 180];
/// Maximum RTOs of the satellite leg, seconds.
const CEILINGS_S: [u32; 5] = [120, 60, 30, 10, 1];
pub(super) const GOODPUT: Measure = Measure::mbps("clear_sky_goodput_bps");

/// How many journeys at each speed figure 4 begins with. Ten times as many would not decide the claims
/// that five leave undecided, which are about a few percent, and five decide the others.
const JOURNEYS: u64 = 5;

pub(super) const FIG3: Experiment = Experiment {
    name: "psats09-fig3",
    title: "The tunnels between Bologna and Florence, and how long they interrupt",
    source: SOURCE,
    plan: Plan::doubling(1),
    run: Some(fig3),
    on_kernel: None,
};

pub(super) const FIG4: Experiment = Experiment {
    name: "psats09-fig4",
    title: "End-to-end TCP and PEPsal through the tunnels of a railway",
    source: SOURCE,
    plan: Plan::doubling(JOURNEYS),
    run: Some(fig4),
    on_kernel: Some((1, fig4)),
};

pub(super) const FIG5: Experiment = Experiment {
    name: "psats09-fig5",
    title: "The maximum RTO on the satellite leg, through the tunnels of a railway",
    source: SOURCE,
    plan: Plan::fixed(7),
    run: Some(fig5),
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

/// How far the speed of a journey is from the nominal one at most, as a part of it: at 120 km/h, from 116 to
/// 124.
const SPREAD: f64 = 1.0 / 30.0;

/// One connection for the whole journey at about a speed.
///
/// The timer of a connection doubles from the start of a tunnel on. So which of its tries is the first after
/// the tunnel depends on the tunnel's length in seconds, and would be the same for all seeds at one speed:
/// with one maximum RTO luck, and with the next one bad luck. A train has not one speed either. The seeds are
/// spread evenly over a band around the nominal speed, and all schemes have the same speed with the same
/// seed.
pub(super) fn journey(scheme: Scheme, speed_kmh: u32, seed: u64) -> Vec<String> {
    let speed_kmh = f64::from(speed_kmh) * (1.0 + SPREAD * (2.0 * golden(seed) - 1.0));
    let seconds = 3600.0 * f64::from(LINE_KM) / speed_kmh;
    scheme
        .with([format!("duration={seconds:.3}s"), format!("link.satellite.outages.speed_kmh={speed_kmh:.3}")])
}

/// The multiples of the golden ratio modulo 1: any number of consecutive ones is spread evenly.
fn golden(index: u64) -> f64 {
    const RATIO: f64 = 0.618_033_988_749_894_9;
    ((index % (1 << 32)) as f64 * RATIO).fract()
}

pub(super) fn clear_sky(runs: &Runs) -> Sample {
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

/// The published figures of the line, from which its tunnels are reconstructed.
const PUBLISHED_TUNNELS: f64 = 33.0;
const PUBLISHED_KM: f64 = 37.4;
const PUBLISHED_LONGEST_KM: f64 = 18.5;

/// A tunnel: where it begins, and its length, kilometres.
type Tunnel = [f64; 2];

fn tunnels() -> Vec<Tunnel> {
    let rows = TUNNELS.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit()));
    let number = |cell: Option<&str>| cell.and_then(|cell| cell.parse().ok()).expect("the file is our own");
    let tunnel = |row: &str| {
        let mut cells = row.split(',');
        [number(cells.next()), number(cells.next())]
    };
    rows.map(tunnel).collect()
}

/// Nothing runs.
fn fig3(_: &Lab<'_>) -> Result<Output, Error> {
    let tunnels = tunnels();
    let seconds = |km: f64, speed: u32| 3600.0 * km / f64::from(speed);
    let interruption = |speed: u32| {
        Column::new(format!("interruption at {speed} km/h"), format!("{speed}_kmh_interruption_s"))
            .shown_in("s", 1.0)
    };
    let columns = [
        Column::new("begins at", "start_km").shown_in("km", 1.0),
        Column::new("length", "length_km").shown_in("km", 1.0),
    ];
    let columns = columns.into_iter().chain(SPEEDS_KMH.map(interruption)).collect();
    let mut table = Table::new("The tunnels of the reconstructed line", columns);
    for &[start, length] in &tunnels {
        let row = [Cell::Number(start, 1), Cell::Number(length, 3)].into_iter();
        table.push(row.chain(SPEEDS_KMH.map(|speed| Cell::Number(seconds(length, speed), 1))).collect());
    }
    let plot = Plot::new(
        "How long each tunnel interrupts",
        Axis::new("position along the line", "km"),
        Axis::new("interruption", "s").log(),
    );
    let plot = SPEEDS_KMH.into_iter().fold(plot, |plot, speed| {
        let points = tunnels.iter().map(|&[start, length]| (start, seconds(length, speed)));
        plot.with(Series::new(format!("{speed} km/h"), Style::Dots, points))
    });
    let lengths = || tunnels.iter().map(|tunnel| tunnel[1]);
    let longest = lengths().fold(0.0, f64::max);
    Ok(Output {
        claims: vec![
            Claim::stated("The line has 33 tunnels", "section 5")
                .shown_in("tunnels", 1.0, 0)
                .with(Range::between(PUBLISHED_TUNNELS, PUBLISHED_TUNNELS).of_exact(tunnels.len() as f64)),
            Claim::stated("They are 37.4 km long together, within 0.1 km, and the longest 18.5", "section 5")
                .shown_in("km", 1.0, 2)
                .with(
                    Range::between(PUBLISHED_KM - 0.1, PUBLISHED_KM + 0.1)
                        .of_exact(lengths().sum())
                        .at("together"),
                )
                .with(
                    Range::between(PUBLISHED_LONGEST_KM - 0.1, PUBLISHED_LONGEST_KM + 0.1)
                        .of_exact(longest)
                        .at("the longest"),
                )
                .noting("the short ones are drawn; the publication prints no list"),
        ],
        tables: vec![Part::new("tunnels", table)],
        figures: vec![Part::new("tunnels", plot)],
    })
}

fn fig4(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep_by_seed(&SCENARIO, &SCHEMES, &SPEEDS_KMH, journey)?;
    let goodput = Curves::of_runs(SCHEMES, GOODPUT, &runs, clear_sky);
    let (column, speeds) = by_speed();
    let table = goodput.table("Clear-sky goodput for a journey", [column], speeds);
    let chart = goodput.chart(chart_by_speed("Clear-sky goodput from Bologna to Florence"));
    Ok(Output {
        claims: vec![far_above(&goodput), within(&goodput), lower_at_higher_speed(&goodput)],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", chart)],
    })
}

/// "Far above" is taken as three times, because the figure is printed without numbers.
fn far_above(goodput: &Curves) -> Claim {
    Claim::expected("Hybla's goodput is far above Reno's (3 times or more) at each speed", "figure 4")
        .shown_in("times", 1.0, 1)
        .with_all(goodput.ratios(HYBLA, RENO, Range::at_least(3.0), at_speeds()))
}

fn within(goodput: &Curves) -> Claim {
    Claim::stated("PEPsal is within 5% of Hybla end to end at each speed", "figure 4")
        .shown_in("times", 1.0, 3)
        .with_all(goodput.ratios(PEPSAL, HYBLA, Range::between(0.95, 1.05), at_speeds()))
}

fn lower_at_higher_speed(goodput: &Curves) -> Claim {
    let steps = goodput.named().flat_map(|(name, values)| {
        let steps = values.windows(2).zip(SPEEDS_KMH.windows(2));
        steps.map(move |(values, speeds)| {
            let place = format!("for {name} at {} km/h of that at {}", speeds[1], speeds[0]);
            Range::below(1.0).of_ratio(&values[1], &values[0]).at(place)
        })
    });
    Claim::expected("The goodput of each is lower at a higher speed", "figure 4")
        .shown_in("times", 1.0, 3)
        .with_all(steps)
}

pub(super) fn at_speeds() -> impl Iterator<Item = String> {
    SPEEDS_KMH.into_iter().map(|speed| format!("at {speed} km/h"))
}

fn fig5(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep_by_seed(&SCENARIO, &SPEEDS_KMH, &CEILINGS_S, |speed, ceiling, seed| {
        let mut settings = journey(SCHEMES[PEPSAL], speed, seed);
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
        claims: vec![
            higher(goodput),
            rises(goodput),
            most_at_the_highest_speed(goodput),
            one_second(goodput),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot)],
    })
}

/// The indices of the two published ceilings, 120 and 10 s.
const HIGHEST: usize = 0;
const PUBLISHED: usize = 3;

fn higher(goodput: &[Vec<Sample>]) -> Claim {
    let tests = goodput
        .iter()
        .zip(at_speeds())
        .map(|(values, place)| Range::above(1.0).of_ratio(&values[PUBLISHED], &values[HIGHEST]).at(place));
    Claim::stated(
        "The goodput is higher with a maximum RTO of 10 s than with 120 s, at each speed",
        "figure 5",
    )
    .shown_in("times", 1.0, 3)
    .with_all(tests)
}

/// The steps between the two published ceilings are ours.
fn rises(goodput: &[Vec<Sample>]) -> Claim {
    let steps = goodput.iter().zip(SPEEDS_KMH).flat_map(|(values, speed)| {
        let steps = values[..=PUBLISHED].windows(2).zip(CEILINGS_S.windows(2));
        steps.map(move |(values, ceilings)| {
            let place = format!("from {} to {} s at {speed} km/h", ceilings[0], ceilings[1]);
            Range::at_least(1.0).of_ratio(&values[1], &values[0]).at(place)
        })
    });
    Claim::expected(
        "The goodput does not fall anywhere between, from 120 s over 60 and 30 to 10 s, at each speed",
        "figure 5",
    )
    .shown_in("times", 1.0, 3)
    .with_all(steps)
}

fn most_at_the_highest_speed(goodput: &[Vec<Sample>]) -> Claim {
    let gain = |values: &Vec<Sample>| {
        let gain = values[PUBLISHED].paired(&values[HIGHEST], |short, long| short / long);
        gain.expect("every journey has clear sky")
    };
    let (last, others) = goodput.split_last().expect("there are three speeds");
    let tests = others.iter().zip(SPEEDS_KMH).map(|(values, speed)| {
        Range::at_least(1.0).of_ratio(&gain(last), &gain(values)).at(format!("that at {speed} km/h"))
    });
    Claim::stated("The gain of 10 s over 120 s is largest at 180 km/h", "figure 5")
        .shown_in("times", 1.0, 3)
        .with_all(tests)
}

/// Not in the paper. A ceiling of 1 s, the lowest that Linux accepts, is below the round trip of a link with
/// a full queue.
fn one_second(goodput: &[Vec<Sample>]) -> Claim {
    let tests = goodput.iter().zip(at_speeds()).map(|(values, place)| {
        Range::below(1.0).of_ratio(&values[PUBLISHED + 1], &values[PUBLISHED]).at(place)
    });
    Claim::ours(
        "With a maximum RTO of 1 s, too close to the round trip, the goodput is lower again than with 10 s",
    )
    .shown_in("times", 1.0, 3)
    .with_all(tests)
}
