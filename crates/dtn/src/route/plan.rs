//! Contact graph routing: the path through a contact plan that arrives first.
//!
//! Dijkstra's algorithm with the time of arrival as the distance, as CCSDS 734.3-B-1 (Schedule-Aware Bundle
//! Routing) and Fraire, De Jonckère and Burleigh, "Routing in the Space Internet: A contact graph routing
//! tutorial" (2021) have it. The tutorial labels contacts; one label for each node is enough here, with
//! bookings too. A bundle is stored at each node until it is complete, and can wait there. Bookings do not
//! change during a search, and a bundle that is ready earlier is never sent later: what is booked before it
//! is no more, and what is booked after it has as much time. So to be at a node earlier is never worse.
//!
//! **Bookings.** A contact in which this node sends has one queue, its own: a bundle waits for all that is
//! not less urgent (SABR §3.2.6.2, earliest transmission opportunity). At other nodes this node knows only what
//! it has sent, or will send, there itself; they are assumed to send in the order of arrival. Arrivals are
//! counted in intervals of a 64th of the contact, a second to a minute.
//!
//! **Horizon.** A search looks at the next [`MAX_OCCURRENCES`] contacts of a series, so that it ends whatever
//! is booked, and no further than its [`Wanted::horizon`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use super::ceil_millis;
use super::contact::{Contact, Window};
use super::occupancy::{Occupancy, Opportunity};
use crate::bundle::Priority;
use crate::{DtnTime, Eid};

/// The most contacts of one series that a search looks at.
pub(super) const MAX_OCCURRENCES: u64 = 1000;
/// Into how many intervals of arrival a contact is divided, within these limits.
const INTERVALS: u64 = 64;
const SHORTEST_INTERVAL_MS: u64 = 1000;
const LONGEST_INTERVAL_MS: u64 = 60_000;

/// All contacts, and what is booked of them.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    me: Eid,
    contacts: Vec<Planned>,
    by_sender: HashMap<Eid, Sender>,
}

#[derive(Debug, Clone)]
struct Planned {
    contact: Contact,
    /// By the number in the series.
    booked: BTreeMap<u64, Occupancy>,
}

/// The contacts in which a node sends.
#[derive(Debug, Clone, Default)]
struct Sender {
    /// Those that are not over.
    contacts: Vec<u32>,
    /// To whom, ever.
    receivers: HashSet<Eid>,
}

/// One contact of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContactId {
    pub(super) index: u32,
    pub(super) occurrence: u64,
}

/// A contact on a path, and the interval in which the bundle is ready for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// The contact.
    pub(super) contact: ContactId,
    pub(super) interval: u64,
}

/// What a search is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Bytes on the link.
    pub(super) len: u64,
    pub(super) priority: Priority,
    pub(super) now: DtnTime,
    /// Contacts that begin then or later are not used.
    pub(super) horizon: DtnTime,
}

/// A bundle in a contact.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transmission {
    pub(super) hop: Hop,
    pub(super) window: Window,
    pub(super) arrival: DtnTime,
    /// How many bytes fit.
    pub(super) fits: u64,
}

/// A path through the plan.
#[derive(Debug)]
pub(super) struct Path {
    #[cfg_attr(not(test), expect(dead_code, reason = "tests compare it with that of an exhaustive search"))]
    pub(super) arrival: DtnTime,
    /// The first node on it.
    pub(super) peer: Eid,
    /// In which contact that is reached; `None` is at any time.
    pub(super) first: Option<Window>,
    /// How many bytes fit into all contacts on the path.
    pub(super) fits: u64,
    /// The contacts.
    pub(super) hops: Vec<Hop>,
}

/// How a node is reached first.
struct Label<'a> {
    arrival: DtnTime,
    /// From which node in which contact; nothing for the first node if that is always reached.
    from: Option<&'a Eid>,
    by: Option<Transmission>,
    fits: u64,
}

impl Plan {
    /// The plan of a node, without contacts.
    pub(super) fn new(me: Eid) -> Self {
        Self { me, contacts: Vec::new(), by_sender: HashMap::new() }
    }

    pub(super) fn add(&mut self, contact: Contact) {
        let Ok(index) = u32::try_from(self.contacts.len()) else { return };
        let sender = self.by_sender.entry(contact.from.clone()).or_default();
        sender.contacts.push(index);
        sender.receivers.insert(contact.to.clone());
        self.contacts.push(Planned { contact, booked: BTreeMap::new() });
    }

    fn indexes(&self, from: &Eid) -> impl Iterator<Item = (u32, &Contact)> {
        let indexes = self.by_sender.get(from).into_iter().flat_map(|sender| &sender.contacts);
        indexes.map(|&index| (index, &self.contacts[index as usize].contact))
    }

    /// The contacts in which this node sends, without those that are over.
    pub(super) fn own(&self) -> impl Iterator<Item = &Contact> {
        self.indexes(&self.me).map(|(_, contact)| contact)
    }

    /// Whether this node ever has a contact to another.
    pub(super) fn has(&self, to: &Eid) -> bool {
        self.has_between(&self.me, to)
    }

    /// Whether a node ever has a contact to another.
    pub(super) fn has_between(&self, from: &Eid, to: &Eid) -> bool {
        self.by_sender.get(from).is_some_and(|sender| sender.receivers.contains(to))
    }

    /// The contact between two nodes that is open now.
    pub(super) fn open(&self, from: &Eid, to: &Eid, now: DtnTime) -> Option<&Contact> {
        let mut contacts = self.indexes(from).map(|(_, contact)| contact).filter(|contact| contact.to == *to);
        contacts.find(|contact| contact.is_open(now))
    }

    /// Whether what one node has sent to another in a contact can arrive now.
    pub(super) fn arrives(&self, from: &Eid, to: &Eid, now: DtnTime) -> bool {
        let mut contacts = self.indexes(from).map(|(_, contact)| contact).filter(|contact| contact.to == *to);
        contacts.any(|contact| now.before(contact.delay).is_some_and(|sent| contact.is_open(sent)))
    }

    /// Forgets what is over.
    pub(super) fn forget_before(&mut self, now: DtnTime) {
        for planned in &mut self.contacts {
            let current = planned.contact.first_after(now);
            planned.booked = planned.booked.split_off(&current);
        }
        for sender in self.by_sender.values_mut() {
            sender.contacts.retain(|&index| self.contacts[index as usize].contact.current(now).is_some());
        }
    }

    /// Takes over what is booked of contacts that are the same in another plan.
    pub(super) fn keep_bookings_of(&mut self, other: &mut Self) {
        let mut by_ends: HashMap<(&Eid, DtnTime), Vec<usize>> = HashMap::new();
        for (index, old) in other.contacts.iter().enumerate().filter(|(_, old)| !old.booked.is_empty()) {
            by_ends.entry((&old.contact.from, old.contact.start)).or_default().push(index);
        }
        for new in &mut self.contacts {
            let same = by_ends.get_mut(&(&new.contact.from, new.contact.start)).and_then(|indexes| {
                let at = indexes.iter().position(|&index| other.contacts[index].contact == new.contact)?;
                Some(indexes.swap_remove(at))
            });
            if let Some(index) = same {
                new.booked.clone_from(&other.contacts[index].booked);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_unbooked(&self) -> bool {
        self.contacts.iter().all(|planned| planned.booked.is_empty())
    }

    pub(super) fn book(&mut self, hops: &[Hop], bytes: u64, priority: Priority) {
        for Hop { contact, interval } in hops {
            if let Some(planned) = self.contacts.get_mut(contact.index as usize) {
                planned.booked.entry(contact.occurrence).or_default().book(*interval, bytes, priority);
            }
        }
    }

    pub(super) fn cancel(&mut self, hops: &[Hop], bytes: u64, priority: Priority) {
        for Hop { contact, interval } in hops {
            let Some(planned) = self.contacts.get_mut(contact.index as usize) else { continue };
            let Some(booked) = planned.booked.get_mut(&contact.occurrence) else { continue };
            booked.cancel(*interval, bytes, priority);
            if booked.is_empty() {
                planned.booked.remove(&contact.occurrence);
            }
        }
    }

    /// The receiving node and the times of a contact of this node.
    pub(super) fn own_contact(&self, id: ContactId) -> Option<(&Eid, Window)> {
        let contact = &self.contacts.get(id.index as usize)?.contact;
        (contact.from == self.me).then_some((&contact.to, contact.window(id.occurrence)?))
    }

    /// Bytes that are booked of a contact of this node, and no longer fit.
    pub(super) fn excess(&self, id: ContactId, now: DtnTime) -> u64 {
        let Some(planned) = self.contacts.get(id.index as usize) else { return 0 };
        let booked = planned.booked.get(&id.occurrence).map_or(0, Occupancy::total);
        let window = planned.contact.window(id.occurrence);
        let left = window.map_or(Duration::ZERO, |window| window.end.since(window.start.max(now)));
        booked.saturating_sub(planned.contact.rate.bytes_in(left))
    }

    /// The first contact of a series in which a bundle fits that is ready at `ready`.
    pub(super) fn transmit(&self, index: u32, ready: DtnTime, wanted: &Wanted) -> Option<Transmission> {
        let Planned { contact, booked } = self.contacts.get(index as usize)?;
        // The end of the search is the same for all times of `ready`: else to be ready later could be better.
        let end = contact.first_after(wanted.now).saturating_add(MAX_OCCURRENCES);
        for occurrence in contact.first_after(ready)..end {
            let window = contact.window(occurrence).filter(|window| window.start < wanted.horizon)?;
            let booked = booked.get(&occurrence);
            let (interval, opportunity) = self.opportunity(contact, window, booked, ready, wanted.priority);
            if let Some(sent) = opportunity.sent(wanted.len) {
                let hop = Hop { contact: ContactId { index, occurrence }, interval };
                let arrival = window.start.after(ceil_millis(sent)).after(ceil_millis(contact.delay));
                return Some(Transmission { hop, window, arrival, fits: opportunity.room() });
            }
            if booked.is_none() && window.start >= ready {
                // It does not fit into an empty one, and they are all alike.
                return None;
            }
        }
        None
    }

    fn opportunity(
        &self,
        contact: &Contact,
        window: Window,
        booked: Option<&Occupancy>,
        ready: DtnTime,
        priority: Priority,
    ) -> (u64, Opportunity) {
        let (length, ready) = (window.end.since(window.start), ready.since(window.start));
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let width = (millis(length) / INTERVALS).clamp(SHORTEST_INTERVAL_MS, LONGEST_INTERVAL_MS);
        // All that waits here is ready, and nothing of it has been sent.
        let (interval, idle_until) =
            if contact.from == self.me { (0, ready) } else { (millis(ready) / width, Duration::ZERO) };
        let width = Duration::from_millis(width);
        let times = (ready, interval, width);
        let opportunity = Opportunity::of(booked, times, idle_until, (length, contact.rate), priority);
        (interval, opportunity)
    }

    /// The first transmission to a neighbour.
    pub(super) fn to_peer(&self, peer: &Eid, wanted: &Wanted) -> Option<Transmission> {
        let contacts = self.indexes(&self.me).filter(|(_, contact)| contact.to == *peer);
        let transmissions = contacts.filter_map(|(index, _)| self.transmit(index, wanted.now, wanted));
        transmissions.min_by_key(|transmission| transmission.arrival)
    }

    /// The path on which a bundle is at `target` first. It goes to `always` at any time, and in contacts of this
    /// node to nodes that are free.
    pub(super) fn earliest(
        &self,
        always: &[&Eid],
        target: &Eid,
        wanted: &Wanted,
        is_free: &dyn Fn(&Eid) -> bool,
    ) -> Option<Path> {
        let mut labels: HashMap<&Eid, Label<'_>> = HashMap::new();
        let mut queue = BinaryHeap::new();
        for &peer in always {
            queue.push(Reverse((wanted.now, peer)));
            labels.insert(peer, Label { arrival: wanted.now, from: None, by: None, fits: u64::MAX });
        }
        let mut from_here = Some((wanted.now, &self.me));
        while let Some((arrival, at)) = from_here.take().or_else(|| queue.pop().map(|Reverse(next)| next)) {
            let is_me = *at == self.me;
            let fits = if is_me { u64::MAX } else { labels[at].fits };
            if !is_me && arrival > labels[at].arrival {
                continue;
            }
            if at == target {
                return Some(path_to(&labels, &self.me, target));
            }
            for (index, contact) in self.indexes(at).filter(|(_, next)| !is_me || is_free(&next.to)) {
                let to = &contact.to;
                let Some(by) = self.transmit(index, arrival, wanted) else { continue };
                if *to != self.me && labels.get(to).is_none_or(|known| by.arrival < known.arrival) {
                    queue.push(Reverse((by.arrival, to)));
                    let fits = fits.min(by.fits);
                    labels.insert(to, Label { arrival: by.arrival, from: Some(at), by: Some(by), fits });
                }
            }
        }
        None
    }
}

/// The path that the labels lead back from `target` to `me`.
fn path_to(labels: &HashMap<&Eid, Label<'_>>, me: &Eid, target: &Eid) -> Path {
    let Label { arrival, fits, .. } = labels[target];
    let (mut peer, mut first, mut hops) = (target, None, Vec::new());
    let mut at = Some(target);
    while let Some(label) = at.filter(|at| *at != me).and_then(|at| labels.get_key_value(at)) {
        let (node, Label { from, by, .. }) = label;
        (peer, first) = (*node, by.map(|by| by.window));
        hops.extend(by.map(|by| by.hop));
        at = *from;
    }
    hops.reverse();
    Path { arrival, peer: peer.clone(), first, fits, hops }
}
