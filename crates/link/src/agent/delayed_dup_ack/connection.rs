//! The state of one connection.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

use super::super::packet::is_before;
use super::{Packet, TcpHeader};

/// Duplicate ACKs that pass at once: the third one shows the sender a loss (RFC 5681 §3.2).
const PASS: u32 = 2;
/// If a duplicate ACK arrives this long and d after the one before, counting begins anew: those before were
/// answers to keep-alive probes (RFC 9293 §3.8.4), or the sender has detected the loss long ago.
const QUIET: Duration = Duration::from_secs(1);

/// The acknowledgements that one host sends to another.
#[derive(Debug)]
pub(super) struct Connection<P> {
    /// The highest ACK number, and the last window with it.
    ack: u32,
    window: u16,
    duplicates: u32,
    /// The first SACK block of the last ACK. It covers the segment that has just arrived (RFC 2018 §4), so
    /// that the same block again reports nothing new.
    block: (u32, u32),
    /// Since when a hole at `ack` is known, if there is one.
    hole_since: Option<Time>,
    /// The sequence number after the FIN of the data's sender.
    fin: Option<u32>,
    /// Duplicate ACKs and when each is due, in order.
    held: VecDeque<(Time, P)>,
    seen_at: Time,
}

impl<P: Packet> Connection<P> {
    /// A connection of which this is the first acknowledgement seen.
    pub(super) fn new(now: Time, header: &TcpHeader<'_, P::End>) -> Self {
        Self {
            ack: header.ack,
            window: header.window,
            duplicates: 0,
            block: first_block(header),
            hole_since: reports_hole(header).then_some(now),
            fin: None,
            held: VecDeque::new(),
            seen_at: now,
        }
    }

    /// A segment with an acknowledgement is to be sent; `says_more` if it has a further purpose. Returns
    /// whether it must be held back, and whether the ACK number advances, so that the held ACKs are of no use
    /// any more.
    pub(super) fn on_ack(
        &mut self,
        now: Time,
        header: &TcpHeader<'_, P::End>,
        says_more: bool,
        delay: Duration,
    ) -> (bool, bool) {
        if is_before(header.ack, self.ack) {
            // An old ACK, which has been overtaken. It does not keep the connection alive: if the ports are
            // in use again and the SYN was not seen here, the connection must become idle.
            return (false, false);
        }
        let quiet = now.since(self.seen_at);
        self.seen_at = now;
        if is_before(self.ack, header.ack) {
            self.advance(now, header);
            return (false, true);
        }
        let is_duplicate = !says_more && self.is_duplicate(header);
        self.window = header.window;
        self.block = first_block(header);
        if !is_duplicate {
            return (false, false);
        }
        if quiet >= delay.saturating_add(QUIET) {
            (self.duplicates, self.hole_since) = (0, None);
        }
        self.duplicates = self.duplicates.saturating_add(1);
        self.hole_since.get_or_insert(now);
        // Once the sender knows of the loss, there is nothing to hide; but no ACK overtakes those that are
        // held.
        let must_hold = self.duplicates > PASS && (self.has_young_hole(now, delay) || !self.held.is_empty());
        (must_hold, false)
    }

    /// Whether there is a hole that has been known for less than `delay`.
    pub(super) fn has_young_hole(&self, now: Time, delay: Duration) -> bool {
        self.hole_since.is_some_and(|since| now < since + delay)
    }

    /// Holds a packet back until it is `due`, which is not before any that is held already.
    pub(super) fn hold(&mut self, due: Time, packet: P) {
        self.held.push_back((due, packet));
    }

    /// Removes the packet that has been held longest.
    pub(super) fn pop_held(&mut self) -> Option<P> {
        self.held.pop_front().map(|(_, packet)| packet)
    }

    /// When that packet is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.held.front().map(|(due, _)| *due)
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Frees memory that is not needed now.
    pub(super) fn shrink(&mut self) {
        if self.held.is_empty() {
            self.held = VecDeque::new();
        }
    }

    /// The data's sender has sent a FIN before `end`.
    pub(super) fn on_fin(&mut self, end: u32) {
        self.fin = Some(end);
    }

    /// Whether all data up to the FIN are acknowledged.
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
        self.hole_since = reports_hole(header).then_some(now);
    }

    /// RFC 5681 §2, except that the window may change if the SACK blocks are new (RFC 6675 §2). An ACK with
    /// only a D-SACK block (RFC 2883) reports a segment that arrived twice, and no hole.
    fn is_duplicate(&self, header: &TcpHeader<'_, P::End>) -> bool {
        let is_bare = header.sequence_length() == 0;
        let may_report_hole = header.sack.is_empty() || reports_hole(header);
        let has_news = !header.sack.is_empty() && first_block(header) != self.block;
        is_bare && may_report_hole && (header.window == self.window || has_news)
    }
}

/// Whether a block is beyond the ACK number, so that a segment before it is missing.
fn reports_hole<E>(header: &TcpHeader<'_, E>) -> bool {
    header.sack.iter().any(|&(start, _)| is_before(header.ack, start))
}

fn first_block<E>(header: &TcpHeader<'_, E>) -> (u32, u32) {
    header.sack.first().copied().unwrap_or_default()
}
