//! Statistics of each leg: sums over the connections that have an end on it.
//!
//! Legs are identified by name, so that their numbers continue after a reload. Each connection is sampled
//! about once a second: its progress since the last sample is added to the totals, and its *share* of the
//! leg's rates and round trips replaces its earlier share. The share of a connection that ends is removed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bentpipe_legs::{LegId, Legs};
use serde::{Deserialize, Serialize};

use super::flow_stats::FlowStats;
use super::gain::EndToEnd;
use super::outage_detector::{Observation, OutageDetector};
use super::window::Window;
use crate::types::leg_pair::LegPair;

/// The window of the loss rate.
const LOSSES: Duration = Duration::from_secs(10);
/// The window of the gain.
const GAINS: Duration = Duration::from_secs(30);
/// For how long after an outage what is sent says nothing about the gain: what the outage has held up comes
/// at once, and it has caused losses that are not the link's.
const SETTLING: Duration = Duration::from_secs(10);
/// So many segments tell a loss rate.
const SOME_SEGMENTS: u64 = 200;
/// How long the bytes of an ended connection count towards the rates.
const NOW: Duration = Duration::from_secs(1);
/// For how long the shortest round trip of a connection counts after it was looked at, and half of that.
const SHORTEST: Duration = Duration::from_secs(2);

/// The statistics of all legs.
#[derive(Debug, Default)]
pub(crate) struct LegStatsTable {
    legs: RwLock<Vec<Arc<LegStats>>>,
    /// The number of the next flow.
    next: AtomicU64,
}

/// The statistics of one leg.
#[derive(Debug)]
pub(crate) struct LegStats {
    /// A satellite leg may have the terrestrial one's name.
    is_satellite: bool,
    name: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    flows: u64,
    totals: Totals,
    shares: Share,
    /// What connections have moved that ended before their rate was known.
    ended: Moved,
    recently_ended: Window<Moved>,
    losses: Window<Totals>,
    gain: GainSums,
    gains: Window<GainSums>,
    /// Until then what is sent does not count for the gain.
    unsettled_until: Option<Instant>,
    shortest: Shortest,
    outages: OutageDetector,
}

/// The totals of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Totals {
    /// Payload.
    pub(crate) moved: Moved,
    /// Segments with data sent, retransmissions included.
    pub(crate) segments: u64,
    /// Segments sent again.
    pub(crate) retransmissions: u64,
    /// Expiries of retransmission timers.
    pub(crate) timeouts: u64,
}

/// Bytes each way, as the gateway sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Moved {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// What a connection contributes to the leg's state, or the sum over connections. Integers, so that what was
/// added can be subtracted exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Share {
    /// Connections with progress, or with unacknowledged data.
    pub(super) active: u64,
    /// Those of them whose round trip is known, and the sum of these, µs.
    pub(super) timed: u64,
    pub(super) srtt_us: u64,
    /// Payload that was acknowledged or came, bit/s.
    pub(super) sent_bps: u64,
    pub(super) received_bps: u64,
}

/// What the gain is computed from: sums over samples, weighted by bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct GainSums {
    /// Payload that was acknowledged.
    pub(super) bytes: f64,
    /// The part of it that would have been acknowledged end to end within the same time.
    pub(super) bytes_end_to_end: f64,
    /// The time that all of it would have taken end to end, of each connection, s.
    pub(super) end_to_end: EndToEnd,
    /// Segments, and those of them that were sent again.
    pub(super) segments: u64,
    pub(super) retransmissions: u64,
}

/// What a leg says of the gain.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct LegGain {
    /// The sums over the window.
    pub(super) sums: GainSums,
    /// The time in which they came, s.
    pub(super) seconds: f64,
    /// The leg is out, or was so until a moment ago.
    pub(super) is_unsettled: bool,
}

/// A sample of one connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finding {
    pub(super) news: Totals,
    pub(super) before: Share,
    pub(super) after: Share,
    pub(super) look: Observation,
    pub(super) min_rtt: Option<Duration>,
    /// What it adds to the gain, if it adds something.
    pub(super) gain: Option<GainSums>,
    /// Whether it is the last sample of the connection.
    pub(super) is_last: bool,
}

/// A leg at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) flows: u64,
    pub(crate) totals: Totals,
    pub(super) shares: Share,
    pub(super) sent_bps: f64,
    pub(super) received_bps: f64,
    pub(super) loss: Option<f64>,
    pub(super) srtt: Option<Duration>,
    pub(super) min_rtt: Option<Duration>,
    pub(super) outage: Option<Duration>,
}

/// The shortest round trip of the last two to four seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Shortest {
    began: Option<Instant>,
    current: Option<Duration>,
    previous: Option<Duration>,
}

impl LegStatsTable {
    /// The statistics of a new flow.
    pub(crate) fn open(&self, pair: LegPair, legs: &Legs, now: Instant) -> FlowStats {
        let leg = |id: LegId| self.leg(id != LegId::Terrestrial, legs.get(id).name());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        FlowStats::open(number, [leg(pair.client), leg(pair.server)], now)
    }

    /// Every leg that ever existed: the satellites, then the terrestrial one.
    pub(super) fn legs(&self) -> Vec<Arc<LegStats>> {
        let mut legs = self.legs.read().unwrap_or_else(PoisonError::into_inner).clone();
        legs.sort_by(|a, b| (!a.is_satellite, &a.name).cmp(&(!b.is_satellite, &b.name)));
        legs
    }

    /// The leg of this name; it is created if there is none.
    pub(crate) fn leg(&self, is_satellite: bool, name: &str) -> Arc<LegStats> {
        let find = |legs: &[Arc<LegStats>]| legs.iter().find(|leg| leg.is(is_satellite, name)).cloned();
        if let Some(leg) = find(&self.legs.read().unwrap_or_else(PoisonError::into_inner)) {
            return leg;
        }
        let mut legs = self.legs.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster.
        find(&legs).unwrap_or_else(|| {
            let leg = Arc::new(LegStats::new(is_satellite, name));
            legs.push(leg.clone());
            leg
        })
    }
}

impl LegStats {
    fn new(is_satellite: bool, name: &str) -> Self {
        let state = State {
            flows: 0,
            totals: Totals::default(),
            shares: Share::default(),
            ended: Moved::default(),
            recently_ended: Window::new(NOW, NOW / 10),
            losses: Window::new(LOSSES, LOSSES / 10),
            gain: GainSums::default(),
            gains: Window::new(GAINS, GAINS / 30),
            unsettled_until: None,
            shortest: Shortest::default(),
            outages: OutageDetector::default(),
        };
        Self { is_satellite, name: name.to_owned(), state: Mutex::new(state) }
    }

    pub(super) fn is_satellite(&self) -> bool {
        self.is_satellite
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Adds a connection.
    pub(super) fn join(&self) {
        self.state().flows += 1;
    }

    /// Removes a connection and its share.
    pub(super) fn leave(&self, share: Share) {
        let mut state = self.state();
        state.flows -= 1;
        state.shares = state.shares.replace(share, Share::default());
    }

    pub(super) fn note(&self, now: Instant, finding: &Finding) {
        self.state().note(now, finding);
    }

    /// The share of segments that were retransmitted within the window of the gain; none where there were too
    /// few to tell.
    pub(super) fn steady_loss(&self, now: Instant) -> Option<f64> {
        let GainSums { segments, retransmissions, .. } = self.gain(now).sums;
        (segments >= SOME_SEGMENTS).then(|| (retransmissions as f64 / segments as f64).min(1.0))
    }

    /// What was sent within the window of the gain.
    pub(super) fn gain(&self, now: Instant) -> LegGain {
        self.state().gain(now)
    }

    /// Whether nothing is received although an answer is due.
    pub(super) fn is_out(&self, now: Instant) -> bool {
        self.state().outage(now).is_some()
    }

    pub(crate) fn figures(&self, now: Instant) -> Figures {
        self.state().figures(now)
    }

    /// Adds the totals of the old process.
    pub(super) fn inherit(&self, totals: Totals) {
        let mut state = self.state();
        state.totals = state.totals.plus(totals);
        state.losses = Window::new(LOSSES, LOSSES / 10);
    }

    fn is(&self, is_satellite: bool, name: &str) -> bool {
        self.is_satellite == is_satellite && self.name == name
    }

    /// The counts are consistent at every step, so a poisoned lock can still be used.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, now: Instant, finding: &Finding) {
        let Finding { news, before, after, look, min_rtt, gain, is_last } = *finding;
        self.losses.before_change(now, self.totals);
        self.totals = self.totals.plus(news);
        self.shares = self.shares.replace(before, after);
        self.outages.note(now, look);
        self.note_gain(now, gain);
        if let Some(rtt) = min_rtt.filter(|_| after.active > 0) {
            self.shortest.note(now, rtt);
        }
        if is_last {
            self.recently_ended.before_change(now, self.ended);
            self.ended = self.ended.plus(news.moved);
        }
    }

    /// An outage takes with it what was known before.
    fn note_gain(&mut self, now: Instant, news: Option<GainSums>) {
        if self.outage(now).is_some() {
            self.unsettled_until = Some(now + SETTLING);
            (self.gain, self.gains) = (GainSums::default(), Window::new(GAINS, GAINS / 30));
        }
        if let Some(news) = news.filter(|_| !self.is_unsettled(now)) {
            self.gains.before_change(now, self.gain);
            self.gain = self.gain.plus(news);
        }
    }

    fn gain(&self, now: Instant) -> LegGain {
        let is_unsettled = self.is_unsettled(now) || self.outage(now).is_some();
        let Some((since, before)) = self.gains.start(now).filter(|_| !is_unsettled) else {
            return LegGain { is_unsettled, ..LegGain::default() };
        };
        // The first sample is of the second before it.
        let seconds = (now.saturating_duration_since(since) + NOW).as_secs_f64();
        LegGain { sums: self.gain.minus(before), seconds, is_unsettled }
    }

    fn is_unsettled(&self, now: Instant) -> bool {
        self.unsettled_until.is_some_and(|until| now < until)
    }

    fn outage(&self, now: Instant) -> Option<Duration> {
        self.outages.outage(now, self.srtt().unwrap_or_default())
    }

    fn srtt(&self) -> Option<Duration> {
        self.shares.srtt_us.checked_div(self.shares.timed).map(Duration::from_micros)
    }

    fn loss(&self, now: Instant) -> Option<f64> {
        let before = self.losses.at_start(now)?;
        let segments = self.totals.segments - before.segments;
        let again = self.totals.retransmissions - before.retransmissions;
        // A SYN that is sent again is no segment with data.
        (segments > 0).then(|| (again as f64 / segments as f64).min(1.0))
    }

    fn figures(&self, now: Instant) -> Figures {
        let ended = self.recently_ended.at_start(now).map_or(Moved::default(), |before| Moved {
            sent: self.ended.sent - before.sent,
            received: self.ended.received - before.received,
        });
        let rate = |living: u64, ended: u64| living as f64 + ended as f64 * 8.0 / NOW.as_secs_f64();
        Figures {
            flows: self.flows,
            totals: self.totals,
            shares: self.shares,
            sent_bps: rate(self.shares.sent_bps, ended.sent),
            received_bps: rate(self.shares.received_bps, ended.received),
            loss: self.loss(now),
            srtt: self.srtt(),
            min_rtt: self.shortest.get(now),
            outage: self.outage(now),
        }
    }
}

impl Totals {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            moved: self.moved.plus(other.moved),
            segments: self.segments + other.segments,
            retransmissions: self.retransmissions + other.retransmissions,
            timeouts: self.timeouts + other.timeouts,
        }
    }
}

impl Moved {
    pub(super) fn plus(self, other: Self) -> Self {
        Self { sent: self.sent + other.sent, received: self.received + other.received }
    }
}

impl Share {
    /// The sum with `before` taken from it and `after` added to it.
    fn replace(self, before: Self, after: Self) -> Self {
        Self {
            active: self.active - before.active + after.active,
            timed: self.timed - before.timed + after.timed,
            srtt_us: self.srtt_us - before.srtt_us + after.srtt_us,
            sent_bps: self.sent_bps - before.sent_bps + after.sent_bps,
            received_bps: self.received_bps - before.received_bps + after.received_bps,
        }
    }
}

impl GainSums {
    fn plus(self, other: Self) -> Self {
        self.combined(other, 1.0, |a, b| a + b)
    }

    fn minus(self, other: Self) -> Self {
        self.combined(other, -1.0, |a, b| a - b)
    }

    fn combined(self, other: Self, sign: f64, counts: fn(u64, u64) -> u64) -> Self {
        let sum = |a: f64, b: f64| a + sign * b;
        Self {
            bytes: sum(self.bytes, other.bytes),
            bytes_end_to_end: sum(self.bytes_end_to_end, other.bytes_end_to_end),
            end_to_end: EndToEnd {
                total: sum(self.end_to_end.total, other.end_to_end.total),
                start_up: sum(self.end_to_end.start_up, other.end_to_end.start_up),
            },
            segments: counts(self.segments, other.segments),
            retransmissions: counts(self.retransmissions, other.retransmissions),
        }
    }
}

impl Shortest {
    fn note(&mut self, now: Instant, rtt: Duration) {
        if self.age(now).is_none_or(|age| age >= SHORTEST) {
            let previous = self.current.filter(|_| self.age(now).is_some_and(|age| age < 2 * SHORTEST));
            *self = Self { began: Some(now), current: None, previous };
        }
        self.current = Some(self.current.map_or(rtt, |current| current.min(rtt)));
    }

    fn get(&self, now: Instant) -> Option<Duration> {
        let is_recent = self.age(now).is_some_and(|age| age < 2 * SHORTEST);
        [self.current, self.previous].into_iter().flatten().min().filter(|_| is_recent)
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        self.began.map(|began| now.saturating_duration_since(began))
    }
}

#[cfg(test)]
mod tests;
