//! Sharing out a satellite link among the connections of one gateway.
//!
//! The gateway is the only sender onto the forward link. It knows its connections and what the link carries, so that it need not
//! probe for a rate as TCP does, one connection against the others: it can give each its share. A loss then says that a segment
//! is missing, and not that the rate was too high; whether it was, the queue says.
//!
//! ```text
//! reports of all senders ──► the last round trip ──► Capacity: what the link carries ──► max–min shares ──► rates
//!   sent, arrived, lost,       sent, arrived, lost     less where a queue stands,          by weight; what one
//!   round trip, in flight      over all; the queue     more where none does                does not use is others'
//! ```
//!
//! A [`RateAllocator`] is told in short intervals what the senders report and answers with a rate for each. It has no clock and no
//! socket: the daemon feeds it from an eBPF congestion control, the simulator from its endpoints.
//!
//! All rates are in bytes per second on the wire, that is with the headers of IP and TCP.

mod capacity;
mod max_min;
mod round;

use std::collections::HashMap;
use std::time::Duration;

use bentpipe_units::{Rate, Time};

use capacity::{Capacity, Observation};
use max_min::Claim;
use round::Round;

/// A connection that uses less of its rate than this is limited elsewhere: by its application, by its receiver.
const USED: f64 = 0.88;
/// What is kept for one that is: a little more than it uses, so that it may grow.
const KEPT: f64 = 1.1;
/// How much faster it may become before the next look at it: so many times what it uses, and this part of a full share.
const MAY_GROW: (f64, f64) = (2.0, 0.125);
/// What a connection uses is measured over so many full segments at its rate, and no less than this time and a round trip.
const USE_MEASURED_OVER: (f64, Duration) = (16.0 * 1500.0, Duration::from_millis(100));
/// A round trip that was measured longer ago than one of now, and this, says nothing of now.
const STALE: Duration = Duration::from_millis(200);
/// Acknowledgements of single segments are delayed by so much as a rule, a little more on a busy host, and are single where two
/// segments take longer than that: it is no queue.
const DELAYED_ACK: Duration = Duration::from_millis(45);
const SPARSE: f64 = 2.0 * 1500.0 / 0.04;
/// Who has been silent for so long, and for two round trips, begins anew.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// So many round trips without any acknowledgement are an outage. The rates are kept for when it ends.
const OUTAGE: f64 = 1.5;
/// So many round trips after an outage nothing is decided. What was lost in it is found out late: a sender that cannot know whether its
/// timeout was spurious sends new data for one round trip (F-RTO, RFC 5682) and repeats what was lost in the next, and a decision looks
/// one round trip back; one more for what is late. A rate that is lowered for these losses takes many round trips to grow again.
const AFTERMATH: u32 = 4;

/// What is known of the link beforehand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateAllocatorConfig {
    /// What the link carries, with the headers of IP and TCP; `None` if it must be found out.
    pub capacity: Option<Rate>,
    /// The round-trip time of the empty link, until it is measured.
    pub rtt: Duration,
}

/// What a sender says of itself. Bytes are on the wire, and counted from the connection's beginning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Which connection it is.
    pub id: u64,
    /// Its share in proportion to others, 1 and up.
    pub weight: u32,
    /// When it last heard from its receiver, and so when the following was so.
    pub at: Time,
    /// Bytes sent, retransmissions included.
    pub sent: u64,
    /// Bytes that have arrived.
    pub delivered: u64,
    /// Bytes that were lost.
    pub lost: u64,
    /// Whether something is on its way.
    pub in_flight: bool,
    /// The shortest round trip of the last moment.
    pub rtt: Option<Duration>,
    /// The shortest round trip that it knows.
    pub min_rtt: Option<Duration>,
    /// By how much the way to the receiver alone has become longer than the shortest that is known, as the receiver's timestamps tell
    /// (RFC 7323 §3, RFC 6817 §3.4.1); nothing where there are none. The rest of what a round trip has become longer
    /// by, acknowledgements wait on their way back.
    pub forward: Option<Duration>,
    /// Its window, not its rate, holds it back.
    pub window_limited: bool,
    /// There is something to send, and its receiver has room for it: it would have more. One that waits for acknowledgements only
    /// claims no more than it uses on the average.
    pub hungry: bool,
}

/// What there is for connections that begin before the next [`tick`](RateAllocator::tick): one of weight w has `rate`·w/(`weight` + w),
/// the next one finds its weight added.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct InitialRate {
    /// Bytes per second.
    pub rate: f64,
    /// The weights of all connections that would have more.
    pub weight: u32,
}

/// What the sharer knows of the link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkEstimate {
    /// What the link is thought to carry, bytes per second.
    pub capacity: f64,
    /// The round-trip time of the empty link.
    pub rtt: Duration,
    /// How long a packet waits in the queue.
    pub queue: Duration,
    /// Connections with something on its way.
    pub active: usize,
    /// Nobody hears anything.
    pub outage: bool,
}

/// Shares out one link.
#[derive(Debug)]
pub struct RateAllocator {
    config: RateAllocatorConfig,
    capacity: Capacity,
    round: Round,
    flows: HashMap<u64, Flow>,
    last_tick: Option<Time>,
    /// When something last arrived, or nothing was on its way.
    last_progress: Time,
    /// How long acknowledgements wait on their way back.
    way_back: Duration,
    /// By how much that has changed since the beginning, seconds: `way_back` is what it is beyond the shortest round trip, and
    /// changes with that too.
    returning: f64,
    /// The path has become longer by this, as far as round trips that do not shrink with the queue tell.
    grown: Duration,
    /// Since when a queue stands.
    queued_since: Option<Time>,
    newcomers: InitialRate,
    standing: LinkEstimate,
    ticks: u64,
    claims: Vec<Claim>,
}

/// A connection as it was at the last tick.
#[derive(Debug, Clone, Copy)]
struct Flow {
    sent: u64,
    delivered: u64,
    lost: u64,
    rate: f64,
    /// The rate that it has when it is active.
    full: f64,
    /// Bytes per second that it uses, where it is limited elsewhere.
    limited_to: Option<f64>,
    /// Since when its use is measured, what it had sent then, and what it might have sent since.
    since: Time,
    sent_then: u64,
    might: f64,
    /// Something is on its way, or has been sent since the last tick.
    active: bool,
    last_active: Time,
    seen: u64,
    /// The round trip without the queue of the way to the receiver, when it was last measured.
    returning: Option<Duration>,
}

impl RateAllocator {
    /// A link at rest.
    pub fn new(config: RateAllocatorConfig) -> Self {
        let capacity = Capacity::new(config.capacity, config.rtt);
        let standing = LinkEstimate {
            capacity: capacity.bytes_per_second(),
            rtt: config.rtt,
            queue: Duration::ZERO,
            active: 0,
            outage: false,
        };
        let newcomers = InitialRate { rate: capacity.budget(Duration::ZERO, config.rtt), weight: 0 };
        Self {
            config,
            capacity,
            round: Round::default(),
            flows: HashMap::new(),
            last_tick: None,
            last_progress: Time::ZERO,
            way_back: Duration::ZERO,
            returning: 0.0,
            grown: Duration::ZERO,
            queued_since: None,
            newcomers,
            standing,
            ticks: 0,
            claims: Vec::new(),
        }
    }

    /// Takes the reports of all connections and gives each its rate; zero to those that are silent, which begin anew as
    /// [`newcomers`](Self::newcomers). To be called every few tens of milliseconds; `now` never goes back.
    pub fn tick(&mut self, now: Time, reports: &[Report], mut give: impl FnMut(u64, f64)) {
        let elapsed = self.last_tick.map_or(Duration::ZERO, |last| now - last);
        self.last_tick = Some(now);
        self.ticks += 1;
        let progress = self.take(now, reports);
        self.standing.active = self.flows.values().filter(|flow| flow.active).count();
        if progress || self.standing.active == 0 {
            self.last_progress = now;
        }
        let silent = (now - self.last_progress).as_secs_f64();
        let outage = silent > OUTAGE * self.round_trip().as_secs_f64();
        if outage || self.standing.outage || self.standing.active == 0 {
            // What was measured before says nothing about what comes after.
            let round_trips = if outage || self.standing.outage { AFTERMATH } else { 1 };
            self.restart_measurements(now, round_trips, reports);
        }
        self.standing.outage = outage;
        if !outage {
            self.observe(now, reports);
            self.measure_use(now, elapsed, reports);
        }
        self.share(reports, &mut give);
    }

    /// What connections that begin before the next tick may have.
    pub fn newcomers(&self) -> InitialRate {
        self.newcomers
    }

    /// What is known of the link now.
    pub fn standing(&self) -> LinkEstimate {
        self.standing
    }

    /// Adds what is new to the sums. Says whether anything has arrived.
    fn take(&mut self, now: Time, reports: &[Report]) -> bool {
        let (mut sent, mut delivered, mut lost) = (0, 0, 0);
        for report in reports {
            let fresh = Flow {
                sent: report.sent,
                delivered: report.delivered,
                lost: report.lost,
                rate: 0.0,
                full: 0.0,
                last_active: now,
                limited_to: None,
                since: report.at,
                sent_then: report.sent,
                might: 0.0,
                active: report.in_flight,
                seen: self.ticks,
                returning: None,
            };
            let flow = self.flows.entry(report.id).or_insert(fresh);
            // Another connection under the same number.
            if report.sent < flow.sent || report.delivered < flow.delivered {
                *flow = fresh;
            }
            flow.active = report.in_flight || report.sent > flow.sent;
            sent += report.sent - flow.sent;
            delivered += report.delivered - flow.delivered;
            lost += report.lost.saturating_sub(flow.lost);
            (flow.sent, flow.delivered, flow.lost) = (report.sent, report.delivered, report.lost);
            flow.seen = self.ticks;
        }
        let ticks = self.ticks;
        self.flows.retain(|_, flow| flow.seen == ticks);
        self.round.add(now, [sent, delivered, lost], self.returning, self.standing.rtt);
        delivered > 0
    }

    /// With what waits in queues, of both directions.
    fn round_trip(&self) -> Duration {
        self.standing.rtt + self.standing.queue + self.way_back
    }

    /// Nothing is decided for so many round trips.
    fn restart_measurements(&mut self, now: Time, round_trips: u32, reports: &[Report]) {
        self.round.clear();
        self.capacity.hold(now + round_trips * self.round_trip());
        for report in reports {
            if let Some(flow) = self.flows.get_mut(&report.id) {
                (flow.since, flow.sent_then, flow.might) = (report.at, report.sent, 0.0);
            }
        }
    }

    /// The round trip and what waits in the queues of both ways, as those see it who have heard something in the last round trip.
    fn measure_queues(&mut self, now: Time, reports: &[Report]) {
        let recent = self.round_trip() + STALE;
        let (mut sum, mut above, mut shortest, mut back, mut later) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for report in reports.iter().filter(|report| report.in_flight && report.at + recent >= now) {
            if let (Some(rtt), Some(least)) = (report.rtt, report.min_rtt) {
                let Some(flow) = self.flows.get_mut(&report.id) else { continue };
                let weight = flow.rate.max(1.0);
                let delayed = if weight < SPARSE { DELAYED_ACK } else { Duration::ZERO };
                let beyond = rtt.saturating_sub(least);
                let forward = report.forward.unwrap_or(beyond).min(beyond);
                sum += weight;
                above += weight * forward.saturating_sub(delayed).as_secs_f64();
                back += weight * (beyond - forward).as_secs_f64();
                let returning = rtt.saturating_sub(forward);
                let before = flow.returning.replace(returning).unwrap_or(returning);
                later += weight * (returning.as_secs_f64() - before.as_secs_f64());
                shortest += weight * least.as_secs_f64();
            }
        }
        if sum > 0.0 {
            let above = Duration::from_secs_f64(above / sum);
            self.way_back = Duration::from_secs_f64(back / sum);
            self.returning += later / sum;
            self.grown = self.grown.min(above);
            self.standing.rtt = Duration::from_secs_f64(shortest / sum) + self.grown;
            self.standing.queue = above - self.grown;
        }
    }

    /// Round trip, queue and capacity of the link, from what all have seen in the last round trip.
    fn observe(&mut self, now: Time, reports: &[Report]) {
        self.measure_queues(now, reports);
        let wanted = self.claims.iter().any(Claim::is_greedy);
        let LinkEstimate { rtt, queue, .. } = self.standing;
        self.queued_since = if queue > capacity::NOISE { self.queued_since.or(Some(now)) } else { None };
        let carried = self.queued_since.and_then(|since| self.round.carried_since(since, rtt));
        let observation = Observation { now, rates: self.round.rates(rtt), carried, queue, rtt, wanted };
        if self.capacity.observe(&observation) {
            // It should be gone by now: the path has become longer.
            self.grown += self.standing.queue;
            self.standing.rtt += self.standing.queue;
            self.standing.queue = Duration::ZERO;
        }
        self.standing.capacity = self.capacity.bytes_per_second();
    }

    /// Who uses its rate, and who is limited elsewhere.
    fn measure_use(&mut self, now: Time, elapsed: Duration, reports: &[Report]) {
        let rtt = self.standing.rtt;
        for report in reports {
            let Some(flow) = self.flows.get_mut(&report.id) else { continue };
            if flow.active {
                flow.last_active = now;
            } else if now - flow.last_active > FORGOTTEN.max(2 * rtt) {
                (flow.limited_to, flow.since, flow.sent_then, flow.might) = (None, now, report.sent, 0.0);
                continue;
            }
            flow.might += flow.full * elapsed.as_secs_f64();
            // Pauses count: a slow reader takes its bytes in bursts. Before its first word nobody knows what it sends.
            let until = if flow.active { report.at } else { now };
            let span = until - flow.since;
            if flow.might < USE_MEASURED_OVER.0 || span < USE_MEASURED_OVER.1.max(rtt) {
                continue;
            }
            let used = (report.sent - flow.sent_then) as f64 / span.as_secs_f64();
            let might = flow.might / (now - flow.since).as_secs_f64();
            flow.limited_to = (used < USED * might && !report.window_limited).then_some(used);
            // What it might have sent between its last word and now belongs to the next measurement.
            let rest = flow.full * (now - until).as_secs_f64();
            (flow.since, flow.sent_then, flow.might) = (until, report.sent, rest);
        }
    }

    fn share(&mut self, reports: &[Report], give: &mut impl FnMut(u64, f64)) {
        let budget = self.capacity.budget(self.standing.queue, self.standing.rtt);
        self.claims.clear();
        self.claims.extend(reports.iter().filter_map(|report| {
            let flow = self.flows.get(&report.id).filter(|flow| flow.active)?;
            let content = if report.hungry { f64::INFINITY } else { 0.0 };
            let most = flow.limited_to.map_or(content, |used| KEPT * used);
            Some(Claim { weight: report.weight.max(1), most })
        }));
        let level = max_min::level(budget, &mut self.claims.clone());
        let kept = self.claims.iter().filter(|claim| claim.most < level * f64::from(claim.weight));
        let kept = kept.fold((0.0, 0), |(bytes, weight), claim| (bytes + claim.most, weight + claim.weight));
        let weight = self.claims.iter().map(|claim| claim.weight).sum::<u32>() - kept.1;
        self.newcomers = InitialRate { rate: budget - kept.0, weight };
        for report in reports {
            let Some(flow) = self.flows.get_mut(&report.id) else { continue };
            // Who claims nothing now may have what a newcomer has.
            let newcomer = self.newcomers.rate / f64::from(weight + report.weight.max(1));
            let full = if report.hungry { level } else { level.min(newcomer) };
            let full = (full * f64::from(report.weight.max(1))).min(budget);
            flow.full = match flow.limited_to {
                None => full,
                Some(used) => full.min(MAY_GROW.0 * used + MAY_GROW.1 * full),
            };
            flow.rate = if flow.active { flow.full } else { 0.0 };
            give(report.id, flow.rate);
        }
    }

    /// What is known beforehand has changed; what has been measured is kept.
    pub fn reconfigure(&mut self, config: RateAllocatorConfig) {
        if config.capacity != self.config.capacity {
            self.capacity = Capacity::new(config.capacity, self.standing.rtt);
        }
        self.config = config;
    }
}

#[cfg(test)]
mod tests;
