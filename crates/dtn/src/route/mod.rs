//! Where a bundle goes next: neighbours, static routes and contact plans. Without a clock: `now` is a
//! parameter.
//!
//! In this order, and the first that has an answer decides: 1. the destination's node is a neighbour: to it;
//! 2. a static route speaks of the destination: to its `via`; of several the most precise, of equally precise
//! ones the first given; 3. the contact plan leads to the destination's node: along the way that arrives
//! first.
//!
//! A node for which the plan has contacts with this one can be reached within them only, also as a neighbour
//! or by a static route. Other neighbours are taken to be reachable always.

mod plan;

use std::time::Duration;

use bentpipe_units::{Rate, Span};
use serde::{Deserialize, Deserializer};

use crate::{DtnTime, Eid, EidPattern};
use plan::Plan;

/// The fewest bytes that a bundle is worth cutting for: fragments have heads too.
pub const LEAST_PART: u64 = 1024;

/// A time in which one node can send to another; the other direction needs a contact of its own. In a
/// configuration it is one of `[[contacts]]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contact {
    /// The sending node.
    pub from: Eid,
    /// The receiving node.
    pub to: Eid,
    /// When it begins.
    #[serde(deserialize_with = "DtnTime::from_date")]
    pub start: DtnTime,
    /// When it ends: by then the last byte has to have been sent.
    #[serde(deserialize_with = "DtnTime::from_date")]
    pub end: DtnTime,
    /// How fast it is.
    pub rate: Rate,
    /// The propagation delay.
    #[serde(default, deserialize_with = "span")]
    pub delay: Duration,
}

/// A contact that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the contact from {from} to {to} cannot be: {reason}")]
pub struct ContactError {
    from: Eid,
    to: Eid,
    reason: &'static str,
}

/// What is to become of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is sent to a neighbour.
    Via {
        /// The neighbour's node.
        peer: Eid,
        /// Not before this time; `now` is at once.
        from: DtnTime,
        /// All of it before this time; `None` is at any time.
        until: Option<DtnTime>,
        /// How many bytes can be sent in that time, and get through to the destination as far as the plan
        /// says. If they are fewer than the bundle has, it has to be cut, or to wait for another plan.
        fits: u64,
    },
    /// Nobody is known that would bring it nearer.
    NoRoute,
}

/// What a node knows about ways.
#[derive(Debug, Clone)]
pub struct Routes {
    node: Eid,
    neighbours: Vec<Eid>,
    routes: Vec<(EidPattern, Eid)>,
    plan: Plan,
}

impl Routes {
    /// A node that knows nobody.
    pub fn new(node: &Eid) -> Self {
        Self { node: node.node(), neighbours: Vec::new(), routes: Vec::new(), plan: Plan::default() }
    }

    /// This node can talk to another.
    pub fn add_neighbour(&mut self, peer: &Eid) {
        let peer = peer.node();
        if peer != Eid::None && peer != self.node && !self.neighbours.contains(&peer) {
            self.neighbours.push(peer);
        }
    }

    /// This node cannot talk to another any more.
    pub fn remove_neighbour(&mut self, peer: &Eid) {
        let peer = peer.node();
        self.neighbours.retain(|neighbour| *neighbour != peer);
    }

    /// What this pattern speaks of goes to the node `via`.
    pub fn add_route(&mut self, pattern: EidPattern, via: &Eid) {
        self.routes.push((pattern, via.node()));
        // Stable, so that of equals the first stays the first.
        self.routes.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.precision()));
    }

    /// Adds a contact to the plan; endpoints stand for their nodes.
    ///
    /// # Errors
    /// It ends before it begins, or is not between two nodes.
    pub fn add_contact(&mut self, contact: Contact) -> Result<(), ContactError> {
        let contact = Contact { from: contact.from.node(), to: contact.to.node(), ..contact };
        let reason = if contact.start >= contact.end {
            "it ends before it begins; give an end that is later"
        } else if contact.from == contact.to || contact.from == Eid::None || contact.to == Eid::None {
            "it is between two nodes; name both"
        } else {
            self.plan.add(contact);
            return Ok(());
        };
        Err(ContactError { from: contact.from, to: contact.to, reason })
    }

    /// Where a bundle of `len` bytes goes that can be sent from `now` on, but not to a node of `except`.
    ///
    /// A way that has room for all of the bundle goes before one that has not, however early that arrives;
    /// one that has room for less than [`LEAST_PART`] is none.
    pub fn next(&self, destination: &Eid, len: u64, now: DtnTime, except: &[Eid]) -> Decision {
        // As a whole if there is any way, else as much of it as the first way takes that takes enough.
        [len, len.min(LEAST_PART)]
            .into_iter()
            .find_map(|len| self.next_for(destination, len, now, except))
            .unwrap_or(Decision::NoRoute)
    }

    /// When this node's possibilities change next because a contact of its begins or ends, after `now`.
    pub fn next_change(&self, now: DtnTime) -> Option<DtnTime> {
        let times = self.plan.from(&self.node).flat_map(|contact| [contact.start, contact.end]);
        times.filter(|&time| time > now).min()
    }

    fn next_for(&self, destination: &Eid, len: u64, now: DtnTime, except: &[Eid]) -> Option<Decision> {
        let is_free = |peer: &Eid| !except.iter().any(|not| not.node() == *peer);
        let node = destination.node();
        if self.neighbours.contains(&node)
            && is_free(&node)
            && let Some(decision) = self.reach(&node, len, now)
        {
            return Some(decision);
        }
        let mut statics = self.routes.iter().filter(|(pattern, _)| pattern.matches(destination));
        let by_route = statics.find_map(|(_, via)| is_free(via).then(|| self.reach(via, len, now)).flatten());
        by_route.or_else(|| self.by_plan(&node, len, now, except))
    }

    /// Sending to a peer: in the first contact with room, or at any time if the plan has none with it.
    fn reach(&self, peer: &Eid, len: u64, now: DtnTime) -> Option<Decision> {
        if !self.plan.has(&self.node, peer) {
            return Some(Decision::Via { peer: peer.clone(), from: now, until: None, fits: u64::MAX });
        }
        let contacts = self.plan.from(&self.node).filter(|contact| contact.to == *peer);
        let (_, contact) = contacts
            .filter_map(|contact| Some((contact.arrival(len, now)?, contact)))
            .min_by_key(|(arrival, _)| *arrival)?;
        Some(Decision::Via {
            peer: peer.clone(),
            from: contact.start.max(now),
            until: Some(contact.end),
            fits: contact.room(now),
        })
    }

    /// The way through the plan that arrives first.
    fn by_plan(&self, node: &Eid, len: u64, now: DtnTime, except: &[Eid]) -> Option<Decision> {
        let is_free = |peer: &Eid| !except.iter().any(|not| not.node() == *peer);
        let always: Vec<&Eid> =
            self.neighbours.iter().filter(|peer| is_free(peer) && !self.plan.has(&self.node, peer)).collect();
        let (_, first) = self.plan.earliest(&self.node, &always, node, len, now, &is_free)?;
        let (from, until) = match first.contact {
            Some(contact) => (contact.start.max(now), Some(contact.end)),
            None => (now, None),
        };
        Some(Decision::Via { peer: first.peer.clone(), from, until, fits: first.fits })
    }
}

impl Contact {
    /// When a bundle of `len` bytes has arrived that can be sent from `ready` on; `None` if it does not fit
    /// any more.
    fn arrival(&self, len: u64, ready: DtnTime) -> Option<DtnTime> {
        let start = self.start.max(ready);
        let (busy, left) = (self.rate.time_for(len), self.end.since(start));
        // An empty bundle, too, has to be sent within the contact.
        (start < self.end && busy <= left)
            .then(|| start.after(ceil_millis(busy)).after(ceil_millis(self.delay)))
    }

    /// How many bytes can be sent from `ready` on.
    fn room(&self, ready: DtnTime) -> u64 {
        self.rate.bytes_in(self.end.since(self.start.max(ready)))
    }
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Span::deserialize(deserializer).map(Span::get)
}

/// The whole milliseconds that a span needs: plans know no shorter ones, and nothing may arrive too early.
fn ceil_millis(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
