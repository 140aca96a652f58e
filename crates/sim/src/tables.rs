//! The results of a run as flat tables, for programs that work with rows and columns.

use bentpipe_link::{Cause, Counters};

use crate::columns::{Schema, Value, columns};
use crate::results::{FlowResult, LegResult, LinkResult, RunResult};
use crate::scenario::Scenario;

/// One of the tables of a run's results. The columns have the names of the keys of `bentpipe sim --json`, but
/// for those that say to what a row belongs (`flow`, `leg`, `link`, `direction`, `node`, `stream`): they are
/// as in the files of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultTable {
    /// A row for each flow.
    Flows,
    /// A row for each connection of each flow.
    Legs,
    /// A row for each direction of each link.
    Links,
    /// A row for each splitter of each flow.
    Splitters,
    /// A row for each end of a link with agents, an ARQ or a protected leg.
    Stations,
    /// A row for each receiver of each UDP stream.
    Udp,
}

const FLOWS: Schema = Schema {
    name: "flows",
    columns: columns![
        flow: Text,
        goodput_bps: Number,
        clear_sky_goodput_bps: Number,
        throughput_bps: Number,
        retransmissions: Count,
        timeouts: Count,
        bytes: Count,
        seconds: Number,
        finished: Flag,
        end: Text,
    ],
};
const LEGS: Schema = Schema {
    name: "legs",
    columns: columns![
        flow: Text,
        leg: Count,
        established_s: Number,
        bytes_sent: Count,
        bytes_acknowledged: Count,
        segments: Count,
        retransmissions: Count,
        timeouts: Count,
        recoveries: Count,
        syns: Count,
        duplicate_bytes: Count,
    ],
};
const LINKS: Schema = Schema {
    name: "links",
    columns: columns![
        link: Text,
        direction: Text,
        offered: Count,
        offered_bytes: Count,
        delivered: Count,
        delivered_bytes: Count,
        wire_bytes: Count,
        dropped_queue_full: Count,
        dropped_outage: Count,
        dropped_burst_error: Count,
        dropped_packet_error: Count,
    ],
};
const SPLITTERS: Schema = Schema {
    name: "splitters",
    columns: columns![flow: Text, node: Text, most_bytes: Count, mean_bytes: Number],
};
const STATIONS: Schema = Schema {
    name: "stations",
    columns: columns![link: Text, node: Text, most_held_bytes: Count, mean_held_bytes: Number],
};
const UDP: Schema = Schema {
    name: "udp",
    columns: columns![
        stream: Text,
        node: Text,
        sent: Count,
        received: Count,
        lost: Count,
        loss: Number,
        duplicates: Count,
        delay_50_s: Number,
        delay_95_s: Number,
    ],
};

impl ResultTable {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Flows, Self::Legs, Self::Links, Self::Splitters, Self::Stations, Self::Udp];

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.schema().name == name)
    }

    /// Its name and columns.
    pub fn schema(self) -> &'static Schema {
        match self {
            Self::Flows => &FLOWS,
            Self::Legs => &LEGS,
            Self::Links => &LINKS,
            Self::Splitters => &SPLITTERS,
            Self::Stations => &STATIONS,
            Self::Udp => &UDP,
        }
    }

    /// Passes the rows of a run's results to `row`, each with a value for every column.
    pub fn rows<'a>(self, scenario: &'a Scenario, result: &'a RunResult, mut row: impl FnMut(&[Value<'a>])) {
        match self {
            Self::Flows => result.flows.iter().for_each(|flow| row(&flow_row(flow))),
            Self::Legs => legs(result, |flow, number, leg| row(&leg_row(flow, number, leg))),
            Self::Links => result.links.iter().for_each(|link| {
                row(&link_row(link, "forward", &link.forward));
                row(&link_row(link, "reverse", &link.reverse));
            }),
            Self::Splitters => {
                for (flow, spec) in result.flows.iter().zip(&scenario.flows) {
                    for (splitter, spec) in flow.splitters.iter().zip(&spec.splitters) {
                        let node = &scenario.nodes[spec.node];
                        let (most, mean) = (splitter.most_bytes, splitter.mean_bytes);
                        row(&[Value::from(&flow.name), node.into(), most.into(), mean.into()]);
                    }
                }
            }
            Self::Stations => {
                for (link, end) in
                    result.links.iter().flat_map(|link| link.ends.iter().map(move |end| (link, end)))
                {
                    let (most, mean) = (end.most_held_bytes, end.mean_held_bytes);
                    row(&[Value::from(&link.name), (&end.node).into(), most.into(), mean.into()]);
                }
            }
            Self::Udp => {
                for (stream, to) in
                    result.udp.iter().flat_map(|it| it.receivers.iter().map(move |to| (it, to)))
                {
                    row(&[
                        Value::from(&stream.name),
                        (&to.node).into(),
                        stream.sent.into(),
                        to.received.into(),
                        to.lost.into(),
                        to.loss.into(),
                        to.duplicates.into(),
                        to.delay_50_s.into(),
                        to.delay_95_s.into(),
                    ]);
                }
            }
        }
    }
}

fn flow_row(flow: &FlowResult) -> [Value<'_>; 10] {
    [
        Value::from(&flow.name),
        flow.goodput_bps.into(),
        flow.clear_sky_goodput_bps.into(),
        flow.throughput_bps.into(),
        flow.retransmissions.into(),
        flow.timeouts.into(),
        flow.bytes.into(),
        flow.seconds.into(),
        flow.finished.into(),
        flow.end.into(),
    ]
}

fn legs<'a>(result: &'a RunResult, mut each: impl FnMut(&'a FlowResult, u64, &'a LegResult)) {
    for flow in &result.flows {
        (1..).zip(&flow.legs).for_each(|(number, leg)| each(flow, number, leg));
    }
}

fn leg_row<'a>(flow: &'a FlowResult, number: u64, leg: &LegResult) -> [Value<'a>; 11] {
    [
        Value::from(&flow.name),
        number.into(),
        leg.established_s.into(),
        leg.bytes_sent.into(),
        leg.bytes_acknowledged.into(),
        leg.segments.into(),
        leg.retransmissions.into(),
        leg.timeouts.into(),
        leg.recoveries.into(),
        leg.syns.into(),
        leg.duplicate_bytes.into(),
    ]
}

fn link_row<'a>(link: &'a LinkResult, direction: &'a str, counters: &Counters) -> [Value<'a>; 11] {
    let [queue_full, outage, burst_error, packet_error] =
        Cause::ALL.map(|cause| Value::Count(counters.dropped(cause)));
    [
        Value::from(&link.name),
        direction.into(),
        counters.offered.into(),
        counters.offered_bytes.into(),
        counters.delivered.into(),
        counters.delivered_bytes.into(),
        counters.wire_bytes.into(),
        queue_full,
        outage,
        burst_error,
        packet_error,
    ]
}
