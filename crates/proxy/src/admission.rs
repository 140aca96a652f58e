//! Admission control: counts connections, in all and per client, and decides whether to admit another one.
//!
//! All workers share it. A connection holds a [`Permit`] for as long as it exists, so the counts are
//! those of open connections, however they end. The rules decide whether new connections pass unsplit
//! *before* they are answered; the watchdog updates them from [`AdmissionControl::over_limit`].
//!
//! Near a limit the clients with most connections are shed first, before everybody is: see
//! [`State::is_shed`].

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::config::AtLimit;

/// The bits of an IPv6 address that tell one client from another: a host chooses the rest at will (RFC 7421).
const NETWORK_OF_64_BITS: u128 = !0 << 64;

/// The share of a limit above which clients are shed.
const SHED_ABOVE: f64 = 0.8;
/// The most clients that [`AdmissionControl::over_limit`] names: as many as fit into one transaction of the
/// rules. Connections of others are reset when accepted.
const MOST_CLIENTS: usize = 1000;

/// The limits that admission control enforces; a reload changes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdmissionLimits {
    /// Connections at the same time.
    pub(crate) connections: usize,
    /// Connections of one client.
    pub(crate) per_client: Option<usize>,
    /// Connections that wait for their server.
    pub(crate) connecting: usize,
    /// Bytes in buffers, the kernel's included.
    pub(crate) buffered: u64,
    /// Connections for which there are descriptors: never exceeded.
    pub(crate) descriptors: usize,
    pub(crate) at_limit: AtLimit,
}

/// The limits, and what is used of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) limits: AdmissionLimits,
    /// Open connections.
    pub(crate) open: usize,
    /// Those of the client that has most.
    pub(crate) busiest_client: usize,
    /// Connections that wait for their server.
    pub(crate) connecting: usize,
    /// Bytes in buffers.
    pub(crate) buffered: u64,
}

/// One source of connections: an IPv4 address, or an IPv6 network of 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Client {
    V4(Ipv4Addr),
    V6([u8; 8]),
}

/// Counts connections and admits them.
#[derive(Debug)]
pub(crate) struct AdmissionControl {
    state: Mutex<State>,
    connecting: AtomicUsize,
    /// Workers that have run out of descriptors; no connection is admitted until all have one again.
    short_of_descriptors: AtomicUsize,
    /// The buffers exceed their limit.
    memory_full: AtomicBool,
    /// The state last signalled, so that only changes are signalled.
    full: AtomicBool,
    shedding: AtomicBool,
    /// The clients that were shed when that was last asked for.
    shed_clients: AtomicUsize,
    changed: OwnedFd,
}

#[derive(Debug)]
struct State {
    admission_limits: AdmissionLimits,
    open: usize,
    clients: HashMap<Client, usize>,
    /// Bytes in buffers, up to half a second ago.
    buffered: u64,
}

/// Counts one connection, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    admission: Arc<AdmissionControl>,
    client: Client,
    connecting: bool,
}

/// Which new connections must not be answered now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct OverLimit {
    /// The limit because of which no client is admitted.
    pub(crate) everybody: Option<Limit>,
    /// The clients that are at their own limit or are shed, sorted.
    pub(crate) clients: Vec<Client>,
    /// The limit because of which clients are shed.
    pub(crate) shedding: Option<Limit>,
}

/// The limit that a connection came up against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Connections,
    PerClient,
    Connecting,
    Buffered,
    Descriptors,
}

impl AdmissionControl {
    pub(crate) fn new(admission_limits: AdmissionLimits) -> rustix::io::Result<Self> {
        Ok(Self {
            state: Mutex::new(State { admission_limits, open: 0, clients: HashMap::new(), buffered: 0 }),
            connecting: AtomicUsize::new(0),
            short_of_descriptors: AtomicUsize::new(0),
            memory_full: AtomicBool::new(false),
            full: AtomicBool::new(false),
            shedding: AtomicBool::new(false),
            shed_clients: AtomicUsize::new(0),
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Admits a connection of `client`, as one that waits for its server, or returns the limit that it
    /// exceeds.
    ///
    /// Where connections beyond a limit pass unsplit, those that the kernel has already answered are admitted
    /// nonetheless, up to [`with_accept_queue_slack`]: they can no longer pass.
    pub(crate) fn admit(self: &Arc<Self>, client: IpAddr) -> Result<Permit, Limit> {
        let client = Client::from(client);
        let mut state = self.state();
        state.check(client, self.connecting.load(Ordering::Relaxed))?;
        if self.memory_full.load(Ordering::Relaxed) && state.admission_limits.at_limit == AtLimit::Refuse {
            return Err(Limit::Buffered);
        }
        state.open += 1;
        let count = state.clients.entry(client).or_insert(0);
        *count += 1;
        let of_client = *count;
        let client_is_full = state.admission_limits.per_client == Some(of_client);
        self.connecting.fetch_add(1, Ordering::Relaxed);
        let client_is_shed = state.pressure().is_some_and(|pressure| state.is_shed(of_client, pressure));
        self.settle(&state, client_is_full || client_is_shed);
        drop(state);
        Ok(Permit { admission: self.clone(), client, connecting: true })
    }

    /// Counts an existing connection, which another process has admitted.
    pub(crate) fn readmit(self: &Arc<Self>, client: IpAddr, connecting: bool) -> Permit {
        let client = Client::from(client);
        let mut state = self.state();
        state.open += 1;
        *state.clients.entry(client).or_insert(0) += 1;
        if connecting {
            self.connecting.fetch_add(1, Ordering::Relaxed);
        }
        self.settle(&state, true);
        drop(state);
        Permit { admission: self.clone(), client, connecting }
    }

    /// A worker has run out of descriptors, or has one again after it had.
    pub(crate) fn set_short_of_descriptors(&self, short: bool) {
        let workers = &self.short_of_descriptors;
        let _ = if short {
            workers.fetch_add(1, Ordering::Relaxed)
        } else {
            workers.fetch_sub(1, Ordering::Relaxed)
        };
        self.settle(&self.state(), false);
    }

    /// Sets the number of bytes in buffers.
    pub(crate) fn set_buffered(&self, bytes: u64) {
        let mut state = self.state();
        state.buffered = bytes;
        self.memory_full.store(bytes >= state.admission_limits.buffered, Ordering::Relaxed);
        self.settle(&state, false);
    }

    /// Enforces other limits from now on.
    pub(crate) fn set_limits(&self, admission_limits: AdmissionLimits) {
        let mut state = self.state();
        state.admission_limits = admission_limits;
        self.settle(&state, true);
    }

    /// Which new connections must not be answered now.
    pub(crate) fn over_limit(&self) -> OverLimit {
        let state = self.state();
        let (pressure, per_client) = (state.pressure(), state.admission_limits.per_client);
        let is_shed = |open| pressure.is_some_and(|pressure| state.is_shed(open, pressure));
        let is_over = |open| is_shed(open) || per_client.is_some_and(|most| open >= most);
        let mut found: Vec<(usize, Client)> = match pressure.is_some() || per_client.is_some() {
            true => state.clients.iter().map(|(&client, &open)| (open, client)).collect(),
            false => Vec::new(),
        };
        let shed = found.iter().filter(|(open, _)| is_shed(*open)).count();
        self.shed_clients.store(shed, Ordering::Relaxed);
        found.retain(|&(open, _)| is_over(open));
        let everybody = self.reached(&state);
        drop(state);
        if found.len() > MOST_CLIENTS {
            found.sort_unstable_by(|a, b| b.cmp(a));
            found.truncate(MOST_CLIENTS);
        }
        let mut clients: Vec<Client> = found.into_iter().map(|(_, client)| client).collect();
        clients.sort_unstable();
        let shedding = pressure.filter(|_| shed > 0).map(|pressure| pressure.limit);
        OverLimit { everybody, clients, shedding }
    }

    /// The clients that were shed when [`over_limit`](Self::over_limit) was last asked for.
    pub(crate) fn shed_clients(&self) -> usize {
        self.shed_clients.load(Ordering::Relaxed)
    }

    /// Becomes readable when [`over_limit`](Self::over_limit) may have changed.
    pub(crate) fn changed(&self) -> &OwnedFd {
        &self.changed
    }

    /// Signals as if [`over_limit`](Self::over_limit) had changed.
    pub(crate) fn wake(&self) {
        // An eventfd can refuse only where it is signalled already.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// The limits, and what is used of them now.
    pub(crate) fn occupancy(&self) -> Occupancy {
        let state = self.state();
        Occupancy {
            limits: state.admission_limits,
            open: state.open,
            busiest_client: state.clients.values().copied().max().unwrap_or(0),
            connecting: self.connecting.load(Ordering::Relaxed),
            buffered: state.buffered,
        }
    }

    /// The number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.state().open
    }

    /// The number of connections that wait for their server.
    pub(crate) fn connecting(&self) -> usize {
        self.connecting.load(Ordering::Relaxed)
    }

    /// Signals if a limit has been reached or is no longer reached.
    fn settle(&self, state: &State, client_changed: bool) {
        let (full, shedding) = (self.reached(state).is_some(), state.pressure().is_some());
        let full_changed = self.full.swap(full, Ordering::Relaxed) != full;
        let shedding_changed = self.shedding.swap(shedding, Ordering::Relaxed) != shedding;
        if full_changed || shedding_changed || client_changed {
            self.wake();
        }
    }

    /// The limit because of which no client is admitted.
    fn reached(&self, state: &State) -> Option<Limit> {
        let AdmissionLimits { connections, descriptors, connecting, .. } = state.admission_limits;
        [
            (state.open >= connections, Limit::Connections),
            (state.open >= descriptors, Limit::Descriptors),
            (self.connecting.load(Ordering::Relaxed) >= connecting, Limit::Connecting),
            (self.short_of_descriptors.load(Ordering::Relaxed) > 0, Limit::Descriptors),
            (self.memory_full.load(Ordering::Relaxed), Limit::Buffered),
        ]
        .into_iter()
        .find_map(|(reached, limit)| reached.then_some(limit))
    }

    fn leave(&self, client: Client) {
        let mut state = self.state();
        let per_client = state.admission_limits.per_client;
        state.open -= 1;
        let mut client_is_free = false;
        if let Some(open) = state.clients.get_mut(&client) {
            client_is_free = per_client == Some(*open);
            *open -= 1;
            if *open == 0 {
                state.clients.remove(&client);
            }
        }
        self.settle(&state, client_is_free);
    }

    /// The counts are consistent at every step, so a poisoned lock can still be used.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A limit that is nearly reached.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pressure {
    limit: Limit,
    /// The share of it that is used, above [`SHED_ABOVE`]; 1 is all of it.
    used: f64,
}

impl State {
    /// The limit that is used most, if that is enough to shed clients.
    fn pressure(&self) -> Option<Pressure> {
        let AdmissionLimits { connections, descriptors, buffered, .. } = self.admission_limits;
        let used = |limit, used: f64, most: f64| Pressure { limit, used: (used / most).min(1.0) };
        let open = self.open as f64;
        let all = [
            used(Limit::Connections, open, connections as f64),
            used(Limit::Descriptors, open, descriptors as f64),
            used(Limit::Buffered, self.buffered as f64, buffered as f64),
        ];
        let most = all.into_iter().max_by(|a, b| a.used.total_cmp(&b.used));
        most.filter(|pressure| pressure.used > SHED_ABOVE)
    }

    /// Whether a client with `open` connections is shed: it uses as much of the limit as is left of it. Its
    /// part of what is used is that of its connections. So those with most are first, equal ones are treated
    /// alike, and the closer the limit comes the more are shed; at the limit it is everybody. (A. Choudhury
    /// and E. Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", IEEE/ACM
    /// Transactions on Networking 6(2), 1998, share a switch's memory between its ports in this way.)
    ///
    /// A client that is alone takes nothing from anybody, and has all of it.
    fn is_shed(&self, open: usize, pressure: Pressure) -> bool {
        let part = open as f64 / self.open as f64;
        self.clients.len() > 1 && part * pressure.used >= 1.0 - pressure.used
    }

    fn check(&self, client: Client, connecting: usize) -> Result<(), Limit> {
        let AdmissionLimits {
            connections,
            per_client,
            connecting: most_connecting,
            descriptors,
            at_limit,
            ..
        } = self.admission_limits;
        let most = |limit: usize| match at_limit {
            AtLimit::Pass => with_accept_queue_slack(limit),
            AtLimit::Refuse => limit,
        };
        let of_client = self.clients.get(&client).copied().unwrap_or(0);
        if self.open >= descriptors {
            Err(Limit::Descriptors)
        } else if self.open >= most(connections) {
            Err(Limit::Connections)
        } else if per_client.is_some_and(|limit| of_client >= most(limit)) {
            Err(Limit::PerClient)
        } else if connecting >= most(most_connecting) {
            Err(Limit::Connecting)
        } else {
            Ok(())
        }
    }
}

/// A limit plus slack for connections that the kernel answered before the rules knew that the limit was
/// reached.
fn with_accept_queue_slack(limit: usize) -> usize {
    limit + limit / 4 + 16
}

impl Permit {
    /// The server has answered.
    pub(crate) fn connected(&mut self) {
        if std::mem::take(&mut self.connecting) {
            self.admission.connecting.fetch_sub(1, Ordering::Relaxed);
            if self.admission.full.load(Ordering::Relaxed) {
                self.admission.settle(&self.admission.state(), false);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.connected();
        self.admission.leave(self.client);
    }
}

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Client::V4(address),
            IpAddr::V6(address) => {
                let network = address.to_bits() & NETWORK_OF_64_BITS;
                let [bytes @ .., _, _, _, _, _, _, _, _] = network.to_be_bytes();
                Client::V6(bytes)
            }
        }
    }
}

impl Client {
    /// The address itself, or the network's first.
    pub(crate) fn address(self) -> IpAddr {
        match self {
            Client::V4(address) => address.into(),
            Client::V6(network) => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&network);
                Ipv6Addr::from(bytes).into()
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address())
    }
}

impl Limit {
    /// Its key, or one word for the limit that has none.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Limit::Connections => "limits.connections",
            Limit::PerClient => "limits.connections_per_client",
            Limit::Connecting => "limits.connecting",
            Limit::Buffered => "limits.buffered",
            Limit::Descriptors => "descriptors",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Descriptors => "the process's descriptors (LimitNOFILE, ulimit -n)",
            limit => limit.key(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
