//! `explicit` of a `[[link]]`: one of its directions is shared out among the senders in front of it.

use std::time::Duration;

use bentpipe_config::{InTable, Off, Or, Plain, Problem, Written};
use bentpipe_link::explicit::{CrossTrafficAqm, CrossTrafficShare, RateAllocatorConfig};
use bentpipe_units::{Probability, Rate};
use serde::Deserialize;

use super::Unknown;
use super::link_ends::{LinkView, plain_rate};
use super::route::Topology;
use crate::scenario::{FlowSpec, LinkSpec};

/// The shortest round trip of an empty link that the rate allocator takes.
const SHORTEST_RTT: Duration = Duration::from_millis(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Explicit {
    at: String,
    capacity: Option<Or<Unknown, Written<Rate>>>,
    cross_traffic: Option<Written<Probability>>,
    #[serde(default)]
    cross_traffic_aqm: Aqm,
}

/// What becomes of cross traffic that sends more than it may. No endpoint of virtual time is ECN-capable, so
/// that there is nothing to mark.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Aqm {
    #[default]
    Off,
    Drop,
}

/// The allocators of the forward and the reverse direction.
pub(super) fn shared(
    link: &LinkView<'_>,
    explicit: Option<Or<Off, Explicit>>,
) -> Result<[Option<RateAllocatorConfig>; 2], Problem> {
    let mut shared = [None, None];
    if let Some(explicit) = explicit.and_then(|explicit| explicit.value) {
        let (at, config) = explicit.read(link).inside("explicit")?;
        shared[at] = Some(config);
    }
    Ok(shared)
}

impl Explicit {
    /// With the index of its direction, the one that leads away from its node.
    fn read(self, link: &LinkView<'_>) -> Result<(usize, RateAllocatorConfig), Problem> {
        let (at, outgoing) = link.end(&self.at)?;
        let capacity = self.capacity.map(Plain::get).or(plain_rate(outgoing).map(Some)).ok_or_else(|| {
            let what =
                "capacity is missing, and it is not that of the link, which has no rate or encapsulates";
            Problem::new(format!("{what}: write for example capacity = \"10Mbit/s\", or \"unknown\""))
        })?;
        let share = self.cross_traffic.map(Plain::get).and_then(|share| CrossTrafficShare::new(share.get()));
        let config = RateAllocatorConfig::new(capacity, link.round_trip().max(SHORTEST_RTT));
        let aqm = match self.cross_traffic_aqm {
            Aqm::Off => CrossTrafficAqm::Off,
            Aqm::Drop => CrossTrafficAqm::Drop,
        };
        Ok((at, RateAllocatorConfig { cross_traffic: share.unwrap_or_default(), aqm, ..config }))
    }
}

/// Each leg whose sender takes a rate must begin on a direction that is shared out.
pub(super) fn check(flow: &FlowSpec, topology: &Topology, links: &[LinkSpec]) -> Result<(), Problem> {
    for leg in flow.legs.iter().filter(|leg| leg.sender.congestion.weight().is_some()) {
        let Some(hop) = leg.path.first() else { continue };
        let (link, near) = (&links[hop.link], usize::from(!hop.forward));
        if link.shared[near].is_none() {
            let (name, node) = (&link.name, &topology.names()[link.between[near]]);
            return Err(Problem::new(format!(
                "its congestion control at {node} is explicit, but no allocator shares out {name} there: \
                 give that link \
                 explicit = {{ at = \"{node}\" }}"
            )));
        }
    }
    Ok(())
}
