//! Satellite and terrestrial flows under one router.

use bentpipe_sim::RunResult;

use super::{Findings, Lab, MBIT, Runs, SHARED};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup};
use crate::results::{Part, Verdict};
use crate::statistics::jain_index;
use crate::table::{Cell, Column, Table};

const OF_A_KIND: usize = 3;

pub(super) fn run(lab: &Lab<'_>) -> Result<Findings, Error> {
    let scenario = |name: &str, router: bool| {
        let mut settings = vec![
            "flow.satellite.split=[]".to_owned(),
            format!("flow.satellite.count={OF_A_KIND}"),
            format!("flow.wired.count={OF_A_KIND}"),
            format!("tcp.standard.congestion={name}"),
        ];
        if router {
            settings.extend([
                "link.bottleneck.xcp.at=r1".to_owned(),
                format!("link.bottleneck.xcp.variant={name}"),
            ]);
        }
        lab.scenario(&SHARED, &settings)
    };
    let ways = [("NewReno", "newreno", false), ("XCP", "xcp", true), ("P-XCP", "p-xcp", true)];
    let scenarios = ways.iter().map(|way| scenario(way.1, way.2)).collect::<Result<Vec<_>, _>>()?;
    let runs = lab.run(&scenarios);
    let goodputs = |run: &RunResult| run.flows.iter().map(|flow| flow.goodput_bps).collect::<Vec<f64>>();
    let jain = |runs: &Runs| runs.summary(|run| jain_index(&goodputs(run)).unwrap_or(0.0));
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let satellite = |run: &RunResult| mean(&goodputs(run)[..OF_A_KIND]);
    let wired = |run: &RunResult| mean(&goodputs(run)[OF_A_KIND..]);
    let mut table = Table::new(
        "Goodput of a flow, the mean over three of a kind; round trips 600 and 25 ms, 10 Mbit/s",
        vec![
            Column::new("", "way"),
            Column::new("satellite", "satellite_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("terrestrial", "wired_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("Jain's index", "jain_index"),
        ],
    );
    for ((name, ..), runs) in ways.iter().zip(&runs) {
        table.push(vec![
            Cell::text(*name),
            Cell::interval(Some(runs.summary(satellite)), 2),
            Cell::interval(Some(runs.summary(wired)), 2),
            Cell::interval(Some(jain(runs)), 4),
        ]);
    }
    let group = |name, merit: &dyn Fn(&RunResult) -> f64| {
        BarGroup::new(name, runs.iter().map(|runs| Some(runs.summary(merit).estimate().in_unit(MBIT))))
    };
    let chart = BarChart::new(
        "Three satellite and three terrestrial flows on 10 Mbit/s",
        Axis::dimensionless("congestion control"),
        Axis::new("goodput of a flow", "Mbit/s"),
        ways.map(|way| way.0),
    )
    .with(group("satellite", &satellite))
    .with(group("terrestrial", &wired));
    let verdict = |at: usize, name: &str| {
        let index = jain(&runs[at]).mean;
        let claim = format!(
            "With {name} six flows share alike whatever their round trips: Jain's index is 0.99 or more"
        );
        Verdict::new(claim, index >= 0.99, format!("{index:.4}; {:.4} with NewReno", jain(&runs[0]).mean))
    };
    Ok(Findings {
        verdicts: vec![verdict(1, "XCP"), verdict(2, "P-XCP")],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", chart)],
    })
}
