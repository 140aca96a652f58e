//! The watchdog keeps the rules in force while every thread is alive, and tells the rules which limits are
//! reached.
//!
//! The rules take connections only while the protocol is an element of the set `alive`, and its elements
//! expire. At each [`INTERVAL`] the watchdog pings every thread and, if all have acknowledged the last ping,
//! renews the elements. So new connections pass unsplit within two seconds after the daemon, a thread or the
//! watchdog itself stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bentpipe_kernel::nftables::{Change, Key, NfTables, NfTablesError};
use bentpipe_kernel::route::RouteSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::thread::ServiceThread;
use super::{Context, Service};
use crate::admission::{Client, OverLimit};
use crate::error::Error;
use crate::host;
use crate::intercept::{
    ALIVE, Arrival, FULL, FULL_CLIENTS, Interception, PATIENCE, Routes, Suspension, TABLE,
};
use crate::stats::Counters;
use crate::telemetry::Shared;
use crate::types::mailbox::{Heartbeat, Mailbox};

/// Between two renewals. Rules that are not renewed expire at most this plus [`PATIENCE`] after the last
/// renewal.
const INTERVAL: Duration = Duration::from_millis(400);
/// The least time between two updates of the sets, so that a count that hovers at its limit costs little.
const PAUSE: Duration = Duration::from_millis(10);
/// The least time between two log lines about the same failure.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Between two readings of what the rules count.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// How soon to retry the repair of diverts; each attempt runs programs.
const RETRY: Duration = Duration::from_secs(10);

const TCP: Key = Key::Protocol(6);
const UDP: Key = Key::Protocol(17);

/// The rules have been replaced, and their sets are empty.
#[derive(Debug)]
struct NewRules;

/// The watchdog. It holds the rules: without it they are not in force.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    thread: Option<ServiceThread<NewRules>>,
    interception: Option<Arc<Mutex<Interception>>>,
}

struct Supervisor {
    shared: Arc<Shared>,
    interception: Arc<Mutex<Interception>>,
    /// The threads that must be alive to serve a connection, each with its acknowledgements at the last ping.
    heartbeats: Vec<(Arc<dyn Heartbeat>, u64)>,
    workers: Vec<Arc<Counters>>,
    mailbox: Arc<Mailbox<NewRules>>,
    tables: NfTables,
    routes: Routes,
    route_socket: RouteSocket,
    /// When to check the diverts again.
    next_divert_check: Instant,
    /// The state of the kernel's whole rule set when our rules were last seen to be as they were loaded.
    generation: Option<u32>,
    /// When to read again what the rules count.
    next_count: Instant,
    /// The contents of the sets.
    known: OverLimit,
    /// The set `alive` is empty on purpose: the daemon drains, its bypass is on, or nothing came of
    /// connections that were taken.
    passes: bool,
    /// The last renewal has put elements into the set `alive`, so that rules which are loaded again may, too.
    takes: bool,
    /// When all threads were last known to be alive, and whether the log says that they are not.
    last_alive: Instant,
    unresponsive: bool,
    last_log: Option<Instant>,
    limit_log: Episodes,
    shedding_log: Episodes,
}

/// What the log says of a state that comes and goes: its beginning now and then, and its end only if its
/// beginning was said.
#[derive(Debug, Default)]
struct Episodes {
    is_logged: bool,
    next: Option<Instant>,
}

impl Service for Watchdog {
    fn name(&self) -> &'static str {
        "watchdog"
    }

    fn start(&mut self, _context: &Context) -> Result<(), Error> {
        Ok(())
    }

    fn unpause(&mut self, context: &Context) -> Result<(), Error> {
        self.interception.clone_from(&context.interception);
        let Some(interception) = self.interception.clone() else { return Ok(()) };
        let mut thread = ServiceThread::new("the watchdog, without which new connections pass unsplit")?;
        let supervisor = Supervisor::new(interception, thread.mailbox().clone(), context)?;
        thread.run("bentpipe-watch", move |stop| supervisor.run(stop))?;
        self.thread = Some(thread);
        Ok(())
    }

    fn reload(&mut self, _context: &Context) {
        if let Some(thread) = &self.thread {
            thread.send(NewRules);
        }
    }

    /// It would repair what the successor replaces. The rules stay in force without it for longer than an
    /// upgrade takes.
    fn pause(&mut self) {
        self.thread = None;
    }
}

impl Drop for Watchdog {
    /// The thread ends before the rules that it would restore.
    fn drop(&mut self) {
        self.thread = None;
    }
}

impl Supervisor {
    fn new(
        interception: Arc<Mutex<Interception>>,
        mailbox: Arc<Mailbox<NewRules>>,
        context: &Context,
    ) -> Result<Self, Error> {
        let routes = interception.lock().unwrap_or_else(PoisonError::into_inner).routes().clone();
        let alive = |heartbeat: &Arc<dyn Heartbeat>| (heartbeat.clone(), heartbeat.acks().wrapping_sub(1));
        Ok(Self {
            shared: context.shared.clone(),
            interception,
            heartbeats: context.heartbeats.iter().map(alive).collect(),
            workers: context.workers.clone(),
            mailbox,
            tables: NfTables::open().map_err(Error::system("speak to nftables"))?,
            routes,
            route_socket: RouteSocket::open().map_err(Error::system("ask for routes"))?,
            next_divert_check: Instant::now(),
            generation: None,
            next_count: Instant::now(),
            known: OverLimit::default(),
            passes: false,
            takes: false,
            last_alive: Instant::now(),
            unresponsive: false,
            last_log: None,
            limit_log: Episodes::default(),
            shedding_log: Episodes::default(),
        })
    }

    fn run(mut self, stop: &AtomicBool) {
        let mut next_renewal = Instant::now();
        while !stop.load(Ordering::Acquire) {
            let renewal = Instant::now() >= next_renewal;
            if renewal {
                next_renewal = Instant::now() + INTERVAL;
                let buffered = self.workers.iter().map(|worker| worker.buffered.get()).sum();
                self.shared.admission.set_buffered(buffered);
            }
            let passes = self.shared.passes_by_order() || self.is_suspended();
            let all_alive = renewal && self.ping() && self.has_routes() && self.arrives() && !passes;
            self.update(renewal, all_alive, passes);
            if renewal {
                self.repair_tun_diverts();
                self.verify_rules();
                self.count();
            }
            std::thread::sleep(PAUSE);
            self.wait_until(next_renewal);
        }
    }

    /// Whether every thread has acknowledged the last ping; pings again.
    fn ping(&mut self) -> bool {
        let mut unresponsive = None;
        for (heartbeat, acks) in &mut self.heartbeats {
            let now = heartbeat.acks();
            if now == *acks {
                unresponsive = Some(heartbeat.name());
            }
            *acks = now;
            heartbeat.ping();
        }
        match unresponsive {
            // One or two missed intervals only mean a busy machine: the rules are still in force.
            Some(name) if !self.unresponsive && self.last_alive.elapsed() >= PATIENCE => {
                tracing::error!("{name} does not respond: new connections pass unsplit until it does");
                self.unresponsive = true;
            }
            Some(_) => {}
            None => {
                if std::mem::take(&mut self.unresponsive) {
                    tracing::info!("every thread responds again: new connections are split");
                }
                self.last_alive = Instant::now();
                self.shared.liveness.note_alive();
            }
        }
        unresponsive.is_none()
    }

    /// Whether intercepted packets are routed to this host; other network managers remove routes that they do
    /// not know.
    fn has_routes(&mut self) -> bool {
        match self.routes.mend(&mut self.route_socket) {
            Ok(mended) => {
                if mended {
                    tracing::warn!(
                        "another program removed the routes of intercepted packets, or added rules before them: restored"
                    );
                }
                true
            }
            Err(error) => self.log_failure(&format!("cannot keep the rules in force: {error}")),
        }
    }

    /// Whether what belongs to a split connection would be delivered here, for connections of late. Whatever
    /// leads it elsewhere, new connections pass until it does not.
    fn arrives(&mut self) -> bool {
        for crossing in self.shared.liveness.crossings() {
            match crossing.arrival(self.routes.mark(), &mut self.route_socket) {
                Arrival::Here => {}
                Arrival::Astray(reason) => {
                    return self.log_failure(&format!("new connections pass unsplit: {reason}"));
                }
                Arrival::Gone => self.shared.liveness.forget_crossings(crossing.input),
            }
        }
        true
    }

    /// This process's own change adds one to the state of the rule set.
    fn follow_generation(&mut self, before: std::io::Result<u32>) {
        if let Ok(before) = before
            && self.generation == Some(before)
        {
            self.generation = Some(before.wrapping_add(1));
        }
    }

    /// Where anybody has changed the rule set, sees that our rules are as they were loaded, and loads them
    /// again if not; and keeps the halves of connections apart once this host tracks connections.
    fn verify_rules(&mut self) {
        let generation = self.tables.generation().ok();
        let is_known = generation.is_some() && self.generation == generation;
        let interception = self.interception.clone();
        let mut interception = interception.lock().unwrap_or_else(PoisonError::into_inner);
        if interception.expects_no_tracking()
            && (host::has_tracked_connections() || !is_known && host::has_tracking_rules(&mut self.tables))
        {
            match interception.follow_tracking(self.takes) {
                Ok(()) => {
                    tracing::info!(
                        "this host tracks connections now (conntrack): the two halves of each split one get zones of their own"
                    )
                }
                Err(error) => {
                    self.log_failure(&format!("cannot keep the halves of connections apart: {error}"));
                }
            }
            return;
        }
        if is_known {
            return;
        }
        let number = match interception.first_change(&mut self.tables) {
            Ok(Some(number)) => number,
            Ok(None) => {
                self.generation = generation;
                return;
            }
            // Another change meanwhile, or a busy machine: looked at again at the next interval.
            Err(_) => return,
        };
        self.known = OverLimit::default();
        match interception.restore(self.takes) {
            Ok(()) => {
                tracing::warn!(
                    "another program changed the interception rules, from number {number} on: restored"
                )
            }
            Err(error) => {
                self.log_failure(&format!("cannot restore the rules: {error}"));
            }
        }
    }

    /// Reads what the rules count, now and then.
    fn count(&mut self) {
        if Instant::now() >= self.next_count {
            // A little early rather than at the next interval but one.
            self.next_count = Instant::now() + COUNT_INTERVAL - INTERVAL / 2;
            self.interception.lock().unwrap_or_else(PoisonError::into_inner).collect(&mut self.tables);
        }
    }

    /// Whether nothing has come of connections that were taken. The log says so once.
    fn is_suspended(&self) -> bool {
        if let Some(Suspension { time, connection }) = self.shared.liveness.take_suspension() {
            tracing::error!(
                "new connections pass unsplit for {time:?}: the SYN of {connection} has come to its listener for \
                 seconds, and nothing was accepted; something on this host drops what comes in by lo with our \
                 mark, or what the listener answers: look at the chains of the hooks prerouting, input and output \
                 (bentpipe doctor)"
            );
        }
        self.shared.liveness.is_suspended()
    }

    /// Repairs the diverts. Without them packets take their usual route, so this does not affect liveness.
    fn repair_tun_diverts(&mut self) {
        if Instant::now() < self.next_divert_check {
            return;
        }
        match self.routes.repair_tun_diverts(&mut self.route_socket) {
            Ok(false) => {}
            Ok(true) => {
                tracing::warn!(
                    "another program removed the routes of a TUN device or set the device down: restored"
                )
            }
            Err(error) => {
                self.next_divert_check = Instant::now() + RETRY;
                self.log_failure(&format!("cannot divert packets to the daemon: {error}"));
            }
        }
    }

    /// Updates the sets. At each interval all elements are renewed, since they expire. Where new connections
    /// pass by order, those of `alive` are removed at once, and again at each interval.
    fn update(&mut self, renewal: bool, all_alive: bool, passes: bool) {
        let are_new = !self.mailbox.take().is_empty();
        if renewal || passes {
            self.takes = all_alive;
        }
        let everything = are_new || renewal || passes != self.passes;
        self.passes &= passes;
        let wanted = self.shared.admission.over_limit();
        if !everything && wanted == self.known {
            return;
        }
        let mut changes = Vec::new();
        if all_alive {
            changes.extend([TCP, UDP].map(|key| put(ALIVE, key)));
        } else if passes && everything {
            changes.extend([TCP, UDP].map(|key| Change::Remove { set: ALIVE, key }));
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
        let before = self.tables.generation();
        match self.tables.apply(TABLE, &changes) {
            Ok(()) => {
                self.follow_generation(before);
                if all_alive {
                    self.shared.liveness.note();
                } else if passes && everything {
                    self.shared.liveness.withdraw();
                }
                self.passes = passes;
                self.set_contents(wanted);
            }
            Err(error) => self.repair(&error),
        }
    }

    fn set_contents(&mut self, over_limit: OverLimit) {
        match self.limit_log.note(over_limit.everybody) {
            Some(Some(limit)) => {
                tracing::warn!("{limit} reached: new connections pass unsplit or are refused")
            }
            Some(None) => tracing::info!("below the limits again: new connections are split"),
            None => {}
        }
        match self.shedding_log.note(over_limit.shedding) {
            Some(Some(limit)) => {
                let clients = self.shared.admission.shed_clients();
                tracing::warn!(
                    "{limit} nearly reached: new connections of the clients with most, {clients} of them, pass unsplit or \
                     are refused"
                );
            }
            Some(None) => {
                tracing::info!("well below the limits again: new connections of every client are split")
            }
            None => {}
        }
        self.known = over_limit;
    }

    /// Restores rules that another program has removed; other errors are logged.
    fn repair(&mut self, error: &NfTablesError) {
        let restored = match error {
            NfTablesError::Missing { .. } => {
                self.known = OverLimit::default();
                let mut interception = self.interception.lock().unwrap_or_else(PoisonError::into_inner);
                interception.restore(self.takes).map_err(|error| error.to_string())
            }
            _ => Err(error.to_string()),
        };
        match restored {
            Ok(()) => tracing::warn!("another program removed the interception rules: restored"),
            Err(reason) => {
                self.log_failure(&format!("cannot keep the rules in force: {reason}"));
            }
        }
    }

    /// Logs a failure now and then; returns false.
    fn log_failure(&mut self, trouble: &str) -> bool {
        if self.last_log.is_none_or(|last_log| last_log.elapsed() > LOG_INTERVAL) {
            self.last_log = Some(Instant::now());
            tracing::error!("{trouble}");
        }
        false
    }

    fn wait_until(&self, next_renewal: Instant) {
        let left = next_renewal.saturating_duration_since(Instant::now());
        let changed = self.shared.admission.changed();
        let mut fds = [PollFd::new(changed, PollFlags::IN), PollFd::new(&*self.mailbox, PollFlags::IN)];
        if poll(&mut fds, Timespec::try_from(left).ok().as_ref()).is_ok_and(|count| count > 0) {
            let _ = rustix::io::read(changed, &mut [0; 8]);
        }
    }
}

impl Episodes {
    /// What to log of the state now: its beginning, its end (`Some(None)`), or nothing.
    fn note<T>(&mut self, state: Option<T>) -> Option<Option<T>> {
        match state {
            Some(_) if self.is_logged || self.next.is_some_and(|at| at > Instant::now()) => None,
            Some(state) => {
                *self = Self { is_logged: true, next: Some(Instant::now() + LOG_INTERVAL) };
                Some(Some(state))
            }
            None => std::mem::take(&mut self.is_logged).then_some(None),
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
