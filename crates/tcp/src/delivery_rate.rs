//! Estimates of the rate at which data is delivered (draft-cheng-iccrg-delivery-rate-estimation-02).

use std::time::Duration;

use bentpipe_units::Time;

/// What the sender knew when a segment left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Bytes that had been delivered (P.delivered), and when the last of them (P.delivered_time).
    pub(crate) delivered: u64,
    delivered_at: Time,
    /// When the first segment of the sample had left (P.first_sent_time), and this one.
    first_sent_at: Time,
    sent_at: Time,
    /// The application was what limited the flight.
    is_app_limited: bool,
    /// Bytes in flight then, this segment included (P.tx_in_flight), and lost by then (P.lost).
    pub(crate) in_flight: u64,
    pub(crate) lost: u64,
}

/// A sample of the delivery rate, between the departure and the arrival of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered in between.
    pub bytes: u64,
    /// The time that they have taken: on the way out or on the way back, whichever is longer.
    pub interval: Duration,
    /// Bytes that had been delivered when the segment left.
    pub prior_delivered: u64,
    /// The application, not the path, may have limited the rate.
    pub is_app_limited: bool,
    /// Bytes that were in flight when the segment had left, it included.
    pub in_flight: u64,
    /// Bytes that have been declared lost since the segment left.
    pub lost: u64,
}

/// The connection's state.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DeliveryRate {
    /// C.delivered and C.delivered_time.
    delivered: u64,
    delivered_at: Time,
    /// C.first_sent_time.
    first_sent_at: Time,
    /// C.app_limited: what is delivered up to this is limited by the application.
    app_limited_until: u64,
}

impl DeliveryRate {
    /// Bytes delivered in all.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Whether the application limits the flight, as far as is known.
    pub(crate) fn is_app_limited(&self) -> bool {
        self.app_limited_until > 0
    }

    /// A segment leaves, the first in flight if nothing else is (`is_first`). With it `in_flight` bytes are,
    /// and `lost` have been lost so far.
    pub(crate) fn on_sent(&mut self, now: Time, is_first: bool, in_flight: u64, lost: u64) -> Snapshot {
        if is_first {
            (self.first_sent_at, self.delivered_at) = (now, now);
        }
        Snapshot {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            sent_at: now,
            is_app_limited: self.is_app_limited(),
            in_flight,
            lost,
        }
    }

    /// There is nothing to send, and room for it with `in_flight` bytes on their way.
    pub(crate) fn on_nothing_to_send(&mut self, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
    }

    /// An acknowledgement reports `bytes` as delivered, and `lost` have been lost so far; `newest` is of the
    /// segment among them that left last. `None` where that makes no sample: nothing was delivered, or in
    /// less than the shortest round trip (which a retransmission can feign).
    pub(crate) fn on_ack(
        &mut self,
        now: Time,
        bytes: u64,
        newest: Option<Snapshot>,
        lost: u64,
        min_rtt: Duration,
    ) -> Option<RateSample> {
        if bytes > 0 {
            self.delivered += bytes;
            self.delivered_at = now;
        }
        if self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        let newest = newest?;
        self.first_sent_at = newest.sent_at;
        let interval = (newest.sent_at - newest.first_sent_at).max(now - newest.delivered_at);
        let sample = RateSample {
            bytes: self.delivered - newest.delivered,
            interval,
            prior_delivered: newest.delivered,
            is_app_limited: newest.is_app_limited,
            in_flight: newest.in_flight,
            lost: lost - newest.lost,
        };
        (interval >= min_rtt && !interval.is_zero()).then_some(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    const RTT: Duration = Duration::from_millis(100);

    /// Ten segments in a burst, whose acknowledgements come each 10 ms.
    #[test]
    fn the_rate_is_that_of_the_acknowledgements() {
        let mut rate = DeliveryRate::default();
        let burst: Vec<_> = (0..10).map(|n| rate.on_sent(at(0), n == 0, 0, 0)).collect();
        for (n, snapshot) in burst.iter().enumerate() {
            let now = at(100 + 10 * n as u64);
            let sample = rate.on_ack(now, 1000, Some(*snapshot), 0, RTT).unwrap();
            assert_eq!((sample.bytes, sample.interval), (1000 * (n as u64 + 1), now.since(at(0))));
        }
        let next = rate.on_sent(at(190), false, 0, 0);
        let sample = rate.on_ack(at(290), 1000, Some(next), 0, RTT).unwrap();
        // Nothing had left for 190 ms before it.
        assert_eq!((sample.bytes, sample.prior_delivered), (1000, 10_000));
        assert_eq!(sample.interval, Duration::from_millis(190));
    }

    #[test]
    fn acknowledgements_that_come_at_once_do_not_feign_a_rate() {
        let mut rate = DeliveryRate::default();
        let sent: Vec<_> = (0..10).map(|n| rate.on_sent(at(20 * n), n == 0, 0, 0)).collect();
        let samples: Vec<_> = sent
            .iter()
            .map(|snapshot| rate.on_ack(at(300), 1000, Some(*snapshot), 0, RTT).unwrap())
            .collect();
        assert_eq!((samples[9].bytes, samples[9].interval), (10_000, Duration::from_millis(300)));
    }

    #[test]
    fn what_leaves_before_the_application_writes_more_is_limited_by_it() {
        let mut rate = DeliveryRate::default();
        let first = rate.on_sent(at(0), true, 0, 0);
        rate.on_nothing_to_send(1000);
        let second = rate.on_sent(at(10), false, 0, 0);
        assert!(!rate.on_ack(at(100), 1000, Some(first), 0, RTT).unwrap().is_app_limited);
        assert!(rate.is_app_limited());
        assert!(rate.on_ack(at(110), 1000, Some(second), 0, RTT).unwrap().is_app_limited);
        assert!(!rate.is_app_limited());
    }

    #[test]
    fn a_sample_tells_what_was_lost_since_the_segment_left_and_how_much_was_in_flight_then() {
        let mut rate = DeliveryRate::default();
        let sent = rate.on_sent(at(0), true, 5000, 2000);
        let sample = rate.on_ack(at(100), 1000, Some(sent), 3000, RTT).unwrap();
        assert_eq!((sample.in_flight, sample.lost), (5000, 1000));
    }

    #[test]
    fn less_than_the_shortest_round_trip_is_no_sample() {
        let mut rate = DeliveryRate::default();
        let sent = rate.on_sent(at(0), true, 0, 0);
        assert_eq!(rate.on_ack(at(99), 1000, Some(sent), 0, RTT), None);
        assert_eq!(rate.delivered(), 1000, "but it has arrived");
    }
}
