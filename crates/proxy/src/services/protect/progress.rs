//! What has become of the frames that were sent, in bytes: from the counts of frames that the peer reports.

use std::collections::VecDeque;

use bentpipe_protect::leg::PeerCounts;
use serde::{Deserialize, Serialize};

/// Frames that are remembered until the peer has reported them; many round trips of any link.
const MOST: usize = 1 << 16;

/// Bytes on the wire of the session that runs.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Progress {
    /// The bytes of frames that the peer has not reported yet, in their order.
    unreported: VecDeque<u32>,
    reported: u64,
    received: u64,
    /// Of frames that carry packets: how many of `unreported` from the front on are needed to reach the last.
    last_data: u64,
    sent_frames: u64,
    pub(super) sent: u64,
    pub(super) delivered: u64,
    pub(super) lost: u64,
}

impl Progress {
    /// A frame of the session has left.
    pub(super) fn on_sent(&mut self, bytes: usize, is_data: bool) {
        self.sent += bytes as u64;
        self.sent_frames += 1;
        if is_data {
            self.last_data = self.sent_frames;
        }
        if self.unreported.len() < MOST {
            self.unreported.push_back(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    }

    /// The peer's counts; those that go back, or beyond what was sent, say nothing.
    pub(super) fn on_report(&mut self, counts: PeerCounts) {
        let reported = counts.received.saturating_add(counts.lost);
        if reported < self.reported || reported > self.sent_frames || counts.received < self.received {
            return;
        }
        let (frames, received) = (reported - self.reported, counts.received - self.received);
        let count = usize::try_from(frames).unwrap_or(usize::MAX).min(self.unreported.len());
        let bytes: u64 = self.unreported.drain(..count).map(u64::from).sum();
        // A late frame is received after it was counted as lost.
        let arrived = if frames == 0 { 0.0 } else { (received as f64 / frames as f64).min(1.0) };
        let delivered = (bytes as f64 * arrived).round() as u64;
        self.delivered += delivered;
        self.lost += bytes - delivered;
        (self.reported, self.received) = (reported, counts.received);
    }

    /// Whether frames with packets are on their way.
    pub(super) fn in_flight(&self) -> bool {
        self.last_data > self.reported
    }

    /// A new session has begun; bytes go on.
    pub(super) fn restart(&mut self) {
        let Self { sent, delivered, lost, .. } = *self;
        // What was on its way is nobody's loss.
        *self = Self { sent, delivered, lost, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_follow_the_frames_that_the_peer_has_counted() {
        let mut progress = Progress::default();
        for bytes in [1000, 1000, 100, 100] {
            progress.on_sent(bytes, bytes == 1000);
        }
        assert!(progress.in_flight());
        progress.on_report(PeerCounts { received: 1, lost: 1 });
        assert_eq!((progress.delivered, progress.lost, progress.in_flight()), (1000, 1000, false));
        progress.on_report(PeerCounts { received: 3, lost: 1 });
        assert_eq!((progress.sent, progress.delivered, progress.lost), (2200, 1200, 1000));
    }

    proptest! {
        #[test]
        fn no_peer_reports_more_than_was_sent(
            sent in prop::collection::vec(1usize..1500, 0..100),
            reports in prop::collection::vec((0u64..150, 0u64..150), 0..20)
        ) {
            let mut progress = Progress::default();
            sent.iter().for_each(|bytes| progress.on_sent(*bytes, true));
            for (received, lost) in reports {
                progress.on_report(PeerCounts { received, lost });
                prop_assert!(progress.delivered + progress.lost <= progress.sent);
            }
        }
    }
}
