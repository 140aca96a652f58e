//! The cost of a run of six flows: three with an RTT of 600 ms and three of 25 ms share 10 Mbit/s for 100 s.

use std::time::{Duration, Instant};

use bentpipe_lab::statistics::Summary;
use bentpipe_lab::table::{Cell, Column, Table};
use bentpipe_link::LinkConfig;
use bentpipe_sim::{Scenario, Unobserved, run};
use bentpipe_units::{Probability, Rate};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::ns3::{Dumbbell, Error, Ns3};
use crate::pairs::acks_counted;
use crate::scene::{RATE, as_ns3, direction, flow, link};

const LONG: Duration = Duration::from_millis(600);
const SHORT: Duration = Duration::from_millis(25);
/// Flows of either kind.
const PAIRS: usize = 3;
const SECONDS: u64 = 100;
/// The delay of the bottleneck and that of each receiver's own link.
const SHARED: Duration = Duration::from_micros(2500);
/// The links of the hosts are never the bottleneck.
const ACCESS: Rate = Rate::mbps(1000);
const ACCESS_QUEUE: u64 = 100_000_000;
const QUEUE: u64 = 750_000;

/// One run of either simulator.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cost {
    wall_s: f64,
    cpu_s: f64,
}

/// The results of one simulator, and the medians of its costs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Side {
    wall_s: Summary,
    cpu_s: Summary,
    events: u64,
    goodput_bps: f64,
    goodput_long_bps: f64,
    queue_drops: u64,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct Speed {
    ours: Side,
    ns3: Side,
    /// ns-3's median processor time over ours.
    cpu_ratio: f64,
    /// The same of the real time.
    wall_ratio: f64,
}

/// Runs both in turn, `rounds` times.
pub(crate) fn compare(ns3: &Ns3, rounds: u64) -> Result<Speed, Error> {
    let scenario = dumbbell();
    let (mut our_costs, mut their_costs) = (Vec::new(), Vec::new());
    let mut last = None;
    for _ in 0..rounds {
        let (cost, result) = timed(|| run(&scenario, 1, &mut Unobserved));
        let theirs: Dumbbell = ns3.ask("dumbbell", &[format!("--queue={QUEUE}")])?;
        our_costs.push(cost);
        their_costs.push(Cost { wall_s: theirs.wall_s, cpu_s: theirs.cpu_s });
        last = Some((result, theirs));
    }
    let (result, theirs) = last.expect("a round or more");
    let our_goodputs: Vec<f64> = result.flows.iter().map(|flow| flow.goodput_bps).collect();
    let their_goodputs: Vec<f64> = theirs.flows.iter().map(|flow| flow.goodput_bps).collect();
    let drops = result.links[BOTTLENECK].forward.dropped.queue_full;
    let ours = Side::of(&our_costs, result.events, &our_goodputs, drops);
    let ns3 = Side::of(&their_costs, theirs.events, &their_goodputs, theirs.queue_drops);
    Ok(Speed {
        cpu_ratio: ns3.cpu_s.median / ours.cpu_s.median,
        wall_ratio: ns3.wall_s.median / ours.wall_s.median,
        ours,
        ns3,
    })
}

impl Side {
    fn of(costs: &[Cost], events: u64, goodputs: &[f64], queue_drops: u64) -> Self {
        let summary = |value: fn(&Cost) -> f64| {
            let values: Vec<f64> = costs.iter().map(value).collect();
            Summary::of(&values).expect("finite times of a round or more")
        };
        Side {
            wall_s: summary(|cost| cost.wall_s),
            cpu_s: summary(|cost| cost.cpu_s),
            events,
            goodput_bps: goodputs.iter().sum(),
            goodput_long_bps: goodputs[..PAIRS].iter().sum(),
            queue_drops,
        }
    }
}

const BOTTLENECK: usize = 0;

/// The sources' links, the bottleneck, the destinations' links, as in `peers/ns3/dumbbell.cc`.
fn dumbbell() -> Scenario {
    let both = |rate, delay, queue| LinkConfig::symmetric(direction(rate, delay, queue, Probability::ZERO));
    let mut scenario = Scenario {
        title: "six flows".into(),
        duration: Duration::from_secs(SECONDS),
        sample_interval: Duration::from_secs(1),
        nodes: vec!["left".into(), "right".into()],
        links: vec![link("bottleneck", [0, 1], both(RATE, SHARED, QUEUE))],
        flows: Vec::new(),
        udp: Vec::new(),
    };
    for index in 0..2 * PAIRS {
        let rtt = if index < PAIRS { LONG } else { SHORT };
        let (source, uplink) = (scenario.nodes.len(), scenario.links.len());
        scenario.nodes.extend([format!("source{index}"), format!("destination{index}")]);
        let access = both(ACCESS, rtt / 2 - 2 * SHARED, ACCESS_QUEUE);
        scenario.links.push(link(format!("up{index}"), [source, 0], access));
        let access = both(ACCESS, SHARED, ACCESS_QUEUE);
        scenario.links.push(link(format!("down{index}"), [1, source + 1], access));
        let path = [uplink, BOTTLENECK, uplink + 1];
        scenario.flows.push(flow(format!("flow{index}"), &path, None, acks_counted(as_ns3())));
    }
    scenario
}

fn timed<T>(work: impl FnOnce() -> T) -> (Cost, T) {
    let (wall, cpu) = (Instant::now(), thread_time());
    let result = work();
    let cost = Cost { wall_s: wall.elapsed().as_secs_f64(), cpu_s: (thread_time() - cpu).as_secs_f64() };
    (cost, result)
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

pub(crate) fn table(speed: &Speed) -> Table {
    let mut table = Table::new(
        format!(
            "Six flows, 100 s, medians of {} runs: ns-3 takes {:.0} times our processor time",
            speed.ours.cpu_s.count, speed.cpu_ratio
        ),
        vec![
            Column::new("simulator", "simulator"),
            Column::new("processor time", "cpu_s").shown_in("s", 1.0),
            Column::new("real time", "wall_s").shown_in("s", 1.0),
            Column::new("events", "events"),
            Column::new("goodput, all", "goodput_bps").shown_in("Mbit/s", 1e6),
            Column::new("of the long flows", "goodput_long_bps").shown_in("Mbit/s", 1e6),
            Column::new("dropped", "queue_drops"),
        ],
    );
    for (name, side) in [("ours", &speed.ours), ("ns-3", &speed.ns3)] {
        table.push(vec![
            Cell::text(name),
            Cell::Number(side.cpu_s.median, 3),
            Cell::Number(side.wall_s.median, 3),
            Cell::Number(side.events as f64, 0),
            Cell::Number(side.goodput_bps, 2),
            Cell::Number(side.goodput_long_bps, 2),
            Cell::Number(side.queue_drops as f64, 0),
        ]);
    }
    table
}
