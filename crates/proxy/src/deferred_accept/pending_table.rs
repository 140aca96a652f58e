//! The table of connections whose handshakes are not complete. Deferred accept and the workers share it.
//!
//! ```text
//! waiting for the server ──► waiting for the client ──► claimed by a worker
//!          ├──► failed: the SYN goes on                 ├──► nobody came
//!          └──► abandoned by the client                 └──► reset by the server: so is the client, when it comes
//! ```

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt::take_error;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize, Serializer};

use crate::admission::{AdmissionControl, Permit};
use crate::connect::upstream::Upstream;
use crate::snapshot::{self, Fd};
use crate::types::slab::{Key, Slab, Token};

use super::syn::Syn;
use super::taken::TakenSyn;

/// The least time without a SYN after which a client is taken to have given up. Clients repeat their first
/// SYN after 1 s (RFC 6298 §2), old ones after 3 s.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);
/// The same as a multiple of the last gap between two of its SYNs. Each gap is twice the last, or as long.
const PATIENCE_IN_GAPS: u32 = 3;
/// How long to wait for a client once its server has answered: five repetitions of the SYN-ACK, the first
/// after 1 s, each gap twice the last (`net.ipv4.tcp_synack_retries`), are given up after 63 s.
const UNCLAIMED: Duration = Duration::from_secs(64);
/// The most marks of SYNs that are known at a time; each takes about 100 bytes.
const MOST_MARKS: usize = 65_536;

/// The endpoints of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct FourTuple {
    client: (IpAddr, u16),
    server: (IpAddr, u16),
}

/// Connections by the ends that the client sees.
#[derive(Debug)]
pub(crate) struct PendingTable {
    /// Reports the servers' answers to deferred accept.
    epoll: OwnedFd,
    /// How many entries there are, so that a worker need not take the lock where it has nothing to claim.
    claimable: AtomicUsize,
    /// Whether a SYN has had a mark lately.
    marked: AtomicBool,
    entries: Mutex<Entries>,
}

/// A connection to a server. One that comes from another process has no permit until it is admitted here.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "P: Default"))]
pub(crate) struct Connected<P = Permit> {
    pub(crate) socket: Fd,
    /// The client's port was taken on this host: the server sees the client's address with another one.
    pub(crate) other_port: bool,
    #[serde(skip)]
    pub(crate) permit: P,
}

/// The pending connection of a client that has been accepted.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Its server has not been asked yet.
    Nothing,
    /// Its server has been asked and has not answered: SYNs are no longer held since the rules are others,
    /// and a listener has answered the repeated one.
    Asked(Connected),
    Connected(Connected),
    /// Its server had answered and has reset the connection since.
    Reset,
}

/// How a SYN relates to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SynStatus {
    /// There is nothing of its pair.
    New,
    /// There was an answered connection of its pair that its client has given up for this one.
    Superseding,
    /// The server is being asked already.
    Waiting,
}

/// The server has answered, or an ICMP error has come.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) pair: FourTuple,
    pub(crate) isn: u32,
    /// The held SYN.
    pub(crate) taken: TakenSyn,
    /// `Ok` where the server has answered; the connection can be claimed from now on.
    pub(crate) result: io::Result<()>,
}

/// What a sweep has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Swept {
    /// Connections whose client has stopped asking before the server answered.
    pub(crate) abandoned: u64,
    /// Answered connections whose client has not come.
    pub(crate) unclaimed: u64,
}

#[derive(Debug, Default)]
struct Entries {
    places: Slab<Entry>,
    by_pair: HashMap<FourTuple, Key>,
    /// The marks of SYNs that went to their listeners at once, and when. Most have none.
    marks: HashMap<FourTuple, (u32, Instant)>,
}

/// A handshake that is not complete.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(serialize = "", deserialize = "P: Default"))]
pub(crate) struct Entry<P = Permit> {
    /// `None` if the server has reset it.
    upstream: Option<Connected<P>>,
    /// The SYN that waits for the server; `None` once it has answered.
    held: Option<Held>,
    /// When the entry was made or, later, when the server answered.
    #[serde(with = "snapshot::instant")]
    since: Instant,
    pair: FourTuple,
}

/// The latest SYN of a client, and the gap before it.
#[derive(Debug, Serialize, Deserialize)]
struct Held {
    isn: u32,
    taken: TakenSyn,
    #[serde(with = "snapshot::instant")]
    last: Instant,
    gap: Duration,
}

impl PendingTable {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            epoll,
            claimable: AtomicUsize::new(0),
            marked: AtomicBool::new(false),
            entries: Mutex::default(),
        })
    }

    /// Reports events of pending connections, with [`Token::Pending`].
    pub(crate) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Looks a SYN up. One that waits is the newest of its client from now on; what an earlier connection of
    /// the same ends has left is ended.
    pub(crate) fn look_up(&self, syn: &Syn, taken: &TakenSyn, now: Instant) -> SynStatus {
        let pair = FourTuple::of(syn);
        let mut entries = self.entries();
        match entries.get_mut(&pair).map(|entry| entry.held.as_mut()) {
            Some(Some(held)) => {
                held.note(syn, taken, now);
                SynStatus::Waiting
            }
            Some(None) => {
                self.remove(&mut entries, &pair);
                SynStatus::Superseding
            }
            None => SynStatus::New,
        }
    }

    /// Enters a connection that waits for its server. There must be none of these ends.
    pub(crate) fn enter(
        &self,
        syn: &Syn,
        taken: &TakenSyn,
        upstream: Upstream,
        permit: Permit,
        now: Instant,
    ) -> io::Result<()> {
        let pair = FourTuple::of(syn);
        let Upstream { socket, other_port, .. } = upstream;
        let held = Held { isn: syn.isn, taken: taken.clone(), last: now, gap: Duration::ZERO };
        let upstream = Some(Connected { socket: socket.into(), other_port, permit });
        self.insert(Entry { upstream, held: Some(held), since: now, pair })
    }

    /// Continues the handshakes of another process. The servers' answers are reported once a thread polls for
    /// them.
    pub(crate) fn resume(
        &self,
        entries: Vec<Entry<()>>,
        admission: &Arc<AdmissionControl>,
    ) -> io::Result<()> {
        entries.into_iter().try_for_each(|entry| self.insert(entry.admit(admission)))
    }

    /// Remembers the mark of a SYN that goes to its listener at once, for the connection to its server. False
    /// if there is no room.
    pub(crate) fn note_mark(&self, pair: FourTuple, mark: u32, now: Instant) -> bool {
        if mark == 0 && !self.marked.load(Ordering::Acquire) {
            return true;
        }
        let marks = &mut self.entries().marks;
        if mark == 0 {
            marks.remove(&pair);
            return true;
        }
        let has_room = marks.len() < MOST_MARKS || marks.contains_key(&pair);
        if has_room {
            marks.insert(pair, (mark, now));
            self.marked.store(true, Ordering::Release);
        }
        has_room
    }

    /// The marks that are remembered, for another process.
    pub(crate) fn marks(&self) -> Vec<(FourTuple, u32)> {
        self.entries().marks.iter().map(|(&pair, &(mark, _))| (pair, mark)).collect()
    }

    /// The mark of an accepted connection's SYN.
    pub(crate) fn mark_of(&self, client: SocketAddr, server: SocketAddr) -> u32 {
        if !self.marked.load(Ordering::Acquire) {
            return 0;
        }
        self.entries().marks.get(&FourTuple::new(client, server)).map_or(0, |(mark, _)| *mark)
    }

    /// Whether no handshake is pending.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries().by_pair.is_empty()
    }

    fn insert(&self, entry: Entry) -> io::Result<()> {
        let (pair, socket) = (entry.pair, entry.upstream.as_ref().map(|upstream| upstream.socket.clone()));
        let mut entries = self.entries();
        let key = entries.places.insert(entry);
        entries.by_pair.insert(pair, key);
        self.claimable.fetch_add(1, Ordering::Release);
        let Some(socket) = socket else { return Ok(()) };
        let data = EventData::new_u64(Token::Pending(key).encode());
        let registered = epoll::add(&self.epoll, &socket, data, EventFlags::OUT | EventFlags::ET);
        if registered.is_err() {
            self.remove(&mut entries, &pair);
        }
        Ok(registered?)
    }

    /// Handles an event of a connection's socket. An answered connection whose server has reset it stays in
    /// the table as such: its client may be there already, and is not to be connected a second time.
    pub(crate) fn note(&self, key: Key, flags: EventFlags, now: Instant) -> Option<Outcome> {
        let mut entries = self.entries();
        let entry = entries.places.get_mut(key)?;
        let failed = flags.intersects(EventFlags::HUP | EventFlags::ERR);
        if entry.held.is_none() && failed {
            entry.upstream = None;
        }
        if entry.held.is_none() || !(failed || flags.contains(EventFlags::OUT)) {
            return None;
        }
        let (pair, upstream, held) = (entry.pair, entry.upstream.as_mut()?, entry.held.take()?);
        let result = match take_error(&upstream.socket) {
            Ok(None) if !failed => {
                upstream.permit.connected();
                Ok(())
            }
            // It had answered first: a reset in answer to the SYN is "refused" (connect(2)).
            Ok(Some(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                entry.upstream = None;
                Ok(())
            }
            Ok(None) => Err(Errno::CONNABORTED.into()),
            Ok(Some(error)) | Err(error) => Err(error),
        };
        if result.is_ok() {
            entry.since = now;
        } else {
            self.remove(&mut entries, &pair);
        }
        Some(Outcome { pair, isn: held.isn, taken: held.taken, result })
    }

    /// Takes the pending connection of an accepted one out of the table.
    pub(crate) fn claim(&self, client: SocketAddr, server: SocketAddr) -> Claim {
        if self.claimable.load(Ordering::Acquire) == 0 {
            return Claim::Nothing;
        }
        let pair = FourTuple::new(client, server);
        let mut entries = self.entries();
        let Some(is_answered) = entries.get_mut(&pair).map(|entry| entry.held.is_none()) else {
            return Claim::Nothing;
        };
        let Some(connected) = self.remove(&mut entries, &pair) else { return Claim::Reset };
        match epoll::delete(&self.epoll, &connected.socket) {
            Ok(()) if is_answered => Claim::Connected(connected),
            Ok(()) => Claim::Asked(connected),
            Err(error) => {
                tracing::error!(%error, "cannot take a connection over from deferred accept");
                Claim::Reset
            }
        }
    }

    /// Ends a connection whose client is to reach the server without us; true if there was one. Its server
    /// gets a reset before what the client sends.
    pub(crate) fn abandon(&self, pair: &FourTuple) -> bool {
        self.remove(&mut self.entries(), pair).is_some()
    }

    /// The same for all connections of a family. How many there were.
    pub(crate) fn abandon_all(&self, is_ipv4: bool) -> u64 {
        let mut entries = self.entries();
        let pairs: Vec<FourTuple> =
            entries.by_pair.keys().filter(|pair| pair.is_ipv4() == is_ipv4).copied().collect();
        pairs.iter().filter(|pair| self.remove(&mut entries, pair).is_some()).count() as u64
    }

    /// Ends entries that have waited too long.
    pub(crate) fn sweep(&self, now: Instant) -> Swept {
        let mut entries = self.entries();
        let mut swept = Swept::default();
        entries.marks.retain(|_, (_, noted)| now.saturating_duration_since(*noted) <= UNCLAIMED);
        self.marked.store(!entries.marks.is_empty(), Ordering::Release);
        let pairs: Vec<FourTuple> = entries.by_pair.keys().copied().collect();
        for pair in pairs {
            let Some(entry) = entries.get_mut(&pair) else { continue };
            match &entry.held {
                Some(held) if held.is_abandoned(now) => swept.abandoned += 1,
                None if now.saturating_duration_since(entry.since) > UNCLAIMED => swept.unclaimed += 1,
                _ => continue,
            }
            self.remove(&mut entries, &pair);
        }
        swept
    }

    /// Takes an entry out; its connection, where it still has one, is reset where the caller drops it.
    fn remove(&self, entries: &mut Entries, pair: &FourTuple) -> Option<Connected> {
        let entry = entries.remove(pair)?;
        self.claimable.fetch_sub(1, Ordering::Release);
        entry.upstream
    }

    /// The table is consistent at every step, so a poisoned lock can still be used.
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn get_mut(&mut self, pair: &FourTuple) -> Option<&mut Entry> {
        self.places.get_mut(*self.by_pair.get(pair)?)
    }

    fn remove(&mut self, pair: &FourTuple) -> Option<Entry> {
        self.places.remove(self.by_pair.remove(pair)?)
    }
}

/// The pending handshakes, in a form that reads as `Vec<Entry<()>>`.
impl Serialize for PendingTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.entries().places.values())
    }
}

impl Entry<()> {
    /// An entry that another process has admitted.
    fn admit(self, admission: &Arc<AdmissionControl>) -> Entry {
        let Self { upstream, held, since, pair } = self;
        let admit = |Connected { socket, other_port, .. }| Connected {
            socket,
            other_port,
            permit: admission.readmit(pair.client.0, held.is_some()),
        };
        Entry { upstream: upstream.map(admit), held, since, pair }
    }
}

impl Held {
    fn note(&mut self, syn: &Syn, taken: &TakenSyn, now: Instant) {
        self.gap = now.saturating_duration_since(self.last);
        self.last = now;
        if self.isn != syn.isn {
            // The client has given up its first attempt and has begun another from the same port.
            self.isn = syn.isn;
            self.taken = taken.clone();
        }
    }

    /// A client that still wants to connect would have repeated its SYN.
    fn is_abandoned(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) > LEAST_PATIENCE.max(self.gap * PATIENCE_IN_GAPS)
    }
}

impl FourTuple {
    pub(crate) fn is_ipv4(&self) -> bool {
        self.client.0.is_ipv4()
    }

    pub(crate) fn new(client: SocketAddr, server: SocketAddr) -> Self {
        Self { client: (client.ip(), client.port()), server: (server.ip(), server.port()) }
    }

    pub(crate) fn of(syn: &Syn) -> Self {
        Self::new(syn.client, syn.server)
    }
}

impl fmt::Display for FourTuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [client, server] = [self.client, self.server].map(SocketAddr::from);
        write!(f, "{client} → {server}")
    }
}

#[cfg(test)]
mod tests;
