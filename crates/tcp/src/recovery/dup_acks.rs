//! Reno and NewReno: recovery that counts duplicate acknowledgements.

use crate::recovery::{Acknowledgement, Action, Expiry, LossRecovery, Recovery};
use crate::send_queue::DUP_THRESH;

/// Fast retransmit and fast recovery (RFC 5681 §3.2), and what becomes of them at a partial acknowledgement
/// (RFC 6582).
///
/// The RFCs inflate the window by a segment for each duplicate acknowledgement. Here the window stays
/// unchanged, and the segments that have left the network are credited to the sender: the same sum, and cwnd
/// keeps its meaning.
#[derive(Debug, Clone)]
pub(crate) struct DuplicateAcks {
    variant: Recovery,
    mss: u64,
    limited_transmit: bool,
    duplicates: u64,
    credit: u64,
    /// RFC 6582's `recover`: the next offset to be sent when the last repair began, or the last timeout came.
    recover: u64,
    active: bool,
    partial_seen: bool,
}

impl DuplicateAcks {
    pub(crate) fn new(variant: Recovery, mss: u64, limited_transmit: bool) -> Self {
        Self {
            variant,
            mss,
            limited_transmit,
            duplicates: 0,
            credit: 0,
            recover: 0,
            active: false,
            partial_seen: false,
        }
    }

    fn on_duplicate(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        self.duplicates += 1;
        // Data sent before a timeout causes duplicates when it is sent again. The last of them repeat the
        // acknowledgement of `recover` itself: more than that must be acknowledged (RFC 6582 §3.2 step 2).
        let trusted = ack.queue.una() > self.recover;
        if self.active {
            self.credit += self.mss;
        } else if self.duplicates == DUP_THRESH && trusted {
            return self.begin(ack);
        } else if self.duplicates < DUP_THRESH && trusted && self.limited_transmit {
            // RFC 3042: a new segment for each of the first two.
            self.credit = self.duplicates * self.mss;
        }
        Action::default()
    }

    fn begin(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        // What limited transmit has sent does not count (RFC 5681 §3.2 step 2).
        let flight = ack.queue.outstanding() - self.credit.min(ack.queue.outstanding());
        self.active = true;
        self.partial_seen = false;
        self.recover = ack.queue.nxt();
        self.credit = DUP_THRESH * self.mss;
        ack.congestion.on_loss(ack.now, flight);
        ack.queue.lose_head();
        Action { begins: true, retransmit_now: true, ..Action::default() }
    }

    fn end(&mut self) {
        self.active = false;
        self.credit = 0;
        self.duplicates = 0;
    }

    fn on_partial(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        let leave_timer = self.variant == Recovery::NewRenoImpatient && self.partial_seen;
        self.partial_seen = true;
        // RFC 6582 §3.2 step 3: deflate by the acknowledged bytes, and add back a segment.
        let advanced = ack.progress.advanced;
        self.credit = self.credit.saturating_sub(advanced);
        if advanced >= self.mss {
            self.credit += self.mss;
        }
        ack.queue.lose_head();
        Action { retransmit_now: true, leave_timer, ..Action::default() }
    }
}

impl LossRecovery for DuplicateAcks {
    fn on_ack(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        if ack.progress.advanced == 0 {
            return if ack.duplicate { self.on_duplicate(ack) } else { Action::default() };
        }
        let partial = ack.queue.una() < self.recover;
        if self.active && partial && self.variant != Recovery::Reno {
            return self.on_partial(ack);
        }
        if self.active {
            ack.congestion.on_recovery_end(ack.now);
        }
        self.end();
        Action::default()
    }

    fn on_timeout(&mut self, expiry: &mut Expiry<'_>) {
        expiry.lose_all();
        self.end();
        self.recover = expiry.queue.nxt();
    }

    fn credit(&self) -> u64 {
        self.credit
    }

    fn is_active(&self) -> bool {
        self.active
    }
}
