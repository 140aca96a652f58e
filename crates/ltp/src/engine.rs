//! The sessions with one peer: what is sent when, and the timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use bentpipe_units::Time;

use crate::authentication::{Authentication, NotAuthentic};
use crate::clock::Clock;
use crate::pacer::Pacer;
use crate::receiving::{Receiving, State};
use crate::segment::{Content, Data, Malformed, Part, Reason, Report, Segment, SessionId, Side};
use crate::sending::Sending;
use crate::{Color, Handle, sdnv};

/// The most bytes of a data segment's header beside the numbers of its session, its offset and its length:
/// type, extensions, client, and a checkpoint's two serial numbers of up to four bytes.
const HEADER: usize = 11;
/// The most bytes of a report beside its claims and the numbers of its session.
const REPORT_HEADER: usize = 2 + 5 * 10;
/// The most answers that wait to be sent. More are left out: whoever asked asks again.
const MAX_ANSWERS: usize = 4096;
/// The most sessions that receive a block at a time, and those of the past that are remembered.
const MAX_RECEIVING: usize = 16_384;
/// The most sessions that send a block at a time.
const MAX_SENDING: usize = 65_536;
/// The serial numbers of a session begin at 1 to so many (RFC 5326 §3.2.1: at random, less than 2^14).
const SERIALS: u64 = 1 << 14;
/// Bytes that were not sent yet, below which another block is taken.
const LOW_WATER: u64 = 64 << 10;

/// After so many intervals of its timers without a word the peer counts as silent.
const SILENT_AFTER: u32 = 3;

/// The settings of an [`Engine`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// The number of this engine.
    pub own: u64,
    /// The number of the peer's.
    pub peer: u64,
    /// Whom blocks are for, and from whom they may come.
    pub client: u64,
    /// The time that a signal takes to the peer.
    pub one_way: Duration,
    /// What an answer may take beyond two of those: for queues and hosts.
    pub margin: Duration,
    /// Bytes per second, those of the headers around a datagram included.
    pub rate: f64,
    /// The longest datagram, bytes.
    pub datagram: usize,
    /// Bytes around a datagram on the wire, as of IP and UDP.
    pub around: u64,
    /// The most bytes of blocks that wait to be acknowledged.
    pub window: u64,
    /// The most bytes of blocks that have not arrived whole, or that the client has not answered.
    pub memory: u64,
    /// The longest block that is received, bytes.
    pub longest: u64,
    /// How often a segment that is not answered is sent again.
    pub retries: u32,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The peer's client is responsible for a red block; a green one has been sent.
    Sent(Handle),
    /// A block was not sent.
    Failed(Handle, Failure),
    /// A block has arrived. The client has to answer with [`Engine::accepted`].
    Received(SessionId, Vec<u8>),
}

/// Why a block was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The peer has cancelled the session.
    #[error("the peer has cancelled it: {0}")]
    Cancelled(Reason),
    /// The peer does not answer.
    #[error("the peer does not answer")]
    Unanswered,
    /// The peer no longer has what it had.
    #[error("the peer has lost what had arrived; it may have been started anew")]
    Forgotten,
}

/// A datagram that is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is no segment.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It is not the peer's.
    #[error(transparent)]
    NotAuthentic(#[from] NotAuthentic),
    /// It belongs to a session of other engines.
    #[error("it is of a session of engine {0}")]
    Foreign(u64),
}

/// What an engine has done so far. Bytes on the wire are those of data segments with all headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Data segments sent, and the bytes on the wire.
    pub segments: u64,
    /// Bytes on the wire.
    pub sent: u64,
    /// Those of segments whose arrival was reported.
    pub delivered: u64,
    /// Those of segments whose loss was reported.
    pub lost: u64,
    /// Segments that were sent again.
    pub repeated: u64,
    /// Checkpoints and reports that were not answered in time.
    pub timeouts: u64,
    /// Sessions that were cancelled, by whichever side.
    pub cancelled: u64,
    /// Segments of data that were not taken for want of memory.
    pub without_memory: u64,
    /// Segments that were not taken because they are not authentic.
    pub not_authentic: u64,
    /// From a checkpoint to its report: the last one, and the shortest.
    pub round_trip: Option<Duration>,
    /// See [`round_trip`](Self::round_trip).
    pub shortest_round_trip: Option<Duration>,
}

/// The sessions of an engine with one peer.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    authentication: Option<Authentication>,
    clock: Clock,
    pacer: Pacer,
    can_send: bool,
    sending: HashMap<u64, Sending>,
    /// In the order in which they are sent for the first time.
    fresh: VecDeque<u64>,
    /// Sessions with something to send again.
    repeating: VecDeque<u64>,
    /// Bytes of blocks in `sending`.
    unacknowledged: u64,
    /// Those of them that were never sent.
    unsent: u64,
    receiving: HashMap<u64, Receiving>,
    /// Whether there is a timer for those of which nothing comes any more.
    is_watching: bool,
    /// Sessions with reports to send.
    reporting: VecDeque<u64>,
    /// Bytes of blocks in `receiving`.
    held: u64,
    /// Sessions of the peer that are over, the oldest first.
    over: (VecDeque<u64>, HashSet<u64>),
    /// Cancellations that the peer has not acknowledged.
    cancelling: HashMap<(SessionId, Side), (Reason, u32)>,
    answers: VecDeque<Answer>,
    timers: BinaryHeap<Reverse<(Duration, Timer)>>,
    events: VecDeque<Event>,
    next_session: u64,
    first_serial: u64,
    /// By the clock of timers: when the first checkpoint was sent since the peer was last heard.
    asked: Option<Duration>,
    /// When a checkpoint was last sent to a silent peer.
    probed: Duration,
    statistics: Statistics,
}

/// A segment without data that is to be sent.
#[derive(Debug, Clone, Copy)]
enum Answer {
    ReportAck(SessionId, u64),
    Cancel(SessionId, Side),
    CancelAck(SessionId, Side),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Checkpoint {
        session: u64,
        serial: u64,
    },
    Report {
        session: u64,
        serial: u64,
    },
    Cancel {
        session: SessionId,
        by_sender: bool,
    },
    /// Sessions that receive are looked through for those of which nothing comes any more.
    Silence,
}

impl Engine {
    /// An engine that may send and hear. `random` makes the numbers of its sessions differ from those before a
    /// restart (RFC 5326 §3.1.1), and hard to guess.
    pub fn new(config: Config, random: u64, now: Time) -> Self {
        Self {
            config,
            authentication: None,
            clock: Clock::default(),
            pacer: Pacer::new(config.rate, now),
            can_send: true,
            sending: HashMap::new(),
            fresh: VecDeque::new(),
            repeating: VecDeque::new(),
            unacknowledged: 0,
            unsent: 0,
            receiving: HashMap::new(),
            is_watching: false,
            reporting: VecDeque::new(),
            held: 0,
            over: Default::default(),
            cancelling: HashMap::new(),
            answers: VecDeque::new(),
            timers: BinaryHeap::new(),
            events: VecDeque::new(),
            next_session: 1 + (random & u64::from(u32::MAX)),
            first_serial: 1 + (random >> 32) % (SERIALS - 1),
            asked: None,
            probed: Duration::ZERO,
            statistics: Statistics::default(),
        }
    }

    /// The same, and its segments are authenticated (RFC 5327): others are not taken. The peer has to do the
    /// same.
    #[must_use]
    pub fn authenticated_by(self, authentication: Option<Authentication>) -> Self {
        Self { authentication, ..self }
    }

    /// Changes the rate, bytes on the wire per second.
    pub fn set_rate(&mut self, rate: f64) {
        self.pacer.set_rate(rate);
    }

    /// Changes the propagation delay, for timers that begin from now on.
    pub fn set_one_way(&mut self, one_way: Duration) {
        self.config.one_way = one_way;
    }

    /// Whether segments may be sent, and whether any can come. Timers stand still while none can.
    pub fn set_contact(&mut self, now: Time, can_send: bool, can_hear: bool) {
        self.can_send = can_send;
        self.clock.run(now, can_hear);
    }

    /// The longest block that may be sent now; `None` if there is enough to send.
    pub fn room(&self, now: Time) -> Option<u64> {
        let room = self.config.window.saturating_sub(self.unacknowledged);
        let is_possible = self.can_send && !self.is_silent(now) && self.sending.len() < MAX_SENDING;
        (is_possible && self.unsent < LOW_WATER && room > 0).then_some(room)
    }

    /// Whether the peer has not answered for some time. It gets a checkpoint in each interval of the timers then,
    /// and no other.
    pub fn is_silent(&self, now: Time) -> bool {
        let shows = self.clock.read(now);
        self.in_flight() && self.asked.is_some_and(|asked| shows > asked + SILENT_AFTER * self.interval())
    }

    /// Begins to send a block; an [`Event`] has its outcome.
    pub fn send(&mut self, handle: Handle, color: Color, block: Box<[u8]>) {
        let number = self.next_session;
        self.next_session += 1;
        self.unacknowledged += block.len() as u64;
        self.unsent += block.len() as u64;
        let session = Sending::new(handle, color, block, self.payload_of_segment(), self.first_serial);
        self.sending.insert(number, session);
        self.fresh.push_back(number);
    }

    /// The client has answered [`Event::Received`]: it is responsible for the block, or refuses it.
    pub fn accepted(&mut self, session: SessionId, outcome: Result<(), Reason>) {
        let Some(receiving) = self.receiving.get_mut(&session.number) else { return };
        if session.originator != self.config.peer || receiving.state != State::Offered {
            return;
        }
        match outcome {
            Ok(()) => {
                self.held -= receiving.held();
                receiving.accept();
                self.prepare_reports(session.number);
            }
            Err(reason) => self.cancel_receiving(session, reason),
        }
    }

    /// Takes a datagram of the peer.
    ///
    /// # Errors
    /// It says nothing.
    pub fn receive(&mut self, now: Time, datagram: &[u8]) -> Result<(), Unreadable> {
        let Segment { session, content } = self.read(datagram)?;
        let (own, peer) = (session.originator == self.config.own, session.originator == self.config.peer);
        match content {
            Content::Data(data) if peer => self.take_data(now, session, &data),
            Content::Report(report) if own => self.take_report(now, session, &report),
            Content::ReportAck(serial) if peer => self.take_report_ack(session.number, serial),
            Content::Cancel(Side::Sender, _) if peer => {
                self.answer(Answer::CancelAck(session, Side::Sender));
                self.forget_receiving(session.number);
            }
            Content::Cancel(Side::Receiver, reason) if own => {
                self.answer(Answer::CancelAck(session, Side::Receiver));
                self.end_sending(session.number, Some(Failure::Cancelled(reason)));
            }
            Content::CancelAck(by) => drop(self.cancelling.remove(&(session, by))),
            _ => return Err(Unreadable::Foreign(session.originator)),
        }
        self.asked = None;
        Ok(())
    }

    /// Reads a segment; if there are keys, it has to be authentic.
    fn read<'a>(&mut self, datagram: &'a [u8]) -> Result<Segment<'a>, Unreadable> {
        let Some(authentication) = &self.authentication else { return Ok(Segment::parse(datagram)?) };
        let (segment, extensions) = Segment::parse_with_extensions(datagram)?;
        if let Err(why) = authentication.check(datagram, &extensions) {
            self.statistics.not_authentic += 1;
            return Err(why.into());
        }
        Ok(segment)
    }

    /// Bytes that authentication adds to a segment.
    fn proof(&self) -> usize {
        self.authentication.as_ref().map_or(0, Authentication::len)
    }

    /// Writes the next datagram into `out`, which it empties first. `false` if none may be sent now.
    pub fn transmit(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        out.clear();
        if !self.can_send || self.pacer.next().is_none_or(|next| next > now) {
            return false;
        }
        let is_some = self.write_answer(now, out)
            || self.write_report(now, out)
            || self.write_data(now, out, true)
            || self.write_data(now, out, false);
        if is_some {
            self.pacer.sent(now, out.len() as u64 + self.config.around);
        }
        is_some
    }

    /// When [`transmit`](Self::transmit) may have a datagram, or [`advance`](Self::advance) something to do.
    pub fn due(&self) -> Option<Time> {
        let sends = self.pacer.next().filter(|_| self.can_send && self.has_to_send());
        let timer = self.timers.peek().and_then(|Reverse((shows, _))| self.clock.when(*shows));
        sends.into_iter().chain(timer).min()
    }

    /// Does what timers ask for.
    pub fn advance(&mut self, now: Time) {
        let shows = self.clock.read(now);
        while let Some(Reverse((due, timer))) = self.timers.peek().copied() {
            if due > shows {
                return;
            }
            self.timers.pop();
            self.timed_out(now, timer);
        }
    }

    /// What has happened since the last call.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What it has done so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Whether red blocks have been sent and are not acknowledged.
    pub fn in_flight(&self) -> bool {
        self.unacknowledged > 0
    }

    /// Whether there is something to send that only has to wait for its time.
    pub fn has_to_send(&self) -> bool {
        !self.answers.is_empty()
            || !self.reporting.is_empty()
            || !self.repeating.is_empty()
            || !self.fresh.is_empty()
    }

    /// Gives up all blocks that are on their way to the peer. Returns their handles.
    pub fn give_up(&mut self) -> Vec<Handle> {
        let handles = self.sending.drain().map(|(_, session)| session.handle).collect();
        self.fresh.clear();
        self.repeating.clear();
        (self.unacknowledged, self.unsent) = (0, 0);
        handles
    }

    /// Bytes of a block in a segment.
    fn payload_of_segment(&self) -> usize {
        let session = sdnv::len(self.config.own) + sdnv::len(self.next_session);
        let numbers = sdnv::len(self.config.window) + sdnv::len(self.config.datagram as u64);
        self.config.datagram.saturating_sub(HEADER + session + numbers + self.proof()).max(1)
    }

    /// Bytes on the wire of so many bytes of blocks.
    fn on_the_wire(&self, bytes: u64) -> u64 {
        let payload = self.payload_of_segment() as u64;
        let overhead = self.config.datagram as u64 - payload + self.config.around;
        bytes + bytes.div_ceil(payload) * overhead
    }

    /// How long an answer takes at most.
    fn interval(&self) -> Duration {
        2 * self.config.one_way + self.config.margin
    }

    fn timer(&mut self, now: Time, timer: Timer) {
        let interval = self.interval();
        // The sender gives up before.
        let intervals = if timer == Timer::Silence { self.config.retries + 2 } else { 1 };
        self.timers.push(Reverse((self.clock.read(now) + intervals * interval, timer)));
    }

    fn timed_out(&mut self, now: Time, timer: Timer) {
        let limit = self.config.retries;
        match timer {
            Timer::Checkpoint { session, serial } => {
                let (shows, is_silent) = (self.clock.read(now), self.is_silent(now));
                let is_held = is_silent && shows < self.probed + self.interval();
                let Some(sending) = self.sending.get_mut(&session) else { return };
                let before = sending.has_repeats();
                if is_held && sending.held(serial, limit) {
                    return self.timer(now, timer);
                }
                if is_silent {
                    self.probed = shows;
                }
                if !sending.timed_out(serial, limit) {
                    let id = SessionId { originator: self.config.own, number: session };
                    self.cancel_sending(id, Failure::Unanswered, Reason::RetransmissionLimit);
                } else if sending.has_repeats() && !before {
                    self.statistics.timeouts += 1;
                    self.repeating.push_back(session);
                }
            }
            Timer::Report { session, serial } => {
                let Some(receiving) = self.receiving.get_mut(&session) else { return };
                let before = receiving.has_reports();
                if !receiving.timed_out(serial, limit) {
                    let id = SessionId { originator: self.config.peer, number: session };
                    self.cancel_receiving(id, Reason::RetransmissionLimit);
                } else if receiving.has_reports() && !before {
                    self.statistics.timeouts += 1;
                    self.reporting.push_back(session);
                }
            }
            Timer::Cancel { session, by_sender } => {
                let by = if by_sender { Side::Sender } else { Side::Receiver };
                let Some((_, tries)) = self.cancelling.get(&(session, by)) else { return };
                if *tries > limit {
                    self.cancelling.remove(&(session, by));
                } else {
                    self.answer(Answer::Cancel(session, by));
                }
            }
            Timer::Silence => {
                let silent =
                    self.receiving.iter_mut().filter_map(|(number, r)| r.was_silent().then_some(*number));
                for session in silent.collect::<Vec<u64>>() {
                    self.forget_receiving(session);
                }
                self.is_watching = !self.receiving.is_empty();
                if self.is_watching {
                    self.timer(now, Timer::Silence);
                }
            }
        }
    }

    fn take_data(&mut self, now: Time, session: SessionId, data: &Data<'_>) {
        let number = session.number;
        if self.over.1.contains(&number) || self.cancelling.contains_key(&(session, Side::Receiver)) {
            return;
        }
        if data.client != self.config.client {
            return self.cancel_receiving(session, Reason::Unreachable);
        }
        if data.offset + data.bytes.len() as u64 > self.config.longest {
            return self.cancel_receiving(session, Reason::System);
        }
        if !self.receiving.contains_key(&number) {
            if self.receiving.len() >= MAX_RECEIVING {
                self.statistics.without_memory += 1;
                return;
            }
            if !std::mem::replace(&mut self.is_watching, true) {
                self.timer(now, Timer::Silence);
            }
            self.receiving.insert(number, Receiving::new(self.first_serial));
        }
        let Some(receiving) = self.receiving.get_mut(&number) else { return };
        if self.held + receiving.would_hold(data) > self.config.memory {
            self.statistics.without_memory += 1;
            return;
        }
        let before = receiving.held();
        if let Err(reason) = receiving.take(data) {
            return self.cancel_receiving(session, reason);
        }
        self.held += receiving.held() - before;
        if let Some(block) = receiving.completed() {
            self.events.push_back(Event::Received(session, block));
        }
        if matches!(data.part, Part::Checkpoint(_)) {
            self.prepare_reports(number);
        }
    }

    fn prepare_reports(&mut self, number: u64) {
        let numbers = sdnv::len(self.config.peer) + sdnv::len(number);
        let room = self.config.datagram.saturating_sub(REPORT_HEADER + numbers + self.proof());
        let Some(receiving) = self.receiving.get_mut(&number) else { return };
        let before = receiving.has_reports();
        receiving.make_reports(room);
        if receiving.has_reports() && (!before || !self.reporting.contains(&number)) {
            self.reporting.push_back(number);
        }
        self.forget_if_over(number);
    }

    fn take_report_ack(&mut self, number: u64, serial: u64) {
        if let Some(receiving) = self.receiving.get_mut(&number) {
            receiving.acknowledged(serial);
        }
        self.forget_if_over(number);
    }

    fn forget_if_over(&mut self, number: u64) {
        if self.receiving.get(&number).is_some_and(Receiving::is_over) {
            self.forget_receiving(number);
        }
    }

    fn forget_receiving(&mut self, number: u64) {
        let Some(receiving) = self.receiving.remove(&number) else { return };
        self.held -= receiving.held();
        let (order, known) = &mut self.over;
        if known.insert(number) {
            order.push_back(number);
        }
        if order.len() > MAX_RECEIVING
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
    }

    fn take_report(&mut self, now: Time, session: SessionId, report: &Report) {
        // Also of a session that is over: the peer has not heard yet that its report arrived.
        self.answer(Answer::ReportAck(session, report.serial));
        let Some(sending) = self.sending.get_mut(&session.number) else { return };
        let before = sending.has_repeats();
        let Ok(progress) = sending.reported(now, report) else {
            return self.cancel_sending(session, Failure::Forgotten, Reason::System);
        };
        let repeats = sending.has_repeats();
        self.statistics.delivered += self.on_the_wire(progress.arrived);
        self.statistics.lost += self.on_the_wire(progress.lost);
        if let Some(round_trip) = progress.round_trip {
            let shortest = &mut self.statistics.shortest_round_trip;
            *shortest = Some(shortest.map_or(round_trip, |known| known.min(round_trip)));
            self.statistics.round_trip = Some(round_trip);
        }
        if progress.is_complete {
            self.end_sending(session.number, None);
        } else if repeats && !before {
            self.repeating.push_back(session.number);
        }
    }

    fn end_sending(&mut self, number: u64, failure: Option<Failure>) {
        let Some(sending) = self.sending.remove(&number) else { return };
        self.unacknowledged -= sending.len();
        self.unsent -= sending.unsent();
        let handle = sending.handle;
        self.statistics.cancelled += u64::from(failure.is_some());
        self.events.push_back(failure.map_or(Event::Sent(handle), |why| Event::Failed(handle, why)));
    }

    fn cancel_sending(&mut self, session: SessionId, failure: Failure, reason: Reason) {
        self.end_sending(session.number, Some(failure));
        self.cancel(session, Side::Sender, reason);
    }

    fn cancel_receiving(&mut self, session: SessionId, reason: Reason) {
        self.statistics.cancelled += 1;
        self.forget_receiving(session.number);
        self.cancel(session, Side::Receiver, reason);
    }

    /// Tells the peer.
    fn cancel(&mut self, session: SessionId, by: Side, reason: Reason) {
        if self.cancelling.len() < MAX_ANSWERS {
            self.cancelling.insert((session, by), (reason, 0));
            self.answer(Answer::Cancel(session, by));
        }
    }

    fn answer(&mut self, answer: Answer) {
        if self.answers.len() < MAX_ANSWERS {
            self.answers.push_back(answer);
        }
    }

    fn write_answer(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        while let Some(answer) = self.answers.pop_front() {
            let (session, content) = match answer {
                Answer::ReportAck(session, serial) => (session, Content::ReportAck(serial)),
                Answer::CancelAck(session, by) => (session, Content::CancelAck(by)),
                Answer::Cancel(session, by) => {
                    // It may have been acknowledged meanwhile.
                    let Some((reason, tries)) = self.cancelling.get_mut(&(session, by)) else { continue };
                    *tries += 1;
                    let content = Content::Cancel(by, *reason);
                    self.timer(now, Timer::Cancel { session, by_sender: by == Side::Sender });
                    (session, content)
                }
            };
            Segment { session, content }.write_with(self.authentication.as_ref(), out);
            return true;
        }
        false
    }

    fn write_report(&mut self, now: Time, out: &mut Vec<u8>) -> bool {
        while let Some(&number) = self.reporting.front() {
            let report = self.receiving.get_mut(&number).and_then(Receiving::next_report);
            let Some(report) = report else {
                self.reporting.pop_front();
                continue;
            };
            let serial = report.serial;
            let session = SessionId { originator: self.config.peer, number };
            let segment = Segment { session, content: Content::Report(report) };
            segment.write_with(self.authentication.as_ref(), out);
            self.timer(now, Timer::Report { session: number, serial });
            return true;
        }
        false
    }

    /// Writes a segment of data: one that is sent again, or one that is sent first.
    fn write_data(&mut self, now: Time, out: &mut Vec<u8>, again: bool) -> bool {
        let client = self.config.client;
        loop {
            let queue = if again { &mut self.repeating } else { &mut self.fresh };
            let Some(&number) = queue.front() else { return false };
            let sending = self.sending.get_mut(&number);
            let sending = sending.filter(|s| if again { s.has_repeats() } else { s.has_fresh() });
            let Some(next) = sending.and_then(|sending| sending.next(now, client)) else {
                queue.pop_front();
                continue;
            };
            let (checkpoint, part) = (next.checkpoint, next.data.part);
            if !again {
                self.unsent -= next.data.bytes.len() as u64;
            }
            let session = SessionId { originator: self.config.own, number };
            let segment = Segment { session, content: Content::Data(next.data) };
            segment.write_with(self.authentication.as_ref(), out);
            self.statistics.segments += 1;
            self.statistics.repeated += u64::from(next.is_repeated);
            self.statistics.sent += out.len() as u64 + self.config.around;
            if let Some(serial) = checkpoint {
                self.asked.get_or_insert(self.clock.read(now));
                self.timer(now, Timer::Checkpoint { session: number, serial });
            }
            if part == (Part::Green { ends_block: true }) {
                self.end_sending(number, None);
            }
            return true;
        }
    }
}
