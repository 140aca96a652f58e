//! Incoming transfers: the valid order of segments (RFC 9174 §5.2).

use crate::convergence::Refusal;
use crate::tcpcl::message::{Message, SegmentFlags, SegmentHead};

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A message begins.
    NeedsMessage,
    /// Data is needed, and there is none.
    NeedsData,
    /// This many bytes are skipped.
    Skipped(usize),
    /// This many bytes are data for the agent.
    Data(usize),
    /// A segment is complete, and this is the answer.
    Answer { message: Message, abandoned: bool },
    /// The transfer is complete, and the agent has to accept or refuse it.
    Complete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Receiving(Transfer),
    /// Refused for this reason; the sender may not know yet.
    Refused(u64, Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Transfer {
    id: u64,
    received: u64,
    announced: Option<u64>,
}

/// The current segment.
#[derive(Debug, Clone, Copy)]
struct Segment {
    flags: SegmentFlags,
    left: u64,
}

/// The incoming transfer; there is one at a time.
#[derive(Debug)]
pub(super) struct Inbound {
    segment_mru: u64,
    transfer_mru: u64,
    lenient: bool,
    state: State,
    segment: Option<Segment>,
    last_id: Option<u64>,
}

/// The result of a segment's head: a refusal, and the announced length of a transfer that it begins.
pub(super) type Begun = (Option<Refusal>, Option<Option<u64>>);

impl Inbound {
    pub(super) fn new(segment_mru: u64, transfer_mru: u64) -> Self {
        Self { segment_mru, transfer_mru, lenient: false, state: State::Idle, segment: None, last_id: None }
    }

    pub(super) fn set_lenient(&mut self, lenient: bool) {
        self.lenient = lenient;
    }

    /// Whether a transfer is incomplete.
    pub(super) fn is_receiving(&self) -> bool {
        matches!(self.state, State::Receiving(_)) || self.segment.is_some()
    }

    /// A segment begins. An error says what is wrong with it.
    pub(super) fn begin(&mut self, head: SegmentHead, ending: bool) -> Result<Begun, String> {
        if head.len > self.segment_mru && !self.lenient {
            return Err(format!(
                "sent a segment of {} bytes, and at most {} were agreed",
                head.len, self.segment_mru
            ));
        }
        let mut begun = (None, None);
        match (head.flags.is_start(), self.state) {
            (true, State::Receiving(transfer)) => {
                return Err(format!("began transfer {} before the end of transfer {}", head.id, transfer.id));
            }
            (true, _) => begun = self.begin_transfer(&head, ending)?,
            (false, State::Receiving(transfer)) if transfer.id == head.id => {}
            // RFC 9174 §5.2.4: what was on its way is refused, too.
            (false, State::Refused(id, why)) if id == head.id => begun.0 = Some(why),
            (false, _) => return Err(format!("continued transfer {}, which has not begun", head.id)),
        }
        if let State::Receiving(transfer) = self.state
            && begun.0.is_none()
        {
            begun.0 = self.beyond_limits(&transfer, head.len);
        }
        if let Some(why) = begun.0 {
            self.state = State::Refused(head.id, why);
        }
        self.segment = Some(Segment { flags: head.flags, left: head.len });
        Ok(begun)
    }

    fn begin_transfer(&mut self, head: &SegmentHead, ending: bool) -> Result<Begun, String> {
        // RFC 9174 §5.2.1: unique within a session. Only the last is remembered; a peer that repeats others
        // harms only itself.
        if self.last_id == Some(head.id) {
            return Err(format!("used transfer ID {} twice", head.id));
        }
        self.last_id = Some(head.id);
        let extensions = head.extensions;
        let announced = extensions.length.filter(|_| !self.lenient);
        self.state = State::Receiving(Transfer { id: head.id, received: 0, announced });
        let strange = extensions.critical_unknown || extensions.malformed;
        Ok(if ending {
            (Some(Refusal::SessionTerminating), None)
        } else if strange && !self.lenient {
            (Some(Refusal::ExtensionFailure), None)
        } else if announced.is_some_and(|len| len > self.transfer_mru) {
            (Some(Refusal::NoResources), None)
        } else {
            (None, Some(announced))
        })
    }

    fn beyond_limits(&self, transfer: &Transfer, more: u64) -> Option<Refusal> {
        let total = transfer.received.saturating_add(more);
        if total > self.transfer_mru {
            return Some(Refusal::NoResources);
        }
        // RFC 9174 §5.2.5.1: the announced length is authoritative.
        transfer.announced.is_some_and(|announced| total > announced).then_some(Refusal::NotAcceptable)
    }

    /// Classifies the next bytes.
    pub(super) fn step(&mut self, input: &[u8]) -> Step {
        let Some(segment) = &mut self.segment else { return Step::NeedsMessage };
        if segment.left > 0 {
            let len = usize::try_from(segment.left).unwrap_or(usize::MAX).min(input.len());
            if len == 0 {
                return Step::NeedsData;
            }
            segment.left -= len as u64;
            return match &mut self.state {
                State::Receiving(transfer) => {
                    transfer.received += len as u64;
                    Step::Data(len)
                }
                _ => Step::Skipped(len),
            };
        }
        self.end_of_segment()
    }

    fn end_of_segment(&mut self) -> Step {
        let (Some(segment), state) = (self.segment, self.state) else { return Step::NeedsMessage };
        let State::Receiving(transfer) = state else {
            self.segment = None;
            if segment.flags.is_end() {
                self.state = State::Idle;
            }
            return Step::NeedsMessage;
        };
        if !segment.flags.is_end() {
            self.segment = None;
            return Step::Answer { message: ack(segment, transfer), abandoned: false };
        }
        if transfer.announced.is_some_and(|announced| announced != transfer.received) {
            (self.segment, self.state) = (None, State::Idle);
            let message = Message::Refuse { reason: Refusal::NotAcceptable, id: transfer.id };
            return Step::Answer { message, abandoned: true };
        }
        Step::Complete
    }

    /// Refuses the current transfer; returns its ID.
    pub(super) fn refuse(&mut self, why: Refusal) -> Option<u64> {
        let State::Receiving(transfer) = self.state else { return None };
        self.state = State::Refused(transfer.id, why);
        Some(transfer.id)
    }

    /// Ends a transfer that is [complete](Step::Complete): its ID, and the acknowledgement of its last segment.
    pub(super) fn end_transfer(&mut self) -> Option<(u64, Message)> {
        let (Some(segment), State::Receiving(transfer)) = (self.segment, self.state) else { return None };
        if !segment.flags.is_end() || segment.left > 0 {
            return None;
        }
        (self.segment, self.state) = (None, State::Idle);
        Some((transfer.id, ack(segment, transfer)))
    }
}

fn ack(segment: Segment, transfer: Transfer) -> Message {
    Message::Ack { flags: segment.flags, id: transfer.id, len: transfer.received }
}
