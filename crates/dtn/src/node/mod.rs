//! The node: accepts bundles, routes them, and keeps them until the next hop or an application has
//! acknowledged them.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;

use crate::bundle::report::{self, AdminRecord, ReasonCode, Report, Status as ReportStatus};
use crate::bundle::{Bundle, BundleId, Fragment, HopCount, fragment};
use crate::config::{NodeConfig, PeerSettings};
use crate::route::{LinkState, Routes};
use crate::store::{Change, Key, Payload, Purpose, Record, Store, StoreError};
use crate::{DtnTime, Eid};

mod acceptance;
mod counters;
mod echo;
mod error;
mod forwarding_queue;
mod janitor;
mod outgoing;
mod passed_on;
pub(crate) mod peers;
mod receiver;
mod reports;
mod security;
pub(crate) mod session;
mod status;
mod transfers;

use acceptance::Acceptance;
use counters::Counters;
pub use counters::Counts;
pub use echo::default_service as default_echo_service;
pub use error::NodeError;
use forwarding_queue::ForwardingQueue;
use passed_on::PassedOn;
use peers::Peer;
pub use receiver::{Receiver, Refused};
use reports::ReportLog;
pub use reports::ReportedEvent;
use security::Security;
pub(crate) use security::key_file;
pub use security::{KeyError, Policies};
pub use status::{BundleStatus, NodeStatus, PeerStatus};
use transfers::{Event, TransferIds, Transfers};
pub use transfers::{PartStatus, TransferEvent, TransferState, TransferStatus};

/// The default hop limit. It ends routing loops before a bundle's lifetime does.
const HOP_LIMIT: u8 = 32;

/// A bundle node. Clones are the same node.
#[derive(Debug, Clone)]
pub struct Node(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    me: Eid,
    lifetime: Duration,
    makes_reports: bool,
    store: Store,
    queue: Mutex<ForwardingQueue>,
    passed_on: Mutex<PassedOn>,
    peers: BTreeMap<Eid, Peer>,
    /// Notified when a bundle or a report for an application has arrived.
    arrivals: Notify,
    /// Notified when the janitor has work before its next round.
    janitor: Notify,
    acceptance: Acceptance,
    /// Acknowledged bundles that are still in the index.
    pending_removals: Mutex<Vec<Key>>,
    /// Held during reassembly: two sessions that receive the last fragments must not both reassemble.
    reassembly: Mutex<()>,
    /// A reassembly has failed and has to be tried again.
    reassembly_pending: AtomicBool,
    last_created: Mutex<(DtnTime, u64)>,
    reports: Mutex<ReportLog>,
    transfers: Mutex<Transfers>,
    transfer_ids: TransferIds,
    counters: Counters,
    security: Security,
    started: DtnTime,
}

/// The options of a bundle that an application sends.
#[derive(Debug, Clone)]
pub struct SendOptions {
    /// The destination.
    pub destination: Eid,
    /// The sending service of this node; `None` is the node itself.
    pub service: Option<String>,
    /// Its lifetime; by default the configured one.
    pub lifetime: Option<Duration>,
    /// Its priority.
    pub priority: crate::bundle::Priority,
    /// Its hop limit; by default 32.
    pub hop_limit: Option<u8>,
    /// It must not be fragmented.
    pub must_not_fragment: bool,
    /// The events that other nodes report to this node.
    pub reports: crate::bundle::ReportRequests,
    /// The name of the file that the payload is.
    pub file_name: Option<crate::bundle::FileName>,
}

impl SendOptions {
    /// A normal bundle of the node itself, to this destination.
    pub fn to(destination: Eid) -> Self {
        Self {
            destination,
            service: None,
            lifetime: None,
            priority: crate::bundle::Priority::default(),
            hop_limit: None,
            must_not_fragment: false,
            reports: crate::bundle::ReportRequests::default(),
            file_name: None,
        }
    }
}

impl Node {
    /// A node with a store and the records that the store held.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(crate) fn new(
        config: &NodeConfig,
        policies: Policies,
        store: Store,
        records: Vec<Record>,
    ) -> Result<Self, NodeError> {
        let now = clock();
        let mut queue = ForwardingQueue::new(routes(config));
        // The last process had read these reports.
        let (read, waiting): (Vec<_>, Vec<_>) = records
            .into_iter()
            .partition(|record| record.bundle.is_admin && record.purpose == Purpose::Deliver);
        let mut transfers = Transfers::default();
        for record in waiting {
            if record.bundle.id.source == config.node.id {
                transfers.stored(&record);
            }
            queue.insert(record, now);
        }
        let transfer_ids = TransferIds::open(store.folder());
        let has_identity = config.node.certificate.is_some();
        let peer = |peer: &PeerSettings| (peer.id.clone(), Peer::new(peer.clone(), has_identity));
        let node = Self(Arc::new(Inner {
            me: config.node.id.clone(),
            lifetime: config.node.lifetime.get(),
            makes_reports: config.node.status_reports,
            store,
            queue: Mutex::new(queue),
            passed_on: Mutex::default(),
            peers: config.peers.iter().map(peer).collect(),
            arrivals: Notify::new(),
            janitor: Notify::new(),
            acceptance: Acceptance::start()?,
            pending_removals: Mutex::new(read.iter().map(|record| record.key).collect()),
            reassembly: Mutex::default(),
            reassembly_pending: AtomicBool::new(false),
            last_created: Mutex::new((now, 0)),
            reports: Mutex::default(),
            transfers: Mutex::new(transfers),
            transfer_ids,
            counters: Counters::default(),
            security: Security::new(policies),
            started: now,
        }));
        node.finish_reassembly();
        Ok(node)
    }

    /// Its endpoint.
    pub fn id(&self) -> &Eid {
        &self.0.me
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.0.peers.values()
    }

    /// A peer by its name.
    pub(crate) fn peer(&self, id: &Eid) -> Option<&Peer> {
        self.0.peers.get(id)
    }

    /// Whether the contact plan allows a session with this peer now.
    pub(crate) fn has_contact(&self, peer: &Eid) -> bool {
        self.queue().is_open(peer, clock())
    }

    /// What the contact plan says of the link to this peer now.
    pub(crate) fn link_to(&self, peer: &Eid) -> LinkState {
        self.queue().link_to(peer, clock())
    }

    /// Puts the routes and contacts of another configuration in force, and routes all waiting bundles again. The
    /// peers stay.
    pub(crate) fn set_routes(&self, config: &NodeConfig) {
        let now = clock();
        let waiting = self.queue().set_routes(routes(config), now);
        self.reroute(&waiting, now);
        // The plan may allow other sessions now.
        self.peers().for_each(|peer| peer.dial.notify_one());
        self.0.janitor.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, ForwardingQueue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passed_on(&self) -> MutexGuard<'_, PassedOn> {
        self.0.passed_on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transfers(&self) -> MutexGuard<'_, Transfers> {
        self.0.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_mine(&self, eid: &Eid) -> bool {
        eid.node() == self.0.me
    }

    /// The blocks of a bundle that an application of this node sends.
    ///
    /// # Errors
    /// The service or the destination is invalid.
    pub fn bundle(&self, options: &SendOptions) -> Result<Bundle, Refused> {
        let source = match &options.service {
            Some(service) => self.0.me.with_service(service).map_err(|e| Refused::Invalid(e.to_string()))?,
            None => self.0.me.clone(),
        };
        if options.destination == Eid::None {
            return Err(Refused::Invalid("dtn:none cannot be a destination".into()));
        }
        let (created, sequence) = self.creation();
        let lifetime = options.lifetime.unwrap_or(self.0.lifetime);
        let mut bundle = Bundle::new(source, created, sequence, options.destination.clone(), lifetime);
        bundle.priority = options.priority;
        bundle.must_not_fragment = options.must_not_fragment;
        bundle.file_name = options.file_name.clone();
        let limit = options.hop_limit.unwrap_or(HOP_LIMIT);
        if limit == 0 {
            return Err(Refused::Invalid("a hop limit is from 1 to 255".into()));
        }
        bundle.hops = Some(HopCount { limit, count: 0 });
        bundle.reports = options.reports;
        bundle.report_times = true;
        if options.reports != crate::bundle::ReportRequests::default() {
            bundle.report_to = self.0.me.clone();
        }
        Ok(bundle)
    }

    /// A creation timestamp that no other bundle of this node has.
    fn creation(&self) -> (DtnTime, u64) {
        let mut last = self.0.last_created.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock();
        *last = if now > last.0 { (now, 0) } else { (last.0, last.1 + 1) };
        *last
    }

    /// Whether a bundle is here, or has been delivered or deleted here. A fragment is known if its whole
    /// bundle is. A bundle without a source is always a new one.
    fn knows(&self, id: &BundleId) -> bool {
        id.is_unique()
            && (self.0.store.knows(id) || (id.fragment.is_some() && self.0.store.knows(&id.whole())))
    }

    /// Removes an acknowledged bundle from the index with the next batch.
    fn remove_later(&self, key: Key) {
        self.0.pending_removals.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        self.0.janitor.notify_one();
    }

    /// Queues a stored bundle and wakes the session or application that waits for it.
    fn insert(&self, record: Record, now: DtnTime) {
        let purpose = record.purpose;
        if record.bundle.id.source == self.0.me {
            self.transfers().stored(&record);
        }
        let went_to = self.passed_on().went_to(&record.bundle.id);
        let peer = self.queue().insert_except(record, now, went_to);
        self.wake(peer.iter());
        if purpose == Purpose::Deliver {
            self.0.arrivals.notify_waiters();
        }
        self.0.janitor.notify_one();
    }

    fn wake<'a>(&self, peers: impl IntoIterator<Item = &'a Eid>) {
        for peer in peers.into_iter().filter_map(|peer| self.0.peers.get(peer)) {
            peer.wake();
        }
    }

    /// Reassembles all bundles whose fragments are complete: after a start, or after a failed attempt.
    fn finish_reassembly(&self) {
        let ids: HashSet<BundleId> = {
            let queue = self.queue();
            let parts = queue.iter().filter(|(record, _)| record.purpose == Purpose::Reassemble);
            parts.map(|(record, _)| record.bundle.id.whole()).collect()
        };
        for id in ids {
            self.retry_reassembly(&id, self.reassemble(&id));
        }
    }

    fn retry_reassembly(&self, id: &BundleId, outcome: Result<(), Refused>) {
        if let Err(error) = outcome {
            tracing::error!("cannot reassemble {}, retrying: {error}", id.whole());
            self.0.reassembly_pending.store(true, Ordering::Relaxed);
        }
    }

    /// Reassembles a bundle if all of its fragments are here.
    fn reassemble(&self, id: &BundleId) -> Result<(), Refused> {
        let _one_at_a_time = self.0.reassembly.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.store.knows(&id.whole()) {
            return self.drop_parts(id);
        }
        let (record, parts) = {
            let queue = self.queue();
            let parts = queue.parts_of(id);
            let fragments: Vec<Fragment> = parts.iter().map(|(_, fragment)| *fragment).collect();
            let Some(plan) = fragment::complete(&fragments) else { return Ok(()) };
            let Some(record) = whole(&queue, &parts, &plan, self.0.store.next_key()) else { return Ok(()) };
            (record, parts)
        };
        let (record, insecure) = self.secure_reassembled(record)?;
        let mut changes: Vec<Change> = parts.iter().map(|(key, _)| Change::Remove(*key)).collect();
        if insecure.is_none() {
            changes.push(Change::Put(record.clone()));
            changes.extend(seen(&record.bundle.id, record.expires));
        }
        self.0.store.commit(changes)?;
        for (key, _) in parts {
            self.queue().remove(key);
        }
        if let Some(why) = insecure {
            self.report_insecure(&record.bundle, why);
            return Ok(());
        }
        if record.bundle.is_admin {
            self.receive_report(&record.bundle, &record.payload);
            self.remove_later(record.key);
            return Ok(());
        }
        self.insert(record, clock());
        Ok(())
    }

    /// Removes the fragments of a bundle that is now here as a whole.
    fn drop_parts(&self, id: &BundleId) -> Result<(), Refused> {
        let parts = self.queue().parts_of(id);
        if !parts.is_empty() {
            self.0.store.commit(parts.iter().map(|(key, _)| Change::Remove(*key)).collect())?;
        }
        for (key, _) in parts {
            self.queue().remove(key);
        }
        Ok(())
    }

    /// The most urgent bundle for an endpoint of this node. The caller has to acknowledge or release it.
    pub fn next_delivery(&self, endpoint: &Eid) -> Option<Record> {
        self.queue().next_delivery(endpoint)
    }

    /// Completes when anything arrives for any application after this call.
    pub fn arrival(&self) -> tokio::sync::futures::Notified<'_> {
        self.0.arrivals.notified()
    }

    /// An application acknowledges a bundle: it is not delivered again. Blocks on the disk. `false` if there
    /// is no such bundle.
    ///
    /// # Errors
    /// The store cannot record it.
    pub fn acknowledge(&self, key: Key) -> Result<bool, StoreError> {
        Ok(!self.acknowledge_all(&[key])?.is_empty())
    }

    /// Applications acknowledge bundles, as by [`acknowledge`](Self::acknowledge), in one transaction. Returns
    /// those that there were.
    ///
    /// # Errors
    /// The store cannot record it.
    pub fn acknowledge_all(&self, keys: &[Key]) -> Result<Vec<Key>, StoreError> {
        let there = self.for_applications(keys);
        self.0.store.commit(removals(&there))?;
        Ok(self.delivered(&there))
    }

    /// The same without waiting: `done` learns which there were, as soon as that is on the disk. It is called
    /// by a thread that must not wait, and has to hand them to [`delivered`](Self::delivered).
    pub(crate) fn submit_acknowledgements(
        &self,
        keys: &[Key],
        done: impl FnOnce(Result<Vec<Key>, StoreError>) + Send + 'static,
    ) {
        let there = self.for_applications(keys);
        self.0.store.submit(removals(&there), move |outcome| done(outcome.map(|()| there)));
    }

    fn for_applications(&self, keys: &[Key]) -> Vec<Key> {
        let queue = self.queue();
        keys.iter().copied().filter(|key| queue.for_application(*key).is_some()).collect()
    }

    /// Acknowledged bundles have left the store. Returns those that nobody else has acknowledged meanwhile.
    /// Blocks on the disk where a bundle asks for a report of its delivery.
    pub(crate) fn delivered(&self, keys: &[Key]) -> Vec<Key> {
        let gone: Vec<Record> = {
            let mut queue = self.queue();
            keys.iter().filter_map(|key| queue.remove(*key)).collect()
        };
        for record in &gone {
            let bundle = &record.bundle;
            self.record_left(record, || Some(Event::Delivered));
            self.0.counters.delivered.add(1);
            self.0.counters.delivered_bytes.add(bundle.payload_len);
            self.report(bundle, ReportStatus::Delivered, ReasonCode::NO_INFORMATION);
        }
        gone.into_iter().map(|record| record.key).collect()
    }

    /// Whether a bundle asks for a report of its delivery.
    pub(crate) fn reports_delivery(&self, keys: &[Key]) -> bool {
        let queue = self.queue();
        let mut records = keys.iter().filter_map(|key| queue.get(*key));
        records.any(|record| report::wanted(&record.bundle, ReportStatus::Delivered))
    }

    /// The current lease of a delivered bundle, for [`end_lease`](Self::end_lease).
    pub(crate) fn lease(&self, key: Key) -> u64 {
        self.queue().lease(key)
    }

    /// A lease ends after this time, if there is no acknowledgement before. Nothing happens if a newer lease
    /// exists.
    pub(crate) fn end_lease(&self, key: Key, lease: u64, after: Duration) {
        if after.is_zero() {
            self.queue().end_lease(key, lease);
            self.0.arrivals.notify_waiters();
        } else {
            self.queue().end_lease_at(key, lease, clock().after(after));
        }
    }

    /// Ends the leases whose time is over.
    fn end_leases(&self, now: DtnTime) {
        if self.queue().end_leases(now) {
            self.0.arrivals.notify_waiters();
        }
    }

    /// An application returns a bundle without acknowledging it.
    pub fn release(&self, key: Key) {
        self.queue().release(key);
        self.0.arrivals.notify_waiters();
    }

    /// Deletes bundles and reports why. Blocks on the disk.
    ///
    /// # Errors
    /// The store cannot record it.
    pub(crate) fn discard(&self, keys: &[Key], why: ReasonCode) -> Result<usize, StoreError> {
        self.0.store.commit(keys.iter().map(|key| Change::Remove(*key)).collect())?;
        let gone: Vec<Record> = {
            let mut queue = self.queue();
            keys.iter().filter_map(|key| queue.remove(*key)).collect()
        };
        for record in &gone {
            let bundle = &record.bundle;
            tracing::info!("deleted {} to {}: {why}", bundle.id, bundle.destination);
            self.record_left(record, || Some(Event::Deleted(why)));
            self.0.counters.given_up.add(1);
            self.report(bundle, ReportStatus::Deleted, why);
        }
        Ok(gone.len())
    }

    /// Deletes a bundle that no session and no application holds. `false` if there is none.
    ///
    /// # Errors
    /// The store cannot record it.
    pub fn delete(&self, key: Key) -> Result<bool, StoreError> {
        let may = {
            let queue = self.queue();
            queue.get(key).is_some() && !queue.is_in_flight(key)
        };
        if !may {
            return Ok(false);
        }
        Ok(self.discard(&[key], ReasonCode::TRANSMISSION_CANCELLED)? > 0)
    }

    /// Sends a status report if the bundle requests it.
    fn report(&self, bundle: &Bundle, status: ReportStatus, reason: ReasonCode) {
        if report::wanted(bundle, status) {
            self.report_anyway(bundle, status, reason);
        }
    }

    /// Sends a status report that a block of the bundle requests.
    fn report_anyway(&self, bundle: &Bundle, status: ReportStatus, reason: ReasonCode) {
        if !self.0.makes_reports {
            return;
        }
        let Some(report) = Report::of(bundle, status, reason, clock()) else { return };
        if self.is_mine(&bundle.report_to) {
            return self.note(&self.0.me, &report);
        }
        if let Err(error) = self.send_report(bundle, &report) {
            tracing::warn!("cannot report that {} was {status}: {error}", bundle.id);
        }
    }

    /// Sends a report without waiting for the disk.
    fn send_report(&self, about: &Bundle, report: &Report) -> Result<(), Refused> {
        let (created, sequence) = self.creation();
        let destination = about.report_to.clone();
        let mut bundle = Bundle::new(self.0.me.clone(), created, sequence, destination, self.0.lifetime);
        bundle.is_admin = true;
        bundle.hops = Some(HopCount { limit: HOP_LIMIT, count: 0 });
        let bytes = report.payload();
        bundle.payload_len = bytes.len() as u64;
        let mut writer = self.0.store.begin(Some(bundle.payload_len))?;
        writer.write(&bytes)?;
        let (subject, status) = (about.id.clone(), report.status);
        self.accept(bundle, writer.finish()?, None, move |outcome| {
            if let Err(error) = outcome {
                tracing::warn!("cannot report that {subject} was {status}: {error}");
            }
        });
        Ok(())
    }

    fn receive_report(&self, bundle: &Bundle, payload: &Payload) {
        match reports::read(&self.0.store, payload) {
            Ok(AdminRecord::Reports(reports)) => {
                let node = bundle.id.source.node();
                reports.iter().for_each(|report| self.note(&node, report));
            }
            Ok(AdminRecord::Other(kind)) => {
                self.0.counters.unknown_records.add(1);
                tracing::warn!(
                    "{} sent an administrative record of type {kind}, which this node cannot read; it is dropped",
                    bundle.id.source
                );
            }
            Err(error) => {
                tracing::warn!("{} sent an invalid administrative record: {error}", bundle.id.source)
            }
        }
    }

    /// Keeps what a node reports.
    fn note(&self, node: &Eid, report: &Report) {
        tracing::debug!("{node} reports: {} was {}", report.subject, report.status);
        self.0.reports.lock().unwrap_or_else(PoisonError::into_inner).note(node, report);
        self.0.arrivals.notify_waiters();
    }

    /// The reports on a bundle of this node, oldest first.
    pub fn reports_of(&self, id: &BundleId) -> Vec<ReportedEvent> {
        self.0.reports.lock().unwrap_or_else(PoisonError::into_inner).of(id)
    }
}

fn removals(keys: &[Key]) -> Vec<Change> {
    keys.iter().map(|key| Change::Remove(*key)).collect()
}

/// Remembers a bundle as one that has been here, if it has an identity.
fn seen(id: &BundleId, until: DtnTime) -> Option<Change> {
    id.is_unique().then(|| Change::Seen { id: id.clone(), until })
}

/// The reassembled bundle. Its payload consists of extents of the fragments' files.
fn whole(
    queue: &ForwardingQueue,
    parts: &[(Key, Fragment)],
    plan: &[(usize, std::ops::Range<u64>)],
    key: Key,
) -> Option<Record> {
    let records: Option<Vec<&Record>> = parts.iter().map(|(key, _)| queue.get(*key)).collect();
    let records = records?;
    // Other fragments with offset 0 may belong to another payload.
    let begins = |record: &&&Record| record.bundle.id.fragment.is_some_and(|part| part.offset == 0);
    let first = match plan.first() {
        Some((index, _)) => records.get(*index)?,
        None => records.iter().find(|record| begins(record) && record.bundle.payload_len == 0)?,
    };
    let slices = plan.iter().flat_map(|(index, range)| records[*index].payload.slice(range.clone()).0);
    Some(Record {
        key,
        bundle: Arc::new(fragment::whole(&first.bundle)),
        payload: Payload(slices.collect()),
        received: first.received,
        expires: first.expires,
        from: first.from.clone(),
        purpose: Purpose::Deliver,
    })
}

/// The routes and contacts of the configuration.
fn routes(config: &NodeConfig) -> Routes {
    let mut routes = Routes::new(&config.node.id);
    for peer in &config.peers {
        routes.add_neighbour(&peer.id);
    }
    for route in &config.routes {
        routes.add_route(route.to.clone(), &route.via);
    }
    for contact in &config.contacts {
        if let Err(error) = routes.add_contact(contact.clone()) {
            // The configuration has been checked already.
            tracing::error!("{error}");
        }
    }
    routes
}

/// This host's clock.
pub(crate) fn clock() -> DtnTime {
    DtnTime::from_unix(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
