//! The same scenario in virtual time and on the kernel, side by side: a grid of round trips, losses,
//! congestion controls and loads.

use bentpipe_sim::{FlowResult, Scenario};

use super::{Experiment, Lab, Output, Runs, Scheme};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Plan, World};
use crate::statistics::{Estimate, Sample};
use crate::table::{Cell, Column, Table};

pub(super) const AGREEMENT: Experiment = Experiment {
    name: "agreement",
    title: "Virtual time and the kernel: the same downloads of a minute, or two with an outage",
    source: "ours",
    // In virtual time alone nothing is judged.
    plan: Plan::fixed(1),
    run: Some(virtual_time),
    on_kernel: Some((3, both)),
};

const SCENARIO: (&str, &str) =
    ("scenarios/agreement.toml", include_str!("../../../../scenarios/agreement.toml"));
const RTTS_MS: [u32; 4] = [25, 100, 300, 600];
const PERS: [f64; 4] = [0.0, 0.001, 0.01, 0.05];

/// The round trip and the losses of a quick look at both worlds.
const QUICK_POINT: (u32, f64) = (600, 0.01);

const SPLIT: &str = r#"flow.download.split=[{ at = "gateway", tcp = "satellite" }]"#;
const SCHEMES: [Scheme; 6] = [
    Scheme { name: "Reno, end to end", key: "reno", settings: &["tcp.host.congestion=newreno"] },
    Scheme { name: "CUBIC, end to end", key: "cubic", settings: &[] },
    Scheme { name: "BBR, end to end", key: "bbr", settings: &["tcp.host.congestion=bbr"] },
    Scheme { name: "Hybla, split", key: "hybla", settings: &[SPLIT] },
    Scheme {
        name: "explicit rates, split",
        key: "explicit",
        settings: &[SPLIT, "tcp.satellite.congestion=explicit", "link.satellite.explicit.at=gateway"],
    },
    Scheme {
        name: "P-XCP, two boxes",
        key: "p_xcp",
        settings: &[
            r#"flow.download.split=[{ at = "gateway", tcp = "satellite" }, { at = "terminal", tcp = "host", receiver_tcp = "satellite" }]"#,
            "tcp.satellite.congestion=p-xcp",
            r#"link.satellite.xcp={ at = "gateway", variant = "p-xcp", idle_offer = "75%" }"#,
        ],
    },
];

/// The load, beside which everything else varies. At 25 ms the attempt after an outage of 20 s may come 11 s
/// later, and a hundredth of the timeout makes 0.3 s of that: a run must be long enough for what follows to
/// count.
const LOADS: [Scheme; 3] = [
    Scheme { name: "one flow", key: "one", settings: &[] },
    Scheme { name: "four flows", key: "four", settings: &["flow.download.count=4"] },
    Scheme {
        name: "outage of 20 s",
        key: "outage",
        settings: &["duration=120s", r#"link.satellite.outages=[{ start = "20s", duration = "20s" }]"#],
    },
];

/// The part of the cells that must agree, and within how much of the kernel's goodput; and all.
const MOST_CELLS: (f64, f64) = (0.9, 0.1);
const ALL_CELLS: f64 = 0.2;

/// A point of the grid.
#[derive(Debug, Clone, Copy)]
struct GridCell {
    scheme: Scheme,
    load: Scheme,
    rtt_ms: u32,
    per: f64,
}

/// A cell's runs in both worlds.
struct Compared {
    cell: GridCell,
    goodputs: [Sample; 2],
    retransmissions: [Sample; 2],
    timeouts: [Sample; 2],
}

impl GridCell {
    /// All of them. Loads other than one flow at the longest and the shortest round trip.
    fn all() -> Vec<Self> {
        let mut cells = Vec::new();
        for scheme in SCHEMES {
            for load in LOADS {
                for (index, rtt_ms) in RTTS_MS.into_iter().enumerate() {
                    if load != LOADS[0] && (1..RTTS_MS.len() - 1).contains(&index) {
                        continue;
                    }
                    cells.extend(PERS.map(|per| Self { scheme, load, rtt_ms, per }));
                }
            }
        }
        cells
    }

    fn settings(&self) -> Vec<String> {
        let delay_us = u64::from(self.rtt_ms) * 500;
        let point =
            [format!("link.satellite.delay={delay_us}us"), format!("link.satellite.per={}", self.per)];
        self.scheme.with(self.load.settings.iter().map(|&setting| setting.to_owned()).chain(point))
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            Cell::text(self.scheme.name),
            Cell::text(self.load.name),
            Cell::Number(f64::from(self.rtt_ms) * 1e-3, 0),
            Cell::Number(self.per, 1),
        ]
    }
}

fn scenarios(lab: &Lab<'_>, cells: &[GridCell]) -> Result<Vec<Scenario>, Error> {
    cells.iter().map(|cell| lab.scenario(&SCENARIO, &cell.settings())).collect()
}

/// Bits per second of all flows of a run together.
fn goodput(runs: &Runs) -> Sample {
    all_flows(runs, |flow| flow.goodput_bps)
}

fn all_flows(runs: &Runs, measure: impl Fn(&FlowResult) -> f64) -> Sample {
    runs.sample(|run| run.flows.iter().map(&measure).sum())
}

fn point_columns() -> Vec<Column> {
    vec![
        Column::new("congestion control", "congestion"),
        Column::new("load", "load"),
        Column::new("RTT", "rtt_s").shown_in("ms", 1e-3),
        Column::new("PER", "per").shown_in("%", 0.01),
    ]
}

/// Virtual time alone: nothing to compare it with.
fn virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let cells = GridCell::all();
    let runs = lab.run(&scenarios(lab, &cells)?)?;
    let mut columns = point_columns();
    columns.push(Column::new("goodput", "goodput_bps").shown_in("Mbit/s", 1e6));
    let mut table = Table::new("Downloads in virtual time", columns);
    for (cell, runs) in cells.iter().zip(&runs) {
        table.push(
            cell.row().into_iter().chain([Cell::interval(Some(goodput(runs).estimate()), 2)]).collect(),
        );
    }
    Ok(Output { tables: vec![Part::new("goodput", table)], ..Output::default() })
}

/// Both worlds.
fn both(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut cells = GridCell::all();
    if lab.quick {
        cells.retain(|cell| (cell.rtt_ms, cell.per) == QUICK_POINT);
    }
    let scenarios = scenarios(lab, &cells)?;
    let virtual_time = lab.in_world(World::Sim).run(&scenarios)?;
    let kernel = lab.run(&scenarios)?;
    let compared = cells.into_iter().zip(virtual_time.iter().zip(&kernel)).map(|(cell, (sim, kernel))| {
        let both = |measure: fn(&Runs) -> Sample| [measure(sim), measure(kernel)];
        Compared {
            cell,
            goodputs: both(goodput),
            retransmissions: both(|runs| all_flows(runs, |flow| flow.retransmissions as f64)),
            timeouts: both(|runs| all_flows(runs, |flow| flow.timeouts as f64)),
        }
    });
    Ok(output(&compared.collect::<Vec<_>>()))
}

impl Compared {
    /// Virtual time's goodput as a multiple of the kernel's.
    fn ratio(&self) -> Estimate {
        self.goodputs[0].ratio_to(&self.goodputs[1])
    }

    fn within(&self, part: f64) -> bool {
        (self.ratio().value - 1.0).abs() <= part
    }

    fn name(&self) -> String {
        let GridCell { scheme, load, rtt_ms, per } = self.cell;
        format!("{}, {}, {rtt_ms} ms, PER {:.1}%", scheme.name, load.name, 100.0 * per)
    }
}

fn output(compared: &[Compared]) -> Output {
    let mut columns = point_columns();
    columns.extend([
        Column::new("goodput, virtual time", "sim_goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("goodput, kernel", "kernel_goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("ratio", "ratio"),
        Column::new("retransmissions, virtual time", "sim_retransmissions"),
        Column::new("retransmissions, kernel", "kernel_retransmissions"),
        Column::new("timeouts, virtual time", "sim_timeouts"),
        Column::new("timeouts, kernel", "kernel_timeouts"),
    ]);
    let mut table = Table::new("Downloads in virtual time and on the kernel", columns);
    for cell in compared {
        let pair = |values: &[Sample; 2], decimals: usize| {
            values.each_ref().map(|value| Cell::interval(Some(value.estimate()), decimals))
        };
        let mut row = cell.cell.row();
        row.extend(pair(&cell.goodputs, 2));
        row.push(Cell::Interval(cell.ratio(), 2));
        row.extend(pair(&cell.retransmissions, 0));
        row.extend(pair(&cell.timeouts, 1));
        table.push(row);
    }
    Output {
        claims: vec![most_agree(compared), all_agree(compared)],
        tables: vec![Part::new("cells", table)],
        figures: vec![Part::new("goodput", plot(compared))],
    }
}

/// Each cell as a point: where both worlds agree they lie on the diagonal.
fn plot(compared: &[Compared]) -> Plot {
    let plot = Plot::new(
        "Goodput in both worlds",
        Axis::new("on the kernel", "Mbit/s"),
        Axis::new("in virtual time", "Mbit/s"),
    );
    let largest = compared.iter().map(|cell| cell.goodputs[1].mean() / 1e6).fold(0.0, f64::max);
    let diagonal = [0.0, largest].map(|at| Point::new(at, Estimate::from(at)));
    let plot = plot.with(Series::new("equal", Style::Curve, diagonal));
    SCHEMES.into_iter().fold(plot, |plot, scheme| {
        let of_scheme = compared.iter().filter(|cell| cell.cell.scheme == scheme);
        let points = of_scheme
            .map(|cell| Point::new(cell.goodputs[1].mean() / 1e6, cell.goodputs[0].estimate().in_unit(1e6)));
        plot.with(Series::new(scheme.name, Style::Dots, points.collect::<Vec<_>>()))
    })
}

/// The number of cells counts, each by its mean: what a single one shows is the other claim's subject.
fn most_agree(compared: &[Compared]) -> Claim {
    let (part, within) = MOST_CELLS;
    let apart: Vec<String> = compared
        .iter()
        .filter(|cell| !cell.within(within))
        .map(|cell| format!("{} {:.2}", cell.name(), cell.ratio().value))
        .collect();
    let sentence = format!(
        "With each seed the goodputs of both worlds are within {:.0}% in {:.0}% of the cells",
        100.0 * within,
        100.0 * part
    );
    Claim::ours(sentence)
        .shown_in("% of the cells", 0.01, 0)
        .with(Range::at_least(part).of_mean(&share_within(compared, within)))
        .noting(format!(
            "apart in the mean: {}",
            if apart.is_empty() { "none".into() } else { apart.join("; ") }
        ))
}

/// The share of the cells whose goodputs are so close, with each seed.
fn share_within(compared: &[Compared], part: f64) -> Sample {
    let ratios = |cell: &Compared| {
        let [sim, kernel] = &cell.goodputs;
        sim.paired(kernel, |sim, kernel| sim / kernel)
            .map_or_else(Vec::new, |ratios| ratios.values().to_vec())
    };
    let by_cell: Vec<Vec<f64>> = compared.iter().map(ratios).collect();
    let seeds = by_cell.iter().map(Vec::len).max().unwrap_or_default();
    let agrees = |ratio: &&f64| (**ratio - 1.0).abs() <= part;
    let share = |seed: usize| {
        let agreeing = by_cell.iter().filter_map(|ratios| ratios.get(seed)).filter(agrees).count();
        agreeing as f64 / by_cell.len() as f64
    };
    super::over_seeds((0..seeds).map(share))
}

fn all_agree(compared: &[Compared]) -> Claim {
    let range = Range::between(1.0 - ALL_CELLS, 1.0 + ALL_CELLS);
    let tests =
        compared.iter().map(|cell| range.of_ratio(&cell.goodputs[0], &cell.goodputs[1]).at(cell.name()));
    Claim::ours(format!("In no cell are they further apart than {:.0}%", 100.0 * ALL_CELLS)).with_all(tests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Level, Outcome};

    fn compared(goodputs_mbps: [f64; 2]) -> Compared {
        let summary = |value: f64| Sample::of(vec![value, value * (1.0 + 1e-6)]).unwrap();
        Compared {
            cell: GridCell::all()[0],
            goodputs: goodputs_mbps.map(|mbps| summary(mbps * 1e6)),
            retransmissions: [1.0, 1.0].map(summary),
            timeouts: [0.0, 0.0].map(summary),
        }
    }

    #[test]
    fn one_cell_in_ten_may_be_apart_by_a_tenth_and_none_by_a_fifth() {
        let cells = |apart: usize, by: f64| -> Vec<Compared> {
            (0..10).map(|index| compared([if index < apart { by } else { 1.05 }, 1.0])).collect()
        };
        let outcome = |claim: Claim| claim.judge(Level::of_looks(1)).outcome;
        let [most, all] = [most_agree, all_agree];
        assert_eq!([most, all].map(|claim| outcome(claim(&cells(1, 1.15)))), [Outcome::Agrees; 2]);
        assert_eq!(outcome(most(&cells(2, 1.15))), Outcome::Contradicts);
        assert_eq!(outcome(most(&cells(1, 0.7))), Outcome::Agrees);
        assert_eq!(outcome(all(&cells(1, 0.7))), Outcome::Contradicts);
    }

    #[test]
    fn every_cell_is_a_scenario_that_both_worlds_can_run() {
        let progress = super::super::Progress::default();
        let seeds = crate::results::Seeds { first: 1, count: 1 };
        let lab = Lab::in_virtual_time(seeds, &progress);
        let scenarios = scenarios(&lab, &GridCell::all()).unwrap();
        assert_eq!(scenarios.len(), SCHEMES.len() * (4 + 2 * 2) * 4);
        assert!(scenarios.iter().all(|scenario| crate::on_kernel::differences(scenario).is_ok()));
    }
}
