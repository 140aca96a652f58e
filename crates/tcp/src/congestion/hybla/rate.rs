//! Samples of the delivery rate, as Linux takes them (`tcp_rate.c`; Cheng and others, draft-ietf-ccwg-bbr
//! §4.1).

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

use crate::congestion::{Acked, micros};

/// The last sample, and what the next ones need: the acknowledgements of the last round trip.
#[derive(Debug, Default)]
pub(super) struct DeliverySamples {
    acknowledgements: VecDeque<Acknowledgement>,
    /// Segments, and the time that they took, µs; zero before the first sample.
    delivered: u32,
    interval_us: u32,
}

/// An acknowledgement, or the moment at which sending began.
#[derive(Debug, Clone, Copy)]
struct Acknowledgement {
    at: Time,
    /// When the segment was sent that it acknowledges.
    sent_at: Time,
    /// Segments delivered by then.
    delivered: u32,
}

impl DeliverySamples {
    /// Segments, and the time that they took, µs; zero before the first sample.
    pub(super) fn last(&self) -> (u32, u32) {
        (self.delivered, self.interval_us)
    }

    /// Data is sent, and none was in flight.
    pub(super) fn restart(&mut self, now: Time, delivered: u32) {
        self.acknowledgements.clear();
        self.acknowledgements.push_back(Acknowledgement { at: now, sent_at: now, delivered });
    }

    /// An acknowledgement, which brings the number of delivered segments to `delivered`.
    pub(super) fn on_ack(&mut self, ack: &Acked, delivered: u32) {
        let now = ack.now;
        let sent_at = match ack.rtt {
            Some(rtt) => Time::ZERO + now.since(Time::ZERO).saturating_sub(rtt),
            None => self.acknowledgements.back().map_or(now, |last| last.sent_at),
        };
        while self.acknowledgements.get(1).is_some_and(|next| next.at <= sent_at) {
            self.acknowledgements.pop_front();
        }
        if let Some(before) = self.acknowledgements.front().filter(|first| first.at <= sent_at) {
            // The longer of the two: acknowledgements may arrive in bursts, and so may segments leave.
            let interval = now.since(before.at).max(sent_at.since(before.sent_at));
            self.take(delivered.wrapping_sub(before.delivered), interval, ack);
        }
        self.acknowledgements.push_back(Acknowledgement { at: now, sent_at, delivered });
    }

    /// A sample shorter than the shortest round trip is no measurement. One that the application limited
    /// counts only if it is higher than the last.
    fn take(&mut self, delivered: u32, interval: Duration, ack: &Acked) {
        let interval_us = micros(interval);
        let is_higher = u64::from(delivered) * u64::from(self.interval_us)
            >= u64::from(self.delivered) * u64::from(interval_us);
        if interval >= ack.min_rtt && interval_us > 0 && (ack.cwnd_limited || is_higher) {
            (self.delivered, self.interval_us) = (delivered, interval_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACKs of one segment each millisecond, 100 ms after it was sent.
    fn steady(samples: &mut DeliverySamples, acks: std::ops::Range<u32>) {
        for n in acks {
            let rtt = Duration::from_millis(100);
            samples.on_ack(
                &Acked {
                    now: Time::ZERO + Duration::from_millis(100) + Duration::from_millis(n.into()),
                    bytes: 1000,
                    rtt: Some(rtt),
                    srtt: rtt,
                    min_rtt: rtt,
                    in_flight: 100_000,
                    cwnd_limited: true,
                    in_recovery: false,
                },
                n + 1,
            );
        }
    }

    #[test]
    fn the_delivery_rate_is_that_of_the_link_after_a_round_trip() {
        let mut samples = DeliverySamples::default();
        samples.restart(Time::ZERO, 0);
        steady(&mut samples, 0..50);
        assert_eq!(samples.last(), (50, 149_000), "the first round trip has the handshake's silence in it");
        steady(&mut samples, 50..1000);
        assert_eq!(samples.last(), (100, 100_000));
    }

    #[test]
    fn a_pause_is_not_taken_for_a_slow_link() {
        let mut samples = DeliverySamples::default();
        samples.restart(Time::ZERO, 0);
        steady(&mut samples, 0..1000);
        samples.restart(Time::ZERO + Duration::from_millis(60_000), 1000);
        steady(&mut samples, 60_000..60_300);
        let (delivered, interval_us) = samples.last();
        assert_eq!((delivered, interval_us), (100, 100_000));
    }
}
