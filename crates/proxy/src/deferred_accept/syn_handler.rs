//! The thread of deferred accept: one epoll for the device, the servers' answers and the timers.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::route::RouteSocket;
use bentpipe_kernel::tun::Tun;
use bentpipe_link::ip::restore_hop;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::admission::AdmissionControl;
use crate::config::AtLimit;
use crate::connect::upstream::{self, Endpoints};
use crate::intercept::tun::MTU;
use crate::stats::Counters;
use crate::types::leg_pair::LegId;
use crate::types::mailbox::Mailbox;
use crate::types::slab::Token;

use super::Settings;
use super::pending_table::{FourTuple, Outcome, PendingTable, SynStatus};
use super::recent_syns::{RecentSyns, SynOutcome};
use super::syn::{Syn, is_between_hosts};

/// The places of the devices.
const HELD: usize = 0;
const PASSED: usize = 1;
/// Events taken from epoll at once.
const EVENTS: usize = 256;
/// SYNs read before the servers' answers have their turn.
const BATCH: usize = 64;
/// The thread wakes at least so often, so that it recognises that it was stopped.
const WAKE_INTERVAL: Duration = Duration::from_millis(500);
/// After such a pause SYNs that wait in the device may be of connections that have been made without us: the
/// rules let SYNs pass when the daemon shows no sign of life. It is less than the time in which they notice.
const STALL: Duration = Duration::from_secs(1);
/// How often the table is searched for expired entries.
const SWEEP: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct SynHandler {
    /// SYNs that are routed into the first are read here, and those that are written there go to the listeners.
    /// SYNs that are written to the second are forwarded, unsplit.
    devices: Arc<[Tun; 2]>,
    settings: Settings,
    mailbox: Arc<Mailbox<Settings>>,
    admission: Arc<AdmissionControl>,
    pending: Arc<PendingTable>,
    counters: Arc<Counters>,
    recent_syns: RecentSyns,
    routes: RouteSocket,
    /// Any socket: names of interfaces are asked for through one.
    probe: OwnedFd,
    buffer: Box<[u8]>,
    next_sweep: Instant,
}

impl SynHandler {
    pub(crate) fn new(
        devices: Arc<[Tun; 2]>,
        settings: Settings,
        mailbox: Arc<Mailbox<Settings>>,
        admission: Arc<AdmissionControl>,
        pending: Arc<PendingTable>,
        counters: Arc<Counters>,
        recent_syns: RecentSyns,
    ) -> io::Result<Self> {
        epoll::add(
            pending.epoll(),
            &devices[HELD],
            EventData::new_u64(Token::Listener(0).encode()),
            EventFlags::IN,
        )?;
        epoll::add(pending.epoll(), &*mailbox, EventData::new_u64(Token::Wake.encode()), EventFlags::IN)?;
        Ok(Self {
            devices,
            settings,
            mailbox,
            admission,
            pending,
            counters,
            recent_syns,
            routes: RouteSocket::open()?,
            probe: socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?,
            buffer: vec![0; MTU].into(),
            next_sweep: Instant::now(),
        })
    }

    pub(crate) fn recent_syns(&self) -> &RecentSyns {
        &self.recent_syns
    }

    /// Serves until it is told to stop, and can go on later. If it fails, the devices are gone when it
    /// returns.
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
                    self.conclude(&outcome);
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

    /// Takes SYNs out of the device, and leaves the rest of them for the next round.
    fn receive(&mut self, now: Instant) -> io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..BATCH {
            match self.devices[HELD].read(&mut buffer) {
                Ok(length) => {
                    let packet = &mut buffer[..length];
                    restore_hop(packet);
                    self.connect(packet, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Without its device there is no route into it either.
                Err(error) => return Err(error),
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Discards the SYNs in the device. A client that still wants to connect repeats its own.
    fn discard(&mut self) -> io::Result<()> {
        let mut count = 0u32;
        loop {
            match self.devices[HELD].read(&mut self.buffer) {
                Ok(_) => count += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if count > 0 {
            tracing::warn!(count, "the daemon was stopped for a while: SYNs of that time are not answered");
        }
        Ok(())
    }

    fn connect(&mut self, packet: &[u8], now: Instant) {
        let Some(syn) = Syn::parse(packet) else {
            tracing::debug!(length = packet.len(), "not a SYN");
            return if is_between_hosts(packet) {
                self.pass(packet)
            };
        };
        match self.recent_syns.outcome_of(&syn) {
            Some(SynOutcome::Passed) => return self.pass(packet),
            Some(SynOutcome::Answered) => return self.give_to_listener(packet),
            None => {}
        }
        match self.pending.look_up(&syn, packet, now) {
            SynStatus::Waiting => return,
            SynStatus::Superseding => self.counters.held_forgotten.add(1),
            SynStatus::New => {}
        }
        self.ask_server(&syn, packet, now);
    }

    /// Starts to connect in the client's name. If that fails at once, the SYN passes.
    fn ask_server(&mut self, syn: &Syn, packet: &[u8], now: Instant) {
        let permit = match self.admission.admit(syn.client.ip()) {
            Ok(permit) => permit,
            Err(limit) => {
                tracing::debug!(client = %syn.client, server = %syn.server, %limit, "not held, at a limit");
                // Where it is to be refused the rules do so when it is repeated: by then they know of the
                // limit.
                return if self.settings.at_limit == AtLimit::Pass {
                    self.pass_for_good(syn, packet)
                };
            }
        };
        let begun = self.leg_towards(syn).and_then(|leg| {
            let ends = Endpoints { client: syn.client, server: syn.server, dscp: syn.dscp };
            let upstream = upstream::start(&ends, self.settings.legs.get(leg), syn.weight, None)?;
            self.pending.enter(syn, packet, upstream, permit, now)
        });
        match begun {
            Ok(()) => self.counters.held_total.add(1),
            Err(error) => {
                tracing::debug!(client = %syn.client, server = %syn.server, %error, "cannot ask the server");
                self.pass_for_good(syn, packet);
            }
        }
    }

    fn conclude(&mut self, outcome: &Outcome) {
        let Outcome { pair, isn, packet, result } = outcome;
        match result {
            Ok(()) => {
                self.recent_syns.note(*pair, *isn, SynOutcome::Answered);
                self.give_to_listener(packet);
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
                self.pass(packet);
            }
        }
    }

    /// The leg by which the server is reached, as packets of this client are routed.
    fn leg_towards(&mut self, syn: &Syn) -> io::Result<LegId> {
        let [client, server] = [syn.client, syn.server].map(|end: SocketAddr| end.ip());
        let index = self.routes.interface_towards(Some(client), server)?.ok_or(Errno::NETUNREACH)?;
        let name = index_to_name(&self.probe, index)?;
        let satellite = self.settings.interfaces.iter().position(|interface| interface.as_str() == name);
        Ok(satellite.map_or(LegId::Terrestrial, LegId::Satellite))
    }

    fn pass_for_good(&mut self, syn: &Syn, packet: &[u8]) {
        self.recent_syns.note(FourTuple::of(syn), syn.isn, SynOutcome::Passed);
        self.pass(packet);
    }

    fn pass(&self, packet: &[u8]) {
        self.counters.syns_passed.add(1);
        if let Err(error) = self.devices[PASSED].write(packet) {
            tracing::debug!(%error, "cannot pass a SYN on");
        }
    }

    fn give_to_listener(&self, packet: &[u8]) {
        if let Err(error) = self.devices[HELD].write(packet) {
            tracing::debug!(%error, "cannot give a SYN to its listener");
        }
    }

    fn run_timers(&mut self, now: Instant) {
        if self.next_sweep <= now {
            self.next_sweep = now + SWEEP;
            let swept = self.pending.sweep(now);
            self.counters.held_forgotten.add(swept.abandoned + swept.unclaimed);
        }
    }
}
