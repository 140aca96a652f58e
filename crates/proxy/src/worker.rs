//! A worker: one thread, one edge-triggered epoll, its own listeners, and flows that stay with it all their life.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use socket2::SockRef;

use crate::config::RelayKind;
use crate::connect::{self, Ends, Upstream};
use crate::flow::{Broken, Flow, Side, Verdict};
use crate::path::{Legs, Path};
use crate::pool::Pool;
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

/// A path's listener, and what its connections are to be given.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: OwnedFd,
    pub(crate) path: Path,
}

/// What a worker shares with the daemon.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) legs: Legs,
    pub(crate) stop: AtomicBool,
}

pub(crate) struct Worker {
    epoll: OwnedFd,
    listeners: Vec<Listener>,
    shared: Arc<Shared>,
    counters: Arc<Counters>,
    flows: Slab<Flow>,
    pool: Pool,
    /// Flows that have more to do without waiting for epoll.
    ready: VecDeque<Key>,
    /// Flows that were draining when they were last swept; those that have ended since are still among them.
    draining: Vec<Key>,
    next_sweep: Instant,
    /// Accepting pauses until then, or until a flow ends.
    resume_accepting: Option<Instant>,
    /// Given up for the upstream half of a connection that has taken the last descriptor. Without it nothing is accepted:
    /// what cannot be connected on is to wait in the kernel, not to be accepted and reset.
    spare: Option<OwnedFd>,
}

impl Worker {
    pub(crate) fn new(
        listeners: Vec<Listener>,
        relay: RelayKind,
        shared: Arc<Shared>,
        counters: Arc<Counters>,
        wake: &OwnedFd,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, wake, EventData::new_u64(Token::Wake.encode()), EventFlags::IN)?;
        for (index, listener) in listeners.iter().enumerate() {
            epoll::add(&epoll, &listener.socket, listener_data(index), EventFlags::IN)?;
        }
        Ok(Self {
            spare: Some(epoll.try_clone()?),
            epoll,
            listeners,
            shared,
            counters,
            flows: Slab::new(),
            pool: Pool::new(relay),
            ready: VecDeque::new(),
            draining: Vec::new(),
            next_sweep: Instant::now(),
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
            // The stop flag is looked at before each wait.
            Token::Wake => {}
        }
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

    fn accept_from(&mut self, index: usize) {
        for _ in 0..ACCEPT_BATCH {
            if let Err(error) = self.keep_spare() {
                return self.pause_accepting(error);
            }
            let listener = &self.listeners[index];
            match accept_with(&listener.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let path = listener.path;
                    self.begin(socket, path);
                }
                Err(Errno::AGAIN) => return,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.pause_accepting(error);
                }
                // The connection was gone before we came to it (accept(2)).
                Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
            }
            if self.resume_accepting.is_some() {
                return;
            }
        }
    }

    fn begin(&mut self, client: OwnedFd, path: Path) {
        // Without its addresses the connection is already gone.
        let Ok(ends) = ends_of(&client) else { return };
        if ends.server.ip().is_loopback() {
            tracing::debug!(client = %ends.client, "reset a connection to the proxy's own port {}", ends.server);
            return self.counters.own_port.add(1);
        }
        self.counters.flows_total.add(1);
        if let Err(error) = self.connect(client, ends, path) {
            self.counters.connects_failed.add(1);
            tracing::debug!(client = %ends.client, server = %ends.server, %error, "cannot connect to the server");
            if let Some(error) = out_of_descriptors(&error) {
                self.pause_accepting(error);
            }
        }
    }

    fn connect(&mut self, client: OwnedFd, ends: Ends, path: Path) -> io::Result<()> {
        if ends.dscp != 0 {
            sockopt::set_dscp(&client, &ends.client, ends.dscp)?;
        }
        let upstream = self.start_upstream(&ends, path)?;
        if upstream.other_port {
            self.counters.other_port.add(1);
            tracing::debug!(client = %ends.client, server = %ends.server, "the client's port is taken here; using another");
        }
        let flow = Flow::new(ends, Endpoint::new(client), Endpoint::new(upstream.socket));
        tracing::debug!(%flow, ?path, "new flow");
        self.register(flow)
    }

    fn start_upstream(&mut self, ends: &Ends, path: Path) -> io::Result<Upstream> {
        let leg = self.shared.legs.get(path.server);
        match connect::start(ends, leg) {
            Err(error) if out_of_descriptors(&error).is_some() && self.spare.take().is_some() => {
                connect::start(ends, leg)
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
            self.listen_for(EventFlags::empty());
        }
        self.resume_accepting = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn listen_for(&self, flags: EventFlags) {
        for (index, listener) in self.listeners.iter().enumerate() {
            if let Err(error) = epoll::modify(&self.epoll, &listener.socket, listener_data(index), flags) {
                tracing::error!(%error, "cannot change what a listener waits for");
            }
        }
    }

    /// The things that are due by the clock.
    fn keep_house(&mut self) {
        if self.resume_accepting.is_none() && self.draining.is_empty() {
            return;
        }
        let now = Instant::now();
        if self.resume_accepting.is_some_and(|at| at <= now) {
            self.resume_accepting = None;
            self.listen_for(EventFlags::IN);
        }
        if !self.draining.is_empty() && self.next_sweep <= now {
            self.next_sweep = now + SWEEP;
            self.sweep_draining();
        }
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
        let due = [sweep, self.resume_accepting].into_iter().flatten().min()?;
        Timespec::try_from(due.saturating_duration_since(Instant::now())).ok()
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

fn listener_data(index: usize) -> EventData {
    EventData::new_u64(Token::Listener(index).encode())
}
