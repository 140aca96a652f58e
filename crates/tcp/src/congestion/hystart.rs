//! HyStart: the end of slow start before a loss (Ha and Rhee, "Taming the elephants: New TCP slow start",
//! Computer Networks 55, 2011), with the constants of Linux.

use std::time::Duration;

use bentpipe_units::Time;

use super::Acked;

/// Windows below this one, in segments, are no reason to look.
const LOW_WINDOW: u64 = 16;
/// Acknowledgements that follow each other within this time are of one train.
const TRAIN_SPACING: Duration = Duration::from_millis(2);
/// What the segmentation in the host adds to the length of a train, at the most.
const HOST_DELAY: Duration = Duration::from_millis(1);
/// Round-trip times of a round of which the smallest counts.
const SAMPLES: u32 = 8;
/// The bounds of the delay that is an increase; between them it is an eighth of the shortest round trip.
const MIN_INCREASE: Duration = Duration::from_millis(4);
const MAX_INCREASE: Duration = Duration::from_millis(16);

/// The two heuristics at work on one connection.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HyStart {
    shortest: Option<Duration>,
    round: Option<Round>,
}

/// The time in which what was in flight at its beginning is acknowledged.
#[derive(Debug, Clone, Copy)]
struct Round {
    began_at: Time,
    /// Bytes in flight when it began that are not acknowledged yet.
    rest: u64,
    /// The last acknowledgement of the train.
    train_at: Time,
    shortest: Duration,
    samples: u32,
}

impl HyStart {
    /// An acknowledgement in slow start, with a window of `cwnd` bytes and segments of `mss`: true where slow
    /// start is to end with this window.
    pub(super) fn on_ack(&mut self, ack: &Acked, cwnd: u64, mss: u64) -> bool {
        let Some(rtt) = ack.rtt else { return false };
        let shortest = self.shortest.map_or(rtt, |shortest| shortest.min(rtt));
        self.shortest = Some(shortest);
        // What leaves in answer to this acknowledgement is of the next round.
        let rest = ack.in_flight.saturating_sub(ack.bytes);
        let new = Round { began_at: ack.now, rest, train_at: ack.now, shortest: rtt, samples: 0 };
        let round = self.round.get_or_insert(Round { rest: 0, ..new });
        match round.rest.checked_sub(ack.bytes) {
            Some(rest) => round.rest = rest,
            None => *round = new,
        }
        cwnd >= LOW_WINDOW * mss && (round.has_train(ack.now, shortest) | round.has_increase(rtt, shortest))
    }

    /// The retransmission timer has expired: all begins anew.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

impl Round {
    /// Acknowledgements close to each other for half the shortest round trip: the flight fills the way out.
    fn has_train(&mut self, now: Time, shortest: Duration) -> bool {
        if now - self.train_at > TRAIN_SPACING {
            return false;
        }
        self.train_at = now;
        now - self.began_at > (shortest + HOST_DELAY) / 2
    }

    /// The first round trips of the round are longer than they could be: a queue has formed.
    fn has_increase(&mut self, rtt: Duration, shortest: Duration) -> bool {
        self.shortest = self.shortest.min(rtt);
        if self.samples < SAMPLES {
            self.samples += 1;
            return false;
        }
        self.shortest > shortest + (shortest / 8).clamp(MIN_INCREASE, MAX_INCREASE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn acked(at_ms: u64, rtt_ms: u64, in_flight: u64) -> Acked {
        Acked {
            now: Time::ZERO + ms(at_ms),
            bytes: MSS,
            rtt: Some(ms(rtt_ms)),
            srtt: ms(rtt_ms),
            min_rtt: ms(100),
            in_flight: in_flight * MSS,
            cwnd_limited: true,
            in_recovery: false,
        }
    }

    /// The number of the first acknowledgement, each `spacing` ms, at which slow start is to end.
    fn ends_at(spacing: u64, rtt_ms: impl Fn(u64) -> u64, segments: u64) -> Option<u64> {
        let mut hystart = HyStart::default();
        (0..segments).find(|&n| hystart.on_ack(&acked(n * spacing, rtt_ms(n), segments - n), 100 * MSS, MSS))
    }

    #[test]
    fn a_train_of_half_a_round_trip_ends_it() {
        assert_eq!(ends_at(2, |_| 100, 60), Some(26), "52 ms are more than half of 101");
        assert_eq!(ends_at(3, |_| 100, 60), None, "3 ms apart they are no train");
        assert_eq!(ends_at(2, |_| 100, 25), None);
    }

    #[test]
    fn eight_delays_above_an_eighth_of_the_round_trip_end_it() {
        let delayed = |by: u64| move |n: u64| if n == 0 { 100 } else { 100 + by };
        let second_round = |by: u64| {
            let mut hystart = HyStart::default();
            hystart.on_ack(&acked(0, 100, 1), 100 * MSS, MSS);
            (1..40).find(|&n| hystart.on_ack(&acked(n * 3, delayed(by)(n), 41 - n), 100 * MSS, MSS))
        };
        assert_eq!(second_round(13), Some(9));
        assert_eq!(second_round(12), None);
    }

    #[test]
    fn a_small_window_is_left_alone() {
        let mut hystart = HyStart::default();
        assert!((0..100).all(|n| !hystart.on_ack(&acked(2 * n, 100 + n, 100 - n), 15 * MSS, MSS)));
    }
}
