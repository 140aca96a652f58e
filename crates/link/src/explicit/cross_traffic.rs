//! Cross traffic: what leaves over the link and is not of the connections that are given rates, such as UDP,
//! QUIC and connections that are not split.
//!
//! Nobody can tell it a rate, but the gateway is on its path and counts it. So it need not be inferred from
//! its queue: it takes its part of the capacity as soon as it is sent, and the connections share the rest.
//! Under load its part has a limit, beyond which the connections do not give way. There is no room left
//! beside it for it to grow into: an estimate of the capacity would take it for what the link carries as
//! well, and where it grows, its packets are known before they wait, and the connections send so much less.
//!
//! ```text
//!             below its share                            above its share
//! ├── connections ──────────────┤─ cross ───┤  ├── connections, not less ──┤─ cross ───┼── too much ─┤
//! 0                                         C  0                           (1 − s)·C   C
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

/// Its rate is the mean of this time: long enough that single packets do not show, and short beside the time
/// in which a queue of 30 ms forms.
const MEASURED_OVER: Duration = Duration::from_millis(200);
/// A burst counts at once: what is sent in this time, but for so many bytes, which may be chance.
const BURST: (Duration, f64) = (Duration::from_millis(40), 2.0 * 1500.0);
/// Its use is the mean of this time, a few round trips: senders with a window send in bursts, and the
/// connections make room for them.
const USED_OVER: Duration = Duration::from_secs(2);
/// Above its share by this part of the capacity it no longer makes the connections give way. Up to there they
/// do in part: a trickle above a small share is not worth a queue.
const TOLERATED: f64 = 0.04;
/// With this part of the capacity it fills the link alone.
const ALONE: f64 = 0.85;
/// The connections keep this part of the capacity in any case: without a packet nothing can be measured.
const LEAST: f64 = 0.02;
/// What was sent is remembered for as long as a packet may take.
const REMEMBERED: Duration = Duration::from_secs(8);
/// The part of losses is measured over about so many bytes of the connections.
const LOSS_OVER: f64 = 3e6;
/// The counts of an interface and of its connections are of different moments, and count the headers of
/// segmented packets differently. So many bytes too few are made up for by what follows.
const DIFFERENCE: u64 = 64_000;

/// The part of a link that cross traffic may take under load, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossTrafficShare(f64);

impl CrossTrafficShare {
    /// `part` if it is between 0 and 1.
    pub fn new(part: f64) -> Option<Self> {
        (0.0..=1.0).contains(&part).then_some(Self(part))
    }

    /// The part, from 0 to 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// Half: neither side can starve the other, however many flows it has.
impl Default for CrossTrafficShare {
    fn default() -> Self {
        Self(0.5)
    }
}

/// What has left over the link, bytes with the headers of IP and above, by a counter that only grows unless
/// it begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressCount {
    /// Of cross traffic alone.
    CrossTraffic(u64),
    /// Of everything; that of the connections is subtracted.
    All(u64),
}

/// The cross traffic of one link.
#[derive(Debug, Default)]
pub(super) struct CrossTraffic {
    last: Option<EgressCount>,
    /// Counted since the last tick.
    counted: Counted,
    /// Bytes of the connections that the counter of everything has not shown yet.
    owed: u64,
    /// Bytes sent until each of the last ticks.
    sent: VecDeque<(Time, u64)>,
    total: u64,
    /// So many of them have arrived or are lost by now.
    arrived: u64,
    /// The part of what the connections have sent that was lost.
    loss: f64,
    rate: f64,
    used: f64,
}

#[derive(Debug, Default)]
struct Counted {
    cross_traffic: u64,
    all: u64,
}

impl CrossTraffic {
    /// Takes in a count. The first one, and the first of a counter that began anew, is where counting begins.
    pub(super) fn count(&mut self, count: EgressCount) {
        let grown = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        match (self.last.replace(count), count) {
            (Some(EgressCount::CrossTraffic(before)), EgressCount::CrossTraffic(now)) => {
                let bytes = &mut self.counted.cross_traffic;
                *bytes = bytes.saturating_add(grown(now, before));
            }
            (Some(EgressCount::All(before)), EgressCount::All(now)) => {
                self.counted.all = self.counted.all.saturating_add(grown(now, before));
            }
            _ => {}
        }
    }

    /// The bytes of cross traffic that have been sent, have arrived and were lost since the last tick, beside
    /// those of the connections. The queue is theirs together, so that what was sent a round trip ago arrives
    /// with their acknowledgements; and the errors of the link do not look at what they hit.
    pub(super) fn advance(&mut self, now: Time, rated: [u64; 3], round_trip: Duration) -> [u64; 3] {
        let [rated_sent, delivered, lost] = rated;
        let acknowledged = (delivered + lost) as f64;
        if acknowledged > 0.0 {
            let part = acknowledged / (LOSS_OVER + acknowledged);
            self.loss += (lost as f64 / acknowledged - self.loss) * part;
        }
        let sent = self.take_counted(rated_sent);
        self.total = self.total.saturating_add(sent);
        self.sent.push_back((now, self.total));
        while self.sent.get(1).is_some_and(|second| now - second.0 >= REMEMBERED) {
            self.sent.pop_front();
        }
        let [burst, rate, used] =
            [BURST.0, MEASURED_OVER, USED_OVER].map(|span| self.rate_between([before(now, span), now]));
        (self.rate, self.used) = (rate.max(burst - BURST.1 / BURST.0.as_secs_f64()), used);
        let arrived = self.sent_until(before(now, round_trip)).max(self.arrived as f64) as u64;
        let arrives = arrived - self.arrived;
        self.arrived = arrived;
        let lost = (arrives as f64 * self.loss) as u64;
        [sent, arrives - lost, lost]
    }

    /// Its rate, bytes per second.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// What is left for the connections of a budget, where `full` is the capacity without a queue.
    pub(super) fn rest(&self, share: CrossTrafficShare, budget: f64, full: f64) -> f64 {
        if self.rate == 0.0 {
            return budget;
        }
        (budget - self.rate).max(self.kept(share.get() * full, full)).max(LEAST * full)
    }

    /// Whether queue and losses are its own: it uses more than its share, or fills the link alone.
    pub(super) fn overloads(&self, share: CrossTrafficShare, full: f64) -> bool {
        self.used > (share.get() + TOLERATED / 2.0) * full || self.rate > ALONE * full
    }

    /// Its mean rate between two moments, bytes per second.
    pub(super) fn rate_between(&self, [from, until]: [Time; 2]) -> f64 {
        (self.sent_until(until) - self.sent_until(from)).max(0.0) / (until - from).as_secs_f64().max(1e-9)
    }

    /// What the connections keep whatever queue there is.
    fn kept(&self, share: f64, full: f64) -> f64 {
        let excess = (self.used - share) / (TOLERATED * full).max(1.0);
        (full - share) * excess.clamp(0.0, 1.0)
    }

    fn take_counted(&mut self, rated_sent: u64) -> u64 {
        let Counted { cross_traffic, all } = std::mem::take(&mut self.counted);
        if !matches!(self.last, Some(EgressCount::All(_))) {
            return cross_traffic;
        }
        let owed = self.owed + rated_sent;
        self.owed = owed.saturating_sub(all).min(DIFFERENCE);
        cross_traffic.saturating_add(all.saturating_sub(owed))
    }

    /// The bytes that were sent until then, as evenly as possible between two ticks.
    fn sent_until(&self, then: Time) -> f64 {
        let after = self.sent.partition_point(|(at, _)| *at <= then);
        let later = self.sent.get(after).copied();
        let earlier = after.checked_sub(1).and_then(|index| self.sent.get(index)).copied();
        match (earlier, later) {
            (Some((from, least)), Some((to, most))) => {
                let part = (then - from).as_secs_f64() / (to - from).as_secs_f64();
                least as f64 + part * (most - least) as f64
            }
            (Some((_, all)), None) => all as f64,
            // What was counted first was sent since the count before, which nobody has seen.
            (None, first) => first.map_or(0.0, |(_, bytes)| bytes as f64),
        }
    }
}

fn before(now: Time, span: Duration) -> Time {
    Time::from_nanos(now.as_nanos().saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(20);
    const RTT: Duration = Duration::from_millis(600);

    fn share(part: f64) -> CrossTrafficShare {
        CrossTrafficShare::new(part).unwrap()
    }

    /// A second of cross traffic with so many bytes per tick, beside connections that send 5 kB in each.
    fn a_second(count: impl Fn(u64) -> EgressCount) -> CrossTraffic {
        let mut cross = CrossTraffic::default();
        for tick in 0..=50 {
            cross.count(count(tick));
            cross.advance(Time::ZERO + TICK * tick as u32, [5_000, 5_000, 0], RTT);
        }
        cross
    }

    #[test]
    fn a_counter_of_everything_and_one_of_cross_traffic_show_the_same() {
        for cross in [
            a_second(|tick| EgressCount::CrossTraffic(7 + 2_000 * tick)),
            a_second(|tick| EgressCount::All(7 + 7_000 * tick)),
        ] {
            assert!((cross.rate() - 100_000.0).abs() < 1.0, "{}", cross.rate());
        }
        // The headers of segments that leave together are missing.
        assert_eq!(a_second(|tick| EgressCount::All(4_900 * tick)).rate(), 0.0);
    }

    #[test]
    fn a_counter_that_begins_anew_adds_what_it_has_counted_since() {
        let cross =
            a_second(|tick| EgressCount::CrossTraffic(2_000 * if tick < 48 { tick } else { tick - 48 }));
        assert!((cross.rate() - 9.0 * 2_000.0 / 0.2).abs() < 1.0, "{}", cross.rate());
    }

    #[test]
    fn it_arrives_a_round_trip_later_with_the_losses_of_the_connections() {
        let mut cross = CrossTraffic::default();
        let mut sums = [0; 3];
        for tick in 0..5_000 {
            cross.count(EgressCount::CrossTraffic(2_000 * tick));
            let now = Time::ZERO + TICK * tick as u32;
            let bytes = cross.advance(now, [10_000, 9_000, 1_000], RTT);
            sums = std::array::from_fn(|index| sums[index] + bytes[index]);
        }
        assert_eq!(sums[0], 4_999 * 2_000);
        assert_eq!(sums[1] + sums[2], (4_999 - 30) * 2_000);
        let loss = sums[2] as f64 / sums[0] as f64;
        assert!((0.09..0.1).contains(&loss), "{loss}");
    }

    #[test]
    fn below_its_share_it_has_what_it_sends() {
        let cross = a_second(|tick| EgressCount::CrossTraffic(2_000 * tick));
        let rest = cross.rest(share(0.5), 1e6, 1e6);
        assert!((rest - 900_000.0).abs() < 1.0, "{rest}");
        // A queue is drained by the connections alone.
        let draining = cross.rest(share(0.5), 0.7e6, 1e6);
        assert!((draining - 600_000.0).abs() < 1.0, "{draining}");
    }

    #[test]
    fn above_its_share_the_connections_keep_theirs_despite_a_queue() {
        let cross = a_second(|tick| EgressCount::CrossTraffic(42_000 * tick));
        for (part, kept) in [(0.0, 1e6), (0.5, 0.5e6), (0.8, 0.2e6), (1.0, 0.02e6)] {
            let rest = cross.rest(share(part), 0.1e6, 1e6);
            assert!((rest - kept).abs() < 1.0, "{rest} at {part}");
        }
    }

    #[test]
    fn without_cross_traffic_the_connections_have_everything() {
        assert_eq!(CrossTraffic::default().rest(share(1.0), 1e6, 1e6), 1e6);
    }
}
