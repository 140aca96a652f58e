//! The course of a run over a link that may vary: what its clients have read, beside what any transport could
//! have delivered, and the delay of the queue.

use std::time::Duration;

use bentpipe_link::DirectionConfig;
use bentpipe_units::Time;

use crate::topology::PAYLOAD_SHARE;

/// What a direction of a link can carry from its beginning on, whatever changes: rate, delay, errors,
/// outages.
#[derive(Debug, Clone)]
pub struct Carries(Vec<Piece>);

/// A time in which nothing changes.
#[derive(Debug, Clone, Copy)]
struct Piece {
    from: Time,
    until: Time,
    bytes_per_s: f64,
    survives: f64,
    delay: Duration,
    /// When all that has left before arrives: packets stay in order.
    arrived: Time,
    /// The bytes that have left before, and those of them that are not lost.
    before: [f64; 2],
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
    /// What any transport could have delivered, bits per second.
    pub deliverable_bps: f64,
    /// What the link has carried, retransmissions included, as a share of what it could.
    pub used: f64,
    /// The 95th percentile of the queue's delay, seconds.
    pub queue_95_s: f64,
}

impl Carries {
    /// What a direction with a rate carries until then; later what it carried last.
    pub fn new(direction: &DirectionConfig, until: Time) -> Self {
        let mut pieces = Vec::new();
        let (mut before, mut arrived) = ([0.0, 0.0], Time::ZERO);
        for span in direction.conditions().take_while(|span| span.from < until) {
            let piece = Piece {
                from: span.from,
                until: span.until,
                bytes_per_s: span.bps.expect("the direction has a rate") as f64 / 8.0,
                survives: 1.0 - span.lost.get(),
                delay: span.delay,
                arrived,
                before,
            };
            (before, arrived) = (piece.left_until(span.until), arrived.max(span.until + span.delay));
            pieces.push(piece);
        }
        Self(pieces)
    }

    /// The bytes that could have left until then, with headers: all, and those that are not lost.
    pub fn left(&self, until: Time) -> [f64; 2] {
        self.last(|piece| piece.from <= until).map_or([0.0; 2], |piece| piece.left_until(until))
    }

    /// The bytes that could have arrived until then, with headers.
    pub fn arrived(&self, until: Time) -> f64 {
        let Some(piece) = self.last(|piece| piece.first_arrival() <= until) else { return 0.0 };
        let departure = Time::ZERO + until.since(Time::ZERO + piece.delay);
        piece.left_until(departure.max(piece.from).min(piece.until))[1]
    }

    /// How long it takes until so many bytes have left from now on.
    pub fn time_for(&self, bytes: u64, now: Time) -> Duration {
        let done = self.left(now)[0] + bytes as f64;
        let Some(piece) = self.last(|piece| piece.from <= now || piece.before[0] < done) else {
            return Duration::ZERO;
        };
        let seconds = (done - piece.before[0]) / piece.bytes_per_s.max(f64::MIN_POSITIVE);
        let lasts = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        (piece.from + lasts).since(now)
    }

    /// How long nothing of what leaves between two moments arrives.
    pub fn down(&self, from: Time, until: Time) -> Duration {
        let dark = self.0.iter().filter(|piece| piece.survives == 0.0);
        dark.map(|piece| piece.until.min(until).since(piece.from.max(from))).sum()
    }

    /// The state at a moment at which so many bytes have been read, and so many are in the queue; `delivered`
    /// is the link's own counter, which has those in the queue already.
    pub fn sample(&self, at: Time, read: u64, queued: u64, delivered: u64) -> Sample {
        let queue_s = self.time_for(queued, at).as_secs_f64();
        let carried = [delivered.saturating_sub(queued) as f64, self.left(at)[1]];
        Sample { at, read, deliverable: self.arrived(at) * PAYLOAD_SHARE, carried, queue_s }
    }

    /// The last piece for which this holds, as it does for all before.
    fn last(&self, holds: impl Fn(&Piece) -> bool) -> Option<&Piece> {
        let index = self.0.partition_point(holds).checked_sub(1)?;
        self.0.get(index)
    }
}

impl Piece {
    fn left_until(&self, until: Time) -> [f64; 2] {
        let bytes = self.bytes_per_s * until.since(self.from).as_secs_f64();
        [self.before[0] + bytes, self.before[1] + bytes * self.survives]
    }

    /// When what leaves at its beginning arrives.
    fn first_arrival(&self) -> Time {
        self.arrived.max(self.from + self.delay)
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
        let deliverable = (last.deliverable - first.deliverable).max(1.0);
        let of_limit = (last.read - first.read) as f64 / deliverable;
        let deliverable_bps = deliverable * 8.0 / last.at.since(first.at).as_secs_f64().max(1e-9);
        let [carried, could] = [0, 1].map(|part| last.carried[part] - first.carried[part]);
        let used = carried / could.max(1.0);
        Some(Window { of_limit, deliverable_bps, used, queue_95_s: *queues.get(queues.len() * 95 / 100)? })
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_link::{LinkTrace, OutageTrace};

    use super::*;

    fn at(seconds: f64) -> Time {
        Time::ZERO + Duration::from_secs_f64(seconds)
    }

    /// A direction whose trace has these rows.
    fn carries(rows: &str) -> Carries {
        let trace = LinkTrace::from_csv(&format!("at_s,rate,delay,per\n{rows}")).unwrap();
        Carries::new(&DirectionConfig { trace, ..DirectionConfig::default() }, at(10.0))
    }

    fn steps() -> Carries {
        carries("0,8Mbit/s\n1,0.8Mbit/s\n3,8Mbit/s\n")
    }

    #[test]
    fn a_queue_waits_as_long_as_the_rates_to_come_say() {
        let expected =
            [(0, 1000, 1.0), (500, 500_000, 500.0), (1000, 100_000, 1000.0), (2000, 200_000, 1100.0)];
        for (at_ms, bytes, expected_ms) in expected {
            let found = steps().time_for(bytes, at(at_ms as f64 / 1e3)).as_secs_f64() * 1e3;
            assert!((found - expected_ms).abs() < 1e-3, "{bytes} bytes at {at_ms} ms: {found} ms");
        }
        let pause = carries("0,8Mbit/s\n1,0\n2,8Mbit/s\n");
        assert_eq!(pause.time_for(1000, at(1.5)), Duration::from_millis(501));
        assert_eq!(pause.time_for(0, at(1.5)), Duration::ZERO);
    }

    #[test]
    fn what_arrives_leaves_errors_and_outages_out_and_comes_after_the_delay_in_order() {
        // A megabyte per second: half of it lost from the first second on, all in the third one.
        let trace = "0,8Mbit/s,500ms,0\n1,,,50%\n4,,100ms,0\n";
        let trace = LinkTrace::from_csv(&format!("at_s,rate,delay,per\n{trace}")).unwrap();
        let outages = OutageTrace::from_iter([(at(2.0), Duration::from_secs(1))]);
        let direction = DirectionConfig { trace, outages, ..DirectionConfig::default() };
        let carries = Carries::new(&direction, at(10.0));
        for (seconds, left, arrived) in [
            (0.4, 0.4, 0.0),
            (1.5, 1.25, 1.0),
            (3.0, 1.5, 1.5),
            (4.0, 2.0, 1.75),
            // Until 4.5 s the packets of the longer delay hold back those of the shorter one.
            (4.49, 2.49, 1.995),
            (4.51, 2.51, 2.41),
        ] {
            let found = [carries.left(at(seconds))[1], carries.arrived(at(seconds))].map(|bytes| bytes / 1e6);
            let close = (found[0] - left).abs() < 1e-6 && (found[1] - arrived).abs() < 1e-6;
            assert!(close, "{seconds} s: {found:?}");
        }
        assert_eq!(carries.left(at(5.0))[0], 5e6);
        assert_eq!(carries.down(at(2.25), at(4.0)), Duration::from_millis(750));
    }

    #[test]
    fn a_window_is_compared_with_what_the_link_could_deliver_in_it() {
        let carries = steps();
        let half = |at: Time| (0.5 * carries.arrived(at) * PAYLOAD_SHARE) as u64;
        let times = (0..400).map(|step| Time::ZERO + Duration::from_millis(10 * step));
        let left = |at: Time| carries.left(at)[0] as u64;
        let course = Course::new(times.map(|at| carries.sample(at, half(at), 1000, left(at))).collect());
        for (from, until, queue_s) in [(0.0, 0.9, 0.001), (1.0, 2.5, 0.01), (0.5, 3.5, 0.01)] {
            let window = course.between(from, until).unwrap();
            assert!((window.of_limit - 0.5).abs() < 1e-3 && (window.used - 1.0).abs() < 2e-2, "{window:?}");
            assert!((window.queue_95_s - queue_s).abs() < 2e-4, "{window:?}");
        }
        assert_eq!(course.between(5.0, 6.0), None);
    }
}
