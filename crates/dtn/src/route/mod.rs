//! Routing: neighbours, static routes and contact plans. It has no clock: `now` is a parameter.
//!
//! The first rule that applies decides: 1. the destination's node is a neighbour: send it there; 2. static
//! routes match the destination: send it to the `via` of the most precise one, of equally precise ones the
//! first; 3. the contact plan leads to the destination's node: use the path that arrives first.
//!
//! If the plan has contacts with a node, it can be reached only within them, also as a neighbour or by a
//! static route. Other neighbours are assumed to be always reachable.
//!
//! A bundle that is on its way through contacts is booked in them, so that they are not promised twice:
//! [`book`](Routes::book) and [`cancel`](Routes::cancel).

mod contact;
pub mod ion;
mod occupancy;
mod plan;

use std::time::Duration;

use bentpipe_units::Rate;

use crate::bundle::Priority;
use crate::{DtnTime, Eid, EidPattern};
pub use contact::{Contact, ContactError};
pub use plan::{ContactId, Hop};
use plan::{Plan, Wanted};

/// The smallest fragment worth sending, bytes: fragments have heads too.
pub const LEAST_PART: u64 = 1024;
/// Contacts that begin later than this after now are not used.
pub const HORIZON: Duration = Duration::from_secs(366 * 24 * 3600);
/// What the layers below add to a bundle, parts of a thousand and at least so many bytes. Implementations of
/// contact graph routing estimate a bundle's consumption of a contact's volume so.
const OVERHEAD_PER_MILLE: u64 = 30;
const LEAST_OVERHEAD: u64 = 100;

/// A bundle, as contacts see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Bytes on the link; see [`on_link`].
    pub len: u64,
    /// Bundles that are more urgent take its place.
    pub priority: Priority,
    /// Contacts that begin later are of no use for it.
    pub expires: DtnTime,
    /// Whether a path is of use that has no room for all of it.
    pub is_divisible: bool,
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
        /// The planned contacts on the path, as far as it is known.
        hops: Vec<Hop>,
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
        let node = node.node();
        let plan = Plan::new(node.clone());
        Self { node, neighbours: Vec::new(), routes: Vec::new(), plan }
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
    /// It ends before it begins, is not between two nodes, or is repeated before it ends.
    pub fn add_contact(&mut self, contact: Contact) -> Result<(), ContactError> {
        let contact = Contact { from: contact.from.node(), to: contact.to.node(), ..contact };
        contact.check()?;
        self.plan.add(contact);
        Ok(())
    }

    /// The route of a bundle that can be sent from `now` on, but not to a node of `except`.
    ///
    /// A path with room for the whole bundle is preferred to one without, however early that arrives. A path
    /// with room for less than [`LEAST_PART`] is not used.
    pub fn next(&self, destination: &Eid, load: &Load, now: DtnTime, except: &[Eid]) -> Decision {
        // The whole bundle if any path has room, else a part of it.
        let part = load.is_divisible.then_some(load.len.min(LEAST_PART));
        std::iter::once(load.len)
            .chain(part)
            .find_map(|len| self.next_for(destination, &wanted(len, load, now), except))
            .unwrap_or(Decision::NoRoute)
    }

    /// The link to a peer. One without contacts is always there.
    pub fn link_to(&self, peer: &Eid, now: DtnTime) -> LinkState {
        let peer = peer.node();
        let contact = self.plan.open(&self.node, &peer, now);
        let sends = contact.is_some() || !self.plan.has(&peer);
        let hears = if self.plan.has_between(&peer, &self.node) {
            self.plan.arrives(&peer, &self.node, now)
        } else {
            sends
        };
        LinkState { sends, hears, rate: contact.map(|c| c.rate), delay: contact.map(|c| c.delay) }
    }

    /// Books the contacts of a path for so many bytes: other bundles that are not more urgent do not get them.
    pub fn book(&mut self, hops: &[Hop], bytes: u64, priority: Priority) {
        self.plan.book(hops, bytes, priority);
    }

    /// Returns what has been booked.
    pub fn cancel(&mut self, hops: &[Hop], bytes: u64, priority: Priority) {
        self.plan.cancel(hops, bytes, priority);
    }

    /// Takes over what is booked of contacts that are the same in older routes.
    pub(crate) fn keep_bookings_of(&mut self, older: &mut Self) {
        self.plan.keep_bookings_of(&mut older.plan);
    }

    #[cfg(test)]
    pub(crate) fn is_unbooked(&self) -> bool {
        self.plan.is_unbooked()
    }

    /// Forgets contacts that are over.
    pub(crate) fn forget_before(&mut self, now: DtnTime) {
        self.plan.forget_before(now);
    }

    /// The contact of this node with which a path begins, if it begins with one.
    pub(crate) fn own_contact(&self, hops: &[Hop]) -> Option<ContactId> {
        let first = hops.first()?.contact;
        self.plan.own_contact(first).map(|_| first)
    }

    /// Whether a contact of this node is with this peer, and begins after `now`.
    pub(crate) fn is_later_with(&self, contact: ContactId, peer: &Eid, now: DtnTime) -> bool {
        self.plan.own_contact(contact).is_some_and(|(to, window)| to == peer && window.start > now)
    }

    /// Bytes that are booked of a contact of this node, and no longer fit.
    pub(crate) fn excess(&self, contact: ContactId, now: DtnTime) -> u64 {
        self.plan.excess(contact, now)
    }

    /// When the next contact of this node begins or ends after `now`.
    pub fn next_change(&self, now: DtnTime) -> Option<DtnTime> {
        let current = self.plan.own().filter_map(|contact| contact.current(now));
        let times = current.flat_map(|window| [window.start, window.end]);
        times.filter(|&time| time > now).min()
    }

    /// How many bytes can still be sent to a neighbour in the contact that is open now, whatever is booked: all,
    /// if the plan has no contact with it; `None` outside of its contacts.
    pub fn open_for(&self, peer: &Eid, now: DtnTime) -> Option<u64> {
        self.open_after(peer, now, Duration::ZERO)
    }

    /// The same if sending begins after `pause`, or at half of the time that is left if that is earlier.
    pub(crate) fn open_after(&self, peer: &Eid, now: DtnTime, pause: Duration) -> Option<u64> {
        if !self.plan.has(peer) {
            return Some(u64::MAX);
        }
        let with = self.plan.own().filter(|contact| contact.to == *peer);
        let left = with.filter_map(|contact| {
            let window = contact.current(now).filter(|window| window.start <= now)?;
            let left = window.end.since(now);
            Some(contact.rate.bytes_in(left - pause.min(left / 2)))
        });
        left.max()
    }

    fn next_for(&self, destination: &Eid, wanted: &Wanted, except: &[Eid]) -> Option<Decision> {
        let is_free = |peer: &Eid| !except.iter().any(|not| not.node() == *peer);
        let node = destination.node();
        if self.neighbours.contains(&node)
            && is_free(&node)
            && let Some(decision) = self.reach(&node, wanted)
        {
            return Some(decision);
        }
        let mut statics = self.routes.iter().filter(|(pattern, _)| pattern.matches(destination));
        let by_route = statics.find_map(|(_, via)| is_free(via).then(|| self.reach(via, wanted)).flatten());
        by_route.or_else(|| self.by_plan(&node, wanted, except))
    }

    /// Sends to a peer: in the first contact with room, or at any time if the plan has none with it.
    fn reach(&self, peer: &Eid, wanted: &Wanted) -> Option<Decision> {
        let peer = peer.clone();
        if !self.plan.has(&peer) {
            let hops = Vec::new();
            return Some(Decision::Via { peer, from: wanted.now, until: None, fits: u64::MAX, hops });
        }
        let by = self.plan.to_peer(&peer, wanted)?;
        let (from, until) = (by.window.start.max(wanted.now), Some(by.window.end));
        Some(Decision::Via { peer, from, until, fits: by.fits, hops: vec![by.hop] })
    }

    /// The path through the plan that arrives first.
    fn by_plan(&self, node: &Eid, wanted: &Wanted, except: &[Eid]) -> Option<Decision> {
        let is_free = |peer: &Eid| !except.iter().any(|not| not.node() == *peer);
        let always: Vec<&Eid> =
            self.neighbours.iter().filter(|peer| is_free(peer) && !self.plan.has(peer)).collect();
        let path = self.plan.earliest(&always, node, wanted, &is_free)?;
        let (from, until) = match path.first {
            Some(window) => (window.start.max(wanted.now), Some(window.end)),
            None => (wanted.now, None),
        };
        Some(Decision::Via { peer: path.peer, from, until, fits: path.fits, hops: path.hops })
    }
}

fn wanted(len: u64, load: &Load, now: DtnTime) -> Wanted {
    Wanted { len, priority: load.priority, now, horizon: load.expires.min(now.after(HORIZON)) }
}

/// How many bytes a bundle of `len` bytes takes on a link: 3% more, at least 100 bytes.
pub fn on_link(len: u64) -> u64 {
    let overhead = u128::from(len) * u128::from(OVERHEAD_PER_MILLE);
    len.saturating_add(u64::try_from(overhead.div_ceil(1000)).unwrap_or(u64::MAX).max(LEAST_OVERHEAD))
}

/// How long a bundle can be that takes at most `bytes` on a link.
pub fn fits_on_link(bytes: u64) -> u64 {
    if bytes == u64::MAX {
        return bytes;
    }
    let scaled = u128::from(bytes) * 1000 / u128::from(1000 + OVERHEAD_PER_MILLE);
    u64::try_from(scaled).unwrap_or(u64::MAX).min(bytes.saturating_sub(LEAST_OVERHEAD))
}

/// A span rounded up to milliseconds, the plan's resolution: nothing may arrive too early.
fn ceil_millis(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
