//! Protected legs: a daemon at each node of such a link puts what it forwards over it into coded frames.
//!
//! In virtual time an end of the leg sees all packets that cross the link. A daemon sees those that its host
//! forwards; what a host sends by itself, and what it receives, is not among them. So flows and streams over
//! such a link begin and end beyond its nodes.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use bentpipe_sim::Scenario;
use bentpipe_sim::scenario::{Hop, LinkSpec, ProtectSpec};
use bentpipe_units::ByteCount;

use super::{LegPlan, Plan, refused};
use crate::Error;
use crate::unsplit::{SETTLED, protect_table};

/// Every packet that leaves by a protected leg.
pub(super) const RULE: &str = "[[rules]]\naction = \"protect\"\n";
/// The two boxes need a hello and its answer, and as much again where one of these is lost.
const ROUND_TRIPS_TO_SETTLE: u32 = 4;

/// An end of a protected leg.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProtectPlan {
    peer: Ipv4Addr,
    class: String,
    queue: ByteCount,
}

impl ProtectPlan {
    /// Its table in the leg of this name.
    pub(super) fn text(&self, leg: &str, key_file: &Path) -> String {
        protect_table(leg, &self.class, self.peer.into(), key_file) + &format!("queue = \"{}\"\n", self.queue)
    }
}

impl Plan {
    /// The daemons at the ends of protected legs; behind the flows, streams and other daemons.
    ///
    /// # Errors
    /// A flow or stream begins or ends at a node of such a link, or the node splits flows or has another
    /// protected leg.
    pub(super) fn add_protected_legs(&mut self, scenario: &Scenario) -> Result<(), Error> {
        check_paths(scenario)?;
        for (index, link) in scenario.links.iter().enumerate() {
            let Some(spec) = &link.protect else { continue };
            for (end, &node) in link.between.iter().enumerate() {
                let host = &mut self.hosts[node];
                if !host.legs.is_empty() {
                    return Err(refused(format!(
                        "node {} has a protected leg over link {} and splits flows, or has another such leg: \
                         on the kernel a box with a protected leg does nothing else",
                        scenario.nodes[node], link.name
                    )));
                }
                host.forwards = true;
                host.legs.insert(index, LegPlan::of_protected(index, link, spec, end));
            }
            if !is_constant(link) {
                self.differences.insert(format!(
                    "the boxes of the protected leg over link {}, whose conditions depend on time or on what \
                     crosses it, find each other in the first seconds of a run; until then packets cross as \
                     they are",
                    link.name
                ));
            }
        }
        Ok(())
    }

    /// How long the boxes of protected legs have to find each other before the scenario's time begins; `None`
    /// where there are none.
    pub(in super::super) fn settles_in(scenario: &Scenario) -> Option<Duration> {
        let protected = scenario.links.iter().filter(|link| link.protect.is_some());
        let longest = protected.map(|link| link.config.forward.delay + link.config.reverse.delay).max()?;
        Some(SETTLED + ROUND_TRIPS_TO_SETTLE * longest)
    }

    /// Whether the boxes of a protected leg find each other over this link before the scenario's time begins:
    /// then its own time runs from its start on.
    pub(in super::super) fn runs_before(link: &LinkSpec) -> bool {
        link.protect.is_some() && is_constant(link)
    }
}

impl LegPlan {
    fn of_protected(index: usize, link: &LinkSpec, spec: &ProtectSpec, end: usize) -> Self {
        let [_, peer] = super::ends_of(Hop { link: index, forward: end == 0 });
        Self {
            rate: spec.rates[end],
            rtt: link.config.forward.delay + link.config.reverse.delay,
            protect: Some(ProtectPlan { peer, class: spec.choice.to_string(), queue: spec.queues[end] }),
            ..Self::default()
        }
    }
}

/// Whether neither time nor what has crossed it changes the link.
fn is_constant(link: &LinkSpec) -> bool {
    [&link.config.forward, &link.config.reverse]
        .iter()
        .all(|way| way.outages.is_empty() && way.trace.is_empty() && way.losses.is_empty())
}

/// What crosses a protected leg comes from beyond its one node and goes beyond the other.
fn check_paths(scenario: &Scenario) -> Result<(), Error> {
    let is_protected = |hop: &Hop| scenario.links[hop.link].protect.is_some();
    let check = |what: &str, name: &str, path: &[Hop]| {
        let ends = [path.first(), path.last()].into_iter().flatten();
        let Some(hop) = ends.into_iter().find(|hop| is_protected(hop)) else { return Ok(()) };
        let link = &scenario.links[hop.link];
        let [one, other] = link.between.map(|node| &scenario.nodes[node]);
        Err(refused(format!(
            "{what} {name} begins, ends or is split at {one} or {other}, between which link {} has a \
             protected leg: on the kernel a box protects what it forwards; put a node behind it, and let it \
             begin or end there",
            link.name
        )))
    };
    for flow in &scenario.flows {
        flow.legs.iter().try_for_each(|leg| check("flow", &flow.name, &leg.path))?;
    }
    for stream in &scenario.udp {
        for receiver in &stream.receivers {
            check("UDP stream", &stream.name, &receiver.path)?;
            if stream.receivers.len() > 1 && receiver.path.iter().any(is_protected) {
                return Err(refused(format!(
                    "UDP stream {} goes to several nodes over a protected leg: on the kernel, daemons copy \
                     no multicast packets; give each node a stream of its own",
                    stream.name
                )));
            }
        }
    }
    Ok(())
}
