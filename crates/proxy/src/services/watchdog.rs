//! The watch: keeps the rules in force for as long as every worker lives, and keeps out whom a limit keeps out.
//!
//! The rules take connections only while the protocol is an element of the set `alive`, and its elements expire. At each
//! [`INTERVAL`] the watch asks every worker for a sign of life and, if all have answered the last time, renews them. So new
//! connections pass unsplit within two seconds of whatever stops the daemon, a worker or the watch itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bentpipe_kernel::nftables::{Change, Key, NfTables, NfTablesError};
use bentpipe_kernel::route::RouteSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::admission::{AdmissionControl, Client, OverLimit};
use crate::error::Error;
use crate::intercept::{ALIVE, FULL, FULL_CLIENTS, Interception, Liveness, PATIENCE, Routes};
use crate::types::mailbox::Heartbeat;
use crate::worker::Shared;

/// Between two renewals. Rules without a sign of life end at most this and [`PATIENCE`] after the last one.
const INTERVAL: Duration = Duration::from_millis(400);
/// The least time between two changes of the rules, so that a number that hovers at its limit costs little.
const PAUSE: Duration = Duration::from_millis(10);
/// How often a failure of the same kind is told.
const TELL: Duration = Duration::from_secs(60);
/// How soon tun_diverts are looked at again that could not be mended; each attempt starts programs.
const RETRY: Duration = Duration::from_secs(10);
/// Clients that are kept out at a time; they must fit a transaction. Those beyond are reset when they are accepted.
const MOST_CLIENTS: usize = 1000;

const TCP: Key = Key::Protocol(6);
const UDP: Key = Key::Protocol(17);

/// What the watch watches over.
pub(crate) struct Supervised {
    pub(crate) shared: Arc<Shared>,
    pub(crate) interception: Arc<Mutex<Interception>>,
    /// The workers and whoever else must be alive for a connection to be served.
    pub(crate) heartbeats: Vec<Box<dyn Heartbeat>>,
    /// Bytes in all buffers.
    pub(crate) buffered: Box<dyn Fn() -> u64 + Send>,
    pub(crate) liveness: Arc<Liveness>,
}

/// The running watch; it ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    stop: Arc<AtomicBool>,
    /// The sets are empty, since the rules are new.
    emptied: Arc<AtomicBool>,
    admission: Arc<AdmissionControl>,
    thread: Option<JoinHandle<()>>,
}

struct WatchdogThread {
    watched: Supervised,
    tables: NfTables,
    table: String,
    routes: Routes,
    route_socket: RouteSocket,
    /// When tun_diverts are looked at again.
    next_divert_check: Instant,
    emptied: Arc<AtomicBool>,
    /// What every worker had answered when it was asked last.
    acks: Vec<u64>,
    /// What the rules say now.
    known: OverLimit,
    /// When all were last known to be alive, and whether it was told that they are not.
    last_sign: Instant,
    silent: bool,
    told: Option<Instant>,
    /// A limit has been told of that was still reached then.
    told_of_limit: bool,
    may_tell_of_limit: Option<Instant>,
}

impl Watchdog {
    /// Starts to keep the rules in force, in the network namespace of the calling thread.
    pub(crate) fn start(watched: Supervised, table: &str) -> Result<Self, Error> {
        let tables = NfTables::open().map_err(Error::system("speak to nftables"))?;
        let route_socket = RouteSocket::open().map_err(Error::system("ask for routes"))?;
        let routes = watched.interception.lock().unwrap_or_else(PoisonError::into_inner).routes().clone();
        let [stop, emptied] = [(); 2].map(|()| Arc::<AtomicBool>::default());
        let admission = watched.shared.admission.clone();
        let acks = watched.heartbeats.iter().map(|heartbeat| heartbeat.acks().wrapping_sub(1)).collect();
        let watcher = WatchdogThread {
            watched,
            tables,
            table: table.to_owned(),
            routes,
            route_socket,
            next_divert_check: Instant::now(),
            emptied: emptied.clone(),
            acks,
            known: OverLimit::default(),
            last_sign: Instant::now(),
            silent: false,
            told: None,
            told_of_limit: false,
            may_tell_of_limit: None,
        };
        let until = stop.clone();
        let thread = std::thread::Builder::new()
            .name("bentpipe-watch".into())
            .spawn(move || watcher.run(&until))
            .map_err(Error::system("start the watch"))?;
        Ok(Self { stop, emptied, admission, thread: Some(thread) })
    }

    /// The rules have been replaced: whoever is to be kept out is put into their sets again.
    pub(crate) fn note_new_rules(&self) {
        self.emptied.store(true, Ordering::Release);
        self.admission.wake();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.admission.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the watch had panicked");
        }
    }
}

impl WatchdogThread {
    fn run(mut self, stop: &AtomicBool) {
        let mut next_beat = Instant::now();
        while !stop.load(Ordering::Acquire) {
            let beat = Instant::now() >= next_beat;
            if beat {
                next_beat = Instant::now() + INTERVAL;
                self.watched.shared.admission.set_buffered((self.watched.buffered)());
            }
            let signs_of_life = beat && self.ask() && self.has_routes() && !self.is_draining();
            self.update(beat, signs_of_life);
            if beat {
                self.repair_tun_diverts();
            }
            std::thread::sleep(PAUSE);
            self.wait_until(next_beat);
        }
    }

    /// Whether new connections are to pass because the daemon is to end; those that are split go on.
    fn is_draining(&self) -> bool {
        self.watched.shared.draining.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether everybody has answered since the last time; asks again.
    fn ask(&mut self) -> bool {
        let mut silent = None;
        for (heartbeat, acks) in self.watched.heartbeats.iter().zip(&mut self.acks) {
            let now = heartbeat.acks();
            if now == *acks {
                silent = Some(heartbeat.name());
            }
            *acks = now;
            heartbeat.ping();
        }
        match silent {
            // Late by a beat or two is only a busy machine: the rules are still in force.
            Some(name) if !self.silent && self.last_sign.elapsed() >= PATIENCE => {
                tracing::error!("{name} gives no sign of life: new connections pass unsplit until it does");
                self.silent = true;
            }
            Some(_) => {}
            None => {
                if std::mem::take(&mut self.silent) {
                    tracing::info!("every worker is alive again: new connections are split");
                }
                self.last_sign = Instant::now();
                self.watched.liveness.note_alive();
            }
        }
        silent.is_none()
    }

    /// Whether what the rules take comes to this host; other programs that manage the network remove what they do not know.
    fn has_routes(&mut self) -> bool {
        match self.routes.mend(&mut self.route_socket) {
            Ok(mended) => {
                if mended {
                    tracing::warn!("somebody had removed the routes of interception: set up again");
                }
                true
            }
            Err(error) => self.tell(&format!("cannot keep the rules in force: {error}")),
        }
    }

    /// Sees that packets which the daemon is to see reach it. If not they go on without it, so that it is no matter of life.
    fn repair_tun_diverts(&mut self) {
        if Instant::now() < self.next_divert_check {
            return;
        }
        match self.routes.repair_tun_diverts(&mut self.route_socket) {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(
                    "somebody had removed routes of tun_diverts, or set a device down: set up again"
                )
            }
            Err(error) => {
                self.next_divert_check = Instant::now() + RETRY;
                self.tell(&format!("packets pass the daemon by that it shall see: {error}"));
            }
        }
    }

    /// Brings the sets up to date. At a beat everything is said again, since the elements expire.
    fn update(&mut self, beat: bool, signs_of_life: bool) {
        let everything = self.emptied.swap(false, Ordering::Acquire) || beat;
        let mut wanted = self.watched.shared.admission.over_limit();
        wanted.clients.truncate(MOST_CLIENTS);
        if !everything && wanted == self.known {
            return;
        }
        let mut changes = Vec::new();
        if signs_of_life {
            changes.extend([TCP, UDP].map(|key| put(ALIVE, key)));
        }
        if wanted.everybody.is_some() {
            changes.push(put(FULL, TCP));
        } else if self.known.everybody.is_some() {
            changes.push(Change::Remove { set: FULL, key: TCP });
        }
        let gone = self.known.clients.iter().filter(|client| wanted.clients.binary_search(client).is_err());
        changes
            .extend(gone.map(|&client| Change::Remove { set: set_of(client), key: client.address().into() }));
        let is_due = |client: &&Client| everything || self.known.clients.binary_search(client).is_err();
        let due = wanted.clients.iter().filter(is_due);
        changes.extend(due.map(|&client| put(set_of(client), client.address().into())));
        if changes.is_empty() {
            return;
        }
        match self.tables.apply(&self.table, &changes) {
            Ok(()) => {
                if signs_of_life {
                    self.watched.liveness.note();
                }
                self.adopt(wanted);
            }
            Err(error) => self.mend(&error),
        }
    }

    fn adopt(&mut self, over_limit: OverLimit) {
        match over_limit.everybody {
            // A number that hovers at its limit is told of once in a while, and its end only where its beginning was.
            Some(limit)
                if !self.told_of_limit && self.may_tell_of_limit.is_none_or(|at| at <= Instant::now()) =>
            {
                tracing::warn!("{limit} reached: new connections are not split until it is not");
                (self.told_of_limit, self.may_tell_of_limit) = (true, Some(Instant::now() + TELL));
            }
            None if self.told_of_limit => {
                tracing::info!("below the limits again: new connections are split");
                self.told_of_limit = false;
            }
            _ => {}
        }
        self.known = over_limit;
    }

    /// Rules that somebody else has removed are installed again; what else goes wrong passes or is told.
    fn mend(&mut self, error: &NfTablesError) {
        let restored = match error {
            NfTablesError::Missing { .. } => {
                self.known = OverLimit::default();
                let interception = self.watched.interception.lock().unwrap_or_else(PoisonError::into_inner);
                interception.restore().map_err(|error| error.to_string())
            }
            _ => Err(error.to_string()),
        };
        match restored {
            Ok(()) => tracing::warn!("somebody had removed the interception rules: installed again"),
            Err(reason) => {
                self.tell(&format!("cannot keep the rules in force: {reason}"));
            }
        }
    }

    /// Tells now and then of what cannot be mended; it is not.
    fn tell(&mut self, trouble: &str) -> bool {
        if self.told.is_none_or(|told| told.elapsed() > TELL) {
            self.told = Some(Instant::now());
            tracing::error!("{trouble}");
        }
        false
    }

    fn wait_until(&self, next_beat: Instant) {
        let left = next_beat.saturating_duration_since(Instant::now());
        let changed = self.watched.shared.admission.changed();
        let mut fds = [PollFd::new(changed, PollFlags::IN)];
        if poll(&mut fds, Timespec::try_from(left).ok().as_ref()).is_ok_and(|count| count > 0) {
            let _ = rustix::io::read(changed, &mut [0; 8]);
        }
    }
}

fn put(set: &'static str, key: Key) -> Change<'static> {
    Change::Put { set, key, timeout: PATIENCE }
}

fn set_of(client: Client) -> &'static str {
    match client {
        Client::V4(_) => FULL_CLIENTS[0],
        Client::V6(_) => FULL_CLIENTS[1],
    }
}
