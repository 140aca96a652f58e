//! The state of one flow.

mod repair;

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

use super::super::Packet;
use super::super::packet::is_before;
use super::super::rtt::RoundTrip;
use super::cached_segment::{CachedSegment, Segments};
use super::overflow::{DelayClass, LossesByDelay};
use super::sacked::Sacked;
use super::{Detection, SnoopConfig};

/// The local timer before the first measurement. The 1 s of RFC 6298 is too short for a geostationary link
/// with a queue, and the 3 s of the older RFC 2988 cost nothing: the sender has a timer of its own.
const INITIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Both local timers of [`Detection::Published`], smoothed round trips.
const PUBLISHED_TIMEOUT: u32 = 2;
/// Limit of the doublings of the local timer.
const MAX_BACKOFF: u32 = 5;
/// A flow without packets for this long is removed, with its cached segments. If it goes on, it is added
/// anew.
const IDLE: Duration = Duration::from_secs(120);
/// Sequence numbers that differ by more cannot be of one connection: windows are smaller (RFC 7323 §2.3).
const FURTHEST: u32 = 1 << 30;

/// The fields of an acknowledgement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ack<'a> {
    pub(super) ack: u32,
    pub(super) window: u16,
    pub(super) sack: &'a [(u32, u32)],
    /// It has no other purpose than to acknowledge.
    pub(super) is_pure: bool,
}

impl Ack<'_> {
    /// RFC 5681 §2. An ACK with only a D-SACK block (RFC 2883) reports a segment that arrived twice.
    fn may_report_loss(&self) -> bool {
        let is_above = |&(first, _): &(u32, u32)| is_before(self.ack, first);
        self.is_pure && (self.sack.is_empty() || self.sack.iter().any(is_above))
    }
}

/// What happens to an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AckAction {
    Pass,
    /// It passes without its SACK blocks, which would show holes that Snoop repairs.
    HideSack,
    Suppress,
}

/// A flow with its cached segments.
///
/// Snoop is in front of a link that delivers in order. So a segment that was sent before one that has
/// arrived, and has not arrived itself, is lost, whether or not either was a retransmission. `order` numbers
/// transmissions; `delivered` is the highest of these numbers that is known to have arrived.
#[derive(Debug)]
pub(super) struct SnoopedFlow<P> {
    segments: Segments<P>,
    held: u64,
    /// The sequence number after the highest one that the sender has sent.
    next: u32,
    fin: Option<u32>,
    acked: Option<u32>,
    window: u16,
    /// Duplicate ACKs since the ACK number last advanced.
    duplicates: u32,
    /// Limit of the duplicate ACKs that segments sent before the retransmission of the first one can cause.
    expected: u32,
    sacked: Sacked,
    sent: u64,
    delivered: u64,
    /// Original transmissions before this sequence number have been compared with `delivered`.
    examined: u32,
    /// Those before this one have been counted in `losses`.
    counted: u32,
    losses: LossesByDelay,
    /// The queueing delay of the last segment that has arrived.
    delay: DelayClass,
    /// Duplicate ACKs that second copies and not losses cause, and until when they can arrive.
    spurious: u32,
    spurious_until: Time,
    /// Retransmissions in their order, with their sequence numbers, including some that have arrived since.
    resent: VecDeque<(u64, u32)>,
    /// Recovery lasts until this is acknowledged.
    recover: Option<u32>,
    /// All losses are left to the sender until this is acknowledged.
    yielding: Option<u32>,
    rtt: RoundTrip,
    backoff: u32,
    timer_since: Time,
    last_seen: Time,
}

impl<P: Packet> SnoopedFlow<P> {
    /// A flow whose next segment begins at `seq`. Earlier segments have not been seen.
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
            counted: seq,
            losses: LossesByDelay::default(),
            delay: DelayClass::default(),
            spurious: 0,
            spurious_until: Time::ZERO,
            resent: VecDeque::new(),
            recover: None,
            yielding: None,
            rtt: RoundTrip::default(),
            backoff: 0,
            timer_since: now,
            last_seen: now,
        }
    }

    /// IP bytes of cached segments.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// IP bytes of cached segments, and the number of segments with a record.
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

    /// Whether its last byte has been acknowledged.
    pub(super) fn is_finished(&self) -> bool {
        self.fin.zip(self.acked).is_some_and(|(fin, acked)| !is_before(acked, fin))
    }

    /// Whether losses are left to the sender.
    pub(super) fn is_yielding(&self) -> bool {
        self.yielding.is_some()
    }

    pub(super) fn is_idle(&self, now: Time) -> bool {
        now >= self.last_seen + IDLE
    }

    /// The sender sends a segment; true if it is cached. `has_room` says whether it may be.
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
            (self.examined, self.counted) = (seq, seq);
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
            exhausted: false,
            by_sender: false,
            sacked: false,
            delay: DelayClass::default(),
            queued: false,
            extra: 0,
        });
        true
    }

    /// The sender ends the flow with a FIN before `end`.
    pub(super) fn on_fin(&mut self, end: u32) {
        self.fin = Some(end);
    }

    /// An acknowledgement arrives. Hands retransmissions to `send`.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        ack: Ack<'_>,
        config: &SnoopConfig,
        send: &mut impl FnMut(P),
    ) -> AckAction {
        self.last_seen = now;
        if self.acked.is_some_and(|acked| is_before(ack.ack, acked)) {
            return self.pass(config, &ack);
        }
        let beyond = ack.ack.wrapping_sub(self.next);
        if !is_before(ack.ack, self.next) && beyond > 0 {
            if beyond > FURTHEST {
                return AckAction::Pass;
            }
            self.next = ack.ack;
        }
        let advances = self.acked != Some(ack.ack);
        let same_window = std::mem::replace(&mut self.window, ack.window) == ack.window;
        if advances {
            self.advance(now, ack.ack);
        }
        let reads_sack = config.detection == Detection::Order;
        let has_news = reads_sack && self.add_sack(now, ack.ack, ack.sack);
        if !advances && !has_news && ack.is_pure && same_window && self.is_spurious(now) {
            return AckAction::Suppress;
        }
        let is_duplicate =
            !advances && ack.may_report_loss() && (same_window || has_news) && !self.segments.is_empty();
        self.duplicates += u32::from(is_duplicate);
        let enough = config.detection.duplicates();
        let overflowed = self.count_losses(enough) && !config.hide_congestion;
        if overflowed && self.yielding.is_none() {
            self.yielding = Some(self.next);
        }
        let was_responsible = self.is_responsible();
        if self.yielding.is_none() && (self.duplicates >= enough || advances && self.recover.is_some()) {
            self.repair(now, config, send);
        }
        // The sender must see a new window.
        let is_repaired = was_responsible && self.is_responsible() && self.duplicates >= enough;
        match is_repaired && is_duplicate && same_window {
            true => AckAction::Suppress,
            false => self.pass(config, &ack),
        }
    }

    /// When [`on_timer`](Self::on_timer) has something to do.
    pub(super) fn deadline(&self, config: &SnoopConfig) -> Time {
        let idle = self.last_seen + IDLE;
        self.expiry(config).map_or(idle, |expiry| idle.min(expiry))
    }

    /// Retransmits the first segment if the local timer has expired; true if it has.
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

    /// Whether the segment that the receiver waits for is cached, and Snoop repairs its loss.
    fn is_responsible(&self) -> bool {
        if self.yielding.is_some() {
            return false;
        }
        let is_awaited = |segment: &CachedSegment<P>| {
            self.acked.is_none_or(|acked| !is_before(acked, segment.seq) && is_before(acked, segment.end))
        };
        self.segments.first().is_some_and(|segment| {
            is_awaited(segment) && segment.packet.is_some() && !segment.by_sender && !segment.exhausted
        })
    }

    /// When the local timer expires. It does not run while the retransmission waits for its turn.
    fn expiry(&self, config: &SnoopConfig) -> Option<Time> {
        let first = self.segments.first().filter(|segment| self.is_responsible() && !segment.queued)?;
        Some(match config.detection {
            Detection::Order => self.timer_since + self.timeout(config),
            Detection::Published => {
                let since = if first.is_original() { self.last_seen } else { first.sent_at };
                since + self.published_timeout(config)
            }
        })
    }

    /// Whether the second copy of the segment that has just filled a hole causes a duplicate ACK. That copy
    /// was sent directly after the first; a duplicate ACK later than a round trip has another cause, for
    /// example a probe.
    fn is_spurious(&mut self, now: Time) -> bool {
        let is_spurious = self.spurious > 0 && now <= self.spurious_until;
        self.spurious -= u32::from(is_spurious);
        is_spurious
    }

    /// Whether these sequence numbers can be of this connection.
    fn is_near(&self, seq: u32, end: u32) -> bool {
        let oldest = self.segments.first().map(|segment| segment.seq).or(self.acked).unwrap_or(self.next);
        let near = |a: u32, b: u32| (a.wrapping_sub(b) as i32).unsigned_abs() <= FURTHEST;
        near(seq, self.next) && (!is_before(oldest, end) || near(end, oldest))
    }

    fn pass(&self, config: &SnoopConfig, ack: &Ack<'_>) -> AckAction {
        match config.hide_sack && !ack.sack.is_empty() && self.is_responsible() {
            true => AckAction::HideSack,
            false => AckAction::Pass,
        }
    }

    fn timeout(&self, config: &SnoopConfig) -> Duration {
        let timeout = self.rtt.timeout().unwrap_or(INITIAL_TIMEOUT).max(config.timer_floor);
        timeout * (1 << self.backoff)
    }

    fn published_timeout(&self, config: &SnoopConfig) -> Duration {
        let timeout = self.rtt.smoothed().map_or(INITIAL_TIMEOUT, |smoothed| smoothed * PUBLISHED_TIMEOUT);
        timeout.max(config.timer_floor)
    }

    /// The sender retransmits. From here on the loss is left to it: its window has shrunk in any case, and it
    /// sees all duplicate ACKs and SACK blocks.
    fn sent_by_sender(&mut self, now: Time, seq: u32, end: u32) {
        self.sent += 1;
        for segment in self.segments.overlapping(seq, end) {
            (segment.by_sender, segment.order, segment.sent_at) = (true, self.sent, now);
        }
        if is_before(self.next, end) {
            self.next = end;
        }
    }

    /// The ACK number advances to `ack`.
    fn advance(&mut self, now: Time, ack: u32) {
        let in_order = self.duplicates == 0 && self.recover.is_none();
        let mut arrived = 0;
        self.spurious = 0;
        self.acked = Some(ack);
        (self.duplicates, self.expected, self.backoff, self.timer_since) = (0, 0, 0, now);
        let mut newest = None;
        while let Some(segment) = self.segments.pop_before(ack) {
            self.held -= segment.held_bytes();
            self.spurious += segment.extra;
            if segment.sacked {
                self.delay = segment.delay;
            } else {
                self.deliver(now, &segment);
                newest = Some((segment.is_original(), segment.sent_at));
                arrived += 1;
            }
        }
        self.spurious_until = now + self.rtt.least().unwrap_or_default();
        // Segments behind a hole arrived long ago, so that only in-order arrivals give a round trip.
        if let Some((true, sent_at)) = newest.filter(|_| in_order) {
            self.delay = self.measure(now - sent_at);
            self.losses.delivered(self.delay, arrived);
        }
        if is_before(self.counted, ack) {
            self.counted = ack;
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

    /// Adds the SACK blocks above `ack`; true if one of them is new. D-SACK blocks are below it.
    fn add_sack(&mut self, now: Time, ack: u32, blocks: &[(u32, u32)]) -> bool {
        let mut has_news = false;
        let outstanding = self.next.wrapping_sub(ack);
        for &(first, end) in blocks {
            let (from, to) = (first.wrapping_sub(ack), end.wrapping_sub(ack));
            if 0 < from && from < to && to <= outstanding && outstanding <= FURTHEST {
                let mut parts = [(0, 0); 4];
                let mut count = 0;
                // A receiver of whole segments has no more ranges than segments.
                self.sacked.add((first, end), self.segments.len(), |first, end| {
                    // A block covers several parts only if ranges merge; parts that do not fit here count
                    // when they are acknowledged.
                    if let Some(part) = parts.get_mut(count) {
                        (*part, count) = ((first, end), count + 1);
                    }
                    has_news = true;
                });
                parts[..count].iter().for_each(|&part| self.arrived(now, part));
            }
        }
        has_news
    }

    /// The receiver has this range of sequence numbers, above a hole.
    fn arrived(&mut self, now: Time, (first, end): (u32, u32)) {
        let mut delivered = self.delivered;
        let (mut newest, least) = (None, self.rtt.least());
        for segment in self.segments.overlapping(first, end) {
            if segment.sacked || is_before(segment.seq, first) || is_before(end, segment.end) {
                continue;
            }
            self.held -= segment.held_bytes();
            (segment.sacked, segment.packet) = (true, None);
            if counts(now, segment, &self.rtt) {
                delivered = delivered.max(segment.order);
            }
            if segment.is_original() {
                let round_trip = now - segment.sent_at;
                segment.delay = DelayClass::of(round_trip, least.unwrap_or(round_trip));
                self.losses.delivered(segment.delay, 1);
                newest = Some(round_trip);
            }
        }
        self.delivered = delivered;
        if let Some(round_trip) = newest {
            self.rtt.sample(round_trip);
        }
    }

    /// Adds a round trip, and returns the class of its queueing delay.
    fn measure(&mut self, round_trip: Duration) -> DelayClass {
        self.rtt.sample(round_trip);
        DelayClass::of(round_trip, self.rtt.least().unwrap_or(round_trip))
    }

    fn deliver(&mut self, now: Time, segment: &CachedSegment<P>) {
        if counts(now, segment, &self.rtt) {
            self.delivered = self.delivered.max(segment.order);
        }
    }
}

/// Whether the arrival of a segment shows that everything sent before its latest copy has arrived or is lost.
/// If there were several copies, an earlier one may have arrived (Karn's problem), unless a round trip has
/// passed since the latest was sent.
fn counts<P>(now: Time, segment: &CachedSegment<P>, rtt: &RoundTrip) -> bool {
    !segment.queued
        && (segment.is_original() || rtt.least().is_some_and(|least| now - segment.sent_at >= least))
}
