//! Trains: for a moment the senders together send faster than the estimate of the capacity, and a round trip
//! later the arrivals show how much of it the link could carry.
//!
//! ```text
//! rate  ▁▁▁▁█▁▂▁▁▁   the estimate, the train, less than the estimate until the train is paid back
//! arrivals  ▁▁▁▁▃▃▁▁▁   a link that carries no more spreads it; one that does lets it through
//! ```
//!
//! A train that the link cannot carry queues for its own duration at most, so it can be repeated each round
//! trip, where a higher rate would make a queue as long as the round trip before it is noticed. Packet trains
//! are measured as in Jain and Routhier, "Packet trains" (1986), and Dovrolis et al., "Packet-dispersion
//! techniques and a capacity-estimation methodology" (2004).

use std::time::Duration;

use bentpipe_units::Time;

use super::round::Round;

/// The time that a train takes, and its least bytes beyond the estimate: arrivals are counted in packets, of
/// which two share an acknowledgement.
const LENGTH: Duration = Duration::from_millis(20);
const LEAST: f64 = 8.0 * PACKET;
const PACKET: f64 = 1500.0;
/// The longest train.
const LONGEST: Duration = Duration::from_millis(60);
/// Trains are at least this far apart, and a round trip; while the capacity is searched for, there is no
/// queue that must be paid back.
const APART: Duration = Duration::from_millis(300);
const APART_IN_SEARCH: Duration = Duration::from_millis(50);
/// After so many trains that have shown nothing they are twice as far apart.
const IN_VAIN: u32 = 4;
/// Acknowledgements come later than the round trip by this, or are sent later because their segments were.
/// While the capacity is searched for, the time of so many packets must do, but not less than the last of
/// these.
const LATE: Duration = Duration::from_millis(40);
const LATE_IN_SEARCH: (f64, Duration) = (4.0 * PACKET, Duration::from_millis(10));
/// Arrivals are counted this often while they are expected.
const MEASURING: Duration = Duration::from_millis(5);
/// They are counted over this part of a train.
const SPAN: f64 = 0.75;
/// So many bytes more or less may arrive in a time because acknowledgements are of two segments.
const ERROR: f64 = 2.5 * PACKET;

/// The trains of one link.
#[derive(Debug, Default)]
pub(super) struct Trains {
    under_way: Option<Train>,
    /// The last one that has been sent.
    last: Option<Train>,
    next: Time,
    /// So many have shown nothing since one that did.
    in_vain: u32,
}

#[derive(Debug, Clone, Copy)]
struct Train {
    /// The rate before and during it, bytes per second.
    usual: f64,
    rate: f64,
    begun: Time,
    length: Duration,
    /// How long after the round trip its last acknowledgement may come.
    late: Duration,
    ended: Option<Time>,
}

/// What a train has shown, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Carried {
    /// The estimate, and the rate of the train.
    pub(super) usual: f64,
    pub(super) train: f64,
    /// When it began and ended.
    pub(super) sent: [Time; 2],
    /// The fastest arrivals, at least and at most.
    pub(super) arrived: [f64; 2],
}

impl Trains {
    /// Whether another train may begin.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.under_way.is_none() && now >= self.next
    }

    /// Whether the last one ended so long ago.
    pub(super) fn is_pause(&self, now: Time, pause: Duration) -> bool {
        self.last.and_then(|train| train.ended).is_none_or(|ended| now - ended >= pause)
    }

    /// Begins a train: the rates are those before and during it.
    pub(super) fn begin(&mut self, now: Time, rates: [f64; 2], rtt: Duration, searching: bool) {
        let usual = rates[0];
        let rate = rates[1].max(usual + LEAST / LONGEST.as_secs_f64());
        let least = Duration::try_from_secs_f64(LEAST / (rate - usual)).unwrap_or(LONGEST);
        let length = least.clamp(LENGTH, LONGEST);
        let packets = Duration::try_from_secs_f64(LATE_IN_SEARCH.0 / usual).unwrap_or(LATE);
        let late = if searching { packets.clamp(LATE_IN_SEARCH.1, LATE) } else { LATE };
        self.under_way = Some(Train { usual, rate, begun: now, length, late, ended: None });
        let apart = rtt.max(if searching { APART_IN_SEARCH } else { APART });
        self.next = now + if self.in_vain < IN_VAIN { apart } else { 2 * apart };
    }

    /// Whether the last one has shown that the link carries more.
    pub(super) fn judged(&mut self, more: bool) {
        self.in_vain = if more { 0 } else { self.in_vain.saturating_add(1) };
    }

    /// Forgets a train under way: what arrives does not show what the link carries.
    pub(super) fn cancel(&mut self) {
        self.under_way = None;
    }

    /// The sum of all rates, which is `usual` but for trains.
    pub(super) fn rate(&mut self, now: Time, usual: f64) -> f64 {
        let Some(train) = self.under_way.as_mut().filter(|train| train.ended.is_none()) else { return usual };
        if now - train.begun < train.length {
            return train.rate.max(usual);
        }
        train.ended = Some(now);
        self.last = self.under_way;
        usual
    }

    /// The result of a train, when all of it has had the time to arrive.
    pub(super) fn result(
        &mut self,
        now: Time,
        round_trip: Duration,
        round: &Round,
        active: usize,
    ) -> Option<Carried> {
        let train = self.under_way?;
        let (ended, from) = (train.ended?, train.begun + round_trip);
        if now < ended + round_trip + train.late {
            return None;
        }
        self.under_way = None;
        // The next packet of each sender has been scheduled at the rate before.
        let scheduled = 2.0 * PACKET * active as f64 / train.usual;
        self.next = self.next.max(now + Duration::try_from_secs_f64(scheduled).unwrap_or(APART).min(APART));
        let span = (ended - train.begun).mul_f64(SPAN);
        let from = Time::from_nanos(from.as_nanos().saturating_sub(MEASURING.as_nanos() as u64));
        let arrived = round.fastest_since(from, span, ERROR)?;
        Some(Carried { usual: train.usual, train: train.rate, sent: [train.begun, ended], arrived })
    }

    /// Whether this queue is that of a train.
    pub(super) fn explains(&self, queue: Duration, now: Time, round_trip: Duration) -> bool {
        self.last.is_some_and(|train| {
            let until = train.ended.unwrap_or(now) + round_trip + 3 * train.length;
            now < until && queue < 2 * train.length.mul_f64(train.rate / train.usual - 1.0)
        })
    }

    /// How soon rates and arrivals must be looked at again; `None` if there is no hurry.
    pub(super) fn interval(&self, now: Time, round_trip: Duration) -> Option<Duration> {
        let train = self.under_way?;
        let expected = train.begun + round_trip;
        let arriving = now + 4 * MEASURING >= expected;
        (train.ended.is_none() || arriving).then_some(MEASURING)
    }
}
