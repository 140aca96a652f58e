//! The router's estimate of the queue in front of the link.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

/// The shortest time over which the minimum of the queue is taken: a queue that lasts less is a burst.
const SHORTEST_WINDOW: Duration = Duration::from_millis(2);

/// The bytes that were sent to the link and cannot have left it yet at its capacity, and their minimum: a
/// burst drains within a round trip, a standing queue does not (Katabi and others 2002, §3.5.1;
/// draft-falk-xcp-spec-03, "assessing the queue").
#[derive(Debug, Clone, Copy)]
pub(super) struct QueueEstimate {
    /// Bytes per second.
    capacity: f64,
    backlog: f64,
    at: Time,
    /// The minimum in the present window, and when that ends.
    shortest: f64,
    ends_at: Time,
    /// The minimum in the window before.
    standing: f64,
}

impl QueueEstimate {
    pub(super) fn new(capacity: Rate) -> Self {
        let capacity = capacity.bps() as f64 / 8.0;
        let zero = Time::ZERO;
        Self { capacity, backlog: 0.0, at: zero, shortest: 0.0, ends_at: zero, standing: 0.0 }
    }

    /// Adds this many bytes.
    pub(super) fn arrive(&mut self, now: Time, mean_rtt: Duration, bytes: f64) {
        self.advance(now, mean_rtt);
        self.backlog += bytes;
    }

    /// Bytes of the standing queue: the minimum over a window.
    pub(super) fn standing(&self) -> f64 {
        self.standing
    }

    /// Drains it until now. A window lasts max(2 ms, (d − q/C)/2).
    pub(super) fn advance(&mut self, now: Time, mean_rtt: Duration) {
        let elapsed = now.since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.backlog = (self.backlog - self.capacity * elapsed).max(0.0);
        self.shortest = self.shortest.min(self.backlog);
        if now >= self.ends_at {
            self.standing = self.shortest;
            self.shortest = self.backlog;
            let drained = Duration::try_from_secs_f64(self.backlog / self.capacity).unwrap_or(Duration::MAX);
            self.ends_at = now + (mean_rtt.saturating_sub(drained) / 2).max(SHORTEST_WINDOW);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    /// 1 Mbyte/s: a kilobyte in a millisecond.
    fn estimate() -> QueueEstimate {
        QueueEstimate::new(Rate::mbps(8))
    }

    #[test]
    fn a_burst_drains_and_does_not_stand() {
        let mut queue = estimate();
        queue.arrive(at(0), RTT, 40_000.0);
        (1..=200).for_each(|ms| queue.advance(at(ms), RTT));
        assert_eq!(queue.standing(), 0.0);
    }

    #[test]
    fn a_queue_that_never_drains_stands_at_its_minimum() {
        let mut queue = estimate();
        queue.arrive(at(0), RTT, 20_000.0);
        // Five kilobytes in every five milliseconds: full load, between 15 and 20 kB.
        (1..=60).for_each(|n| queue.arrive(at(5 * n), RTT, 5_000.0));
        assert!((queue.standing() - 15_000.0).abs() < 1.0, "{}", queue.standing());
    }

    #[test]
    fn a_clock_that_goes_back_changes_nothing() {
        let mut queue = estimate();
        queue.arrive(at(10), RTT, 3_000.0);
        queue.advance(at(5), RTT);
        queue.advance(at(11), RTT);
        assert!((queue.backlog - 2_000.0).abs() < 1.0, "{}", queue.backlog);
    }
}
