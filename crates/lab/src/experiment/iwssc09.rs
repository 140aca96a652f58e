//! IWSSC09: Lopez Pacheco and Lochin, "Optimal Configuration for Satellite PEPs using a Reliable Service on Top of a
//! Routers-Assisted Approach" (IWSSC 2009); and the fairness of XCP (Katabi, Handley and Rohrs, SIGCOMM 2002).

use bentpipe_sim::{Observer, RunResult, Scenario};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::Time;

use super::{Experiment, Findings, Lab, Runs};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary, jain_index};
use crate::table::{Cell, Column, Table};

const SOURCE: &str = "Lopez Pacheco, Lochin: Optimal Configuration for Satellite PEPs using a Reliable Service on Top of a Routers-Assisted Approach, IWSSC 2009";
const KATABI: &str =
    "Katabi, Handley, Rohrs: Congestion Control for High Bandwidth-Delay Product Networks, SIGCOMM 2002";
const SCENARIO: (&str, &str) = ("scenarios/xcp.toml", include_str!("../../../../scenarios/xcp.toml"));
const SHARED: (&str, &str) = ("scenarios/pepsal.toml", include_str!("../../../../scenarios/pepsal.toml"));
const MBIT: f64 = 1e6;

pub(super) const ASYMMETRIC: Experiment = Experiment {
    name: "iwssc09-asymmetric",
    title: "XCP and P-XCP where one of two flows is limited elsewhere",
    source: SOURCE,
    seeds: 3,
    run: asymmetric,
    on_kernel: None,
};

pub(super) const LOSS: Experiment = Experiment {
    name: "iwssc09-loss",
    title: "XCP and P-XCP over four loss recoveries where one packet in a thousand is lost",
    source: SOURCE,
    seeds: 10,
    run: loss,
    on_kernel: None,
};

pub(super) const FAIRNESS: Experiment = Experiment {
    name: "xcp-fairness",
    title: "Three satellite flows and three terrestrial ones under one XCP router",
    source: KATABI,
    seeds: 5,
    run: fairness,
    on_kernel: None,
};

/// A router and its senders: the scenarios' names for them, which are those of the publication in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Xcp,
    PXcp,
}

impl Variant {
    const ALL: [Variant; 2] = [Variant::Xcp, Variant::PXcp];

    fn name(self) -> &'static str {
        match self {
            Variant::Xcp => "XCP",
            Variant::PXcp => "P-XCP",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Variant::Xcp => "xcp",
            Variant::PXcp => "p_xcp",
        }
    }

    /// On the link and in the TCP of these names.
    fn settings(self, link: &str, tcp: &str) -> Vec<String> {
        let name = self.name().to_lowercase();
        vec![format!("link.{link}.xcp.variant={name}"), format!("tcp.{tcp}.congestion={name}")]
    }
}

// One of two flows limited elsewhere.

/// The start is over by then; what is compared is how the capacity is shared out afterwards.
const SETTLED_S: f64 = 20.0;
const CAPACITY: f64 = 100e6;
/// What the limited flow offers, IP bits per second.
const LIMIT: f64 = 0.5e6;
/// Payload of a 1500-byte packet with 20 bytes of IP, 20 of TCP, 12 of timestamps and 16 of congestion header.
const PAYLOAD: f64 = 1432.0 / 1500.0;

/// What the applications have received by the moment at which the start is over, and at the end.
#[derive(Debug, Default)]
struct Settled {
    flows: [Option<Bytes>; 2],
    samples: Vec<(f64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Bytes {
    from: (f64, u64),
    to: (f64, u64),
}

impl Observer for Settled {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        let now = now.as_secs_f64();
        if flow == 0 {
            self.samples.push((now, bytes));
        }
        if now >= SETTLED_S {
            self.flows[flow].get_or_insert(Bytes { from: (now, bytes), to: (now, bytes) }).to = (now, bytes);
        }
    }
}

impl Settled {
    fn goodput(&self, flow: usize) -> f64 {
        let rate = |bytes: Bytes| 8.0 * (bytes.to.1 - bytes.from.1) as f64 / (bytes.to.0 - bytes.from.0);
        self.flows[flow].map_or(0.0, rate)
    }

    /// Mbit/s of the free flow in each second.
    fn course(&self) -> Vec<Point> {
        let whole = self.samples.iter().filter(|(at, _)| (at - at.round()).abs() < 1e-6);
        let whole: Vec<_> = whole.collect();
        let step = |pair: &[&(f64, u64)]| {
            let rate = 8.0 * (pair[1].1 - pair[0].1) as f64 / (pair[1].0 - pair[0].0);
            Point::new(pair[1].0, Estimate::from(rate / MBIT))
        };
        whole.windows(2).map(step).collect()
    }
}

fn asymmetric(lab: &Lab<'_>) -> Result<Findings, Error> {
    let scenario = |variant: Variant| lab.scenario(&SCENARIO, &variant.settings("satellite", "satellite"));
    let scenarios = Variant::ALL.map(scenario).into_iter().collect::<Result<Vec<Scenario>, _>>()?;
    let runs = lab.observe(&scenarios, Settled::default);
    let summary = |at: usize, merit: &dyn Fn(&Settled) -> f64| {
        let values: Vec<f64> = runs[at].iter().map(|(_, settled)| merit(settled)).collect();
        Summary::of(&values).expect("an experiment has a seed")
    };
    let available = (CAPACITY - LIMIT) * PAYLOAD;
    let share = |at: usize| summary(at, &|settled| settled.goodput(0) / available);
    let mut table = Table::new(
        "Goodput of two flows on 100 Mbit/s, from 20 s on",
        vec![
            Column::new("", "variant"),
            Column::new("the free flow", "free_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("the limited flow", "limited_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("of what is available to the free flow", "free_share").shown_in("%", 1e-2),
        ],
    );
    for (at, variant) in Variant::ALL.into_iter().enumerate() {
        table.push(vec![
            Cell::text(variant.name()),
            Cell::interval(Some(summary(at, &|settled| settled.goodput(0))), 2),
            Cell::interval(Some(summary(at, &|settled| settled.goodput(1))), 2),
            Cell::interval(Some(share(at)), 1),
        ]);
    }
    let plot = Variant::ALL.into_iter().zip(&runs).fold(
        Plot::new(
            "The flow that nothing else limits, one run",
            Axis::new("time", "s"),
            Axis::new("goodput", "Mbit/s"),
        ),
        |plot, (variant, runs)| plot.with(Series::new(variant.name(), Style::Curve, runs[0].1.course())),
    );
    let (xcp, p_xcp) = (share(0).mean, share(1).mean);
    Ok(Findings {
        verdicts: vec![
            Verdict::new(
                "With XCP the free flow gets around 90% of what is available: 85 to 93%",
                (0.85..0.93).contains(&xcp),
                format!("{:.1} %", 100.0 * xcp),
            ),
            Verdict::new("With P-XCP it gets more than 95%", p_xcp > 0.95, format!("{:.1} %", 100.0 * p_xcp)),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot)],
    })
}

// Losses.

/// One way, milliseconds.
const DELAYS_MS: [u32; 2] = [250, 500];
/// The loss recoveries with their names in scenarios. SACK is beyond the publication.
const RECOVERIES: [(&str, &str); 4] = [
    ("Reno", "reno"),
    ("NewReno, Impatient", "newreno-impatient"),
    ("NewReno, Slow-but-Steady", "newreno-slow-but-steady"),
    ("SACK", "sack"),
];
const IMPATIENT: usize = 1;
const STEADY: usize = 2;
const SACK: usize = 3;
/// Bits per second; the publication does not give it.
const LOSSY_RATE: f64 = 5e6;
const PER: f64 = 0.001;

/// The window of the sender towards the satellite over time.
#[derive(Debug, Default)]
struct Windows(Vec<(f64, f64)>);

impl Observer for Windows {
    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, now: Time, _: usize, leg: usize, variables: &Variables, done: &Statistics) {
        if leg == 1 && done.established_at.is_some() {
            self.0.push((now.as_secs_f64(), variables.cwnd as f64 / 1432.0));
        }
    }
}

/// The runs of one variant over one recovery at one delay.
struct Course {
    runs: Vec<(RunResult, Windows)>,
}

impl Course {
    fn summary(&self, merit: impl Fn(&RunResult) -> f64) -> Summary {
        let values: Vec<f64> = self.runs.iter().map(|(result, _)| merit(result)).collect();
        Summary::of(&values).expect("an experiment has a seed")
    }

    fn goodput(&self) -> Summary {
        self.summary(|run| run.flows[0].goodput_bps)
    }

    fn timeouts(&self) -> Summary {
        self.summary(|run| run.flows[0].legs[1].timeouts as f64)
    }
}

fn loss(lab: &Lab<'_>) -> Result<Findings, Error> {
    // By delay, variant and recovery.
    let mut scenarios = Vec::new();
    for delay in DELAYS_MS {
        for variant in Variant::ALL {
            for (_, recovery) in RECOVERIES {
                let mut settings = variant.settings("satellite", "satellite");
                settings.extend([
                    "duration=180s".to_owned(),
                    "flow.limited.count=0".to_owned(),
                    format!("link.satellite.rate={LOSSY_RATE}bit/s"),
                    "link.fast.rate=20Mbit/s".to_owned(),
                    format!("link.satellite.per={PER}"),
                    format!("link.satellite.delay={delay}ms"),
                    format!("tcp.satellite.recovery={recovery}"),
                ]);
                scenarios.push(lab.scenario(&SCENARIO, &settings)?);
            }
        }
    }
    let runs = lab.observe(&scenarios, Windows::default);
    let courses: Vec<Course> = runs.into_iter().map(|runs| Course { runs }).collect();
    let by_delay: Vec<[&[Course]; 2]> =
        courses.chunks(2 * RECOVERIES.len()).map(|both| both.split_at(RECOVERIES.len()).into()).collect();
    Ok(Findings {
        verdicts: vec![
            drops(&by_delay),
            times_out(&by_delay),
            steady(&by_delay),
            steadier(&by_delay),
            with_sack(&by_delay),
        ],
        tables: vec![Part::new("loss", loss_table(&by_delay))],
        figures: vec![
            Part::new("goodput", loss_chart(&by_delay)),
            Part::new("windows", window_plot(&by_delay)),
        ],
    })
}

/// What losses cost XCP and not P-XCP is seen where recovery itself costs little.
fn drops(by_delay: &[[&[Course]; 2]]) -> Verdict {
    let ratio = |[xcp, p_xcp]: &[&[Course]; 2]| xcp[STEADY].goodput().mean / p_xcp[STEADY].goodput().mean;
    let ratios: Vec<f64> = by_delay.iter().map(ratio).collect();
    Verdict::new(
        "XCP halves its window at each loss, P-XCP does not: over Slow-but-Steady XCP has at most 95% of P-XCP's goodput",
        ratios.iter().all(|ratio| *ratio <= 0.95),
        listed(&ratios.iter().map(|ratio| format!("{:.0} %", 100.0 * ratio)).collect::<Vec<_>>()),
    )
}

fn times_out(by_delay: &[[&[Course]; 2]]) -> Verdict {
    let timeouts = |recovery: usize| by_delay.iter().map(move |[_, p_xcp]| p_xcp[recovery].timeouts().mean);
    Verdict::new(
        "P-XCP over Reno and over Impatient still times out: more than once in three minutes",
        timeouts(0).chain(timeouts(IMPATIENT)).all(|timeouts| timeouts > 1.0),
        format!(
            "Reno {}, Impatient {}",
            listed(&timeouts(0).map(tenths).collect::<Vec<_>>()),
            listed(&timeouts(IMPATIENT).map(tenths).collect::<Vec<_>>())
        ),
    )
}

fn steady(by_delay: &[[&[Course]; 2]]) -> Verdict {
    let timeouts: Vec<f64> = by_delay.iter().map(|[_, p_xcp]| p_xcp[STEADY].timeouts().mean).collect();
    Verdict::new(
        "P-XCP over Slow-but-Steady does not: less than once in three minutes",
        timeouts.iter().all(|timeouts| *timeouts < 1.0),
        listed(&timeouts.into_iter().map(tenths).collect::<Vec<_>>()),
    )
}

fn steadier(by_delay: &[[&[Course]; 2]]) -> Verdict {
    let timeouts = |recovery: usize| by_delay.iter().map(move |[_, p_xcp]| p_xcp[recovery].timeouts().mean);
    let ratios: Vec<f64> =
        timeouts(STEADY).zip(timeouts(IMPATIENT)).map(|(steady, impatient)| steady / impatient).collect();
    Verdict::new(
        "P-XCP over Slow-but-Steady times out less than half as often as over Impatient",
        ratios.iter().all(|ratio| *ratio < 0.5),
        listed(&ratios.iter().map(|ratio| format!("{:.0} %", 100.0 * ratio)).collect::<Vec<_>>()),
    )
}

fn with_sack(by_delay: &[[&[Course]; 2]]) -> Verdict {
    let limit = LOSSY_RATE * PAYLOAD * (1.0 - PER);
    let shares: Vec<f64> = by_delay.iter().map(|[_, p_xcp]| p_xcp[SACK].goodput().mean / limit).collect();
    Verdict::new(
        "Beyond the paper: P-XCP over SACK has at least 95% of what the link can carry",
        shares.iter().all(|share| *share >= 0.95),
        listed(&shares.iter().map(|share| format!("{:.1} %", 100.0 * share)).collect::<Vec<_>>()),
    )
}

fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

/// A value for each delay.
fn listed(values: &[String]) -> String {
    let each = values.iter().zip(DELAYS_MS).map(|(value, delay)| format!("{value} at {delay} ms"));
    each.collect::<Vec<_>>().join(", ")
}

fn loss_table(by_delay: &[[&[Course]; 2]]) -> Table {
    let columns = Variant::ALL.iter().flat_map(|variant| {
        let (name, key) = (variant.name(), variant.key());
        [
            Column::new(format!("{name}: goodput"), format!("{key}_goodput_bps")).shown_in("Mbit/s", MBIT),
            Column::new(format!("{name}: timeouts"), format!("{key}_timeouts")),
        ]
    });
    let leading =
        [Column::new("one way", "delay_s").shown_in("ms", 1e-3), Column::new("loss recovery", "recovery")];
    let mut table = Table::new(
        "One flow over 5 Mbit/s for three minutes, one packet in a thousand lost",
        leading.into_iter().chain(columns).collect(),
    );
    for (delay, variants) in DELAYS_MS.into_iter().zip(by_delay) {
        for (at, (recovery, _)) in RECOVERIES.into_iter().enumerate() {
            let cells = variants.iter().flat_map(|courses| {
                [
                    Cell::interval(Some(courses[at].goodput()), 2),
                    Cell::interval(Some(courses[at].timeouts()), 1),
                ]
            });
            let leading = [Cell::Number(f64::from(delay) * 1e-3, 0), Cell::text(recovery)];
            table.push(leading.into_iter().chain(cells).collect());
        }
    }
    table
}

fn loss_chart(by_delay: &[[&[Course]; 2]]) -> BarChart {
    let chart = BarChart::new(
        "Goodput over 5 Mbit/s, one packet in a thousand lost",
        Axis::dimensionless("loss recovery"),
        Axis::new("goodput", "Mbit/s"),
        RECOVERIES.map(|(name, _)| name),
    );
    DELAYS_MS.into_iter().zip(by_delay).fold(chart, |chart, (delay, variants)| {
        Variant::ALL.into_iter().zip(variants).fold(chart, |chart, (variant, courses)| {
            let bars = courses.iter().map(|course| Some(course.goodput().estimate().in_unit(MBIT)));
            chart.with(BarGroup::new(format!("{}, {delay} ms", variant.name()), bars))
        })
    })
}

fn window_plot(by_delay: &[[&[Course]; 2]]) -> Plot {
    let [xcp, p_xcp] = by_delay[0];
    let lines = [
        ("XCP, Slow-but-Steady", &xcp[STEADY]),
        ("P-XCP, Impatient", &p_xcp[IMPATIENT]),
        ("P-XCP, Slow-but-Steady", &p_xcp[STEADY]),
    ];
    let plot = Plot::new(
        "The sender's window at 250 ms one way, one run",
        Axis::new("time", "s"),
        Axis::new("window", "packets"),
    );
    lines.into_iter().fold(plot, |plot, (name, course)| {
        let points = course.runs[0].1.0.iter().map(|&(at, window)| Point::new(at, Estimate::from(window)));
        plot.with(Series::new(name, Style::Curve, points))
    })
}

// Fairness.

const OF_A_KIND: usize = 3;

fn fairness(lab: &Lab<'_>) -> Result<Findings, Error> {
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

#[cfg(test)]
mod tests {
    use super::super::Progress;
    use super::*;
    use crate::results::{Seeds, World};

    /// With so many seeds, the verdicts that do not agree.
    fn disagreeing(experiment: Experiment, count: u64) -> Vec<Verdict> {
        let results = experiment.run(World::Sim, Seeds { first: 1, count }, &Progress::default()).unwrap();
        results.verdicts.into_iter().filter(|verdict| !verdict.agrees).collect()
    }

    #[test]
    fn shares_are_as_published_where_one_flow_is_limited_and_where_round_trips_differ() {
        assert_eq!(disagreeing(ASYMMETRIC, 1), []);
        assert_eq!(disagreeing(FAIRNESS, 1), []);
    }

    #[test]
    fn losses_do_what_is_published_but_for_slow_but_steady_at_500_ms() {
        let disagreeing = disagreeing(LOSS, 3);
        assert!(disagreeing.len() <= 1, "{disagreeing:?}");
        assert!(disagreeing.iter().all(|verdict| verdict.claim.ends_with("less than once in three minutes")));
    }
}
