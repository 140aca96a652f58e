//! A reduction of the window that turns out to be spurious: nothing was lost, only late.

use std::time::Duration;

use bentpipe_units::Time;

use crate::congestion::CongestionControl;
use crate::send_queue::SendQueue;

/// The grain of the timestamps.
const TICK: Duration = Duration::from_millis(1);

/// What the reduction has changed, and the evidence for it: it was spurious if an acknowledgement of the first
/// retransmission answers the original, by its timestamp (Eifel detection, RFC 3522), or if all the
/// retransmissions have arrived as duplicates (RFC 3708).
#[derive(Debug, Clone, Copy)]
pub(super) struct Undo {
    cwnd: u64,
    ssthresh: u64,
    /// The first unacknowledged offset when the repair began.
    una: u64,
    /// Retransmissions that no D-SACK has reported yet; `None` before the first.
    unreported: Option<u64>,
    first_retransmission: Option<Time>,
}

impl Undo {
    /// A repair begins; the congestion control does not know yet.
    pub(super) fn new(queue: &SendQueue, congestion: &dyn CongestionControl) -> Self {
        Self {
            cwnd: congestion.cwnd(),
            ssthresh: congestion.ssthresh(),
            una: queue.una(),
            unreported: None,
            first_retransmission: None,
        }
    }

    pub(super) fn on_sent_again(&mut self, now: Time) {
        self.unreported = Some(self.unreported.unwrap_or(0) + 1);
        self.first_retransmission.get_or_insert(now);
    }

    /// So many segments, up to the offset `end`, have arrived twice.
    pub(super) fn on_duplicates(&mut self, end: u64, segments: u64) {
        if end > self.una {
            self.unreported = self.unreported.map(|unreported| unreported.saturating_sub(segments));
        }
    }

    /// The repair is over: acknowledgements no longer answer its first retransmission.
    pub(super) fn close(&mut self) {
        self.first_retransmission = None;
    }

    /// All retransmissions have arrived as duplicates.
    pub(super) fn is_spurious_by_duplicates(&self) -> bool {
        self.unreported == Some(0)
    }

    /// An acknowledgement that advances answers a segment that left in the millisecond from `echoed` on: before
    /// the first retransmission.
    pub(super) fn is_spurious_by_echo(&self, echoed: Option<Time>) -> bool {
        echoed.zip(self.first_retransmission).is_some_and(|(echoed, first)| echoed + TICK <= first)
    }

    /// Restores window and threshold (RFC 4015 §3.2); neither is made smaller.
    pub(super) fn restore(self, congestion: &mut dyn CongestionControl) {
        let (cwnd, ssthresh) = (congestion.cwnd().max(self.cwnd), congestion.ssthresh().max(self.ssthresh));
        congestion.set_window(cwnd, ssthresh);
    }
}
