//! Explicit rates: how a link is shared out, and what becomes of its queue where it is slower than it was said to be.

use bentpipe_link::{Cause, Counters};
use bentpipe_sim::{Observer, RunResult};
use bentpipe_units::{ByteCount, Time};

use super::{Experiment, Findings, Lab};
use crate::Error;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary, jain_index};
use crate::table::{Cell, Column, Table};

const SCENARIO: (&str, &str) =
    ("scenarios/explicit.toml", include_str!("../../../../scenarios/explicit.toml"));
/// The satellite among the scenario's links.
const SATELLITE: usize = 2;
const MBIT: f64 = 1e6;
/// Payload of what arrives: 1448 of 1500 bytes, and one packet in a hundred is lost.
const PAYLOAD: f64 = 1448.0 / 1500.0 * 0.99;

pub(super) const SHARES: Experiment = Experiment {
    name: "explicit-shares",
    title: "Explicit rates: four flows, newcomers, a flow limited elsewhere, a link slower than it was said to be",
    source: "ours",
    seeds: 10,
    run: shares,
    on_kernel: Some((1, super::explicit_kernel::shares)),
};

struct Case {
    name: &'static str,
    key: &'static str,
    settings: &'static [&'static str],
    /// What is compared begins then, seconds.
    settled: u64,
    /// What the link carries, bits per second.
    rate: f64,
}

const FOUR: usize = 0;
const LATE: usize = 1;
const LIMITED: usize = 2;
const SLOWER: usize = 3;
const CASES: [Case; 4] = [
    Case {
        name: "four flows",
        key: "four",
        settings: &["duration=90s", "flow.download.count=4"],
        settled: 30,
        rate: 10e6,
    },
    Case {
        name: "two flows, and two more after 30 s",
        key: "late",
        settings: &["duration=90s", "flow.download.count=2", "flow.late.count=2"],
        settled: 40,
        rate: 10e6,
    },
    Case {
        name: "two flows, one of them limited to 0.5 Mbit/s elsewhere",
        key: "limited",
        settings: &["duration=90s", "flow.download.count=1", "flow.limited.count=1"],
        settled: 30,
        rate: 10e6,
    },
    Case {
        name: "one flow, and half the link's rate",
        key: "slower",
        settings: &[
            "duration=90s",
            "flow.download.count=1",
            "link.satellite.rate=5Mbit/s",
            "link.satellite.explicit.capacity=10Mbit/s",
        ],
        settled: 30,
        rate: 5e6,
    },
];

/// What is seen from the moment on at which the start is over.
#[derive(Debug)]
struct Settled {
    from: Time,
    flows: Vec<[(f64, u64); 2]>,
    /// Bytes in the satellite's queue.
    backlogs: Vec<u64>,
    /// Dropped by it until then.
    dropped_before: u64,
    offered_before: u64,
    /// When, and how much the first flow had received.
    course: Vec<(f64, u64)>,
}

impl Settled {
    fn since(seconds: u64) -> Self {
        let from = Time::from_nanos(seconds * 1_000_000_000);
        let (flows, backlogs, course) = (Vec::new(), Vec::new(), Vec::new());
        Self { from, flows, backlogs, dropped_before: 0, offered_before: 0, course }
    }

    /// Bits per second of each flow.
    fn goodput(&self) -> Vec<f64> {
        let rate = |[from, to]: &[(f64, u64); 2]| 8.0 * (to.1 - from.1) as f64 / (to.0 - from.0);
        self.flows.iter().map(rate).collect()
    }

    /// Seconds, half of the time.
    fn median_queue(&self, rate: f64) -> f64 {
        let mut backlogs = self.backlogs.clone();
        backlogs.sort_unstable();
        backlogs.get(backlogs.len() / 2).map_or(0.0, |&bytes| 8.0 * bytes as f64 / rate)
    }

    fn dropped(&self, result: &RunResult) -> f64 {
        let counters = &result.links[SATELLITE].forward;
        let dropped = counters.dropped(Cause::QueueFull) - self.dropped_before;
        dropped as f64 / (counters.offered - self.offered_before).max(1) as f64
    }
}

impl Observer for Settled {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        let seconds = now.as_secs_f64();
        if flow == 0 && now.as_nanos().is_multiple_of(1_000_000_000) {
            self.course.push((seconds, bytes));
        }
        if now >= self.from {
            match self.flows.get_mut(flow) {
                Some([_, last]) => *last = (seconds, bytes),
                None => self.flows.push([(seconds, bytes); 2]),
            }
        }
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        if link != SATELLITE || !forward {
            return;
        }
        if now >= self.from {
            self.backlogs.push(backlog.get());
        } else {
            (self.dropped_before, self.offered_before) =
                (counters.dropped(Cause::QueueFull), counters.offered);
        }
    }
}

/// A case with all its runs.
struct Seen<'a> {
    case: &'a Case,
    runs: Vec<(RunResult, Settled)>,
}

impl Seen<'_> {
    fn summary(&self, merit: impl Fn(&RunResult, &Settled) -> f64) -> Summary {
        let values: Vec<f64> = self.runs.iter().map(|(result, settled)| merit(result, settled)).collect();
        Summary::of(&values).expect("an experiment has a seed")
    }

    /// Of what the link can carry, all flows together.
    fn used(&self) -> Summary {
        self.summary(|_, settled| settled.goodput().iter().sum::<f64>() / (self.case.rate * PAYLOAD))
    }

    fn fairness(&self) -> Summary {
        self.summary(|_, settled| jain_index(&settled.goodput()).unwrap_or(0.0))
    }

    fn queue(&self) -> Summary {
        self.summary(|_, settled| settled.median_queue(self.case.rate))
    }

    fn dropped(&self) -> Summary {
        self.summary(|result, settled| settled.dropped(result))
    }
}

fn shares(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut seen = Vec::new();
    for case in &CASES {
        let mut settings: Vec<String> = case.settings.iter().map(|&setting| setting.to_owned()).collect();
        settings.push("tcp.satellite.lost_retransmissions=true".to_owned());
        let scenario = lab.scenario(&SCENARIO, &settings)?;
        let runs = lab.observe(&[scenario], || Settled::since(case.settled));
        seen.push(Seen { case, runs: runs.into_iter().flatten().collect() });
    }
    Ok(Findings {
        verdicts: vec![fair(&seen), leaves(&seen[LIMITED]), obeys(&seen[SLOWER]), short_queue(&seen)],
        tables: vec![Part::new("shares", table(&seen))],
        figures: vec![Part::new("course", plot(&seen))],
    })
}

fn fair(seen: &[Seen<'_>]) -> Verdict {
    let [four, late] = [FOUR, LATE].map(|case| seen[case].fairness().mean);
    Verdict::new(
        "Four flows share alike, also when two of them have run for 30 s: Jain's index is at least 0.98",
        four >= 0.98 && late >= 0.98,
        format!("{four:.4}, and {late:.4} from 10 s after the newcomers on"),
    )
}

fn leaves(limited: &Seen<'_>) -> Verdict {
    let available = |rest: f64| limited.case.rate * PAYLOAD - rest;
    let share = limited.summary(|_, settled| {
        let goodput = settled.goodput();
        goodput[0] / available(goodput[1])
    });
    Verdict::new(
        "A flow that is limited to 0.5 Mbit/s elsewhere leaves its share: the other one has at least 95% of the rest",
        share.mean >= 0.95,
        format!("{:.1}%", 100.0 * share.mean),
    )
}

fn obeys(slower: &Seen<'_>) -> Verdict {
    let (used, dropped) = (slower.used().mean, slower.dropped().mean);
    Verdict::new(
        "A link of half the rate that it was said to have is used to at least 90%, and its queue drops at most 1%",
        used >= 0.9 && dropped <= 0.01,
        format!("{:.1}% used, {:.2}% dropped after 30 s", 100.0 * used, 100.0 * dropped),
    )
}

fn short_queue(seen: &[Seen<'_>]) -> Verdict {
    let queues: Vec<f64> = seen.iter().map(|seen| 1e3 * seen.queue().mean).collect();
    let told: Vec<String> = queues.iter().map(|queue| format!("{queue:.1}")).collect();
    Verdict::new(
        "The queue in front of the link is below 50 ms at the median, in all of them",
        queues.iter().all(|queue| *queue < 50.0),
        format!("{} ms", told.join(" / ")),
    )
}

fn table(seen: &[Seen<'_>]) -> Table {
    let mut table = Table::new(
        "From 30 s on, or from 10 s after the newcomers",
        vec![
            Column::new("", "case"),
            Column::new("of what the link can carry", "used").shown_in("%", 1e-2),
            Column::new("Jain's index", "jain_index"),
            Column::new("median queue", "median_queue_s").shown_in("ms", 1e-3),
            Column::new("dropped by the queue", "dropped").shown_in("%", 1e-2),
        ],
    );
    for seen in seen {
        table.push(vec![
            Cell::text(seen.case.name),
            Cell::interval(Some(seen.used()), 1),
            Cell::interval(Some(seen.fairness()), 4),
            Cell::interval(Some(seen.queue()), 1),
            Cell::interval(Some(seen.dropped()), 2),
        ]);
    }
    table
}

/// The first flow in each second, of one run of each case.
fn plot(seen: &[Seen<'_>]) -> Plot {
    let plot = Plot::new("The first flow, one run", Axis::new("time", "s"), Axis::new("goodput", "Mbit/s"));
    seen.iter().fold(plot, |plot, seen| {
        let course = &seen.runs[0].1.course;
        let step = |pair: &[(f64, u64)]| {
            let rate = 8.0 * (pair[1].1 - pair[0].1) as f64 / (pair[1].0 - pair[0].0);
            Point::new(pair[1].0, Estimate::from(rate / MBIT))
        };
        plot.with(Series::new(seen.case.key, Style::Curve, course.windows(2).map(step)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Progress;
    use crate::results::{Seeds, World};

    #[test]
    fn links_are_shared_out_and_not_overfilled() {
        let seeds = Seeds { first: 1, count: 2 };
        let results = SHARES.run(World::Sim, seeds, &Progress::default()).unwrap();
        assert!(results.verdicts.iter().all(|verdict| verdict.agrees), "{:?}", results.verdicts);
    }
}
