//! The radii of Linux: on this machine's kernel and, from the same scenarios, in virtual time.
//!
//! A radius is not a sharp line on a machine. Its timers fire late, by up to an eighth of their length, and
//! the receiver may delay an acknowledgement by 200 ms. So what lies between the two is shown, and not judged.

use bentpipe_sim::FlowResult;

use super::{SCENARIO, efficiency};
use crate::Error;
use crate::claim::{Claim, Range, Test};
use crate::experiment::{Lab, Output, Runs, Scheme};
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, World};
use crate::statistics::Estimate;
use crate::table::{Cell, Column, Table};

/// Transfers at distances around a radius.
struct Subject {
    schemes: &'static [Scheme],
    /// What all schemes have.
    settings: &'static [&'static str],
    distances: Distances,
}

/// One-way delays in seconds: within a radius, where chance decides, and beyond.
struct Distances {
    within: &'static [f64],
    between: &'static [f64],
    beyond: &'static [f64],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zone {
    Within,
    Between,
    Beyond,
}

impl Distances {
    /// A quick look tries the nearest one and those next to the radius.
    fn tried(&self, quick: bool) -> Vec<(Zone, f64)> {
        let some = |delays: &'static [f64], some: [Option<&'static f64>; 2]| -> Vec<f64> {
            if quick { some.into_iter().flatten().copied().collect() } else { delays.to_vec() }
        };
        let zones = [
            (Zone::Within, some(self.within, [self.within.first(), self.within.last()])),
            (Zone::Between, some(self.between, [self.between.first(), None])),
            (Zone::Beyond, some(self.beyond, [self.beyond.first(), None])),
        ];
        zones
            .into_iter()
            .flat_map(|(zone, delays)| delays.into_iter().map(move |delay| (zone, delay)))
            .collect()
    }
}

/// A transfer of a scheme at a distance, with all seeds.
struct Trial {
    scheme: usize,
    zone: Zone,
    delay_s: f64,
    runs: Runs,
}

impl Trial {
    fn flows(&self) -> impl Iterator<Item = &FlowResult> {
        self.runs.results().map(|run| &run.flows[0])
    }
}

/// The trials of each subject. On the kernel all run side by side.
fn run(lab: &Lab<'_>, subjects: &[&Subject]) -> Result<Vec<Vec<Trial>>, Error> {
    let mut scenarios = Vec::new();
    for subject in subjects {
        for scheme in subject.schemes {
            for (_, delay) in subject.distances.tried(lab.quick) {
                let common = ["flow.file.tcp=stock"].iter().chain(subject.settings);
                let common = common.map(|&setting| setting.to_owned());
                let settings = scheme.with(common.chain([format!("link.space.delay={delay}s")]));
                scenarios.push(lab.scenario(&SCENARIO, &settings)?);
            }
        }
    }
    let mut runs = lab.run_idle(&scenarios)?.into_iter();
    let trials = |subject: &&Subject| {
        let of_scheme = |scheme| {
            let distances = subject.distances.tried(lab.quick).into_iter();
            distances.map(move |(zone, delay_s)| (scheme, zone, delay_s))
        };
        let places: Vec<_> = (0..subject.schemes.len()).flat_map(of_scheme).collect();
        let trial = |((scheme, zone, delay_s), runs)| Trial { scheme, zone, delay_s, runs };
        places.into_iter().zip(runs.by_ref()).map(trial).collect()
    };
    Ok(subjects.iter().map(trials).collect())
}

/// What is claimed of transfers.
struct Expected {
    range: Range,
    /// The one of two values that speaks more against it.
    worst: fn(f64, f64) -> f64,
    /// The value of a transfer that fails.
    failed: f64,
}

impl Expected {
    fn at_least(least: f64) -> Self {
        Self { range: Range::at_least(least), worst: f64::min, failed: 0.0 }
    }

    fn below(limit: f64) -> Self {
        Self { range: Range::below(limit), worst: f64::max, failed: f64::INFINITY }
    }

    /// Says it of each of a scheme's transfers in some zones; `None` if there are none.
    fn of(
        &self,
        lab: &Lab<'_>,
        trials: &[Trial],
        (scheme, zones): (usize, &[Zone]),
        value: impl Fn(&FlowResult) -> f64,
    ) -> Option<Test> {
        let chosen = trials.iter().filter(|trial| trial.scheme == scheme && zones.contains(&trial.zone));
        let value = |flow: &FlowResult| if flow.finished { value(flow) } else { self.failed };
        let values: Vec<f64> = chosen.flat_map(Trial::flows).map(value).collect();
        let exact = values.iter().copied().reduce(self.worst)?;
        let test = match lab.world {
            World::Sim => self.range.of_exact(exact),
            World::Kernel => self.range.of_each(values),
        };
        Some(test.at(delays(trials, zones)))
    }
}

/// A test's place: the distances of some zones.
fn delays(trials: &[Trial], zones: &[Zone]) -> String {
    let chosen = trials.iter().filter(|trial| zones.contains(&trial.zone)).map(|trial| trial.delay_s);
    let (least, most) = super::extremes(&chosen.collect::<Vec<_>>());
    if least == most { format!("at {least} s") } else { format!("from {least} to {most} s") }
}

/// The listener forgets a caller after 67 s or up to 99 s, if each SYN restarts its wait (`docs/radius.md`):
/// 33.5 s one way, and up to 49.5 s where the SYN comes before the expiry.
const LINUX: Subject = Subject {
    schemes: &[Scheme { name: "Linux", key: "linux", settings: &[] }],
    settings: &["flow.file.bytes=1kB"],
    distances: Distances {
        within: &[1.0, 4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0, 31.0, 33.0],
        between: &[35.0, 37.0, 39.0, 41.0, 43.0, 45.0, 47.0, 49.0, 51.0, 54.0],
        beyond: &[56.0, 57.0, 58.0, 59.0, 60.0, 61.0, 62.0, 63.0, 64.0, 66.0],
    },
};

/// A caller that gives up after three SYNs and 7 s.
const THREE_SYNS: Subject = Subject {
    schemes: &[Scheme {
        name: "three SYNs, 7 s",
        key: "three_syns",
        settings: &["tcp.stock.syn={linear=0,waits=3}"],
    }],
    settings: &["flow.file.bytes=1kB"],
    distances: Distances {
        within: &[0.5, 1.0, 1.5, 2.0, 2.4, 2.7, 3.0, 3.2, 3.3, 3.4],
        between: &[3.6, 3.8],
        beyond: &[4.0, 4.2, 4.5, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0],
    },
};

const REACH_CLAIMS: [(&Subject, &str); 2] = [
    (
        &LINUX,
        "Linux reaches 33.5 light-seconds, which the listener decides; beyond 49.5 s, and an eighth by which timers \
         are late, nothing arrives",
    ),
    (
        &THREE_SYNS,
        "A caller with three SYNs reaches 3.5 light-seconds, half of its schedule of 7 s; beyond that, and an eighth, \
         nothing arrives",
    ),
];

/// On the kernel: whether a file arrives, which needs the listener to remember the caller.
pub(super) fn reach(lab: &Lab<'_>) -> Result<Output, Error> {
    let by_subject = run(lab, &REACH_CLAIMS.map(|(subject, _)| subject))?;
    let mut table = Table::new(
        "Attempts to send a file of 1 kB",
        vec![
            Column::new("caller", "caller"),
            Column::new("one-way delay", "delay_s").shown_in("s", 1.0),
            Column::new("attempts", "attempts"),
            Column::new("arrived", "arrived"),
            Column::new("connected, then reset", "reset"),
            Column::new("connect timed out", "connect_timed_out"),
        ],
    );
    let mut plot = Plot::new(
        "How far away Linux can set up a connection",
        Axis::new("one-way delay", "s of light"),
        Axis::new("attempts that succeed", "%").including(0.0),
    );
    let mut claims = Vec::new();
    for ((subject, sentence), trials) in REACH_CLAIMS.iter().zip(&by_subject) {
        let name = subject.schemes[0].name;
        for trial in trials {
            let count = |is: &dyn Fn(&FlowResult) -> bool| {
                Cell::Number(trial.flows().filter(|flow| is(flow)).count() as f64, 0)
            };
            table.push(vec![
                Cell::text(name),
                Cell::Number(trial.delay_s, 1),
                count(&|_| true),
                count(&|flow| flow.finished),
                count(&|flow| !flow.finished && flow.end == Some("reset")),
                count(&|flow| flow.end == Some("connect timed out")),
            ]);
        }
        // Student's interval of a share would leave 0 to 100%.
        let share = |trial: &Trial| {
            let share = trial.runs.first_flow(|flow| if flow.finished { 100.0 } else { 0.0 }).mean();
            Point::new(trial.delay_s, Estimate::from(share))
        };
        plot = plot.with(Series::new(name, Style::Line, trials.iter().map(share)));
        let none = Expected { range: Range::at_most(0.0), worst: f64::max, failed: 0.0 };
        let all = Expected::at_least(1.0).of(lab, trials, (0, &[Zone::Within]), |_| 1.0);
        let none = none.of(lab, trials, (0, &[Zone::Beyond]), |_| 1.0);
        claims.push(Claim::ours(*sentence).shown_in("%", 0.01, 0).with_all(all).with_all(none));
    }
    Ok(Output {
        claims,
        tables: vec![Part::new("attempts", table)],
        figures: vec![Part::new("attempts", plot)],
    })
}

/// Timestamps tell the round trip from the first answer. Without them the first data has RFC 6298 §5.7's
/// timeout of 3 s where the SYN was repeated, and a tail loss probe takes the timer's place with new data.
const STEP: Subject = Subject {
    schemes: &[
        Scheme { name: "Linux", key: "linux", settings: &[] },
        Scheme {
            name: "without timestamps",
            key: "no_timestamps",
            settings: &["tcp.stock.timestamps=false"],
        },
        Scheme {
            name: "without timestamps, TLP and F-RTO",
            key: "no_timestamps_no_probes",
            settings: &[
                "tcp.stock.timestamps=false",
                "tcp.stock.tail_loss_probe=false",
                "tcp.stock.forward_rto=false",
            ],
        },
    ],
    settings: &["flow.file.bytes=100kB"],
    distances: Distances {
        within: &[0.25, 0.4, 0.45, 0.55, 0.7, 0.9, 1.1, 1.2, 1.3, 1.4],
        between: &[1.5, 1.6],
        beyond: &[1.7, 1.8, 1.9, 2.0, 2.2, 2.5, 2.7, 3.0, 3.5, 4.0],
    },
};
const BARE: usize = 2;

/// The third radius, where a round trip passes the maximum RTO. SYNs obey it, too.
const CEILING_SCHEMES: &[Scheme] = &[
    Scheme { name: "Linux", key: "linux", settings: &[] },
    Scheme {
        name: "without TLP and F-RTO",
        key: "no_probes",
        settings: &["tcp.stock.tail_loss_probe=false", "tcp.stock.forward_rto=false"],
    },
];
const NO_PROBES: usize = 1;
/// Small enough for a transfer of a minute.
const CEILING_4_S: Subject = Subject {
    schemes: CEILING_SCHEMES,
    settings: &["flow.file.bytes=100kB", "tcp.stock.rto.max=4s", "tcp.stock.syn.max=4s"],
    distances: Distances {
        within: &[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.85],
        between: &[1.9, 1.95, 2.0, 2.05, 2.1, 2.2],
        beyond: &[2.3, 2.4, 2.5, 2.6, 2.8, 3.0, 3.2, 3.5, 3.8, 4.0],
    },
};
/// The maximum that RADIUS07 asks about. A transfer takes four minutes, and needs a listener that remembers its
/// caller.
const CEILING_64_S: Subject = Subject {
    schemes: CEILING_SCHEMES,
    settings: &[
        "flow.file.bytes=100kB",
        "tcp.stock.rto.max=64s",
        "tcp.stock.syn.max=64s",
        "tcp.stock.syn_ack.waits=8",
    ],
    distances: Distances {
        within: &[20.0, 22.0, 24.0, 26.0, 27.0, 28.0, 29.0, 30.0, 30.5, 31.0],
        between: &[32.0, 33.0],
        beyond: &[34.0, 34.5, 35.0, 35.5, 36.0, 36.5, 37.0, 37.5, 38.0, 39.0],
    },
};
/// Where probes and F-RTO are at work, so much of what is sent is needed.
const CHEAP: f64 = 0.95;

/// The step and the third radius, in either world.
pub(super) fn step(lab: &Lab<'_>) -> Result<Output, Error> {
    let is_quick = lab.quick && lab.world == World::Kernel;
    let subjects = [&STEP, &CEILING_4_S, &CEILING_64_S];
    let subjects = if is_quick { &subjects[..2] } else { &subjects[..] };
    let by_subject = run(lab, subjects)?;
    let (stepped, ceilings) = by_subject.split_first().expect("the step is one of the subjects");
    let all = [Zone::Within, Zone::Between, Zone::Beyond];
    let test = |trials: &[Trial], scheme, zones: &[Zone], expected: &Expected| {
        expected.of(lab, trials, (scheme, zones), efficiency)
    };
    let (once, twice) = (Expected::at_least(1.0), Expected::below(1.0));
    let around = |trials: &[Trial], scheme| {
        let tests = [(Zone::Within, &once), (Zone::Beyond, &twice)];
        tests.map(|(zone, expected)| test(trials, scheme, &[zone], expected)).into_iter().flatten()
    };
    let cheap = |trials: &Vec<Trial>| test(trials, 0, &all, &Expected::at_least(CHEAP));
    let claims = vec![
        Claim::ours("Linux, which has timestamps, sends nothing twice at any distance up to 4 s")
            .shown_in("", 1.0, 3)
            .with_all(test(stepped, 0, &all, &once)),
        Claim::ours(
            "Linux without timestamps, tail loss probes and F-RTO has its step at 1.5 s: RFC 6298 §5.7 raises the \
             timeout to 3 s where the SYN was repeated",
        )
        .shown_in("", 1.0, 3)
        .with_all(around(stepped, BARE)),
        Claim::ours(
            "Linux without tail loss probes and F-RTO has a third radius where the round trip passes the maximum RTO: \
             with timestamps nothing is sent twice within, and something is in each transfer beyond",
        )
        .shown_in("", 1.0, 3)
        .with_all(ceilings.iter().flat_map(|trials| around(trials, NO_PROBES))),
        Claim::ours(
            "Linux as it is pays little for it: goodput over throughput is 0.95 or more on both sides of the third \
             radius",
        )
        .shown_in("", 1.0, 3)
        .with_all(ceilings.iter().filter_map(cheap)),
    ];
    let titles = [
        ("linux-step", "Linux: a file of 100 kB"),
        ("linux-ceiling-4s", "Linux with a maximum RTO of 4 s: a file of 100 kB"),
        ("linux-ceiling-64s", "Linux with a maximum RTO of 64 s: a file of 100 kB"),
    ];
    let parts = || titles.into_iter().zip(subjects).zip(&by_subject);
    let tables =
        parts().map(|(((name, title), subject), trials)| Part::new(name, transfers(title, subject, trials)));
    // Four distances make no curve.
    let figures = parts()
        .take(2)
        .map(|(((name, title), subject), trials)| Part::new(name, plot(title, subject, trials)));
    Ok(Output { claims, tables: tables.collect(), figures: figures.collect() })
}

/// A row for each distance; time, efficiency and timeouts of each scheme.
fn transfers(title: &str, subject: &Subject, trials: &[Trial]) -> Table {
    let heading = |Scheme { name, key, .. }: &Scheme| {
        [
            Column::new(format!("{name}: time"), format!("{key}_transfer_s")).shown_in("s", 1.0),
            Column::new("goodput / throughput", format!("{key}_efficiency")),
            Column::new("timeouts", format!("{key}_timeouts")),
        ]
    };
    let delay = Column::new("one-way delay", "delay_s").shown_in("s", 1.0);
    let columns = [delay].into_iter().chain(subject.schemes.iter().flat_map(heading)).collect();
    let mut table = Table::new(title, columns);
    let distances = trials.len() / subject.schemes.len();
    for at in 0..distances {
        let cells = trials.iter().skip(at).step_by(distances).flat_map(|trial| {
            let cell = |measure: fn(&FlowResult) -> f64, decimals| {
                Cell::interval(Some(&trial.runs.first_flow(measure)), decimals)
            };
            [cell(|flow| flow.seconds, 1), cell(efficiency, 3), cell(|flow| flow.timeouts as f64, 1)]
        });
        table.push([Cell::Number(trials[at].delay_s, 2)].into_iter().chain(cells).collect());
    }
    table
}

fn plot(title: &str, subject: &Subject, trials: &[Trial]) -> Plot {
    let plot = Plot::new(
        title,
        Axis::new("one-way delay", "s of light"),
        Axis::dimensionless("goodput / throughput"),
    );
    subject.schemes.iter().enumerate().fold(plot, |plot, (index, scheme)| {
        let of_scheme = trials.iter().filter(|trial| trial.scheme == index);
        let points =
            of_scheme.map(|trial| Point::new(trial.delay_s, trial.runs.first_flow(efficiency).estimate()));
        plot.with(Series::new(scheme.name, Style::Line, points))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Progress;
    use crate::results::Seeds;

    #[test]
    fn in_virtual_time_linux_has_the_step_and_the_third_radius_where_its_timers_put_them() {
        let progress = Progress::default();
        let output = step(&Lab::in_virtual_time(Seeds { first: 1, count: 1 }, &progress)).unwrap();
        for claim in &output.claims {
            let verdict = claim.judge(crate::claim::Level::of_looks(1));
            assert!(verdict.agrees(), "{verdict:#?}");
        }
    }

    #[test]
    fn a_quick_look_has_distances_on_both_sides() {
        let quick = LINUX.distances.tried(true);
        let expected =
            [(Zone::Within, 1.0), (Zone::Within, 33.0), (Zone::Between, 35.0), (Zone::Beyond, 56.0)];
        assert_eq!(quick, expected);
        assert_eq!(LINUX.distances.tried(false).len(), 30);
    }
}
