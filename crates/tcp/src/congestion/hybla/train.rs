//! Hoe's initial estimate of the capacity.
//!
//! Segments that leave back to back arrive as the bottleneck spaced them, and so do their acknowledgements
//! (Hoe, "Improving the start-up behavior of a congestion control scheme for TCP", SIGCOMM 1996).

use bentpipe_units::Time;

use crate::congestion::Acked;

/// Fewer segments than this behind the first acknowledgement tell too little.
const LEAST_SEGMENTS: u64 = 3;

/// The acknowledgements of a connection's first burst.
#[derive(Debug)]
pub(super) struct Train {
    /// Bytes of the burst: those that the sender sends back to back.
    burst: u64,
    mss: u64,
    delivered: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting,
    Running { first: Arrival, last: Arrival },
    Ended,
}

/// An acknowledgement of the burst: when it came, and how much had been delivered by then.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: Time,
    delivered: u64,
}

impl Train {
    /// The train of a connection whose first `burst` bytes leave back to back, in segments of `mss` bytes.
    pub(super) fn new(burst: u64, mss: u64) -> Self {
        Self { burst, mss, delivered: 0, state: State::Waiting }
    }

    /// Nothing more is to be expected: it was never there, or a timeout has torn it apart.
    pub(super) fn end(&mut self) {
        self.state = State::Ended;
    }

    /// Whether there will be no estimate any more.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// The capacity, bytes per second, told once: with the acknowledgement that ends the train.
    pub(super) fn on_ack(&mut self, ack: &Acked) -> Option<f64> {
        self.delivered = self.delivered.saturating_add(ack.bytes);
        let here = Arrival { at: ack.now, delivered: self.delivered };
        let (first, last, goes_on) = match self.state {
            State::Ended => return None,
            // A burst that was still growing when its first ACK came tells about the application, not the
            // link.
            State::Waiting => (here, here, ack.in_flight >= self.burst),
            State::Running { first, last } if self.is_outside(first, last, here) => (first, last, false),
            State::Running { first, .. } => (first, here, here.delivered < self.burst),
        };
        if goes_on {
            self.state = State::Running { first, last };
            return None;
        }
        self.end();
        self.rate(first, last)
    }

    /// An ACK that also covers later segments, which were paced, or one that a delayed-ACK timer sent: for
    /// less than two segments, and twice as late as those before it make expect.
    fn is_outside(&self, first: Arrival, last: Arrival, here: Arrival) -> bool {
        let bytes = here.delivered - last.delivered;
        let before = last.delivered - first.delivered;
        let due = last.at.since(first.at).as_secs_f64() * bytes as f64 / before.max(1) as f64;
        let by_timer = bytes < 2 * self.mss
            && before >= LEAST_SEGMENTS * self.mss
            && here.at.since(last.at).as_secs_f64() > 2.0 * due;
        here.delivered > self.burst || by_timer
    }

    /// The bytes behind the first ACK over the time since it; the bytes of the first ACK itself came before.
    fn rate(&self, first: Arrival, last: Arrival) -> Option<f64> {
        let bytes = last.delivered - first.delivered;
        let time = last.at.since(first.at).as_secs_f64();
        (bytes >= LEAST_SEGMENTS * self.mss && time > 0.0).then(|| bytes as f64 / time)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MSS: u64 = 1000;
    /// What a segment takes on a link of 8 Mbit/s of payload, 10⁶ bytes per second.
    const SEGMENT_US: u64 = 1000;

    /// The estimate after ACKs of (moment in µs, segments) for a burst of ten segments with `in_flight`
    /// outstanding.
    fn estimate(in_flight: u64, acks: &[(u64, u64)]) -> Option<f64> {
        let mut train = Train::new(10 * MSS, MSS);
        acks.iter().find_map(|&(micros, segments)| {
            train.on_ack(&Acked {
                now: Time::from_nanos(600_000_000 + micros * 1000),
                bytes: segments * MSS,
                rtt: None,
                srtt: Duration::ZERO,
                min_rtt: Duration::ZERO,
                in_flight: in_flight * MSS,
                cwnd_limited: true,
                in_recovery: false,
            })
        })
    }

    fn assert_near(estimate: Option<f64>, rate: f64) {
        let estimate = estimate.expect("an estimate");
        assert!((estimate / rate - 1.0).abs() < 1e-9, "{estimate} instead of {rate}");
    }

    #[test]
    fn an_ack_for_each_segment_tells_the_rate() {
        let acks: Vec<_> = (1..=10).map(|segment| (segment * SEGMENT_US, 1)).collect();
        assert_near(estimate(10, &acks), 1e6);
        assert_eq!(estimate(10, &acks[..9]), None, "before the burst is acknowledged");
    }

    #[test]
    fn delayed_acks_tell_the_same_rate_whatever_the_first_covers() {
        let even: Vec<_> = (1..=5).map(|pair| (2 * pair * SEGMENT_US, 2)).collect();
        assert_near(estimate(10, &even), 1e6);
        // 1, 3, 5, 7, 9 and then 11, which covers a paced segment.
        let mut odd = vec![(SEGMENT_US, 1)];
        odd.extend((1..=4).map(|pair| ((2 * pair + 1) * SEGMENT_US, 2)));
        odd.push((50 * SEGMENT_US, 2));
        assert_near(estimate(240, &odd), 1e6);
    }

    #[test]
    fn an_ack_that_a_timer_delayed_does_not_count() {
        let mut acks = vec![(SEGMENT_US, 1)];
        acks.extend((1..=4).map(|pair| ((2 * pair + 1) * SEGMENT_US, 2)));
        acks.push((10 * SEGMENT_US + 200_000, 1));
        assert_near(estimate(10, &acks), 1e6);
    }

    #[test]
    fn acks_in_one_piece_tell_nothing() {
        assert_eq!(estimate(10, &[(10_000, 10)]), None);
        assert_eq!(estimate(10, &[(10_000, 2), (10_000, 4), (10_000, 4)]), None);
        assert_eq!(estimate(10, &[(1_000, 8), (9_000, 2)]), None, "two segments are too few");
    }

    #[test]
    fn a_burst_that_was_not_all_sent_at_once_tells_nothing() {
        let acks: Vec<_> = (1..=10).map(|segment| (segment * SEGMENT_US, 1)).collect();
        assert_eq!(estimate(9, &acks), None);
    }
}
