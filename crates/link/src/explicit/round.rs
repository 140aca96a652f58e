//! The bytes that all senders together have sent, delivered and lost in the last round trip.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

/// The shortest time over which rates are measured.
const SHORTEST: Duration = Duration::from_millis(100);

/// Longer than any round trip with its queue.
const REMEMBERED: Duration = Duration::from_secs(8);

/// If nothing arrives for longer than this, and than this many bytes take, the senders have paused, as at the
/// end of the receiver's first window.
const PAUSE: (Duration, f64) = (Duration::from_millis(50), 4.0 * 1500.0);

/// Running sums at the ticks of the last round trip.
#[derive(Debug, Default)]
pub(super) struct Round {
    sums: [u64; 3],
    acknowledged: u64,
    /// The last moment before the history.
    before: Option<Moment>,
    history: VecDeque<Moment>,
    /// Bytes sent until then, for as long as a packet and its acknowledgement may take.
    sent: VecDeque<(Time, u64)>,
}

/// The sums at a tick.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Time,
    sums: [u64; 3],
    /// The bytes that have been delivered, without cross traffic: acknowledgements show them.
    acknowledged: u64,
    /// The delay of the acknowledgements of these sums on the return path, up to a constant, seconds.
    return_shift: f64,
}

/// Rates over the last round trip, bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Rates {
    pub(super) sent: f64,
    pub(super) delivered: f64,
    pub(super) lost: f64,
    /// Whether they are of a whole round trip.
    pub(super) whole: bool,
}

impl Round {
    /// Adds the bytes sent, delivered and lost since the last tick, from acknowledgements that took
    /// `return_shift` seconds on the return path, and those of cross traffic.
    pub(super) fn add(
        &mut self,
        now: Time,
        bytes: [u64; 3],
        cross_traffic: [u64; 3],
        return_shift: f64,
        rtt: Duration,
    ) {
        self.sums = std::array::from_fn(|index| {
            self.sums[index].saturating_add(bytes[index]).saturating_add(cross_traffic[index])
        });
        self.acknowledged += bytes[1];
        self.sent.push_back((now, self.sums[0]));
        while self.sent.get(1).is_some_and(|second| now - second.0 >= REMEMBERED) {
            self.sent.pop_front();
        }
        // Rates begin with the first arrival.
        let moment = Moment { at: now, sums: self.sums, acknowledged: self.acknowledged, return_shift };
        if self.history.is_empty() && bytes[1] == 0 {
            self.before = Some(moment);
            return;
        }
        self.history.push_back(moment);
        let span = rtt.max(SHORTEST);
        while self.history.get(1).is_some_and(|second| now - second.at >= span) {
            self.before = self.history.pop_front();
        }
    }

    /// Says that of the bytes sent by now so many were sent evenly between two moments, and were not known.
    pub(super) fn spread_sent(&mut self, bytes: u64, from: Time, to: Time) {
        let span = (to - from).as_secs_f64().max(1e-9);
        for (at, sent) in self.sent.iter_mut().rev().skip(1).take_while(|(at, _)| *at > from) {
            let part = ((*at - from).as_secs_f64() / span).min(1.0);
            *sent = (*sent).saturating_add((bytes as f64 * part) as u64);
        }
    }

    /// Forgets the past: the next rates begin now.
    pub(super) fn clear(&mut self) {
        self.before = None;
        self.history.clear();
        self.sent.clear();
    }

    /// The rates over the remembered time, usually a round trip.
    pub(super) fn rates(&self, rtt: Duration) -> Option<Rates> {
        self.rates_since(Time::ZERO, rtt)
    }

    /// Bytes per second for which acknowledgements have come back over the remembered time, whenever these
    /// bytes arrived.
    pub(super) fn acknowledged(&self, rtt: Duration) -> Option<f64> {
        let (first, last) = (self.history.front()?, self.history.back()?);
        let span = last.at - first.at;
        (span >= SHORTEST.max(rtt / 4)).then(|| (last.sums[1] - first.sums[1]) as f64 / span.as_secs_f64())
    }

    /// The rate of arrivals since then, or since the last pause of the senders, bytes per second. It ends
    /// with the last arrival, because nothing may have been sent after it.
    pub(super) fn carried_since(&self, since: Time, rtt: Duration, least: Duration) -> Option<f64> {
        let usual = self.rates(rtt)?.delivered.max(1.0);
        let pause = PAUSE.0.max(Duration::try_from_secs_f64(PAUSE.1 / usual).unwrap_or(Duration::MAX));
        let mut ticks = self.history.iter().filter(|moment| moment.at >= since);
        let mut first = ticks.next()?;
        let (mut last, mut silent) = (first, false);
        for moment in ticks {
            if moment.acknowledged == last.acknowledged {
                silent = true;
                continue;
            }
            if silent && moment.at - last.at > pause {
                first = moment;
            }
            (last, silent) = (moment, false);
        }
        let arrived = (last.sums[1] - first.sums[1]) as f64;
        (last.at - first.at >= least.max(SHORTEST)).then(|| arrived / last.arriving_since(first))
    }

    /// The fastest arrivals since then over any span that is long enough: the rate that is certain although
    /// `error` bytes more or less may have come at its ends, and the rate that is possible. Without cross
    /// traffic, of which it is not known so exactly when it arrives.
    pub(super) fn fastest_since(&self, since: Time, least: Duration, error: f64) -> Option<[f64; 2]> {
        let mut fastest: Option<[f64; 2]> = None;
        let mut moments = self.before.iter().chain(&self.history).skip_while(|moment| moment.at < since);
        while let Some(first) = moments.next() {
            for last in moments.clone().filter(|last| last.at - first.at >= least) {
                let bytes = (last.acknowledged - first.acknowledged) as f64;
                let span = (last.at - first.at).as_secs_f64();
                let rates = [bytes - error, bytes + error].map(|bytes| bytes / span);
                let before = fastest.unwrap_or(rates);
                fastest = Some([0, 1].map(|bound| before[bound].max(rates[bound])));
            }
        }
        fastest
    }

    /// The bytes that were sent since then, as evenly as possible between two ticks; `None` if that is too
    /// long ago.
    pub(super) fn sent_since(&self, since: Time) -> Option<f64> {
        let after = self.sent.partition_point(|(at, _)| *at <= since);
        let (earlier, before) = *self.sent.get(after.checked_sub(1)?)?;
        let Some(&(later, sent)) = self.sent.get(after) else { return Some(0.0) };
        let part = (later - since).as_secs_f64() / (later - earlier).as_secs_f64();
        Some((self.sums[0] - sent) as f64 + part * (sent - before) as f64)
    }

    /// The rates over the part of the remembered time that begins at `since`.
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
    /// The seconds in which the bytes acknowledged since then arrived. While the delay of the return path
    /// grows, acknowledgements arrive further apart than they were sent.
    fn arriving_since(&self, first: &Self) -> f64 {
        let span = (self.at - first.at).as_secs_f64();
        (span + first.return_shift - self.return_shift).max(span / 8.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledgements come further apart while the queue of the return path grows, and closer while it
    /// drains.
    #[test]
    fn bytes_count_at_the_time_of_their_arrival() {
        const TICK: Duration = Duration::from_millis(20);
        const RTT: Duration = Duration::from_millis(600);
        for longer_by_a_second in [0.0, 0.5, -1.0] {
            let (mut round, mut now, mut return_shift) = (Round::default(), Time::ZERO, 0.0);
            for _ in 0..60 {
                now += TICK;
                let later = longer_by_a_second * TICK.as_secs_f64();
                return_shift += later;
                let bytes = (1e6 * (TICK.as_secs_f64() - later)) as u64;
                round.add(now, [20_000, bytes, bytes / 10], [0; 3], return_shift, RTT);
            }
            let rates = round.rates(RTT).unwrap();
            let carried = round.carried_since(Time::ZERO, RTT, RTT / 2).unwrap();
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
