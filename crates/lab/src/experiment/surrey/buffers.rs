//! Figure 4: what the gateway must hold.

use bentpipe_sim::{Observer, RunResult};
use bentpipe_units::Time;

use super::super::{Experiment, Findings, Lab, Runs};
use super::{FILE, PACKET, SCENARIO, SOURCE, WINDOW, Way, scientific};
use crate::Error;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

pub(in super::super) const FIG4: Experiment = Experiment {
    name: "surrey-fig4",
    title: "What the gateway must hold, by packet error rate",
    source: SOURCE,
    seeds: 100,
    run: fig4,
    on_kernel: None,
};

const PERS: [f64; 5] = [1e-5, 1e-4, 1e-3, 1e-2, 5e-2];
const WAYS: [Way; 3] = [Way::SplitDelayed, Way::SplitSack, Way::Snoop];
const SATELLITE: usize = 1;
const GATEWAY: &str = "gateway";
const KB: f64 = 1e3;
const MB: f64 = 1e6;

/// What the splitter holds over time.
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

/// The most that the splitter holds for TCP, and the agents and the ARQ at the gateway for the link, bytes.
fn most(run: &RunResult) -> [f64; 2] {
    let splitter = run.flows[0].splitters.first().map_or(0, |splitter| splitter.most_bytes);
    let stations = run.links[SATELLITE].stations.iter().filter(|station| station.node == GATEWAY);
    [splitter as f64, stations.map(|station| station.most_held_bytes as f64).sum()]
}

fn fig4(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut scenarios = Vec::new();
    for way in WAYS {
        for per in PERS {
            scenarios.push(lab.scenario(&SCENARIO, &way.with_per(per))?);
        }
    }
    let observed = lab.observe(&scenarios[..PERS.len()], Occupancy::default);
    let courses: Vec<&Occupancy> = observed.iter().map(|runs| &runs[0].1).collect();
    let plot = plot(&courses);
    let delayed = observed.into_iter().map(|runs| Runs(runs.into_iter().map(|(result, _)| result).collect()));
    let runs: Vec<Runs> = delayed.chain(lab.run(&scenarios[PERS.len()..])).collect();
    let held: Vec<Vec<[Summary; 2]>> = runs
        .chunks(PERS.len())
        .map(|way| way.iter().map(|runs| [0, 1].map(|at| runs.summary(|run| most(run)[at]))).collect())
        .collect();
    Ok(Findings {
        verdicts: vec![approaches_the_transfer(&held[0]), grows(&held[0]), snoop_is_bounded(&held[2])],
        tables: vec![Part::new("held", table(&held))],
        figures: vec![Part::new("held", plot)],
    })
}

fn plot(courses: &[&Occupancy]) -> Plot {
    let plot = Plot::new(
        "What the gateway holds of 4 MB, split with delayed dup-ACKs, one run",
        Axis::new("time", "s"),
        Axis::new("held by the proxy", "MB").including(FILE / MB),
    );
    PERS.into_iter().zip(courses).fold(plot, |plot, (per, course)| {
        let points = course.0.iter().map(|&(at, held)| Point::new(at, Estimate::from(held)));
        plot.with(Series::new(format!("PER {}", scientific(per)), Style::Curve, points))
    })
}

fn table(held: &[Vec<[Summary; 2]>]) -> Table {
    let columns = WAYS.iter().flat_map(|way| {
        let column = |what: &str, key: &str| {
            Column::new(format!("{}: {what}", way.name()), format!("{}_{key}_bytes", way.key()))
                .shown_in("kB", KB)
        };
        match way {
            Way::SplitDelayed => vec![column("proxy", "proxy"), column("ARQ", "arq")],
            Way::Snoop => vec![column("cache", "cache")],
            _ => vec![column("proxy", "proxy")],
        }
    });
    let mut table = Table::new(
        "The most that the gateway holds of a file of 4 MB",
        [Column::new("PER", "per")].into_iter().chain(columns).collect(),
    );
    for (at, per) in PERS.into_iter().enumerate() {
        let cells = WAYS.iter().zip(held).flat_map(|(way, held)| {
            let [splitter, station] = held[at].map(|value| Cell::interval(Some(value), 0));
            match way {
                Way::SplitDelayed => vec![splitter, station],
                Way::Snoop => vec![station],
                _ => vec![splitter],
            }
        });
        table.push([Cell::Number(per, 5)].into_iter().chain(cells).collect());
    }
    table
}

/// "Almost equal" is taken as nine tenths.
fn approaches_the_transfer(held: &[[Summary; 2]]) -> Verdict {
    let last = held[held.len() - 1][0];
    Verdict::new(
        "At the highest packet error rate the gateway must hold almost the whole file: 90% of it or more",
        last.mean >= 0.9 * FILE,
        format!("{:.2} of 4 MB at PER {}", last.mean / MB, scientific(PERS[PERS.len() - 1])),
    )
}

fn grows(held: &[[Summary; 2]]) -> Verdict {
    let told: Vec<String> = held.iter().map(|[proxy, _]| format!("{:.2}", proxy.mean / MB)).collect();
    Verdict::new(
        "It must hold more the more is lost",
        held.windows(2).all(|pair| pair[1][0].ratio_to(&pair[0][0]).may_be_at_least(1.0))
            && held[held.len() - 1][0].mean > held[0][0].mean,
        format!("{} MB at PER {}", told.join(", "), PERS.map(scientific).join(", ")),
    )
}

/// The cache holds IP packets, with 52 bytes of headers each.
fn snoop_is_bounded(held: &[[Summary; 2]]) -> Verdict {
    const HEADERS: f64 = 52.0;
    let most = held.iter().map(|[_, cache]| cache.mean).fold(0.0, f64::max);
    Verdict::new(
        "Beyond the paper: Snoop never holds more than the sender's window",
        most <= WINDOW * (PACKET + HEADERS) && most > 0.0,
        format!("{:.1} kB at the most; the window is {:.1} kB", most / KB, WINDOW * (PACKET + HEADERS) / KB),
    )
}
