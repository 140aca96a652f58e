//! The sending half: what goes out next, and what acknowledgements and the timer make of it.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use crate::congestion::{
    Acked, CongestionControl, ControlFactory, Delivery, Feedback, Flight, MIN_SSTHRESH_SEGMENTS, Parameters,
    Request,
};
use crate::delivery_rate::DeliveryRate;
use crate::recovery::{Acknowledgement, Action, AnyRecovery, Expiry, LossRecovery, Parts, TailLossProbe};
use crate::rto::Rto;
use crate::send_queue::{Piece, Progress, SendQueue};
use crate::{Config, Recovery};

/// Segments that leave at once at the start of a connection even if the congestion control paces (as Linux
/// does): Hoe's estimate uses the spacing of their acknowledgements.
const UNPACED_SEGMENTS: u32 = 10;

/// The host's pace in windows of a round trip, in slow start up to half the threshold and beyond (Linux'
/// `tcp_pacing_ss_ratio` and `tcp_pacing_ca_ratio`).
const SLOW_START_PACE: f64 = 2.0;
const AVOIDANCE_PACE: f64 = 1.2;
/// A faster pace is none, bit/s.
const MAX_PACE: f64 = 1e15;
/// Bursts at most in a second where a burst is more than two segments (Linux' `sk_pacing_shift`).
const BURSTS_PER_SECOND: u64 = 1024;
const SMALLEST_BURST: u64 = 2;
/// Bytes that an interface segments by itself.
const LARGEST_BURST: u64 = 65_536;

/// The options that the handshake has negotiated, and how it went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Negotiated {
    /// Payload bytes of a full segment.
    pub(crate) mss: u64,
    /// The other side sends SACK blocks.
    pub(crate) sack: bool,
    /// A SYN or its answer was sent more than once.
    pub(crate) syn_repeated: bool,
    /// It is taken for lost.
    pub(crate) syn_lost: bool,
    /// The round-trip time that the handshake measured.
    pub(crate) rtt: Option<Duration>,
}

/// The sender has retried in vain for as long as it is configured to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetriesExhausted;

/// Something to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outgoing {
    /// Offset of its first byte.
    pub(crate) start: u64,
    /// Payload bytes.
    pub(crate) len: u32,
    /// The stream ends with it.
    pub(crate) fin: bool,
}

/// Counters of the sending half.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SenderCounters {
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    pub(crate) retransmissions: u64,
    pub(crate) timeouts: u64,
    pub(crate) recoveries: u64,
    /// Payload bytes that have arrived, as far as the other side has said.
    pub(crate) delivered: u64,
}

/// The counters at the last acknowledgement, for the rate controller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AckedCounters {
    pub(crate) at: Time,
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    pub(crate) window_limited: bool,
}

/// The sending half of an established connection. Offset 0 is the SYN.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) queue: SendQueue,
    pub(crate) congestion: Box<dyn CongestionControl>,
    /// Where the congestion control comes from, if it is one from outside.
    pub(crate) factory: Option<ControlFactory>,
    pub(crate) rto: Rto,
    pub(crate) counters: SenderCounters,
    /// SACK blocks count. Recovery by duplicates would count what they report twice.
    pub(crate) selective: bool,
    /// Lost retransmissions are detected without the timer, by SACK recovery.
    finds_lost_repetitions: bool,
    /// A retransmission of the first segment restarts the timer, for it may be detected that it is lost.
    restarts_for_head: bool,
    /// D-SACK blocks count.
    notes_duplicates: bool,
    /// Tail loss probes, by the configuration.
    probes_tail: Option<TailLossProbe>,
    /// A tail loss probe is due.
    probe_tail: bool,
    /// New data goes before what is lost.
    new_first: bool,
    recovery: AnyRecovery,
    mss: u64,
    nagle: bool,
    restart_after_idle: bool,
    each_timeout_reduces: bool,
    /// A loss reduces the flight at once, and not in steps, by the configuration.
    reduces_at_once: bool,
    /// The congestion control is told of each packet, by the configuration.
    counts_packets: bool,
    /// The delivery rate, for a congestion control that goes by it.
    delivery_rate: Option<DeliveryRate>,
    retries: Option<u32>,
    user_timeout: Option<Duration>,
    /// The offset behind the last byte that the application wrote.
    written: u64,
    finished: bool,
    /// The right edge of the other side's window, and the largest window that it has announced.
    edge: u64,
    largest_window: u64,
    /// The start and the acknowledgement of the segment that announced it (RFC 9293's SND.WL1 and SND.WL2).
    window_from: (u64, u64),
    /// The expiry of the retransmission timer, or of the persist timer when nothing is outstanding.
    timer: Time,
    /// Expiries in a row.
    expiries: u32,
    /// Probes of the closed window, answered ones too: their backoff.
    probes: u32,
    /// Since when the first unacknowledged byte, or the first unanswered probe, has waited.
    waiting_since: Time,
    retransmit_now: bool,
    probe: bool,
    /// Data sent before this offset was held back by the congestion control, not by the application or the
    /// receiver.
    limited: u64,
    unpaced: u32,
    next_paced: Time,
    /// Segments that may leave beside the one that left then, and when that was.
    burst: (u32, Time),
    segmentation_offload: bool,
    fq_pacing: bool,
    /// Something waits for its turn by the pacing.
    paced_out: bool,
    last_sent: Time,
    /// A rate controller sets its rate, and needs reports for that.
    reports: bool,
    acked_counters: Option<AckedCounters>,
    /// The window, not the pacing, has kept the next segment back.
    window_limited: bool,
}

impl Sender {
    /// The sender before the handshake is over: it takes what the application writes and sends nothing.
    pub(crate) fn new(config: &Config) -> Self {
        let mss = u64::from(config.mss);
        Self {
            queue: SendQueue::new(1),
            congestion: config.congestion.build(parameters(config, mss, false)),
            factory: None,
            rto: Rto::new(config.rto),
            counters: SenderCounters::default(),
            selective: false,
            finds_lost_repetitions: false,
            restarts_for_head: false,
            notes_duplicates: false,
            probes_tail: None,
            probe_tail: false,
            new_first: false,
            recovery: config.recovery.build(mss, parts(config)),
            mss,
            nagle: config.nagle,
            restart_after_idle: config.restart_after_idle,
            each_timeout_reduces: config.each_timeout_reduces,
            reduces_at_once: config.congestion.spreads_reduction()
                && config.congestion.weight().is_none()
                && !config.proportional_rate_reduction,
            counts_packets: config.congestion.counts_packets(),
            delivery_rate: None,
            retries: config.retries,
            user_timeout: config.user_timeout,
            written: 1,
            finished: false,
            edge: 1,
            largest_window: 0,
            window_from: (0, 0),
            timer: Time::MAX,
            expiries: 0,
            probes: 0,
            waiting_since: Time::ZERO,
            retransmit_now: false,
            probe: false,
            limited: 1,
            unpaced: UNPACED_SEGMENTS,
            next_paced: Time::ZERO,
            burst: (0, Time::ZERO),
            segmentation_offload: config.segmentation_offload,
            fq_pacing: config.fq_pacing,
            paced_out: false,
            last_sent: Time::ZERO,
            reports: config.congestion.weight().is_some(),
            acked_counters: None,
            window_limited: false,
        }
    }

    /// The handshake is over.
    pub(crate) fn establish(&mut self, now: Time, config: &Config, negotiated: Negotiated) {
        self.mss = negotiated.mss;
        let recovery = match config.recovery {
            selective if selective.is_selective() && !negotiated.sack => Recovery::NewRenoSlowButSteady,
            recovery => recovery,
        };
        let is_rack = recovery == Recovery::Rack;
        self.selective = recovery.is_selective();
        self.finds_lost_repetitions = recovery == Recovery::Sack && config.lost_retransmissions;
        self.restarts_for_head = self.finds_lost_repetitions || is_rack;
        if self.restarts_for_head {
            self.queue.note_repetitions();
        }
        self.notes_duplicates = is_rack && config.duplicate_sack;
        self.probes_tail = (is_rack && config.tail_loss_probe).then_some(TailLossProbe::IDLE);
        if config.congestion.samples_rate() {
            self.delivery_rate = Some(DeliveryRate::default());
            self.queue.keep_snapshots();
        }
        self.recovery = recovery.build(negotiated.mss, parts(config));
        let parameters = parameters(config, negotiated.mss, negotiated.syn_lost);
        self.congestion = match &self.factory {
            Some(factory) => factory.build(parameters),
            None => config.congestion.build(parameters),
        };
        match negotiated.rtt {
            Some(rtt) => self.rto.measure(rtt, 1),
            None if negotiated.syn_repeated => self.rto.syn_was_repeated(),
            None => {}
        }
        if let Some(srtt) = config.srtt {
            self.rto.recall(srtt);
        }
        if let Some(ssthresh) = config.ssthresh {
            let cwnd = self.congestion.cwnd();
            self.congestion.set_window(cwnd, ssthresh.max(MIN_SSTHRESH_SEGMENTS * self.mss));
        }
        self.congestion.on_established(now, negotiated.rtt);
        self.last_sent = now;
    }

    /// The application has `bytes` more to send.
    pub(crate) fn write(&mut self, bytes: u64) {
        debug_assert!(!self.finished, "nothing is written behind the end");
        self.written += bytes;
    }

    /// Bytes written and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.written - self.queue.una().min(self.written)
    }

    /// Payload bytes that the other side has acknowledged.
    pub(crate) fn bytes_acknowledged(&self) -> u64 {
        self.queue.una().min(self.written) - 1
    }

    /// The right edge of the other side's window.
    pub(crate) fn edge(&self) -> u64 {
        self.edge
    }

    /// The application has written everything.
    pub(crate) fn finish(&mut self) {
        self.finished = true;
    }

    pub(crate) fn has_finished(&self) -> bool {
        self.finished
    }

    /// The other side has acknowledged everything, the end of the stream included.
    pub(crate) fn is_done(&self) -> bool {
        self.finished && self.queue.una() > self.written
    }

    /// When it wants to be woken: the timer, or the next segment's turn where segments are paced.
    #[inline]
    pub(crate) fn wake_at(&self) -> Time {
        let probe = self.probes_tail.map_or(Time::MAX, |probe| probe.due_at());
        let timer = self.timer.min(probe).min(self.recovery.wake_at());
        if self.paced_out { timer.min(self.next_paced) } else { timer }
    }

    /// The offset behind everything that there is to send, the FIN included.
    fn end(&self) -> u64 {
        self.written + u64::from(self.finished)
    }

    /// Bytes believed to be in the network.
    pub(crate) fn in_flight(&self) -> u64 {
        self.queue.in_flight().saturating_sub(self.recovery.credit())
    }

    /// Losses are being repaired.
    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery.is_active()
    }

    /// The window that the other side announces, in bytes beyond `ack`, in a segment that begins at `start`
    /// of its stream. A segment that was overtaken on its way says nothing (RFC 9293 §3.10.7.4, fifth); one
    /// that acknowledges something new was not, though it may be a repetition.
    pub(crate) fn set_window(&mut self, start: u64, ack: u64, window: u64) {
        let una = self.queue.una();
        if ack > una || ack == una && (start, ack) >= self.window_from {
            self.edge = ack + window;
            self.largest_window = self.largest_window.max(window);
            self.window_from = (start, ack);
        }
    }

    /// Nothing is out that an acknowledgement could be of, and nothing counts acknowledgements as such.
    #[inline]
    pub(crate) fn awaits_nothing(&self) -> bool {
        self.queue.outstanding() == 0 && self.delivery_rate.is_none() && !self.counts_packets && !self.reports
    }

    /// An acknowledgement of everything before `ack`, with SACK blocks. `duplicate`: it carries no data and
    /// changes nothing (RFC 5681 §2); `echo` is the round-trip time by the timestamps.
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        ack: u64,
        blocks: impl Iterator<Item = (u64, u64)> + Clone,
        duplicate: bool,
        echo: Option<Duration>,
    ) {
        if self.awaits_nothing() && blocks.clone().next().is_none() {
            (self.timer, self.expiries, self.new_first) = (Time::MAX, 0, false);
            return;
        }
        let (in_flight, lost) = (self.in_flight(), self.queue.ever_lost());
        let cwnd_limited = self.queue.una() < self.limited;
        let twice = if self.notes_duplicates { duplicate_report(ack, blocks.clone()) } else { None };
        let mut progress = Progress::default();
        if ack > self.queue.una() {
            self.queue.acknowledge(ack, &mut progress);
        }
        blocks.for_each(|(start, end)| self.queue.sack(start, end, &mut progress));
        let rtt = progress.sent_at().map(|at| now - at).or(echo.filter(|_| progress.advanced > 0));
        if let Some(rtt) = rtt {
            // RFC 7323 Appendix G: a sample with every second segment of the flight.
            self.rto.measure(rtt, self.queue.outstanding().div_ceil(2 * self.mss) as u32);
        }
        let duplicate = duplicate && progress.advanced == 0 && self.queue.outstanding() > 0;
        if self.finds_lost_repetitions
            && let Some(newest) = progress.newest_sent_at(now, self.rto.min_rtt())
        {
            self.queue.judge_repetitions(newest);
        }
        let twice = self.answer_probe(now, ack, twice, duplicate && !progress.sacked);
        let echoed = echo.map(|age| sent_in_tick(now, age));
        let in_recovery = self.recover(now, &progress, duplicate, echoed, twice);
        if self.counts_packets {
            self.congestion.on_flight(&Flight {
                in_flight: self.in_flight(),
                delivered: self.counters.delivered + progress.delivered + self.recovery.credit(),
                lost: self.queue.ever_lost(),
            });
        }
        if self.delivery_rate.is_some() {
            self.sample_rate(now, &progress, in_flight, self.queue.ever_lost() - lost, rtt);
        }
        if progress.delivered > 0 {
            self.congestion.on_ack(&Acked {
                now,
                bytes: progress.delivered,
                rtt,
                srtt: self.rto.srtt(),
                min_rtt: self.rto.min_rtt(),
                in_flight,
                cwnd_limited,
                in_recovery: in_recovery || progress.advanced == 0,
            });
        } else if duplicate {
            self.congestion.on_duplicate(now);
        }
        self.counters.delivered += progress.delivered;
        if self.reports {
            self.note_counters(now);
        }
    }

    #[inline(never)]
    fn sample_rate(&mut self, now: Time, progress: &Progress, before: u64, lost: u64, rtt: Option<Duration>) {
        let (bytes, in_flight) = (progress.delivered, self.in_flight());
        let Some(rate) = &mut self.delivery_rate else { return };
        let ever_lost = self.queue.ever_lost();
        let sample = rate.on_ack(now, bytes, progress.snapshot, ever_lost, self.rto.min_rtt());
        self.congestion.on_delivery(&Delivery {
            now,
            bytes,
            delivered: rate.delivered(),
            lost,
            in_flight,
            prior_in_flight: before,
            rtt,
            srtt: self.rto.srtt(),
            phase: self.recovery.phase(),
            sample,
        });
        if self.congestion.holds_back() {
            rate.on_nothing_to_send(in_flight);
        }
    }

    /// Nothing was sent because the application has written no more.
    #[inline(never)]
    fn note_application_limit(&mut self) {
        let unsent = self.written.saturating_sub(self.queue.nxt());
        let is_limit = unsent < self.mss
            && self.queue.lost_bytes() == 0
            && self.in_flight() + self.mss <= self.flight_limit();
        let in_flight = self.in_flight();
        if let Some(rate) = self.delivery_rate.as_mut().filter(|_| is_limit) {
            rate.on_nothing_to_send(in_flight);
        }
    }

    fn note_counters(&mut self, at: Time) {
        let SenderCounters { segments, bytes, delivered, .. } = self.counters;
        let (lost, window_limited) = (self.queue.ever_lost(), self.window_limited);
        self.acked_counters = Some(AckedCounters { at, segments, bytes, delivered, lost, window_limited });
    }

    /// There is something to send that the other side has room for, or to send again.
    pub(crate) fn is_backlogged(&self) -> bool {
        let nxt = self.queue.nxt();
        nxt < self.end() && self.edge.saturating_sub(nxt) >= self.mss || self.queue.lost_bytes() > 0
    }

    /// The window has room for everything written and not yet sent.
    pub(crate) fn has_room_for_all(&self) -> bool {
        let unsent = self.written.saturating_sub(self.queue.nxt()) + self.queue.lost_bytes();
        self.in_flight().saturating_add(unsent) <= self.congestion.cwnd()
    }

    /// The counters at the last acknowledgement; `None` before anything was sent.
    pub(crate) fn acked_counters(&self) -> Option<AckedCounters> {
        self.acked_counters
    }

    /// Payload bytes of a full segment.
    pub(crate) fn mss(&self) -> u64 {
        self.mss
    }

    /// Bytes that wait to be sent and that the other side has room for, from the first unacknowledged one on.
    fn demand(&self) -> u64 {
        self.written.min(self.edge).saturating_sub(self.queue.una())
    }

    /// The request to the routers that goes with the next segment, of `len` payload bytes.
    pub(crate) fn request(&self, len: u64) -> Option<Request> {
        self.congestion.request(len, self.rto.srtt(), self.demand())
    }

    /// The routers change the rate by `change` bytes per second.
    pub(crate) fn on_feedback(&mut self, now: Time, change: i32) {
        let (srtt, demand) = (self.rto.srtt(), self.demand());
        self.congestion.on_feedback(&Feedback { now, change, srtt, demand });
    }

    /// Whether a tail loss probe that is out is answered. Returns what else has arrived twice.
    fn answer_probe(
        &mut self,
        now: Time,
        ack: u64,
        twice: Option<(u64, u64)>,
        duplicate: bool,
    ) -> Option<(u64, u64)> {
        let Some(probe) = &mut self.probes_tail else { return twice };
        let reported = twice.is_some_and(|block| probe.is_reported_by(block));
        // The probe has repaired the loss, but it is one (RFC 8985 §7.4).
        if probe.on_ack(ack, reported, duplicate) && !self.recovery.is_active() {
            let cwnd = self.congestion.cwnd();
            self.congestion.on_loss(now, cwnd);
            self.congestion.on_recovery_end(now);
        }
        twice.filter(|_| !reported)
    }

    /// Loss recovery and the timers; returns whether losses are, or were until now, being repaired.
    fn recover(
        &mut self,
        now: Time,
        progress: &Progress,
        duplicate: bool,
        echoed: Option<Time>,
        twice: Option<(u64, u64)>,
    ) -> bool {
        let before = self.recovery.is_active();
        let (srtt, min_rtt) = (self.rto.srtt(), self.rto.min_rtt());
        let (queue, congestion) = (&mut self.queue, &mut *self.congestion);
        let action = self.recovery.on_ack(&mut Acknowledgement {
            now,
            progress,
            duplicate,
            echoed,
            twice,
            srtt,
            min_rtt,
            queue,
            congestion,
        });
        let after = self.recovery.is_active();
        self.counters.recoveries += u64::from(action.begins);
        self.retransmit_now |= action.retransmit_now;
        self.new_first = action.new_first;
        if progress.advanced > 0 {
            self.expiries = 0;
            self.waiting_since = now;
        }
        // As Linux does: a queue that grows by more than it drains would let the timer expire, although
        // segments arrive all the time.
        let goes_on = self.restarts_for_head && self.queue.awaits_repeated_head(progress);
        if self.queue.outstanding() == 0 {
            self.timer = Time::MAX;
            self.expiries = 0;
        } else if (progress.advanced > 0 || action.retransmit_now || goes_on) && !action.leave_timer {
            self.restart_timer(now);
        }
        self.schedule_probe(now, progress.advanced > 0);
        before || after
    }

    /// The time for a tail loss probe begins anew where something has been sent or acknowledged (`anew`);
    /// there is none while losses are known or suspected.
    #[inline]
    fn schedule_probe(&mut self, now: Time, anew: bool) {
        let Some(probe) = &mut self.probes_tail else { return };
        if self.queue.outstanding() == 0 || !self.recovery.is_quiet(&self.queue) {
            probe.cancel();
        } else if anew {
            let lone = self.queue.segments() == 1;
            probe.schedule(now, self.rto.srtt(), lone, self.timer);
        }
    }

    fn restart_timer(&mut self, now: Time) {
        let timer = self.rto.expiry(now, self.probes);
        // With a user timeout the last expiry is at its end, not a whole backoff later.
        self.timer = self.deadline().map_or(timer, |deadline| timer.min(deadline.max(now)));
    }

    fn deadline(&self) -> Option<Time> {
        self.user_timeout.map(|limit| self.waiting_since + limit)
    }

    /// A moment that [`wake_at`](Self::wake_at) named has come.
    pub(crate) fn on_timer(&mut self, now: Time) -> Result<(), RetriesExhausted> {
        if now >= self.recovery.wake_at() {
            self.on_reordering_timer(now);
        }
        if let Some(probe) = self.probes_tail.as_mut().filter(|probe| now >= probe.due_at()) {
            probe.cancel();
            self.probe_tail = true;
            // The probe takes the place of an expiry at the same moment.
            self.restart_timer(now);
        }
        if now < self.timer {
            return Ok(());
        }
        let probing = self.queue.outstanding() == 0;
        if probing && self.expiries == 0 {
            self.waiting_since = now;
        } else if self.has_waited_too_long(now) {
            return Err(RetriesExhausted);
        }
        self.expiries += 1;
        if probing {
            self.probes += 1;
            self.probe = true;
        } else {
            self.rto.back_off();
            self.counters.timeouts += 1;
            let before = self.congestion.cwnd();
            self.expire(now, self.expiries == 1, |recovery, expiry| recovery.on_timeout(expiry));
            if self.each_timeout_reduces && self.expiries > 1 {
                self.lower_threshold(before);
            }
            if let Some(probe) = &mut self.probes_tail {
                probe.on_timeout();
            }
            (self.retransmit_now, self.probe_tail, self.new_first) = (true, false, false);
        }
        self.restart_timer(now);
        Ok(())
    }

    /// Time is over for segments that could have been overtaken.
    #[inline(never)]
    fn on_reordering_timer(&mut self, now: Time) {
        let action: Action = self.expire(now, false, |recovery, expiry| recovery.on_wake(expiry));
        self.counters.recoveries += u64::from(action.begins);
        self.retransmit_now |= action.retransmit_now;
    }

    fn expire<T>(
        &mut self,
        now: Time,
        first: bool,
        tell: impl FnOnce(&mut AnyRecovery, &mut Expiry<'_>) -> T,
    ) -> T {
        let (srtt, min_rtt) = (self.rto.srtt(), self.rto.min_rtt());
        let (queue, congestion) = (&mut self.queue, &mut *self.congestion);
        tell(&mut self.recovery, &mut Expiry { now, first, srtt, min_rtt, queue, congestion })
    }

    /// The threshold is half of a window, no more than it was, and two segments at least.
    fn lower_threshold(&mut self, cwnd: u64) {
        let threshold = self.congestion.ssthresh().min((cwnd / 2).max(2 * self.mss));
        let cwnd = self.congestion.cwnd();
        self.congestion.set_window(cwnd, threshold);
    }

    fn has_waited_too_long(&self, now: Time) -> bool {
        match self.deadline() {
            Some(deadline) => now >= deadline,
            None => self.retries.is_some_and(|retries| self.expiries >= retries),
        }
    }

    /// A window probe is due: a segment below the window, which the other side must answer (RFC 9293
    /// §3.8.6.1).
    pub(crate) fn take_probe(&mut self) -> bool {
        std::mem::take(&mut self.probe)
    }

    /// The next thing to send, if something may be sent now.
    pub(crate) fn next(&mut self, now: Time) -> Option<Outgoing> {
        let outgoing = self.next_segment(now);
        if outgoing.is_none() && self.delivery_rate.is_some() {
            self.note_application_limit();
        }
        outgoing
    }

    fn next_segment(&mut self, now: Time) -> Option<Outgoing> {
        self.paced_out = false;
        if std::mem::take(&mut self.retransmit_now)
            && let Some(piece) = self.queue.next_lost()
        {
            return Some(self.send_again(now, piece));
        }
        if self.queue.nxt() >= self.end() && self.queue.outstanding() == 0 {
            return None;
        }
        if std::mem::take(&mut self.probe_tail)
            && let Some(outgoing) = self.send_probe(now)
        {
            return Some(outgoing);
        }
        if self.new_first
            && let Some((len, fin)) = self.new_data()
        {
            return self.may_send(now, len).then(|| self.send_new(now, len + u64::from(fin)));
        }
        if let Some(piece) = self.queue.next_lost() {
            return self.may_send(now, u64::from(piece.len)).then(|| self.send_again(now, piece));
        }
        if let Some((len, fin)) = self.new_data() {
            return self.may_send(now, len).then(|| self.send_new(now, len + u64::from(fin)));
        }
        if self.queue.outstanding() == 0 {
            return self.persist(now);
        }
        if !self.recovery.is_active() || !self.may_send(now, self.mss) {
            return None;
        }
        let piece = self.recovery.rescue(&self.queue)?;
        Some(self.send_again(now, piece))
    }

    /// Payload and end of the next new segment, if there is one that is worth sending (RFC 9293 §3.8.6.2.1,
    /// RFC 896).
    fn new_data(&self) -> Option<(u64, bool)> {
        let waiting = self.written.saturating_sub(self.queue.nxt());
        let len = waiting.min(self.mss).min(self.edge.saturating_sub(self.queue.nxt()));
        let all = len == waiting;
        let fin = self.finished && all && self.queue.nxt() <= self.written;
        let worth = len == self.mss
            || fin
            || all && (!self.nagle || self.queue.outstanding() == 0)
            || 2 * len >= self.largest_window;
        (worth && (len > 0 || fin)).then_some((len, fin))
    }

    /// Whether window and pacing let `len` bytes go now; where they do not, the window is what limits.
    fn may_send(&mut self, now: Time, len: u64) -> bool {
        let window = match self.recovery.allowance() {
            Some(bytes) => len <= bytes,
            None => {
                let limit = self.recovery.window().unwrap_or_else(|| self.flight_limit());
                self.in_flight() + len <= limit.max(self.mss)
            }
        };
        self.window_limited = !window;
        let goes_along = self.burst.0 > 0 && self.burst.1 == now;
        self.paced_out = window && now < self.next_paced && !goes_along;
        let may = window && !self.paced_out;
        if !may {
            self.limited = self.queue.nxt();
        }
        may
    }

    /// Bytes that may be in flight.
    fn flight_limit(&self) -> u64 {
        if self.reduces_at_once { self.congestion.cwnd() } else { self.congestion.flight_limit() }
    }

    #[inline]
    fn send_new(&mut self, now: Time, len: u64) -> Outgoing {
        let after_pause = self.queue.outstanding() == 0;
        if after_pause {
            if self.restart_after_idle && now - self.last_sent > self.rto.timeout() {
                self.congestion.on_idle(now);
            }
            self.waiting_since = now;
            (self.expiries, self.probes, self.probe) = (0, 0, false);
            self.restart_timer(now);
            // The rate controller must learn of it before the first acknowledgement.
            if self.reports {
                self.note_counters(now);
            }
        }
        let start = self.queue.nxt();
        self.queue.push(len as u32, now);
        self.schedule_probe(now, true);
        self.sent(now, Piece { start, len: len as u32 }, after_pause)
    }

    /// A tail loss probe, beyond the window: a new segment if there is one and the other side has room, or
    /// the last one again (RFC 8985 §7.3).
    #[cold]
    fn send_probe(&mut self, now: Time) -> Option<Outgoing> {
        let outgoing = match self.new_data() {
            Some((len, fin)) => Some((self.send_new(now, len + u64::from(fin)), false)),
            None => self.queue.last().map(|piece| {
                self.queue.sent_again(piece.start, now);
                self.counters.retransmissions += 1;
                (self.sent(now, piece, false), true)
            }),
        };
        let (outgoing, is_repetition) = outgoing?;
        if let Some(probe) = &mut self.probes_tail {
            probe.on_sent(self.queue.nxt(), is_repetition);
        }
        Some(outgoing)
    }

    #[inline(never)]
    fn send_again(&mut self, now: Time, piece: Piece) -> Outgoing {
        self.queue.sent_again(piece.start, now);
        // Or the timer would expire before the answer, which a repetition that was lost has had to wait for.
        if self.restarts_for_head && piece.start == self.queue.una() {
            self.restart_timer(now);
        }
        self.recovery.on_sent_again(now);
        self.counters.retransmissions += 1;
        self.sent(now, piece, false)
    }

    #[inline]
    fn sent(&mut self, now: Time, piece: Piece, after_pause: bool) -> Outgoing {
        if self.counts_packets {
            self.congestion.on_sent(now, after_pause);
        }
        let in_flight = if self.delivery_rate.is_some() { self.in_flight() } else { 0 };
        if let Some(rate) = &mut self.delivery_rate {
            if after_pause && rate.is_app_limited() {
                self.congestion.on_restart(now);
            }
            let lost = self.queue.ever_lost();
            self.queue.stamp(piece.start, rate.on_sent(now, after_pause, in_flight, lost));
        }
        let fin = self.finished && piece.start + u64::from(piece.len) > self.written;
        let len = piece.len - u32::from(fin);
        self.counters.segments += 1;
        self.counters.bytes += u64::from(len);
        self.recovery.on_sent(u64::from(len));
        self.last_sent = now;
        if self.unpaced > 0 {
            self.unpaced -= 1;
        } else if let Some(rate) = self.pacing_rate() {
            self.next_paced = self.next_paced.max(now) + rate.time_for(u64::from(len));
            if self.segmentation_offload {
                self.burst = match self.burst {
                    (left @ 1.., at) if at == now => (left - 1, now),
                    _ => (burst_segments(rate, self.mss) - 1, now),
                };
            }
        }
        Outgoing { start: piece.start, len, fin }
    }

    /// The pace of the congestion control, or else the host's.
    fn pacing_rate(&self) -> Option<Rate> {
        let srtt = self.rto.srtt();
        match self.congestion.pacing_rate(srtt) {
            None if self.fq_pacing && !srtt.is_zero() => {
                let (cwnd, ssthresh) = (self.congestion.cwnd(), self.congestion.ssthresh());
                let ratio = if cwnd < ssthresh / 2 { SLOW_START_PACE } else { AVOIDANCE_PACE };
                let bytes = cwnd.max(self.in_flight()) as f64;
                Rate::from_bps((8.0 * ratio * bytes / srtt.as_secs_f64()).clamp(1.0, MAX_PACE) as u64)
            }
            rate => rate,
        }
    }

    /// The other side's window is closed, or too small for a segment that is worth it, and nothing is
    /// outstanding whose acknowledgement would open it: it is to be probed. What room there is serves as a
    /// probe, for the receiver may wait for it (RFC 9293 §3.8.6.2.1, rule 4).
    #[cold]
    fn persist(&mut self, now: Time) -> Option<Outgoing> {
        if self.timer == Time::MAX {
            self.waiting_since = now;
            self.restart_timer(now);
        }
        let room = self.edge.saturating_sub(self.queue.nxt()).min(self.mss);
        (self.probe && room > 0).then(|| self.send_new(now, room))
    }
}

/// Full segments that leave at once where the host paces at `rate` (Linux' `tcp_tso_autosize`).
fn burst_segments(rate: Rate, mss: u64) -> u32 {
    let bytes = (rate.bps() / 8 / BURSTS_PER_SECOND).min(LARGEST_BURST);
    (bytes / mss).max(SMALLEST_BURST) as u32
}

/// Whether the loss recovery spreads a reduction of the window over a round trip.
fn spreads_reduction(config: &Config) -> bool {
    config.proportional_rate_reduction && !config.congestion.spreads_reduction()
}

/// The initial window is one segment where the SYN or its answer was lost (RFC 6928 §2).
fn parameters(config: &Config, mss: u64, syn_lost: bool) -> Parameters {
    let segments = if syn_lost { 1 } else { u64::from(config.initial_window) };
    Parameters {
        mss,
        initial_window: segments * mss,
        byte_counting_limit: config.byte_counting_limit,
        hystart: config.hystart,
        linux_cubic: config.linux_cubic,
    }
}

fn parts(config: &Config) -> Parts {
    Parts {
        limited_transmit: config.limited_transmit,
        rate_reduction: spreads_reduction(config),
        forward_rto: config.forward_rto,
        undo: config.undo,
    }
}

/// The first block of an acknowledgement, if it reports what has arrived twice: it lies below what is
/// acknowledged, or within the second block (RFC 2883 §4).
fn duplicate_report(ack: u64, mut blocks: impl Iterator<Item = (u64, u64)>) -> Option<(u64, u64)> {
    let first = blocks.next()?;
    let is_report =
        first.1 <= ack || blocks.next().is_some_and(|second| second.0 <= first.0 && first.1 <= second.1);
    is_report.then_some(first)
}

/// The start of the millisecond in which a segment left `age` ago, in whole milliseconds of the clock.
fn sent_in_tick(now: Time, age: Duration) -> Time {
    const TICK: u64 = 1_000_000;
    let ticks = (now.as_nanos() / TICK).saturating_sub(age.as_nanos() as u64 / TICK);
    Time::from_nanos(ticks * TICK)
}
