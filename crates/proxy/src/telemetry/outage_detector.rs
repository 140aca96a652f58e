//! Detects outages of a leg: data are overdue, and no connection receives anything.
//!
//! An idle leg is silent, too. So an outage needs a connection whose data are overdue: its retransmission
//! timer has expired, or it sent its last data more than a round trip ago, and no acknowledgement has come.
//! And one dead peer is silent among live ones. So all connections must be silent.

use std::time::{Duration, Instant};

/// Silence that is not yet an outage, besides two round trips: the time of the first and the second
/// retransmission.
const PATIENCE: Duration = Duration::from_secs(1);
/// Observations older than this are ignored. Connections are sampled once a second, or a little
/// later where the machine is busy.
const MEMORY: Duration = Duration::from_secs(3);

/// A sample of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Observation {
    /// When it last received a segment, if ever.
    pub(super) heard: Option<Instant>,
    /// Something is unacknowledged.
    pub(super) waits: bool,
    /// And has been for longer than it should be.
    pub(super) is_overdue: bool,
}

/// What the connections of a leg have received, and what they wait for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OutageDetector {
    heard: Option<Instant>,
    /// A connection waited for an acknowledgement from the first to the second instant, in each sample in
    /// between.
    waited: Option<(Instant, Instant)>,
    overdue: Option<Instant>,
}

impl OutageDetector {
    /// Adds a sample of a connection of the leg.
    pub(super) fn note(&mut self, now: Instant, observation: Observation) {
        self.heard = self.heard.max(observation.heard);
        if observation.waits {
            let since = self.waited.filter(|&(_, last)| is_recent(now, last)).map_or(now, |(since, _)| since);
            self.waited = Some((since, now));
        }
        if observation.is_overdue {
            self.overdue = Some(now);
        }
    }

    /// How long the leg has been silent, if that is an outage at `now` with round-trip time `rtt`.
    ///
    /// Nothing is known between two samples. So the last sample with overdue data
    /// decides, and the time since then is counted once that is decided.
    pub(super) fn outage(&self, now: Instant, rtt: Duration) -> Option<Duration> {
        let overdue = self.overdue.filter(|&at| is_recent(now, at))?;
        let (waiting_since, _) = self.waited?;
        // Silence before anything was sent does not count.
        let silent_since = self.heard.map_or(waiting_since, |heard| heard.max(waiting_since));
        let is_out = overdue.saturating_duration_since(silent_since) > PATIENCE + 2 * rtt;
        is_out.then(|| now.saturating_duration_since(silent_since))
    }
}

fn is_recent(now: Instant, at: Instant) -> bool {
    now.saturating_duration_since(at) <= MEMORY
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(600);

    /// A time line in milliseconds.
    struct TimeLine {
        start: Instant,
        detector: OutageDetector,
    }

    impl TimeLine {
        fn new() -> Self {
            Self { start: Instant::now(), detector: OutageDetector::default() }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        /// A sample at `ms` of a connection that waits and last received something at `heard`.
        fn waits(&mut self, ms: u64, heard: u64, is_overdue: bool) {
            let look = Observation { heard: Some(self.at(heard)), waits: true, is_overdue };
            self.detector.note(self.at(ms), look);
        }

        /// A sample of a connection that waits for nothing.
        fn rests(&mut self, ms: u64, heard: u64) {
            self.detector
                .note(self.at(ms), Observation { heard: Some(self.at(heard)), ..Observation::default() });
        }

        fn outage_ms(&self, ms: u64) -> Option<u128> {
            self.detector.outage(self.at(ms), RTT).map(|length| length.as_millis())
        }
    }

    #[test]
    fn a_download_that_meets_an_outage_and_gets_over_it() {
        let mut line = TimeLine::new();
        line.waits(1000, 990, false);
        line.waits(2000, 1990, false);
        // The outage begins at 2300; the last acknowledgement was at 2290. The limit is 1 s and two round
        // trips.
        line.waits(3000, 2290, false);
        line.waits(4000, 2290, true);
        assert_eq!(line.outage_ms(4000), None, "1.71 s of silence");
        line.waits(5000, 2290, true);
        assert_eq!(line.outage_ms(5000), Some(2710));
        assert_eq!(line.outage_ms(5900), Some(3610), "it goes on between samples");
        for second in 6..30 {
            line.waits(second * 1000, 2290, true);
            assert_eq!(line.outage_ms(second * 1000), Some(u128::from(second) * 1000 - 2290));
        }
        // A late sample does not end it.
        line.waits(31_900, 2290, true);
        assert_eq!(line.outage_ms(31_900), Some(29_610));
        line.waits(33_000, 32_500, false);
        assert_eq!(line.outage_ms(33_000), None);
    }

    #[test]
    fn an_idle_leg_is_silent_and_not_out() {
        let mut line = TimeLine::new();
        line.waits(1000, 990, false);
        for second in 2..3600 {
            line.rests(second * 1000, 1200);
            assert_eq!(line.outage_ms(second * 1000), None);
        }
        // The first data after the idle hour: nothing was received, and nothing was due.
        line.waits(3_600_000, 1200, false);
        assert_eq!(line.outage_ms(3_600_000), None);
        line.waits(3_601_000, 1200, true);
        assert_eq!(line.outage_ms(3_601_000), None, "the answer is on its way");
        line.waits(3_603_000, 1200, true);
        assert_eq!(line.outage_ms(3_603_000), Some(3000), "not an hour");
    }

    #[test]
    fn a_healthy_leg_is_not_out_just_before_the_next_sample() {
        let (mut line, rtt) = (TimeLine::new(), Duration::from_millis(1));
        for look in 0..20u64 {
            let ms = 1000 + look * 1100;
            line.waits(ms, ms - 1, false);
            assert_eq!(line.detector.outage(line.at(ms + 1099), rtt), None);
        }
        // One segment is lost and retransmitted by the timer; another connection receives.
        line.waits(23_000, 21_900, true);
        line.rests(23_001, 22_999);
        assert_eq!(line.detector.outage(line.at(23_002), rtt), None);
    }

    #[test]
    fn one_dead_peer_among_living_ones_is_no_outage() {
        let mut line = TimeLine::new();
        for second in 1..600 {
            let ms = second * 1000;
            line.waits(ms, 900, true);
            line.rests(ms + 300, ms + 200);
            assert_eq!(line.outage_ms(ms + 400), None);
        }
        // The living peer falls silent: now the two cannot be distinguished.
        for second in 600..610 {
            line.waits(second * 1000, 900, true);
        }
        assert_eq!(line.outage_ms(609_000), Some(609_000 - 599_200));
    }

    #[test]
    fn answers_to_probes_count_as_arrivals() {
        let mut line = TimeLine::new();
        for second in 1..600 {
            // A closed window: each probe is answered.
            line.waits(second * 1000, second * 1000 - 700, true);
            assert_eq!(line.outage_ms(second * 1000), None);
        }
    }

    #[test]
    fn an_outage_ends_with_the_last_connection_that_waits() {
        let mut line = TimeLine::new();
        for second in 1..20 {
            line.waits(second * 1000, 900, true);
        }
        assert!(line.outage_ms(19_000).is_some());
        assert_eq!(line.outage_ms(23_000), None);
    }
}
