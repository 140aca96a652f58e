//! The queue of the way back, where it is our own acknowledgements that fill it.
//!
//! A thin way back carries fewer acknowledgements than the receiver sends: with losses one for each segment.
//! They then wait, for half a minute if the queue there is as long, and with them all that a sender learns.
//! No rate of the way out is too high for that link; but a sender that goes on at it learns of its losses
//! half a minute late, and its window ends before. So once they wait for longer than two round trips, less is
//! sent than they acknowledge until the queue is empty, and then as before. The way back is busy all the
//! while, so that this costs no goodput.
//!
//! The queue may as well be an upload's, which is none of our business. Then it does not shrink, and is left
//! alone.

use std::time::Duration;

use bentpipe_units::Time;

/// Acknowledgements that wait for less than this, or than two round trips, do no harm.
const LONG: Duration = Duration::from_secs(1);
/// The queue has drained at this part of that.
const DRAINED: u32 = 8;
/// While it drains, this part of what is acknowledged is sent, but no less than this part of the capacity.
const SENT: (f64, f64) = (0.75, 0.125);
/// A queue of our own is down to this part of its longest after three round trips through it.
const SHRUNK: f64 = 0.75;
/// One that is not is left alone for this long, twice as long each time up to a limit.
const LEFT_ALONE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(300));

/// Whether the queue of the way back is being drained.
#[derive(Debug)]
pub(super) struct ReturnQueue {
    draining: Option<Draining>,
    ignored_until: Time,
    pause: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Draining {
    since: Time,
    /// The longest delay so far.
    longest: Duration,
}

impl Default for ReturnQueue {
    fn default() -> Self {
        Self { draining: None, ignored_until: Time::ZERO, pause: LEFT_ALONE.0 }
    }
}

impl ReturnQueue {
    /// Takes in how long acknowledgements wait on the way back.
    pub(super) fn observe(&mut self, now: Time, rtt: Duration, delay: Duration) {
        let long = LONG.max(2 * rtt);
        match &mut self.draining {
            None if delay > long && now >= self.ignored_until => {
                self.draining = Some(Draining { since: now, longest: delay });
            }
            None => {}
            Some(_) if delay < long / DRAINED => {
                (self.draining, self.pause) = (None, LEFT_ALONE.0);
            }
            Some(draining) => {
                draining.longest = draining.longest.max(delay);
                let is_late = now > draining.since + 3 * (rtt + draining.longest);
                if is_late && delay > draining.longest.mul_f64(SHRUNK) {
                    (self.draining, self.ignored_until) = (None, now + self.pause);
                    self.pause = (2 * self.pause).min(LEFT_ALONE.1);
                }
            }
        }
    }

    /// The most that may be sent of a link of this capacity, if acknowledgements come back for so much: bytes
    /// per second.
    pub(super) fn bound(&self, acknowledged: Option<f64>, capacity: f64) -> f64 {
        match self.draining {
            Some(_) => (SENT.0 * acknowledged.unwrap_or(0.0)).max(SENT.1 * capacity),
            None => f64::INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(600);

    fn at(seconds: f64) -> Time {
        Time::from_nanos((1e9 * seconds) as u64)
    }

    /// The bound after these delays of the way back, one each second, of a million bytes per second.
    fn bounds(queue: &mut ReturnQueue, from: f64, delays: &[f64]) -> Vec<f64> {
        let bound = |(second, delay): (usize, &f64)| {
            queue.observe(at(from + second as f64), RTT, Duration::from_secs_f64(*delay));
            queue.bound(Some(360_000.0), 1e6)
        };
        delays.iter().enumerate().map(bound).collect()
    }

    #[test]
    fn a_queue_of_more_than_two_round_trips_is_drained_to_its_end() {
        const FREE: f64 = f64::INFINITY;
        let found = bounds(&mut ReturnQueue::default(), 0.0, &[0.0, 1.1, 1.3, 2.0, 1.5, 0.5, 0.1, 0.5]);
        assert_eq!(found, [FREE, FREE, 270e3, 270e3, 270e3, 270e3, FREE, FREE]);
    }

    #[test]
    fn a_little_is_always_sent() {
        let mut queue = ReturnQueue::default();
        bounds(&mut queue, 0.0, &[2.0]);
        assert_eq!([Some(1000.0), None].map(|acknowledged| queue.bound(acknowledged, 1e6)), [125e3; 2]);
    }

    #[test]
    fn a_queue_that_does_not_shrink_is_somebody_elses_and_left_alone_ever_longer() {
        let mut queue = ReturnQueue::default();
        let found = bounds(&mut queue, 0.0, &[2.0; 200]);
        let drained = found.iter().filter(|bound| bound.is_finite()).count();
        // Eight seconds each, 30 and 60 seconds apart, and 120.
        assert!((24..=32).contains(&drained), "{drained} of 200 s");
        bounds(&mut queue, 300.0, &[2.0, 0.1]);
        assert!(bounds(&mut queue, 302.0, &[2.0])[0].is_finite(), "an empty queue begins anew");
    }
}
