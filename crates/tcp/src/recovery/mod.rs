//! Loss recovery: when a segment counts as lost, and when the repair is over.
//!
//! Reno and the two NewRenos judge by duplicate acknowledgements (`dup_acks.rs`), SACK recovery by the
//! scoreboard (`selective.rs`), RACK by the order of departures (`rack.rs`). Lost segments are marked in the
//! send queue; the sender sends them again before anything new, as the window allows.

mod dup_acks;
mod probe;
mod rack;
mod reduction;
mod selective;
mod undo;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bentpipe_units::Time;

use dup_acks::DuplicateAcks;
pub(crate) use probe::TailLossProbe;
use rack::Rack;
use selective::Selective;

use crate::congestion::{CongestionControl, Phase};
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
    /// RFC 8985: by the order of departures, with a timer for what may only be reordered; lost
    /// retransmissions are found, too.
    Rack,
}

impl Recovery {
    /// All of them.
    pub const ALL: [Recovery; 5] = [
        Recovery::Reno,
        Recovery::NewRenoImpatient,
        Recovery::NewRenoSlowButSteady,
        Recovery::Sack,
        Recovery::Rack,
    ];

    /// One at work, with those of the `parts` that it has.
    pub(crate) fn build(self, mss: u64, parts: Parts) -> AnyRecovery {
        match self {
            Recovery::Sack => AnyRecovery::Selective(Selective::new(mss, parts.rate_reduction)),
            Recovery::Rack => AnyRecovery::Rack(Rack::new(mss, parts)),
            variant => AnyRecovery::DuplicateAcks(DuplicateAcks::new(variant, mss, parts.limited_transmit)),
        }
    }

    /// Whether it needs selective acknowledgements, and goes by them.
    pub(crate) fn is_selective(self) -> bool {
        matches!(self, Recovery::Sack | Recovery::Rack)
    }

    fn name(self) -> &'static str {
        match self {
            Recovery::Reno => "reno",
            Recovery::NewRenoImpatient => "newreno-impatient",
            Recovery::NewRenoSlowButSteady => "newreno-slow-but-steady",
            Recovery::Sack => "sack",
            Recovery::Rack => "rack",
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
#[error(
    "\"{0}\" is not a loss recovery: choose reno, newreno-impatient, newreno-slow-but-steady, sack or rack"
)]
pub struct UnknownRecovery(String);

impl FromStr for Recovery {
    type Err = UnknownRecovery;

    fn from_str(name: &str) -> Result<Self, UnknownRecovery> {
        let found = Recovery::ALL.into_iter().find(|variant| variant.name() == name);
        found.ok_or_else(|| UnknownRecovery(name.to_owned()))
    }
}

/// The parts of a variant that can be switched off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// RFC 3042, of the variants that count duplicates.
    pub(crate) limited_transmit: bool,
    /// Proportional rate reduction, of the selective ones.
    pub(crate) rate_reduction: bool,
    /// F-RTO (RFC 5682), of RACK.
    pub(crate) forward_rto: bool,
    /// A reduction that turns out to be spurious is undone (RFC 4015, RFC 3708), of RACK.
    pub(crate) undo: bool,
}

/// What the sender is to do besides what its window allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Action {
    /// A fast recovery begins.
    pub(crate) begins: bool,
    /// Send the first lost segment now, whatever the window says (RFC 5681 §3.2 step 3, RFC 6675 §5 step
    /// 4.3).
    pub(crate) retransmit_now: bool,
    /// The acknowledgement advanced, but leaves the retransmission timer as it is.
    pub(crate) leave_timer: bool,
    /// New data goes before what is lost, until the next acknowledgement (RFC 5682 §3.1, step 2).
    pub(crate) new_first: bool,
}

/// An acknowledgement, after the send queue has taken it, and what it may change.
#[derive(Debug)]
pub(crate) struct Acknowledgement<'a> {
    pub(crate) now: Time,
    pub(crate) progress: &'a Progress,
    /// It repeats the last one and nothing else (RFC 5681 §2).
    pub(crate) duplicate: bool,
    /// The start of the millisecond in which the segment left that it answers, by the timestamps.
    pub(crate) echoed: Option<Time>,
    /// What has arrived twice, by a D-SACK block (RFC 2883); not what a tail loss probe has repeated.
    pub(crate) twice: Option<(u64, u64)>,
    /// The smoothed and the smallest round-trip time; zero before the first measurement.
    pub(crate) srtt: Duration,
    pub(crate) min_rtt: Duration,
    pub(crate) queue: &'a mut SendQueue,
    pub(crate) congestion: &'a mut dyn CongestionControl,
}

/// A timer has expired, that of retransmissions or a variant's own.
#[derive(Debug)]
pub(crate) struct Expiry<'a> {
    pub(crate) now: Time,
    /// The segment was not retransmitted by the timer before.
    pub(crate) first: bool,
    pub(crate) srtt: Duration,
    pub(crate) min_rtt: Duration,
    pub(crate) queue: &'a mut SendQueue,
    pub(crate) congestion: &'a mut dyn CongestionControl,
}

impl Expiry<'_> {
    /// Everything is lost, and the window is (RFC 5681 §3.1).
    fn lose_all(&mut self) {
        self.congestion.on_timeout(self.now, self.queue.outstanding(), self.first);
        self.queue.lose_all();
    }
}

/// A variant of loss recovery at work on one connection.
#[allow(unused_variables, reason = "what a variant does not need it ignores")]
pub(crate) trait LossRecovery: fmt::Debug + Send {
    /// An acknowledgement arrived.
    fn on_ack(&mut self, ack: &mut Acknowledgement<'_>) -> Action;

    /// The retransmission timer expired: it is to mark what is lost, and to tell the congestion control.
    fn on_timeout(&mut self, expiry: &mut Expiry<'_>);

    /// When it wants [`on_wake`](Self::on_wake) to be called.
    fn wake_at(&self) -> Time {
        Time::MAX
    }

    /// The moment has come.
    fn on_wake(&mut self, expiry: &mut Expiry<'_>) -> Action {
        Action::default()
    }

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

    /// Bytes that may be in flight during the repair; `None` leaves it to the congestion control.
    fn window(&self) -> Option<u64> {
        None
    }

    /// Bytes were sent, for the first time or again.
    fn on_sent(&mut self, bytes: u64) {}

    /// A segment that was lost was sent again.
    fn on_sent_again(&mut self, now: Time) {}

    /// Something to send again though it is not known to be lost, when there is nothing new to send.
    fn rescue(&mut self, queue: &SendQueue) -> Option<Piece> {
        None
    }

    /// Whether losses are being repaired.
    fn is_active(&self) -> bool;

    /// How losses are being repaired.
    fn phase(&self) -> Phase {
        if self.is_active() { Phase::Recovery } else { Phase::Open }
    }

    /// Whether nothing is lost, nor in doubt: a tail loss probe has a place.
    fn is_quiet(&self, queue: &SendQueue) -> bool {
        !self.is_active() && queue.lost_bytes() == 0 && queue.sacked_segments() == 0
    }
}

/// One of the variants at work. Several of these questions are asked for each segment, and an indirect call
/// would cost more than most answers.
#[derive(Debug)]
pub(crate) enum AnyRecovery {
    DuplicateAcks(DuplicateAcks),
    Selective(Selective),
    Rack(Rack),
}

macro_rules! ask {
    ($any:ident.$question:ident($($argument:ident)?)) => {
        match $any {
            AnyRecovery::DuplicateAcks(variant) => variant.$question($($argument)?),
            AnyRecovery::Selective(variant) => variant.$question($($argument)?),
            AnyRecovery::Rack(variant) => variant.$question($($argument)?),
        }
    };
}

impl LossRecovery for AnyRecovery {
    #[inline]
    fn on_ack(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        ask!(self.on_ack(ack))
    }

    #[inline]
    fn on_timeout(&mut self, expiry: &mut Expiry<'_>) {
        ask!(self.on_timeout(expiry))
    }

    #[inline]
    fn wake_at(&self) -> Time {
        ask!(self.wake_at())
    }

    #[inline]
    fn on_wake(&mut self, expiry: &mut Expiry<'_>) -> Action {
        ask!(self.on_wake(expiry))
    }

    #[inline]
    fn credit(&self) -> u64 {
        ask!(self.credit())
    }

    #[inline]
    fn allowance(&self) -> Option<u64> {
        ask!(self.allowance())
    }

    #[inline]
    fn window(&self) -> Option<u64> {
        ask!(self.window())
    }

    #[inline]
    fn on_sent(&mut self, bytes: u64) {
        ask!(self.on_sent(bytes))
    }

    #[inline]
    fn on_sent_again(&mut self, now: Time) {
        ask!(self.on_sent_again(now))
    }

    #[inline]
    fn rescue(&mut self, queue: &SendQueue) -> Option<Piece> {
        ask!(self.rescue(queue))
    }

    #[inline]
    fn is_active(&self) -> bool {
        ask!(self.is_active())
    }

    #[inline]
    fn phase(&self) -> Phase {
        ask!(self.phase())
    }

    #[inline]
    fn is_quiet(&self, queue: &SendQueue) -> bool {
        ask!(self.is_quiet(queue))
    }
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
