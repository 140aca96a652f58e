//! `bundles` of a `[[flow]]`: it is carried from bundle node to bundle node.

use std::time::Duration;

use bentpipe_config::{Bytes, Plain, Problem, SpanFrom};
use bentpipe_units::ByteCount;
use serde::Deserialize;

use crate::bundles::BUNDLE_OVERHEAD;
use crate::scenario::{BundleSpec, FlowSpec, Side};

/// The default size of a bundle, bytes: about a bandwidth-delay product of a GEO link. After
/// a session has died about as much is sent again as TCP had in flight, and the headers hardly count.
const DEFAULT_SIZE: u64 = 1_000_000;
/// The segment MRU that other implementations announce.
const DEFAULT_SEGMENT: u64 = 64_000;
const DEFAULT_RECONNECT: Duration = Duration::from_secs(1);
/// RFC 9174 §5.1.1: seldom enough not to burden the link.
const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(60);

/// Timers below a millisecond would fill virtual time with their expiries.
type Timer = SpanFrom<1_000_000>;

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bundles {
    /// Below, headers would be the most of it.
    size: Option<Bytes<1000, { 1 << 30 }>>,
    segment: Option<Bytes<100, { 1 << 30 }>>,
    reconnect: Option<Timer>,
    keepalive: Option<Timer>,
}

impl Bundles {
    /// Makes a flow in bundles of this one.
    pub(super) fn apply(self, flow: &mut FlowSpec) -> Result<(), Problem> {
        if flow.opened_by == Side::Destination {
            let why = "a bundle node connects when it has a bundle, so the source opens the flow: leave \
                opened_by out";
            return Err(Problem::of("bundles", why));
        }
        let spec = self.spec();
        let least = spec.size + BUNDLE_OVERHEAD;
        if let Some(quota) = flow.splitters.iter().filter_map(|node| node.quota).find(|quota| *quota < least)
        {
            let (quota, least) = (ByteCount::new(quota), ByteCount::new(least));
            return Err(Problem::new(format!("a quota of {quota} holds no bundle: write {least} or more")));
        }
        // As bundle nodes do (TCP_NODELAY), since they write whole messages.
        for leg in &mut flow.legs {
            (leg.sender.nagle, leg.receiver.nagle) = (false, false);
        }
        flow.bundles = Some(spec);
        Ok(())
    }

    fn spec(self) -> BundleSpec {
        BundleSpec {
            size: self.size.map_or(DEFAULT_SIZE, |size| size.get().get()),
            segment: self.segment.map_or(DEFAULT_SEGMENT, |segment| segment.get().get()),
            reconnect: self.reconnect.map_or(DEFAULT_RECONNECT, Plain::get),
            keepalive: self.keepalive.map_or(DEFAULT_KEEPALIVE, Plain::get),
        }
    }
}
