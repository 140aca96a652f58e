//! `explicit` of a `[[link]]`: who shares out one of its directions among the senders in front of it.

use std::time::Duration;

use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_link::{Encapsulation, LinkConfig};
use bentpipe_units::Rate;

use super::error::Fault;
use super::flow::FlowGroup;
use super::link::unless;
use super::route::Network;
use super::section::{Field, Section};
use super::stations::{read_end, read_unless_off, round_trip};
use crate::scenario::LinkSpec;

const KEYS: [&str; 2] = ["at", "capacity"];
/// Round trips of the empty link are no shorter, as far as its sharer is told.
const SHORTEST_RTT: Duration = Duration::from_millis(1);

/// Who shares out the forward and the reverse direction of the link that `section` is about.
pub(super) fn read(
    section: &Section<'_>,
    between: [&str; 2],
    link: &LinkConfig,
) -> Result<[Option<RateAllocatorConfig>; 2], Fault> {
    let mut shared = [None, None];
    if let Some((at, config)) =
        read_unless_off(section, "explicit", |field| read_sharer(field, between, link))?
    {
        shared[at] = Some(config);
    }
    Ok(shared)
}

/// With the index of its node among the link's two, which is that of the direction that leads away from it.
fn read_sharer(
    field: &Field<'_>,
    between: [&str; 2],
    link: &LinkConfig,
) -> Result<(usize, RateAllocatorConfig), Fault> {
    let section = field.section(&KEYS)?;
    let at = read_end(&section, between)?;
    let outgoing = [&link.forward, &link.reverse][at];
    let said = section.read("capacity", |field| unless(field, "unknown", Field::value::<Rate>))?;
    let plain = outgoing.rate.filter(|_| outgoing.encapsulation == Encapsulation::default());
    let capacity = said.or(plain.map(Some)).ok_or_else(|| {
        let what = "capacity is missing, and it is not that of the link, which has no rate or encapsulates";
        section.fault(format!("{what}: write for example capacity = \"10Mbit/s\", or \"unknown\""))
    })?;
    Ok((at, RateAllocatorConfig { capacity, rtt: round_trip(link).max(SHORTEST_RTT) }))
}

/// Each leg whose sender takes a rate must begin on a direction that is shared out.
pub(super) fn check(group: &FlowGroup<'_>, network: &Network, links: &[LinkSpec]) -> Result<(), Fault> {
    let lonely =
        group.flow.legs.iter().filter(|leg| leg.sender.congestion.weight().is_some()).find_map(|leg| {
            let hop = leg.path.first()?;
            let link = &links[hop.link];
            let near = usize::from(!hop.forward);
            link.shared[near].is_none().then(|| (&link.name, &network.names()[link.between[near]]))
        });
    match lonely {
        None => Ok(()),
        Some((link, node)) => Err(group.section.fault(format!(
            "its congestion control at {node} is explicit, but nobody shares out {link} there: give that link \
             explicit = {{ at = \"{node}\" }}"
        ))),
    }
}
