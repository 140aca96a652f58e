//! SACK-based recovery (RFC 6675).

use crate::recovery::reduction::Reduction;
use crate::recovery::{Acknowledgement, Action, Expiry, LossRecovery};
use crate::send_queue::{DUP_THRESH, Piece, SendQueue};

/// RFC 6675's algorithm over the scoreboard of the send queue.
#[derive(Debug, Clone)]
pub(crate) struct Selective {
    mss: u64,
    prr: bool,
    /// The reduction of the window under way, with proportional rate reduction.
    reduction: Option<Reduction>,
    duplicates: u64,
    /// The next offset to be sent when the last repair began, or the last timeout came; losses below it are
    /// of the same window (RFC 6675 §5, RecoveryPoint, and §5.1).
    recovery_point: u64,
    active: bool,
    /// The rescue of this repair has been used (RFC 6675 §4, rule 4).
    rescued: bool,
}

impl Selective {
    pub(crate) fn new(mss: u64, prr: bool) -> Self {
        let (duplicates, recovery_point) = (0, 0);
        Self { mss, prr, reduction: None, duplicates, recovery_point, active: false, rescued: false }
    }

    /// Whether a repair ends or begins with this acknowledgement.
    fn judge(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        if ack.progress.advanced > 0 {
            self.duplicates = 0;
            if self.active && ack.queue.una() >= self.recovery_point {
                self.active = false;
                self.reduction = None;
                ack.congestion.on_recovery_end(ack.now);
            }
        } else if ack.progress.sacked {
            self.duplicates += 1;
        }
        let lost = ack.queue.head_is_lost() || self.duplicates >= DUP_THRESH;
        if !self.active && lost && ack.queue.una() >= self.recovery_point {
            return self.begin(ack);
        }
        Action::default()
    }

    fn begin(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        self.active = true;
        self.rescued = false;
        self.recovery_point = ack.queue.nxt();
        ack.congestion.on_loss(ack.now, ack.queue.outstanding());
        self.reduction = (self.prr && ack.congestion.is_reduced_proportionally())
            .then(|| Reduction::new(self.mss, ack.queue.outstanding()));
        ack.queue.lose_head();
        Action { begins: true, retransmit_now: true, ..Action::default() }
    }
}

impl LossRecovery for Selective {
    fn on_ack(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        let lost_before = ack.queue.lost_bytes();
        if ack.progress.sacked {
            ack.queue.judge_by_sack(self.mss);
        }
        let action = self.judge(ack);
        if let Some(reduction) = &mut self.reduction {
            let safe = ack.progress.advanced > 0 && ack.queue.lost_bytes() <= lost_before;
            reduction.on_ack(ack.progress.delivered, ack.queue.in_flight(), ack.congestion.cwnd(), safe);
        }
        action
    }

    fn on_timeout(&mut self, expiry: &mut Expiry<'_>) {
        expiry.lose_all();
        self.active = false;
        self.reduction = None;
        self.duplicates = 0;
        self.recovery_point = expiry.queue.nxt();
    }

    fn rescue(&mut self, queue: &SendQueue) -> Option<Piece> {
        if !self.active {
            return None;
        }
        queue.next_hole().or_else(|| {
            let last = if self.rescued { None } else { queue.last() };
            self.rescued |= last.is_some();
            last
        })
    }

    fn allowance(&self) -> Option<u64> {
        self.reduction.as_ref().map(Reduction::allowance)
    }

    fn on_sent(&mut self, bytes: u64) {
        if let Some(reduction) = &mut self.reduction {
            reduction.on_sent(bytes);
        }
    }

    fn is_active(&self) -> bool {
        self.active
    }
}
