//! How many flows wait for a leg: its frames count as many connections among the split ones, so that a flow
//! has as much whether it is split or protected.

use std::time::Duration;

use bentpipe_kernel::Weight;
use bentpipe_units::Time;

/// The mean number of flows that wait, of about a round trip in which any does: a flow whose queue empties
/// now and then still wants its share, and one that sends a packet now and then does not.
///
/// That none waits says nothing for a round trip. The leg delivers in order, so while the peer waits for a
/// repair all senders wait for acknowledgements, and then go on together.
#[derive(Debug, Default)]
pub(super) struct WaitingFlows {
    mean: f64,
    at: Time,
    /// Since when none has waited.
    none_since: Option<Time>,
}

impl WaitingFlows {
    /// So many wait now.
    pub(super) fn observe(&mut self, flows: usize, now: Time, rtt: Duration) {
        let since = now.since(self.at).as_secs_f64();
        self.at = now;
        if flows == 0 {
            if now.since(*self.none_since.get_or_insert(now)) > rtt {
                self.mean = 0.0;
            }
            return;
        }
        self.none_since = None;
        let part = 1.0 - (-since / rtt.as_secs_f64().max(f64::MIN_POSITIVE)).exp();
        self.mean += part * (flows as f64 - self.mean);
    }

    /// The weight of all of them, at least that of one.
    pub(super) fn weight(&self, of_each: Weight) -> u32 {
        (self.mean.round() as u32).max(1) * u32::from(of_each.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(20);
    const RTT: Duration = Duration::from_millis(600);

    /// The weight after five seconds in which so many flows wait at each tick.
    fn after(flows: impl Fn(u32) -> usize) -> u32 {
        let (mut waiting, mut now) = (WaitingFlows::default(), Time::ZERO);
        for tick in 0..250 {
            now += TICK;
            waiting.observe(flows(tick), now, RTT);
        }
        waiting.weight(Weight::default())
    }

    #[test]
    fn each_flow_that_waits_counts() {
        assert_eq!(after(|_| 7), 7);
        assert_eq!(after(|tick| if tick % 10 == 0 { 3 } else { 4 }), 4, "a queue that empties now and then");
        assert_eq!(after(|tick| if tick % 10 == 0 { 5 } else { 1 }), 1, "flows of a packet now and then");
        assert_eq!(after(|_| 0), 1);
    }

    #[test]
    fn those_that_have_gone_count_no_longer_than_a_few_round_trips() {
        assert_eq!(after(|tick| if tick < 100 { 9 } else { 1 }), 1);
    }

    #[test]
    fn an_empty_queue_says_that_they_have_gone_after_a_round_trip() {
        let pause = |ticks: u32| after(|tick| if (200..200 + ticks).contains(&tick) { 0 } else { 4 });
        let ends_in_a_pause = |ticks: u32| after(|tick| if tick >= 250 - ticks { 0 } else { 4 });
        assert_eq!([pause(29), ends_in_a_pause(29)], [4, 4]);
        assert_eq!(ends_in_a_pause(33), 1);
    }

    #[test]
    fn a_configured_weight_is_of_each() {
        let mut waiting = WaitingFlows::default();
        waiting.observe(3, Time::ZERO + 20 * RTT, RTT);
        assert_eq!(waiting.weight(Weight::try_from(4).unwrap()), 12);
    }
}
