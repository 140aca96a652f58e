//! PEPSAL: Caini, Firrincieli, Lacamera, "PEPsal: a Performance Enhancing Proxy for TCP satellite
//! connections" (IEEE AESM 22(8), 2007, and its slides).

use bentpipe_sim::{FlowResult, RunResult};

use super::{Curves, Experiment, Lab, Measure, Output, Runs, Scheme};
use crate::Error;
use crate::claim::{Claim, Range, Test};
use crate::figure::{Axis, BarChart, BarGroup, Plot};
use crate::results::{Part, Plan};
use crate::statistics::{Sample, jain_index};
use crate::table::{Cell, Column, Table};

const SOURCE: &str = "Caini, Firrincieli, Lacamera: PEPsal: a Performance Enhancing Proxy for TCP satellite \
    connections, IEEE AESM 22(8), 2007";
pub(super) const SCENARIO: (&str, &str) =
    ("scenarios/pepsal.toml", include_str!("../../../../scenarios/pepsal.toml"));
const MBIT: f64 = 1e6;
/// Where the publication shows goodput by round-trip time, and shares.
const FIGURES: &str = "the figures of goodput by round-trip time";
const SLIDES: &str = "the slides";

/// Round trips of the satellite connection. 25 ms of each are on the ground, as for the wired connections.
const RTTS_MS: [f64; 7] = [25.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0];
const GROUND_MS: f64 = 25.0;

pub(super) const CONGESTION: Experiment = Experiment {
    name: "pepsal-congestion",
    title: "A satellite connection and five wired ones on a shared bottleneck, without losses",
    source: SOURCE,
    plan: Plan::doubling(3),
    run: Some(congestion),
    on_kernel: Some((3, congestion)),
};

pub(super) const PER: Experiment = Experiment {
    name: "pepsal-per",
    title: "A satellite connection alone, one packet in a hundred lost on the satellite",
    source: SOURCE,
    plan: Plan::doubling(3),
    run: Some(per),
    on_kernel: Some((3, per)),
};

pub(super) const BOTH: Experiment = Experiment {
    name: "pepsal-both",
    title: "A satellite connection and five wired ones on a shared bottleneck, one packet in a hundred lost \
        on the satellite",
    source: SOURCE,
    plan: Plan::fixed(8),
    run: Some(|lab| by_rtt(lab, &BOTH_CONDITIONS, &SCHEMES)),
    // Its bundle nodes run in virtual time only.
    on_kernel: Some((3, |lab| by_rtt(lab, &BOTH_CONDITIONS, &SCHEMES[..DTN]))),
};

pub(super) const FAIRNESS: Experiment = Experiment {
    name: "pepsal-fairness",
    title: "Three satellite connections and three wired ones on a shared bottleneck",
    source: SOURCE,
    plan: Plan::doubling(5),
    run: Some(fairness),
    on_kernel: Some((3, fairness)),
};

fn congestion(lab: &Lab<'_>) -> Result<Output, Error> {
    by_rtt(lab, &Conditions { background: 5, per: "0" }, &SCHEMES[..DTN])
}

fn per(lab: &Lab<'_>) -> Result<Output, Error> {
    by_rtt(lab, &Conditions { background: 0, per: "1%" }, &SCHEMES[..DTN])
}

const BOTH_CONDITIONS: Conditions = Conditions { background: 5, per: "1%" };

/// The load and the losses that the satellite connection meets.
struct Conditions {
    /// Wired connections on the bottleneck.
    background: u32,
    /// Packet error rate of the satellite, both ways.
    per: &'static str,
}

const NEWRENO: usize = 0;
const PEPSAL: usize = 2;
const BENTPIPE: usize = 3;
const DTN: usize = 4;
/// DTN uses PEPsal's legs ("maximum commonality with the PEPsal architecture") and joins them by bundle
/// nodes.
const SCHEMES: [Scheme; 5] = [
    Scheme { name: "end to end, NewReno", key: "newreno", settings: &["flow.satellite.split=[]"] },
    Scheme {
        name: "end to end, Hybla",
        key: "hybla",
        settings: &["flow.satellite.split=[]", "flow.satellite.tcp=satellite"],
    },
    Scheme { name: "PEPsal (Hybla)", key: "pepsal", settings: &[] },
    Scheme {
        name: "split, bentpipe's Hybla",
        key: "bentpipe",
        settings: &["tcp.satellite.hybla.recovery_growth=true", "tcp.satellite.hybla.queue=true"],
    },
    Scheme { name: "DTN (Hybla)", key: "dtn", settings: &["flow.satellite.bundles={}"] },
];

fn settings(scheme: Scheme, rtt_ms: f64, conditions: &Conditions) -> Vec<String> {
    let delay_ms = (rtt_ms - GROUND_MS) / 2.0;
    scheme.with([
        format!("link.satellite.delay={delay_ms}ms"),
        format!("link.satellite.per={}", conditions.per),
        format!("flow.wired.count={}", conditions.background),
    ])
}

fn by_rtt(lab: &Lab<'_>, conditions: &Conditions, schemes: &[Scheme]) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, schemes, &RTTS_MS, |scheme, rtt| settings(scheme, rtt, conditions))?;
    let goodput = Curves::of_runs(schemes.iter().copied(), Measure::mbps("goodput_bps"), &runs, |runs| {
        runs.first_flow(|flow| flow.goodput_bps)
    });
    let [newreno, pepsal, bentpipe] = [NEWRENO, PEPSAL, BENTPIPE].map(|scheme| goodput.curve(scheme));
    let mut claims = vec![
        falls(newreno),
        flat(
            Claim::expected(
                "PEPsal's goodput is nearly flat: within 25% of its mean at every round-trip time",
                FIGURES,
            ),
            pepsal,
        ),
        ahead("PEPsal", pepsal, newreno),
        flat(
            Claim::ours(
                "With bentpipe's Hybla the goodput is nearly flat: within 25% of its mean at every round-trip time",
            ),
            bentpipe,
        ),
    ];
    if schemes.len() > DTN {
        claims.push(alike(goodput.curve(DTN), pepsal));
        claims.push(ahead("DTN", goodput.curve(DTN), newreno));
    }
    let table = goodput.table(
        "Goodput of the satellite connection by its round-trip time",
        [Column::new("RTT", "rtt_s").shown_in("ms", 1e-3)],
        RTTS_MS.map(|rtt| vec![Cell::Number(rtt * 1e-3, 0)]),
    );
    let plot = Plot::new(
        "Goodput of the satellite connection",
        Axis::new("round-trip time", "ms"),
        Axis::new("goodput", "Mbit/s"),
    );
    Ok(Output {
        claims,
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", goodput.plot(plot, RTTS_MS))],
    })
}

/// Compares the longest round trip with the shortest.
fn falls(curve: &[Sample]) -> Claim {
    let (first, last) = (&curve[0], &curve[curve.len() - 1]);
    Claim::stated(
        "End to end, the goodput falls with the round-trip time: to a third or less from 25 to 600 ms",
        FIGURES,
    )
    .shown_in("%", 0.01, 0)
    .with(Range::at_most(1.0 / 3.0).of_ratio(last, first))
    .noting(format!("from {:.2} to {:.2} Mbit/s", first.mean() / MBIT, last.mean() / MBIT))
}

/// "Nearly flat" is taken as within a quarter of the curve's mean everywhere.
fn flat(claim: Claim, curve: &[Sample]) -> Claim {
    let points = curve.len() as f64;
    let mean = curve[1..].iter().fold(curve[0].clone(), |sum, sample| {
        sum.paired(sample, |sum, goodput| sum + goodput).expect("goodputs are finite")
    });
    let mean = mean.paired(&mean, |sum, _| sum / points).expect("goodputs are finite");
    let tests = curve.iter().zip(RTTS_MS);
    claim
        .with_all(tests.map(|(goodput, rtt)| Range::between(0.75, 1.25).of_ratio(goodput, &mean).at(at(rtt))))
        .noting(format!("the mean is {:.2} Mbit/s", mean.mean() / MBIT))
}

fn at(rtt_ms: f64) -> String {
    format!("at {rtt_ms} ms")
}

fn ahead(name: &str, helped: &[Sample], standard: &[Sample]) -> Claim {
    let (helped, standard) = (&helped[helped.len() - 1], &standard[standard.len() - 1]);
    Claim::expected(
        format!("At 600 ms {name} is far ahead of NewReno end to end: 3 times or more"),
        if name == "DTN" { SLIDES } else { FIGURES },
    )
    .shown_in("times", 1.0, 1)
    .with(Range::at_least(3.0).of_ratio(helped, standard))
    .noting(format!("{:.2} and {:.2} Mbit/s", helped.mean() / MBIT, standard.mean() / MBIT))
}

/// "Alike" is taken as less than a tenth apart everywhere.
fn alike(dtn: &[Sample], pepsal: &[Sample]) -> Claim {
    let test = |((dtn, pepsal), rtt): ((&Sample, &Sample), f64)| -> Test {
        Range::between(0.9, 1.1).of_ratio(dtn, pepsal).at(at(rtt))
    };
    Claim::stated("DTN and PEPsal are alike: within 10% of each other at every round-trip time", SLIDES)
        .with_all(dtn.iter().zip(pepsal).zip(RTTS_MS).map(test))
}

/// Connections of each kind.
pub(super) const OF_A_KIND: usize = 3;

fn fairness(lab: &Lab<'_>) -> Result<Output, Error> {
    let conditions = Conditions { background: OF_A_KIND as u32, per: "0" };
    let schemes = &SCHEMES[..DTN];
    let scenarios = lab.scenarios(&SCENARIO, schemes, &[600.0], |scheme, rtt| {
        let mut settings = settings(scheme, rtt, &conditions);
        settings.push(format!("flow.satellite.count={OF_A_KIND}"));
        settings
    })?;
    let runs = lab.run(&scenarios)?;
    let names: Vec<&str> = schemes.iter().map(|scheme| scheme.name).collect();
    let table =
        shares_table("Goodput of a connection, the mean over three of a kind", "wired", &names, &runs, 3);
    let chart = shares_chart(
        BarChart::new(
            "Three satellite and three wired connections on 10 Mbit/s",
            Axis::dimensionless("satellite connections"),
            Axis::new("goodput of a connection", "Mbit/s"),
            names,
        ),
        "wired",
        &runs,
    );
    let [satellite, wired] = [satellite_bps, wired_bps].map(|goodput| runs[NEWRENO].sample(goodput));
    Ok(Output {
        claims: vec![
            Claim::stated(
                "End to end with NewReno, satellite connections starve: less than a fifth of a wired one's \
                 goodput",
                "the figure of fairness",
            )
            .shown_in("%", 0.01, 1)
            .with(Range::below(0.2).of_ratio(&satellite, &wired)),
            Claim::stated(
                "With PEPsal, the shares are even: Jain's index is 0.95 or more",
                "the figure of fairness",
            )
            .shown_in("", 1.0, 3)
            .with(Range::at_least(0.95).of_mean(&jain(&runs[PEPSAL])))
            .noting(format!("end to end {:.3} with NewReno", jain(&runs[NEWRENO]).mean())),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", chart)],
    })
}

/// The mean goodputs of the satellite and of the wired connections, and Jain's index over all of them: a row
/// for each name.
pub(super) fn shares_table(
    title: &str,
    wired: &str,
    names: &[&str],
    runs: &[Runs],
    jain_decimals: usize,
) -> Table {
    let columns = vec![
        Column::new("", "way"),
        Column::new("satellite", "satellite_goodput_bps").shown_in("Mbit/s", MBIT),
        Column::new(wired, "wired_goodput_bps").shown_in("Mbit/s", MBIT),
        Column::new("Jain's index", "jain_index"),
    ];
    let mut table = Table::new(title, columns);
    for (name, runs) in names.iter().zip(runs) {
        table.push(vec![
            Cell::text(*name),
            Cell::interval(Some(runs.sample(satellite_bps)), 2),
            Cell::interval(Some(runs.sample(wired_bps)), 2),
            Cell::interval(Some(jain(runs)), jain_decimals),
        ]);
    }
    table
}

/// Adds the mean goodputs of the satellite and of the wired connections as two groups of bars.
pub(super) fn shares_chart(chart: BarChart, wired: &str, runs: &[Runs]) -> BarChart {
    let group = |name, goodput: fn(&RunResult) -> f64| {
        BarGroup::new(name, runs.iter().map(|runs| Some(runs.sample(goodput).estimate().in_unit(MBIT))))
    };
    chart.with(group("satellite", satellite_bps)).with(group(wired, wired_bps))
}

/// Jain's index over all connections.
pub(super) fn jain(runs: &Runs) -> Sample {
    runs.sample(|run| {
        let goodputs: Vec<f64> = run.flows.iter().map(|flow| flow.goodput_bps).collect();
        jain_index(&goodputs).unwrap_or(0.0)
    })
}

fn satellite_bps(run: &RunResult) -> f64 {
    mean_goodput(&run.flows[..OF_A_KIND])
}

fn wired_bps(run: &RunResult) -> f64 {
    mean_goodput(&run.flows[OF_A_KIND..])
}

fn mean_goodput(flows: &[FlowResult]) -> f64 {
    flows.iter().map(|flow| flow.goodput_bps).sum::<f64>() / flows.len() as f64
}
