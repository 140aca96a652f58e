//! What a flow could have at the most, and when nothing arrives.

use bentpipe_sim::Scenario;
use bentpipe_sim::scenario::{FlowSpec, Hop, LegSpec};
use serde::Serialize;

/// The most outages that the page gets of a link's direction.
const MOST_OUTAGES: usize = 500;
/// The bytes of TCP's timestamps in each segment (RFC 7323 §3.2), padded.
const TIMESTAMPS: u16 = 12;
/// The bytes of the headers of IPv4 and TCP.
const HEADERS: u16 = 40;

/// The best that a flow can do.
#[derive(Debug, Serialize)]
pub(crate) struct FlowLimit {
    /// What it sends; `null` is without end.
    bytes: Option<u64>,
    /// Its goodput, if it had the slowest link of its path to itself: rate × share of payload × (1 − PER);
    /// where these change with time, as they are at first. `null` where no link has a rate.
    bps: Option<f64>,
    /// That link.
    bottleneck: Option<Bottleneck>,
    /// The bandwidth-delay product of its last leg, bytes: the rate of the slowest link times twice the
    /// delay.
    bdp_bytes: Option<f64>,
}

/// A direction of a link.
#[derive(Debug, Serialize)]
struct Bottleneck {
    link: usize,
    /// From the link's first node to its second.
    forward: bool,
}

/// A time in which nothing arrives over a link.
#[derive(Debug, Serialize)]
pub(crate) struct Outage {
    link: usize,
    start_s: f64,
    seconds: f64,
}

/// The limit of each flow.
pub(crate) fn of_flows(scenario: &Scenario) -> Vec<FlowLimit> {
    scenario.flows.iter().map(|flow| of_flow(scenario, flow)).collect()
}

fn of_flow(scenario: &Scenario, flow: &FlowSpec) -> FlowLimit {
    let hops = flow.legs.iter().flat_map(|leg| leg.path.iter().map(move |hop| (leg, hop)));
    let goodputs = hops.filter_map(|(leg, hop)| Some((goodput(scenario, leg, hop)?, hop)));
    let slowest = goodputs.min_by(|(one, _), (other, _)| one.total_cmp(other));
    let bottleneck = slowest.map(|(_, hop)| Bottleneck { link: hop.link, forward: hop.forward });
    FlowLimit {
        bytes: flow.bytes,
        bps: slowest.map(|(bps, _)| bps),
        bottleneck,
        bdp_bytes: flow.legs.last().and_then(|leg| bdp(scenario, leg)),
    }
}

fn goodput(scenario: &Scenario, leg: &LegSpec, hop: &Hop) -> Option<f64> {
    let link = direction(scenario, hop);
    let rate = link.rate?.bps() as f64;
    let options = if leg.sender.timestamps { TIMESTAMPS } else { 0 };
    let payload = leg.sender.mss - options;
    let wire = link.encapsulation.wire_bytes(u64::from(leg.sender.mss + HEADERS));
    Some(rate * f64::from(payload) / wire as f64 * (1.0 - link.per.get()))
}

fn bdp(scenario: &Scenario, leg: &LegSpec) -> Option<f64> {
    let links = leg.path.iter().map(|hop| direction(scenario, hop));
    let delay: f64 = links.clone().map(|link| link.delay.as_secs_f64()).sum();
    let rate = links.filter_map(|link| link.rate).map(|rate| rate.bps()).min()?;
    Some(rate as f64 / 8.0 * 2.0 * delay)
}

fn direction<'a>(scenario: &'a Scenario, hop: &Hop) -> &'a bentpipe_link::DirectionConfig {
    let link = &scenario.links[hop.link].config;
    if hop.forward { &link.forward } else { &link.reverse }
}

/// The outages of the links' forward directions.
pub(crate) fn outages(scenario: &Scenario) -> Vec<Outage> {
    let of_link = |(link, spec): (usize, &bentpipe_sim::scenario::LinkSpec)| {
        let outages = spec.config.forward.outages.outages().take(MOST_OUTAGES);
        let outage = move |(start, length): (bentpipe_units::Time, std::time::Duration)| Outage {
            link,
            start_s: start.as_secs_f64(),
            seconds: length.as_secs_f64(),
        };
        outages.map(outage).collect::<Vec<_>>()
    };
    scenario.links.iter().enumerate().flat_map(of_link).collect()
}
