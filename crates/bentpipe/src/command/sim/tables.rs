//! The results as tables for people: the flows, the UDP streams, and the packets that the links delivered and
//! dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use bentpipe_lab::statistics::Summary;
use bentpipe_lab::table::{Cell, Column, Table};
use bentpipe_link::Counters;
use bentpipe_sim::sweep::{Plan, Point, Run};
use bentpipe_sim::{FlowResult, LinkResult, Scenario, UdpReceiverResult};

use super::Outcome;

/// The tables, and the effort of the runs. A scenario without flows or without streams has none of them.
pub(super) fn text(plan: &Plan, title: &str, runs: &[Run<Outcome>]) -> anyhow::Result<String> {
    let swept: Vec<&str> = plan.points()[0].labels.iter().map(|label| label.key.as_str()).collect();
    let mut flows = Table::new(title, columns(&swept, flow_columns()));
    let mut udp = Table::new("UDP streams", columns(&swept, udp_columns()));
    let mut links = Table::new("Packets delivered, and dropped by cause", columns(&swept, link_columns()));
    for (point, runs) in plan.points().iter().zip(runs.chunks(runs.len() / plan.points().len())) {
        let group = Group { point, scenario: &plan.scenario(point)?, runs };
        for index in 0..group.scenario.flows.len() {
            flows.push(group.flow(index));
        }
        for (index, stream) in group.scenario.udp.iter().enumerate() {
            for receiver in 0..stream.receivers.len() {
                udp.push(group.udp(index, receiver));
            }
        }
        for index in 0..group.scenario.links.len() {
            links.push(group.link(index, |link| &link.forward, [0, 1]));
            links.push(group.link(index, |link| &link.reverse, [1, 0]));
        }
    }
    let tables = [&flows, &udp, &links].into_iter().filter(|table| !table.rows().is_empty());
    let tables: String = tables.map(|table| format!("{}\n", table.to_text())).collect();
    Ok(format!("{tables}{}\n", effort(runs)))
}

/// A column for each parameter that is swept, then the others.
fn columns(swept: &[&str], others: Vec<Column>) -> Vec<Column> {
    swept.iter().map(|&key| Column::new(key, key)).chain(others).collect()
}

fn flow_columns() -> Vec<Column> {
    vec![
        Column::new("flow", "flow"),
        Column::new("goodput", "goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("outside outages", "clear_sky_goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("received", "bytes").shown_in("MB", 1e6),
        Column::new("time", "seconds").shown_in("s", 1.0),
        Column::new("retransmissions", "retransmissions"),
        Column::new("timeouts", "timeouts"),
        Column::new("end", "end"),
    ]
}

fn udp_columns() -> Vec<Column> {
    vec![
        Column::new("stream", "stream"),
        Column::new("to", "receiver"),
        Column::new("sent", "sent"),
        Column::new("received", "received"),
        Column::new("lost", "lost"),
        Column::new("lost", "loss").shown_in("%", 0.01),
        Column::new("delay, 50%", "delay_50_s").shown_in("ms", 0.001),
        Column::new("delay, 95%", "delay_95_s").shown_in("ms", 0.001),
    ]
}

fn link_columns() -> Vec<Column> {
    let keys = ["link", "direction", "delivered", "queue_full", "outage", "burst_error", "packet_error"];
    keys.map(|key| Column::new(key.replace('_', " "), key)).into()
}

/// The runs of one point: they differ in their seed only.
struct Group<'a> {
    point: &'a Point,
    scenario: &'a Scenario,
    runs: &'a [Run<Outcome>],
}

impl Group<'_> {
    fn flow(&self, index: usize) -> Vec<Cell> {
        let of = |run: &Run<Outcome>, merit: fn(&FlowResult) -> f64| merit(&run.result.result.flows[index]);
        let mean = |decimals, merit| self.mean(decimals, |run| of(run, merit));
        let counts = self.decimals_of_counts();
        let mut row = self.settings();
        row.extend([
            Cell::text(&self.scenario.flows[index].name),
            mean(3, |flow| flow.goodput_bps),
            mean(3, |flow| flow.clear_sky_goodput_bps),
            mean(3, |flow| flow.bytes as f64),
            self.completion(index),
            mean(counts, |flow| flow.retransmissions as f64),
            mean(counts, |flow| flow.timeouts as f64),
            Cell::text(ends(self.runs.iter().map(|run| &run.result.result.flows[index]))),
        ]);
        row
    }

    /// The mean time over the runs in which the flow was finished: of the others nobody knows how long it
    /// takes.
    fn completion(&self, index: usize) -> Cell {
        let flows = self.runs.iter().map(|run| &run.result.result.flows[index]);
        let times: Vec<f64> = flows.filter_map(FlowResult::completion_s).collect();
        Cell::interval(Summary::of(&times), 3)
    }

    fn udp(&self, index: usize, receiver: usize) -> Vec<Cell> {
        let counts = self.decimals_of_counts();
        let mean = |decimals, merit: fn(&UdpReceiverResult) -> f64| {
            self.mean(decimals, |run| merit(&run.result.result.udp[index].receivers[receiver]))
        };
        let stream = &self.scenario.udp[index];
        let mut row = self.settings();
        row.extend([
            Cell::text(&stream.name),
            Cell::text(&self.scenario.nodes[stream.receivers[receiver].node]),
            self.mean(counts, |run| run.result.result.udp[index].sent as f64),
            mean(counts, |receiver| receiver.received as f64),
            mean(counts, |receiver| receiver.lost as f64),
            mean(2, |receiver| receiver.loss),
            self.delay(index, receiver, |receiver| receiver.delay_50_s),
            self.delay(index, receiver, |receiver| receiver.delay_95_s),
        ]);
        row
    }

    /// A delay over the runs in which anything was received.
    fn delay(&self, index: usize, receiver: usize, of: fn(&UdpReceiverResult) -> Option<f64>) -> Cell {
        let receivers = self.runs.iter().map(|run| &run.result.result.udp[index].receivers[receiver]);
        let delays: Vec<f64> = receivers.filter_map(of).collect();
        Cell::interval(Summary::of(&delays), 1)
    }

    fn link(
        &self,
        index: usize,
        direction: fn(&LinkResult) -> &Counters,
        [from, to]: [usize; 2],
    ) -> Vec<Cell> {
        let link = &self.scenario.links[index];
        let of = |run: &Run<Outcome>, count: fn(&Counters) -> u64| {
            count(direction(&run.result.result.links[index])) as f64
        };
        let mean = |count| self.mean(self.decimals_of_counts(), |run| of(run, count));
        let node = |end: usize| &self.scenario.nodes[link.between[end]];
        let mut row = self.settings();
        row.extend([
            Cell::text(&link.name),
            Cell::text(format!("{} → {}", node(from), node(to))),
            mean(|counters| counters.delivered),
            mean(|counters| counters.dropped.queue_full),
            mean(|counters| counters.dropped.outage),
            mean(|counters| counters.dropped.burst_error),
            mean(|counters| counters.dropped.packet_error),
        ]);
        row
    }

    fn settings(&self) -> Vec<Cell> {
        self.point.labels.iter().map(|label| Cell::text(&label.value)).collect()
    }

    /// The mean over the seeds, with its interval if there are several.
    fn mean(&self, decimals: usize, value: impl Fn(&Run<Outcome>) -> f64) -> Cell {
        let values: Vec<f64> = self.runs.iter().map(value).collect();
        Cell::interval(Summary::of(&values), decimals)
    }

    /// A count is a whole number, a mean of counts is not.
    fn decimals_of_counts(&self) -> usize {
        usize::from(self.runs.len() > 1)
    }
}

/// How the flows of several runs ended, with their numbers where they differ.
fn ends<'a>(flows: impl Iterator<Item = &'a FlowResult>) -> String {
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for flow in flows {
        *ends.entry(flow.outcome()).or_default() += 1;
    }
    match ends.len() {
        1 => ends.into_keys().collect(),
        _ => ends.iter().map(|(end, count)| format!("{count} {end}")).collect::<Vec<_>>().join(", "),
    }
}

/// One line about the runs as such.
fn effort(runs: &[Run<Outcome>]) -> String {
    let events: u64 = runs.iter().map(|run| run.result.result.events).sum();
    let wall: Duration = runs.iter().map(|run| run.result.wall).sum();
    let virtual_s: f64 = runs.iter().map(|run| run.result.result.seconds).sum();
    let what = match runs {
        [run] => format!("seed {}", run.seed),
        _ => {
            let (first, last) =
                (runs.first().map_or(0, |run| run.seed), runs.last().map_or(0, |run| run.seed));
            match first == last {
                true => format!("{} runs, seed {first}", runs.len()),
                false => format!("{} runs, seeds {first} to {last}", runs.len()),
            }
        }
    };
    let wall_s = wall.as_secs_f64();
    format!("{what}: {virtual_s:.1} s of virtual time, {events} events, {wall_s:.3} s of one core")
}
