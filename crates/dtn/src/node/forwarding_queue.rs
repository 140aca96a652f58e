//! The stored bundles by what they wait for, in the order in which they go. Pure: no clock, no disk.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::bundle::{Bundle, BundleId, Fragment, Priority, fragment};
use crate::route::{ContactId, Decision, Hop, LEAST_PART, LinkState, Load, Routes, fits_on_link, on_link};
use crate::store::{Key, Purpose, Record};
use crate::{DtnTime, Eid};

use super::status::WaitingStatus;
use super::transfers::PartStatus;

/// A bundle without a route is tried again after this time.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// How long it may take to cut a bundle and to store its parts.
const TO_CUT: Duration = Duration::from_secs(1);
/// The most bundles that are routed again when a session asks for one.
const MAX_TRIED: usize = 16;

/// The word for a bundle that a session is sending.
pub(crate) const SENDING: &str = "sending";

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
    /// Bundles that have booked a contact of this node.
    booked: BTreeMap<ContactId, BTreeSet<Position>>,
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
    /// What it has booked of the contact plan.
    booking: Option<Booking>,
    /// The peer whose session took it last.
    sending_to: Option<Eid>,
}

/// What a bundle has booked of each contact on its way.
#[derive(Debug)]
struct Booking {
    hops: Vec<Hop>,
    /// Bytes on the link. Where no contact has room for all of it, those that fit.
    bytes: u64,
    is_whole: bool,
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
            booked: BTreeMap::new(),
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
        let entry = Entry {
            record,
            status,
            refused_by: Vec::new(),
            closed,
            leases: 0,
            booking: None,
            sending_to: None,
        };
        self.entries.insert(key, entry);
        match purpose {
            Purpose::Forward => return self.route(key, now),
            Purpose::Deliver => self.set(key, Status::Deliverable),
            Purpose::Reassemble => self.set(key, Status::Part),
        }
        None
    }

    /// Routes a bundle that no session is sending, and books its way. Returns the peer that it can go to now.
    fn route(&mut self, key: Key, now: DtnTime) -> Option<Eid> {
        self.cancel(key);
        let entry = self.entries.get(&key)?;
        let bundle = &entry.record.bundle;
        // Never back to the previous node: two nodes with opposite routes would pass a bundle back and forth.
        let except = entry.refused_by.iter().chain(&entry.closed).chain(&entry.record.from);
        let except: Vec<Eid> = except.cloned().collect();
        let len = on_link(bundle.encoded_len());
        let (priority, expires) = (bundle.priority, entry.record.expires);
        let load = Load { len, priority, expires, is_divisible: fragment::is_divisible(bundle) };
        let (status, booking) = match self.routes.next(&bundle.destination, &load, now, &except) {
            Decision::Via { peer, from, fits, hops, .. } => {
                let booking = Booking { hops, bytes: len.min(fits), is_whole: len <= fits };
                let status = if from <= now { Status::Queued(peer) } else { Status::Parked(from) };
                (status, Some(booking).filter(|booking| !booking.hops.is_empty()))
            }
            Decision::NoRoute => (Status::Parked(now.after(TRY_AGAIN)), None),
        };
        let peer = if let Status::Queued(peer) = &status { Some(peer.clone()) } else { None };
        self.set(key, status);
        if let Some(booking) = booking {
            self.book(key, booking, now);
        }
        peer
    }

    fn book(&mut self, key: Key, booking: Booking, now: DtnTime) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let priority = entry.record.bundle.priority;
        self.routes.book(&booking.hops, booking.bytes, priority);
        let contact = self.routes.own_contact(&booking.hops);
        entry.booking = Some(booking);
        if let Some(contact) = contact {
            self.booked.entry(contact).or_default().insert((Reverse(priority), key));
            self.displace(contact, priority, now);
        }
    }

    /// Routes the last of the less urgent bundles of a contact again, as many as no longer fit.
    fn displace(&mut self, contact: ContactId, priority: Priority, now: DtnTime) {
        let mut excess = self.routes.excess(contact, now);
        while excess > 0 {
            let last_first = self.booked.get(&contact).into_iter().flatten().rev();
            let mut less_urgent = last_first.take_while(|(Reverse(other), _)| *other < priority);
            let Some(key) = less_urgent.find(|(_, key)| self.waits(*key)).map(|(_, key)| *key) else {
                return;
            };
            // The janitor finds it due.
            self.cancel(key);
            self.set(key, Status::Parked(now));
            excess = self.routes.excess(contact, now);
        }
    }

    /// Returns what a bundle has booked.
    fn cancel(&mut self, key: Key) {
        let Some((position, booking)) = self.take_booking(key) else { return };
        self.routes.cancel(&booking.hops, booking.bytes, position.0.0);
    }

    fn take_booking(&mut self, key: Key) -> Option<(Position, Booking)> {
        let entry = self.entries.get_mut(&key)?;
        let booking = entry.booking.take()?;
        let position = (Reverse(entry.record.bundle.priority), key);
        if let Some(contact) = self.routes.own_contact(&booking.hops) {
            take(&mut self.booked, &contact, &position);
        }
        Some((position, booking))
    }

    fn waits(&self, key: Key) -> bool {
        let waits = |entry: &Entry| matches!(entry.status, Status::Queued(_) | Status::Parked(_));
        self.entries.get(&key).is_some_and(waits)
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
    pub(crate) fn next_for(&mut self, peer: &Eid, now: DtnTime) -> Option<Record> {
        let room = self.routes.open_for(peer, now)?;
        if !self.queues.contains_key(peer) {
            self.pull(peer, room, now);
        }
        for _ in 0..MAX_TRIED {
            let (_, key) = *self.queues.get(peer)?.first()?;
            let entry = self.entries.get(&key)?;
            let len = on_link(entry.record.bundle.encoded_len());
            if len.min(LEAST_PART) > room {
                // All are routed again when the contact has ended.
                return None;
            }
            let is_part = entry.booking.as_ref().is_some_and(|booking| !booking.is_whole);
            // A bundle that was to go as a whole may do so later.
            if len <= room || is_part || self.route_to(key, peer, now) {
                self.set(key, Status::Sending);
                let entry = self.entries.get_mut(&key)?;
                entry.sending_to = Some(peer.clone());
                return Some(entry.record.clone());
            }
        }
        None
    }

    /// Brings bundles forward that have booked later contacts with a peer, where this one has room for them: it
    /// is faster than planned, or others have gone.
    fn pull(&mut self, peer: &Eid, room: u64, now: DtnTime) {
        if room < LEAST_PART {
            return;
        }
        let later = self.booked.iter().filter(|(contact, _)| self.routes.is_later_with(**contact, peer, now));
        let keys = later.flat_map(|(_, positions)| positions).map(|(_, key)| *key);
        for key in keys.take(MAX_TRIED).collect::<Vec<_>>() {
            if self.waits(key) {
                self.route_to(key, peer, now);
            }
        }
    }

    /// Routes a bundle again. Says whether it can go to this peer now. For another one the janitor finds it due,
    /// which wakes that.
    fn route_to(&mut self, key: Key, peer: &Eid, now: DtnTime) -> bool {
        match self.route(key, now) {
            Some(other) if other != *peer => self.postpone(key, now),
            to => return to.is_some(),
        }
        false
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
        self.cancel(key);
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

    /// A peer has acknowledged it. What it has booked of the contacts after that with the peer stays booked: it is
    /// on its way to them.
    pub(crate) fn forwarded(&mut self, key: Key) -> Option<Record> {
        if let Some((position, booking)) = self.take_booking(key)
            && self.routes.own_contact(&booking.hops).is_some()
        {
            self.routes.cancel(&booking.hops[..1], booking.bytes, position.0.0);
        }
        self.remove(key)
    }

    /// Removes a bundle, and what it has booked.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Record> {
        self.cancel(key);
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

    /// What a bundle waits for.
    pub(crate) fn part(&self, key: Key) -> Option<PartStatus> {
        let entry = self.entries.get(&key)?;
        let peer = match &entry.status {
            Status::Queued(peer) => Some(peer),
            Status::Sending => entry.sending_to.as_ref(),
            _ => None,
        };
        let payload_bytes = entry.record.bundle.payload_len;
        Some(PartStatus { state: entry.word(), peer: peer.map(Eid::to_string), payload_bytes })
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

    /// The bundles to route again, the most urgent first: all waiting ones after a contact has begun or ended,
    /// otherwise those whose waiting time is over. What they have booked is returned before, so that the most
    /// urgent ones choose first.
    pub(crate) fn due(&mut self, now: DtnTime, all: bool) -> Vec<Key> {
        let mut due: Vec<Position> = if all {
            self.routes.forget_before(now);
            let parked = self.parked.iter().filter_map(|(_, key)| self.position(*key));
            self.queues.values().flatten().copied().chain(parked).collect()
        } else {
            let over = self.parked.iter().take_while(|(until, _)| *until <= now);
            over.filter_map(|(_, key)| self.position(*key)).collect()
        };
        due.sort_unstable();
        due.iter().for_each(|(_, key)| self.cancel(*key));
        due.into_iter().map(|(_, key)| key).collect()
    }

    fn position(&self, key: Key) -> Option<Position> {
        Some((Reverse(self.entries.get(&key)?.record.bundle.priority), key))
    }

    /// Routes these again if they still wait. Returns the peers that have bundles to send now.
    pub(crate) fn reroute(&mut self, keys: &[Key], now: DtnTime) -> HashSet<Eid> {
        let mut peers = HashSet::new();
        for key in keys {
            if self.waits(*key) {
                peers.extend(self.route(*key, now));
            }
        }
        peers
    }

    /// Puts other routes in force. Returns the bundles to route again, the most urgent first.
    pub(crate) fn set_routes(&mut self, routes: Routes, now: DtnTime) -> Vec<Key> {
        let all: Vec<Key> = self.entries.keys().copied().collect();
        all.into_iter().for_each(|key| self.cancel(key));
        let mut older = std::mem::replace(&mut self.routes, routes);
        // What is left is booked for bundles on their way.
        self.routes.keep_bookings_of(&mut older);
        self.due(now, true)
    }

    /// Forgets contacts that are over.
    pub(crate) fn forget_contacts(&mut self, now: DtnTime) {
        self.routes.forget_before(now);
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
        self.routes.open_for(peer, now).is_some()
    }

    /// What the contact plan says of the link to a peer now.
    pub(crate) fn link_to(&self, peer: &Eid, now: DtnTime) -> LinkState {
        self.routes.link_to(peer, now)
    }

    /// How long a bundle of `len` bytes can be that a session is about to send to a peer, so that the contact with
    /// it carries it, and the contacts on its way after that. What has to be cut has to be stored again before.
    pub(crate) fn fits(&self, key: Key, len: u64, peer: &Eid, now: DtnTime) -> u64 {
        let booking = self.entries.get(&key).and_then(|entry| entry.booking.as_ref());
        let on_way = booking.filter(|booking| !booking.is_whole).map_or(u64::MAX, |booking| booking.bytes);
        let room = |pause| self.routes.open_after(peer, now, pause).unwrap_or(u64::MAX).min(on_way);
        // It was to go as a whole, and the estimate of what the link adds is generous.
        if len <= room(Duration::ZERO) { u64::MAX } else { fits_on_link(room(TO_CUT)) }
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
            Self::Sending => SENDING,
            Self::Deliverable => "waiting for its application",
            Self::Delivering => "with its application",
            Self::Part => "waiting for other fragments",
        }
    }
}

fn head_len(bundle: &Bundle) -> u64 {
    bundle.encoded_len().saturating_sub(bundle.payload_len)
}

fn take<K: Ord>(queues: &mut BTreeMap<K, BTreeSet<Position>>, whose: &K, position: &Position) {
    if let Some(queue) = queues.get_mut(whose) {
        queue.remove(position);
        if queue.is_empty() {
            queues.remove(whose);
        }
    }
}

#[cfg(test)]
mod tests;
