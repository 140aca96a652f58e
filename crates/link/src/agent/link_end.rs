//! One end of a link with its agents.

use std::collections::VecDeque;

use bentpipe_units::Time;
use serde::Serialize;

use super::arq::{Arq, ArqConfig, ArqCounters, ArqFrame};
use super::{Agent, AgentConfig, AgentReport, Outbox, Packet};

/// The agents at one end of a link. The default is none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinkEndConfig {
    /// The agents, from the host's side to the link's.
    pub agents: Vec<AgentConfig>,
    /// Retransmission by the link layer; it needs a peer at the other end.
    pub arq: Option<ArqConfig>,
}

/// A frame on the link between two ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<P> {
    /// A packet as it is.
    Bare(P),
    /// A frame of the ARQ.
    Arq(ArqFrame<P>),
}

/// The counters of one link end.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LinkEndReport {
    /// Its agents, from the host's side to the link's.
    pub agents: Vec<AgentReport>,
    /// Its ARQ.
    pub arq: Option<ArqCounters>,
}

/// One end of a link with its agents.
///
/// The caller hands it packets and frames with the time of their arrival. After every call, call
/// [`poll_to_link`](Self::poll_to_link) and [`poll_to_host`](Self::poll_to_host) until both are empty.
#[derive(Debug)]
pub struct LinkEnd<P: Packet> {
    agents: Vec<Box<dyn Agent<P> + Send>>,
    arq: Option<Arq<P>>,
    to_link: VecDeque<Frame<P>>,
    to_host: VecDeque<P>,
    /// Empty between calls; kept for its memory.
    spare: Vec<Outbox<P>>,
}

impl LinkEndConfig {
    /// True if packets pass unchanged.
    pub fn is_nothing(&self) -> bool {
        self.agents.is_empty() && self.arq.is_none()
    }
}

impl<P: Packet> Frame<P> {
    /// Bytes that it offers to the link.
    pub fn length(&self) -> usize {
        match self {
            Frame::Bare(packet) => packet.ip_length(),
            Frame::Arq(frame) => frame.length(),
        }
    }

    /// The packet in it; none in frames between ARQs alone.
    pub fn packet(&self) -> Option<&P> {
        match self {
            Frame::Bare(packet) => Some(packet),
            Frame::Arq(frame) => frame.packet(),
        }
    }

    /// The number to pass to [`LinkEnd::on_refused`] if the queue in front of the link has no room for the
    /// frame.
    pub fn serial(&self) -> Option<u64> {
        match self {
            Frame::Bare(_) => None,
            Frame::Arq(frame) => frame.serial(),
        }
    }

    /// The same frame with another packet in it; a frame without one stays as it is.
    #[must_use]
    pub fn map_packet(self, change: impl FnOnce(P) -> P) -> Self {
        match self {
            Frame::Bare(packet) => Frame::Bare(change(packet)),
            Frame::Arq(frame) => Frame::Arq(frame.map_packet(change)),
        }
    }
}

impl<P: Packet> LinkEnd<P> {
    /// A link end at rest.
    pub fn new(config: &LinkEndConfig) -> Self {
        Self {
            agents: config.agents.iter().map(AgentConfig::build).collect(),
            arq: config.arq.as_ref().map(Arq::new),
            to_link: VecDeque::new(),
            to_host: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// A packet from the host's side arrives.
    pub fn outbound(&mut self, now: Time, packet: P) {
        self.towards_link(now, 0, packet);
    }

    /// A frame arrives over the link.
    pub fn inbound(&mut self, now: Time, frame: Frame<P>) {
        match (frame, &mut self.arq) {
            (Frame::Bare(packet), _) => self.towards_host(now, self.agents.len(), packet),
            (Frame::Arq(frame), Some(arq)) => {
                arq.on_frame(now, frame);
                self.drain_arq(now);
            }
            // Only the other end has an ARQ.
            (Frame::Arq(frame), None) => {
                if let Some(packet) = frame.into_packet() {
                    self.towards_host(now, self.agents.len(), packet);
                }
            }
        }
    }

    /// The queue in front of the link had no room for the frame with this [`serial`](Frame::serial). A link
    /// layer retransmits frames that the link has lost, and not those that were never sent.
    pub fn on_refused(&mut self, serial: u64) {
        if let Some(arq) = &mut self.arq {
            arq.on_refused(serial);
        }
    }

    /// When [`on_timer`](Self::on_timer) must be called; [`Time::MAX`] for never. The call may find nothing
    /// to do.
    pub fn wake_at(&self) -> Time {
        let agents = self.agents.iter().map(|agent| agent.wake_at());
        agents.chain(self.arq.as_ref().map(Arq::wake_at)).min().unwrap_or(Time::MAX)
    }

    /// The time of [`wake_at`](Self::wake_at) has come.
    pub fn on_timer(&mut self, now: Time) {
        for index in 0..self.agents.len() {
            if self.agents[index].wake_at() <= now {
                self.with_outbox(now, index, |agent, out| agent.on_timer(now, out));
            }
        }
        if let Some(arq) = self.arq.as_mut().filter(|arq| arq.wake_at() <= now) {
            arq.on_timer(now);
            self.drain_arq(now);
        }
    }

    /// The next frame for the link.
    pub fn poll_to_link(&mut self) -> Option<Frame<P>> {
        self.to_link.pop_front()
    }

    /// The next packet for the host's side.
    pub fn poll_to_host(&mut self) -> Option<P> {
        self.to_host.pop_front()
    }

    /// IP bytes of packets that its agents and its ARQ cache or hold back now.
    pub fn held_bytes(&self) -> u64 {
        let agents: u64 = self.agents.iter().map(|agent| agent.held_bytes()).sum();
        agents + self.arq.as_ref().map_or(0, Arq::held_bytes)
    }

    /// Its counters.
    pub fn report(&self) -> LinkEndReport {
        LinkEndReport {
            agents: self.agents.iter().map(|agent| agent.report()).collect(),
            arq: self.arq.as_ref().map(Arq::counters),
        }
    }

    /// Hands a packet to the agent of this index and to those behind it, and then to the link.
    fn towards_link(&mut self, now: Time, index: usize, packet: P) {
        if index < self.agents.len() {
            return self.with_outbox(now, index, |agent, out| agent.outbound(now, packet, out));
        }
        match &mut self.arq {
            Some(arq) => {
                arq.send(now, packet);
                self.drain_arq(now);
            }
            None => self.to_link.push_back(Frame::Bare(packet)),
        }
    }

    /// Hands a packet to the agents before this index, and then to the host.
    fn towards_host(&mut self, now: Time, index: usize, packet: P) {
        match index.checked_sub(1) {
            Some(index) => self.with_outbox(now, index, |agent, out| agent.inbound(now, packet, out)),
            None => self.to_host.push_back(packet),
        }
    }

    /// Lets an agent act, and hands the packets that it sends to its neighbours.
    fn with_outbox(
        &mut self,
        now: Time,
        index: usize,
        act: impl FnOnce(&mut (dyn Agent<P> + Send), &mut Outbox<P>),
    ) {
        let mut out = self.spare.pop().unwrap_or_default();
        act(&mut *self.agents[index], &mut out);
        while let Some(packet) = out.to_link.pop_front() {
            self.towards_link(now, index + 1, packet);
        }
        while let Some(packet) = out.to_host.pop_front() {
            self.towards_host(now, index, packet);
        }
        self.spare.push(out);
    }

    fn drain_arq(&mut self, now: Time) {
        while let Some(frame) = self.arq.as_mut().and_then(Arq::poll_frame) {
            self.to_link.push_back(Frame::Arq(frame));
        }
        while let Some(packet) = self.arq.as_mut().and_then(Arq::poll_packet) {
            self.towards_host(now, self.agents.len(), packet);
        }
    }
}
