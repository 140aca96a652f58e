//! The answers to incoming transfers, in the order of the transfers, whenever their outcomes are known.

use std::collections::VecDeque;

use crate::convergence::Refusal;
use crate::tcpcl::message::Message;

/// The most answers that wait. Then nothing more is read from the peer, whose TCP has to wait, too. A small
/// bundle is in memory meanwhile, so that this bounds it.
const MAX_WAITING: usize = 1024;

/// Which transfer an outcome is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug)]
enum Answer {
    /// It waits for others before it.
    Ready(Message),
    /// The transfer of this ID is complete; with a good outcome this is the answer.
    Awaited(Ticket, u64, Message),
}

/// Answers that cannot be sent yet.
#[derive(Debug, Default)]
pub(super) struct Answers {
    waiting: VecDeque<Answer>,
    next: u64,
}

impl Answers {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING
    }

    /// An answer that is known.
    pub(super) fn push(&mut self, message: Message) {
        self.waiting.push_back(Answer::Ready(message));
    }

    /// The answer to a complete transfer, if its outcome is good.
    pub(super) fn expect(&mut self, id: u64, acknowledgement: Message) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        self.waiting.push_back(Answer::Awaited(ticket, id, acknowledgement));
        ticket
    }

    /// An outcome is known. Nothing happens if it was known before.
    pub(super) fn resolve(&mut self, ticket: Ticket, outcome: Result<(), Refusal>) {
        let is_it = |answer: &&mut Answer| matches!(answer, Answer::Awaited(other, ..) if *other == ticket);
        if let Some(answer) = self.waiting.iter_mut().find(is_it)
            && let Answer::Awaited(_, id, acknowledgement) = answer
        {
            *answer = Answer::Ready(match outcome {
                Ok(()) => acknowledgement.clone(),
                Err(reason) => Message::Refuse { reason, id: *id },
            });
        }
    }

    /// The next answer that can be sent.
    pub(super) fn pop(&mut self) -> Option<Message> {
        match self.waiting.pop_front()? {
            Answer::Ready(message) => Some(message),
            awaited => {
                self.waiting.push_front(awaited);
                None
            }
        }
    }
}
