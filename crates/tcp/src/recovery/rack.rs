//! RACK (RFC 8985): a segment is lost when one that left later has arrived, unless both may be reordered.
//!
//! Around it stands what Linux does at the beginning and the end of a repair: proportional rate reduction,
//! F-RTO, and undoing a reduction that was spurious. Tail loss probes are in `probe.rs`.

mod detector;

use bentpipe_units::Time;

use self::detector::Detector;
use crate::congestion::{CongestionControl, Phase};
use crate::recovery::reduction::RateReduction;
use crate::recovery::undo::Undo;
use crate::recovery::{Acknowledgement, Action, Expiry, LossRecovery, Parts};
use crate::send_queue::SendQueue;

/// F-RTO's question, whether a timeout was spurious (RFC 5682 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForwardRto {
    /// It is answered, or not asked.
    Idle,
    /// The first acknowledgement after the timeout has not come yet (step 1).
    Retransmitted,
    /// It has come, and new data has been sent instead of more retransmissions (step 2).
    NewData,
}

/// RACK at work on one connection.
#[derive(Debug)]
pub(crate) struct Rack {
    mss: u64,
    parts: Parts,
    phase: Phase,
    detector: Detector,
    /// When the next segment counts as lost, if nothing is heard of it.
    reordering_timer: Time,
    /// The next offset to be sent when the repair began, or the timeout came.
    recovery_point: u64,
    reduction: Option<RateReduction>,
    undo: Option<Undo>,
    forward_rto: ForwardRto,
}

impl Rack {
    pub(crate) fn new(mss: u64, parts: Parts) -> Self {
        Self {
            mss,
            parts,
            phase: Phase::Open,
            detector: Detector::default(),
            reordering_timer: Time::MAX,
            recovery_point: 0,
            reduction: None,
            undo: None,
            forward_rto: ForwardRto::Idle,
        }
    }

    /// What a D-SACK block says of the repair; behind the repair, too.
    fn note_duplicates(&mut self, ack: &Acknowledgement<'_>) {
        let Some((start, end)) = ack.twice else { return };
        self.detector.on_duplicates(ack.queue.una(), ack.queue.nxt());
        if let Some(undo) = &mut self.undo {
            undo.on_duplicates(end, end.saturating_sub(start).div_ceil(self.mss));
        }
    }

    /// The reduction was spurious, as far as this acknowledgement tells.
    fn is_spurious(&self, ack: &Acknowledgement<'_>) -> bool {
        self.undo.is_some_and(|undo| {
            undo.is_spurious_by_duplicates()
                || ack.progress.advanced > 0 && undo.is_spurious_by_echo(ack.echoed)
        })
    }

    /// Nothing was lost: the window is what it was before, and the repair is over.
    fn take_back(&mut self, now: Time, queue: &mut SendQueue, congestion: &mut dyn CongestionControl) {
        if let Some(undo) = self.undo.take() {
            undo.restore(congestion);
        }
        queue.unmark_losses();
        self.end(now, congestion);
    }

    fn end(&mut self, now: Time, congestion: &mut dyn CongestionControl) {
        if self.phase == Phase::Recovery {
            congestion.on_recovery_end(now);
        }
        self.phase = Phase::Open;
        self.reduction = None;
        self.forward_rto = ForwardRto::Idle;
        if let Some(undo) = &mut self.undo {
            undo.close();
        }
    }

    /// After a timeout: whether it was spurious, by F-RTO.
    fn forward_rto(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        let progress = ack.progress;
        if self.forward_rto == ForwardRto::Idle {
            return Action::default();
        }
        // Step 3.b: something arrived that was sent once, before the timeout.
        if progress.lowest_sent_once.is_some_and(|end| end <= self.recovery_point) {
            self.take_back(ack.now, ack.queue, ack.congestion);
            return Action::default();
        }
        match self.forward_rto {
            ForwardRto::Retransmitted if progress.advanced > 0 => {
                self.forward_rto = ForwardRto::NewData;
                return Action { new_first: true, ..Action::default() };
            }
            // Step 3.a; or there was nothing new to send.
            ForwardRto::NewData
                if progress.sacked || ack.duplicate || ack.queue.nxt() <= self.recovery_point =>
            {
                self.forward_rto = ForwardRto::Idle;
            }
            _ => {}
        }
        Action::default()
    }

    /// Losses by time; whether a retransmission is among them.
    fn detect(&mut self, expiry: &mut Expiry<'_>) -> bool {
        let in_repair = self.phase != Phase::Open;
        let detected = self.detector.detect(expiry, in_repair);
        self.reordering_timer = detected.next.unwrap_or(Time::MAX);
        detected.repetition
    }

    /// Fast recovery begins.
    fn begin(&mut self, expiry: &mut Expiry<'_>) -> Action {
        let Expiry { now, queue, congestion, .. } = expiry;
        self.undo = self.parts.undo.then(|| Undo::new(queue, *congestion));
        // As in Linux the window, not the flight, is reduced: an acknowledgement that advances has made the
        // flight smaller than what was lost of.
        let cwnd = congestion.cwnd();
        congestion.on_loss(*now, cwnd.max(queue.outstanding()));
        self.phase = Phase::Recovery;
        self.recovery_point = queue.nxt();
        self.forward_rto = ForwardRto::Idle;
        self.reduction = (self.parts.rate_reduction && congestion.is_reduced_proportionally())
            .then(|| RateReduction::new(self.mss, cwnd));
        Action { begins: true, retransmit_now: true, ..Action::default() }
    }

    fn reduce(&mut self, expiry: &Expiry<'_>, delivered: u64, is_good: bool) {
        if let Some(reduction) = &mut self.reduction {
            reduction.on_ack(delivered, expiry.queue.in_flight(), expiry.congestion.cwnd(), is_good);
        }
    }
}

impl LossRecovery for Rack {
    fn on_ack(&mut self, ack: &mut Acknowledgement<'_>) -> Action {
        let (progress, lost_before) = (ack.progress, ack.queue.ever_lost());
        self.note_duplicates(ack);
        let has_news = self.detector.on_ack(ack);
        let mut action = Action::default();
        if self.phase == Phase::Timeout {
            action = self.forward_rto(ack);
        }
        if self.is_spurious(ack) {
            self.take_back(ack.now, ack.queue, ack.congestion);
        } else if self.phase != Phase::Open && ack.queue.una() >= self.recovery_point {
            self.detector.on_repair_end();
            self.end(ack.now, ack.congestion);
        }
        let (now, srtt, min_rtt) = (ack.now, ack.srtt, ack.min_rtt);
        let (queue, congestion) = (&mut *ack.queue, &mut *ack.congestion);
        let mut expiry = Expiry { now, first: false, srtt, min_rtt, queue, congestion };
        let repetition = has_news && self.detect(&mut expiry);
        let begins = match self.phase {
            // Linux begins another repair, and reduces the window again, with the acknowledgement that ends
            // one, if a segment sent during it was lost, even if that has been sent again
            // (`tcp_time_to_recover`).
            Phase::Open => expiry.queue.unrepaired_bytes() > 0,
            Phase::Recovery => false,
            // The repetition of a timeout was lost: that is another loss.
            Phase::Timeout => repetition,
        };
        if begins {
            action = self.begin(&mut expiry);
        }
        let is_good = progress.advanced > 0 && expiry.queue.ever_lost() == lost_before;
        self.reduce(&expiry, progress.delivered, is_good);
        if expiry.queue.outstanding() == 0 {
            self.reordering_timer = Time::MAX;
        }
        action
    }

    fn on_timeout(&mut self, expiry: &mut Expiry<'_>) {
        let is_new = self.phase == Phase::Open;
        let cwnd = expiry.congestion.cwnd();
        // In a fast recovery the window has been reduced already.
        let reduces = expiry.first && self.phase != Phase::Recovery;
        if reduces {
            self.undo = self.parts.undo.then(|| Undo::new(expiry.queue, expiry.congestion));
        }
        expiry.congestion.on_timeout(expiry.now, cwnd, reduces);
        expiry.queue.lose_expired(expiry.now, self.detector.wait(expiry, true));
        let in_flight = expiry.queue.in_flight();
        if in_flight > 0 {
            let ssthresh = expiry.congestion.ssthresh();
            expiry.congestion.set_window(in_flight + self.mss, ssthresh);
        }
        self.phase = Phase::Timeout;
        self.reduction = None;
        self.recovery_point = expiry.queue.nxt();
        self.reordering_timer = Time::MAX;
        self.forward_rto = match self.parts.forward_rto && (is_new || !expiry.first) {
            true => ForwardRto::Retransmitted,
            false => ForwardRto::Idle,
        };
    }

    fn wake_at(&self) -> Time {
        self.reordering_timer
    }

    fn on_wake(&mut self, expiry: &mut Expiry<'_>) -> Action {
        let lost_before = expiry.queue.ever_lost();
        self.detect(expiry);
        if expiry.queue.ever_lost() == lost_before || self.phase == Phase::Recovery {
            return Action::default();
        }
        let action = self.begin(expiry);
        self.reduce(expiry, self.mss, false);
        action
    }

    fn window(&self) -> Option<u64> {
        self.reduction.as_ref().map(RateReduction::window)
    }

    fn on_sent(&mut self, bytes: u64) {
        if let Some(reduction) = &mut self.reduction {
            reduction.on_sent(bytes);
        }
    }

    fn on_sent_again(&mut self, now: Time) {
        if let Some(undo) = &mut self.undo {
            undo.on_sent_again(now);
        }
    }

    fn is_active(&self) -> bool {
        self.phase == Phase::Recovery
    }

    fn phase(&self) -> Phase {
        self.phase
    }

    fn is_quiet(&self, queue: &SendQueue) -> bool {
        self.phase == Phase::Open && queue.lost_bytes() == 0 && queue.sacked_segments() == 0
    }
}
