//! Scenarios in code.

use std::time::Duration;

use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_sim::scenario::{FlowSpec, Hop, LegSpec, LinkSpec, Scenario, Side, SplitterSpec};
use bentpipe_tcp::Config;
use bentpipe_units::{Probability, Rate, Time};

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn direction(mbit: u64, delay: Duration, per: f64) -> DirectionConfig {
    DirectionConfig {
        rate: Some(Rate::mbps(mbit)),
        delay,
        per: Probability::new(per).unwrap(),
        ..DirectionConfig::default()
    }
}

pub(crate) fn symmetric(direction: DirectionConfig) -> LinkConfig {
    LinkConfig::symmetric(direction)
}

/// A chain of links from the source at node 0 to the destination at the last node.
pub(crate) fn chain(links: Vec<LinkConfig>) -> Scenario {
    let spec = |(index, config)| LinkSpec {
        name: format!("link{index}"),
        between: [index, index + 1],
        config,
        ends: Default::default(),
        shared: [None, None],
        protect: None,
    };
    Scenario {
        title: "a chain".into(),
        duration: Duration::from_secs(10_000),
        sample_interval: ms(100),
        nodes: (0..=links.len()).map(|index| format!("node{index}")).collect(),
        links: links.into_iter().enumerate().map(spec).collect(),
        flows: Vec::new(),
        udp: Vec::new(),
    }
}

pub(crate) fn hop(link: usize) -> Hop {
    Hop { link, forward: true }
}

/// A flow over the whole chain, end to end.
pub(crate) fn flow(scenario: &Scenario, bytes: Option<u64>, config: Config) -> FlowSpec {
    FlowSpec {
        name: format!("flow{}", scenario.flows.len()),
        bytes,
        start: Time::ZERO,
        start_within: Duration::ZERO,
        opened_by: Side::Source,
        legs: vec![LegSpec {
            path: (0..scenario.links.len()).map(hop).collect(),
            sender: config,
            receiver: config,
        }],
        splitters: Vec::new(),
        bundles: None,
    }
}

/// The same flow, split at `node`.
pub(crate) fn split_at(mut flow: FlowSpec, node: usize, buffer: u64, behind: Config) -> FlowSpec {
    let whole = flow.legs.remove(0);
    let (before, after) = whole.path.split_at(node);
    flow.legs = vec![
        LegSpec { path: before.to_vec(), ..whole },
        LegSpec { path: after.to_vec(), sender: behind, receiver: behind },
    ];
    flow.splitters = vec![SplitterSpec { node, buffer, quota: None }];
    flow
}
