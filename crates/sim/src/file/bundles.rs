//! `bundles` of a `[[flow]]`: it is carried from bundle node to bundle node.

use std::ops::RangeInclusive;
use std::time::Duration;

use bentpipe_units::ByteCount;

use super::error::Fault;
use super::section::{Field, Section};
use super::stations::read_unless_off;
use crate::bundles::BUNDLE_OVERHEAD;
use crate::scenario::{BundleSpec, FlowSpec, Side};

const KEYS: [&str; 4] = ["size", "segment", "reconnect", "keepalive"];

/// Data in a bundle where it is not said, bytes: about a bandwidth-delay product of a GEO link. What has to be sent again when
/// a session dies is then about what TCP had on its way, and the headers are lost in it.
const DEFAULT_SIZE: u64 = 1_000_000;
/// The bounds of a bundle's data: small enough that headers are not the most of it, and 1 GiB.
const SIZE: RangeInclusive<u64> = 1000..=1 << 30;
/// What other implementations announce as the most that they take in an XFER_SEGMENT.
const DEFAULT_SEGMENT: u64 = 64_000;
const SEGMENT: RangeInclusive<u64> = 100..=1 << 30;
const DEFAULT_RECONNECT: Duration = Duration::from_secs(1);
/// RFC 9174 §5.1.1: not so often that it burdens the link.
const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(60);
/// The shortest of both: timers below this would fill virtual time with their expiries.
const SHORTEST_SPAN: Duration = Duration::from_millis(1);

/// Makes a flow in bundles of this one, if it is to be one.
pub(super) fn read(section: &Section<'_>, flow: &mut FlowSpec) -> Result<(), Fault> {
    let Some(spec) = read_unless_off(section, "bundles", read_spec)? else { return Ok(()) };
    if flow.opened_by == Side::Destination
        && let Some(field) = section.get("bundles")
    {
        let why =
            "a bundle node connects when it has a bundle, so the source opens the flow: leave opened_by out";
        return Err(field.fault(why));
    }
    let least = spec.size + BUNDLE_OVERHEAD;
    if let Some(quota) = flow.splitters.iter().filter_map(|node| node.quota).find(|quota| *quota < least) {
        let (quota, least) = (ByteCount::new(quota), ByteCount::new(least));
        return Err(section.fault(format!("a quota of {quota} holds no bundle: write {least} or more")));
    }
    // As bundle nodes do (TCP_NODELAY): what they write is whole messages.
    for leg in &mut flow.legs {
        (leg.sender.nagle, leg.receiver.nagle) = (false, false);
    }
    flow.bundles = Some(spec);
    Ok(())
}

/// Bytes that a node's store holds at the most.
pub(super) fn read_quota(field: &Field<'_>) -> Result<u64, Fault> {
    Ok(field.value::<ByteCount>()?.get())
}

fn read_spec(field: &Field<'_>) -> Result<BundleSpec, Fault> {
    let section = field.section(&KEYS)?;
    let bytes = |key, accepted| section.read(key, |field| read_bytes(field, accepted));
    let span = |key| section.read(key, |field| field.span_from(SHORTEST_SPAN));
    Ok(BundleSpec {
        size: bytes("size", SIZE)?.unwrap_or(DEFAULT_SIZE),
        segment: bytes("segment", SEGMENT)?.unwrap_or(DEFAULT_SEGMENT),
        reconnect: span("reconnect")?.unwrap_or(DEFAULT_RECONNECT),
        keepalive: span("keepalive")?.unwrap_or(DEFAULT_KEEPALIVE),
    })
}

fn read_bytes(field: &Field<'_>, accepted: RangeInclusive<u64>) -> Result<u64, Fault> {
    let bytes = field.value::<ByteCount>()?;
    if accepted.contains(&bytes.get()) {
        return Ok(bytes.get());
    }
    let (least, most) = accepted.into_inner();
    Err(field.fault(format!(
        "{bytes} is not possible: write {} to {}",
        ByteCount::new(least),
        ByteCount::new(most)
    )))
}
