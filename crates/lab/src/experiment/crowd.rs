//! A crowd behind a gateway: many connections that send at the same moment, none of which was expected.

use std::time::Duration;

use bentpipe_link::Counters;
use bentpipe_sim::Observer;
use bentpipe_units::{ByteCount, Probability, Rate, Time};

use super::{Experiment, Lab, Load, Output, Runs, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::crowd::{Crowd, Woken};
use crate::figure::{Axis, Plot, Series, Style};
use crate::results::{Part, Plan};
use crate::statistics::{Sample, at_95};
use crate::table::{Cell, Column, Table};
use crate::topology::PAYLOAD_SHARE;

pub(super) const CROWD: Experiment = Experiment {
    name: "crowd",
    title: "50 connections that send 30 kB each at the same moment, over 10 Mbit/s and 600 ms",
    source: "ours",
    plan: Plan::doubling(20),
    run: Some(virtual_time),
    on_kernel: Some((3, kernel)),
};

const SCENARIO: (&str, &str) =
    ("scenarios/explicit.toml", include_str!("../../../../scenarios/explicit.toml"));
/// The satellite among the scenario's links.
const SATELLITE: usize = 2;
const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const CONNECTIONS: usize = 50;
const BYTES: ByteCount = ByteCount::new(30_000);
const PERS: [f64; 2] = [0.0, 0.01];

/// The claims' thresholds: the queue of connections that wake, milliseconds; that of connections that begin,
/// whose first windows leave unpaced, as the kernel has it; and the last end, of the minimum.
const WOKEN_MS: u64 = 100;
const BEGUN_MS: u64 = CONNECTIONS as u64 * FIRST_WINDOW / (RATE.bps() / 8000);
const FIRST_WINDOW: u64 = 10 * 1500;
const LAST: f64 = 1.5;
/// If a connection's last segment is lost, nothing behind it says so: the kernel's probe comes after two
/// round trips (RFC 8985 §7.2) and needs another half, and both again if the probe is lost.
const PROBED: u32 = 5;

/// What happened at each PER, with each seed.
type Tried = Vec<(f64, Vec<Woken>)>;

/// The physical minimum of the last end, seconds: half a round trip, and the bytes of all at what the link
/// delivers.
fn minimum(per: f64) -> f64 {
    let delivered = RATE.bps() as f64 / 8.0 * PAYLOAD_SHARE * (1.0 - per);
    RTT.as_secs_f64() / 2.0 + (CONNECTIONS as u64 * BYTES.get()) as f64 / delivered
}

/// The latest end that is no stall, seconds.
fn bound(per: f64) -> f64 {
    let probed = if per > 0.0 { (PROBED * RTT).as_secs_f64() } else { 0.0 };
    LAST * minimum(per) + probed
}

/// Established connections that wake.
fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let jobs = PERS.iter().flat_map(|&per| {
        let per = Probability::new(per).expect("a part of one");
        lab.seeds().map(move |seed| {
            let crowd = Crowd { rate: RATE, rtt: RTT, per, connections: CONNECTIONS, bytes: BYTES, seed };
            move || crowd.run()
        })
    });
    let woken = rows(lab.side_by_side(1, Load::of_link(RATE), jobs.collect())?, lab.seeds().count());
    Ok(output(&PERS.into_iter().zip(woken).collect(), WOKEN_MS))
}

/// Connections that begin, their times counted from their first data: a flow of virtual time does not pause.
fn virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let settings = |per: f64| {
        vec![
            "duration=60s".to_owned(),
            "sample_interval=2ms".into(),
            format!("flow.download.count={CONNECTIONS}"),
            format!("flow.download.bytes={}", BYTES.get()),
            "tcp.satellite.lost_retransmissions=true".into(),
            "link.terrestrial.rate=1Gbit/s".into(),
            "link.terrestrial.delay=0.5ms".into(),
            format!("link.satellite.per={per}"),
        ]
    };
    let scenarios: Result<Vec<_>, _> =
        PERS.iter().map(|&per| lab.scenario(&SCENARIO, &settings(per))).collect();
    let runs = lab.observe(&scenarios?, Queue::default)?;
    let woken = runs.into_iter().map(|Runs(runs)| {
        let woken = runs.into_iter().map(|run| {
            let (result, queue) = &*run;
            let ends = result.flows.iter().map(|flow| flow.seconds - queue.begun);
            let mut ends: Vec<f64> = ends.collect();
            ends.sort_by(f64::total_cmp);
            Woken { queue: queue.samples.clone(), ends }
        });
        woken.collect()
    });
    Ok(output(&PERS.into_iter().zip(woken).collect(), BEGUN_MS))
}

/// The satellite's queue from the moment on at which the first data enter it.
#[derive(Debug, Default)]
struct Queue {
    begun: f64,
    samples: Vec<(f64, f64)>,
}

impl Observer for Queue {
    fn wants_samples(&self) -> bool {
        true
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, _: &Counters) {
        // Segments of handshakes are shorter than one of data.
        let begins = self.samples.is_empty() && backlog.get() > CONNECTIONS as u64 * 100;
        if link != SATELLITE || !forward || (self.samples.is_empty() && !begins) {
            return;
        }
        let at = now.since(Time::ZERO).as_secs_f64();
        if begins {
            self.begun = at;
        }
        self.samples.push((at - self.begun, backlog.get() as f64 * 8.0 / RATE.bps() as f64));
    }
}

fn output(tried: &Tried, most_ms: u64) -> Output {
    Output {
        claims: tried.iter().flat_map(|(per, woken)| claims(*per, woken, most_ms)).collect(),
        tables: vec![Part::new("crowd", table(tried))],
        figures: vec![Part::new("queue", plot(tried))],
    }
}

fn claims(per: f64, woken: &[Woken], most_ms: u64) -> [Claim; 2] {
    let each = |measure: fn(&Woken) -> f64| woken.iter().map(measure).collect::<Vec<_>>();
    let complete = woken.iter().map(|woken| woken.ends.len() as f64).collect();
    [
        Claim::ours(format!(
            "PER {}%: in the second after, the queue is {most_ms} ms at most in each run",
            100.0 * per
        ))
        .shown_in("ms", 1e-3, 0)
        .with(Range::at_most(most_ms as f64 * 1e-3).of_each(each(most_queue))),
        Claim::ours(format!(
            "PER {}%: nobody stalls: the last has all its bytes within {:.2} s, in each run",
            100.0 * per,
            bound(per)
        ))
        .shown_in("s", 1.0, 2)
        .with(Range::at_most(bound(per)).of_each(each(last_end)))
        .with(Range::at_least(CONNECTIONS as f64).of_each(complete).shown_in("connections", 1.0, 0))
        .noting(format!("minimum {:.2} s", minimum(per))),
    ]
}

fn most_queue(woken: &Woken) -> f64 {
    woken.first_second().last().copied().unwrap_or_default()
}

fn last_end(woken: &Woken) -> f64 {
    woken.ends.last().copied().unwrap_or(f64::INFINITY)
}

fn table(tried: &Tried) -> Table {
    let seconds = |text: &str, key: &str| Column::new(text, key).shown_in("s", 1.0);
    let queue = |text: &str, key: &str| Column::new(text, key).shown_in("ms", 0.001);
    let mut table = Table::new(
        "The queue in the second after, and when the connections have their bytes",
        vec![
            Column::new("PER", "per").shown_in("%", 0.01),
            queue("queue, 95%", "queue_95_s"),
            queue("queue, maximum", "queue_max_s"),
            seconds("median end", "median_end_s"),
            seconds("last end", "last_end_s"),
            seconds("physical minimum", "minimum_s"),
        ],
    );
    for (per, woken) in tried {
        let cell = |measure: &dyn Fn(&Woken) -> f64, decimals| {
            Cell::interval(Some(summary(woken, measure)), decimals)
        };
        table.push(vec![
            Cell::Number(*per, 0),
            cell(&|woken| at_95(&woken.first_second()), 0),
            cell(&most_queue, 0),
            cell(&|woken| woken.ends[woken.ends.len() / 2], 2),
            cell(&last_end, 2),
            Cell::Number(minimum(*per), 2),
        ]);
    }
    table
}

fn summary(woken: &[Woken], measure: impl Fn(&Woken) -> f64) -> Sample {
    over_seeds(woken.iter().map(measure))
}

fn plot(tried: &Tried) -> Plot {
    let plot = Plot::new(
        "The queue after 50 connections have woken, one run",
        Axis::new("time", "s"),
        Axis::new("queue", "ms").including(0.0),
    );
    let line = |(per, woken): &(f64, Vec<Woken>)| {
        let points = woken[0].queue.iter().filter(|(at, _)| *at < 2.0).map(|(at, delay)| (*at, 1e3 * delay));
        Series::new(format!("PER {}%", 100.0 * per), Style::Line, points)
    };
    tried.iter().map(line).fold(plot, Plot::with)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn in_virtual_time_a_crowd_makes_a_short_queue_and_nobody_stalls() {
        let results = in_virtual_time(&CROWD, 2);
        assert_eq!(results.contradicted().count(), 0, "{:#?}", results.verdicts);
    }
}
