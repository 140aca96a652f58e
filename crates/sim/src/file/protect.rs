//! `protect` of a `[[link]]`: a protected leg between its two nodes.

use bentpipe_config::{Bytes, Off, Or, Plain, Problem, Written};
use bentpipe_protect::{Choice, Queue};
use bentpipe_units::Rate;
use serde::Deserialize;

use super::link_ends::LinkView;
use crate::scenario::{LinkSpec, PROTECTED_MTU, ProtectSpec, UdpSpec};

/// A queue that holds a full packet, and as much as a daemon could have.
type QueueBytes = Bytes<1500, { 1 << 40 }>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Protect {
    #[serde(default)]
    class: Class,
    rate: Option<Written<Rate>>,
    reverse_rate: Option<Written<Rate>>,
    queue: Option<QueueBytes>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Class {
    #[default]
    Auto,
    Latency,
    Bulk,
}

/// The protected leg of a link. The link has nothing else at its ends: `others` are the keys of it that are
/// not off.
pub(super) fn protect(
    link: &LinkView<'_>,
    protect: Option<Or<Off, Protect>>,
    others: &[&str],
) -> Result<Option<ProtectSpec>, Problem> {
    let Some(protect) = protect.and_then(|protect| protect.value) else { return Ok(None) };
    if let Some(other) = others.first() {
        let message = format!("the link has {other}, too: give it either {other} or protect, not both");
        return Err(Problem::of("protect", message));
    }
    Ok(Some(protect.read(link)))
}

/// Datagrams are not cut on their way into a protected leg.
pub(super) fn check(stream: &UdpSpec, links: &[LinkSpec]) -> Result<(), Problem> {
    let hops = stream.receivers.iter().flat_map(|receiver| &receiver.path);
    let protected = hops.map(|hop| &links[hop.link]).find(|link| link.protect.is_some());
    match protected.filter(|_| stream.packet > PROTECTED_MTU) {
        None => Ok(()),
        Some(link) => Err(Problem::of(
            "packet_size",
            format!(
                "{} bytes do not fit into the frames of the protected leg over {}: write {PROTECTED_MTU} or less",
                stream.packet, link.name
            ),
        )),
    }
}

impl Protect {
    fn read(self, link: &LinkView<'_>) -> ProtectSpec {
        let directions = [&link.config.forward, &link.config.reverse];
        let [forward, reverse] = directions.map(|direction| direction.rate_of_packets());
        let rates = [self.rate.map(Plain::get).or(forward), self.reverse_rate.map(Plain::get).or(reverse)];
        let usual = |rate| Queue::usual_limit(rate, link.round_trip());
        ProtectSpec {
            choice: match self.class {
                Class::Auto => Choice::Auto,
                Class::Latency => Choice::Latency,
                Class::Bulk => Choice::Bulk,
            },
            rates,
            queues: rates.map(|rate| self.queue.map_or_else(|| usual(rate), Plain::get)),
        }
    }
}
