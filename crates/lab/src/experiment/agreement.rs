//! The same scenario in virtual time and on the kernel, side by side: a grid of round trips, losses, congestion
//! controls and loads.

use bentpipe_sim::{FlowResult, Scenario};

use super::{Experiment, Lab, Output, Runs, Scheme, listed};
use crate::Error;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Verdict, World};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

pub(super) const AGREEMENT: Experiment = Experiment {
    name: "agreement",
    title: "Virtual time and the kernel: a minute of the same downloads",
    source: "ours",
    seeds: 3,
    run: virtual_time,
    on_kernel: Some((3, both)),
};

const SCENARIO: (&str, &str) =
    ("scenarios/agreement.toml", include_str!("../../../../scenarios/agreement.toml"));
const RTTS_MS: [u32; 4] = [25, 100, 300, 600];
const PERS: [f64; 4] = [0.0, 0.001, 0.01, 0.05];

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
            r#"link.satellite.xcp={ at = "gateway", variant = "p-xcp" }"#,
        ],
    },
];

/// The load, beside which everything else varies.
const LOADS: [Scheme; 3] = [
    Scheme { name: "one flow", key: "one", settings: &[] },
    Scheme { name: "four flows", key: "four", settings: &["flow.download.count=4"] },
    Scheme {
        name: "outage of 20 s",
        key: "outage",
        settings: &[r#"link.satellite.outages=[{ start = "20s", duration = "20s" }]"#],
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
    goodputs: [Summary; 2],
    retransmissions: [Summary; 2],
    timeouts: [Summary; 2],
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
fn goodput(runs: &Runs) -> Summary {
    all_flows(runs, |flow| flow.goodput_bps)
}

fn all_flows(runs: &Runs, measure: impl Fn(&FlowResult) -> f64) -> Summary {
    runs.summary(|run| run.flows.iter().map(&measure).sum())
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
    let mut table = Table::new("A minute of a download in virtual time", columns);
    for (cell, runs) in cells.iter().zip(&runs) {
        table.push(cell.row().into_iter().chain([Cell::interval(Some(goodput(runs)), 2)]).collect());
    }
    Ok(Output { tables: vec![Part::new("goodput", table)], ..Output::default() })
}

/// Both worlds.
fn both(lab: &Lab<'_>) -> Result<Output, Error> {
    let cells = GridCell::all();
    let scenarios = scenarios(lab, &cells)?;
    let virtual_time = lab.in_world(World::Sim).run(&scenarios)?;
    let kernel = lab.run(&scenarios)?;
    let compared = cells.into_iter().zip(virtual_time.iter().zip(&kernel)).map(|(cell, (sim, kernel))| {
        let both = |measure: fn(&Runs) -> Summary| [measure(sim), measure(kernel)];
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
    let mut table = Table::new("A minute of a download in virtual time and on the kernel", columns);
    for cell in compared {
        let pair = |values: &[Summary; 2], decimals: usize| {
            values.map(|value| Cell::interval(Some(value), decimals))
        };
        let mut row = cell.cell.row();
        row.extend(pair(&cell.goodputs, 2));
        row.push(Cell::Interval(cell.ratio(), 2));
        row.extend(pair(&cell.retransmissions, 0));
        row.extend(pair(&cell.timeouts, 1));
        table.push(row);
    }
    Output {
        verdicts: vec![most_agree(compared), all_agree(compared)],
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
    let largest = compared.iter().map(|cell| cell.goodputs[1].mean / 1e6).fold(0.0, f64::max);
    let diagonal = [0.0, largest].map(|at| Point::new(at, Estimate::from(at)));
    let plot = plot.with(Series::new("equal", Style::Curve, diagonal));
    SCHEMES.into_iter().fold(plot, |plot, scheme| {
        let of_scheme = compared.iter().filter(|cell| cell.cell.scheme == scheme);
        let points = of_scheme
            .map(|cell| Point::new(cell.goodputs[1].mean / 1e6, cell.goodputs[0].estimate().in_unit(1e6)));
        plot.with(Series::new(scheme.name, Style::Dots, points.collect::<Vec<_>>()))
    })
}

fn most_agree(compared: &[Compared]) -> Verdict {
    let (part, within) = MOST_CELLS;
    let agree = compared.iter().filter(|cell| cell.within(within)).count();
    let apart: Vec<String> = compared
        .iter()
        .filter(|cell| !cell.within(within))
        .map(|cell| format!("{} {:.2}", cell.name(), cell.ratio().value))
        .collect();
    Verdict::new(
        format!(
            "The goodputs of both worlds are within {:.0}% in {:.0}% of the cells",
            100.0 * within,
            100.0 * part
        ),
        agree as f64 >= part * compared.len() as f64,
        format!(
            "{agree} of {}; apart: {}",
            compared.len(),
            if apart.is_empty() { "none".into() } else { apart.join("; ") }
        ),
    )
}

fn all_agree(compared: &[Compared]) -> Verdict {
    let ratios = compared.iter().map(|cell| cell.ratio().value);
    let (least, most) = ratios
        .fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), ratio| (least.min(ratio), most.max(ratio)));
    Verdict::new(
        format!("In no cell are they further apart than {:.0}%", 100.0 * ALL_CELLS),
        compared.iter().all(|cell| cell.within(ALL_CELLS)),
        format!("ratios from {} to {}", listed([least], 2, ""), listed([most], 2, "")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(goodputs_mbps: [f64; 2]) -> Compared {
        let summary = |value: f64| Summary::of(&[value, value]).unwrap();
        Compared {
            cell: GridCell::all()[0],
            goodputs: goodputs_mbps.map(|mbps| summary(mbps * 1e6)),
            retransmissions: [summary(1.0); 2],
            timeouts: [summary(0.0); 2],
        }
    }

    #[test]
    fn one_cell_in_ten_may_be_apart_by_a_tenth_and_none_by_a_fifth() {
        let cells = |apart: usize, by: f64| -> Vec<Compared> {
            (0..10).map(|index| compared([if index < apart { by } else { 1.05 }, 1.0])).collect()
        };
        assert!(most_agree(&cells(1, 1.15)).agrees && all_agree(&cells(1, 1.15)).agrees);
        assert!(!most_agree(&cells(2, 1.15)).agrees);
        assert!(most_agree(&cells(1, 0.7)).agrees && !all_agree(&cells(1, 0.7)).agrees);
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
