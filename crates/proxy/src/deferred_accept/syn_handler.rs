//! The thread of deferred accept: one epoll for SYNs, the servers' answers and the timers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::route::RouteSocket;
use bentpipe_kernel::sock_diag::SockDiag;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::config::AtLimit;
use crate::connect::upstream::{self, Endpoints};
use crate::intercept::{Arrival, Crossing, Routes, tracking};
use crate::stats::Counters;
use crate::telemetry::Shared;
use crate::types::leg_pair::LegPair;
use crate::types::mailbox::Mailbox;
use crate::types::slab::Token;

use super::Settings;
use super::half_open::HalfOpen;
use super::pending_table::{FourTuple, Outcome, PendingTable, SynStatus};
use super::progress::Progress;
use super::recent_syns::{RecentSyns, SynOutcome};
use super::syn::Syn;
use super::taken::{Interfaces, Purpose, SynSockets, TakenSyn};

/// Events taken from epoll at once.
const EVENTS: usize = 256;
/// Messages received before the servers' answers have their turn.
const BATCH: usize = 64;
/// The thread wakes at least so often, so that it recognises that it was stopped.
const WAKE_INTERVAL: Duration = Duration::from_millis(500);
/// After such a pause SYNs that wait may be of connections that have been made without us: the rules let
/// SYNs pass when the daemon shows no sign of life. It is less than the time in which they notice.
const STALL: Duration = Duration::from_secs(1);
/// The least time between two log lines about connections that pass for the same reason.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How often the table is searched for expired entries, and the policy rules are looked at.
const SWEEP: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct SynHandler {
    sockets: SynSockets,
    settings: Settings,
    mailbox: Arc<Mailbox<Settings>>,
    shared: Arc<Shared>,
    pending: Arc<PendingTable>,
    counters: Arc<Counters>,
    recent_syns: RecentSyns,
    progress: Progress,
    half_open: HalfOpen,
    routes: RouteSocket,
    /// A policy rule asks where a packet comes from, which the connection to the server has otherwise.
    routes_by_origin: bool,
    /// When the log last said that a connection passes because of that.
    last_origin_log: Option<Instant>,
    next_sweep: Instant,
}

impl SynHandler {
    pub(crate) fn new(
        sockets: SynSockets,
        settings: Settings,
        mailbox: Arc<Mailbox<Settings>>,
        shared: Arc<Shared>,
        pending: Arc<PendingTable>,
        counters: Arc<Counters>,
        recent_syns: RecentSyns,
    ) -> io::Result<Self> {
        epoll::add(
            pending.epoll(),
            sockets.log(),
            EventData::new_u64(Token::Listener(0).encode()),
            EventFlags::IN,
        )?;
        epoll::add(pending.epoll(), &*mailbox, EventData::new_u64(Token::Wake.encode()), EventFlags::IN)?;
        let mut routes = RouteSocket::open()?;
        let routes_by_origin = Routes::depend_on_origin(&mut routes).unwrap_or(true);
        Ok(Self {
            sockets,
            settings,
            mailbox,
            shared,
            pending,
            counters,
            recent_syns,
            progress: Progress::default(),
            half_open: HalfOpen::default(),
            routes,
            routes_by_origin,
            last_origin_log: None,
            next_sweep: Instant::now(),
        })
    }

    pub(crate) fn recent_syns(&self) -> &RecentSyns {
        &self.recent_syns
    }

    pub(crate) fn sockets(&self) -> &SynSockets {
        &self.sockets
    }

    /// Serves until it is told to stop, and can go on later. If it fails, the rules take no SYN any more
    /// when it returns.
    pub(crate) fn run(mut self, stop: &AtomicBool) -> io::Result<Self> {
        let mut events = Vec::with_capacity(EVENTS);
        let mut last_round = Instant::now();
        while !stop.load(Ordering::Acquire) {
            events.clear();
            let timeout = Timespec::try_from(WAKE_INTERVAL).ok();
            match epoll::wait(
                self.pending.epoll(),
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            if now - std::mem::replace(&mut last_round, now) > STALL {
                self.discard()?;
            }
            for event in &events {
                self.dispatch(event, now)?;
            }
            self.run_timers(now);
        }
        Ok(self)
    }

    fn dispatch(&mut self, event: &Event, now: Instant) -> io::Result<()> {
        let Event { flags, data } = *event;
        match Token::decode(data.u64()) {
            Token::Pending(key) => {
                if let Some(outcome) = self.pending.note(key, flags, now) {
                    self.conclude(&outcome, now);
                }
            }
            Token::Listener(_) => self.receive(now)?,
            // There are no flows here.
            Token::Flow(..) => {}
            Token::Wake => {
                if let Some(settings) = self.mailbox.take().pop_back() {
                    self.settings = settings;
                }
            }
        }
        Ok(())
    }

    /// Receives SYNs, and leaves the rest of them for the next round.
    fn receive(&mut self, now: Instant) -> io::Result<()> {
        let mut all = Vec::new();
        for _ in 0..BATCH {
            let outcome =
                self.sockets.receive(|purpose, taken, interfaces| all.push((purpose, taken, interfaces)));
            match outcome {
                Ok(true) => {}
                Ok(false) => break,
                // Some were lost because there are too many; their clients repeat them.
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => break,
                Err(error) => return Err(error),
            }
        }
        for (purpose, taken, interfaces) in all {
            self.handle(purpose, &taken, interfaces, now);
        }
        Ok(())
    }

    /// Discards the SYNs that wait. A client that still wants to connect repeats its own.
    fn discard(&mut self) -> io::Result<()> {
        let mut count = 0u32;
        loop {
            match self.sockets.receive(|_, _, _| count += 1) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {}
                Err(error) => return Err(error),
            }
        }
        if count > 0 {
            tracing::warn!(count, "the daemon was stopped for a while: SYNs of that time are not answered");
        }
        Ok(())
    }

    fn handle(&mut self, purpose: Purpose, taken: &TakenSyn, interfaces: Interfaces, now: Instant) {
        let Some(syn) = Syn::parse(&taken.packet) else {
            tracing::debug!(length = taken.packet.len(), "not a whole SYN");
            return;
        };
        let pair = FourTuple::of(&syn);
        if purpose == Purpose::Translated {
            tracing::info!(
                "{pair} passes unsplit, like all whose destination this host has translated (DNAT)"
            );
            return;
        }
        let comes_back = self.comes_back(&syn, interfaces);
        match self.recent_syns.outcome_of(&syn) {
            Some(SynOutcome::Passed) => return self.pass(taken, &syn),
            Some(SynOutcome::Answered) => return self.give_unless_suspended(taken, &syn, now),
            // The rules did not know yet that connections pass, or it meets what is left of an attempt.
            None if self.shared.liveness.is_suspended() => return self.pass_instead(taken, &syn),
            None => {}
        }
        if purpose != Purpose::Again && !self.keeps_its_route(&syn, taken, interfaces) {
            return self.pass_when_repeated(taken, pair, now);
        }
        if !comes_back {
            return self.pass_for_good(taken, &syn);
        }
        if purpose == Purpose::Early && !self.has_room(now) {
            return self.turn_away(taken, &syn);
        }
        match purpose {
            Purpose::Faithful => self.hold(&syn, taken, now),
            Purpose::Early if !self.pending.note_mark(pair, taken.mark, now) => {
                self.pass_for_good(taken, &syn)
            }
            Purpose::Early | Purpose::Again | Purpose::Translated => {
                self.give_unless_suspended(taken, &syn, now)
            }
        }
    }

    /// Notes both sides of a connection for the watchdog, which asks at each interval whether packets of both
    /// would come here. Some are asked for at once, so that a rule which leads them away is not found too
    /// late.
    fn comes_back(&mut self, syn: &Syn, Interfaces { input, output }: Interfaces) -> bool {
        let [client, server] = [syn.client.ip(), syn.server.ip()];
        let outward = Crossing { input, from: client, to: server, opens: true };
        let homeward = output.map(|input| Crossing { input, from: server, to: client, opens: false });
        let mut comes = true;
        for crossing in homeward.into_iter().chain([outward]) {
            let routes = &mut self.routes;
            let look = || matches!(crossing.arrival(self.sockets.mark(), routes), Arrival::Astray(_));
            comes &= !self.shared.liveness.note_crossing(crossing, look);
        }
        comes
    }

    /// Lets a SYN pass although a listener has had it: what there is of its connection here would meet the
    /// client's own.
    fn pass_instead(&mut self, taken: &TakenSyn, syn: &Syn) {
        if self.pending.abandon(&FourTuple::of(syn)) {
            self.counters.held_forgotten.add(1);
        }
        let forget = || SockDiag::open()?.forget_handshake(syn.server, syn.client);
        if let Err(error) = forget() {
            tracing::warn!(%error, client = %syn.client, "a listener's handshake cannot be ended; it may reset this connection");
        }
        if let Err(error) = tracking::forget(syn.client, syn.server) {
            tracing::debug!(%error, "cannot have a connection tracked anew");
        }
        self.pass_for_good(taken, syn);
    }

    /// Gives a SYN to its listener, unless nothing comes of those that are given.
    fn give_unless_suspended(&mut self, taken: &TakenSyn, syn: &Syn, now: Instant) {
        self.note_given(FourTuple::of(syn), syn.isn, now);
        if self.shared.liveness.is_suspended() {
            self.pass_instead(taken, syn);
        } else {
            self.give_to_listener(taken);
        }
    }

    /// Notes that a SYN goes to its listener. If nothing came of it before, nor of others, new connections
    /// pass from now on for a time. So do those that wait for an answer of ours: their repeated SYNs go on to
    /// servers, which must not know them any more by then.
    fn note_given(&mut self, pair: FourTuple, isn: u32, now: Instant) {
        let accepted = self.shared.liveness.accepted(pair.is_ipv4());
        let Some(time) = self.progress.note(pair, isn, accepted, now) else { return };
        self.shared.liveness.suspend(time, pair.to_string());
        self.shared.admission.wake();
        self.counters.held_forgotten.add(self.pending.abandon_all(pair.is_ipv4()));
    }

    /// Whether the listeners have room for one more handshake.
    fn has_room(&mut self, now: Instant) -> bool {
        let liveness = &self.shared.liveness;
        let accepted = liveness.accepted(true) + liveness.accepted(false);
        self.half_open.admits(self.settings.half_open, accepted, now)
    }

    /// A SYN at a limit passes, or is dropped. Where connections are to be refused the rules do so when it is
    /// repeated: by then they know of the limit.
    fn turn_away(&mut self, taken: &TakenSyn, syn: &Syn) {
        if self.settings.at_limit == AtLimit::Pass {
            self.pass_for_good(taken, syn);
        }
    }

    /// Whether the connection to the server leaves as the SYN would. It has the client's address and the
    /// SYN's mark, but not the interface by which the SYN has come in.
    fn keeps_its_route(&mut self, syn: &Syn, taken: &TakenSyn, interfaces: Interfaces) -> bool {
        if !self.routes_by_origin {
            return true;
        }
        let route = self.routes.interface_of_marked(syn.server.ip(), taken.mark);
        route.is_ok_and(|output| output == interfaces.output)
    }

    fn pass_when_repeated(&mut self, taken: &TakenSyn, pair: FourTuple, now: Instant) {
        if self.last_origin_log.is_none_or(|last| now - last >= LOG_INTERVAL) {
            self.last_origin_log = Some(now);
            tracing::warn!(
                "{pair} passes unsplit, and others may: a policy rule asks by which interface packets come in \
                 (ip rule), and a connection of this host would leave by another route"
            );
        }
        self.counters.syns_passed.add(1);
        if let Err(error) = self.sockets.pass_when_repeated(taken) {
            tracing::debug!(%error, "cannot let a SYN pass");
        }
    }

    fn hold(&mut self, syn: &Syn, taken: &TakenSyn, now: Instant) {
        match self.pending.look_up(syn, taken, now) {
            SynStatus::Waiting => return,
            SynStatus::Superseding => self.counters.held_forgotten.add(1),
            SynStatus::New => {}
        }
        self.ask_server(syn, taken, now);
    }

    /// Starts to connect in the client's name. If that fails at once, the SYN passes.
    fn ask_server(&mut self, syn: &Syn, taken: &TakenSyn, now: Instant) {
        let permit = match self.shared.admission.admit(syn.client.ip()) {
            Ok(permit) => permit,
            Err(limit) => {
                tracing::debug!(client = %syn.client, server = %syn.server, %limit, "not held, at a limit");
                return self.turn_away(taken, syn);
            }
        };
        let begun = self.path(taken.port).and_then(|path| {
            let ends = Endpoints { client: syn.client, server: syn.server, dscp: syn.dscp };
            let leg = self.settings.legs.get(path.server);
            let upstream = upstream::start(&ends, taken.mark, leg, path.weight, None)?;
            self.pending.enter(syn, taken, upstream, permit, now)
        });
        match begun {
            Ok(()) => self.counters.held_total.add(1),
            Err(error) => {
                tracing::debug!(client = %syn.client, server = %syn.server, %error, "cannot ask the server");
                self.pass_for_good(taken, syn);
            }
        }
    }

    /// The path whose listener has this port. A reload may have given it up in the meantime.
    fn path(&self, port: u16) -> io::Result<LegPair> {
        let path = self.settings.pairs.iter().find(|pair| pair.port == port);
        path.copied().ok_or_else(|| Errno::NETUNREACH.into())
    }

    fn conclude(&mut self, outcome: &Outcome, now: Instant) {
        let Outcome { pair, isn, taken, result } = outcome;
        match result {
            Ok(()) => {
                self.recent_syns.note(*pair, *isn, SynOutcome::Answered);
                self.note_given(*pair, *isn, now);
                self.give_to_listener(taken);
            }
            // There was no answer at all; the client gets none either. Its next SYN starts over.
            Err(error) if error.raw_os_error() == Some(Errno::TIMEDOUT.raw_os_error()) => {
                tracing::debug!("{pair}: the server is silent");
                self.counters.held_forgotten.add(1);
            }
            Err(error) => {
                tracing::debug!(%error, "{pair}: the server is unreachable; the SYN passes");
                self.counters.held_refused.add(1);
                self.recent_syns.note(*pair, *isn, SynOutcome::Passed);
                if let Some(syn) = Syn::parse(&taken.packet) {
                    self.pass(taken, &syn);
                }
            }
        }
    }

    fn pass_for_good(&mut self, taken: &TakenSyn, syn: &Syn) {
        self.recent_syns.note(FourTuple::of(syn), syn.isn, SynOutcome::Passed);
        self.pass(taken, syn);
    }

    fn pass(&self, taken: &TakenSyn, syn: &Syn) {
        self.counters.syns_passed.add(1);
        if let Err(error) = self.sockets.pass(taken, syn.client.ip(), syn.server.ip()) {
            tracing::debug!(%error, "cannot pass a SYN on");
        }
    }

    fn give_to_listener(&self, taken: &TakenSyn) {
        if let Err(error) = self.sockets.give_to_listener(taken) {
            tracing::debug!(%error, "cannot give a SYN to its listener");
        }
    }

    fn run_timers(&mut self, now: Instant) {
        if self.next_sweep <= now {
            self.next_sweep = now + SWEEP;
            let swept = self.pending.sweep(now);
            self.counters.held_forgotten.add(swept.abandoned + swept.unclaimed);
            self.routes_by_origin = Routes::depend_on_origin(&mut self.routes).unwrap_or(true);
        }
    }
}
