//! The node as its sessions see it: the bundle protocol agent of each session.

use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::Eid;
use crate::bundle::report::{ReasonCode, Status};
use crate::bundle::{Bundle, fragment};
use crate::convergence::{BundleAgent, BundleHandle, Incoming, Outgoing, Refusal};
use crate::store::{Change, Key, Purpose, Record, StoreError};

use super::outgoing::Sending;
use super::peers::SessionHandle;
use super::receiver::PeerReceiver;
use super::transfers::Event;
use super::{Node, clock};

/// A bundle that a peer has no room for is tried again after this time.
const NO_ROOM_DELAY: Duration = Duration::from_secs(10);

/// A bundle that a peer wants retransmitted is sent again after this time.
const RETRANSMIT_DELAY: Duration = Duration::from_secs(1);
/// The shortest fragment, bytes of payload. Shorter ones are mostly head.
const MIN_FRAGMENT: u64 = 256;
/// What the head of a fragment has beyond that of its bundle, bytes: two more numbers, of at most nine each.
const OF_FRAGMENT: u64 = 32;
/// The most fragments of one cut; each takes memory as a bundle does. A fragment that is still too long is
/// cut again when it is sent.
const MAX_PIECES: u64 = 4096;

/// The node's side of one session.
#[derive(Debug)]
pub(crate) struct PeerSession {
    node: Node,
    address: SocketAddr,
    /// Whether it is an exchange of datagrams, by LTP or UDP, and no session of TCPCL.
    by_datagrams: bool,
    /// The peer, and the session's handle among the sessions with it.
    peer: OnceLock<(Eid, Arc<SessionHandle>)>,
}

impl PeerSession {
    pub(crate) fn new(node: Node, address: SocketAddr) -> Self {
        Self { node, address, by_datagrams: false, peer: OnceLock::new() }
    }

    /// An exchange of datagrams with a peer, as long as the node runs.
    pub(crate) fn by_datagrams(node: Node, address: SocketAddr) -> Self {
        Self { node, address, by_datagrams: true, peer: OnceLock::new() }
    }

    /// Whether the session was established.
    pub(crate) fn was_established(&self) -> bool {
        self.peer.get().is_some()
    }
}

impl Drop for PeerSession {
    fn drop(&mut self) {
        if let Some((id, handle)) = self.peer.get()
            && let Some(peer) = self.node.0.peers.get(id)
        {
            peer.session_ended(handle);
        }
    }
}

impl BundleAgent for PeerSession {
    fn admit(&self, peer: &Eid, proven: Option<&Eid>) -> Result<(), String> {
        let known = self.node.0.peers.get(peer).ok_or_else(|| {
            format!(
                "{peer} is not in this node's configuration; to admit it, add [[peers]] with id = \"{peer}\""
            )
        })?;
        if known.settings.uses_datagrams() != self.by_datagrams {
            return Err(format!(
                "this node's configuration has {peer} reached by LTP or UDP, and not by TCPCL"
            ));
        }
        match proven {
            Some(proven) if proven != peer => {
                Err(format!("it claims to be {peer}, but has the certificate of {proven}"))
            }
            None if known.requires_tls => {
                Err(format!("{peer} does not encrypt, and this node's configuration requires it"))
            }
            _ => {
                let handle = known.session_began(self.address).ok_or_else(|| {
                    format!("there are already {} sessions with {peer}", known.session_count())
                })?;
                // A session announces its peer once.
                if self.peer.set((peer.clone(), handle)).is_ok() {
                    self.node.0.counters.sessions.add(1);
                }
                Ok(())
            }
        }
    }

    fn receive(&self, peer: &Eid, announced: Option<u64>) -> Result<Box<dyn Incoming>, Refusal> {
        let usage = self.node.store().usage();
        if announced.is_some_and(|len| len > usage.quota.get()) {
            self.node.0.counters.refused.add(1);
            tracing::warn!(
                "refused a bundle from {peer}: it has {} bytes, the quota of the store is {}",
                announced.unwrap_or_default(),
                usage.quota
            );
            return Err(Refusal::NoResources);
        }
        Ok(Box::new(PeerReceiver::new(self.node.clone(), peer.clone())))
    }

    fn next(&self, peer: &Eid, limit: u64) -> Option<Box<dyn Outgoing>> {
        loop {
            let (_, handle) = self.peer.get()?;
            if !self.node.0.peers.get(peer)?.sends_by(handle) {
                return None;
            }
            let record = {
                let mut queue = self.node.queue();
                queue.next_for(peer, clock())?
            };
            let key = record.key;
            match self.node.prepare(peer, record, limit) {
                Ok(Some(sending)) => return Some(Box::new(sending)),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!("cannot send a bundle to {peer}: {error}");
                    self.node.queue().postpone(key, clock().after(NO_ROOM_DELAY));
                }
            }
        }
    }

    fn ready(&self, _peer: &Eid) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        match self.peer.get() {
            Some((_, handle)) => Box::pin(handle.ready.notified()),
            None => Box::pin(std::future::pending()),
        }
    }

    fn superseded(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let Some((_, handle)) = self.peer.get() else { return Box::pin(std::future::pending()) };
        let mut superseded = handle.superseded.subscribe();
        Box::pin(async move {
            // The sender lives as long as this session.
            let _ = superseded.wait_for(|superseded| *superseded).await;
        })
    }

    fn sent(&self, peer: &Eid, handle: BundleHandle) {
        let Some(record) = self.node.queue().forwarded(Key(handle)) else { return };
        self.node.passed_on().note(&record, peer);
        self.node.record_left(&record, || Some(Event::Forwarded(peer.clone())));
        self.node.remove_later(record.key);
        let counters = &self.node.0.counters;
        counters.sent.add(1);
        counters.sent_bytes.add(record.bundle.payload_len);
        tracing::debug!("{peer} has acknowledged {}", record.bundle.id);
        self.node.report(&record.bundle, Status::Forwarded, ReasonCode::NO_INFORMATION);
    }

    fn refused(&self, peer: &Eid, handle: BundleHandle, why: Refusal) {
        let (key, now) = (Key(handle), clock());
        match why {
            Refusal::Completed => return self.sent(peer, handle),
            Refusal::SessionTerminating => return self.returned(peer, handle),
            // After a pause: a peer that always asks for this would get the bundle in an endless loop.
            Refusal::Retransmit => self.node.queue().postpone(key, now.after(RETRANSMIT_DELAY)),
            Refusal::NoResources => {
                tracing::info!("{peer} has no room for a bundle, retrying in {NO_ROOM_DELAY:?}");
                self.node.queue().postpone(key, now.after(NO_ROOM_DELAY));
            }
            Refusal::NotAcceptable => {
                tracing::warn!("{peer} refuses bundle {handle} for good; it waits for another route");
                let elsewhere = self.node.queue().close(key, peer, now);
                self.node.wake(elsewhere.iter());
            }
            Refusal::ExtensionFailure | Refusal::Other(_) => {
                tracing::warn!("{peer} refuses bundle {handle}: {why:?}");
                let elsewhere = self.node.queue().reroute_around(key, peer, now);
                self.node.wake(elsewhere.iter());
            }
        }
        self.node.0.janitor.notify_one();
    }

    fn returned(&self, _peer: &Eid, handle: BundleHandle) {
        self.node.0.counters.broken_off.add(1);
        let again = self.node.queue().requeue(Key(handle), clock());
        self.node.wake(again.iter());
    }
}

impl Node {
    /// Prepares the next bundle for a peer. `None` if it was cut into fragments, deleted, or rerouted
    /// instead.
    fn prepare(&self, peer: &Eid, record: Record, limit: u64) -> Result<Option<Sending>, StoreError> {
        let now = clock();
        if record.expires <= now {
            self.discard(&[record.key], ReasonCode::LIFETIME_EXPIRED)?;
            return Ok(None);
        }
        let bundle = match record.bundle.for_next_hop(&self.0.me, now, record.received) {
            Ok(bundle) => bundle,
            Err(_) => {
                self.discard(&[record.key], ReasonCode::HOP_LIMIT_EXCEEDED)?;
                return Ok(None);
            }
        };
        let most = self.most_for(peer, &bundle, limit);
        let of_contact = self.room_for(peer, &record);
        if bundle.payload_len > most.min(of_contact) {
            return self.cut(peer, &record, most, of_contact).map(|()| None);
        }
        Ok(Some(Sending::new(self.clone(), record.key, &bundle, self.store().read(&record.payload))))
    }

    /// The most bytes of payload in one transfer to the peer.
    fn most_for(&self, peer: &Eid, bundle: &Bundle, limit: u64) -> u64 {
        let of_transfer = limit.saturating_sub(blocks(bundle) + OF_FRAGMENT);
        let chosen = self.0.peers.get(peer).and_then(|peer| peer.settings.fragment_above);
        of_transfer.min(chosen.map_or(u64::MAX, bentpipe_units::ByteCount::get))
    }

    /// The most bytes of payload that the contacts carry on its way.
    fn room_for(&self, peer: &Eid, Record { key, bundle, .. }: &Record) -> u64 {
        let fits = self.queue().fits(*key, bundle.encoded_len(), peer, clock());
        fits.saturating_sub(blocks(bundle) + OF_FRAGMENT)
    }

    /// Replaces a bundle by fragments of at most `most` bytes, the first of at most `of_contact`.
    fn cut(&self, peer: &Eid, record: &Record, most: u64, of_contact: u64) -> Result<(), StoreError> {
        let now = clock();
        let begin = record.bundle.id.fragment.map_or(0, |part| part.offset);
        let len = record.bundle.payload_len;
        let ranges: Vec<Range<u64>> = match (most.min(of_contact), of_contact < most) {
            (least, _) if least < MIN_FRAGMENT => Vec::new(),
            // The rest is cut when it is sent: other contacts have other room.
            (first, true) => vec![0..first.min(len), first.min(len)..len],
            (most, false) => pieces(len, most),
        };
        let piece = |range: &Range<u64>| {
            let bundle = fragment::cut(&record.bundle, begin + range.start..begin + range.end)?;
            let (key, payload) = (self.store().next_key(), record.payload.slice(range.clone()));
            Some(Record {
                key,
                bundle: Arc::new(bundle),
                payload,
                purpose: Purpose::Forward,
                ..record.clone()
            })
        };
        let pieces: Option<Vec<Record>> = ranges.iter().map(piece).collect();
        let Some(pieces) = pieces.filter(|pieces| !pieces.is_empty()) else {
            let (id, takes) = (&record.bundle.id, most.min(of_contact));
            tracing::warn!(
                "{id} has {len} bytes and must not be fragmented, {peer} takes {takes}: it waits for another route"
            );
            let elsewhere = self.queue().reroute_around(record.key, peer, now);
            self.wake(elsewhere.iter());
            return Ok(());
        };
        let mut changes: Vec<Change> = pieces.iter().cloned().map(Change::Put).collect();
        changes.push(Change::Remove(record.key));
        self.store().commit(changes)?;
        if record.bundle.id.source == self.0.me {
            let mut transfers = self.transfers();
            pieces.iter().for_each(|piece| transfers.stored(piece));
            transfers.left(record, None, now);
        }
        let peers: Vec<Eid> = {
            let mut queue = self.queue();
            queue.remove(record.key);
            pieces.into_iter().filter_map(|piece| queue.insert(piece, now)).collect()
        };
        // The fragments may go through other contacts than the whole bundle.
        self.wake(peers.iter().filter(|other| *other != peer));
        Ok(())
    }
}

/// Bytes of all blocks except the payload.
fn blocks(bundle: &Bundle) -> u64 {
    bundle.encoded_len() - bundle.payload_len
}

fn pieces(len: u64, most: u64) -> Vec<Range<u64>> {
    fragment::pieces(len, most.max(len.div_ceil(MAX_PIECES))).collect()
}
