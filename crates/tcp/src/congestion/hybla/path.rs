//! The published Hybla's measurements of the path: its round trip, the queue in it, its delivery rate.

use std::time::Duration;

use bentpipe_units::Time;

use crate::congestion::Acked;

/// A few milliseconds are the hosts' noise, not a queue, whatever the round-trip time; seconds.
const NOISE: f64 = 0.004;
/// A round trip longer than the minimum by this part of it has a standing queue in it.
const STANDING: f64 = 1.0 / 8.0;
/// A queue of less than this part of the minimum does not count as one.
const NEGLIGIBLE: f64 = 1.0 / 16.0;

/// The queue in front of the link, as the round-trip time shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// None, or none that could be told from noise.
    Empty,
    /// There is one.
    Short,
    /// There is one, of an eighth of a round trip or more.
    Standing,
}

/// The round-trip time: its minimum, which is the distance, and its present value, with the queue. Seconds, 0
/// is unknown.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    pub(super) min: f64,
    now: f64,
}

impl RoundTrip {
    /// Takes in the measurements of an acknowledgement.
    ///
    /// The smoothed RTT of the connection takes samples by timestamps, and after an outage these have the
    /// outage in them: of one of 50 s seven seconds would stay, the queue would seem enormous and the pacing
    /// would crawl. A sample counts here as twice the minimum at the most. The gain of an eighth is RFC
    /// 6298's.
    pub(super) fn measure(&mut self, min: Duration, sample: Option<Duration>) {
        if !min.is_zero() {
            self.min = min.as_secs_f64();
        }
        let Some(sample) = sample else { return };
        let longest = if self.min > 0.0 { 2.0 * self.min } else { f64::MAX };
        let sample = sample.as_secs_f64().min(longest);
        self.now = if self.now > 0.0 { self.now + (sample - self.now) / 8.0 } else { sample };
    }

    /// The round-trip time now, seconds: `srtt` before the first measurement here, `None` where that is
    /// unknown too.
    pub(super) fn now_or(&self, srtt: Duration) -> Option<f64> {
        let now = if self.now > 0.0 { self.now } else { srtt.as_secs_f64() };
        (now > 0.0).then_some(now)
    }

    /// The queue that makes the round trip now longer than the shortest.
    pub(super) fn queue(&self) -> Queue {
        let excess = self.now - self.min;
        if self.min == 0.0 || excess < NOISE || excess < NEGLIGIBLE * self.min {
            Queue::Empty
        } else if excess < STANDING * self.min {
            Queue::Short
        } else {
            Queue::Standing
        }
    }
}

/// The rate at which the path delivers, bytes per second; 0 is unknown.
///
/// A delivery rate is a lower bound of the link's capacity. With a queue in front of the link it is the
/// capacity itself, or this connection's share of it.
#[derive(Debug, Default)]
pub(super) struct DeliveryRate {
    /// The highest so far.
    pub(super) highest: f64,
    /// Over the last round trip.
    pub(super) recent: f64,
    /// In the last complete round.
    last_round: f64,
    delivered: u64,
    round: Option<Round>,
}

/// A round lasts until what was in flight at its beginning is delivered, and a minimum round trip at the
/// least: losses may have left little in flight.
#[derive(Debug)]
struct Round {
    began: Time,
    delivered_before: u64,
    end: u64,
}

impl DeliveryRate {
    /// Takes in an acknowledgement; `min_rtt` in seconds.
    pub(super) fn on_ack(&mut self, ack: &Acked, min_rtt: f64) {
        self.delivered = self.delivered.saturating_add(ack.bytes);
        let Some(round) = &self.round else {
            self.begin_round(ack);
            return;
        };
        let elapsed = ack.now.since(round.began).as_secs_f64();
        let span = elapsed.max(min_rtt);
        if span == 0.0 {
            return;
        }
        let delivered = (self.delivered - round.delivered_before) as f64;
        // The round trip that ends now reaches back into the last round.
        let earlier = self.last_round * (span - elapsed);
        self.recent = (delivered + earlier) / span;
        self.highest = self.highest.max(self.recent);
        if self.delivered >= round.end && elapsed >= min_rtt {
            self.last_round = self.recent;
            self.begin_round(ack);
        }
    }

    /// Nothing was delivered for a while, for reasons that are not the link's rate: the measurement begins
    /// anew.
    pub(super) fn interrupt(&mut self) {
        self.round = None;
        self.last_round = 0.0;
        self.recent = 0.0;
    }

    fn begin_round(&mut self, ack: &Acked) {
        let on_its_way = ack.in_flight.saturating_sub(ack.bytes).max(1);
        self.round = Some(Round {
            began: ack.now,
            delivered_before: self.delivered,
            end: self.delivered.saturating_add(on_its_way),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn round_trip(min: u64, now: u64) -> RoundTrip {
        let mut round_trip = RoundTrip::default();
        round_trip.measure(millis(min), Some(millis(now)));
        round_trip
    }

    #[test]
    fn a_queue_stands_when_the_round_trip_is_an_eighth_longer() {
        assert_eq!(round_trip(600, 600).queue(), Queue::Empty);
        assert_eq!(round_trip(600, 630).queue(), Queue::Empty);
        assert_eq!(round_trip(600, 640).queue(), Queue::Short);
        assert_eq!(round_trip(600, 680).queue(), Queue::Standing);
        assert_eq!(round_trip(1, 4).queue(), Queue::Empty, "noise");
    }

    #[test]
    fn an_outage_in_a_sample_counts_as_one_round_trip_more() {
        assert_eq!(round_trip(600, 50_000).now_or(Duration::ZERO), Some(1.2));
    }

    /// ACKs of one segment of 1000 bytes each millisecond, with 100 in flight.
    fn steady(rate: &mut DeliveryRate, acks: std::ops::Range<u64>) {
        for n in acks {
            rate.on_ack(
                &Acked {
                    now: Time::from_nanos(n * 1_000_000),
                    bytes: 1000,
                    rtt: None,
                    srtt: Duration::ZERO,
                    min_rtt: Duration::ZERO,
                    in_flight: 100_000,
                    cwnd_limited: true,
                    in_recovery: false,
                },
                0.1,
            );
        }
    }

    #[test]
    fn the_delivery_rate_reaches_the_links_rate_in_a_round_trip_and_never_exceeds_it() {
        let mut rate = DeliveryRate::default();
        steady(&mut rate, 0..50);
        assert!(rate.highest < 0.5e6, "{}", rate.highest);
        steady(&mut rate, 50..1000);
        assert!((0.99e6..1e6 + 1.0).contains(&rate.highest), "{}", rate.highest);
        assert!((rate.recent / 1e6 - 1.0).abs() < 0.02, "{}", rate.recent);
    }

    #[test]
    fn an_interruption_does_not_count_as_a_slow_link() {
        let mut rate = DeliveryRate::default();
        steady(&mut rate, 0..1000);
        rate.interrupt();
        steady(&mut rate, 60_000..60_300);
        assert!((rate.recent / 1e6 - 1.0).abs() < 0.02, "{}", rate.recent);
    }
}
