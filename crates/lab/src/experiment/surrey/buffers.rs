//! Figure 4: the memory that the gateway needs, and the window of its sender.

use bentpipe_sim::{LegResult, Observer, RunResult};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::Time;

use super::super::observers::WindowTrace;
use super::super::{Experiment, Lab, Output, Runs, Scheme};
use super::{FIGURE_4, FILE, PACKET, SCENARIO, SEEDS, SOURCE, WINDOW};
use super::{GATEWAY_WINDOW, SCHEMES, SNOOP_BY_ORDER, SPLIT_DELAYED, SPLIT_SACK};
use super::{at_per, by_per, scientific, settings, undetermined};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Plan};
use crate::statistics::{Estimate, Sample};
use crate::table::{Cell, Column, Table};

pub(in super::super) const FIG4: Experiment = Experiment {
    name: "surrey-fig4",
    title: "What the gateway must hold, and its window, by packet error rate",
    source: SOURCE,
    plan: Plan::doubling(SEEDS),
    run: Some(fig4),
    on_kernel: Some((1, fig4)),
};

const PERS: [f64; 5] = [1e-5, 1e-4, 1e-3, 1e-2, 5e-2];
const COMPARED: [usize; 3] = [SPLIT_DELAYED, SPLIT_SACK, SNOOP_BY_ORDER];
const SATELLITE: usize = 1;
const GATEWAY: &str = "gateway";
const KB: f64 = 1e3;
const MB: f64 = 1e6;

/// The leg over the satellite.
const SATELLITE_LEG: usize = 1;

/// What the paper's figure shows of the gateway over time.
#[derive(Debug)]
struct Gateway {
    /// The bytes that the splitter holds: seconds, MB.
    held: Vec<(f64, f64)>,
    window: WindowTrace,
}

impl Gateway {
    fn new() -> Self {
        let window =
            WindowTrace { leg: SATELLITE_LEG, packet: PACKET, most: GATEWAY_WINDOW, samples: Vec::new() };
        Self { held: Vec::new(), window }
    }
}

impl Observer for Gateway {
    fn wants_samples(&self) -> bool {
        true
    }

    fn occupancy(&mut self, now: Time, _: usize, _: usize, bytes: u64) {
        self.held.push((now.as_secs_f64(), bytes as f64 / MB));
    }

    fn variables(&mut self, now: Time, flow: usize, leg: usize, variables: &Variables, done: &Statistics) {
        self.window.variables(now, flow, leg, variables, done);
    }
}

/// The most bytes that the splitter held at a time, and the most that the agents and the ARQ at the gateway
/// held.
pub(super) fn most_held<O>(runs: &Runs<O>) -> [Sample; 2] {
    [0, 1].map(|part| runs.sample(|run| most_bytes(run)[part]))
}

fn most_bytes(run: &RunResult) -> [f64; 2] {
    let splitter = run.flows[0].splitters.first().map_or(0, |splitter| splitter.most_bytes);
    let ends = run.links[SATELLITE].ends.iter().filter(|end| end.node == GATEWAY);
    [splitter as f64, ends.map(|end| end.most_held_bytes as f64).sum()]
}

fn fig4(lab: &Lab<'_>) -> Result<Output, Error> {
    let schemes = COMPARED.map(|scheme| SCHEMES[scheme]);
    let delayed = lab.scenarios(&SCENARIO, &schemes[..1], &PERS, settings)?;
    let delayed = lab.observe(&delayed, Gateway::new)?;
    let others = lab.sweep(&SCENARIO, &schemes[1..], &PERS, settings)?;
    let [split, snoop] = [0, 1].map(|scheme| others[scheme].iter().map(most_held).collect());
    let held: [Vec<[Sample; 2]>; 3] = [delayed.iter().map(most_held).collect(), split, snoop];
    Ok(Output {
        claims: vec![approaches_the_transfer(&held[0]), grows(&held[0]), snoop_is_bounded(&held[2])],
        tables: vec![Part::new("held", table(&held)), Part::new("window", windows(&delayed))],
        figures: vec![Part::new("held", plot_held(&delayed)), Part::new("window", plot_window(&delayed))],
    })
}

fn windows(runs: &[Runs<Gateway>]) -> Table {
    let columns = vec![
        Column::new("PER", "per"),
        Column::new("window, packets", "window_packets"),
        Column::new("fast recoveries", "recoveries"),
        Column::new("timeouts", "timeouts"),
    ];
    let mut table = Table::new(
        "The gateway's sender, split with delayed dup-ACKs: the mean of its window over the transfer",
        columns,
    );
    for (runs, mut row) in runs.iter().zip(by_per(&PERS, 5)) {
        let leg = |measure: fn(&LegResult) -> u64| {
            runs.first_flow(|flow| flow.legs.get(SATELLITE_LEG).map_or(0, measure) as f64)
        };
        let values = [
            runs.observed(|gateway| gateway.window.mean()),
            leg(|leg| leg.recoveries.unwrap_or_default()),
            leg(|leg| leg.timeouts),
        ];
        row.extend(values.map(|value| Cell::interval(Some(value), 1)));
        table.push(row);
    }
    table
}

fn plot_window(runs: &[Runs<Gateway>]) -> Plot {
    let plot = Plot::new(
        "The window of the gateway's sender, split with delayed dup-ACKs, one run",
        Axis::new("time", "s"),
        Axis::new("window", "packets").including(0.0),
    );
    PERS.into_iter().zip(runs).fold(plot, |plot, (per, runs)| {
        plot.with(runs.0[0].1.window.series(&format!("PER {}", scientific(per))))
    })
}

fn plot_held(runs: &[Runs<Gateway>]) -> Plot {
    let plot = Plot::new(
        "What the gateway holds of 4 MB, split with delayed dup-ACKs, one run",
        Axis::new("time", "s"),
        Axis::new("held by the proxy", "MB").including(FILE / MB),
    );
    PERS.into_iter().zip(runs).fold(plot, |plot, (per, runs)| {
        let points = runs.0[0].1.held.iter().map(|&(at, held)| Point::new(at, Estimate::from(held)));
        plot.with(Series::new(format!("PER {}", scientific(per)), Style::Curve, points))
    })
}

fn table(held: &[Vec<[Sample; 2]>; 3]) -> Table {
    let [split_delayed, split_sack, snoop] = COMPARED.map(|scheme| SCHEMES[scheme]);
    let column = |scheme: Scheme, what: &str, key: &str| {
        Column::new(format!("{}: {what}", scheme.name), format!("{}_{key}_bytes", scheme.key))
            .shown_in("kB", KB)
    };
    let columns = vec![
        Column::new("PER", "per"),
        column(split_delayed, "proxy", "proxy"),
        column(split_delayed, "ARQ", "arq"),
        column(split_sack, "proxy", "proxy"),
        column(snoop, "cache", "cache"),
    ];
    let mut table = Table::new("The most that the gateway holds of a file of 4 MB", columns);
    for (at, mut row) in by_per(&PERS, 5).enumerate() {
        let [[proxy, arq], [split_sack, _], [_, cache]] =
            held.each_ref().map(|held| held[at].each_ref().map(|value| Cell::interval(Some(value), 0)));
        row.extend([proxy, arq, split_sack, cache]);
        table.push(row);
    }
    table
}

/// What "almost equal to the size of transfer" (figure 4) is taken for.
pub(super) const ALMOST_ALL: f64 = 0.9;

fn approaches_the_transfer(held: &[[Sample; 2]]) -> Claim {
    let last = &held[held.len() - 1][0];
    Claim::stated(
        "At the highest packet error rate the gateway must hold almost the whole file: 90% of it or more",
        FIGURE_4,
    )
    .shown_in("MB", MB, 2)
    .with(Range::at_least(ALMOST_ALL * FILE).of_mean(last).at(at_per(PERS[PERS.len() - 1])))
    .noting(undetermined("the delay on the ground, with which the terrestrial sender's window is a rate"))
}

fn grows(held: &[[Sample; 2]]) -> Claim {
    let steps = held.windows(2).zip(&PERS[1..]).map(|(pair, &per)| {
        let [before, after] = [&pair[0][0], &pair[1][0]];
        Range::at_least(1.0).of_ratio(after, before).at(format!("{} of that before", at_per(per)))
    });
    let first_to_last = Range::above(1.0).of_ratio(&held[held.len() - 1][0], &held[0][0]);
    Claim::stated("It must hold more the more is lost", FIGURE_4)
        .shown_in("times", 1.0, 3)
        .with_all(steps)
        .with(first_to_last.at("from the first to the last"))
}

/// The cache holds IP packets, each with 52 bytes of headers.
fn snoop_is_bounded(held: &[[Sample; 2]]) -> Claim {
    const HEADERS: f64 = 52.0;
    let most: Vec<f64> = held.iter().flat_map(|[_, cache]| cache.values()).copied().collect();
    Claim::ours("Snoop never holds more than the sender's window, in every run")
        .shown_in("kB", KB, 1)
        .with(Range::between(1.0, WINDOW * (PACKET + HEADERS)).of_each(most))
        .noting(format!("the window is {:.1} kB", WINDOW * (PACKET + HEADERS) / KB))
}
