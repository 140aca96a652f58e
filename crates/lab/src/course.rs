//! The course of a run over a link that may vary: what its clients have read, beside what any transport could
//! have delivered, and the delay of the queue.

use std::time::Duration;

use bentpipe_link::LinkTrace;
use bentpipe_units::{Probability, Rate, Time};

use crate::topology::PAYLOAD_SHARE;

/// The precision of a queue's delay.
const PRECISION: Duration = Duration::from_micros(100);

/// What a link can carry.
#[derive(Debug, Clone)]
pub struct Carries {
    /// Its rate where the trace says nothing.
    pub rate: Rate,
    /// How it changes.
    pub trace: LinkTrace,
    /// Packet error rate.
    pub per: Probability,
}

/// The state of a run at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// The time of the link, which begins at the first connection or shortly before.
    pub at: Time,
    /// The bytes that all clients have read until then.
    pub read: u64,
    /// The bytes that any transport could have delivered until then.
    pub deliverable: f64,
    /// The bytes that have left the queue and were not lost, and those that could have, with headers.
    pub carried: [f64; 2],
    /// How long the last byte in the queue has to wait, seconds.
    pub queue_s: f64,
}

/// The samples of a run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Course(Vec<Sample>);

/// A part of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// What the clients have read, as a share of what any transport could have delivered. In a short time it
    /// may be more than all, when a gap closes.
    pub of_limit: f64,
    /// What the link has carried, retransmissions included, as a share of what it could.
    pub used: f64,
    /// The 95th percentile of the queue's delay, seconds.
    pub queue_95_s: f64,
}

impl Carries {
    /// The bytes that the link could have carried from its beginning until then, outages left aside.
    pub fn bytes(&self, until: Time) -> f64 {
        self.trace.capacity(Some(self.rate), until).expect("a rate is given") as f64
    }

    /// The part of these that can be payload which arrives.
    pub fn payload_share(&self) -> f64 {
        PAYLOAD_SHARE * (1.0 - self.per.get())
    }

    /// How long it takes until the link has carried so many bytes from now on.
    pub fn time_for(&self, bytes: u64, now: Time) -> Duration {
        if self.trace.is_empty() {
            return self.rate.time_for(bytes);
        }
        let done = self.bytes(now) + bytes as f64;
        let mut most = self.rate.time_for(bytes).max(PRECISION);
        while self.bytes(now + most) < done {
            most *= 2;
        }
        let mut least = Duration::ZERO;
        while most - least > PRECISION {
            let middle = (least + most) / 2;
            match self.bytes(now + middle) < done {
                true => least = middle,
                false => most = middle,
            }
        }
        most
    }

    /// The state at a moment at which so many bytes have been read, and so many are in the queue; `delivered`
    /// is the link's own counter, which has those in the queue already.
    pub fn sample(&self, at: Time, read: u64, queued: u64, delivered: u64) -> Sample {
        let bytes = self.bytes(at);
        let queue_s = self.time_for(queued, at).as_secs_f64();
        let carried = [delivered.saturating_sub(queued) as f64, bytes * (1.0 - self.per.get())];
        Sample { at, read, deliverable: bytes * self.payload_share(), carried, queue_s }
    }
}

impl Course {
    /// A course of these samples, in the order of time.
    pub fn new(samples: Vec<Sample>) -> Self {
        Self(samples)
    }

    /// The samples.
    pub fn samples(&self) -> &[Sample] {
        &self.0
    }

    /// What happened between these seconds; `None` without samples.
    pub fn between(&self, from: f64, until: f64) -> Option<Window> {
        let within = |sample: &&Sample| (from..=until).contains(&sample.at.as_secs_f64());
        let mut queues: Vec<f64> = self.0.iter().filter(within).map(|sample| sample.queue_s).collect();
        queues.sort_by(f64::total_cmp);
        let (first, last) = (self.0.iter().find(within)?, self.0.iter().rfind(within)?);
        let of_limit = (last.read - first.read) as f64 / (last.deliverable - first.deliverable).max(1.0);
        let [carried, could] = [0, 1].map(|part| last.carried[part] - first.carried[part]);
        let used = carried / could.max(1.0);
        Some(Window { of_limit, used, queue_95_s: *queues.get(queues.len() * 95 / 100)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Carries {
        let trace = LinkTrace::from_csv("at_s,rate\n0,8Mbit/s\n1,0.8Mbit/s\n3,8Mbit/s\n").unwrap();
        Carries { rate: Rate::mbps(8), trace, per: Probability::ZERO }
    }

    #[test]
    fn a_queue_waits_as_long_as_the_rates_to_come_say() {
        let carries = steps();
        for (at_ms, bytes, expected_ms) in
            [(0, 1000, 1.0), (500, 500_000, 500.0), (1000, 100_000, 1000.0), (2000, 200_000, 1100.0)]
        {
            let found =
                carries.time_for(bytes, Time::ZERO + Duration::from_millis(at_ms)).as_secs_f64() * 1e3;
            assert!((found - expected_ms).abs() < 0.2, "{bytes} bytes at {at_ms} ms: {found} ms");
        }
    }

    #[test]
    fn a_window_is_compared_with_what_the_link_could_deliver_in_it() {
        let carries = steps();
        let half = |at: Time| (0.5 * carries.bytes(at) * carries.payload_share()) as u64;
        let times = (0..400).map(|step| Time::ZERO + Duration::from_millis(10 * step));
        let course = Course::new(
            times.map(|at| carries.sample(at, half(at), 1000, carries.bytes(at) as u64)).collect(),
        );
        for (from, until, queue_s) in [(0.0, 0.9, 0.001), (1.0, 2.5, 0.01), (0.5, 3.5, 0.01)] {
            let window = course.between(from, until).unwrap();
            assert!((window.of_limit - 0.5).abs() < 1e-3 && (window.used - 1.0).abs() < 2e-2, "{window:?}");
            assert!((window.queue_95_s - queue_s).abs() < 2e-4, "{window:?}");
        }
        assert_eq!(course.between(5.0, 6.0), None);
    }
}
