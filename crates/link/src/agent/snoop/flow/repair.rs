//! Detection and repair of losses.

use bentpipe_units::Time;

use super::super::super::Packet;
use super::super::super::packet::is_before;
use super::{Detection, SnoopConfig, SnoopedFlow};

impl<P: Packet> SnoopedFlow<P> {
    /// Retransmits the segments that are known to be lost.
    pub(super) fn repair(&mut self, now: Time, config: &SnoopConfig, send: &mut impl FnMut(P)) {
        if self.is_responsible() && self.first_is_lost(now, config.detection) {
            self.resend_first(now, config, send);
        }
        // Without SACK blocks nothing is known of the segments after the first.
        if self.sacked.is_empty() {
            return;
        }
        while let Some(&(order, seq)) = self.resent.front().filter(|(order, _)| *order < self.delivered) {
            self.resent.pop_front();
            if self.segments.at_mut(seq).is_some_and(|segment| segment.order == order && !segment.sacked) {
                self.resend(now, seq, config, send);
            }
        }
        let mut index = self.segments.index_of(self.examined);
        while let Some(segment) = self.segments.get(index) {
            let (seq, end, is_original, sacked) =
                (segment.seq, segment.end, segment.is_original(), segment.sacked);
            if is_original && segment.order >= self.delivered {
                break;
            }
            if is_original && !sacked {
                self.resend(now, seq, config, send);
            }
            self.examined = end;
            index += 1;
        }
    }

    /// Counts the segments that are now known to be lost at their first transmission; true if one of them has
    /// probably found the queue behind Snoop full. Without SACK blocks that many duplicate ACKs show a loss.
    pub(super) fn count_losses(&mut self, enough: u32) -> bool {
        if self.sacked.is_empty() {
            return self.duplicates == enough && self.count_first();
        }
        let mut index = self.segments.index_of(self.counted);
        let before = index.checked_sub(1).and_then(|before| self.segments.get(before));
        let mut delay = before.map_or(self.delay, |segment| segment.delay);
        let mut overflowed = false;
        while let Some(segment) = self.segments.get_mut(index) {
            let is_original = segment.is_original();
            if is_original && segment.order >= self.delivered {
                break;
            }
            if segment.sacked {
                delay = segment.delay;
            } else if is_original {
                segment.delay = delay;
                self.losses.lost(delay);
                overflowed |= self.losses.is_likely_at(delay);
            }
            self.counted = segment.end;
            index += 1;
        }
        overflowed
    }

    /// Without SACK blocks only the first segment is known to be lost.
    fn count_first(&mut self) -> bool {
        let Some(first) = self.segments.first() else { return false };
        let is_counted = is_before(first.seq, self.counted);
        if is_counted || !first.is_original() {
            return false;
        }
        self.counted = first.end;
        self.losses.lost(self.delay);
        self.losses.is_likely_at(self.delay)
    }

    /// Whether the first segment, for which the receiver waits, is lost.
    fn first_is_lost(&self, now: Time, detection: Detection) -> bool {
        let Some(first) = self.segments.first() else { return false };
        let is_shown = self.duplicates >= detection.duplicates();
        if detection == Detection::Published {
            return is_shown && first.is_original();
        }
        if first.is_original() {
            return is_shown || first.order < self.delivered;
        }
        // More duplicate ACKs than earlier segments can cause: a later segment has arrived.
        let overtaken = first.order < self.delivered || self.duplicates > self.expected;
        overtaken && self.rtt.least().is_some_and(|least| now - first.sent_at >= least)
    }

    pub(super) fn resend_first(&mut self, now: Time, config: &SnoopConfig, send: &mut impl FnMut(P)) {
        if let Some(seq) = self.segments.first().map(|segment| segment.seq) {
            self.resend(now, seq, config, send);
            let behind = u32::try_from(self.segments.len() - 1).unwrap_or(u32::MAX);
            self.expected = behind.max(self.duplicates);
        }
    }

    fn resend(&mut self, now: Time, seq: u32, config: &SnoopConfig, send: &mut impl FnMut(P)) {
        let Some(segment) = self.segments.at_mut(seq).filter(|segment| !segment.by_sender && !segment.queued)
        else {
            return;
        };
        let Some(packet) = segment.packet.clone() else { return };
        if segment.resent >= config.retransmissions {
            segment.exhausted = true;
            return;
        }
        self.sent += 1;
        segment.resent += 1;
        // All earlier copies are lost, or there would be no retransmission.
        segment.extra = config.copies.saturating_sub(1);
        (segment.order, segment.sent_at, segment.queued) = (self.sent, now, true);
        self.resent.push_back((self.sent, seq));
        self.recover = Some(self.next);
        self.timer_since = now;
        send(packet);
    }

    /// The turn of the retransmission of the segment at `seq` has come; false if it is no longer needed.
    /// Since the decision only other retransmissions have been sent, so that its order number is still right.
    pub(in super::super) fn repair_leaves(&mut self, now: Time, seq: u32) -> bool {
        let Some(segment) = self.segments.at_mut(seq).filter(|segment| segment.queued) else { return false };
        segment.queued = false;
        if segment.sacked || segment.by_sender {
            return false;
        }
        segment.sent_at = now;
        self.timer_since = now;
        true
    }
}
