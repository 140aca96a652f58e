//! Routing: neighbours, static routes and contact plans. It has no clock: `now` is a parameter.
//!
//! The first rule that applies decides: 1. the destination's node is a neighbour: send it there; 2. static
//! routes match the destination: send it to the `via` of the most precise one, of equally precise ones the
//! first; 3. the contact plan leads to the destination's node: use the path that arrives first.
//!
//! If the plan has contacts with a node, it can be reached only within them, also as a neighbour or by a
//! static route. Other neighbours are assumed to be always reachable.

mod plan;

use std::time::Duration;

use bentpipe_units::{Rate, Span};
use serde::{Deserialize, Deserializer};

use crate::{DtnTime, Eid, EidPattern};
use plan::Plan;

/// The smallest fragment worth sending, bytes: fragments have heads too.
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
    /// When it ends: the last byte has to be sent before.
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

/// Where a bundle goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// To a neighbour.
    Via {
        /// The neighbour's node.
        peer: Eid,
        /// From this time on; `now` is at once.
        from: DtnTime,
        /// The time by which all of it has to be sent; `None` has no limit.
        until: Option<DtnTime>,
        /// How many bytes fit into all planned contacts on the path. A longer bundle has to be fragmented, or
        /// to wait.
        fits: u64,
    },
    /// No path is known.
    NoRoute,
}

/// What the contact plan says of the link to a peer at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkState {
    /// Whether this node can send to it.
    pub sends: bool,
    /// Whether what it sends can arrive. A plan that has no contacts in this direction says the same as of the
    /// other.
    pub hears: bool,
    /// How fast the contact is in which this node sends.
    pub rate: Option<Rate>,
    /// The propagation delay of that contact.
    pub delay: Option<Duration>,
}

/// The routes of a node.
#[derive(Debug, Clone)]
pub struct Routes {
    node: Eid,
    neighbours: Vec<Eid>,
    routes: Vec<(EidPattern, Eid)>,
    plan: Plan,
}

impl Routes {
    /// The routes of a node without neighbours.
    pub fn new(node: &Eid) -> Self {
        Self { node: node.node(), neighbours: Vec::new(), routes: Vec::new(), plan: Plan::default() }
    }

    /// Adds a neighbour.
    pub fn add_neighbour(&mut self, peer: &Eid) {
        let peer = peer.node();
        if peer != Eid::None && peer != self.node && !self.neighbours.contains(&peer) {
            self.neighbours.push(peer);
        }
    }

    /// Removes a neighbour.
    pub fn remove_neighbour(&mut self, peer: &Eid) {
        let peer = peer.node();
        self.neighbours.retain(|neighbour| *neighbour != peer);
    }

    /// Adds a static route: endpoints that match go to the node `via`.
    pub fn add_route(&mut self, pattern: EidPattern, via: &Eid) {
        self.routes.push((pattern, via.node()));
        // A stable sort: of equally precise ones the first stays first.
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

    /// The route of a bundle of `len` bytes that can be sent from `now` on, but not to a node of `except`.
    ///
    /// A path with room for the whole bundle is preferred to one without, however early that arrives. A path
    /// with room for less than [`LEAST_PART`] is not used.
    pub fn next(&self, destination: &Eid, len: u64, now: DtnTime, except: &[Eid]) -> Decision {
        // The whole bundle if any path has room, else a part of it.
        [len, len.min(LEAST_PART)]
            .into_iter()
            .find_map(|len| self.next_for(destination, len, now, except))
            .unwrap_or(Decision::NoRoute)
    }

    /// The link to a peer. One without contacts is always there.
    pub fn link_to(&self, peer: &Eid, now: DtnTime) -> LinkState {
        let peer = peer.node();
        let contact = self.plan.from(&self.node).find(|c| c.to == peer && c.start <= now && now < c.end);
        let sends = contact.is_some() || !self.plan.has(&self.node, &peer);
        let mut returning = self.plan.from(&peer).filter(|contact| contact.to == self.node).peekable();
        let hears = match returning.peek() {
            Some(_) => returning.any(|c| c.start.after(c.delay) <= now && now < c.end.after(c.delay)),
            None => sends,
        };
        LinkState { sends, hears, rate: contact.map(|c| c.rate), delay: contact.map(|c| c.delay) }
    }

    /// When the next contact of this node begins or ends after `now`.
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

    /// Sends to a peer: in the first contact with room, or at any time if the plan has none with it.
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

    /// The path through the plan that arrives first.
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
    /// The arrival of a bundle of `len` bytes that can be sent from `ready` on; `None` if it no longer fits.
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

/// A span rounded up to milliseconds, the plan's resolution: nothing may arrive too early.
fn ceil_millis(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
