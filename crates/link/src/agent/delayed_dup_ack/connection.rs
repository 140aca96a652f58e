//! What the terminal knows of one connection.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

use super::super::packet::is_before;
use super::{Packet, TcpHeader};

/// Duplicate ACKs that pass at once: the sender takes the third one for a loss (RFC 5681 §3.2).
const PASS: u32 = 2;
/// Duplicate ACKs that come so long after d, and after the one before, begin to count anew: those before were not
/// about a hole, but answers to keep-alive probes (RFC 9293 §3.8.4), or the sender has long taken the hole for lost.
const QUIET: Duration = Duration::from_secs(1);

/// The acknowledgements that one host sends to another.
#[derive(Debug)]
pub(super) struct Connection<P> {
    /// The highest ACK number, and the window that stood beside it last.
    ack: u32,
    window: u16,
    duplicates: u32,
    /// The first SACK block that was seen last: it is about the segment that has just come (RFC 2018 §4), so one that
    /// is the same tells nothing new.
    block: (u32, u32),
    /// Since when a hole at `ack` is known, if there is one.
    hole_since: Option<Time>,
    /// The sequence number behind the FIN that has come from the data's sender.
    fin: Option<u32>,
    /// Duplicate ACKs and when each is due, in order.
    held: VecDeque<(Time, P)>,
    seen_at: Time,
}

/// What becomes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Hold,
}

impl<P: Packet> Connection<P> {
    /// Joined with this acknowledgement, perhaps in the middle.
    pub(super) fn new(now: Time, header: &TcpHeader<'_, P::End>) -> Self {
        Self {
            ack: header.ack,
            window: header.window,
            duplicates: 0,
            block: first_block(header),
            hole_since: tells_of_hole(header).then_some(now),
            fin: None,
            held: VecDeque::new(),
            seen_at: now,
        }
    }

    /// A segment with an acknowledgement leaves; `says_more` if it has something else to say. The second value is true if
    /// the ACK number advances: then what is held is of no use any more.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        header: &TcpHeader<'_, P::End>,
        says_more: bool,
        delay: Duration,
    ) -> (Verdict, bool) {
        if is_before(header.ack, self.ack) {
            // An old one, which has been overtaken. It does not count as a sign of life: if the ports are in use
            // again and nobody has seen the SYN, the connection is to be forgotten.
            return (Verdict::Pass, false);
        }
        let quiet = now.since(self.seen_at);
        self.seen_at = now;
        if is_before(self.ack, header.ack) {
            self.advance(now, header);
            return (Verdict::Pass, true);
        }
        let is_duplicate = !says_more && self.is_duplicate(header);
        self.window = header.window;
        self.block = first_block(header);
        if !is_duplicate {
            return (Verdict::Pass, false);
        }
        if quiet >= delay.saturating_add(QUIET) {
            (self.duplicates, self.hole_since) = (0, None);
        }
        self.duplicates = self.duplicates.saturating_add(1);
        self.hole_since.get_or_insert(now);
        // Once the sender has been told, there is nothing to hide; but none overtakes those that wait.
        let is_held = self.duplicates > PASS && (self.has_young_hole(now, delay) || !self.held.is_empty());
        (if is_held { Verdict::Hold } else { Verdict::Pass }, false)
    }

    /// Whether a hole has become known less than `delay` ago.
    pub(super) fn has_young_hole(&self, now: Time, delay: Duration) -> bool {
        self.hole_since.is_some_and(|since| now < since + delay)
    }

    /// Holds a packet until it is `due`, which is not before any that is held already.
    pub(super) fn hold(&mut self, due: Time, packet: P) {
        self.held.push_back((due, packet));
    }

    /// The packet that is held longest.
    pub(super) fn pop_held(&mut self) -> Option<P> {
        self.held.pop_front().map(|(_, packet)| packet)
    }

    /// When that is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.held.front().map(|(due, _)| *due)
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Gives memory back that is not needed now.
    pub(super) fn shrink(&mut self) {
        if self.held.is_empty() {
            self.held = VecDeque::new();
        }
    }

    /// The data's sender has sent its FIN, which ends here.
    pub(super) fn on_fin(&mut self, end: u32) {
        self.fin = Some(end);
    }

    /// Whether all data are acknowledged, and there will be no more.
    pub(super) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| !is_before(self.ack, fin))
    }

    pub(super) fn is_idle(&self, now: Time, limit: Duration) -> bool {
        self.held.is_empty() && now.since(self.seen_at) >= limit
    }

    fn advance(&mut self, now: Time, header: &TcpHeader<'_, P::End>) {
        self.ack = header.ack;
        self.window = header.window;
        self.block = first_block(header);
        self.duplicates = 0;
        self.hole_since = tells_of_hole(header).then_some(now);
    }

    /// RFC 5681 §2, but that the window may change if the SACK blocks tell something new (RFC 6675 §2). An ACK that
    /// carries a D-SACK block alone (RFC 2883) is about a segment that came twice, and not about a hole.
    fn is_duplicate(&self, header: &TcpHeader<'_, P::End>) -> bool {
        let is_bare = header.sequence_length() == 0;
        let is_about_hole = header.sack.is_empty() || tells_of_hole(header);
        let is_news = !header.sack.is_empty() && first_block(header) != self.block;
        is_bare && is_about_hole && (header.window == self.window || is_news)
    }
}

/// Whether a block lies beyond the ACK number, so that something before it is missing.
fn tells_of_hole<E>(header: &TcpHeader<'_, E>) -> bool {
    header.sack.iter().any(|&(start, _)| is_before(header.ack, start))
}

fn first_block<E>(header: &TcpHeader<'_, E>) -> (u32, u32) {
    header.sack.first().copied().unwrap_or_default()
}
