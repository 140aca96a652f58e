//! Figure 4: the memory that the gateway needs.

use bentpipe_sim::{Observer, RunResult};
use bentpipe_units::Time;

use super::super::{Experiment, Lab, Output, Runs, Scheme};
use super::{FIGURE_4, FILE, PACKET, SCENARIO, SOURCE, WINDOW, at_per, by_per, scientific, settings};
use super::{SCHEMES, SNOOP, SPLIT_DELAYED, SPLIT_SACK};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::Part;
use crate::statistics::{Estimate, Sample};
use crate::table::{Cell, Column, Table};

pub(in super::super) const FIG4: Experiment = Experiment {
    name: "surrey-fig4",
    title: "What the gateway must hold, by packet error rate",
    source: SOURCE,
    seeds: 50,
    run: fig4,
    on_kernel: None,
};

const PERS: [f64; 5] = [1e-5, 1e-4, 1e-3, 1e-2, 5e-2];
const COMPARED: [usize; 3] = [SPLIT_DELAYED, SPLIT_SACK, SNOOP];
const SATELLITE: usize = 1;
const GATEWAY: &str = "gateway";
const KB: f64 = 1e3;
const MB: f64 = 1e6;

/// The bytes that the splitter holds over time: seconds, MB.
#[derive(Debug, Default)]
struct Occupancy(Vec<(f64, f64)>);

impl Observer for Occupancy {
    fn wants_samples(&self) -> bool {
        true
    }

    fn occupancy(&mut self, now: Time, _: usize, _: usize, bytes: u64) {
        self.0.push((now.as_secs_f64(), bytes as f64 / MB));
    }
}

/// The most bytes that the splitter held at a time, and the most that the agents and the ARQ at the gateway
/// held.
fn most_held<O>(runs: &Runs<O>) -> [Sample; 2] {
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
    let delayed = lab.observe(&delayed, Occupancy::default)?;
    let others = lab.sweep(&SCENARIO, &schemes[1..], &PERS, settings)?;
    let [split, snoop] = [0, 1].map(|scheme| others[scheme].iter().map(most_held).collect());
    let held: [Vec<[Sample; 2]>; 3] = [delayed.iter().map(most_held).collect(), split, snoop];
    Ok(Output {
        claims: vec![approaches_the_transfer(&held[0]), grows(&held[0]), snoop_is_bounded(&held[2])],
        tables: vec![Part::new("held", table(&held))],
        figures: vec![Part::new("held", plot(&delayed))],
    })
}

fn plot(runs: &[Runs<Occupancy>]) -> Plot {
    let plot = Plot::new(
        "What the gateway holds of 4 MB, split with delayed dup-ACKs, one run",
        Axis::new("time", "s"),
        Axis::new("held by the proxy", "MB").including(FILE / MB),
    );
    PERS.into_iter().zip(runs).fold(plot, |plot, (per, runs)| {
        let Occupancy(samples) = &runs.0[0].1;
        let points = samples.iter().map(|&(at, held)| Point::new(at, Estimate::from(held)));
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

/// "Almost equal" is taken as nine tenths.
fn approaches_the_transfer(held: &[[Sample; 2]]) -> Claim {
    let last = &held[held.len() - 1][0];
    Claim::stated(
        "At the highest packet error rate the gateway must hold almost the whole file: 90% of it or more",
        FIGURE_4,
    )
    .shown_in("MB", MB, 2)
    .with(Range::at_least(0.9 * FILE).of_mean(last).at(at_per(PERS[PERS.len() - 1])))
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
