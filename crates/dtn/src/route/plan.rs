//! Contact graph routing: the way through a contact plan that arrives first.
//!
//! Dijkstra's algorithm over the nodes, with the time of arrival as the distance, as CCSDS 734.3-B-1
//! (Schedule-Aware Bundle Routing) and Fraire, De Jonckère and Burleigh, "Routing in the Space Internet: A
//! contact graph routing tutorial" (2021) have it. A bundle is stored at each node until it is complete, and
//! can wait there; so to be at a node earlier is never worse, and one label for each node is enough, where
//! the tutorial labels contacts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::Contact;
use crate::{DtnTime, Eid};

/// All contacts, by the node that sends.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    contacts: HashMap<Eid, Vec<Contact>>,
}

/// How a way begins.
#[derive(Debug)]
pub(super) struct First<'a> {
    /// The first node on it.
    pub(super) peer: &'a Eid,
    /// In which contact that is reached; `None` is at any time.
    pub(super) contact: Option<&'a Contact>,
    /// How many bytes fit into all contacts on the way.
    pub(super) fits: u64,
}

/// How a node is reached first.
struct Label<'a> {
    arrival: DtnTime,
    peer: &'a Eid,
    contact: Option<&'a Contact>,
    fits: u64,
}

impl Plan {
    pub(super) fn add(&mut self, contact: Contact) {
        self.contacts.entry(contact.from.clone()).or_default().push(contact);
    }

    /// The contacts in which this node sends.
    pub(super) fn from<'a>(&'a self, node: &Eid) -> impl Iterator<Item = &'a Contact> + use<'a> {
        self.contacts.get(node).into_iter().flatten()
    }

    /// Whether one node ever has a contact to another.
    pub(super) fn has(&self, from: &Eid, to: &Eid) -> bool {
        self.from(from).any(|contact| contact.to == *to)
    }

    /// When `len` bytes are at `target` first that can leave `node` from `now` on, and how the way begins on
    /// which they are. They go to `always` at any time, and in contacts to nodes that are free.
    pub(super) fn earliest<'a>(
        &'a self,
        node: &'a Eid,
        always: &[&'a Eid],
        target: &Eid,
        len: u64,
        now: DtnTime,
        is_free: &dyn Fn(&Eid) -> bool,
    ) -> Option<(DtnTime, First<'a>)> {
        let mut labels: HashMap<&Eid, Label<'a>> = HashMap::new();
        let mut queue = BinaryHeap::new();
        let reach = |labels: &mut HashMap<_, _>, queue: &mut BinaryHeap<_>, to, label: Label<'a>| {
            let known: Option<&Label<'_>> = labels.get(to);
            if to != node && known.is_none_or(|known| label.arrival < known.arrival) {
                queue.push(Reverse((label.arrival, to)));
                labels.insert(to, label);
            }
        };
        for &peer in always {
            let label = Label { arrival: now, peer, contact: None, fits: u64::MAX };
            reach(&mut labels, &mut queue, peer, label);
        }
        for contact in self.from(node).filter(|contact| is_free(&contact.to)) {
            let Some(arrival) = contact.arrival(len, now) else { continue };
            let label = Label { arrival, peer: &contact.to, contact: Some(contact), fits: contact.room(now) };
            reach(&mut labels, &mut queue, &contact.to, label);
        }
        while let Some(Reverse((arrival, at))) = queue.pop() {
            let here = &labels[at];
            let (peer, contact, fits) = (here.peer, here.contact, here.fits);
            if arrival > here.arrival {
                continue;
            }
            if at == target {
                return Some((arrival, First { peer, contact, fits }));
            }
            for next in self.from(at) {
                let Some(arrival_there) = next.arrival(len, arrival) else { continue };
                let fits = fits.min(next.room(arrival));
                let label = Label { arrival: arrival_there, peer, contact, fits };
                reach(&mut labels, &mut queue, &next.to, label);
            }
        }
        None
    }
}
