//! A worker: one thread, one edge-triggered epoll, its own listeners, and flows that stay with it all their
//! life.

mod accept;
mod access_log;
mod connect;
mod early_answers;
mod flow_query;
mod inherit;
mod outage_probes;
mod supervisor;
mod timers;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use self::early_answers::EarlyAnswers;
use self::flow_query::Surveys;
use self::outage_probes::OutageProbes;
use self::timers::SWEEP;
use crate::config::RelayKind;
use crate::connect::early_data::AwaitingData;
use crate::deferred_accept::PendingTable;
use crate::flow::{Flow, FlowError, Patience, Side, Verdict};
use crate::relay::pool::BufferPool;
use crate::stats::Counters;
use crate::telemetry::{Request, Shared};
use crate::types::mailbox::Mailbox;
use crate::types::slab::{Key, Slab, Token};

pub(crate) use self::accept::{Listener, RETIREMENT};
pub(crate) use self::inherit::WorkerState;

/// Events taken from epoll at once.
const EVENTS: usize = 256;

/// The limits of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlowLimits {
    pub(crate) patience: Patience,
    /// Bytes between its sockets each way.
    pub(crate) held: usize,
}

/// A command of the daemon to a worker.
#[derive(Debug)]
pub(crate) enum Command {
    /// Serve these listeners; those that are there get no more connections.
    Listen(Vec<Listener>),
    /// Allow each flow this much.
    SetFlowLimits(FlowLimits),
    /// Serve these as well.
    Import(WorkerState),
    /// Stop reading and writing, export everything, and end.
    Export(SyncSender<WorkerState>),
    /// Report the flows.
    QueryFlows(Request),
    /// Panic, as a fault would let it. Release builds have no such command.
    #[cfg(debug_assertions)]
    Panic,
}

pub(crate) struct Worker {
    epoll: OwnedFd,
    /// By their numbers in epoll's data, which are not used again.
    listeners: BTreeMap<usize, Listener>,
    next_listener: usize,
    /// When the first of them is closed, so that they need not be searched in each round.
    next_retirement: Option<Instant>,
    shared: Arc<Shared>,
    /// Connections that deferred accept has started.
    pending: Arc<PendingTable>,
    mailbox: Arc<Mailbox<Command>>,
    /// Commands that it has taken from there and not executed yet.
    commands: VecDeque<Command>,
    counters: Arc<Counters>,
    patience: Patience,
    flows: Slab<Flow>,
    /// Connections towards legs with Fast Open whose clients have not sent data yet.
    awaiting_data: AwaitingData,
    early_answers: EarlyAnswers,
    pool: BufferPool,
    /// Flows that have more to do without waiting for epoll.
    ready: VecDeque<Key>,
    /// Flows that were draining when they were last swept; those that have ended since are still among them.
    draining: Vec<Key>,
    next_sweep: Instant,
    /// When the next part of the round is due, and the place that it begins at.
    next_inspection: Instant,
    next_place: usize,
    /// Bytes in the buffers of flows at their last inspection.
    buffered: u64,
    /// The beginning of the worker's clock.
    epoch: Instant,
    surveys: Surveys,
    /// Ends of flows that wait for their leg to come back.
    probes: OutageProbes,
    /// Accepting pauses until then, or until a flow ends.
    resume_accepting: Option<Instant>,
    last_pause_log: Option<Instant>,
    /// Closed to make room for the upstream socket of a connection that has taken the last descriptor.
    /// Without it the worker accepts nothing: such connections wait in the kernel instead of being accepted
    /// and reset.
    spare: Option<OwnedFd>,
    /// Flows from another process whose sockets do not use this process's congestion control yet.
    to_rejoin: VecDeque<Key>,
    /// Until then accepted sockets may use the predecessor's congestion control.
    rejoin_until: Option<Instant>,
    /// The receiver of the worker's state, once it is asked to export it.
    export_to: Option<SyncSender<WorkerState>>,
}

impl Worker {
    pub(crate) fn new(
        relay: RelayKind,
        shared: Arc<Shared>,
        pending: Arc<PendingTable>,
        mailbox: Arc<Mailbox<Command>>,
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
            next_retirement: None,
            shared,
            pending,
            mailbox,
            commands: VecDeque::new(),
            counters,
            patience: Patience::default(),
            flows: Slab::new(),
            awaiting_data: AwaitingData::new(),
            early_answers: EarlyAnswers::default(),
            pool: BufferPool::new(relay),
            ready: VecDeque::new(),
            draining: Vec::new(),
            next_sweep: now,
            next_inspection: now,
            next_place: 0,
            buffered: 0,
            epoch: now,
            surveys: Surveys::default(),
            probes: OutageProbes::default(),
            resume_accepting: None,
            last_pause_log: None,
            to_rejoin: VecDeque::new(),
            rejoin_until: None,
            export_to: None,
        })
    }

    /// Serves until it is told to stop, or has exported everything. What is open then is reset at both ends.
    fn run(&mut self) -> io::Result<()> {
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
            if let Some(successor) = self.export_to.take()
                && self.export(&successor)
            {
                return Ok(());
            }
            self.serve_ready();
            self.run_timers();
            self.rejoin_some();
            self.survey_some();
            self.counters.relay_buffers_in_use.set(self.pool.in_use() as u64);
        }
        self.log_the_rest();
        Ok(())
    }

    fn dispatch(&mut self, event: &Event) {
        let Event { flags, data } = *event;
        match Token::decode(data.u64()) {
            Token::Flow(key, side) => self.wake_flow(key, side, flags),
            Token::Listener(index) => self.accept_from(index),
            Token::Pending(key) => {
                if let Some(accepted) = self.awaiting_data.take(&self.epoll, key) {
                    self.open(accepted);
                }
            }
            // The stop flag is checked before each wait.
            Token::Wake => {
                self.commands.extend(self.mailbox.take());
                while let Some(command) = self.commands.pop_front() {
                    self.execute(command);
                }
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::SetFlowLimits(flow_limits) => self.set_flow_limits(flow_limits),
            Command::Import(state) => self.import(state),
            Command::Export(successor) => self.export_to = Some(successor),
            Command::QueryFlows(request) => self.surveys.begin(request),
            #[cfg(debug_assertions)]
            Command::Panic => panic!("a worker was told to panic"),
            Command::Listen(listeners) => {
                let at = Instant::now() + RETIREMENT;
                for old in self.listeners.values_mut() {
                    old.retires.get_or_insert(at);
                }
                listeners.into_iter().for_each(|listener| self.listen(listener));
                self.next_retirement = self.first_retirement();
            }
        }
    }

    fn set_flow_limits(&mut self, FlowLimits { patience, held }: FlowLimits) {
        self.patience = patience;
        self.pool.most = held;
    }

    fn wake_flow(&mut self, key: Key, side: Side, flags: EventFlags) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        match flow.note(side, flags) {
            // A flow on the ready list has its turn there, after the others.
            Ok(()) if flow.queued => {}
            Ok(()) => self.poll_flow(key),
            Err(broken) => self.reset(key, &broken),
        }
    }

    fn poll_flow(&mut self, key: Key) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        let (up, down) = flow.bytes();
        let verdict = flow.poll(&mut self.pool);
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
                self.poll_flow(key);
            }
        }
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
            self.log_flow(&flow, flow.closed());
        }
    }

    fn reset(&mut self, key: Key, broken: &FlowError) {
        if let Some(flow) = self.remove(key) {
            let Counters { connects_failed, flows_reset, .. } = &*self.counters;
            if flow.failed_to_connect(broken) {
                connects_failed.add(1)
            } else {
                flows_reset.add(1)
            }
            let (up, down) = flow.bytes();
            tracing::debug!(%flow, up, down, reason = %broken, "flow reset");
            self.log_flow(&flow, broken.ending());
        }
    }

    /// Takes the flow out; its sockets are closed where the caller drops it.
    fn remove(&mut self, key: Key) -> Option<Flow> {
        let mut flow = self.flows.remove(key)?;
        flow.leave(Instant::now());
        flow.release(&mut self.pool);
        self.account(flow.memory(), 0);
        if self.resume_accepting.is_some() {
            self.resume_accepting = Some(Instant::now());
        }
        Some(flow)
    }
}
