//! What of the pending goes to the next process, and comes from the last one.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Connected, Entries, Entry, FourTuple, Held, PendingTable};
use crate::admission::AdmissionControl;
use crate::types::slab::Token;
use crate::upgrade::{EntrySnapshot, HeldSynSnapshot, SnapshotReader, SnapshotWriter};

impl PendingTable {
    /// Takes everything out while nobody reads or writes in it, to hand it on.
    pub(crate) fn leave(&self) -> Entries {
        std::mem::take(&mut *self.entries())
    }

    /// Puts what [`PendingTable::leave`] has taken out in its place again.
    pub(crate) fn put_back(&self, entries: Entries) {
        *self.entries() = entries;
    }

    /// Nobody waits, neither for a server nor for a client.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries().by_pair.is_empty()
    }

    /// Goes on with what another process has begun. The servers' answers are heard of when somebody waits for them.
    pub(crate) fn inherit(
        &self,
        snapshots: Vec<EntrySnapshot>,
        admission: &Arc<AdmissionControl>,
        reader: &mut SnapshotReader,
    ) -> Result<(), String> {
        let mut entries = self.entries();
        for snapshot in snapshots {
            let entry = Entry::inherited(snapshot, admission, reader)?;
            let pair = entry.pair;
            self.claimable.fetch_add(1, Ordering::Release);
            let key = entries.places.insert(entry);
            entries.by_pair.insert(pair, key);
            let data = EventData::new_u64(Token::Pending(key).encode());
            let upstream = entries.get_mut(&pair).and_then(|entry| entry.upstream.as_ref());
            if let Some(Connected { socket, .. }) = upstream {
                epoll::add(&self.epoll, socket, data, EventFlags::OUT | EventFlags::ET)
                    .map_err(|error| format!("cannot wait for a server: {error}"))?;
            }
        }
        Ok(())
    }
}

impl Entries {
    /// What of them goes to the next process.
    pub(crate) fn snapshots<'a>(&'a self, writer: &mut SnapshotWriter<'a>) -> Vec<EntrySnapshot> {
        self.places.values().map(|entry| entry.snapshot(writer)).collect()
    }
}

impl Entry {
    fn snapshot<'a>(&'a self, writer: &mut SnapshotWriter<'a>) -> EntrySnapshot {
        let Self { upstream, held, since, pair } = self;
        let upstream = upstream.as_ref();
        EntrySnapshot {
            client: pair.client.into(),
            server: pair.server.into(),
            socket: upstream.map(|connected| writer.descriptor(connected.socket.as_fd())),
            other_port: upstream.is_some_and(|connected| connected.other_port),
            held: held.as_ref().map(|held| held.snapshot(writer)),
            age_ms: milliseconds(since.elapsed()),
        }
    }

    fn inherited(
        snapshot: EntrySnapshot,
        admission: &Arc<AdmissionControl>,
        reader: &mut SnapshotReader,
    ) -> Result<Self, String> {
        let EntrySnapshot { client, server, socket, other_port, held, age_ms } = snapshot;
        let is_waiting = held.is_some();
        let connected = |place| {
            let permit = admission.readmit(client.ip(), is_waiting);
            Ok::<_, String>(Connected { socket: reader.descriptor(place)?, other_port, permit })
        };
        Ok(Self {
            upstream: socket.map(connected).transpose()?,
            held: held.map(|held| Held::inherited(held, reader)).transpose()?,
            since: ago(age_ms),
            pair: FourTuple::new(client, server),
        })
    }
}

impl Held {
    fn snapshot(&self, writer: &mut SnapshotWriter<'_>) -> HeldSynSnapshot {
        let Self { isn, packet, last, gap } = self;
        HeldSynSnapshot {
            isn: *isn,
            packet: writer.bytes(packet),
            last_ms: milliseconds(last.elapsed()),
            gap_ms: milliseconds(*gap),
        }
    }

    fn inherited(snapshot: HeldSynSnapshot, reader: &SnapshotReader) -> Result<Self, String> {
        let HeldSynSnapshot { isn, packet, last_ms, gap_ms } = snapshot;
        let packet = reader.bytes(packet)?.into();
        Ok(Self { isn, packet, last: ago(last_ms), gap: Duration::from_millis(gap_ms) })
    }
}

fn milliseconds(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

fn ago(ms: u64) -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_millis(ms)).unwrap_or(now)
}
