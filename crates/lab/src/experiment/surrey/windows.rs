//! Figure 3: the sender's window over time.

use bentpipe_sim::{Observer, RunResult};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::Time;

use super::super::{Experiment, Findings, Lab};
use super::{GATEWAY_WINDOW, PACKET, SCENARIO, SOURCE, WINDOW, Way, scientific};
use crate::Error;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

pub(in super::super) const FIG3: Experiment = Experiment {
    name: "surrey-fig3",
    title: "The sender's window with split SACK and with Snoop",
    source: SOURCE,
    seeds: 100,
    run: fig3,
    on_kernel: None,
};

const PERS: [f64; 4] = [1e-4, 1e-3, 1e-2, 5e-2];
const LAST: usize = PERS.len() - 1;
/// The leg over the satellite, and the most that its sender may have on the way, packets.
const WAYS: [(Way, usize, f64); 2] = [(Way::SplitSack, 1, GATEWAY_WINDOW), (Way::Snoop, 0, WINDOW)];

/// The sender's window while it sends.
#[derive(Debug)]
struct Windows {
    leg: usize,
    most: f64,
    /// Seconds, packets.
    samples: Vec<(f64, f64)>,
}

impl Observer for Windows {
    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, now: Time, _: usize, leg: usize, variables: &Variables, done: &Statistics) {
        if leg == self.leg && done.established_at.is_some() && done.ended_at.is_none() {
            self.samples.push((now.as_secs_f64(), (variables.cwnd as f64 / PACKET).min(self.most)));
        }
    }
}

impl Windows {
    fn mean(&self) -> f64 {
        self.samples.iter().map(|(_, window)| window).sum::<f64>() / self.samples.len().max(1) as f64
    }
}

/// The runs of a way at a packet error rate.
struct Course {
    runs: Vec<(RunResult, Windows)>,
}

impl Course {
    fn mean_window(&self) -> Summary {
        self.summary(|(_, windows)| windows.mean())
    }

    fn timeouts(&self) -> Summary {
        self.summary(|(result, _)| result.flows[0].timeouts as f64)
    }

    fn recoveries(&self) -> Summary {
        self.summary(|(result, _)| result.flows[0].legs.iter().map(|leg| leg.recoveries).sum::<u64>() as f64)
    }

    fn summary(&self, merit: impl Fn(&(RunResult, Windows)) -> f64) -> Summary {
        let values: Vec<f64> = self.runs.iter().map(merit).collect();
        Summary::of(&values).expect("an experiment has a seed")
    }
}

fn fig3(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut courses = Vec::new();
    for (way, leg, most) in WAYS {
        let scenarios = PERS
            .map(|per| lab.scenario(&SCENARIO, &way.with_per(per)))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        let runs = lab.observe(&scenarios, || Windows { leg, most, samples: Vec::new() });
        courses.push(runs.into_iter().map(|runs| Course { runs }).collect::<Vec<_>>());
    }
    let [split, snoop] = [&courses[0], &courses[1]];
    let mut figures = Vec::new();
    for (at, per) in PERS.into_iter().enumerate() {
        figures.push(Part::new(format!("per-{}", scientific(per)), plot(per, [&split[at], &snoop[at]])));
    }
    Ok(Findings {
        verdicts: vec![
            larger_where_little_is_lost(split, snoop),
            smaller_where_much_is_lost(split, snoop),
            isolated(split, snoop),
            some_timeouts(snoop),
        ],
        tables: vec![Part::new("windows", table(&courses))],
        figures,
    })
}

fn table(courses: &[Vec<Course>]) -> Table {
    let columns = WAYS.iter().flat_map(|(way, ..)| {
        let (name, key) = (way.name(), way.key());
        [
            Column::new(format!("{name}: window, packets"), format!("{key}_window_packets")),
            Column::new(format!("{name}: fast recoveries"), format!("{key}_recoveries")),
            Column::new(format!("{name}: timeouts"), format!("{key}_timeouts")),
        ]
    });
    let mut table = Table::new(
        "The window of the sender towards the satellite, its mean over the transfer of 4 MB",
        [Column::new("PER", "per")].into_iter().chain(columns).collect(),
    );
    for (at, per) in PERS.into_iter().enumerate() {
        let cells = courses.iter().flat_map(|course| {
            let course = &course[at];
            [course.mean_window(), course.recoveries(), course.timeouts()]
                .map(|value| Cell::interval(Some(value), 1))
        });
        table.push([Cell::Number(per, 4)].into_iter().chain(cells).collect());
    }
    table
}

fn plot(per: f64, courses: [&Course; 2]) -> Plot {
    let plot = Plot::new(
        format!("The sender's window at PER {}, one run", scientific(per)),
        Axis::new("time", "s"),
        Axis::new("window", "packets"),
    );
    WAYS.iter().zip(courses).fold(plot, |plot, ((way, ..), course)| {
        let samples = &course.runs[0].1.samples;
        let points = samples.iter().map(|&(at, window)| Point::new(at, Estimate::from(window)));
        plot.with(Series::new(way.name(), Style::Curve, points))
    })
}

fn told(split: &[Course], snoop: &[Course], at: usize) -> String {
    let (split, snoop) = (split[at].mean_window().mean, snoop[at].mean_window().mean);
    format!("{split:.1} and {snoop:.1} packets at PER {}", scientific(PERS[at]))
}

fn larger_where_little_is_lost(split: &[Course], snoop: &[Course]) -> Verdict {
    let ratio = split[0].mean_window().ratio_to(&snoop[0].mean_window());
    Verdict::new(
        "At a low packet error rate the gateway makes use of its larger window: twice that of Snoop's sender or more",
        ratio.may_be_at_least(2.0),
        told(split, snoop, 0),
    )
}

fn smaller_where_much_is_lost(split: &[Course], snoop: &[Course]) -> Verdict {
    let ratios = [2, LAST].map(|at| split[at].mean_window().ratio_to(&snoop[at].mean_window()));
    Verdict::new(
        "From PER 1e-2 on losses keep split SACK's window below that of Snoop's sender",
        ratios.iter().all(|ratio| ratio.may_be_at_most(1.0)),
        format!("{}; {}", told(split, snoop, 2), told(split, snoop, LAST)),
    )
}

fn isolated(split: &[Course], snoop: &[Course]) -> Verdict {
    let counts = |course: &[Course]| {
        let counts = course.iter().map(|course| format!("{:.1}", course.recoveries().mean));
        counts.collect::<Vec<_>>().join(", ")
    };
    let fewer = snoop
        .iter()
        .zip(split)
        .all(|(snoop, split)| snoop.recoveries().mean <= 0.1 * split.recoveries().mean.max(1.0));
    Verdict::new(
        "Snoop keeps its sender from fast recovery: at most a tenth of split SACK's recoveries",
        fewer,
        format!("{} and {} at PER {}", counts(snoop), counts(split), PERS.map(scientific).join(", ")),
    )
}

fn some_timeouts(snoop: &[Course]) -> Verdict {
    let counts: Vec<f64> = snoop.iter().map(|course| course.timeouts().mean).collect();
    Verdict::new(
        "At high packet error rates some timeouts of Snoop's sender cannot be avoided",
        counts[2] > 0.0 || counts[LAST] > 0.0,
        format!(
            "{} at PER {}",
            counts.iter().map(|count| format!("{count:.1}")).collect::<Vec<_>>().join(", "),
            PERS.map(scientific).join(", ")
        ),
    )
}
