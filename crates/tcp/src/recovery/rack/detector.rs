//! RACK's variables: what has arrived last, and how long a segment may be overtaken (RFC 8985 §5, §6.2).

use std::time::Duration;

use crate::recovery::{Acknowledgement, Expiry};
use crate::send_queue::{DUP_THRESH, Departure, Detected};

/// Repairs for which a window that D-SACK has widened stays so (RFC 8985 §6.2, step 4).
const PERSISTENCE: u32 = 16;
/// The grain of the timestamps.
const TICK: Duration = Duration::from_millis(1);

/// RACK's state of one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Detector {
    /// The latest departure of those that have arrived (RACK.xmit_ts and RACK.end_seq), and the round trip of
    /// the last one that has (RACK.rtt).
    latest: Option<Departure>,
    rtt: Duration,
    /// The highest offset that has arrived (RACK.fack).
    highest: u64,
    /// A segment sent once has arrived behind one of a higher offset.
    reordering_seen: bool,
    window: ReorderingWindow,
}

/// The part of the reordering window that D-SACK adapts.
#[derive(Debug, Clone, Copy)]
struct ReorderingWindow {
    /// RACK.reo_wnd_mult: quarters of the shortest round trip.
    quarters: u32,
    /// RACK.reo_wnd_persist: repairs after which it is one quarter again.
    persists: u32,
    /// RACK.dsack_round: until this offset is acknowledged, D-SACK widens it no further.
    round: Option<u64>,
}

impl Default for ReorderingWindow {
    fn default() -> Self {
        Self { quarters: 1, persists: PERSISTENCE, round: None }
    }
}

impl Detector {
    /// Steps 1 to 3; false where nothing has arrived that was not known to have.
    pub(super) fn on_ack(&mut self, ack: &Acknowledgement<'_>) -> bool {
        let progress = ack.progress;
        self.reordering_seen |= progress.lowest_sent_once.is_some_and(|end| end < self.highest);
        let repeated = progress.repeated.filter(|repeated| {
            // It may be the original that has arrived.
            let answers_original =
                progress.advanced > 0 && ack.echoed.is_some_and(|echoed| echoed + TICK <= repeated.at);
            ack.now - repeated.at >= ack.min_rtt && !answers_original
        });
        for departure in progress.sent_once.into_iter().chain(progress.repeated) {
            self.highest = self.highest.max(departure.end);
        }
        let Some(newest) = progress.sent_once.max(repeated) else { return false };
        self.rtt = ack.now - newest.at;
        self.latest = self.latest.max(Some(newest));
        true
    }

    /// Something arrived twice: the window was too narrow. Once in a round trip (step 4).
    pub(super) fn on_duplicates(&mut self, una: u64, nxt: u64) {
        if self.window.round.is_none_or(|round| una >= round) {
            self.window.round = Some(nxt);
            self.window.quarters = self.window.quarters.saturating_add(1);
            self.window.persists = PERSISTENCE;
        }
    }

    /// A repair is over, of a fast recovery or of a timeout.
    pub(super) fn on_repair_end(&mut self) {
        self.window.persists = self.window.persists.saturating_sub(1);
        if self.window.persists == 0 {
            self.window.quarters = 1;
        }
    }

    /// How long ago a segment must have left to count as lost: RACK.rtt and the reordering window.
    pub(super) fn wait(&self, expiry: &Expiry<'_>, in_repair: bool) -> Duration {
        self.rtt + self.reordering_window(expiry, in_repair)
    }

    /// RACK.reo_wnd. Where no reordering has been seen, three segments beyond a hole make it a loss, and in a
    /// repair one does.
    fn reordering_window(&self, expiry: &Expiry<'_>, in_repair: bool) -> Duration {
        if !self.reordering_seen && (in_repair || expiry.queue.sacked_segments() >= DUP_THRESH) {
            return Duration::ZERO;
        }
        (expiry.min_rtt.saturating_mul(self.window.quarters) / 4).min(expiry.srtt)
    }

    /// Step 5.
    pub(super) fn detect(&self, expiry: &mut Expiry<'_>, in_repair: bool) -> Detected {
        let wait = self.wait(expiry, in_repair);
        let Some(latest) = self.latest else { return Detected::default() };
        expiry.queue.detect_losses(expiry.now, latest, wait)
    }
}
