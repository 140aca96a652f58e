//! Active queue management of cross traffic without a queue: what the egress of the link needs to tell it
//! that it sends too much, before its packets wait.
//!
//! The connections with rates make no queue; what leaves beside them does, and takes a queue or losses for
//! its signal. So the egress keeps a *virtual* queue of it, a number that drains at the rate at which it may
//! leave, and marks or drops by the wait in it (`crates/tcp/core/aqm_core.h`). This module decides the rate,
//! and whose packets: of the flows that have more than their fair part, those alone. It is asked after each
//! decision of the allocator.
//!
//! ```text
//!  egress                                               allocator, every 20 ms
//!  bytes of each flow (by a hash) ────────────────────► rates of flows ─► max–min level ─► flows above it
//!  virtual queue ◄─ rate, whose packets, until when ─── its share, or what the connections leave
//!    └─► CE instead of ECT, or a drop
//! ```
//!
//! A stream that is below the level loses nothing, whatever the others do. Flows that share a bucket of the
//! hash count as one.

use std::time::Duration;

use bentpipe_units::Time;

use super::cross_traffic::CrossTrafficShare;
use super::max_min::{self, Claim};

/// Flows are told apart by a hash of so many values, as RFC 8290 §5.1 has it by default.
pub const FLOW_BUCKETS: usize = 1024;

/// However large its share, cross traffic is signalled above the rest of this part of the link: its senders
/// send bursts within their round trips, which the connections make room for as long as they have something
/// to give.
const ELASTIC: f64 = 0.12;
/// A flow above the level by less than this factor may be so by chance.
const ABOVE: f64 = 1.02;
/// The rate of a flow is averaged over half of a round trip, in which senders with a window send their
/// bursts, and over at least this time.
const AVERAGED_OVER: Duration = Duration::from_millis(100);
/// CoDel's interval is a round trip, or this if that is longer (RFC 8289 §4.3: the usual one).
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Its target, as a part of the interval (RFC 8289 §4.3: 5 to 10%).
const TARGET: u32 = 20;

/// What becomes of cross traffic that sends more than it may, before a queue forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CrossTrafficAqm {
    /// Nothing.
    Off,
    /// Packets that are ECN-capable are marked: their senders slow down and lose nothing (RFC 3168).
    #[default]
    Mark,
    /// So they are, and packets that are not are dropped.
    Drop,
}

/// At which rate cross traffic may leave, and whom to tell if it leaves faster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrossTrafficLimit {
    /// The rate at which the virtual queue drains, bytes per second.
    pub rate: f64,
    /// The wait in the virtual queue that is no sign of too much.
    pub target: Duration,
    /// How long the wait may be above it before the first mark: a round trip.
    pub interval: Duration,
    /// Whether packets that cannot be marked may be dropped.
    pub may_drop: bool,
    /// A bit for each bucket, whose flow may be marked; the first is the lowest bit of the first word.
    pub judged: [u64; FLOW_BUCKETS / 64],
}

/// What the egress has done by a limit, packets since it began to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signalled {
    /// Packets that were marked CE.
    pub marked: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

/// The rates of the flows in cross traffic.
#[derive(Debug, Default)]
pub(super) struct FlowRates {
    at: Option<Time>,
    /// As they were counted last, empty at first.
    bytes: Vec<u64>,
    /// Bytes per second.
    rates: Vec<f64>,
    /// Whether any of so many buckets one after the other has a rate: most are of no flow, and are passed
    /// over.
    has_rates: Vec<bool>,
    claims: Vec<Claim>,
}

/// Buckets that are looked at together.
const GROUP: usize = 64;

impl CrossTrafficLimit {
    /// Whether packets of this bucket may be marked.
    pub fn judges(&self, bucket: usize) -> bool {
        self.judged[bucket / 64 % self.judged.len()] >> (bucket % 64) & 1 == 1
    }
}

/// The rate at which cross traffic may leave a link that carries `full`, beside connections that can use
/// `needed`.
pub(super) fn allowed(share: CrossTrafficShare, full: f64, needed: f64) -> f64 {
    (share.get() * full).max(full - needed).min((1.0 - ELASTIC) * full)
}

/// CoDel's target and interval for flows of this round trip.
pub(super) fn times(rtt: Duration) -> [Duration; 2] {
    let interval = rtt.max(SHORTEST_INTERVAL);
    [interval / TARGET, interval]
}

impl FlowRates {
    /// Takes in the bytes that have left of each bucket, by counters that only grow unless they begin anew.
    pub(super) fn count(&mut self, now: Time, bytes: &[u64], round_trip: Duration) {
        let elapsed = self.at.map(|at| (now - at).as_secs_f64());
        let is_first = self.bytes.len() != bytes.len();
        if let Some(elapsed) = elapsed.filter(|&elapsed| elapsed > 0.0 && !is_first) {
            let new = 1.0 - libm::exp(-elapsed / (round_trip / 2).max(AVERAGED_OVER).as_secs_f64());
            let groups = self.rates.chunks_mut(GROUP).zip(&mut self.has_rates);
            let counts = bytes.chunks(GROUP).zip(self.bytes.chunks(GROUP));
            for ((rates, has_rates), (now, before)) in groups.zip(counts) {
                if !*has_rates && now == before {
                    continue;
                }
                *has_rates = true;
                for ((rate, &now), &before) in rates.iter_mut().zip(now).zip(before) {
                    let grown = now.checked_sub(before).unwrap_or(now);
                    *rate += (grown as f64 / elapsed - *rate) * new;
                }
            }
        }
        if is_first {
            self.rates = vec![0.0; bytes.len()];
            self.has_rates = vec![false; bytes.len().div_ceil(GROUP)];
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.at = Some(now);
    }

    /// The buckets with more than their fair part of what may leave, by max–min fairness; none if less is
    /// sent than may leave.
    pub(super) fn above_fair_part(&mut self, allowed: f64) -> [u64; FLOW_BUCKETS / 64] {
        let mut judged = [0; FLOW_BUCKETS / 64];
        self.claims.clear();
        let sending = self.rates.iter().filter(|&&rate| rate > 1.0);
        self.claims.extend(sending.map(|&rate| Claim { weight: 1, most: rate }));
        let sent: f64 = self.claims.iter().map(|claim| claim.most).sum();
        if sent <= allowed {
            return judged;
        }
        let level = max_min::level(allowed, &mut self.claims);
        for (bucket, _) in self.rates.iter().enumerate().filter(|&(_, &rate)| rate > ABOVE * level) {
            judged[bucket / 64] |= 1 << (bucket % 64);
        }
        judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(20);
    const RTT: Duration = Duration::from_millis(600);

    /// What flows at these rates (bytes per second), in the first buckets, are judged to be after five
    /// seconds.
    fn judged(rates: &[f64], allowed: f64) -> Vec<usize> {
        let mut flows = FlowRates::default();
        for tick in 0..=250 {
            let mut bytes = vec![0; FLOW_BUCKETS];
            for (bytes, rate) in bytes.iter_mut().zip(rates) {
                *bytes = (rate * (TICK * tick).as_secs_f64()) as u64;
            }
            flows.count(Time::ZERO + TICK * tick, &bytes, RTT);
        }
        let judged = flows.above_fair_part(allowed);
        (0..FLOW_BUCKETS).filter(|bucket| judged[bucket / 64] >> (bucket % 64) & 1 == 1).collect()
    }

    #[test]
    fn a_stream_below_its_fair_part_is_not_judged_beside_greedy_flows() {
        assert_eq!(judged(&[250e3, 600e3, 600e3, 600e3, 600e3], 1.25e6), [1, 2, 3, 4]);
        assert_eq!(judged(&[250e3, 240e3, 290e3, 255e3, 270e3], 1.25e6), [2, 4]);
        // Alone it may have everything, and more than that is too much.
        assert_eq!(judged(&[2e6], 1.25e6), [0]);
    }

    #[test]
    fn of_flows_that_are_alike_all_are_judged_if_they_send_too_much() {
        assert_eq!(judged(&[300e3; 5], 1.25e6), [0, 1, 2, 3, 4]);
        assert_eq!(judged(&[240e3; 5], 1.25e6), [0; 0]);
        assert_eq!(judged(&[], 1.25e6), [0; 0]);
    }

    #[test]
    fn a_counter_that_begins_anew_adds_what_it_has_counted_since() {
        let mut flows = FlowRates::default();
        for (tick, bytes) in [(0, 5_000_000), (1, 5_002_000), (2, 2_000)] {
            flows.count(Time::ZERO + TICK * tick, &[bytes], RTT);
        }
        assert!((0.0..=100e3).contains(&flows.rates[0]), "{}", flows.rates[0]);
    }

    #[test]
    fn it_may_leave_at_its_share_and_at_what_the_connections_cannot_use() {
        let share = |part| CrossTrafficShare::new(part).unwrap();
        assert_eq!(allowed(share(0.5), 1e6, f64::INFINITY), 0.5e6);
        assert_eq!(allowed(share(0.5), 1e6, 0.3e6), 0.7e6);
        assert_eq!(allowed(share(1.0), 1e6, f64::INFINITY), (1.0 - ELASTIC) * 1e6);
    }
}
