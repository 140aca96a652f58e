//! A worker: one thread, one edge-triggered epoll, its own listeners, and flows that stay with it all their life.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::sockopt;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use socket2::SockRef;

use crate::config::RelayKind;
use crate::connect::{self, Ends, Upstream};
use crate::fast_open::{FirstWord, Listening, Opening};
use crate::flow::{Broken, Flow, Patience, Seconds, Side, Verdict};
use crate::gate::{Gate, Limit};
use crate::greeter::{Book, Claim, Connected};
use crate::path::{Legs, Path};
use crate::pool::Pool;
use crate::pulse::Mailbox;
use crate::relay::Endpoint;
use crate::slab::{Key, Slab, Token};
use crate::stats::Counters;

/// Events taken from epoll at once.
const EVENTS: usize = 256;
/// Connections accepted from one listener before flows have their turn.
const ACCEPT_BATCH: usize = 64;
/// How often draining flows are looked at, should the kernel have closed one without a word.
const SWEEP: Duration = Duration::from_secs(5);
/// How long accepting pauses when descriptors have run out and no flow ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often every flow is looked at, for the memory that it takes and for the time that it has been idle.
const ROUND: Duration = Duration::from_secs(1);
/// The parts of a round, so that many flows are not looked at all at once.
const ROUND_PARTS: u32 = 8;
/// How long a listener is kept that gets no more SYNs: the kernel repeats an answer to a SYN for 63 s
/// (`net.ipv4.tcp_synack_retries` = 5: 1, 2, 4, 8, 16 and 32 s), and the client's acknowledgement comes to this listener.
pub(crate) const RETIREMENT: Duration = Duration::from_secs(64);

/// A path's listener, and what its connections are to be given.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    pub(crate) path: Path,
    pub(crate) legs: Arc<Legs>,
    /// When it is closed, if it gets no more connections.
    retires: Option<Instant>,
}

/// What a worker shares with the daemon and the other workers.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) gate: Arc<Gate>,
    /// Connections whose servers were asked before their clients were answered.
    pub(crate) book: Arc<Book>,
    pub(crate) stop: AtomicBool,
}

/// What a flow may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allowance {
    pub(crate) patience: Patience,
    /// Bytes between its sockets each way.
    pub(crate) held: usize,
}

/// What the daemon tells a worker.
#[derive(Debug)]
pub(crate) enum Order {
    /// Serve these listeners; those that are there get no more connections.
    Listen(Vec<Listener>),
    /// Allow each flow this much.
    Allow(Allowance),
}

pub(crate) struct Worker {
    epoll: OwnedFd,
    /// By the number that epoll knows them by; numbers are not used again.
    listeners: BTreeMap<usize, Listener>,
    next_listener: usize,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox<Order>>,
    counters: Arc<Counters>,
    patience: Patience,
    flows: Slab<Flow>,
    /// Connections towards legs with Fast Open whose clients have not said anything yet.
    listening: Listening,
    pool: Pool,
    /// Flows that have more to do without waiting for epoll.
    ready: VecDeque<Key>,
    /// Flows that were draining when they were last swept; those that have ended since are still among them.
    draining: Vec<Key>,
    next_sweep: Instant,
    /// When the next part of the round is due, and the place that it begins at.
    next_inspection: Instant,
    next_place: usize,
    /// Memory that flows were last seen to take.
    buffered: u64,
    /// The beginning of the worker's clock.
    epoch: Instant,
    /// Accepting pauses until then, or until a flow ends.
    resume_accepting: Option<Instant>,
    /// Given up for the upstream half of a connection that has taken the last descriptor. Without it nothing is accepted:
    /// what cannot be connected on is to wait in the kernel, not to be accepted and reset.
    spare: Option<OwnedFd>,
}

impl Worker {
    pub(crate) fn new(
        relay: RelayKind,
        shared: Arc<Shared>,
        mailbox: Arc<Mailbox<Order>>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*mailbox, EventData::new_u64(Token::Wake.encode()), EventFlags::IN)?;
        let now = Instant::now();
        Ok(Self {
            spare: Some(epoll.try_clone()?),
            epoll,
            listeners: BTreeMap::new(),
            next_listener: 0,
            shared,
            mailbox,
            counters,
            patience: Patience::default(),
            flows: Slab::new(),
            listening: Listening::new(),
            pool: Pool::new(relay),
            ready: VecDeque::new(),
            draining: Vec::new(),
            next_sweep: now,
            next_inspection: now,
            next_place: 0,
            buffered: 0,
            epoch: now,
            resume_accepting: None,
        })
    }

    /// Serves until it is told to stop. What is open then is reset at both ends.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        while !self.shared.stop.load(Ordering::Acquire) {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                self.timeout().as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            for event in &events {
                self.dispatch(event);
            }
            self.serve_ready();
            self.keep_house();
            self.counters.vessels_lent.set(self.pool.lent() as u64);
        }
        Ok(())
    }

    fn dispatch(&mut self, event: &Event) {
        let Event { flags, data } = *event;
        match Token::decode(data.u64()) {
            Token::Flow(key, side) => self.wake_flow(key, side, flags),
            Token::Listener(index) => self.accept_from(index),
            Token::Opening(key) => {
                if let Some(opening) = self.listening.take(&self.epoll, key) {
                    self.open(opening);
                }
            }
            // The stop flag is looked at before each wait.
            Token::Wake => self.mailbox.take().into_iter().for_each(|order| self.obey(order)),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Allow(allowance) => self.allow(allowance),
            Order::Listen(listeners) => {
                let at = Instant::now() + RETIREMENT;
                for old in self.listeners.values_mut() {
                    old.retires.get_or_insert(at);
                }
                listeners.into_iter().for_each(|listener| self.listen(listener));
            }
        }
    }

    fn allow(&mut self, Allowance { patience, held }: Allowance) {
        self.patience = patience;
        self.pool.fill_at_most(held);
    }

    fn listen(&mut self, listener: Listener) {
        let number = self.next_listener;
        self.next_listener += 1;
        let flags = if self.resume_accepting.is_some() { EventFlags::empty() } else { EventFlags::IN };
        if let Err(error) = epoll::add(&self.epoll, &listener.socket, listener_data(number), flags) {
            tracing::error!(%error, port = listener.path.port, "cannot serve a listener: its connections are reset");
            return;
        }
        self.listeners.insert(number, listener);
    }

    fn wake_flow(&mut self, key: Key, side: Side, flags: EventFlags) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        match flow.note(side, flags) {
            // A flow on the ready list has its turn there, after the others.
            Ok(()) if flow.queued => {}
            Ok(()) => self.give_turn(key),
            Err(broken) => self.reset(key, &broken),
        }
    }

    fn give_turn(&mut self, key: Key) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let (up, down) = flow.bytes();
        let verdict = flow.turn(&mut self.pool);
        let (up_now, down_now) = flow.bytes();
        self.counters.bytes_up.add(up_now - up);
        self.counters.bytes_down.add(down_now - down);
        match verdict {
            Ok(Verdict::Waiting) => {}
            Ok(Verdict::More) => {
                flow.queued = true;
                self.ready.push_back(key);
            }
            Ok(Verdict::Draining) => self.watch_draining(key),
            Ok(Verdict::Finished) => self.finish(key),
            Err(broken) => self.reset(key, &broken),
        }
    }

    /// One turn for each flow that was on the list when we began.
    fn serve_ready(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(key) = self.ready.pop_front() else { return };
            if let Some(flow) = self.flows.get_mut(key) {
                flow.queued = false;
                self.give_turn(key);
            }
        }
    }

    fn accept_from(&mut self, number: usize) {
        for _ in 0..ACCEPT_BATCH {
            if let Err(error) = self.keep_spare() {
                return self.pause_accepting(error);
            }
            let Some(listener) = self.listeners.get(&number) else { return };
            match accept_with(&listener.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let (path, legs) = (listener.path, listener.legs.clone());
                    self.begin(socket, path, &legs);
                }
                Err(Errno::AGAIN) => return,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.pause_accepting(error);
                }
                // Somebody has ended the listener (ss -K). Kept, it would be reported for ever; without one on its port
                // the rules let connections pass.
                Err(Errno::INVAL) => {
                    tracing::error!(
                        port = listener.path.port,
                        "a listener was destroyed: reload or restart the daemon"
                    );
                    self.listeners.remove(&number);
                    return;
                }
                // The connection was gone before we came to it (accept(2)).
                Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
            }
            if self.resume_accepting.is_some() {
                return;
            }
        }
    }

    fn begin(&mut self, client: OwnedFd, path: Path, legs: &Arc<Legs>) {
        // Without its addresses the connection is already gone.
        let Ok(ends) = ends_of(&client) else { return };
        if ends.server.ip().is_loopback() {
            tracing::debug!(client = %ends.client, "reset a connection to the proxy's own port {}", ends.server);
            return self.counters.own_port.add(1);
        }
        let claim = self.shared.book.claim(ends.client, ends.server);
        if !matches!(claim, Claim::Nothing) {
            return self.join(client, ends, path, claim);
        }
        let ticket = match self.shared.gate.admit(ends.client.ip()) {
            Ok(ticket) => ticket,
            Err(limit) => return self.refuse(&ends, limit),
        };
        self.counters.flows_total.add(1);
        let opening = Opening { client, ends, path, legs: legs.clone(), ticket };
        if !legs.get(path.server).fast_open() {
            self.open(opening);
        } else if let Some(opening) = self.listening.keep(&self.epoll, opening, Instant::now()) {
            self.open(opening);
        }
    }

    fn open(&mut self, opening: Opening) {
        let ends = opening.ends;
        let fast_open = opening.legs.get(opening.path.server).fast_open();
        let first_word = match fast_open.then(|| FirstWord::peek(&opening.client)).transpose() {
            Ok(first_word) => first_word,
            Err(error) => {
                tracing::debug!(client = %ends.client, server = %ends.server, %error, "the client is gone");
                return self.counters.flows_reset.add(1);
            }
        };
        if let Err(error) = self.connect(opening, first_word) {
            self.fail(&ends, &error);
        }
    }

    /// The greeter has asked the server before the client was answered.
    fn join(&mut self, client: OwnedFd, ends: Ends, path: Path, claim: Claim) {
        self.counters.flows_total.add(1);
        self.counters.held_claimed.add(1);
        let outcome = match claim {
            Claim::Connected(server) => self.relay_between(client, ends, path, server),
            // The server had answered, and has reset the connection: so is the client's, which is closed here.
            Claim::Nothing | Claim::Reset => Err(Errno::CONNRESET.into()),
        };
        if let Err(error) = outcome {
            self.fail(&ends, &error);
        }
    }

    fn fail(&mut self, ends: &Ends, error: &io::Error) {
        self.counters.connects_failed.add(1);
        tracing::debug!(client = %ends.client, server = %ends.server, %error, "cannot connect to the server");
        if let Some(error) = out_of_descriptors(error) {
            self.pause_accepting(error);
        }
    }

    fn relay_between(
        &mut self,
        client: OwnedFd,
        ends: Ends,
        path: Path,
        server: Connected,
    ) -> io::Result<()> {
        let Connected { socket, other_port, ticket } = server;
        if ends.dscp != 0 {
            sockopt::set_dscp(&client, &ends.client, ends.dscp)?;
        }
        self.note_port(&ends, other_port);
        let flow = Flow::new(ends, Endpoint::new(client), Endpoint::new(socket), 0, ticket).connected();
        tracing::debug!(%flow, ?path, "new flow, its server has answered");
        self.register(flow)
    }

    fn note_port(&self, ends: &Ends, other_port: bool) {
        if other_port {
            self.counters.other_port.add(1);
            tracing::debug!(client = %ends.client, server = %ends.server, "the client's port is taken here; using another");
        }
    }

    /// The connection was answered before the rules knew that there is no room for it.
    fn refuse(&self, ends: &Ends, limit: Limit) {
        self.counters.flows_refused.add(1);
        tracing::debug!(client = %ends.client, server = %ends.server, %limit, "reset a connection beyond a limit");
    }

    fn connect(&mut self, opening: Opening, first_word: Option<FirstWord>) -> io::Result<()> {
        let Opening { client, ends, path, legs, ticket } = opening;
        if ends.dscp != 0 {
            sockopt::set_dscp(&client, &ends.client, ends.dscp)?;
        }
        let upstream = self.start_upstream(&ends, legs.get(path.server), first_word.as_ref())?;
        if let Some(word) = first_word {
            word.consume(&client, upstream.sent)?;
            self.counters.bytes_up.add(upstream.sent as u64);
        }
        self.note_port(&ends, upstream.other_port);
        let (client, server) = (Endpoint::new(client), Endpoint::new(upstream.socket));
        let flow = Flow::new(ends, client, server, upstream.sent as u64, ticket);
        tracing::debug!(%flow, ?path, "new flow");
        self.register(flow)
    }

    fn start_upstream(
        &mut self,
        ends: &Ends,
        leg: &Leg,
        first_word: Option<&FirstWord>,
    ) -> io::Result<Upstream> {
        match connect::start(ends, leg, first_word) {
            Err(error) if out_of_descriptors(&error).is_some() && self.spare.take().is_some() => {
                connect::start(ends, leg, first_word)
            }
            outcome => outcome,
        }
    }

    /// Makes sure of the spare descriptor; any descriptor will do.
    fn keep_spare(&mut self) -> rustix::io::Result<()> {
        if self.spare.is_none() {
            self.spare = Some(rustix::io::fcntl_dupfd_cloexec(&self.epoll, 0)?);
        }
        Ok(())
    }

    /// Both sockets are registered once, for everything, and stay so until they are closed.
    fn register(&mut self, flow: Flow) -> io::Result<()> {
        let interest =
            EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::PRI | EventFlags::ET;
        let key = self.flows.insert(flow);
        let Some(flow) = self.flows.get_mut(key) else { return Ok(()) };
        for side in [Side::Client, Side::Server] {
            let data = EventData::new_u64(Token::Flow(key, side).encode());
            if let Err(error) = epoll::add(&self.epoll, &flow.endpoint(side).socket, data, interest) {
                self.flows.remove(key);
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn watch_draining(&mut self, key: Key) {
        let Some(flow) = self.flows.get_mut(key).filter(|flow| !flow.watched) else { return };
        flow.watched = true;
        if self.draining.is_empty() {
            self.next_sweep = Instant::now() + SWEEP;
        }
        self.draining.push(key);
    }

    fn finish(&mut self, key: Key) {
        self.counters.flows_finished.add(1);
        if let Some(flow) = self.remove(key) {
            let (up, down) = flow.bytes();
            tracing::debug!(%flow, up, down, "flow ended in order");
        }
    }

    fn reset(&mut self, key: Key, broken: &Broken) {
        if let Some(flow) = self.remove(key) {
            let Counters { connects_failed, flows_reset, .. } = &*self.counters;
            if flow.failed_to_connect(broken) {
                connects_failed.add(1)
            } else {
                flows_reset.add(1)
            }
            let (up, down) = flow.bytes();
            tracing::debug!(%flow, up, down, reason = %broken, "flow reset");
        }
    }

    /// Takes the flow out; its sockets are closed where the caller drops it.
    fn remove(&mut self, key: Key) -> Option<Flow> {
        let mut flow = self.flows.remove(key)?;
        flow.release(&mut self.pool);
        self.account(flow.memory(), 0);
        if self.resume_accepting.is_some() {
            self.resume_accepting = Some(Instant::now());
        }
        Some(flow)
    }

    /// New connections wait in the kernel until a flow ends or a moment has passed.
    fn pause_accepting(&mut self, error: Errno) {
        if self.resume_accepting.is_none() {
            tracing::warn!(%error, "accepting pauses; where descriptors are short, raise the limit (LimitNOFILE, ulimit -n)");
            self.counters.accept_pauses.add(1);
            self.shared.gate.set_short_of_descriptors(true);
            self.listen_for(EventFlags::empty());
        }
        self.resume_accepting = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn listen_for(&self, flags: EventFlags) {
        for (&number, listener) in &self.listeners {
            if let Err(error) = epoll::modify(&self.epoll, &listener.socket, listener_data(number), flags) {
                tracing::error!(%error, "cannot change what a listener waits for");
            }
        }
    }

    /// The things that are due by the clock.
    fn keep_house(&mut self) {
        let now = Instant::now();
        while let Some(opening) = self.listening.take_overdue(&self.epoll, now) {
            self.open(opening);
        }
        if self.resume_accepting.is_some_and(|at| at <= now) {
            self.resume_accepting = None;
            self.shared.gate.set_short_of_descriptors(false);
            self.listen_for(EventFlags::IN);
        }
        if !self.draining.is_empty() && self.next_sweep <= now {
            self.next_sweep = now + SWEEP;
            self.sweep_draining();
        }
        if self.flows.places() > 0 && self.next_inspection <= now {
            self.next_inspection = now + ROUND / ROUND_PARTS;
            self.inspect_some(now);
        }
        while let Some(number) = self.retired(now) {
            self.retire(number);
        }
    }

    /// One part of the round.
    fn inspect_some(&mut self, now: Instant) {
        let seconds = Seconds(
            now.duration_since(self.epoch).as_secs().try_into().unwrap_or(u32::MAX).saturating_add(1),
        );
        let count = self.flows.places().div_ceil(ROUND_PARTS as usize);
        for key in self.flows.keys(self.next_place, count) {
            let Some(flow) = self.flows.get_mut(key) else { continue };
            let found = flow.inspect(seconds, self.patience);
            self.account(found.memory_before, found.memory);
            if found.expired {
                self.counters.flows_expired.add(1);
                self.reset(key, &Broken::idle());
            }
        }
        self.next_place =
            if self.next_place + count < self.flows.places() { self.next_place + count } else { 0 };
    }

    /// A flow's buffers take `after` bytes where they took `before`.
    fn account(&mut self, before: usize, after: usize) {
        self.buffered = self.buffered.saturating_sub(before as u64) + after as u64;
        self.counters.buffered.set(self.buffered);
    }

    fn retired(&self, now: Instant) -> Option<usize> {
        let due = |listener: &Listener| listener.retires.is_some_and(|at| at <= now);
        self.listeners.iter().find(|(_, listener)| due(listener)).map(|(&number, _)| number)
    }

    /// Accepts what is left and closes the listener.
    fn retire(&mut self, number: usize) {
        for _ in 0..ACCEPT_BATCH {
            self.accept_from(number);
        }
        self.listeners.remove(&number);
    }

    fn sweep_draining(&mut self) {
        let mut keys = std::mem::take(&mut self.draining);
        keys.iter().for_each(|&key| self.give_turn(key));
        keys.retain(|&key| self.flows.get_mut(key).is_some());
        self.draining = keys;
    }

    /// How long to wait for events: for ever, unless something is due.
    fn timeout(&self) -> Option<Timespec> {
        if !self.ready.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let sweep = (!self.draining.is_empty()).then_some(self.next_sweep);
        let inspection = (self.flows.places() > 0).then_some(self.next_inspection);
        let retirement = self.listeners.values().filter_map(|listener| listener.retires).min();
        let due = [sweep, inspection, retirement, self.resume_accepting, self.listening.due()]
            .into_iter()
            .flatten()
            .min()?;
        Timespec::try_from(due.saturating_duration_since(Instant::now())).ok()
    }
}

impl Listener {
    pub(crate) fn new(socket: OwnedFd, path: Path, legs: Arc<Legs>) -> Self {
        Self { socket, path, legs, retires: None }
    }
}

/// The client as the socket's peer, the server as the address that the client meant: with `tproxy` it is the socket's own.
fn ends_of(client: &OwnedFd) -> io::Result<Ends> {
    let socket = SockRef::from(client);
    let (peer, local) = (socket.peer_addr()?.as_socket(), socket.local_addr()?.as_socket());
    let (Some(client), Some(server)) = (peer, local) else { return Err(Errno::AFNOSUPPORT.into()) };
    let dscp = sockopt::dscp_of_syn(&*socket, &server)?;
    Ok(Ends { client, server, dscp })
}

/// The error if it says that this process, or the system, has no descriptor left.
fn out_of_descriptors(error: &io::Error) -> Option<Errno> {
    Errno::from_io_error(error).filter(|errno| matches!(*errno, Errno::MFILE | Errno::NFILE))
}

fn listener_data(number: usize) -> EventData {
    EventData::new_u64(Token::Listener(number).encode())
}
