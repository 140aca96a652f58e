//! What all senders together have sent, delivered and lost in the last round trip.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

/// The shortest time over which rates are measured.
const SHORTEST: Duration = Duration::from_millis(100);

/// Nothing arrives for longer than this, and than so many full segments take: the senders have paused, as at the end of the
/// receiver's first window.
const PAUSE: (Duration, f64) = (Duration::from_millis(50), 4.0 * 1500.0);

/// Running sums at the ticks of the last round trip.
#[derive(Debug, Default)]
pub(super) struct Round {
    sums: [u64; 3],
    history: VecDeque<Moment>,
}

/// The sums at a tick.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Time,
    sums: [u64; 3],
    /// How long the acknowledgements that the sums are from have taken on their way back, but for a constant, seconds.
    returning: f64,
}

/// Over the last round trip, bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Rates {
    pub(super) sent: f64,
    pub(super) delivered: f64,
    pub(super) lost: f64,
    /// Whether this is of a whole round trip.
    pub(super) whole: bool,
}

impl Round {
    /// Bytes sent, delivered and lost since the last tick, as acknowledgements say that have taken `returning` on their way back, seconds.
    pub(super) fn add(&mut self, now: Time, bytes: [u64; 3], returning: f64, rtt: Duration) {
        self.sums = std::array::from_fn(|index| self.sums[index] + bytes[index]);
        // The time before the first arrival belongs to nothing that is measured here.
        if self.history.is_empty() && bytes[1] == 0 {
            return;
        }
        self.history.push_back(Moment { at: now, sums: self.sums, returning });
        let span = rtt.max(SHORTEST);
        while self.history.get(1).is_some_and(|second| now - second.at >= span) {
            self.history.pop_front();
        }
    }

    /// The next rates are of what comes now.
    pub(super) fn clear(&mut self) {
        self.history.clear();
    }

    /// Over what is remembered, a round trip as a rule.
    pub(super) fn rates(&self, rtt: Duration) -> Option<Rates> {
        self.rates_since(Time::ZERO, rtt)
    }

    /// What has arrived since then, or since the last pause of the senders, bytes per second; until the last arrival, for what
    /// did not come afterwards may not have been sent.
    pub(super) fn carried_since(&self, since: Time, rtt: Duration) -> Option<f64> {
        let usual = self.rates(rtt)?.delivered.max(1.0);
        let pause = PAUSE.0.max(Duration::try_from_secs_f64(PAUSE.1 / usual).unwrap_or(Duration::MAX));
        let mut ticks = self.history.iter().filter(|moment| moment.at >= since);
        let mut first = ticks.next()?;
        let (mut last, mut silent) = (first, false);
        for moment in ticks {
            if moment.sums[1] == last.sums[1] {
                silent = true;
                continue;
            }
            if silent && moment.at - last.at > pause {
                first = moment;
            }
            (last, silent) = (moment, false);
        }
        let arrived = (last.sums[1] - first.sums[1]) as f64;
        (last.at - first.at >= SHORTEST.max(rtt / 4)).then(|| arrived / last.arriving_since(first))
    }

    /// Over the part of it that begins at `since`.
    fn rates_since(&self, since: Time, rtt: Duration) -> Option<Rates> {
        let last = self.history.back()?;
        let first = self.history.iter().find(|moment| moment.at >= since)?;
        let (span, arriving) = (last.at - first.at, last.arriving_since(first));
        let bytes = |index: usize| (last.sums[index] - first.sums[index]) as f64;
        let (sent, [delivered, lost]) =
            (bytes(0) / span.as_secs_f64(), [1, 2].map(|index| bytes(index) / arriving));
        (span >= SHORTEST.max(rtt / 4)).then_some(Rates { sent, delivered, lost, whole: span >= rtt })
    }
}

impl Moment {
    /// The seconds in which what was acknowledged since then has arrived: where acknowledgements wait longer and longer, they come
    /// further apart than they were sent.
    fn arriving_since(&self, first: &Self) -> f64 {
        let span = (self.at - first.at).as_secs_f64();
        (span + first.returning - self.returning).max(span / 8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledgements come further apart while the way back fills, and closer while it empties.
    #[test]
    fn what_has_arrived_is_counted_by_when_it_did() {
        const TICK: Duration = Duration::from_millis(20);
        const RTT: Duration = Duration::from_millis(600);
        for longer_by_a_second in [0.0, 0.5, -1.0] {
            let (mut round, mut now, mut returning) = (Round::default(), Time::ZERO, 0.0);
            for _ in 0..60 {
                now += TICK;
                let later = longer_by_a_second * TICK.as_secs_f64();
                returning += later;
                let bytes = (1e6 * (TICK.as_secs_f64() - later)) as u64;
                round.add(now, [20_000, bytes, bytes / 10], returning, RTT);
            }
            let rates = round.rates(RTT).unwrap();
            let carried = round.carried_since(Time::ZERO, RTT).unwrap();
            for (found, expected) in
                [(rates.sent, 1e6), (rates.delivered, 1e6), (rates.lost, 1e5), (carried, 1e6)]
            {
                assert!(
                    (found / expected - 1.0).abs() < 1e-3,
                    "{longer_by_a_second}: {found}, not {expected}"
                );
            }
        }
    }
}
