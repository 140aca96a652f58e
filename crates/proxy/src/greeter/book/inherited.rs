//! What of the book goes to the next process, and comes from the last one.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Book, Connected, Entries, Entry, Held, Pair};
use crate::gate::Gate;
use crate::handover::{EntryDeed, HeldDeed, Packer, Unpacker};
use crate::slab::Token;

impl Book {
    /// Takes everything out while nobody reads or writes in it, to hand it on.
    pub(crate) fn leave(&self) -> Entries {
        std::mem::take(&mut *self.entries())
    }

    /// Puts what [`Book::leave`] has taken out in its place again.
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
        deeds: Vec<EntryDeed>,
        gate: &Arc<Gate>,
        unpacker: &mut Unpacker,
    ) -> Result<(), String> {
        let mut entries = self.entries();
        for deed in deeds {
            let entry = Entry::inherited(deed, gate, unpacker)?;
            let pair = entry.pair;
            self.claimable.fetch_add(1, Ordering::Release);
            let key = entries.places.insert(entry);
            entries.by_pair.insert(pair, key);
            let data = EventData::new_u64(Token::Opening(key).encode());
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
    pub(crate) fn deeds<'a>(&'a self, packer: &mut Packer<'a>) -> Vec<EntryDeed> {
        self.places.values().map(|entry| entry.deed(packer)).collect()
    }
}

impl Entry {
    fn deed<'a>(&'a self, packer: &mut Packer<'a>) -> EntryDeed {
        let Self { upstream, held, since, pair } = self;
        let upstream = upstream.as_ref();
        EntryDeed {
            client: pair.client.into(),
            server: pair.server.into(),
            socket: upstream.map(|connected| packer.descriptor(connected.socket.as_fd())),
            other_port: upstream.is_some_and(|connected| connected.other_port),
            held: held.as_ref().map(|held| held.deed(packer)),
            age_ms: milliseconds(since.elapsed()),
        }
    }

    fn inherited(deed: EntryDeed, gate: &Arc<Gate>, unpacker: &mut Unpacker) -> Result<Self, String> {
        let EntryDeed { client, server, socket, other_port, held, age_ms } = deed;
        let is_waiting = held.is_some();
        let connected = |place| {
            let ticket = gate.readmit(client.ip(), is_waiting);
            Ok::<_, String>(Connected { socket: unpacker.descriptor(place)?, other_port, ticket })
        };
        Ok(Self {
            upstream: socket.map(connected).transpose()?,
            held: held.map(|held| Held::inherited(held, unpacker)).transpose()?,
            since: ago(age_ms),
            pair: Pair::new(client, server),
        })
    }
}

impl Held {
    fn deed(&self, packer: &mut Packer<'_>) -> HeldDeed {
        let Self { isn, packet, last, gap } = self;
        HeldDeed {
            isn: *isn,
            packet: packer.bytes(packet),
            last_ms: milliseconds(last.elapsed()),
            gap_ms: milliseconds(*gap),
        }
    }

    fn inherited(deed: HeldDeed, unpacker: &Unpacker) -> Result<Self, String> {
        let HeldDeed { isn, packet, last_ms, gap_ms } = deed;
        let packet = unpacker.bytes(packet)?.into();
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
