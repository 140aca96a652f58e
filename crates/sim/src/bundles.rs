//! A flow in bundles. Its ends and its splitters are nodes that keep a bundle until the next node has
//! acknowledged it.
//!
//! The model covers what is visible on the links: bundles (RFC 9171) over sessions of TCPCLv4 (RFC 9174) with
//! the lengths of their headers, the session negotiation, pipelined transfers, and an acknowledgement for
//! each segment. A node has a bundle when its last byte has arrived. When a connection dies, its sender
//! reconnects after a while and resends each unacknowledged bundle from its start.
//!
//! Payload is counted, not stored, and bundles stay in order, so a few counters describe the bundles of a
//! node.

use std::collections::VecDeque;

use bentpipe_tcp::{Endpoint, State, Statistics};
use bentpipe_units::Time;

use crate::events::Alarm;
use crate::scenario::{BundleSpec, FlowSpec};

/// Bytes of a bundle that are not data: the primary block with its CRC, two extension blocks as previous node
/// and hop count, the head of the payload block, the break (RFC 9171 §4.3, §4.4), with node ids of some 20
/// bytes.
pub(crate) const BUNDLE_OVERHEAD: u64 = 100;

/// The nodes of a flow and the sessions between them.
#[derive(Debug)]
pub(crate) struct BundleNodes {
    spec: BundleSpec,
    /// Data of the whole flow; `None` is without end.
    bytes: Option<u64>,
    /// From the source on: one for each leg.
    pairs: Vec<NodePair>,
}

/// A session from a node to the next, and how far the bundles have come forward.
#[derive(Debug)]
struct NodePair {
    session: Session,
    forward: Stream,
    reverse: Stream,
    /// The bundle that is sent next, or in part, and how much of it has been.
    next: u64,
    sent: u64,
    /// Bundles that the far node has acknowledged: the near one keeps them no more.
    acknowledged: u64,
    /// The bundle that arrives next in this session, and how much of it has.
    arriving: u64,
    arrived: u64,
    /// Bundles that the far node has whole, or has had.
    complete: u64,
    /// The size of the far node's store, bytes.
    quota: u64,
    /// The time of the next action if nothing happens before: reconnecting, or checking that the connection
    /// is alive.
    due: Time,
    alarm: Alarm,
    /// Sessions opened, and bundles that arrived though the far node had them already.
    sessions: u64,
    duplicates: u64,
    /// The counters of both ends in earlier sessions.
    previous: [Statistics; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Session {
    /// There was nothing to send yet.
    None,
    /// Connecting, or negotiating the session.
    Opening,
    /// Transfers may begin.
    Open,
    /// The connection has died.
    Dead,
}

/// A message of TCPCLv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    /// RFC 9174 §4.2.
    ContactHeader,
    /// RFC 9174 §4.6.
    SessInit,
    /// A segment with this many bytes of a bundle: RFC 9174 §5.2.2.
    Segment { bytes: u64, first: bool, last: bool },
    /// Of a segment; of the last one, and so of a bundle: RFC 9174 §5.2.3.
    Ack { last: bool },
    /// RFC 9174 §5.1.1.
    Keepalive,
}

impl Message {
    /// Bytes, headers included.
    fn length(self) -> u64 {
        match self {
            Self::ContactHeader => 6,
            // Node ids are taken as 20 bytes long.
            Self::SessInit => 25 + 20,
            Self::Segment { bytes, first, .. } => bytes + if first { 22 } else { 18 },
            Self::Ack { .. } => 18,
            Self::Keepalive => 1,
        }
    }
}

/// The messages of one direction of a session. TCP knows them as bytes only.
#[derive(Debug, Default)]
struct Stream {
    messages: VecDeque<Message>,
    /// Bytes of them that TCP has not taken yet.
    unwritten: u64,
    /// Bytes of the first one that have been read.
    read: u64,
}

impl Stream {
    fn push(&mut self, message: Message) {
        self.unwritten += message.length();
        self.messages.push_back(message);
    }

    fn write(&mut self, endpoint: &mut Endpoint) {
        self.unwritten -= endpoint.write(self.unwritten);
    }

    /// The next message that has arrived whole.
    fn read(&mut self, now: Time, endpoint: &mut Endpoint) -> Option<Message> {
        let message = *self.messages.front()?;
        self.read += endpoint.read(now, message.length() - self.read);
        if self.read < message.length() {
            return None;
        }
        self.read = 0;
        self.messages.pop_front()
    }
}

impl BundleNodes {
    /// The nodes of a flow that is carried in bundles.
    pub(crate) fn of_flow(flow: &FlowSpec) -> Option<Self> {
        let quotas = flow.splitters.iter().map(|node| node.quota.unwrap_or(u64::MAX));
        // The destination's application takes everything at once.
        let pairs = quotas.chain([u64::MAX]).map(NodePair::new).collect();
        Some(Self { spec: flow.bundles?, bytes: flow.bytes, pairs })
    }

    /// Lets nodes act; `ends` are the sending and the receiving end of each leg. Returns the bytes of data
    /// that have newly reached the destination.
    pub(crate) fn service(&mut self, now: Time, ends: &mut [Endpoint]) -> u64 {
        let before = self.delivered();
        // Acknowledgements make room; then received bundles travel on.
        for (pair, ends) in self.pairs.iter_mut().zip(ends.chunks_exact_mut(2)) {
            pair.read_replies(now, &mut ends[0]);
        }
        for (at, ends) in ends.chunks_exact_mut(2).enumerate() {
            self.receive(at, now, &mut ends[1]);
        }
        for (at, ends) in ends.chunks_exact_mut(2).enumerate() {
            self.send(at, now, &mut ends[0]);
            self.check_connection(at, now, &ends[0]);
        }
        self.delivered() - before
    }

    /// Everything has arrived, and every node knows.
    pub(crate) fn is_done(&self) -> bool {
        let count = self.count();
        self.pairs.iter().all(|pair| pair.acknowledged == count)
    }

    /// Bytes that the nodes between the ends hold of bundles: of whole ones, and of those that are arriving.
    pub(crate) fn held(&self) -> impl Iterator<Item = u64> + '_ {
        (1..self.pairs.len()).map(|node| self.stored(node) + self.pairs[node - 1].arrived)
    }

    /// When a pair is to be woken, and its alarm.
    pub(crate) fn alarm(&mut self, pair: usize) -> (Time, &mut Alarm) {
        let pair = &mut self.pairs[pair];
        (pair.due, &mut pair.alarm)
    }

    /// The alarm of a pair has fired.
    pub(crate) fn on_alarm(&mut self, pair: usize, ends: &mut [Endpoint]) {
        let pair = &mut self.pairs[pair];
        pair.due = Time::MAX;
        match pair.session {
            Session::Dead => pair.reset(ends),
            Session::None | Session::Opening | Session::Open => pair.forward.push(Message::Keepalive),
        }
    }

    /// The counters of a leg's ends over all sessions, where `present` are those of the present one.
    pub(crate) fn statistics(&self, leg: usize, present: [Statistics; 2]) -> [Statistics; 2] {
        let [sender, receiver] = self.pairs[leg].previous;
        [sum(sender, present[0]), sum(receiver, present[1])]
    }

    /// Bundles that the destination has.
    pub(crate) fn bundles_delivered(&self) -> u64 {
        self.pairs.last().map_or(0, |pair| pair.complete)
    }

    /// By leg the sessions that were opened, and the bundles that arrived there once more.
    pub(crate) fn sessions_and_duplicates(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.pairs.iter().map(|pair| (pair.sessions, pair.duplicates))
    }

    /// The number of bundles of the flow.
    fn count(&self) -> u64 {
        self.bytes.map_or(u64::MAX, |bytes| bytes.div_ceil(self.spec.size))
    }

    /// The data in this many first bundles, bytes.
    fn data_in(&self, bundles: u64) -> u64 {
        bundles.saturating_mul(self.spec.size).min(self.bytes.unwrap_or(u64::MAX))
    }

    /// Bytes of the bundle of this number, its headers included.
    fn length(&self, bundle: u64) -> u64 {
        self.data_in(bundle + 1) - self.data_in(bundle) + BUNDLE_OVERHEAD
    }

    fn delivered(&self) -> u64 {
        self.data_in(self.bundles_delivered())
    }

    /// Bytes of whole bundles in the store of the node behind this many pairs, 1 or more: the destination
    /// keeps none.
    fn stored(&self, node: usize) -> u64 {
        let Some(next) = self.pairs.get(node) else { return 0 };
        let whole = self.pairs[node - 1].complete;
        let bundles = whole - next.acknowledged;
        self.data_in(whole) - self.data_in(next.acknowledged) + bundles * BUNDLE_OVERHEAD
    }

    /// Lets the far node of a pair read and answer.
    fn receive(&mut self, at: usize, now: Time, endpoint: &mut Endpoint) {
        while !self.is_blocked(at)
            && let Some(message) = self.pairs[at].forward.read(now, endpoint)
        {
            self.pairs[at].handle(message);
        }
        self.pairs[at].reverse.write(endpoint);
    }

    /// Whether the next message starts a bundle for which the far node has no room. It stays in the
    /// connection, which stops the sender.
    fn is_blocked(&self, at: usize) -> bool {
        let pair = &self.pairs[at];
        let begins = matches!(pair.forward.messages.front(), Some(Message::Segment { first: true, .. }));
        let is_new = pair.arriving == pair.complete;
        begins && is_new && self.stored(at + 1).saturating_add(self.length(pair.arriving)) > pair.quota
    }

    /// Lets the near node of a pair send what it has, as far as TCP accepts it.
    fn send(&mut self, at: usize, now: Time, endpoint: &mut Endpoint) {
        let available = if at == 0 { self.count() } else { self.pairs[at - 1].complete };
        if self.pairs[at].session == Session::None && available > 0 {
            self.pairs[at].open(now, endpoint);
        }
        self.pairs[at].forward.write(endpoint);
        while self.pairs[at].session == Session::Open
            && self.pairs[at].forward.unwritten == 0
            && self.pairs[at].next < available
        {
            let length = self.length(self.pairs[at].next);
            self.pairs[at].send_segment(length, self.spec.segment);
            self.pairs[at].forward.write(endpoint);
        }
    }

    /// Lets the near node of a pair check whether the connection has died, and makes sure that it finds out.
    fn check_connection(&mut self, at: usize, now: Time, endpoint: &Endpoint) {
        let pair = &mut self.pairs[at];
        if pair.session == Session::Dead {
            return;
        }
        if endpoint.end().is_some() {
            (pair.session, pair.due) = (Session::Dead, now + self.spec.reconnect);
        } else if !pair.waits_for_answer(endpoint) {
            pair.due = Time::MAX;
        } else if pair.due == Time::MAX {
            pair.due = now + self.spec.keepalive;
        }
    }
}

impl NodePair {
    fn new(quota: u64) -> Self {
        Self {
            session: Session::None,
            forward: Stream::default(),
            reverse: Stream::default(),
            next: 0,
            sent: 0,
            acknowledged: 0,
            arriving: 0,
            arrived: 0,
            complete: 0,
            quota,
            due: Time::MAX,
            alarm: Alarm::default(),
            sessions: 0,
            duplicates: 0,
            previous: Default::default(),
        }
    }

    /// The near node connects; its contact header goes out as soon as the connection is forward.
    fn open(&mut self, now: Time, endpoint: &mut Endpoint) {
        self.session = Session::Opening;
        self.sessions += 1;
        self.forward.push(Message::ContactHeader);
        endpoint.open_actively(now);
    }

    /// Both ends forget the dead connection and the data in flight, which the near node still has.
    fn reset(&mut self, ends: &mut [Endpoint]) {
        for (previous, end) in self.previous.iter_mut().zip(ends) {
            *previous = sum(*previous, end.statistics());
            *end = end.relisten();
        }
        self.session = Session::None;
        (self.forward, self.reverse) = (Stream::default(), Stream::default());
        (self.next, self.sent) = (self.acknowledged, 0);
        (self.arriving, self.arrived) = (self.acknowledged, 0);
    }

    /// The near node reads the answers.
    fn read_replies(&mut self, now: Time, endpoint: &mut Endpoint) {
        while let Some(message) = self.reverse.read(now, endpoint) {
            self.due = if self.session == Session::Dead { self.due } else { Time::MAX };
            match message {
                Message::ContactHeader => self.forward.push(Message::SessInit),
                Message::SessInit => self.session = Session::Open,
                Message::Ack { last } => self.acknowledged += u64::from(last),
                Message::Segment { .. } | Message::Keepalive => {}
            }
        }
    }

    /// The far node takes a message.
    fn handle(&mut self, message: Message) {
        match message {
            Message::ContactHeader | Message::SessInit => self.reverse.push(message),
            Message::Segment { bytes, last, .. } => {
                self.arrived += bytes;
                if last {
                    self.complete_bundle();
                }
                self.reverse.push(Message::Ack { last });
            }
            Message::Ack { .. } | Message::Keepalive => {}
        }
    }

    /// A bundle is whole. One that the node has had is known by its id, and counts once (RFC 9171 §4.3.1).
    fn complete_bundle(&mut self) {
        match self.arriving == self.complete {
            true => self.complete += 1,
            false => self.duplicates += 1,
        }
        (self.arriving, self.arrived) = (self.arriving + 1, 0);
    }

    /// Sends the next segment of the current bundle, which has this length.
    fn send_segment(&mut self, length: u64, most: u64) {
        let (first, left) = (self.sent == 0, length - self.sent);
        let (bytes, last) = (left.min(most), left <= most);
        self.forward.push(Message::Segment { bytes, first, last });
        match last {
            true => (self.next, self.sent) = (self.next + 1, 0),
            false => self.sent += bytes,
        }
    }

    /// The near node has nothing on its way, so that TCP finds out nothing, but the far one has something to
    /// say.
    fn waits_for_answer(&self, endpoint: &Endpoint) -> bool {
        let expects = match self.session {
            Session::Opening => endpoint.state() == State::Established,
            Session::Open => self.acknowledged < self.next,
            Session::None | Session::Dead => false,
        };
        expects && endpoint.send_buffered() == 0
    }
}

/// One after the other: the first connection is the one that began.
fn sum(before: Statistics, after: Statistics) -> Statistics {
    Statistics {
        syns: before.syns + after.syns,
        segments: before.segments + after.segments,
        bytes_sent: before.bytes_sent + after.bytes_sent,
        bytes_acknowledged: before.bytes_acknowledged + after.bytes_acknowledged,
        retransmissions: before.retransmissions + after.retransmissions,
        timeouts: before.timeouts + after.timeouts,
        recoveries: before.recoveries + after.recoveries,
        bytes_read: before.bytes_read + after.bytes_read,
        duplicate_bytes: before.duplicate_bytes + after.duplicate_bytes,
        established_at: before.established_at.or(after.established_at),
        ended_at: after.ended_at,
    }
}
