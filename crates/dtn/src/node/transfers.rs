//! What has become of the bundles that this node itself has sent, such as those of its inlets, for those who have
//! the URL of one. Pure but for the key's file.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Serialize;

use crate::bundle::report::ReasonCode;
use crate::bundle::{BundleId, Fragment};
use crate::store::{Key, Record};
use crate::{DtnTime, Eid};

use super::{Node, ReportedEvent, clock};

/// The most bundles that are remembered, as many as a store holds by default; the oldest are forgotten.
const MAX_BUNDLES: usize = 100_000;
/// The most remembered events of one bundle: of fragments each has its own.
const MAX_EVENTS: usize = 64;
/// The most remembered events of all bundles, about 100 bytes each; then the oldest bundles are forgotten.
const MAX_EVENTS_OF_ALL: usize = 2 * MAX_BUNDLES;
/// The most parts of a bundle that a status lists.
const MAX_LISTED: usize = 64;
/// How long a bundle is remembered after its lifetime has ended.
const KEEP_AFTER: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// The file of the key, in the folder of the store.
const KEY_FILE: &str = "transfers.key";
/// Bytes of the key, as HMAC-SHA256 wants it (RFC 2104 §3).
const KEY_LEN: usize = 32;
/// Bytes of an ID that tell the bundle; the authentication tag follows.
const NAME_LEN: usize = 16;

/// A bundle of this node: its creation timestamp, so that the first is the oldest.
type Name = (DtnTime, u64);

/// The bundles that this node has sent.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    of: BTreeMap<Name, Transfer>,
    /// How many events all of them have.
    events: usize,
}

#[derive(Debug)]
struct Transfer {
    destination: Eid,
    expires: DtnTime,
    /// Its parts that are here: itself, or the fragments that it was cut into.
    here: BTreeSet<Key>,
    events: Vec<(DtnTime, Option<Fragment>, Event)>,
}

/// What has happened here to a bundle or a fragment of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// This node has acknowledged it to its application, or at its outlet.
    Delivered,
    /// This peer has it.
    Forwarded(Eid),
    /// This node has deleted it.
    Deleted(ReasonCode),
}

impl Transfers {
    /// A bundle of this node, or a part of one, is in the store.
    pub(crate) fn stored(&mut self, record: &Record) {
        let (bundle, name) = (&record.bundle, name(&record.bundle.id));
        if !self.of.contains_key(&name) {
            // What comes back from others began here before, and was forgotten.
            if bundle.is_admin || record.from.is_some() {
                return;
            }
            if self.of.len() >= MAX_BUNDLES {
                self.forget_oldest();
            }
        }
        let transfer = self.of.entry(name).or_insert_with(|| Transfer {
            destination: bundle.destination.clone(),
            expires: record.expires,
            here: BTreeSet::new(),
            events: Vec::new(),
        });
        transfer.here.insert(record.key);
    }

    /// A bundle or a part of one has left the store; without an event it has been cut into parts.
    pub(crate) fn left(&mut self, record: &Record, event: Option<Event>, now: DtnTime) {
        let Some(transfer) = self.of.get_mut(&name(&record.bundle.id)) else { return };
        transfer.here.remove(&record.key);
        // The last place is for how it ends.
        let places = if matches!(event, Some(Event::Forwarded(_))) { MAX_EVENTS - 1 } else { MAX_EVENTS };
        if let Some(event) = event
            && transfer.events.len() < places
        {
            transfer.events.push((now, record.bundle.id.fragment, event));
            self.events += 1;
        }
        while self.events > MAX_EVENTS_OF_ALL {
            self.forget_oldest();
        }
    }

    /// Forgets what nobody will ask for any more.
    pub(crate) fn forget(&mut self, now: DtnTime) {
        self.of.retain(|_, transfer| !transfer.here.is_empty() || transfer.expires.after(KEEP_AFTER) > now);
        self.events = self.of.values().map(|transfer| transfer.events.len()).sum();
    }

    fn forget_oldest(&mut self) {
        if let Some((_, transfer)) = self.of.pop_first() {
            self.events -= transfer.events.len();
        }
    }
}

fn name(id: &BundleId) -> Name {
    (id.created, id.sequence)
}

/// Makes and reads the IDs of transfers: a bundle's creation timestamp and the authentication tag of it, so that
/// nobody finds out another's by guessing, and none has to be remembered.
pub(crate) struct TransferIds(hmac::Key);

impl TransferIds {
    /// By the key in the store's folder, which is made if there is none: IDs stay valid through restarts.
    pub(crate) fn open(folder: &Path) -> Self {
        let path = folder.join(KEY_FILE);
        let key = read_or_make(&path).unwrap_or_else(|error| {
            tracing::warn!(
                "cannot keep the key of status URLs in {}: {error}; those that are given out are invalid after a \
                 restart",
                path.display()
            );
            random_key().unwrap_or_default()
        });
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// The ID of a bundle of this node, hexadecimal digits.
    pub(crate) fn id(&self, bundle: &BundleId) -> String {
        let mut bytes = [bundle.created.millis().to_be_bytes(), bundle.sequence.to_be_bytes()].concat();
        let tag = hmac::sign(&self.0, &bytes);
        bytes.extend(tag.as_ref());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bundle of an ID; `None` if this node has not made it.
    fn read(&self, id: &str) -> Option<Name> {
        let digits = id.as_bytes();
        if digits.len() != 2 * (NAME_LEN + hmac::HMAC_SHA256.digest_algorithm().output_len()) {
            return None;
        }
        // Only the form that is given out.
        let digit = |byte: &u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let bytes = digits.chunks_exact(2).map(|pair| Some(digit(&pair[0])? << 4 | digit(&pair[1])?));
        let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
        let (name, tag) = bytes.split_at(NAME_LEN);
        hmac::verify(&self.0, name, tag).ok()?;
        let (created, sequence) = name.split_at(NAME_LEN / 2);
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
        Some((DtnTime::from_millis(number(created)?), number(sequence)?))
    }
}

impl std::fmt::Debug for TransferIds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TransferIds(…)")
    }
}

fn read_or_make(path: &Path) -> io::Result<Vec<u8>> {
    match std::fs::read(path) {
        Ok(key) if key.len() == KEY_LEN => return Ok(key),
        // A crash has cut it short.
        Ok(_) => std::fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let key = random_key().ok_or_else(|| io::Error::other("the kernel gives no random numbers"))?;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&key)?;
    file.sync_all()?;
    Ok(key)
}

fn random_key() -> Option<Vec<u8>> {
    let mut key = vec![0; KEY_LEN];
    SystemRandom::new().fill(&mut key).ok()?;
    Some(key)
}

/// What is known of a bundle that this node has sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TransferStatus {
    /// The bundle.
    pub bundle: String,
    /// Its state, in one word.
    pub state: TransferState,
    /// The destination, unless it is forgotten.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// When this node accepted it, by its clock.
    pub created: String,
    /// When its lifetime ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Its parts that are still here: itself, or fragments; the first 64.
    pub here: Vec<PartStatus>,
    /// What this node has done with it and what others have reported, in this order.
    pub events: Vec<TransferEvent>,
}

/// The state of a bundle that this node has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferState {
    /// It, or a part of it, waits here.
    Waiting,
    /// It is on its way to a peer, which has not acknowledged it yet.
    Sending,
    /// A peer has all of it, and nothing else has been reported.
    Forwarded,
    /// Its application has it, or its outlet has handed it over.
    Delivered,
    /// A node has deleted it, or a part of it, because its lifetime was over.
    Expired,
    /// A node has deleted it, or a part of it, for another reason.
    Deleted,
    /// It has left this node, which does not remember how.
    Unknown,
}

/// A part of a bundle that is here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartStatus {
    /// What it waits for.
    pub state: &'static str,
    /// The peer that it waits for, or that it is on its way to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Bytes of payload.
    pub payload_bytes: u64,
}

/// An event of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TransferEvent {
    /// received, forwarded, delivered or deleted.
    pub event: String,
    /// The node where it happened.
    pub node: String,
    /// The next node, of what this node has forwarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// When, by that node's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Why, if there is anything to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The fragment that it happened to, if not to the whole bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragment: Option<String>,
}

impl Node {
    /// The ID by which whoever sent a bundle asks for its status. Bundles of services have none.
    pub(crate) fn transfer_id(&self, bundle: &BundleId) -> Option<String> {
        (bundle.source == self.0.me).then(|| self.0.transfer_ids.id(bundle))
    }

    /// What is known of a bundle that this node has sent; `None` if the ID is none that it has given out.
    pub(crate) fn transfer(&self, id: &str) -> Option<TransferStatus> {
        let (created, sequence) = self.0.transfer_ids.read(id)?;
        let bundle = BundleId { source: self.0.me.clone(), created, sequence, fragment: None };
        let reported = self.reports_of(&bundle);
        let transfers = self.transfers();
        let known = transfers.of.get(&(created, sequence));
        let local = known.into_iter().flat_map(|known| &known.events);
        let local = local.map(|(time, fragment, event)| local_event(&self.0.me, *time, *fragment, event));
        let events: Vec<TransferEvent> = local
            .chain(reported.iter().filter(|event| event.node != self.0.me.to_string()).map(other_event))
            .collect();
        let keys: Vec<Key> =
            known.into_iter().flat_map(|known| &known.here).copied().take(MAX_LISTED).collect();
        let (destination, expires) = match known {
            Some(known) => (Some(known.destination.to_string()), Some(known.expires.to_date())),
            None => (None, None),
        };
        drop(transfers);
        let here: Vec<PartStatus> = {
            let queue = self.queue();
            keys.iter().filter_map(|key| queue.part(*key)).collect()
        };
        // A moment may lie between leaving the queue and the event.
        let state = state(!keys.is_empty(), &here, &events);
        Some(TransferStatus {
            bundle: bundle.to_string(),
            state,
            destination,
            created: created.to_date(),
            expires,
            here,
            events,
        })
    }

    /// A record has left the store.
    pub(super) fn record_left(&self, record: &Record, event: impl FnOnce() -> Option<Event>) {
        if record.bundle.id.source == self.0.me {
            self.transfers().left(record, event(), clock());
        }
    }
}

fn state(is_here: bool, here: &[PartStatus], events: &[TransferEvent]) -> TransferState {
    let any = |what: &str| events.iter().find(|event| event.event == what);
    if any("delivered").is_some() {
        TransferState::Delivered
    } else if let Some(deleted) = any("deleted") {
        let expired = ReasonCode::LIFETIME_EXPIRED.to_string();
        if deleted.reason.as_ref() == Some(&expired) {
            TransferState::Expired
        } else {
            TransferState::Deleted
        }
    } else if here.iter().any(|part| part.state == super::forwarding_queue::SENDING) {
        TransferState::Sending
    } else if is_here {
        TransferState::Waiting
    } else if any("forwarded").is_some() || any("received").is_some() {
        TransferState::Forwarded
    } else {
        TransferState::Unknown
    }
}

fn local_event(me: &Eid, time: DtnTime, fragment: Option<Fragment>, event: &Event) -> TransferEvent {
    let (word, to, reason) = match event {
        Event::Delivered => ("delivered", None, None),
        Event::Forwarded(peer) => ("forwarded", Some(peer.to_string()), None),
        Event::Deleted(reason) => ("deleted", None, Some(reason.to_string())),
    };
    TransferEvent {
        event: word.into(),
        node: me.to_string(),
        to,
        time: Some(time.to_date()),
        reason,
        fragment: fragment.map(|part| format!("{}+{}", part.offset, part.len)),
    }
}

fn other_event(event: &ReportedEvent) -> TransferEvent {
    let fragment = event.subject.parse::<BundleId>().ok().and_then(|subject| subject.fragment);
    TransferEvent {
        event: event.status.clone(),
        node: event.node.clone(),
        to: None,
        time: event.time_ms.map(|time| DtnTime::from_millis(time).to_date()),
        reason: Some(event.reason.clone()).filter(|why| *why != ReasonCode::NO_INFORMATION.to_string()),
        fragment: fragment.map(|part| format!("{}+{}", part.offset, part.len)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::bundle::Bundle;
    use crate::store::{Payload, Purpose};

    fn eid(text: &str) -> Eid {
        text.parse().unwrap()
    }

    fn record(created: u64, from: Option<&str>) -> Record {
        let created = DtnTime::from_millis(created);
        let bundle = Bundle::new(eid("dtn://a/"), created, 0, eid("dtn://z/"), Duration::from_millis(9));
        Record {
            key: Key(created.millis()),
            expires: bundle.expires(created),
            bundle: Arc::new(bundle),
            payload: Payload::default(),
            received: created,
            from: from.map(eid),
            purpose: Purpose::Forward,
        }
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_are_forgotten() {
        let mut transfers = Transfers::default();
        for created in 1..MAX_BUNDLES as u64 + 3 {
            transfers.stored(&record(created, None));
        }
        assert_eq!(transfers.of.len(), MAX_BUNDLES);
        assert_eq!(transfers.of.first_key_value().unwrap().0.0, DtnTime::from_millis(3));
        // A bundle that comes back is not remembered anew.
        transfers.stored(&record(1, Some("dtn://b/")));
        assert_eq!(transfers.of.len(), MAX_BUNDLES);
        let record = record(3, None);
        for _ in 0..MAX_EVENTS + 9 {
            transfers.left(&record, Some(Event::Forwarded(eid("dtn://b/"))), DtnTime::from_millis(4));
        }
        assert_eq!(transfers.events, MAX_EVENTS - 1);
        // How it ends is kept.
        let expired = Event::Deleted(ReasonCode::LIFETIME_EXPIRED);
        transfers.left(&record, Some(expired.clone()), DtnTime::from_millis(5));
        let events = &transfers.of.first_key_value().unwrap().1.events;
        assert_eq!((events.len(), transfers.events), (MAX_EVENTS, MAX_EVENTS));
        assert_eq!(events.last().map(|(_, _, event)| event), Some(&expired));
    }

    #[test]
    fn events_of_many_fragments_are_bounded_for_all_bundles_together() {
        let mut transfers = Transfers::default();
        let bundles = MAX_EVENTS_OF_ALL / MAX_EVENTS + 9;
        for created in 1..=bundles as u64 {
            let record = record(created, None);
            transfers.stored(&record);
            for _ in 0..MAX_EVENTS {
                transfers.left(&record, Some(Event::Delivered), DtnTime::from_millis(4));
            }
        }
        let sum = |transfers: &Transfers| {
            transfers.of.values().map(|transfer| transfer.events.len()).sum::<usize>()
        };
        assert!(transfers.events <= MAX_EVENTS_OF_ALL && transfers.events == sum(&transfers));
        assert_eq!(transfers.of.len(), MAX_EVENTS_OF_ALL / MAX_EVENTS);
        transfers.forget(DtnTime::from_millis(u64::MAX));
        assert!(transfers.of.is_empty() && transfers.events == 0);
    }

    #[test]
    fn what_is_here_is_kept_and_the_rest_for_a_day() {
        let mut transfers = Transfers::default();
        let (stays, goes) = (record(1, None), record(2, None));
        transfers.stored(&stays);
        transfers.stored(&goes);
        transfers.left(&goes, Some(Event::Delivered), DtnTime::from_millis(3));
        let end = goes.expires.after(KEEP_AFTER);
        transfers.forget(DtnTime::from_millis(end.millis() - 1));
        assert_eq!(transfers.of.len(), 2);
        transfers.forget(end);
        assert_eq!(transfers.of.len(), 1);
        assert!(transfers.of.contains_key(&name(&stays.bundle.id)));
    }

    #[test]
    fn ids_outlive_the_process_and_another_key_reads_none() {
        let folder = tempfile::tempdir().unwrap();
        let record = record(7, None);
        let id = TransferIds::open(folder.path()).id(&record.bundle.id);
        assert_eq!(TransferIds::open(folder.path()).read(&id), Some(name(&record.bundle.id)));
        assert_eq!(TransferIds::open(tempfile::tempdir().unwrap().path()).read(&id), None);
        // A key that a crash has cut short is replaced.
        std::fs::write(folder.path().join(KEY_FILE), "short").unwrap();
        assert_eq!(TransferIds::open(folder.path()).read(&id), None);
        assert_eq!(std::fs::read(folder.path().join(KEY_FILE)).unwrap().len(), KEY_LEN);
    }

    proptest! {
        #[test]
        fn only_the_ids_that_were_made_are_read(
            created: u64, sequence: u64, at in 0_usize..96, digit in 0_u8..16, text in ".{0,200}"
        ) {
            let ids = TransferIds(hmac::Key::new(hmac::HMAC_SHA256, &[7; KEY_LEN]));
            let source = eid("dtn://a/");
            let bundle = BundleId { source, created: DtnTime::from_millis(created), sequence, fragment: None };
            let id = ids.id(&bundle);
            prop_assert_eq!(ids.read(&id), Some(name(&bundle)));
            let mut other = id.clone().into_bytes();
            other[at] = char::from_digit(digit.into(), 16).unwrap() as u8;
            let other = String::from_utf8(other).unwrap();
            prop_assert_eq!(ids.read(&other).is_some(), other == id);
            prop_assert_eq!(ids.read(&text), None);
            prop_assert_eq!(ids.read(&id.to_uppercase()).is_some(), id == id.to_uppercase());
        }
    }
}
