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
    history: VecDeque<(Time, [u64; 3])>,
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
    /// Bytes sent, delivered and lost since the last tick.
    pub(super) fn add(&mut self, now: Time, bytes: [u64; 3], rtt: Duration) {
        self.sums = std::array::from_fn(|index| self.sums[index] + bytes[index]);
        // The time before the first arrival belongs to nothing that is measured here.
        if self.history.is_empty() && bytes[1] == 0 {
            return;
        }
        self.history.push_back((now, self.sums));
        let span = rtt.max(SHORTEST);
        while self.history.get(1).is_some_and(|second| now - second.0 >= span) {
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
        let mut ticks = self.history.iter().filter(|(at, _)| *at >= since).map(|(at, sums)| (*at, sums[1]));
        let mut first = ticks.next()?;
        let (mut last, mut silent) = (first, false);
        for (at, delivered) in ticks {
            if delivered == last.1 {
                silent = true;
                continue;
            }
            if silent && at - last.0 > pause {
                first = (at, delivered);
            }
            (last, silent) = ((at, delivered), false);
        }
        let span = last.0 - first.0;
        (span >= SHORTEST.max(rtt / 4)).then(|| (last.1 - first.1) as f64 / span.as_secs_f64())
    }

    /// Over the part of it that begins at `since`.
    fn rates_since(&self, since: Time, rtt: Duration) -> Option<Rates> {
        let (last, now) = self.history.back()?;
        let (first, then) = self.history.iter().find(|(at, _)| *at >= since)?;
        let span = *last - *first;
        let [sent, delivered, lost] =
            std::array::from_fn(|index| (now[index] - then[index]) as f64 / span.as_secs_f64());
        (span >= SHORTEST.max(rtt / 4)).then_some(Rates { sent, delivered, lost, whole: span >= rtt })
    }
}
