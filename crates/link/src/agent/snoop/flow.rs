//! One flow that Snoop looks after.

mod repair;

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

use super::super::Packet;
use super::super::packet::is_before;
use super::super::rtt::RoundTrip;
use super::SnoopConfig;
use super::cached_segment::{CachedSegment, Segments};
use super::overflow::{DelayClass, LossesByDelay};
use super::sacked::Sacked;

/// The local timer before there is a measurement. RFC 6298's 1 s is too short for a geostationary link with a queue, and the
/// older RFC 2988's 3 s cost nothing: the sender's own timer is there.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// The local timer doubles so often at the most.
const MAX_BACKOFF: u32 = 5;
/// A flow of which nothing is seen for so long is forgotten, with what is kept of it. If it goes on, it is joined anew.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);
/// Sequence numbers that differ by more belong to another connection or to nobody: windows are smaller (RFC 7323 §2.3).
const FURTHEST: u32 = 1 << 30;

/// What an acknowledgement says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ack<'a> {
    pub(super) ack: u32,
    pub(super) window: u16,
    pub(super) sack: &'a [(u32, u32)],
    /// It does nothing but acknowledge.
    pub(super) is_pure: bool,
}

impl Ack<'_> {
    /// RFC 5681 §2. One that carries a D-SACK block alone (RFC 2883) is about a segment that came twice.
    fn may_tell_of_loss(&self) -> bool {
        let is_above = |&(first, _): &(u32, u32)| is_before(self.ack, first);
        self.is_pure && (self.sack.is_empty() || self.sack.iter().any(is_above))
    }
}

/// What becomes of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    /// The sender is to see it, but not what it says of holes that Snoop fills.
    HideSack,
    Suppress,
}

/// A flow with the segments that are kept.
///
/// Snoop stands before a link that keeps packets in order. So a segment that went out before one that has arrived, and
/// has not arrived itself, is lost, and it does not matter whether either was a retransmission. `order` numbers what
/// goes out, `delivered` is the highest of these numbers known to have arrived.
#[derive(Debug)]
pub(super) struct Tracked<P> {
    segments: Segments<P>,
    held: u64,
    /// Behind the highest sequence number that the sender has sent.
    next: u32,
    fin: Option<u32>,
    acked: Option<u32>,
    window: u16,
    /// Duplicate ACKs since the ACK number has moved.
    duplicates: u32,
    /// As many can come of what went out before the first segment was sent again.
    expected: u32,
    sacked: Sacked,
    sent: u64,
    delivered: u64,
    /// Original transmissions before this sequence number have been judged by `delivered`.
    examined: u32,
    /// Which of them before this one have been counted as lost or not.
    judged: u32,
    losses: LossesByDelay,
    /// The queueing that the last segment met which has arrived.
    delay: DelayClass,
    /// Duplicates that second copies cause, and no loss, and until when they can come.
    excused: u32,
    excused_until: Time,
    /// Retransmissions in their order, with their sequence numbers; some have arrived since.
    resent: VecDeque<(u64, u32)>,
    /// Repair goes on until this is acknowledged.
    recover: Option<u32>,
    /// All is the sender's care until this is acknowledged.
    yielding: Option<u32>,
    rtt: RoundTrip,
    backoff: u32,
    timer_since: Time,
    last_seen: Time,
}

impl<P: Packet> Tracked<P> {
    /// A flow whose next segment begins at `seq`. What went out before it has not been seen.
    pub(super) fn new(now: Time, seq: u32) -> Self {
        Self {
            segments: Segments::new(),
            held: 0,
            next: seq,
            fin: None,
            acked: None,
            window: 0,
            duplicates: 0,
            expected: 0,
            sacked: Sacked::default(),
            sent: 0,
            delivered: 0,
            examined: seq,
            judged: seq,
            losses: LossesByDelay::default(),
            delay: DelayClass::default(),
            excused: 0,
            excused_until: Time::ZERO,
            resent: VecDeque::new(),
            recover: None,
            yielding: None,
            rtt: RoundTrip::default(),
            backoff: 0,
            timer_since: now,
            last_seen: now,
        }
    }

    /// IP bytes that are kept.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// IP bytes that are kept, and segments that are kept or remembered.
    pub(super) fn size(&self) -> (u64, u64) {
        (self.held, self.segments.len() as u64)
    }

    #[cfg(test)]
    pub(super) fn remembered_retransmissions(&self) -> usize {
        self.resent.len()
    }

    #[cfg(test)]
    pub(super) fn remembered_ranges(&self) -> usize {
        self.sacked.len()
    }

    /// Its last byte has been acknowledged.
    pub(super) fn is_finished(&self) -> bool {
        self.fin.zip(self.acked).is_some_and(|(fin, acked)| !is_before(acked, fin))
    }

    /// A loss has been left to the sender, and what has followed it.
    pub(super) fn is_yielding(&self) -> bool {
        self.yielding.is_some()
    }

    pub(super) fn is_forgotten(&self, now: Time) -> bool {
        now >= self.last_seen + FORGOTTEN_AFTER
    }

    /// A segment of the sender's goes out; true if it is kept. `has_room` says whether it may be.
    pub(super) fn on_segment(
        &mut self,
        now: Time,
        (seq, end): (u32, u32),
        packet: &P,
        has_room: bool,
    ) -> bool {
        if !self.is_near(seq, end) {
            *self = Self::new(now, seq);
        }
        self.last_seen = now;
        if is_before(seq, self.next) {
            self.sent_by_sender(now, seq, end);
            return false;
        }
        self.next = end;
        if !has_room {
            return false;
        }
        if self.segments.is_empty() {
            self.timer_since = now;
            (self.examined, self.judged) = (seq, seq);
        }
        self.sent += 1;
        self.held += packet.ip_length() as u64;
        self.segments.insert(CachedSegment {
            seq,
            end,
            packet: Some(packet.clone()),
            sent_at: now,
            order: self.sent,
            resent: 0,
            given_up: false,
            by_sender: false,
            sacked: false,
            delay: DelayClass::default(),
            waiting: false,
            extra: 0,
        });
        true
    }

    /// The flow's sender ends it behind `end`.
    pub(super) fn on_fin(&mut self, end: u32) {
        self.fin = Some(end);
    }

    /// An acknowledgement comes back. What is to be sent again is handed to `send`.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        ack: Ack<'_>,
        config: &SnoopConfig,
        send: &mut impl FnMut(P),
    ) -> Verdict {
        self.last_seen = now;
        if self.acked.is_some_and(|acked| is_before(ack.ack, acked)) {
            return self.pass(config, &ack);
        }
        let beyond = ack.ack.wrapping_sub(self.next);
        if !is_before(ack.ack, self.next) && beyond > 0 {
            if beyond > FURTHEST {
                return Verdict::Pass;
            }
            self.next = ack.ack;
        }
        let advances = self.acked != Some(ack.ack);
        let same_window = std::mem::replace(&mut self.window, ack.window) == ack.window;
        if advances {
            self.advance(now, ack.ack);
        }
        let is_news = self.note_sack(now, ack.ack, ack.sack);
        if !advances && !is_news && ack.is_pure && same_window && self.excuses(now) {
            return Verdict::Suppress;
        }
        let is_duplicate =
            !advances && ack.may_tell_of_loss() && (same_window || is_news) && !self.segments.is_empty();
        self.duplicates += u32::from(is_duplicate);
        let overflowed = self.judge_losses() && !config.hide_congestion;
        if overflowed && self.yielding.is_none() {
            self.yielding = Some(self.next);
        }
        let in_care = self.is_in_care();
        if self.yielding.is_none() && (self.duplicates >= 2 || advances && self.recover.is_some()) {
            self.repair(now, config, send);
        }
        // A window that has changed is news for the sender.
        match in_care && self.is_in_care() && is_duplicate && same_window && self.duplicates >= 2 {
            true => Verdict::Suppress,
            false => self.pass(config, &ack),
        }
    }

    /// When [`on_timer`](Self::on_timer) has something to do.
    pub(super) fn deadline(&self, config: &SnoopConfig) -> Time {
        let forgotten = self.last_seen + FORGOTTEN_AFTER;
        self.expiry(config).map_or(forgotten, |expiry| forgotten.min(expiry))
    }

    /// Sends the first segment again if the local timer has expired; true if it did.
    pub(super) fn on_timer(&mut self, now: Time, config: &SnoopConfig, send: &mut impl FnMut(P)) -> bool {
        let expired = self.expiry(config).is_some_and(|expiry| now >= expiry);
        if expired {
            self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
            self.timer_since = now;
            self.resend_first(now, config, send);
        }
        if self.segments.is_empty() {
            self.segments.shrink();
            self.resent.shrink_to_fit();
            self.sacked.shrink();
        }
        expired
    }

    /// Whether the segment that the receiver waits for is kept and Snoop's to repair.
    fn is_in_care(&self) -> bool {
        if self.yielding.is_some() {
            return false;
        }
        let is_awaited = |kept: &CachedSegment<P>| {
            self.acked.is_none_or(|acked| !is_before(acked, kept.seq) && is_before(acked, kept.end))
        };
        self.segments.first().is_some_and(|kept| {
            is_awaited(kept) && kept.packet.is_some() && !kept.by_sender && !kept.given_up
        })
    }

    /// When the local timer expires. None runs for what waits here for its turn.
    fn expiry(&self, config: &SnoopConfig) -> Option<Time> {
        let waits = self.segments.first().is_some_and(|kept| kept.waiting);
        (self.is_in_care() && !waits).then(|| self.timer_since + self.timeout(config))
    }

    /// Whether a duplicate is the second copy's of what has just filled a hole. That one went out directly behind the first; what
    /// comes later than a round trip is another's, as the answer to a probe.
    fn excuses(&mut self, now: Time) -> bool {
        let excuses = self.excused > 0 && now <= self.excused_until;
        self.excused -= u32::from(excuses);
        excuses
    }

    /// Whether these sequence numbers can be this connection's.
    fn is_near(&self, seq: u32, end: u32) -> bool {
        let oldest = self.segments.first().map(|kept| kept.seq).or(self.acked).unwrap_or(self.next);
        let near = |a: u32, b: u32| (a.wrapping_sub(b) as i32).unsigned_abs() <= FURTHEST;
        near(seq, self.next) && (!is_before(oldest, end) || near(end, oldest))
    }

    fn pass(&self, config: &SnoopConfig, ack: &Ack<'_>) -> Verdict {
        match config.hide_sack && !ack.sack.is_empty() && self.is_in_care() {
            true => Verdict::HideSack,
            false => Verdict::Pass,
        }
    }

    fn timeout(&self, config: &SnoopConfig) -> Duration {
        let timeout = self.rtt.timeout().unwrap_or(INITIAL_TIMEOUT).max(config.timer_floor);
        timeout * (1 << self.backoff)
    }

    /// The sender sends something again. From here on it is its care: its window pays for the loss in any case, and it sees
    /// all that the receiver says of it.
    fn sent_by_sender(&mut self, now: Time, seq: u32, end: u32) {
        self.sent += 1;
        for kept in self.segments.overlapping(seq, end) {
            (kept.by_sender, kept.order, kept.sent_at) = (true, self.sent, now);
        }
        if is_before(self.next, end) {
            self.next = end;
        }
    }

    /// The ACK number moves to `ack`.
    fn advance(&mut self, now: Time, ack: u32) {
        let in_order = self.duplicates == 0 && self.recover.is_none();
        let mut arrived = 0;
        self.excused = 0;
        self.acked = Some(ack);
        (self.duplicates, self.expected, self.backoff, self.timer_since) = (0, 0, 0, now);
        let mut newest = None;
        while let Some(kept) = self.segments.pop_before(ack) {
            self.held -= kept.held_bytes();
            self.excused += kept.extra;
            if kept.sacked {
                self.delay = kept.delay;
            } else {
                self.deliver(now, &kept);
                newest = Some((kept.is_original(), kept.sent_at));
                arrived += 1;
            }
        }
        self.excused_until = now + self.rtt.least().unwrap_or_default();
        // What waited behind a hole has arrived long ago.
        if let Some((true, sent_at)) = newest.filter(|_| in_order) {
            self.delay = self.measure(now - sent_at);
            self.losses.delivered(self.delay, arrived);
        }
        if is_before(self.judged, ack) {
            self.judged = ack;
        }
        self.sacked.acknowledge(ack);
        while self.resent.front().is_some_and(|&(_, seq)| is_before(seq, ack)) {
            self.resent.pop_front();
        }
        if is_before(self.examined, ack) {
            self.examined = ack;
        }
        for until in [&mut self.recover, &mut self.yielding] {
            if until.is_some_and(|until| !is_before(ack, until)) {
                *until = None;
            }
        }
        if self.segments.is_empty() {
            self.resent.clear();
            self.sacked.clear();
        }
    }

    /// Takes note of the SACK blocks above `ack`; true if they say something new. D-SACK blocks lie below it.
    fn note_sack(&mut self, now: Time, ack: u32, blocks: &[(u32, u32)]) -> bool {
        let mut is_news = false;
        let outstanding = self.next.wrapping_sub(ack);
        for &(first, end) in blocks {
            let (from, to) = (first.wrapping_sub(ack), end.wrapping_sub(ack));
            if 0 < from && from < to && to <= outstanding && outstanding <= FURTHEST {
                let mut parts = [(0, 0); 4];
                let mut count = 0;
                // A receiver that has whole segments has no more ranges of them than there are.
                self.sacked.add((first, end), self.segments.len(), |first, end| {
                    // A block covers several parts only where ranges merge; what does not fit here is noted when it is
                    // acknowledged.
                    if let Some(part) = parts.get_mut(count) {
                        (*part, count) = ((first, end), count + 1);
                    }
                    is_news = true;
                });
                parts[..count].iter().for_each(|&part| self.arrived(now, part));
            }
        }
        is_news
    }

    /// The receiver has this range of sequence numbers, above a hole.
    fn arrived(&mut self, now: Time, (first, end): (u32, u32)) {
        let mut delivered = self.delivered;
        let (mut newest, least) = (None, self.rtt.least());
        for kept in self.segments.overlapping(first, end) {
            if kept.sacked || is_before(kept.seq, first) || is_before(end, kept.end) {
                continue;
            }
            self.held -= kept.held_bytes();
            (kept.sacked, kept.packet) = (true, None);
            if counts(now, kept, &self.rtt) {
                delivered = delivered.max(kept.order);
            }
            if kept.is_original() {
                let round_trip = now - kept.sent_at;
                kept.delay = DelayClass::of(round_trip, least.unwrap_or(round_trip));
                self.losses.delivered(kept.delay, 1);
                newest = Some(round_trip);
            }
        }
        self.delivered = delivered;
        if let Some(round_trip) = newest {
            self.rtt.sample(round_trip);
        }
    }

    /// Takes a round trip in, and says how long a queue it met.
    fn measure(&mut self, round_trip: Duration) -> DelayClass {
        self.rtt.sample(round_trip);
        DelayClass::of(round_trip, self.rtt.least().unwrap_or(round_trip))
    }

    fn deliver(&mut self, now: Time, kept: &CachedSegment<P>) {
        if counts(now, kept, &self.rtt) {
            self.delivered = self.delivered.max(kept.order);
        }
    }
}

/// Whether the arrival of a segment tells that what went out before its latest copy has arrived or is lost. Where there
/// were several copies it may be an earlier one that has arrived (Karn's problem), unless this one had the time to; one that
/// waits has not.
fn counts<P>(now: Time, kept: &CachedSegment<P>, rtt: &RoundTrip) -> bool {
    !kept.waiting && (kept.is_original() || rtt.least().is_some_and(|least| now - kept.sent_at >= least))
}
