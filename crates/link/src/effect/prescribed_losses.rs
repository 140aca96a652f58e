//! Losses of certain packets, by number.

use std::num::NonZeroU64;

use super::{Effect, Transit};
use crate::Cause;

/// The numbers of the packets that are lost, whatever chance says.
///
/// The packets of a direction are numbered from 1 as they leave the transmitter. Those that the queue drops
/// have no number; all others do, with payload or without, retransmissions and the frames of an ARQ included:
/// a link does not read what it carries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrescribedLosses {
    /// Ascending, each one once.
    numbers: Vec<NonZeroU64>,
}

impl PrescribedLosses {
    /// Whether none is prescribed.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The numbers, ascending.
    pub fn numbers(&self) -> impl Iterator<Item = NonZeroU64> + '_ {
        self.numbers.iter().copied()
    }
}

impl FromIterator<NonZeroU64> for PrescribedLosses {
    fn from_iter<I: IntoIterator<Item = NonZeroU64>>(numbers: I) -> Self {
        let mut numbers: Vec<_> = numbers.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        Self { numbers }
    }
}

/// Counts the packets that have been sent, and loses those whose turn it is.
#[derive(Debug)]
pub(crate) struct PrescribedErrors {
    /// The numbers still to come, descending.
    to_come: Vec<NonZeroU64>,
    sent: u64,
}

impl PrescribedErrors {
    pub(crate) fn new(losses: &PrescribedLosses) -> Self {
        Self { to_come: losses.numbers.iter().rev().copied().collect(), sent: 0 }
    }
}

impl Effect for PrescribedErrors {
    /// A packet that is lost already, but was sent, counts.
    fn apply(&mut self, packet: &mut Transit) {
        self.sent += 1;
        if self.to_come.pop_if(|next| next.get() == self.sent).is_some() {
            packet.lose(Cause::PacketError);
        }
    }
}
