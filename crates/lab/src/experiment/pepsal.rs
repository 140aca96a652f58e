//! PEPSAL: Caini, Firrincieli, Lacamera, "PEPsal: a Performance Enhancing Proxy for TCP satellite connections" (IEEE AESM
//! 22(8), 2007, and its slides).

use bentpipe_sim::RunResult;

use super::{Experiment, Findings, Lab, Runs};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Summary, jain_index};
use crate::table::{Cell, Column, Table};

const SOURCE: &str = "Caini, Firrincieli, Lacamera: PEPsal: a Performance Enhancing Proxy for TCP satellite connections, IEEE AESM 22(8), 2007";
const SCENARIO: (&str, &str) = ("scenarios/pepsal.toml", include_str!("../../../../scenarios/pepsal.toml"));
const MBIT: f64 = 1e6;

/// Round trips of the satellite connection; 25 ms of them are on the ground, as for the wired connections.
const RTTS_MS: [f64; 7] = [25.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0];
const GROUND_MS: f64 = 25.0;

pub(super) const CONGESTION: Experiment = Experiment {
    name: "pepsal-congestion",
    title: "A satellite connection and five wired ones on a shared bottleneck, without losses",
    source: SOURCE,
    seeds: 5,
    run: |lab| by_rtt(lab, &Conditions { background: 5, per: "0" }, &Way::ALL),
    on_kernel: None,
};

pub(super) const PER: Experiment = Experiment {
    name: "pepsal-per",
    title: "A satellite connection alone, one packet in a hundred lost on the satellite",
    source: SOURCE,
    seeds: 5,
    run: |lab| by_rtt(lab, &Conditions { background: 0, per: "1%" }, &Way::ALL),
    on_kernel: None,
};

pub(super) const BOTH: Experiment = Experiment {
    name: "pepsal-both",
    title: "A satellite connection and five wired ones on a shared bottleneck, one packet in a hundred lost on the satellite",
    source: SOURCE,
    seeds: 5,
    run: |lab| by_rtt(lab, &Conditions { background: 5, per: "1%" }, &Way::WITH_DTN),
    on_kernel: None,
};

pub(super) const FAIRNESS: Experiment = Experiment {
    name: "pepsal-fairness",
    title: "Three satellite connections and three wired ones on a shared bottleneck",
    source: SOURCE,
    seeds: 5,
    run: fairness,
    on_kernel: None,
};

/// What the satellite connection meets.
struct Conditions {
    /// Wired connections on the bottleneck.
    background: u32,
    /// Packet error rate of the satellite, both ways.
    per: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Standard,
    Hybla,
    Pepsal,
    Bentpipe,
    Dtn,
}

impl Way {
    const ALL: [Way; 4] = [Way::Standard, Way::Hybla, Way::Pepsal, Way::Bentpipe];
    const WITH_DTN: [Way; 5] = [Way::Standard, Way::Hybla, Way::Pepsal, Way::Bentpipe, Way::Dtn];

    fn name(self) -> &'static str {
        match self {
            Way::Standard => "end to end, NewReno",
            Way::Hybla => "end to end, Hybla",
            Way::Pepsal => "PEPsal (Hybla)",
            Way::Bentpipe => "split, bentpipe's Hybla",
            Way::Dtn => "DTN (Hybla)",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Way::Standard => "newreno",
            Way::Hybla => "hybla",
            Way::Pepsal => "pepsal",
            Way::Bentpipe => "bentpipe",
            Way::Dtn => "dtn",
        }
    }

    /// DTN's legs are PEPsal's ("maximum commonality with the PEPsal architecture"): what differs is what joins them.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Way::Standard => &["flow.satellite.split=[]"],
            Way::Hybla => &["flow.satellite.split=[]", "flow.satellite.tcp=satellite"],
            Way::Pepsal => &[],
            Way::Bentpipe => &["tcp.satellite.hybla.recovery_growth=true", "tcp.satellite.hybla.queue=true"],
            Way::Dtn => &["flow.satellite.bundles={}"],
        }
    }
}

fn settings(rtt_ms: f64, conditions: &Conditions, way: Way) -> Vec<String> {
    let delay_ms = (rtt_ms - GROUND_MS) / 2.0;
    let mut settings = vec![
        format!("link.satellite.delay={delay_ms}ms"),
        format!("link.satellite.per={}", conditions.per),
        format!("flow.wired.count={}", conditions.background),
    ];
    settings.extend(way.settings().iter().map(|&setting| setting.to_owned()));
    settings
}

fn by_rtt(lab: &Lab<'_>, conditions: &Conditions, ways: &[Way]) -> Result<Findings, Error> {
    let mut scenarios = Vec::new();
    for &way in ways {
        for rtt in RTTS_MS {
            scenarios.push(lab.scenario(&SCENARIO, &settings(rtt, conditions, way))?);
        }
    }
    let goodput = |runs: &Runs| runs.first_flow(|flow| flow.goodput_bps);
    let curves: Vec<Vec<Summary>> =
        lab.run(&scenarios).chunks(RTTS_MS.len()).map(|runs| runs.iter().map(goodput).collect()).collect();
    let mut verdicts = vec![
        falls(&curves[0]),
        flat("PEPsal's goodput is nearly flat", &curves[2]),
        ahead("PEPsal", &curves[2], &curves[0]),
        flat("Beyond the paper: with bentpipe's Hybla the goodput is nearly flat", &curves[3]),
    ];
    if let Some(dtn) = ways.iter().position(|way| *way == Way::Dtn) {
        verdicts.push(alike(&curves[dtn], &curves[2]));
        verdicts.push(ahead("DTN", &curves[dtn], &curves[0]));
    }
    Ok(Findings {
        verdicts,
        tables: vec![Part::new("goodput", table_by_rtt(ways, &curves))],
        figures: vec![Part::new("goodput", plot_by_rtt(ways, &curves))],
    })
}

fn table_by_rtt(ways: &[Way], curves: &[Vec<Summary>]) -> Table {
    let column =
        |way: &Way| Column::new(way.name(), format!("{}_goodput_bps", way.key())).shown_in("Mbit/s", MBIT);
    let columns = ways.iter().map(column);
    let mut table = Table::new(
        "Goodput of the satellite connection by its round-trip time",
        [Column::new("RTT", "rtt_s").shown_in("ms", 1e-3)].into_iter().chain(columns).collect(),
    );
    for (index, rtt) in RTTS_MS.into_iter().enumerate() {
        let cells = curves.iter().map(|curve| Cell::interval(Some(curve[index]), 2));
        table.push([Cell::Number(rtt * 1e-3, 0)].into_iter().chain(cells).collect());
    }
    table
}

fn plot_by_rtt(ways: &[Way], curves: &[Vec<Summary>]) -> Plot {
    let axes = (Axis::new("round-trip time", "ms"), Axis::new("goodput", "Mbit/s"));
    ways.iter().zip(curves).fold(
        Plot::new("Goodput of the satellite connection", axes.0, axes.1),
        |plot, (way, curve)| {
            let points = RTTS_MS.into_iter().zip(curve);
            let points = points.map(|(rtt, value)| Point::new(rtt, value.estimate().in_unit(MBIT)));
            plot.with(Series::new(way.name(), Style::Line, points))
        },
    )
}

/// The longest round trip against the shortest.
fn falls(curve: &[Summary]) -> Verdict {
    let (first, last) = (curve[0].mean, curve[curve.len() - 1].mean);
    Verdict::new(
        "End to end, the goodput falls with the round-trip time: to a third or less from 25 to 600 ms",
        last <= first / 3.0,
        format!("from {:.2} to {:.2} Mbit/s, {:.0} % of it", first / MBIT, last / MBIT, 100.0 * last / first),
    )
}

/// "Nearly flat" is taken as: nowhere more than a quarter away from the mean of the curve.
fn flat(claim: &str, curve: &[Summary]) -> Verdict {
    let mean = curve.iter().map(|value| value.mean).sum::<f64>() / curve.len() as f64;
    let away = curve.iter().map(|value| (value.mean / mean - 1.0).abs()).fold(0.0, f64::max);
    Verdict::new(
        format!("{claim}: within 25% of its mean at every round-trip time"),
        away <= 0.25,
        format!("at most {:.0} % away from its mean of {:.2} Mbit/s", 100.0 * away, mean / MBIT),
    )
}

fn ahead(name: &str, helped: &[Summary], standard: &[Summary]) -> Verdict {
    let (helped, standard) = (helped[helped.len() - 1].mean, standard[standard.len() - 1].mean);
    Verdict::new(
        format!("At 600 ms {name} is far ahead of NewReno end to end: 3 times or more"),
        helped >= 3.0 * standard,
        format!("{:.2} and {:.2} Mbit/s, {:.1} times", helped / MBIT, standard / MBIT, helped / standard),
    )
}

/// "Alike" is taken as: nowhere a tenth or more away. The seeds are the same for both.
fn alike(dtn: &[Summary], pepsal: &[Summary]) -> Verdict {
    let ratios: Vec<f64> = dtn.iter().zip(pepsal).map(|(dtn, pepsal)| dtn.mean / pepsal.mean).collect();
    let (least, most) = ratios.iter().fold((f64::MAX, 0.0f64), |(low, high), r| (low.min(*r), high.max(*r)));
    Verdict::new(
        "DTN and PEPsal are alike: within 10% of each other at every round-trip time",
        least > 0.9 && most < 1.1,
        format!("DTN has {least:.2} to {most:.2} of PEPsal's goodput"),
    )
}

/// Connections of each kind.
const OF_A_KIND: usize = 3;

fn fairness(lab: &Lab<'_>) -> Result<Findings, Error> {
    let conditions = Conditions { background: OF_A_KIND as u32, per: "0" };
    let scenario = |way| {
        let mut settings = settings(600.0, &conditions, way);
        settings.push(format!("flow.satellite.count={OF_A_KIND}"));
        lab.scenario(&SCENARIO, &settings)
    };
    let scenarios = Way::ALL.into_iter().map(scenario).collect::<Result<Vec<_>, _>>()?;
    let runs = lab.run(&scenarios);
    let jain = |runs: &Runs| {
        runs.summary(|run| {
            jain_index(&run.flows.iter().map(|flow| flow.goodput_bps).collect::<Vec<_>>()).unwrap_or(0.0)
        })
    };
    let satellite = |run: &RunResult| mean_goodput(&run.flows[..OF_A_KIND]);
    let wired = |run: &RunResult| mean_goodput(&run.flows[OF_A_KIND..]);
    let mut table = Table::new(
        "Goodput of a connection, the mean over three of a kind",
        vec![
            Column::new("", "way"),
            Column::new("satellite", "satellite_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("wired", "wired_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("Jain's index", "jain_index"),
        ],
    );
    for (way, runs) in Way::ALL.into_iter().zip(&runs) {
        table.push(vec![
            Cell::text(way.name()),
            Cell::interval(Some(runs.summary(satellite)), 2),
            Cell::interval(Some(runs.summary(wired)), 2),
            Cell::interval(Some(jain(runs)), 3),
        ]);
    }
    let group = |name, merit: &dyn Fn(&RunResult) -> f64| {
        BarGroup::new(name, runs.iter().map(|runs| Some(runs.summary(merit).estimate().in_unit(MBIT))))
    };
    let chart = BarChart::new(
        "Three satellite and three wired connections on 10 Mbit/s",
        Axis::dimensionless("satellite connections"),
        Axis::new("goodput of a connection", "Mbit/s"),
        Way::ALL.map(Way::name),
    )
    .with(group("satellite", &satellite))
    .with(group("wired", &wired));
    let share = |runs: &Runs| runs.summary(|run| satellite(run) / wired(run)).mean;
    let index = jain(&runs[2]).mean;
    Ok(Findings {
        verdicts: vec![
            Verdict::new(
                "End to end with NewReno, satellite connections starve: less than a fifth of a wired one's goodput",
                share(&runs[0]) < 0.2,
                format!("{:.1} % of it", 100.0 * share(&runs[0])),
            ),
            Verdict::new(
                "With PEPsal, the shares are even: Jain's index is 0.95 or more",
                index >= 0.95,
                format!("{index:.3}; end to end {:.3} with NewReno", jain(&runs[0]).mean),
            ),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", chart)],
    })
}

fn mean_goodput(flows: &[bentpipe_sim::FlowResult]) -> f64 {
    flows.iter().map(|flow| flow.goodput_bps).sum::<f64>() / flows.len() as f64
}
