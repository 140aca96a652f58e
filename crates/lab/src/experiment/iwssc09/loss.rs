//! One packet in a thousand is lost.

use bentpipe_sim::{Observer, RunResult};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::Time;

use super::{Findings, Lab, MBIT, PAYLOAD, SCENARIO, Variant};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

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

pub(super) fn run(lab: &Lab<'_>) -> Result<Findings, Error> {
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
