//! A session as a state machine (RFC 9174 §4–§6), without clock and socket.
//!
//! The driver passes received bytes ([`Session::receive`]) and the time, handles the [`Event`]s, and writes
//! the output of [`Session::take_control`] and [`Session::segment`]. A session keeps no data of transfers.
//! Its memory is bounded by [`MAX_CONTROL`] bytes of unwritten messages, [`MAX_UNACKNOWLEDGED`]
//! unacknowledged transfers, and 1024 received ones whose outcome is not known
//! ([`is_congested`](Session::is_congested)).

mod answers;
mod handshake;
mod inbound;
mod outbound;
mod timers;

use std::time::Duration;

use bentpipe_units::Time;

use super::message::{self, Message, RejectReason, SegmentHead, TermReason};
use super::settings::{EndedBy, Role, SessionEnd, SessionSettings};
use crate::Eid;
use crate::convergence::{BundleHandle, Refusal};
use answers::Answers;
pub use answers::Ticket;
use inbound::{Inbound, Step};
use outbound::{Answer, Outbound};
pub use outbound::{MAX_UNACKNOWLEDGED, NextSegment};
use timers::IDLE_BURST;

/// Limit of unwritten messages, bytes. A peer that causes more and does not read loses the session.
pub const MAX_CONTROL: usize = 1 << 20;
/// Timeout from the first byte to the established session (RFC 9174 §4.1 leaves it to the node).
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);
/// An ending session without progress for this long is closed.
pub const ENDING_TIMEOUT: Duration = Duration::from_secs(30);

/// What the driver has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Write all pending output, run the TLS handshake, and call [`Session::tls_done`].
    StartTls,
    /// The peer has announced its node ID: ask the agent, and call [`Session::admit`] or
    /// [`Session::reject_peer`].
    Introduced(Eid),
    /// A transfer begins: ask the agent, and call [`Session::refuse`] if it refuses.
    Begin {
        /// Its announced length, bytes, unless the peer's announcements are to be ignored.
        announced: Option<u64>,
    },
    /// Data of the current transfer: store it before the next call, or call [`Session::refuse`].
    Data(&'a [u8]),
    /// The transfer of this ticket is complete: finish it, and call [`Session::finished`] when its outcome is
    /// known. Other transfers may come before that.
    Complete(Ticket),
    /// The current transfer is aborted: drop it.
    Abandoned,
    /// The peer has acknowledged a transfer.
    Sent(BundleHandle),
    /// The peer has refused a transfer.
    Refused(BundleHandle, Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Contact,
    Tls,
    Init,
    Admission,
    Established,
    Over,
}

/// A session; see the [module](self).
#[derive(Debug)]
pub struct Session {
    settings: SessionSettings,
    role: Role,
    place: String,
    phase: Phase,
    peer: Option<Eid>,
    proven: Option<Vec<Eid>>,
    keepalive: Duration,
    lenient: bool,
    control: Vec<u8>,
    inbound: Inbound,
    /// The answers to incoming transfers that wait for an outcome, or for others before them.
    answers: Answers,
    outbound: Outbound,
    /// Whether this side and the peer have sent SESS_TERM.
    term: (bool, bool),
    /// The peer's reason, if it was the first to end the session.
    term_reason: Option<TermReason>,
    end: Option<SessionEnd>,
    started: Time,
    last_received: Time,
    last_sent: Time,
    last_progress: Time,
    /// Since when the driver processes input and does not read.
    busy: Option<Time>,
    idle_credit: u32,
    idle_refilled: Time,
}

impl Session {
    /// A session over a new connection. `place` is the peer's address, for the log.
    pub fn new(role: Role, settings: SessionSettings, place: String, now: Time) -> Self {
        let (segment_mru, transfer_mru) = (settings.segment_mru, settings.transfer_mru);
        let mut session = Self {
            role,
            place,
            phase: Phase::Contact,
            peer: None,
            proven: None,
            keepalive: Duration::ZERO,
            lenient: settings.lenient,
            control: Vec::new(),
            inbound: Inbound::new(segment_mru, transfer_mru),
            answers: Answers::default(),
            outbound: Outbound::new(settings.segment_size),
            term: (false, false),
            term_reason: None,
            end: None,
            started: now,
            last_received: now,
            last_sent: now,
            last_progress: now,
            busy: None,
            idle_credit: IDLE_BURST,
            idle_refilled: now,
            settings,
        };
        // RFC 9174 §4.1: the active side sends first.
        if role == Role::Active {
            session.send_contact();
        }
        session
    }

    /// Processes some of `input`. Returns how many bytes were consumed, and an event. With neither, more
    /// bytes are needed. After the session's end all input is consumed.
    pub fn receive<'a>(&mut self, input: &'a [u8], now: Time) -> (usize, Option<Event<'a>>) {
        if self.phase == Phase::Over {
            return (input.len(), None);
        }
        self.last_received = now;
        loop {
            match self.inbound.step(input) {
                Step::NeedsMessage => break,
                Step::NeedsData => return (0, None),
                Step::Skipped(len) => {
                    self.last_progress = now;
                    return (len, None);
                }
                Step::Data(len) => {
                    self.last_progress = now;
                    return (len, Some(Event::Data(&input[..len])));
                }
                Step::Answer { message, abandoned } => {
                    self.answer(message);
                    if abandoned {
                        return (0, Some(Event::Abandoned));
                    }
                }
                Step::Complete => {
                    let Some((id, acknowledgement)) = self.inbound.end_transfer() else { continue };
                    return (0, Some(Event::Complete(self.answers.expect(id, acknowledgement))));
                }
            }
        }
        self.close_if_done();
        if self.phase == Phase::Over {
            return (input.len(), None);
        }
        self.receive_message(input, now)
    }

    fn receive_message(&mut self, input: &[u8], now: Time) -> (usize, Option<Event<'static>>) {
        match Message::decode(input) {
            Ok(Some((message, len))) => (len, self.on_message(message, now)),
            Ok(None) => (0, None),
            Err(error) => {
                if let message::MessageError::UnknownType(header) = error {
                    self.push(&Message::Reject { reason: RejectReason::TYPE_UNKNOWN, header });
                }
                let text = format!("the peer at {} made no sense: {error}", self.place);
                self.terminate_with(TermReason::CONTACT_FAILURE, text);
                (input.len(), None)
            }
        }
    }

    /// The peer has closed its direction of the connection.
    pub fn receive_eof(&mut self) {
        let (by, place) = (EndedBy::Peer, &self.place);
        let text = match self.phase {
            Phase::Over => return,
            Phase::Contact => {
                format!("the node at {place} closed the connection without a word; is it a bundle node?")
            }
            Phase::Tls | Phase::Init | Phase::Admission => {
                format!(
                    "the node at {place} closed the connection before there was a session; its log may say \
                     why"
                )
            }
            Phase::Established if self.term.1 => format!("the peer at {place} ended the session"),
            Phase::Established => format!(
                "the peer at {place} closed the connection in the middle of a session{}",
                if self.inbound.is_receiving() { ", with a transfer half done" } else { "" }
            ),
        };
        self.abort(by, text);
    }

    /// The connection has failed: the session is over.
    pub fn connection_failed(&mut self, attempt: &str, error: &dyn std::fmt::Display) {
        let text = format!("the connection with {} failed while {attempt}: {error}", self.place);
        self.abort(EndedBy::Network, text);
    }

    /// Ends the session for this reason.
    pub fn abort(&mut self, by: EndedBy, reason: String) {
        if self.end.is_none() {
            self.end = Some(SessionEnd { by, reason, in_order: false, peer: self.peer.clone() });
        }
        self.phase = Phase::Over;
    }

    /// Ends the session in order: current transfers are finished, new ones do not begin.
    pub fn terminate(&mut self, now: Time) {
        match self.phase {
            Phase::Over => {}
            Phase::Established => {
                if !self.term.0 {
                    self.term.0 = true;
                    self.last_progress = now;
                    self.push(&Message::SessTerm { reply: false, reason: TermReason::UNKNOWN });
                }
                self.close_if_done();
            }
            _ => {
                self.abort(EndedBy::Us, format!("this node stopped before {} had said its name", self.place))
            }
        }
    }

    /// Ends the session now with a SESS_TERM.
    fn terminate_with(&mut self, reason: TermReason, text: String) {
        if !self.term.0 && self.phase != Phase::Over {
            self.term.0 = true;
            Message::SessTerm { reply: self.term.1, reason }.encode(&mut self.control);
        }
        self.abort(EndedBy::Us, text);
    }

    fn close_if_done(&mut self) {
        let (ours, theirs) = self.term;
        if self.phase == Phase::Established
            && ours
            && theirs
            && self.outbound.is_empty()
            && self.answers.is_empty()
            && !self.inbound.is_receiving()
        {
            let place = &self.place;
            let (by, reason) = match self.term_reason {
                None => (EndedBy::Us, format!("the session with {place} was ended in order")),
                Some(TermReason::UNKNOWN) => {
                    (EndedBy::Peer, format!("the peer at {place} ended the session"))
                }
                Some(why @ (TermReason::CONTACT_FAILURE | TermReason::VERSION_MISMATCH)) => (
                    EndedBy::Peer,
                    format!("the node at {place} does not want this session: {why}; its log may say more"),
                ),
                Some(why) => (EndedBy::Peer, format!("the peer at {place} ended the session: {why}")),
            };
            let unwanted = [Some(TermReason::CONTACT_FAILURE), Some(TermReason::VERSION_MISMATCH)];
            let in_order = !unwanted.contains(&self.term_reason);
            self.end = Some(SessionEnd { by, reason, in_order, peer: self.peer.clone() });
            self.phase = Phase::Over;
        }
    }

    /// How the session ended, if it has. There may still be output to [write](Self::take_control).
    pub fn end(&self) -> Option<&SessionEnd> {
        self.end.as_ref()
    }

    /// The peer, once the session is established.
    pub fn peer(&self) -> Option<&Eid> {
        self.peer.as_ref().filter(|_| matches!(self.phase, Phase::Established | Phase::Over))
    }

    /// Appends pending messages, which are written before the next segment.
    pub fn take_control(&mut self, out: &mut Vec<u8>, now: Time) {
        if !self.control.is_empty() {
            self.last_sent = now;
            out.append(&mut self.control);
        }
    }

    fn push(&mut self, message: &Message) {
        if self.control.len() > MAX_CONTROL {
            let text = format!(
                "the peer at {} sends but does not read: {MAX_CONTROL} bytes of answers wait for it",
                self.place
            );
            return self.abort(EndedBy::Us, text);
        }
        message.encode(&mut self.control);
    }

    /// Rejects a message that violates the protocol, and ends the session.
    fn reject(&mut self, header: u8, what: &str) {
        self.push(&Message::Reject { reason: RejectReason::UNEXPECTED, header });
        self.terminate_with(TermReason::UNKNOWN, format!("the peer at {} {what}", self.place));
    }

    fn on_message(&mut self, message: Message, now: Time) -> Option<Event<'static>> {
        match (message, self.phase) {
            (Message::SessInit(init), Phase::Init) => return self.on_init(init),
            (Message::SessInit(_), _) => self.reject(message::kind::SESS_INIT, "sent a second SESS_INIT"),
            (Message::SessTerm { reply, reason }, _) => self.on_term(reply, reason, now),
            (Message::Reject { reason, header }, _) => {
                let text = format!(
                    "the peer at {} rejected this node's message of type {header:#04x}: {reason}",
                    self.place
                );
                self.terminate_with(TermReason::UNKNOWN, text);
            }
            (Message::Keepalive, _) => self.count_idle(now, "keepalives"),
            (Message::Segment(head), Phase::Established) => return self.on_segment(head, now),
            (Message::Ack { id, len, .. }, Phase::Established) => return self.on_ack(id, len, now),
            (Message::Refuse { reason, id }, Phase::Established) => return self.on_refuse(id, reason, now),
            (Message::Segment(_), _) => {
                self.reject(message::kind::XFER_SEGMENT, "sent data before SESS_INIT")
            }
            (Message::Ack { .. }, _) => {
                self.reject(message::kind::XFER_ACK, "sent an XFER_ACK before SESS_INIT");
            }
            (Message::Refuse { .. }, _) => {
                self.reject(message::kind::XFER_REFUSE, "sent an XFER_REFUSE before SESS_INIT");
            }
        }
        None
    }

    fn on_term(&mut self, reply: bool, reason: TermReason, now: Time) {
        if self.term.1 {
            return self.reject(message::kind::SESS_TERM, "sent a second SESS_TERM");
        }
        if self.phase != Phase::Established {
            let text = format!(
                "the node at {} does not want this session: {reason}; its log may say more",
                self.place
            );
            // RFC 9174 §6.1: whoever has not sent one answers it, before SESS_INIT too.
            self.push(&Message::SessTerm { reply: true, reason });
            return self.abort(EndedBy::Peer, text);
        }
        if reply && !self.term.0 {
            return self.reject(message::kind::SESS_TERM, "answered a SESS_TERM that nobody sent");
        }
        self.term.1 = true;
        self.last_progress = now;
        if !self.term.0 {
            self.term.0 = true;
            self.term_reason = Some(reason);
            self.push(&Message::SessTerm { reply: true, reason });
        }
        self.close_if_done();
    }

    fn on_segment(&mut self, head: SegmentHead, now: Time) -> Option<Event<'static>> {
        if head.len == 0 && !head.flags.is_start() && !head.flags.is_end() {
            self.count_idle(now, "empty segments");
        }
        let ending = self.term.0 || self.term.1;
        match self.inbound.begin(head, ending) {
            Ok((None, begin)) => begin.map(|announced| Event::Begin { announced }),
            Ok((Some(refusal), _)) => {
                self.answer(Message::Refuse { reason: refusal, id: head.id });
                None
            }
            Err(what) => {
                self.reject(message::kind::XFER_SEGMENT, &what);
                None
            }
        }
    }

    fn on_ack(&mut self, id: u64, len: u64, now: Time) -> Option<Event<'static>> {
        let answer = self.outbound.on_ack(id, len);
        self.on_answer(answer, message::kind::XFER_ACK, now).map(Event::Sent)
    }

    fn on_refuse(&mut self, id: u64, why: Refusal, now: Time) -> Option<Event<'static>> {
        let answer = self.outbound.on_refuse(id);
        self.on_answer(answer, message::kind::XFER_REFUSE, now).map(|handle| Event::Refused(handle, why))
    }

    fn on_answer(&mut self, answer: Result<Answer, String>, header: u8, now: Time) -> Option<BundleHandle> {
        match answer {
            Ok(Answer::Late) => self.count_idle(now, "answers to what was answered"),
            Ok(Answer::Expected) => {}
            Ok(Answer::Progress) => self.last_progress = now,
            Ok(Answer::Fate(handle)) => {
                self.last_progress = now;
                self.close_if_done();
                return Some(handle);
            }
            Err(what) => self.reject(header, &what),
        }
        None
    }

    /// The agent refuses the current transfer: its rest is skipped.
    pub fn refuse(&mut self, why: Refusal) {
        if let Some(id) = self.inbound.refuse(why) {
            self.answer(Message::Refuse { reason: why, id });
        }
        self.close_if_done();
    }

    /// The outcome of the transfer that was [complete](Event::Complete). It is sent when those of the
    /// transfers before it are known.
    pub fn finished(&mut self, ticket: Ticket, outcome: Result<(), Refusal>, now: Time) {
        self.answers.resolve(ticket, outcome);
        self.last_progress = now;
        self.send_answers();
        self.close_if_done();
    }

    /// Whether so many transfers wait for their outcome that nothing more may be received.
    pub fn is_congested(&self) -> bool {
        self.answers.is_full() && self.phase != Phase::Over
    }

    /// Answers an incoming transfer, after those before it.
    fn answer(&mut self, message: Message) {
        self.answers.push(message);
        self.send_answers();
    }

    fn send_answers(&mut self) {
        while let Some(message) = self.answers.pop() {
            self.push(&message);
        }
    }

    /// The maximum length of a transfer that may begin now, bytes; `None` if none may.
    pub fn may_begin(&self) -> Option<u64> {
        let open = self.phase == Phase::Established && !self.term.0 && !self.term.1;
        self.outbound.may_begin().filter(|_| open)
    }

    /// Begins a transfer, after [`may_begin`](Self::may_begin) has allowed it.
    pub fn begin(&mut self, handle: BundleHandle, len: u64) {
        self.outbound.begin(handle, len);
    }

    /// The next segment of the current transfer. Its head is appended to `out`; its data has to follow.
    pub fn segment(&mut self, out: &mut Vec<u8>, now: Time) -> Option<NextSegment> {
        let (head, next) = self.outbound.segment().filter(|_| self.phase == Phase::Established)?;
        self.last_sent = now;
        Message::Segment(head).encode(out);
        Some(next)
    }

    /// The handle of the transfer that is being sent; `None` when all of it was sent or the peer refused it.
    pub fn sending(&self) -> Option<BundleHandle> {
        self.outbound.sending()
    }

    /// Ends the session, and returns its unacknowledged transfers.
    pub fn abandon(&mut self) -> Vec<BundleHandle> {
        self.abort(EndedBy::Us, format!("the session with {} was dropped", self.place));
        self.outbound.abandon()
    }
}

#[cfg(test)]
mod tests;
