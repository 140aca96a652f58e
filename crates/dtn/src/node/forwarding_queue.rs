//! The stored bundles by what they wait for, in the order in which they go. Pure: no clock, no disk.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::bundle::{Bundle, BundleId, Fragment, Priority};
use crate::route::{Decision, LinkState, Routes};
use crate::store::{Key, Purpose, Record};
use crate::{DtnTime, Eid};

use super::status::WaitingStatus;

/// A bundle without a route is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// The order in a queue: by priority, then by arrival.
type Position = (Reverse<Priority>, Key);

/// All bundles of the store, by what they wait for.
#[derive(Debug)]
pub(crate) struct ForwardingQueue {
    routes: Routes,
    entries: BTreeMap<Key, Entry>,
    /// Bundles that can go to a peer now.
    queues: BTreeMap<Eid, BTreeSet<Position>>,
    /// Bundles that wait for an application.
    deliveries: BTreeMap<Eid, BTreeSet<Position>>,
    /// Bundles that wait for a contact or a route, by the time of the next attempt.
    parked: BTreeSet<(DtnTime, Key)>,
    expiries: BTreeSet<(DtnTime, Key)>,
    /// When leases end, and which. Those of bundles that have been acknowledged meanwhile are here until then.
    lease_ends: BTreeSet<(DtnTime, Key, u64)>,
    /// Fragments for this node, by their whole bundle.
    parts: HashMap<BundleId, BTreeSet<Key>>,
    /// Bytes of all blocks except payloads: the memory that bundles take.
    head_bytes: u64,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    status: Status,
    /// Peers that have refused it for now.
    refused_by: Vec<Eid>,
    /// Peers that it must not go to: they refuse it for good, or have had it already.
    closed: Vec<Eid>,
    /// How often it has been given to an application.
    leases: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    Queued(Eid),
    Parked(DtnTime),
    /// A session is sending it.
    Sending,
    /// It waits for an application.
    Deliverable,
    /// An application holds it.
    Delivering,
    /// A fragment that waits for the others.
    Part,
}

impl ForwardingQueue {
    pub(crate) fn new(routes: Routes) -> Self {
        Self {
            routes,
            entries: BTreeMap::new(),
            queues: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            parked: BTreeSet::new(),
            expiries: BTreeSet::new(),
            lease_ends: BTreeSet::new(),
            parts: HashMap::new(),
            head_bytes: 0,
        }
    }

    /// Adds a stored bundle. Returns the peer that it can go to now.
    pub(crate) fn insert(&mut self, record: Record, now: DtnTime) -> Option<Eid> {
        self.insert_except(record, now, Vec::new())
    }

    /// The same for a bundle that must not go to these peers.
    pub(crate) fn insert_except(&mut self, record: Record, now: DtnTime, closed: Vec<Eid>) -> Option<Eid> {
        let (key, purpose) = (record.key, record.purpose);
        self.expiries.insert((record.expires, key));
        self.head_bytes += head_len(&record.bundle);
        if purpose == Purpose::Reassemble {
            self.parts.entry(record.bundle.id.whole()).or_default().insert(key);
        }
        // In this status it is in no queue.
        let status = Status::Sending;
        self.entries.insert(key, Entry { record, status, refused_by: Vec::new(), closed, leases: 0 });
        match purpose {
            Purpose::Forward => return self.route(key, now),
            Purpose::Deliver => self.set(key, Status::Deliverable),
            Purpose::Reassemble => self.set(key, Status::Part),
        }
        None
    }

    /// Routes a bundle that no session is sending. Returns the peer that it can go to now.
    fn route(&mut self, key: Key, now: DtnTime) -> Option<Eid> {
        let entry = self.entries.get(&key)?;
        let bundle = &entry.record.bundle;
        // Never back to the previous node: two nodes with opposite routes would pass a bundle back and forth.
        let except = entry.refused_by.iter().chain(&entry.closed).chain(&entry.record.from);
        let except: Vec<Eid> = except.cloned().collect();
        let status = match self.routes.next(&bundle.destination, bundle.encoded_len(), now, &except) {
            Decision::Via { peer, from, .. } if from <= now => Status::Queued(peer),
            Decision::Via { from, .. } => Status::Parked(from),
            Decision::NoRoute => Status::Parked(now.after(TRY_AGAIN)),
        };
        let peer = if let Status::Queued(peer) = &status { Some(peer.clone()) } else { None };
        self.set(key, status);
        peer
    }

    /// Changes a bundle's status and moves it between the queues.
    fn set(&mut self, key: Key, status: Status) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let position = (Reverse(entry.record.bundle.priority), key);
        let before = std::mem::replace(&mut entry.status, status.clone());
        let destination = entry.record.bundle.destination.clone();
        match before {
            Status::Queued(peer) => take(&mut self.queues, &peer, &position),
            Status::Parked(until) => {
                self.parked.remove(&(until, key));
            }
            Status::Deliverable => take(&mut self.deliveries, &destination, &position),
            Status::Sending | Status::Delivering | Status::Part => {}
        }
        match status {
            Status::Queued(peer) => {
                self.queues.entry(peer).or_default().insert(position);
            }
            Status::Parked(until) => {
                self.parked.insert((until, key));
            }
            Status::Deliverable => {
                self.deliveries.entry(destination).or_default().insert(position);
            }
            Status::Sending | Status::Delivering | Status::Part => {}
        }
    }

    /// Takes the most urgent bundle that can go to a peer now.
    pub(crate) fn next_for(&mut self, peer: &Eid) -> Option<Record> {
        let (_, key) = *self.queues.get(peer)?.first()?;
        self.set(key, Status::Sending);
        self.entries.get(&key).map(|entry| entry.record.clone())
    }

    /// Queues a bundle again whose transfer failed. Returns the peer that it can go to now.
    pub(crate) fn requeue(&mut self, key: Key, now: DtnTime) -> Option<Eid> {
        if self.entries.get(&key)?.status != Status::Sending {
            return None;
        }
        self.set(key, Status::Parked(now));
        self.route(key, now)
    }

    /// A peer has no room for it: tries it again at `until`.
    pub(crate) fn postpone(&mut self, key: Key, until: DtnTime) {
        self.set(key, Status::Parked(until));
    }

    /// A peer has refused it: routes it around that peer, if possible.
    pub(crate) fn reroute_around(&mut self, key: Key, peer: &Eid, now: DtnTime) -> Option<Eid> {
        self.entries.get_mut(&key)?.refused_by.push(peer.clone());
        self.set(key, Status::Parked(now));
        let elsewhere = self.route(key, now);
        if elsewhere.is_none()
            && let Some(entry) = self.entries.get_mut(&key)
        {
            // Without another route, the peer is asked again later.
            entry.refused_by.clear();
        }
        elsewhere
    }

    /// A peer has refused it for good: it is never offered to that peer again.
    pub(crate) fn close(&mut self, key: Key, peer: &Eid, now: DtnTime) -> Option<Eid> {
        self.entries.get_mut(&key)?.closed.push(peer.clone());
        self.set(key, Status::Parked(now));
        self.route(key, now)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Record> {
        // In this status it is in no queue.
        self.set(key, Status::Sending);
        let record = self.entries.remove(&key)?.record;
        self.expiries.remove(&(record.expires, key));
        self.head_bytes -= head_len(&record.bundle);
        let whole = record.bundle.id.whole();
        if let Some(parts) = self.parts.get_mut(&whole) {
            parts.remove(&key);
            if parts.is_empty() {
                self.parts.remove(&whole);
            }
        }
        Some(record)
    }

    /// Takes the most urgent bundle for an application.
    pub(crate) fn next_delivery(&mut self, endpoint: &Eid) -> Option<Record> {
        let (_, key) = *self.deliveries.get(endpoint)?.first()?;
        self.set(key, Status::Delivering);
        let entry = self.entries.get_mut(&key)?;
        entry.leases += 1;
        Some(entry.record.clone())
    }

    /// The number of its current lease, from 1.
    pub(crate) fn lease(&self, key: Key) -> u64 {
        self.entries.get(&key).map_or(0, |entry| entry.leases)
    }

    /// Releases it if this is still its current lease.
    pub(crate) fn end_lease(&mut self, key: Key, lease: u64) {
        if self.lease(key) == lease {
            self.release(key);
        }
    }

    /// Releases it at `end` if this is still its current lease then.
    pub(crate) fn end_lease_at(&mut self, key: Key, lease: u64, end: DtnTime) {
        if self.lease(key) == lease {
            self.lease_ends.insert((end, key, lease));
        }
    }

    /// Releases the bundles whose lease is over. Says whether there were any.
    pub(crate) fn end_leases(&mut self, now: DtnTime) -> bool {
        let mut any = false;
        while let Some((end, key, lease)) = self.lease_ends.first().copied()
            && end <= now
        {
            self.lease_ends.pop_first();
            any |= self.entries.contains_key(&key);
            self.end_lease(key, lease);
        }
        any
    }

    /// Makes a delivered bundle available again.
    pub(crate) fn release(&mut self, key: Key) {
        if self.entries.get(&key).is_some_and(|entry| entry.status == Status::Delivering) {
            self.set(key, Status::Deliverable);
        }
    }

    /// A bundle for an application of this node.
    pub(crate) fn for_application(&self, key: Key) -> Option<&Record> {
        let record = &self.entries.get(&key)?.record;
        (record.purpose == Purpose::Deliver).then_some(record)
    }

    pub(crate) fn parts_of(&self, id: &BundleId) -> Vec<(Key, Fragment)> {
        let keys = self.parts.get(&id.whole()).into_iter().flatten();
        let part = |key: &Key| Some((*key, self.entries.get(key)?.record.bundle.id.fragment?));
        keys.filter_map(part).collect()
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Record> {
        self.entries.get(&key).map(|entry| &entry.record)
    }

    /// All bundles in the order of arrival, each with its state in words.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Record, &'static str)> {
        self.entries.values().map(|entry| (&entry.record, entry.word()))
    }

    /// Whether a session or an application holds it, and may still acknowledge it.
    pub(crate) fn is_in_flight(&self, key: Key) -> bool {
        let in_hand = |entry: &Entry| matches!(entry.status, Status::Sending | Status::Delivering);
        self.entries.get(&key).is_some_and(in_hand)
    }

    /// Expired bundles that no session and no application holds.
    pub(crate) fn expired(&self, now: DtnTime) -> Vec<Key> {
        let over = self.expiries.iter().take_while(|(at, _)| *at <= now);
        over.map(|(_, key)| *key).filter(|key| !self.is_in_flight(*key)).collect()
    }

    /// The bundles to route again: all waiting ones after a contact has begun or ended, otherwise those whose
    /// waiting time is over.
    pub(crate) fn due(&self, now: DtnTime, all: bool) -> Vec<Key> {
        if all {
            let queued = self.queues.values().flatten().map(|(_, key)| *key);
            queued.chain(self.parked.iter().map(|(_, key)| *key)).collect()
        } else {
            self.parked.iter().take_while(|(until, _)| *until <= now).map(|(_, key)| *key).collect()
        }
    }

    /// Routes these again if they still wait. Returns the peers that have bundles to send now.
    pub(crate) fn reroute(&mut self, keys: &[Key], now: DtnTime) -> HashSet<Eid> {
        let waits = |entry: &Entry| matches!(entry.status, Status::Queued(_) | Status::Parked(_));
        let keys = keys.iter().filter_map(|key| {
            self.entries.get(key).is_some_and(waits).then(|| self.route(*key, now)).flatten()
        });
        keys.collect()
    }

    /// Bytes of all blocks except payloads.
    pub(crate) fn head_bytes(&self) -> u64 {
        self.head_bytes
    }

    /// When a contact of this node begins or ends next.
    pub(crate) fn next_change(&self, now: DtnTime) -> Option<DtnTime> {
        self.routes.next_change(now)
    }

    /// Whether the contact plan allows a session with a peer now.
    pub(crate) fn is_open(&self, peer: &Eid, now: DtnTime) -> bool {
        let decision = self.routes.next(peer, 0, now, &[]);
        matches!(decision, Decision::Via { peer: via, from, .. } if via == *peer && from <= now)
    }

    /// What the contact plan says of the link to a peer now.
    pub(crate) fn link_to(&self, peer: &Eid, now: DtnTime) -> LinkState {
        self.routes.link_to(peer, now)
    }

    /// How many bytes of a bundle fit into its contact.
    pub(crate) fn fits(&self, bundle: &Bundle, now: DtnTime) -> Option<u64> {
        match self.routes.next(&bundle.destination, bundle.encoded_len(), now, &[]) {
            Decision::Via { fits, .. } => Some(fits),
            Decision::NoRoute => None,
        }
    }

    /// Bundles that wait for a peer.
    pub(crate) fn queued_for(&self, peer: &Eid) -> usize {
        self.queues.get(peer).map_or(0, BTreeSet::len)
    }

    /// Numbers of bundles by state.
    pub(crate) fn waiting(&self) -> WaitingStatus {
        let parked = self.parked.len();
        let queued = self.queues.values().map(BTreeSet::len).sum();
        let deliverable = self.deliveries.values().map(BTreeSet::len).sum();
        let fragments = self.parts.values().map(BTreeSet::len).sum();
        let in_hand = self.entries.len().saturating_sub(parked + queued + deliverable + fragments);
        WaitingStatus { queued, parked, in_hand, deliverable, fragments }
    }
}

impl Entry {
    fn word(&self) -> &'static str {
        match self.status {
            Status::Parked(_) if !self.closed.is_empty() => {
                "waiting for another route: peers have refused it, or have had it"
            }
            _ => self.status.word(),
        }
    }
}

impl Status {
    fn word(&self) -> &'static str {
        match self {
            Self::Queued(_) => "queued",
            Self::Parked(_) => "waiting for a route",
            Self::Sending => "sending",
            Self::Deliverable => "waiting for its application",
            Self::Delivering => "with its application",
            Self::Part => "waiting for other fragments",
        }
    }
}

fn head_len(bundle: &Bundle) -> u64 {
    bundle.encoded_len().saturating_sub(bundle.payload_len)
}

fn take(queues: &mut BTreeMap<Eid, BTreeSet<Position>>, whose: &Eid, position: &Position) {
    if let Some(queue) = queues.get_mut(whose) {
        queue.remove(position);
        if queue.is_empty() {
            queues.remove(whose);
        }
    }
}

#[cfg(test)]
mod tests;
