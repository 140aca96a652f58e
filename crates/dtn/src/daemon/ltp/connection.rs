//! The task of one peer: it moves bundles between the node and the engine, and datagrams between the engine and
//! the socket.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use bentpipe_legs::Sender;
use bentpipe_link::explicit::Report;
use bentpipe_ltp::{
    Authentication, Engine, Event, Failure, NotAuthentic, Reason, SessionId, Statistics, Unreadable,
};
use bentpipe_units::Time;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};

use crate::Eid;
use crate::convergence::{BundleAgent, Outcome, Refusal, blocking};
use crate::node::peers::LtpStatus;
use crate::node::session::PeerSession;
use crate::node::{Node, NodeError};

use super::super::datagrams::now;
use super::settings::PeerLink;

/// Datagrams that are taken together.
const BATCH: usize = 256;
/// The longest sleep: contacts begin and end, rates change.
const TICK: Duration = Duration::from_millis(100);
/// Segments sent before the input is looked at again.
const BURST: usize = 64;

/// What a connection sends and receives with.
pub(super) struct Ends {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) datagrams: mpsc::Receiver<Vec<u8>>,
    pub(super) sender: Option<Sender>,
    pub(super) authentication: Option<Authentication>,
}

/// The exchange with a peer.
pub(super) struct Connection {
    node: Node,
    id: Eid,
    link: PeerLink,
    ends: Ends,
    agent: Arc<PeerSession>,
    engine: Engine,
    outcomes: Outcomes,
    /// Whether the peer was silent a moment ago.
    was_silent: bool,
    /// A segment of the peer was not authentic.
    has_forgeries: bool,
    /// When a report last came, for the controller of the leg.
    reported: (Time, u64),
    out: Vec<u8>,
}

/// What became of the blocks that were handed to the node.
struct Outcomes {
    tell: mpsc::UnboundedSender<Answer>,
    told: mpsc::UnboundedReceiver<Answer>,
}

type Answer = (SessionId, Result<(), Refusal>);

impl Connection {
    /// # Errors
    /// The node does not admit the peer.
    pub(super) fn open(node: &Node, id: &Eid, link: PeerLink, mut ends: Ends) -> Result<Self, NodeError> {
        let id = id.clone();
        let agent = Arc::new(PeerSession::by_datagrams(node.clone(), link.address));
        agent.admit(&id, None).map_err(|why| NodeError::Service(format!("LTP with {id}: {why}")))?;
        // The standard library's keys of hash tables are random (getrandom(2)).
        let random = RandomState::new().hash_one(0);
        let engine = Engine::new(link.config, random, now()).authenticated_by(ends.authentication.take());
        let (tell, told) = mpsc::unbounded_channel();
        Ok(Self {
            node: node.clone(),
            id,
            link,
            ends,
            agent,
            engine,
            outcomes: Outcomes { tell, told },
            was_silent: false,
            has_forgeries: false,
            reported: (Time::ZERO, 0),
            out: Vec::new(),
        })
    }

    /// Until the node stops.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let wait = blocking(|| self.step(&mut batch));
            let agent = self.agent.clone();
            tokio::select! {
                got = self.ends.datagrams.recv_many(&mut batch, BATCH) => if got == 0 { break },
                Some(answer) = self.outcomes.told.recv() => self.answered(answer),
                () = agent.ready(&self.id), if self.takes_more() => {}
                () = tokio::time::sleep(wait) => {}
                _ = stop.wait_for(|stopped| *stopped) => break,
            }
        }
        for handle in self.engine.give_up() {
            self.agent.returned(&self.id, handle);
        }
    }

    /// Says it once: whoever has the peer's address can send as many as he likes.
    fn not_authentic(&mut self, why: &NotAuthentic) {
        if !std::mem::replace(&mut self.has_forgeries, true) {
            tracing::warn!(
                "{}: a segment from its address is dropped: {why}; is the key the same at both ends? Others are \
                 counted (bentpipe dtn status)",
                self.id
            );
        }
    }

    fn takes_more(&self) -> bool {
        self.engine.room(now()).is_some_and(|room| room >= self.link.block)
    }

    /// Does what can be done now; returns for how long nothing else can.
    fn step(&mut self, batch: &mut Vec<Vec<u8>>) -> Duration {
        let start = now();
        self.obey(start);
        for datagram in batch.drain(..) {
            match self.engine.receive(start, &datagram) {
                Ok(()) => {}
                Err(Unreadable::NotAuthentic(why)) => self.not_authentic(&why),
                Err(error) => tracing::debug!("{} sent a datagram that is not taken: {error}", self.id),
            }
        }
        while let Ok(answer) = self.outcomes.told.try_recv() {
            self.answered(answer);
        }
        self.engine.advance(start);
        self.take_events();
        let mut sent = 0;
        while sent < BURST {
            self.feed();
            if !self.engine.transmit(start, &mut self.out) {
                break;
            }
            self.put();
            sent += 1;
        }
        // Green blocks are sent as soon as their last segment is.
        self.take_events();
        self.publish(start);
        if sent == BURST {
            return Duration::ZERO;
        }
        self.engine.due().map_or(TICK, |due| due.since(now()).min(TICK))
    }

    /// Does what the contact plan and the leg's controller say.
    fn obey(&mut self, now: Time) {
        let state = self.node.link_to(&self.id);
        self.engine.set_contact(now, state.sends, state.hears);
        if let Some(delay) = state.delay.filter(|_| self.link.follows_plan) {
            self.engine.set_one_way(delay);
        }
        let told = self.ends.sender.as_ref().and_then(Sender::rate);
        let configured = self.link.rate.or(state.rate).map(|rate| rate.bps() as f64 / 8.0);
        let rate = told.into_iter().chain(configured).reduce(f64::min);
        self.engine.set_rate(rate.unwrap_or_default());
    }

    /// Gives the engine bundles as long as it takes them.
    fn feed(&mut self) {
        while self.takes_more() {
            let Some(mut outgoing) = self.agent.next(&self.id, self.link.block) else { return };
            let handle = outgoing.handle();
            match outgoing.read_all() {
                Ok(block) => self.engine.send(handle, self.link.color, block.into()),
                // The node has postponed it.
                Err(error) => tracing::error!("a bundle for {} could not be read: {error}", self.id),
            }
        }
    }

    fn put(&self) {
        match self.ends.socket.try_send_to(&self.out, self.link.address) {
            Ok(_) => {}
            // Lost, as on the link.
            Err(error) => tracing::debug!("a datagram to {} was not sent: {error}", self.link.address),
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.engine.event() {
            match event {
                Event::Sent(handle) => self.agent.sent(&self.id, handle),
                Event::Failed(handle, Failure::Cancelled(why)) => {
                    self.agent.refused(&self.id, handle, refusal(why));
                }
                Event::Failed(handle, why) => {
                    self.failed(&why.to_string());
                    self.agent.returned(&self.id, handle);
                }
                Event::Received(session, block) => self.received(session, &block),
            }
        }
    }

    fn failed(&self, why: &str) {
        let text = format!("LTP at {}: {why}", self.link.address);
        if self.node.peer(&self.id).is_some_and(|peer| peer.record_error(&text)) {
            tracing::warn!("{}: {text}; retrying until it succeeds", self.id);
        }
    }

    /// Says once that the peer has become silent, or answers again.
    fn look_for_silence(&mut self, is_silent: bool) {
        match std::mem::replace(&mut self.was_silent, is_silent) {
            false if is_silent => self.failed("the peer does not answer"),
            true if !is_silent => {
                if let Some(peer) = self.node.peer(&self.id) {
                    peer.forget_error();
                }
                tracing::info!("{} answers again by LTP", self.id);
            }
            _ => {}
        }
    }

    /// Hands a block to the node, which says later whether it is responsible for it.
    fn received(&self, session: SessionId, block: &[u8]) {
        let tell = self.outcomes.tell.clone();
        let tell = move |outcome| {
            // The receiver lives as long as the connection.
            let _ = tell.send((session, outcome));
        };
        let incoming = self.agent.receive(&self.id, Some(block.len() as u64));
        let written = incoming.and_then(|mut incoming| incoming.write(block).map(|()| incoming));
        match written {
            Ok(incoming) => incoming.finish(Outcome::new(tell)),
            Err(why) => tell(Err(why)),
        }
    }

    fn answered(&mut self, (session, outcome): Answer) {
        let outcome = match outcome {
            // It is here already, which is what the sender wants to hear.
            Ok(()) | Err(Refusal::Completed) => Ok(()),
            Err(Refusal::NotAcceptable) => Err(Reason::Client),
            Err(_) => Err(Reason::System),
        };
        self.engine.accepted(session, outcome);
    }

    /// Tells the leg's controller, and the status.
    fn publish(&mut self, now: Time) {
        let statistics = self.engine.statistics();
        let answered = statistics.delivered + statistics.lost;
        if answered != self.reported.1 {
            self.reported = (now, answered);
        }
        let is_backlogged = self.engine.has_to_send();
        let is_active = is_backlogged || self.engine.in_flight();
        if let Some(sender) = &self.ends.sender {
            sender.report(is_active.then(|| self.report(&statistics, is_backlogged)));
        }
        let is_silent = self.engine.is_silent(now);
        self.look_for_silence(is_silent);
        if let Some(peer) = self.node.peer(&self.id) {
            peer.record_ltp(LtpStatus::of(&statistics, is_active, is_silent));
        }
    }

    fn report(&self, statistics: &Statistics, backlogged: bool) -> Report {
        Report {
            id: 0,
            weight: 1,
            at: self.reported.0,
            sent: statistics.sent,
            delivered: statistics.delivered,
            lost: statistics.lost,
            in_flight: self.engine.in_flight(),
            rtt: statistics.round_trip,
            min_rtt: statistics.shortest_round_trip,
            forward: None,
            window_limited: self.engine.in_flight() && !backlogged && !self.takes_more(),
            backlogged,
        }
    }
}

/// What the peer's reason to cancel says of the bundle.
fn refusal(why: Reason) -> Refusal {
    match why {
        Reason::Client | Reason::Unreachable => Refusal::NotAcceptable,
        Reason::System => Refusal::NoResources,
        _ => Refusal::Retransmit,
    }
}
