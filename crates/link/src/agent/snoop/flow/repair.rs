//! What is lost, and sending it again.

use bentpipe_units::Time;

use super::super::super::Packet;
use super::super::super::packet::is_before;
use super::{SnoopConfig, Tracked};

impl<P: Packet> Tracked<P> {
    /// Sends again what is known to be lost.
    pub(super) fn repair(&mut self, now: Time, config: &SnoopConfig, send: &mut impl FnMut(P)) {
        if self.is_in_care() && self.first_is_lost(now) {
            self.resend_first(now, config, send);
        }
        // Without SACK blocks nothing is known of what lies behind the first.
        if self.sacked.is_empty() {
            return;
        }
        while let Some(&(order, seq)) = self.resent.front().filter(|(order, _)| *order < self.delivered) {
            self.resent.pop_front();
            if self.segments.at_mut(seq).is_some_and(|kept| kept.order == order && !kept.sacked) {
                self.resend(now, seq, config, send);
            }
        }
        let mut index = self.segments.place_of(self.examined);
        while let Some(kept) = self.segments.get(index) {
            let (seq, end, is_original, sacked) = (kept.seq, kept.end, kept.is_original(), kept.sacked);
            if is_original && kept.order >= self.delivered {
                break;
            }
            if is_original && !sacked {
                self.resend(now, seq, config, send);
            }
            self.examined = end;
            index += 1;
        }
    }

    /// Counts the segments that are now known to be lost at their first transmission; true if one of them is likely to have
    /// found the queue behind Snoop full.
    pub(super) fn judge_losses(&mut self) -> bool {
        if self.sacked.is_empty() {
            return self.duplicates == 2 && self.judge_first();
        }
        let mut index = self.segments.place_of(self.judged);
        let before = index.checked_sub(1).and_then(|before| self.segments.get(before));
        let mut delay = before.map_or(self.delay, |kept| kept.delay);
        let mut overflowed = false;
        while let Some(kept) = self.segments.get_mut(index) {
            let is_original = kept.is_original();
            if is_original && kept.order >= self.delivered {
                break;
            }
            if kept.sacked {
                delay = kept.delay;
            } else if is_original {
                kept.delay = delay;
                self.losses.lost(delay);
                overflowed |= self.losses.is_likely_at(delay);
            }
            self.judged = kept.end;
            index += 1;
        }
        overflowed
    }

    /// Without SACK blocks only the first segment is known to be lost.
    fn judge_first(&mut self) -> bool {
        let Some(first) = self.segments.first() else { return false };
        let is_judged = is_before(first.seq, self.judged);
        if is_judged || !first.is_original() {
            return false;
        }
        self.judged = first.end;
        self.losses.lost(self.delay);
        self.losses.is_likely_at(self.delay)
    }

    /// Whether the first segment, which the receiver waits for, is lost.
    fn first_is_lost(&self, now: Time) -> bool {
        let Some(first) = self.segments.first() else { return false };
        if first.is_original() {
            return self.duplicates >= 2 || first.order < self.delivered;
        }
        // More duplicates than what went out before it can cause: something behind it has arrived.
        let overtaken = first.order < self.delivered || self.duplicates > self.expected;
        overtaken && self.rtt.least().is_some_and(|least| now - first.sent_at >= least)
    }

    pub(super) fn resend_first(&mut self, now: Time, config: &SnoopConfig, send: &mut impl FnMut(P)) {
        if let Some(seq) = self.segments.first().map(|kept| kept.seq) {
            self.resend(now, seq, config, send);
            let behind = u32::try_from(self.segments.len() - 1).unwrap_or(u32::MAX);
            self.expected = behind.max(self.duplicates);
        }
    }

    fn resend(&mut self, now: Time, seq: u32, config: &SnoopConfig, send: &mut impl FnMut(P)) {
        let Some(kept) = self.segments.at_mut(seq).filter(|kept| !kept.by_sender && !kept.waiting) else {
            return;
        };
        let Some(packet) = kept.packet.clone() else { return };
        if kept.resent >= config.retransmissions {
            kept.given_up = true;
            return;
        }
        self.sent += 1;
        kept.resent += 1;
        // Copies before these are lost, or they would not go out.
        kept.extra = config.copies.saturating_sub(1);
        (kept.order, kept.sent_at, kept.waiting) = (self.sent, now, true);
        self.resent.push_back((self.sent, seq));
        self.recover = Some(self.next);
        self.timer_since = now;
        send(packet);
    }

    /// The turn of the segment that begins at `seq` has come to be sent again; false if that has become needless. Nothing but other
    /// repairs has left since it was decided, so that its number is still right.
    pub(in super::super) fn repair_leaves(&mut self, now: Time, seq: u32) -> bool {
        let Some(kept) = self.segments.at_mut(seq).filter(|kept| kept.waiting) else { return false };
        kept.waiting = false;
        if kept.sacked || kept.by_sender {
            return false;
        }
        kept.sent_at = now;
        self.timer_since = now;
        true
    }
}
