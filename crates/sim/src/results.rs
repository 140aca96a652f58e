//! The results of a run.

use std::time::Duration;

use bentpipe_link::agent::LinkEndReport;
use bentpipe_link::{Counters, OutageTrace};
use bentpipe_tcp::{End, Endpoint, Statistics};
use bentpipe_units::Time;
use serde::Serialize;

use crate::bundles::BundleNodes;
use crate::flow::{Flow, Splitter};
use crate::network::Pipe;
use crate::protect::ProtectResult;
use crate::scenario::{FlowSpec, LinkSpec, Scenario};
use crate::udp::UdpResult;

/// The result of a run, the same for the same scenario and seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunResult {
    /// The seed that repeats it.
    pub seed: u64,
    /// Events handled.
    pub events: u64,
    /// How long the run lasted in virtual time.
    pub seconds: f64,
    /// The results of each flow.
    pub flows: Vec<FlowResult>,
    /// The counters of each link.
    pub links: Vec<LinkResult>,
    /// The results of each UDP stream.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub udp: Vec<UdpResult>,
}

/// The results of a flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FlowResult {
    /// Its name.
    pub name: String,
    /// Bytes received by the application in each second from the opening to the last byte, or to the end of
    /// the run, in bits.
    pub goodput_bps: f64,
    /// The same over the time in which no link of its path was disrupted (PSATS09 §5.2).
    pub clear_sky_goodput_bps: f64,
    /// Payload sent by the source's TCP, retransmissions included, over the same time.
    pub throughput_bps: f64,
    /// Segments sent again, over all legs.
    pub retransmissions: u64,
    /// Expiries of the retransmission timers, over all legs.
    pub timeouts: u64,
    /// Bytes received by the application.
    pub bytes: u64,
    /// From the opening to the last byte, or to the end of the run.
    pub seconds: f64,
    /// It is finished: all that was to be sent has arrived. Of a flow without end, never.
    pub finished: bool,
    /// How its connections ended, `closed` if in good order; `null` if they had not ended.
    pub end: Option<&'static str>,
    /// Its connections, from the source on.
    pub legs: Vec<LegResult>,
    /// Its splitters, from the source on.
    pub splitters: Vec<SplitterResult>,
    /// The results of its bundles, if it is carried in bundles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundles: Option<BundleResult>,
}

/// The results of the bundles of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BundleResult {
    /// Bundles that the destination's application received.
    pub delivered: u64,
    /// By leg, how often its sending node connected.
    pub sessions: Vec<u64>,
    /// By leg, bundles that arrived though the node there had them already; they go no further.
    pub repeated: Vec<u64>,
}

/// The results of a connection, or of all consecutive connections of a leg whose nodes reconnect.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LegResult {
    /// When its sending end saw the handshake over; `null` for never.
    pub established_s: Option<f64>,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes acknowledged.
    pub bytes_acknowledged: u64,
    /// Segments with data or FIN sent.
    pub segments: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Expiries of the retransmission timer.
    pub timeouts: u64,
    /// Fast recoveries. The kernel does not count them: there those that were seen at a look, about ten in a
    /// second, or `null` where a round trip is shorter than two looks.
    pub recoveries: Option<u64>,
    /// SYNs sent from both ends, answers included; `null` on the kernel, which does not count them.
    pub syns: Option<u64>,
    /// Payload bytes that arrived more than once; on the kernel those that the receiver has reported by
    /// D-SACK (RFC 2883), in full segments.
    pub duplicate_bytes: u64,
}

/// What a flow has done in a run of either world, from which its [result](FlowResult::of) is made.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FlowOutcome {
    /// When it was opened.
    pub started_at: Time,
    /// Bytes received by the destination's application.
    pub received: u64,
    /// When the last of them came.
    pub last_byte_at: Option<Time>,
    /// How it ended, if it did.
    pub end: Option<&'static str>,
    /// Its connections, from the source on; at least one.
    pub legs: Vec<LegResult>,
    /// Its splitters, from the source on.
    pub splitters: Vec<SplitterResult>,
    /// The results of its bundles.
    pub bundles: Option<BundleResult>,
}

/// The bytes that a splitter held: received and not yet acknowledged on the other side. For a bundle node,
/// the bytes in its store.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SplitterResult {
    /// The most at any time.
    pub most_bytes: u64,
    /// The mean over the run.
    pub mean_bytes: f64,
}

/// The counters of a link.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkResult {
    /// Its name.
    pub name: String,
    /// From its first node to its second.
    pub forward: Counters,
    /// From its second node to its first.
    pub reverse: Counters,
    /// Its ends at which there are agents, an ARQ or a protected leg, that at the first node before that at
    /// the second.
    #[serde(rename = "stations", skip_serializing_if = "Vec::is_empty")]
    pub ends: Vec<LinkEndResult>,
}

/// The counters of the agents and the ARQ at the end of a link, and the IP bytes of packets that it kept or
/// held back.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkEndResult {
    /// The node at which it is.
    pub node: String,
    /// The counters of its agents and its ARQ.
    pub report: LinkEndReport,
    /// The counters of its end of a protected leg.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protect: Option<ProtectResult>,
    /// The most that it held at any time.
    pub most_held_bytes: u64,
    /// The mean over the run.
    pub mean_held_bytes: f64,
}

pub(crate) fn collect(
    scenario: &Scenario,
    seed: u64,
    now: Time,
    events: u64,
    pipes: &[Pipe],
    endpoints: &[Endpoint],
    flows: &[Flow],
) -> RunResult {
    let flow = |(spec, flow): (&FlowSpec, &Flow)| {
        flow_result(scenario, spec, flow, now, &endpoints[flow.endpoints()])
    };
    let link = |(spec, pipes): (&LinkSpec, &[Pipe])| link_result(scenario, spec, now, pipes);
    RunResult {
        seed,
        events,
        seconds: now.as_secs_f64(),
        flows: scenario.flows.iter().zip(flows).map(flow).collect(),
        links: scenario.links.iter().zip(pipes.chunks_exact(2)).map(link).collect(),
        udp: Vec::new(),
    }
}

/// `pipes` are the forward one and the reverse one.
fn link_result(scenario: &Scenario, spec: &LinkSpec, now: Time, pipes: &[Pipe]) -> LinkResult {
    let end = |(pipe, &node): (&Pipe, &usize)| {
        let near = pipe.agents()?;
        let (most_held_bytes, mean_held_bytes) = near.held.most_and_mean(now);
        let node = scenario.nodes[node].clone();
        let (report, protect) = (near.report(), near.protect_result());
        Some(LinkEndResult { node, report, protect, most_held_bytes, mean_held_bytes })
    };
    LinkResult {
        name: spec.name.clone(),
        forward: *pipes[0].counters(),
        reverse: *pipes[1].counters(),
        ends: pipes.iter().zip(&spec.between).filter_map(end).collect(),
    }
}

fn flow_result(
    scenario: &Scenario,
    spec: &FlowSpec,
    flow: &Flow,
    now: Time,
    endpoints: &[Endpoint],
) -> FlowResult {
    let splitter = |splitter: &Splitter| {
        let (most_bytes, mean_bytes) = splitter.occupancy.most_and_mean(now);
        SplitterResult { most_bytes, mean_bytes }
    };
    let outcome = FlowOutcome {
        started_at: flow.started_at,
        received: flow.received,
        last_byte_at: flow.last_byte_at,
        end: flow.ended.map(|(_, end)| end_name(end)),
        legs: endpoints.chunks_exact(2).enumerate().map(|(leg, ends)| leg_result(flow, leg, ends)).collect(),
        splitters: flow.splitters.iter().map(splitter).collect(),
        bundles: flow.bundle_nodes.as_ref().map(bundle_result),
    };
    FlowResult::of(scenario, spec, outcome, now)
}

impl FlowResult {
    /// What became of it, in a word or two: `finished`, or how its connections ended before, or `unfinished`.
    pub fn outcome(&self) -> &'static str {
        if self.finished { "finished" } else { self.end.unwrap_or("unfinished") }
    }

    /// From its opening to its last byte, in seconds; `None` if it is not finished: a run that ended before
    /// says nothing of how long it would have taken.
    pub fn completion_s(&self) -> Option<f64> {
        self.finished.then_some(self.seconds)
    }

    /// The result of a flow of a scenario in a run that lasted until `now`.
    pub fn of(scenario: &Scenario, spec: &FlowSpec, outcome: FlowOutcome, now: Time) -> Self {
        let FlowOutcome { started_at, received, last_byte_at, end, legs, splitters, bundles } = outcome;
        let finished = spec.bytes == Some(received);
        let until = if finished { last_byte_at.unwrap_or(now) } else { now };
        let span = until.since(started_at);
        let clear = span.saturating_sub(outage_between(scenario, spec, started_at, until));
        Self {
            name: spec.name.clone(),
            goodput_bps: bits_per_second(received, span),
            clear_sky_goodput_bps: bits_per_second(received, clear),
            throughput_bps: bits_per_second(legs[0].bytes_sent, span),
            retransmissions: legs.iter().map(|leg| leg.retransmissions).sum(),
            timeouts: legs.iter().map(|leg| leg.timeouts).sum(),
            bytes: received,
            seconds: span.as_secs_f64(),
            finished,
            end,
            legs,
            splitters,
            bundles,
        }
    }
}

fn bits_per_second(bytes: u64, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { bytes as f64 * 8.0 / span.as_secs_f64() }
}

fn bundle_result(bundle_nodes: &BundleNodes) -> BundleResult {
    let (sessions, repeated) = bundle_nodes.sessions_and_duplicates().unzip();
    BundleResult { delivered: bundle_nodes.bundles_delivered(), sessions, repeated }
}

fn leg_result(flow: &Flow, leg: usize, ends: &[Endpoint]) -> LegResult {
    let present: [Statistics; 2] = [ends[0].statistics(), ends[1].statistics()];
    let bundle_nodes = flow.bundle_nodes.as_ref();
    let [sender, receiver] =
        bundle_nodes.map_or(present, |bundle_nodes| bundle_nodes.statistics(leg, present));
    LegResult {
        established_s: sender.established_at.map(Time::as_secs_f64),
        bytes_sent: sender.bytes_sent,
        bytes_acknowledged: sender.bytes_acknowledged,
        segments: sender.segments,
        retransmissions: sender.retransmissions,
        timeouts: sender.timeouts,
        recoveries: Some(sender.recoveries),
        syns: Some(sender.syns + receiver.syns),
        duplicate_bytes: receiver.duplicate_bytes,
    }
}

fn end_name(end: End) -> &'static str {
    match end {
        End::Finished => "closed",
        End::ConnectTimedOut => "connect timed out",
        End::Refused => "refused",
        End::TimedOut => "timed out",
        End::Reset => "reset",
        End::Aborted => "aborted",
    }
}

/// How long, between two times, at least one direction of a link on the flow's path was in an outage.
fn outage_between(scenario: &Scenario, spec: &FlowSpec, from: Time, to: Time) -> Duration {
    let links = spec.legs.iter().flat_map(|leg| &leg.path).map(|hop| &scenario.links[hop.link].config);
    let traces = links.flat_map(|link| [&link.forward.outages, &link.reverse.outages]);
    let within = |(start, length): (Time, Duration)| {
        let (first, last) = (start.max(from), (start + length).min(to));
        (first, last - first)
    };
    // Overlaps count once: a trace made of all of them has merged them.
    traces.flat_map(OutageTrace::outages).map(within).collect::<OutageTrace>().total()
}
