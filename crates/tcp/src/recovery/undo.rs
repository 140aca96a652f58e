//! A reduction of the window that turns out to be spurious: nothing was lost, only late.

use std::time::Duration;

use bentpipe_units::Time;

use crate::congestion::CongestionControl;
use crate::send_queue::SendQueue;

/// The grain of the timestamps.
const TICK: Duration = Duration::from_millis(1);

/// What the reduction has changed, and the evidence for it: it was spurious if an acknowledgement of the
/// first retransmission answers the original, by its timestamp (Eifel detection, RFC 3522), or if all the
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
    ///
    /// Retransmissions of the repair before it may be on their way still: they are evidence as the new ones
    /// are.
    pub(super) fn new(queue: &SendQueue, congestion: &dyn CongestionControl) -> Self {
        let (earlier, first_retransmission) = queue.repetitions_in_flight();
        Self {
            cwnd: congestion.cwnd(),
            ssthresh: congestion.ssthresh(),
            una: queue.una(),
            unreported: (earlier > 0).then_some(earlier),
            first_retransmission,
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

    /// An acknowledgement that advances answers a segment that left in the millisecond from `echoed` on:
    /// before the first retransmission.
    pub(super) fn is_spurious_by_echo(&self, echoed: Option<Time>) -> bool {
        echoed.zip(self.first_retransmission).is_some_and(|(echoed, first)| echoed + TICK <= first)
    }

    /// Restores window and threshold (RFC 4015 §3.2); neither is made smaller.
    pub(super) fn restore(self, congestion: &mut dyn CongestionControl) {
        congestion.on_spurious();
        let (cwnd, ssthresh) = (congestion.cwnd().max(self.cwnd), congestion.ssthresh().max(self.ssthresh));
        congestion.set_window(cwnd, ssthresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{NewReno, Parameters};

    const MSS: u64 = 1000;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn reno() -> NewReno {
        NewReno::new(Parameters {
            mss: MSS,
            initial_window: 10 * MSS,
            byte_counting_limit: None,
            hystart: false,
            linux_cubic: false,
        })
    }

    /// A repair that begins while retransmissions of the last one are on their way: their acknowledgements
    /// answer what left before this repair, and yet are no sign that nothing was lost.
    #[test]
    fn retransmissions_of_the_repair_before_are_no_originals() {
        let mut queue = SendQueue::new(0);
        queue.note_repetitions();
        (0..3).for_each(|_| queue.push(MSS as u32, at(0)));
        queue.lose_head();
        queue.sent_again(0, at(100));
        let mut undo = Undo::new(&queue, &reno());
        undo.on_sent_again(at(150));
        assert!(!undo.is_spurious_by_echo(Some(at(100))));
        assert!(undo.is_spurious_by_echo(Some(at(99))));
        undo.on_duplicates(MSS, 1);
        assert!(!undo.is_spurious_by_duplicates(), "there are two of them");
        undo.on_duplicates(MSS, 1);
        assert!(undo.is_spurious_by_duplicates());
    }
}
