//! The segments that have been sent and not acknowledged: the sender's scoreboard (RFC 6675 §3).

mod by_time;

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::{Ranges, Time};

pub(crate) use by_time::{Departure, Detected};

use crate::delivery_rate::Snapshot;

/// RFC 5681's and RFC 6675's DupThresh: this many segments beyond a hole make it a loss.
pub(crate) const DUP_THRESH: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// On its way, as far as the sender knows.
    InFlight,
    /// Selectively acknowledged.
    Sacked,
    /// Lost, to be sent again.
    Lost,
    /// Lost, and sent again.
    Retransmitted,
    /// On its way, as far as the sender knows, and sent again all the same (RFC 6675 §4, NextSeg rules 3 and
    /// 4).
    Doubled,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    start: u64,
    len: u32,
    fate: Fate,
    /// It was sent more than once, so an acknowledgement of it measures nothing (Karn).
    repeated: bool,
    at: Time,
}

impl Sent {
    fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    fn departure(&self) -> Departure {
        Departure { at: self.at, end: self.end() }
    }
}

/// A piece of the stream that is to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: u64,
    pub(crate) len: u32,
}

/// What an acknowledgement changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes acknowledged cumulatively that were not so before.
    pub(crate) advanced: u64,
    /// Bytes that it is the first to report as received.
    pub(crate) delivered: u64,
    /// The newest of the segments that it reports, of those sent only once and of those repeated.
    pub(crate) sent_once: Option<Departure>,
    pub(crate) repeated: Option<Departure>,
    /// The end of the lowest segment sent only once that it reports.
    pub(crate) lowest_sent_once: Option<u64>,
    /// It has a SACK block with news.
    pub(crate) sacked: bool,
    /// Of the segment that left last, where that is recorded.
    pub(crate) snapshot: Option<Snapshot>,
}

impl Progress {
    /// When the newest segment left that it says has arrived. One that left less than `shortest`, the
    /// shortest round trip, before `now` and was a repetition is not it: what has arrived was sent before
    /// (RFC 8985 §6.2, step 2).
    pub(crate) fn newest_sent_at(&self, now: Time, shortest: Duration) -> Option<Time> {
        let repeated = self.repeated.map(|departure| departure.at).filter(|&at| at + shortest <= now);
        repeated.max(self.sent_once.map(|departure| departure.at))
    }

    /// When the segment left whose acknowledgement this is; nothing if that is not certain (Karn). What left
    /// before a repetition that is reported too had arrived and waited for it, an outage long perhaps (RFC
    /// 7323 §4.1).
    pub(crate) fn sent_at(&self) -> Option<Time> {
        let sent_once = self.sent_once?.at;
        self.repeated.is_none_or(|repeated| repeated.at <= sent_once).then_some(sent_once)
    }

    /// Whether the news is of something that was sent once, and no later than then.
    fn is_of_before(&self, at: Time) -> bool {
        self.sent_once.is_some_and(|sent| sent.at <= at)
    }

    fn note_snapshot(&mut self, snapshot: Snapshot) {
        if self.snapshot.is_none_or(|known| snapshot.delivered >= known.delivered) {
            self.snapshot = Some(snapshot);
        }
    }

    #[inline]
    fn note(&mut self, departure: Departure, repeated: bool) {
        let newest = if repeated { &mut self.repeated } else { &mut self.sent_once };
        if newest.is_none_or(|newest| newest < departure) {
            *newest = Some(departure);
        }
        if !repeated && self.lowest_sent_once.is_none_or(|lowest| departure.end < lowest) {
            self.lowest_sent_once = Some(departure.end);
        }
    }
}

/// The segments between the first unacknowledged byte and the next to be sent, in order.
///
/// The places where work goes on only move forward (losses below an offset, retransmissions), so that a
/// segment is visited a few times in its life, however many are in flight; finding one by its offset takes
/// O(log n), and O(1) where segments are of one length.
#[derive(Debug, Clone, Default)]
pub(crate) struct SendQueue {
    segments: VecDeque<Sent>,
    una: u64,
    nxt: u64,
    sacked: Ranges,
    sacked_bytes: u64,
    /// Segments that are selectively acknowledged.
    sacked_segments: u64,
    lost_bytes: u64,
    /// Bytes that were lost and have been sent again.
    retransmitted_bytes: u64,
    /// All that was ever taken for lost.
    ever_lost: u64,
    doubled_bytes: u64,
    /// Losses below this offset are known.
    judged: u64,
    /// Below this offset nothing lost waits to be sent again.
    resent: u64,
    /// Retransmissions, where and when, in the order of time; kept only where lost ones are looked for.
    repetitions: Option<VecDeque<(u64, Time)>>,
    /// One for each segment; kept only where the delivery rate is sampled.
    snapshots: Option<VecDeque<Snapshot>>,
    /// Parts of a SACK block that are new; kept for its memory.
    fresh: Vec<(u64, u64)>,
}

impl SendQueue {
    /// An empty queue whose first byte has the offset `start`.
    pub(crate) fn new(start: u64) -> Self {
        Self { una: start, nxt: start, judged: start, resent: start, ..Self::default() }
    }

    /// Records retransmissions from now on, for [`judge_repetitions`](Self::judge_repetitions).
    pub(crate) fn note_repetitions(&mut self) {
        self.repetitions.get_or_insert_default();
    }

    /// Keeps a [`Snapshot`] with each segment from now on.
    pub(crate) fn keep_snapshots(&mut self) {
        self.snapshots.get_or_insert_default();
    }

    /// The segment at `start` has just left; this was known then.
    pub(crate) fn stamp(&mut self, start: u64, snapshot: Snapshot) {
        let index = self.index_of(start);
        if let Some(known) = self.snapshots.as_mut().and_then(|snapshots| snapshots.get_mut(index)) {
            *known = snapshot;
        }
    }

    /// The first unacknowledged offset (SND.UNA).
    pub(crate) fn una(&self) -> u64 {
        self.una
    }

    /// The next offset to be sent for the first time (SND.NXT, RFC 6675's HighData).
    pub(crate) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Bytes between the two (RFC 5681's FlightSize).
    pub(crate) fn outstanding(&self) -> u64 {
        self.nxt - self.una
    }

    /// Bytes believed to be in the network: neither selectively acknowledged, nor lost and not yet sent
    /// again, and twice those that were sent again without being lost (RFC 6675's pipe).
    pub(crate) fn in_flight(&self) -> u64 {
        self.outstanding() + self.doubled_bytes - self.sacked_bytes - self.lost_bytes
    }

    /// Bytes that are lost and not yet sent again.
    pub(crate) fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// Bytes that are lost and have not arrived since, whether they have been sent again or not (Linux'
    /// `lost_out`).
    pub(crate) fn unrepaired_bytes(&self) -> u64 {
        self.lost_bytes + self.retransmitted_bytes
    }

    /// Bytes that were taken for lost since the beginning.
    pub(crate) fn ever_lost(&self) -> u64 {
        self.ever_lost
    }

    /// Segments that are outstanding.
    pub(crate) fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Segments that are selectively acknowledged.
    pub(crate) fn sacked_segments(&self) -> u64 {
        self.sacked_segments
    }

    /// Whether the first unacknowledged segment counts as lost.
    pub(crate) fn head_is_lost(&self) -> bool {
        self.segments.front().is_some_and(|segment| segment.fate == Fate::Lost)
    }

    /// The first unacknowledged segment was sent again, and what has arrived now had left before that:
    /// whether it was lost once more cannot be known yet.
    pub(crate) fn awaits_repeated_head(&self, progress: &Progress) -> bool {
        self.segments.front().is_some_and(|front| front.repeated && progress.is_of_before(front.at))
    }

    /// Something was sent for the first time.
    pub(crate) fn push(&mut self, len: u32, at: Time) {
        self.segments.push_back(Sent { start: self.nxt, len, fate: Fate::InFlight, repeated: false, at });
        self.nxt += u64::from(len);
        if let Some(snapshots) = &mut self.snapshots {
            snapshots.push_back(Snapshot::default());
        }
    }

    /// Everything before `offset` is acknowledged.
    pub(crate) fn acknowledge(&mut self, offset: u64, progress: &mut Progress) {
        progress.advanced = offset.saturating_sub(self.una);
        while let Some(front) = self.segments.front_mut().filter(|front| front.start < offset) {
            if front.end() > offset {
                let covered = offset - front.start;
                let fate = front.fate;
                (front.start, front.len) = (offset, front.len - covered as u32);
                if fate != Fate::Sacked {
                    progress.delivered += covered;
                }
                self.discount(fate, covered);
                break;
            }
            let Sent { len, fate, repeated, .. } = *front;
            let departure = front.departure();
            self.segments.pop_front();
            let snapshot = self.snapshots.as_mut().and_then(VecDeque::pop_front);
            if fate == Fate::Sacked {
                self.sacked_segments -= 1;
            } else {
                progress.delivered += u64::from(len);
                progress.note(departure, repeated);
                if let Some(snapshot) = snapshot {
                    progress.note_snapshot(snapshot);
                }
            }
            self.discount(fate, len.into());
        }
        self.una = self.una.max(offset);
        if !self.sacked.is_empty() {
            self.sacked.remove_before(self.una);
        }
        self.judged = self.judged.max(self.una);
        self.resent = self.resent.max(self.una);
    }

    /// A SACK block: everything from `start` to before `end` has arrived. Blocks outside the outstanding data
    /// are ignored.
    pub(crate) fn sack(&mut self, start: u64, end: u64, progress: &mut Progress) {
        if start < self.una
            || end > self.nxt
            || self.sacked.containing(start).is_some_and(|known| end <= known.1)
        {
            return;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        self.sacked.insert(start, end, |from, to| fresh.push((from, to)));
        for (from, to) in fresh.drain(..) {
            self.take_sacked(from, to, progress);
        }
        self.fresh = fresh;
    }

    fn take_sacked(&mut self, from: u64, to: u64, progress: &mut Progress) {
        let first = self.index_of(from);
        let fresh = self.segments.range_mut(first..).take_while(|segment| segment.start < to);
        for (segment, index) in fresh.zip(first..) {
            let covered = self.sacked.containing(segment.start).is_some_and(|known| segment.end() <= known.1);
            if !covered || segment.fate == Fate::Sacked {
                continue;
            }
            let len = u64::from(segment.len);
            match segment.fate {
                Fate::Lost => self.lost_bytes -= len,
                Fate::Retransmitted => self.retransmitted_bytes -= len,
                Fate::Doubled => self.doubled_bytes -= len,
                Fate::InFlight | Fate::Sacked => {}
            }
            progress.note(segment.departure(), segment.repeated);
            if let Some(snapshots) = &self.snapshots {
                progress.note_snapshot(snapshots[index]);
            }
            segment.fate = Fate::Sacked;
            self.sacked_segments += 1;
            self.sacked_bytes += len;
            progress.delivered += len;
            progress.sacked = true;
        }
    }

    /// The segment that contains `offset`, or the one behind it.
    fn index_of(&self, offset: u64) -> usize {
        let (Some(front), Some(back)) = (self.segments.front(), self.segments.back()) else { return 0 };
        if offset < front.end() {
            return 0;
        }
        if offset >= back.end() {
            return self.segments.len();
        }
        // Behind the first one, which may be acknowledged in part, most are of one length.
        let guess = 1 + ((offset - front.end()) / u64::from(self.segments[1].len.max(1))) as usize;
        match self.segments.get(guess) {
            Some(segment) if segment.start <= offset && offset < segment.end() => guess,
            _ => self.segments.partition_point(|segment| segment.end() <= offset),
        }
    }

    fn discount(&mut self, fate: Fate, bytes: u64) {
        match fate {
            Fate::Sacked => self.sacked_bytes -= bytes,
            Fate::Lost => self.lost_bytes -= bytes,
            Fate::Doubled => self.doubled_bytes -= bytes,
            Fate::Retransmitted => self.retransmitted_bytes -= bytes,
            Fate::InFlight => {}
        }
    }

    /// Marks losses by the selective acknowledgements (RFC 6675 §4, IsLost): a segment is lost when three
    /// ranges, or more than two segments' worth of bytes, have arrived beyond it. All such segments lie below
    /// one offset.
    pub(crate) fn judge_by_sack(&mut self, mss: u64) {
        let (mut ranges, mut bytes) = (0, 0);
        let decisive = self.sacked.iter().rev().find(|(start, end)| {
            ranges += 1;
            bytes += end - start;
            ranges >= DUP_THRESH || bytes > (DUP_THRESH - 1) * mss
        });
        if let Some((start, _)) = decisive {
            self.lose_between(self.judged, start);
        }
    }

    /// The holes between two offsets are lost, except those already sent again.
    fn lose_between(&mut self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            if let Some((_, end)) = self.sacked.containing(at) {
                at = end;
                continue;
            }
            let hole_end = self.sacked.next_start(at).map_or(to, |start| start.min(to));
            let first = self.index_of(at);
            for segment in self.segments.range_mut(first..).take_while(|segment| segment.start < hole_end) {
                let len = u64::from(segment.len);
                if segment.fate == Fate::InFlight {
                    segment.fate = Fate::Lost;
                    self.lost_bytes += len;
                    self.ever_lost += len;
                    self.resent = self.resent.min(segment.start);
                } else if segment.fate == Fate::Doubled {
                    segment.fate = Fate::Retransmitted;
                    self.doubled_bytes -= len;
                    self.retransmitted_bytes += len;
                }
            }
            at = hole_end;
        }
        self.judged = self.judged.max(to);
    }

    /// A retransmission is lost that left before `newest`, the departure of one that has arrived, and has not
    /// arrived itself.
    pub(crate) fn judge_repetitions(&mut self, newest: Time) {
        let Some(mut repetitions) = self.repetitions.take() else { return };
        while let Some(&(start, at)) = repetitions.front().filter(|&&(_, at)| at < newest) {
            repetitions.pop_front();
            let index = self.index_of(start);
            let Some(segment) = self.segments.get_mut(index) else { continue };
            if segment.fate == Fate::Retransmitted && segment.at == at {
                let len = u64::from(segment.len);
                segment.fate = Fate::Lost;
                self.retransmitted_bytes -= len;
                self.lost_bytes += len;
                self.ever_lost += len;
                self.resent = self.resent.min(segment.start);
            }
        }
        self.repetitions = Some(repetitions);
    }

    /// The first unacknowledged segment is lost, again if need be.
    pub(crate) fn lose_head(&mut self) {
        let Some(front) = self.segments.front_mut() else { return };
        let (fate, len, end) = (front.fate, u64::from(front.len), front.end());
        if !matches!(fate, Fate::Sacked | Fate::Lost) {
            front.fate = Fate::Lost;
            self.discount(fate, len);
            self.lost_bytes += len;
            self.ever_lost += len;
        }
        self.judged = self.judged.max(end);
        self.resent = self.una;
    }

    /// Everything that is not selectively acknowledged is lost: the retransmission timer has expired (RFC
    /// 5681 §3.1). If the first segment was selectively acknowledged, the receiver has thrown away what it
    /// had, and all is lost (RFC 2018 §8).
    pub(crate) fn lose_all(&mut self) {
        let reneged = self.segments.front().is_some_and(|front| front.fate == Fate::Sacked);
        if reneged {
            self.sacked = Ranges::default();
            (self.sacked_bytes, self.sacked_segments) = (0, 0);
        }
        for segment in &mut self.segments {
            if segment.fate != Fate::Lost && (reneged || segment.fate != Fate::Sacked) {
                segment.fate = Fate::Lost;
                self.lost_bytes += u64::from(segment.len);
                self.ever_lost += u64::from(segment.len);
            }
        }
        (self.doubled_bytes, self.retransmitted_bytes) = (0, 0);
        self.judged = self.nxt;
        self.resent = self.una;
    }

    /// The first lost segment that has not been sent again (RFC 6675 §4, NextSeg rule 1).
    #[inline]
    pub(crate) fn next_lost(&mut self) -> Option<Piece> {
        if self.lost_bytes == 0 {
            return None;
        }
        let mut index = self.index_of(self.resent);
        while let Some(segment) = self.segments.get(index) {
            match segment.fate {
                Fate::Lost => return Some(Piece { start: segment.start, len: segment.len }),
                Fate::Sacked => {
                    let end = self.sacked.containing(segment.start).map_or(segment.end(), |range| range.1);
                    self.resent = end;
                    index = self.index_of(end);
                }
                Fate::InFlight | Fate::Retransmitted | Fate::Doubled => {
                    self.resent = segment.end();
                    index += 1;
                }
            }
        }
        None
    }

    /// The first segment below the highest that is selectively acknowledged which is neither lost nor sent
    /// again (NextSeg rule 3).
    pub(crate) fn next_hole(&self) -> Option<Piece> {
        let highest = self.sacked.end()?;
        let mut at = self.judged;
        while at < highest {
            if let Some((_, end)) = self.sacked.containing(at) {
                at = end;
                continue;
            }
            let segment = self.segments.get(self.index_of(at))?;
            if segment.fate == Fate::InFlight {
                return Some(Piece { start: segment.start, len: segment.len });
            }
            at = segment.end();
        }
        None
    }

    /// The last segment, if it is not selectively acknowledged (NextSeg rule 4, the rescue).
    pub(crate) fn last(&self) -> Option<Piece> {
        let last = self.segments.back().filter(|segment| segment.fate != Fate::Sacked)?;
        Some(Piece { start: last.start, len: last.len })
    }

    /// A segment was sent again.
    pub(crate) fn sent_again(&mut self, start: u64, at: Time) {
        let index = self.index_of(start);
        let Some(segment) = self.segments.get_mut(index) else { return };
        match segment.fate {
            Fate::Lost => {
                self.lost_bytes -= u64::from(segment.len);
                self.retransmitted_bytes += u64::from(segment.len);
                segment.fate = Fate::Retransmitted;
            }
            Fate::InFlight => {
                self.doubled_bytes += u64::from(segment.len);
                segment.fate = Fate::Doubled;
            }
            Fate::Sacked | Fate::Retransmitted | Fate::Doubled => {}
        }
        segment.repeated = true;
        segment.at = at;
        if let Some(repetitions) = &mut self.repetitions {
            repetitions.push_back((start, at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u64 = 100;

    fn queue(segments: u64) -> SendQueue {
        let mut queue = SendQueue::new(0);
        (0..segments).for_each(|n| queue.push(MSS as u32, Time::from_nanos(n)));
        queue
    }

    fn sack(queue: &mut SendQueue, first: u64, end: u64) -> Progress {
        let mut progress = Progress::default();
        queue.sack(first * MSS, end * MSS, &mut progress);
        queue.judge_by_sack(MSS);
        progress
    }

    fn resend(queue: &mut SendQueue) -> Vec<u64> {
        std::iter::from_fn(|| {
            let piece = queue.next_lost()?;
            queue.sent_again(piece.start, Time::from_nanos(1000));
            Some(piece.start / MSS)
        })
        .collect()
    }

    #[test]
    fn a_hole_is_lost_when_three_segments_beyond_it_have_arrived() {
        let mut queue = queue(10);
        sack(&mut queue, 1, 3);
        assert!(!queue.head_is_lost(), "two segments are not enough");
        sack(&mut queue, 3, 4);
        assert!(queue.head_is_lost());
        assert_eq!(queue.in_flight(), 6 * MSS);
    }

    #[test]
    fn a_hole_is_lost_when_three_ranges_beyond_it_have_arrived() {
        let mut queue = queue(10);
        sack(&mut queue, 1, 2);
        sack(&mut queue, 3, 4);
        sack(&mut queue, 5, 6);
        assert_eq!(resend(&mut queue), [0]);
    }

    #[test]
    fn holes_are_sent_again_in_order_and_once() {
        let mut queue = queue(20);
        for n in [1, 3, 5, 7, 9] {
            sack(&mut queue, n, n + 1);
        }
        sack(&mut queue, 12, 16);
        assert_eq!(resend(&mut queue), [0, 2, 4, 6, 8, 10, 11]);
        assert_eq!(resend(&mut queue), [] as [u64; 0]);
        assert_eq!(queue.next_hole(), None);
    }

    #[test]
    fn after_a_timeout_everything_but_the_sacked_is_sent_again() {
        let mut queue = queue(6);
        sack(&mut queue, 2, 3);
        queue.lose_all();
        assert_eq!(queue.in_flight(), 0);
        assert_eq!(resend(&mut queue), [0, 1, 3, 4, 5]);
        queue.lose_all();
        assert_eq!(resend(&mut queue), [0, 1, 3, 4, 5], "a second timeout loses the repetitions too");
    }

    #[test]
    fn a_repetition_is_lost_when_something_that_left_later_has_arrived() {
        let at = Time::from_nanos;
        let mut queue = queue(10);
        queue.note_repetitions();
        sack(&mut queue, 2, 6);
        assert_eq!(resend(&mut queue), [0, 1]);
        queue.judge_repetitions(at(1000));
        assert_eq!(queue.next_lost(), None, "what left at the same time may still be on its way");
        sack(&mut queue, 1, 2);
        queue.judge_repetitions(at(1001));
        assert_eq!(
            (resend(&mut queue), queue.ever_lost()),
            (vec![0], 3 * MSS),
            "and what has arrived is not lost"
        );
        queue.judge_repetitions(at(1001));
        assert_eq!(resend(&mut queue), [0], "again");
        queue.acknowledge(3 * MSS, &mut Progress::default());
        queue.judge_repetitions(Time::MAX);
        assert_eq!(queue.lost_bytes(), 0);
    }

    /// The original was delayed, not lost: it says nothing of what left shortly before the repetition.
    #[test]
    fn an_answer_that_comes_sooner_than_a_round_trip_is_not_one_to_the_repetition() {
        let (at, rtt) = (Time::from_nanos, Duration::from_nanos(600));
        let mut queue = queue(3);
        queue.lose_all();
        queue.sent_again(0, at(1000));
        let mut progress = Progress::default();
        queue.acknowledge(MSS, &mut progress);
        assert_eq!(progress.newest_sent_at(at(1599), rtt), None);
        assert_eq!(progress.newest_sent_at(at(1600), rtt), Some(at(1000)));
    }

    #[test]
    fn only_a_segment_sent_once_measures_the_round_trip() {
        let mut queue = queue(3);
        queue.lose_head();
        resend(&mut queue);
        let mut progress = Progress::default();
        queue.acknowledge(MSS, &mut progress);
        assert_eq!((progress.advanced, progress.delivered, progress.sent_at()), (MSS, MSS, None));
        let mut progress = Progress::default();
        queue.acknowledge(3 * MSS, &mut progress);
        assert_eq!(progress.sent_at(), Some(Time::from_nanos(2)));
    }

    /// What was received before an outage is reported when the first repetition after it has arrived: it
    /// measures the outage, not the round trip.
    #[test]
    fn a_block_that_comes_with_the_acknowledgement_of_a_repetition_measures_nothing() {
        let mut queue = queue(5);
        queue.lose_all();
        queue.sent_again(0, Time::from_nanos(1000));
        let mut progress = Progress::default();
        queue.acknowledge(MSS, &mut progress);
        queue.sack(2 * MSS, 4 * MSS, &mut progress);
        assert_eq!((progress.delivered, progress.sent_at()), (3 * MSS, None));
    }

    #[test]
    fn a_sack_block_outside_the_data_in_flight_is_ignored() {
        let mut queue = queue(3);
        queue.acknowledge(MSS, &mut Progress::default());
        assert!(!sack(&mut queue, 2, 9).sacked);
        assert!(!sack(&mut queue, 0, 2).sacked);
    }

    #[test]
    fn half_a_segment_can_be_acknowledged() {
        let mut queue = queue(2);
        let mut progress = Progress::default();
        queue.acknowledge(150, &mut progress);
        assert_eq!((progress.delivered, queue.in_flight(), queue.una()), (150, 50, 150));
        queue.lose_all();
        assert_eq!(queue.next_lost(), Some(Piece { start: 150, len: 50 }));
    }

    proptest! {
        /// The sums are those of the segments, whatever is acknowledged, lost and sent again in whatever
        /// order.
        #[test]
        fn the_sums_are_those_of_the_segments(
            steps in prop::collection::vec((0u8..11, 0u64..40, 1u64..10), 1..200),
        ) {
            let mut queue = queue(5);
            queue.note_repetitions();
            for (action, at, len) in steps {
                let base = queue.una() / MSS;
                match action {
                    0 => queue.push(MSS as u32, Time::ZERO),
                    1 => {
                        let to = (queue.una() + at * MSS / 8).min(queue.nxt());
                        queue.acknowledge(to, &mut Progress::default());
                    }
                    2 => { sack(&mut queue, base + at, base + at + len); }
                    3 => { resend(&mut queue); }
                    4 => queue.lose_all(),
                    5 => queue.lose_head(),
                    6 => queue.judge_repetitions(Time::from_nanos(1 + at * 100)),
                    7 => {
                        let newest = Departure { at: Time::from_nanos(at * 100), end: queue.nxt() };
                        queue.detect_losses(Time::from_nanos(1000), newest, Duration::from_nanos(len * 50));
                    }
                    8 => queue.lose_expired(Time::from_nanos(1000), Duration::from_nanos(len * 50)),
                    9 => queue.unmark_losses(),
                    _ => {
                        if let Some(piece) = queue.next_hole().or(queue.last()) {
                            queue.sent_again(piece.start, Time::ZERO);
                        }
                    }
                }
                let sum = |fate: Fate| -> u64 {
                    let segments = queue.segments.iter().filter(|segment| segment.fate == fate);
                    segments.map(|segment| u64::from(segment.len)).sum()
                };
                prop_assert_eq!(sum(Fate::Sacked), queue.sacked_bytes);
                let sacked = queue.segments.iter().filter(|segment| segment.fate == Fate::Sacked).count();
                prop_assert_eq!(sacked as u64, queue.sacked_segments);
                prop_assert_eq!(sum(Fate::Lost), queue.lost_bytes);
                prop_assert_eq!(sum(Fate::Doubled), queue.doubled_bytes);
                prop_assert_eq!(sum(Fate::Lost) + sum(Fate::Retransmitted), queue.unrepaired_bytes());
                let once = sum(Fate::InFlight) + sum(Fate::Retransmitted);
                prop_assert_eq!(queue.in_flight(), once + 2 * sum(Fate::Doubled));
                let first_lost = queue.segments.iter().find(|segment| segment.fate == Fate::Lost).copied();
                prop_assert_eq!(queue.next_lost().map(|piece| piece.start), first_lost.map(|lost| lost.start));
                let mut at = queue.una();
                for segment in &queue.segments {
                    prop_assert_eq!(segment.start, at);
                    at = segment.end();
                }
                prop_assert_eq!(at, queue.nxt());
            }
        }
    }
}
