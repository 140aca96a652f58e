//! Loss recovery: when a segment counts as lost, and when the repair is over.
//!
//! Reno and the two NewRenos judge by duplicate acknowledgements (`dup_acks.rs`), SACK
//! recovery by the scoreboard (`selective.rs`). Lost segments are marked in the send queue; the sender
//! sends them again before anything new, as the window allows.

mod dup_acks;
mod reduction;
mod selective;

use std::fmt;
use std::str::FromStr;

use bentpipe_units::Time;

use crate::congestion::CongestionControl;
use crate::send_queue::{Piece, Progress, SendQueue};

/// The variants of loss recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// RFC 2581's fast recovery: the first acknowledgement of new data ends it, though more may be lost.
    Reno,
    /// RFC 6582 §4: only the first partial acknowledgement restarts the retransmission timer, so that a
    /// window with many losses is repaired by the timeout.
    NewRenoImpatient,
    /// RFC 6582 §4: every partial acknowledgement restarts the retransmission timer, so that a window with
    /// many losses is repaired one of them in a round trip.
    NewRenoSlowButSteady,
    /// RFC 6675.
    Sack,
}

impl Recovery {
    /// All of them.
    pub const ALL: [Recovery; 4] =
        [Recovery::Reno, Recovery::NewRenoImpatient, Recovery::NewRenoSlowButSteady, Recovery::Sack];

    /// `limited_transmit` is of the variants that count duplicates, `prr` of SACK recovery.
    pub(crate) fn build(self, mss: u64, limited_transmit: bool, prr: bool) -> Box<dyn LossRecovery> {
        match self {
            Recovery::Sack => Box::new(selective::Selective::new(mss, prr)),
            variant => Box::new(dup_acks::DuplicateAcks::new(variant, mss, limited_transmit)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Recovery::Reno => "reno",
            Recovery::NewRenoImpatient => "newreno-impatient",
            Recovery::NewRenoSlowButSteady => "newreno-slow-but-steady",
            Recovery::Sack => "sack",
        }
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no variant has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a loss recovery: choose reno, newreno-impatient, newreno-slow-but-steady or sack")]
pub struct UnknownRecovery(String);

impl FromStr for Recovery {
    type Err = UnknownRecovery;

    fn from_str(name: &str) -> Result<Self, UnknownRecovery> {
        let found = Recovery::ALL.into_iter().find(|variant| variant.name() == name);
        found.ok_or_else(|| UnknownRecovery(name.to_owned()))
    }
}

/// What the sender is to do besides what its window allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Action {
    /// Send the first lost segment now, whatever the window says (RFC 5681 §3.2 step 3, RFC 6675 §5 step
    /// 4.3).
    pub(crate) retransmit_now: bool,
    /// The acknowledgement advanced, but leaves the retransmission timer as it is.
    pub(crate) leave_timer: bool,
}

/// An acknowledgement, after the send queue has taken it, and what it may change.
#[derive(Debug)]
pub(crate) struct Acknowledgement<'a> {
    pub(crate) now: Time,
    pub(crate) progress: Progress,
    /// It repeats the last one and nothing else (RFC 5681 §2).
    pub(crate) duplicate: bool,
    pub(crate) queue: &'a mut SendQueue,
    pub(crate) congestion: &'a mut dyn CongestionControl,
}

/// A variant of loss recovery at work on one connection.
#[allow(unused_variables, reason = "what a variant does not need it ignores")]
pub(crate) trait LossRecovery: fmt::Debug + Send {
    /// An acknowledgement arrived.
    fn on_ack(&mut self, ack: &mut Acknowledgement<'_>) -> Action;

    /// The retransmission timer expired; everything in the queue is marked as lost.
    fn on_timeout(&mut self, queue: &SendQueue);

    /// Bytes that have left the network beyond what the queue knows: one segment for each duplicate
    /// acknowledgement.
    fn credit(&self) -> u64 {
        0
    }

    /// Bytes that may be sent before the next acknowledgement, whatever the window says; `None` leaves it to
    /// the window.
    fn allowance(&self) -> Option<u64> {
        None
    }

    /// Bytes were sent, for the first time or again.
    fn on_sent(&mut self, bytes: u64) {}

    /// Something to send again though it is not known to be lost, when there is nothing new to send.
    fn rescue(&mut self, queue: &SendQueue) -> Option<Piece> {
        None
    }

    /// Whether losses are being repaired.
    fn is_active(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_and_an_unknown_one_is_answered_with_all() {
        for variant in Recovery::ALL {
            assert_eq!(variant.to_string().parse(), Ok(variant));
            assert!("tahoe".parse::<Recovery>().unwrap_err().to_string().contains(variant.name()));
        }
    }
}
