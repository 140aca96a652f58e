//! How many handshakes the listeners may have open.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a listener keeps a handshake: `net.ipv4.tcp_synack_retries` is 5, as in
/// [`UNCLAIMED`](super::pending_table).
const KEPT: Duration = Duration::from_secs(64);
/// Counts are kept by so long.
const PERIOD: Duration = Duration::from_secs(1);

/// The handshakes that listeners have open, at the most: SYNs that went to them less connections that were
/// accepted, as long as a listener keeps a handshake.
///
/// A listener whose queue is full answers with SYN cookies (`net.ipv4.tcp_syncookies`). It does not know the
/// acknowledgement of such a cookie, since that is addressed to the server, and the connection would be
/// reset.
#[derive(Debug, Default)]
pub(super) struct HalfOpen {
    /// The oldest first.
    periods: VecDeque<Period>,
    accepted: u64,
}

#[derive(Debug)]
struct Period {
    begun: Instant,
    given: u64,
    accepted: u64,
}

impl HalfOpen {
    /// Whether there is room for one more among `most`. `accepted` are all connections so far; if there is
    /// room, one SYN more is counted.
    pub(super) fn admits(&mut self, most: u64, accepted: u64, now: Instant) -> bool {
        while self.periods.front().is_some_and(|first| now.saturating_duration_since(first.begun) > KEPT) {
            self.periods.pop_front();
        }
        if self.periods.back().is_none_or(|last| now.saturating_duration_since(last.begun) >= PERIOD) {
            self.periods.push_back(Period { begun: now, given: 0, accepted: 0 });
        }
        let newly_accepted = accepted.saturating_sub(std::mem::replace(&mut self.accepted, accepted));
        let sum = |of: fn(&Period) -> u64| self.periods.iter().map(of).sum::<u64>();
        let open = sum(|period| period.given).saturating_sub(sum(|period| period.accepted) + newly_accepted);
        let Some(last) = self.periods.back_mut() else { return true };
        last.accepted += newly_accepted;
        let has_room = open < most;
        last.given += u64::from(has_room);
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_that_come_to_nothing_leave_room_when_their_listeners_forget_them() {
        let (mut half_open, start) = (HalfOpen::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let admitted = (0..200).filter(|_| half_open.admits(100, 0, start)).count();
        assert_eq!(admitted, 100);
        assert!(!half_open.admits(100, 0, at(60)));
        assert!(half_open.admits(100, 0, at(66)));
    }

    #[test]
    fn accepted_connections_leave_room_at_once() {
        let (mut half_open, start) = (HalfOpen::default(), Instant::now());
        for number in 0..100_000u64 {
            let now = start + Duration::from_millis(number);
            assert!(half_open.admits(100, number, now), "{number}");
        }
        let now = start + Duration::from_secs(100);
        // Those of the seconds that are forgotten are not all accepted within them.
        let admitted = (0..200).filter(|_| half_open.admits(100, 100_000, now)).count();
        assert!((100..=101).contains(&admitted), "{admitted}");
    }
}
