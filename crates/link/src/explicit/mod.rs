//! Allocation of a satellite link's rate to the connections of one gateway.
//!
//! The gateway is the only sender onto the forward link. It knows its connections and the capacity of the
//! link, so that it need not probe for a rate as TCP does, one connection against the others: it gives each
//! connection its share. A loss then means that a segment is missing, and not that the rate was too high; the
//! queue shows whether it was.
//!
//! ```text
//! reports of all senders ──► the last round trip ──► estimate of the capacity ──► max–min shares ──► rates
//!   sent, arrived, lost,       sent, arrived, lost     lower with a standing        by weight; the rest
//!   round trip, in flight      over all; the queue     queue, higher without        goes to the others
//! ```
//!
//! A [`RateAllocator`] takes the reports of all senders in short intervals and answers with a rate for each.
//! It has no clock and no socket: the daemon feeds it from an eBPF congestion control, the simulator from its
//! endpoints.
//!
//! All rates are in bytes per second on the wire, that is with the headers of IP and TCP.

mod aqm;
mod capacity;
mod cross_traffic;
mod id_map;
mod max_min;
mod return_queue;
mod round;
mod train;

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use aqm::FlowRates;
pub use aqm::{CrossTrafficAqm, CrossTrafficLimit, FLOW_BUCKETS, Signalled};
use capacity::{Capacity, Observation};
use cross_traffic::CrossTraffic;
pub use id_map::{IdHasher, IdMap};
use max_min::Claim;
use return_queue::ReturnQueue;
use round::Round;
use train::{Carried, Trains};

pub use cross_traffic::{CrossTrafficShare, EgressCount};

/// A connection that uses less than this part of its rate is limited elsewhere: by its application or by its
/// receiver.
const USED: f64 = 0.88;
/// The claim of such a connection: a little more than it uses, so that it may grow.
const LIMITED_CLAIM: f64 = 1.1;
/// How much faster it may become before the next measurement, if others claim the rest: this multiple of its
/// use, and this part of a full share.
const MAY_GROW: (f64, f64) = (2.0, 0.125);
/// The use of a connection is measured over this many bytes at its rate, and over at least this time and a
/// round trip.
const USE_MEASURED_OVER: (f64, Duration) = (16.0 * 1500.0, Duration::from_millis(100));
/// A round-trip time that is older than one round trip and this does not describe the present.
const STALE: Duration = Duration::from_millis(200);
/// Senders report the shortest round trip of this time, so that it is from before.
const RECENT: Duration = Duration::from_millis(50);
/// The first packets of all are a train if this is at most how long ago they were sent: otherwise their
/// arrivals may have been missed.
const FIRST_SEEN: Duration = Duration::from_millis(30);
/// A sender reports with each acknowledgement; what it has sent in a longer pause was sent all along.
const SEEN_LATE: Duration = Duration::from_millis(30);
/// Receivers delay acknowledgements of single segments by about this time. Where two segments take longer
/// than that, every acknowledgement is of a single segment, and the delay is not taken for a queue.
const DELAYED_ACK: Duration = Duration::from_millis(45);
const SPARSE: f64 = 2.0 * 1500.0 / 0.04;
/// While a queue is drained, the next packet of a sender comes within this time, or within twice the time
/// that it takes at its full share.
const PLANNED: (f64, Duration) = (1500.0, Duration::from_millis(100));
/// A connection that has been silent for this long, and for two round trips, begins anew.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// After so long without a connection, the measured capacity is a memory: what it was, and not what it is.
const IDLE: Duration = Duration::from_secs(10);
/// This many round trips without any acknowledgement are an outage. The rates are kept until it ends.
const OUTAGE: f64 = 1.5;
/// For this many round trips after an outage nothing is decided. Its losses are detected late: a sender that
/// cannot know whether its timeout was spurious sends new data for one round trip (F-RTO, RFC 5682) and
/// retransmits in the next, and a decision looks one round trip back; one more round trip is a margin. A rate
/// lowered for these losses would take many round trips to grow again.
const AFTERMATH: u32 = 4;

/// A train of which this is cross traffic, in multiples of the connections' part, says little.
const MOST_CROSS_TRAFFIC: f64 = 20.0;
/// With this part of the capacity, cross traffic makes a difference to what arrives, which is then measured
/// over at least this time.
const SHARED: f64 = 0.02;
const SHARED_SPAN: Duration = Duration::from_millis(300);
/// Beside this part of the capacity trains are so far apart, and what they show of more than the estimate is
/// within the error of their few packets: where bursts of others end, theirs arrive faster. Small steps let
/// the estimate grow.
const BLURRED: f64 = 0.25;
const TRAINS_APART: Duration = Duration::from_millis(2400);
/// While nothing is known of the link, the connections have this part of the estimate at least.
const UNKNOWN_REST: f64 = 0.1;

/// The configured properties of the link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateAllocatorConfig {
    /// The capacity of the link, with the headers of IP and TCP; `None` if it must be measured.
    pub capacity: Option<Rate>,
    /// The round-trip time of the empty link, until it is measured.
    pub rtt: Duration,
    /// The part of the link that cross traffic may take under load.
    pub cross_traffic: CrossTrafficShare,
    /// What becomes of cross traffic that sends more.
    pub aqm: CrossTrafficAqm,
}

impl RateAllocatorConfig {
    /// With the defaults for cross traffic.
    pub fn new(capacity: Option<Rate>, rtt: Duration) -> Self {
        let (cross_traffic, aqm) = (CrossTrafficShare::default(), CrossTrafficAqm::default());
        Self { capacity, rtt, cross_traffic, aqm }
    }
}

/// How old a capacity is that was measured before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// It was measured until now, by another allocator.
    Present,
    /// It may have changed since: half of it is used until a train has tried all of it.
    Past,
}

/// The state of a sender. Bytes are on the wire, and counted from the connection's beginning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// The number of the connection.
    pub id: u64,
    /// Its share in proportion to others, 1 and up.
    pub weight: u32,
    /// When the last acknowledgement arrived, which is the time of the following values.
    pub at: Time,
    /// Bytes sent, retransmissions included.
    pub sent: u64,
    /// Bytes that have arrived.
    pub delivered: u64,
    /// Bytes that were lost.
    pub lost: u64,
    /// Whether data are in flight.
    pub in_flight: bool,
    /// The shortest round-trip time measured recently.
    pub rtt: Option<Duration>,
    /// The shortest round-trip time measured so far.
    pub min_rtt: Option<Duration>,
    /// The one-way delay to the receiver, less the shortest that is known, from the receiver's timestamps
    /// (RFC 7323 §3, RFC 6817 §3.4.1); `None` without timestamps. RTT above the minimum, less this, is the
    /// delay of the return path.
    pub forward: Option<Duration>,
    /// It is limited by its window and not by its rate.
    pub window_limited: bool,
    /// It has data to send, and its receiver has room for them, so that it can use a higher rate. A sender
    /// that only waits for acknowledgements claims no more than its average use.
    pub backlogged: bool,
}

/// The rate for connections that begin before the next [`tick`](RateAllocator::tick): a connection of weight
/// w begins with `rate`·w/(`weight` + w), and for the next one w is added to `weight`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct InitialRate {
    /// Bytes per second.
    pub rate: f64,
    /// The sum of the weights of all connections that can use a higher rate.
    pub weight: u32,
}

/// The allocator's estimate of the link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkEstimate {
    /// The capacity, bytes per second.
    pub capacity: f64,
    /// It was measured, now or before; otherwise it is the configured one, or where the search begins.
    pub is_measured: bool,
    /// The round-trip time of the empty link.
    pub rtt: Duration,
    /// How long a packet waits in the queue.
    pub queue: Duration,
    /// Connections with data in flight.
    pub active: usize,
    /// What cross traffic sends, bytes per second; zero where nobody [counts](RateAllocator::count) it.
    pub cross_traffic: f64,
    /// What the egress has done by the [limit](RateAllocator::cross_traffic_limit), as it was
    /// [told](RateAllocator::count_signalled).
    pub signalled: Signalled,
    /// No sender receives acknowledgements.
    pub outage: bool,
}

/// Allocates the rate of one link.
#[derive(Debug)]
pub struct RateAllocator {
    config: RateAllocatorConfig,
    capacity: Capacity,
    cross_traffic: CrossTraffic,
    cross_flows: FlowRates,
    round: Round,
    trains: Trains,
    /// The rate of cross traffic that the last train allowed for.
    beside_train: f64,
    /// There has been a train since the beginning, or since the capacity became a memory.
    began: bool,
    /// Since when there is no connection with data in flight, until the capacity became a memory.
    idle_since: Option<Time>,
    flows: IdMap<SenderState>,
    last_tick: Option<Time>,
    /// When data last arrived, or nothing was in flight.
    last_progress: Time,
    /// The delay of acknowledgements on the return path, above the shortest round trip.
    return_delay: Duration,
    /// By how much the delay of the return path has changed since the beginning, seconds. `return_delay`
    /// changes with the shortest round trip too.
    return_shift: f64,
    return_queue: ReturnQueue,
    /// By how much the path has become longer, as shown by round trips that do not shrink with the queue.
    grown: Duration,
    /// Since when there is a standing queue.
    queued_since: Option<Time>,
    initial_rate: InitialRate,
    /// The part of the present rates that is not a train's: no connection must use that.
    usual_part: f64,
    estimate: LinkEstimate,
    ticks: u64,
    claims: Vec<Claim>,
    /// Bytes whose senders have not reported for a while, and between which moments they were sent.
    late: Vec<(u64, Time, Time)>,
}

/// The state of a connection at the last tick.
#[derive(Debug, Clone, Copy)]
struct SenderState {
    /// The time of its last report.
    at: Time,
    sent: u64,
    delivered: u64,
    lost: u64,
    rate: f64,
    /// The rate that it has when it is active.
    full: f64,
    /// Bytes per second that it uses, if it is limited elsewhere.
    limited_to: Option<f64>,
    /// Since when its use is measured, the bytes sent until then, and the bytes that its rate has allowed
    /// since.
    since: Time,
    sent_then: u64,
    allowed: f64,
    /// Data are in flight, or have been sent since the last tick.
    active: bool,
    last_active: Time,
    /// The number of the last tick with a report of it.
    reported: u64,
    /// The round trip without the queue of the forward path, when it was last measured.
    unqueued_rtt: Option<Duration>,
}

impl RateAllocator {
    /// A link at rest.
    pub fn new(config: RateAllocatorConfig) -> Self {
        let capacity = Capacity::new(config.capacity, config.rtt);
        let estimate = LinkEstimate {
            capacity: capacity.bytes_per_second(),
            is_measured: false,
            rtt: config.rtt,
            queue: Duration::ZERO,
            active: 0,
            cross_traffic: 0.0,
            signalled: Signalled::default(),
            outage: false,
        };
        let initial_rate = InitialRate { rate: capacity.initial_rate(), weight: 0 };
        Self {
            config,
            capacity,
            cross_traffic: CrossTraffic::default(),
            cross_flows: FlowRates::default(),
            round: Round::default(),
            trains: Trains::default(),
            beside_train: 0.0,
            began: false,
            idle_since: None,
            flows: IdMap::default(),
            last_tick: None,
            last_progress: Time::ZERO,
            return_delay: Duration::ZERO,
            return_shift: 0.0,
            return_queue: ReturnQueue::default(),
            grown: Duration::ZERO,
            queued_since: None,
            initial_rate,
            usual_part: 1.0,
            estimate,
            ticks: 0,
            claims: Vec::new(),
            late: Vec::new(),
        }
    }

    /// What has left over the link so far, before the [`tick`](Self::tick) that takes it in. Without it,
    /// cross traffic shows as a queue only.
    pub fn count(&mut self, count: EgressCount) {
        self.cross_traffic.count(count);
    }

    /// What has left of each flow of cross traffic so far, by [`FLOW_BUCKETS`] values of a hash of it, while
    /// there is a [limit](Self::cross_traffic_limit); after the tick, `now` being the same.
    pub fn count_flows(&mut self, now: Time, bytes: &[u64]) {
        self.cross_flows.count(now, bytes, self.round_trip());
    }

    /// What the egress has done by the [limit](Self::cross_traffic_limit), for the
    /// [`estimate`](Self::estimate).
    pub fn count_signalled(&mut self, signalled: Signalled) {
        self.estimate.signalled = signalled;
    }

    /// What cross traffic may send until the next tick; `None`: anything, because that is configured, or no
    /// connection with a rate is active, or the link is not known.
    pub fn cross_traffic_limit(&mut self) -> Option<CrossTrafficLimit> {
        let LinkEstimate { active, outage, rtt, .. } = self.estimate;
        let is_off = self.config.aqm == CrossTrafficAqm::Off;
        if is_off || active == 0 || outage || self.capacity.is_unknown() {
            return None;
        }
        let full = self.capacity.budget(self.capacity.noise());
        let needed = self.claims.iter().map(|claim| claim.most).sum();
        let rate = aqm::allowed(self.config.cross_traffic, full, needed);
        let [target, interval] = aqm::times(rtt);
        let judged = self.cross_flows.above_fair_part(rate);
        Some(CrossTrafficLimit {
            rate,
            target,
            interval,
            may_drop: self.config.aqm == CrossTrafficAqm::Drop,
            judged,
        })
    }

    /// Takes the reports of all connections and gives each its rate. Silent connections get zero, and begin
    /// anew with the [`initial_rate`](Self::initial_rate). Call it every few tens of milliseconds; `now`
    /// never goes back.
    pub fn tick(&mut self, now: Time, reports: &[Report], mut give: impl FnMut(u64, f64)) {
        let elapsed = self.last_tick.map_or(Duration::ZERO, |last| now - last);
        self.last_tick = Some(now);
        self.ticks += 1;
        let progress = self.add_reports(now, reports);
        self.estimate.active = self.flows.values().filter(|flow| flow.active).count();
        if progress || self.estimate.active == 0 {
            self.last_progress = now;
        }
        self.forget_when_idle(now);
        let silent = (now - self.last_progress).as_secs_f64();
        let outage = silent > OUTAGE * self.round_trip().as_secs_f64();
        // At a low rate, every packet may be acknowledged before the next.
        let is_idle = self.idle_since.is_some_and(|since| now - since >= self.round_trip());
        if outage || self.estimate.outage || is_idle {
            // Measurements from before do not describe what comes after.
            let round_trips = if outage || self.estimate.outage { AFTERMATH } else { 1 };
            self.restart_measurements(now, round_trips, reports);
            self.trains.cancel();
        }
        self.estimate.outage = outage;
        if !outage {
            self.observe(now, elapsed, reports);
            self.measure_use(now, elapsed, reports);
        }
        self.allocate(now, reports, &mut give);
    }

    /// Begins with a capacity that was measured before, in bytes per second. A configured one is kept.
    pub fn remember(&mut self, capacity: f64, memory: Memory) {
        if self.capacity.remember(capacity, memory) {
            self.began = false;
            self.estimate.capacity = self.capacity.bytes_per_second();
            self.estimate.is_measured = true;
            self.initial_rate.rate = self.capacity.initial_rate();
        }
    }

    /// After a long silence the capacity that was found is a memory.
    fn forget_when_idle(&mut self, now: Time) {
        if self.estimate.active > 0 {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(now);
        if now - since >= IDLE && self.began && self.estimate.is_measured {
            self.remember(self.capacity.memory(), Memory::Past);
        }
    }

    /// The rate for connections that begin before the next tick.
    pub fn initial_rate(&self) -> InitialRate {
        self.initial_rate
    }

    /// The present estimate of the link.
    pub fn estimate(&self) -> LinkEstimate {
        self.estimate
    }

    /// Adds the new bytes of all reports to the sums. Returns whether any have arrived.
    fn add_reports(&mut self, now: Time, reports: &[Report]) -> bool {
        let (mut sent, mut delivered, mut lost) = (0, 0, 0);
        let mut late = std::mem::take(&mut self.late);
        for report in reports {
            let fresh = SenderState {
                at: report.at,
                sent: report.sent,
                delivered: report.delivered,
                lost: report.lost,
                rate: 0.0,
                full: 0.0,
                last_active: now,
                limited_to: None,
                since: report.at,
                sent_then: report.sent,
                allowed: 0.0,
                active: report.in_flight,
                reported: self.ticks,
                unqueued_rtt: None,
            };
            let flow = self.flows.entry(report.id).or_insert(fresh);
            // This is another connection of the same number.
            if report.sent < flow.sent || report.delivered < flow.delivered {
                *flow = fresh;
            }
            flow.active = report.in_flight || report.sent > flow.sent;
            if report.at > flow.at + SEEN_LATE {
                late.push((report.sent - flow.sent, flow.at, report.at));
            }
            flow.at = report.at;
            sent += report.sent - flow.sent;
            delivered += report.delivered - flow.delivered;
            lost += report.lost.saturating_sub(flow.lost);
            (flow.sent, flow.delivered, flow.lost) = (report.sent, report.delivered, report.lost);
            flow.reported = self.ticks;
        }
        let ticks = self.ticks;
        self.flows.retain(|_, flow| flow.reported == ticks);
        let rated = [sent, delivered, lost];
        let cross_traffic = self.cross_traffic.advance(now, rated, self.round_trip());
        self.estimate.cross_traffic = self.cross_traffic.rate();
        self.round.add(now, rated, cross_traffic, self.return_shift, self.estimate.rtt);
        for (bytes, from, to) in late.drain(..) {
            self.round.spread_sent(bytes, from, to);
        }
        self.late = late;
        delivered > 0
    }

    /// The round-trip time with the queues of both directions.
    fn round_trip(&self) -> Duration {
        self.estimate.rtt + self.estimate.queue + self.return_delay
    }

    /// Decides nothing for this many round trips.
    fn restart_measurements(&mut self, now: Time, round_trips: u32, reports: &[Report]) {
        self.round.clear();
        self.capacity.hold(now + round_trips * self.round_trip());
        for report in reports {
            if let Some(flow) = self.flows.get_mut(&report.id) {
                (flow.since, flow.sent_then, flow.allowed) = (report.at, report.sent, 0.0);
            }
        }
    }

    /// Measures the round trip and the queues of both directions, from the senders with an acknowledgement in
    /// the last round trip.
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
                let unqueued = rtt.saturating_sub(forward);
                let before = flow.unqueued_rtt.replace(unqueued).unwrap_or(unqueued);
                later += weight * (unqueued.as_secs_f64() - before.as_secs_f64());
                shortest += weight * least.as_secs_f64();
            }
        }
        if sum > 0.0 {
            let above = Duration::from_secs_f64(above / sum);
            self.return_delay = Duration::from_secs_f64(back / sum);
            self.return_shift += later / sum;
            self.grown = self.grown.min(above);
            self.estimate.rtt = Duration::from_secs_f64(shortest / sum) + self.grown;
            self.estimate.queue = above - self.grown;
        }
    }

    /// Estimates round trip, queue and capacity of the link from the reports of the last round trip.
    fn observe(&mut self, now: Time, elapsed: Duration, reports: &[Report]) {
        self.measure_queues(now, reports);
        self.capacity.begin_with(self.estimate.rtt);
        self.return_queue.observe(now, self.estimate.rtt, self.return_delay);
        // Before anything is known, the rate may be so low that delayed acknowledgements keep a sender below
        // it.
        let searching = self.capacity.is_searched();
        let wants = |report: &Report| searching && report.in_flight && report.backlogged;
        let wanted = self.claims.iter().any(Claim::is_greedy) || reports.iter().any(wants);
        let LinkEstimate { rtt, queue, .. } = self.estimate;
        let noise = self.capacity.noise();
        self.queued_since = if queue > noise { self.queued_since.or(Some(now)) } else { None };
        let is_standing = !self.trains.explains(queue, now, self.round_trip());
        let since = self.queued_since.filter(|_| is_standing);
        let carried_over = |least| since.and_then(|since| self.round.carried_since(since, rtt, least));
        let [least, whole] = self.carried_spans(rtt);
        let (carried, carried_all) = (carried_over(least), carried_over(whole));
        let full = self.capacity.budget(noise);
        if queue > noise && self.cross_traffic.overloads(self.config.cross_traffic, full) {
            // Queue and losses say nothing of the estimate.
            self.capacity.hold(now + self.round_trip());
        }
        let first = !self.began && self.estimate.active > 0;
        let wanted = wanted || first;
        let observation =
            Observation { now, rates: self.round.rates(rtt), carried, carried_all, queue, rtt, wanted };
        if self.capacity.observe(&observation) {
            // A queue would have drained by now.
            self.lengthen_path(queue);
        }
        let round_trip = self.round_trip();
        if let Some(carried) = self.trains.result(now, round_trip, &self.round, self.estimate.active) {
            let carried = self.with_cross_traffic(carried);
            let no_queue = self.capacity.no_queue(&carried, &observation);
            self.lengthen_path(no_queue);
            let more = self.capacity.judge_train(&carried, &observation);
            self.trains.judged(more);
            if more {
                self.measure_use_anew(now, reports);
            }
        }
        if self.trains.is_due(now)
            && (!self.is_blurred() || self.trains.is_pause(now, TRAINS_APART))
            && let Some(rate) = self.capacity.train(&observation)
        {
            let cross_traffic = self.cross_traffic.rate();
            let searching = self.capacity.is_searched();
            let mut rate = rate;
            if first && self.capacity.is_unknown() {
                // The search begins above what is there already.
                rate += cross_traffic;
                self.capacity.begin_above(cross_traffic);
            }
            let usual = self.rated_budget(self.queue_ahead(now)) + cross_traffic;
            self.beside_train = cross_traffic;
            let begun = match first && searching && elapsed <= FIRST_SEEN {
                // The first packets of the first connections are the first train.
                true => Time::from_nanos(now.as_nanos().saturating_sub(elapsed.as_nanos() as u64)),
                false => now,
            };
            self.began = true;
            self.trains.begin(begun, [usual, rate], round_trip, searching);
            if searching {
                self.measure_use_anew(now, reports);
            }
        }
        self.estimate.capacity = self.capacity.bytes_per_second();
        self.estimate.is_measured = self.capacity.is_measured();
    }

    /// What connections have used of a lower rate does not show what they use of this one.
    fn measure_use_anew(&mut self, now: Time, reports: &[Report]) {
        for report in reports.iter().filter(|report| report.in_flight) {
            if let Some(flow) = self.flows.get_mut(&report.id) {
                (flow.since, flow.sent_then, flow.allowed) = (now, report.sent, 0.0);
                flow.limited_to = flow.limited_to.filter(|_| !report.backlogged);
            }
        }
    }

    /// So much of what seemed to be a queue is the path, which has become longer.
    fn lengthen_path(&mut self, by: Duration) {
        let by = by.min(self.estimate.queue);
        self.grown += by;
        self.estimate.rtt += by;
        self.estimate.queue -= by;
    }

    /// The least times over which arrivals show what the link carries: of any part of a round trip, and of
    /// all. When cross traffic arrives is known to within the round trips' precision only.
    fn carried_spans(&self, rtt: Duration) -> [Duration; 2] {
        let is_shared = self.cross_traffic.rate() > SHARED * self.capacity.bytes_per_second();
        let least = if is_shared { rtt.max(SHARED_SPAN) } else { Duration::ZERO };
        [least, least.max(rtt.mul_f64(0.9))]
    }

    /// Whether cross traffic blurs what trains show, of a link whose capacity is known.
    fn is_blurred(&self) -> bool {
        let is_busy = self.cross_traffic.rate() > BLURRED * self.capacity.bytes_per_second();
        is_busy && !self.capacity.is_searched() && !self.capacity.is_remembered()
    }

    /// What a train has shown of all that leaves: what was beside it shares its fate. Where that blurs it, it
    /// shows no more than the estimate, and nothing of the link's limit.
    fn with_cross_traffic(&self, carried: Carried) -> Carried {
        let beside = self.cross_traffic.rate_between(carried.sent);
        let own = (carried.train - self.beside_train).max(carried.train / MOST_CROSS_TRAFFIC);
        let all = own + beside;
        let [least, most] = carried.arrived.map(|rate| rate * all / own);
        match self.is_blurred() {
            true => {
                let arrived = [least.min(self.capacity.bytes_per_second()), most];
                Carried { train: all.max(2.0 * most), arrived, ..carried }
            }
            false => Carried { train: all, arrived: [least, most], ..carried },
        }
    }

    /// How long a packet that is sent now will wait: the last packet whose wait is known was sent a round
    /// trip ago, and what has been sent since waits before this one.
    fn queue_ahead(&self, now: Time) -> Duration {
        let since =
            Time::from_nanos(now.as_nanos().saturating_sub((self.round_trip() + RECENT).as_nanos() as u64));
        let is_known = !self.capacity.is_unknown() && !self.capacity.is_on_trial();
        let Some(sent) = self.round.sent_since(since).filter(|_| is_known) else {
            return self.estimate.queue;
        };
        let sent = sent / self.capacity.bytes_per_second();
        let ahead = self.estimate.queue.as_secs_f64() + sent - (now - since).as_secs_f64();
        Duration::try_from_secs_f64(ahead.max(0.0)).unwrap_or(Duration::MAX)
    }

    /// The sum of the connections' rates, if what they send now will wait that long.
    fn rated_budget(&self, queue: Duration) -> f64 {
        let budget = self.capacity.budget(queue);
        match self.capacity.is_unknown() {
            // A share of what is not known is none.
            true => (budget - self.cross_traffic.rate()).max(budget * UNKNOWN_REST),
            false => self.rest(budget),
        }
    }

    /// What cross traffic leaves of a budget.
    fn rest(&self, budget: f64) -> f64 {
        let full = self.capacity.budget(self.capacity.noise());
        self.cross_traffic.rest(self.config.cross_traffic, budget, full)
    }

    /// The sum of the rates of connections that begin.
    fn initial_budget(&self, usual: f64) -> f64 {
        match (self.began, self.capacity.is_unknown()) {
            (true, _) => usual,
            (false, true) => self.capacity.initial_rate(),
            (false, false) => self.rest(self.capacity.initial_rate()),
        }
    }

    /// How long to wait at most before the next [`tick`](Self::tick), if that is less than usual.
    pub fn interval(&self) -> Option<Duration> {
        self.trains.interval(self.last_tick?, self.round_trip())
    }

    /// Finds out which connections use their rates, and which are limited elsewhere.
    fn measure_use(&mut self, now: Time, elapsed: Duration, reports: &[Report]) {
        let rtt = self.estimate.rtt;
        for report in reports {
            let Some(flow) = self.flows.get_mut(&report.id) else { continue };
            if flow.active {
                flow.last_active = now;
            } else if now - flow.last_active > FORGOTTEN.max(2 * rtt) {
                (flow.limited_to, flow.since, flow.sent_then, flow.allowed) = (None, now, report.sent, 0.0);
                continue;
            }
            flow.allowed += flow.full * self.usual_part * elapsed.as_secs_f64();
            // Pauses count: a slow reader takes its bytes in bursts. What it sends after its last report is
            // unknown.
            let until = if flow.active { report.at } else { now };
            let span = until.since(flow.since);
            if flow.allowed < USE_MEASURED_OVER.0 || span < USE_MEASURED_OVER.1.max(rtt) {
                continue;
            }
            let used = (report.sent - flow.sent_then) as f64 / span.as_secs_f64();
            let allowed = flow.allowed / (now - flow.since).as_secs_f64();
            flow.limited_to = (used < USED * allowed && !report.window_limited).then_some(used);
            // The bytes allowed between its last report and now belong to the next measurement.
            let rest = flow.full * (now - until).as_secs_f64();
            (flow.since, flow.sent_then, flow.allowed) = (until, report.sent, rest);
        }
    }

    fn allocate(&mut self, now: Time, reports: &[Report], give: &mut impl FnMut(u64, f64)) {
        let acknowledged = self.round.acknowledged(self.estimate.rtt);
        let bound = self.return_queue.bound(acknowledged, self.capacity.bytes_per_second());
        let usual = self.rated_budget(self.queue_ahead(now)).min(bound);
        // A train is of all that leaves.
        let budget = (self.trains.rate(now, usual + self.beside_train) - self.beside_train).max(usual);
        self.usual_part = if budget > usual { usual / budget } else { 1.0 };
        self.claims.clear();
        self.claims.extend(reports.iter().filter_map(|report| {
            let flow = self.flows.get(&report.id).filter(|flow| flow.active)?;
            let unlimited = if report.backlogged { f64::INFINITY } else { 0.0 };
            let most = flow.limited_to.map_or(unlimited, |used| LIMITED_CLAIM * used);
            Some(Claim { weight: report.weight.max(1), most })
        }));
        let level = max_min::level(budget, &mut self.claims.clone()).max(self.least_level());
        let limited = self.claims.iter().filter(|claim| claim.most < level * f64::from(claim.weight));
        let limited =
            limited.fold((0.0, 0), |(bytes, weight), claim| (bytes + claim.most, weight + claim.weight));
        let whole_weight = self.claims.iter().map(|claim| claim.weight).sum::<u32>();
        let weight = whole_weight - limited.1;
        // What nobody claims: any of them may have its part at once, if the link is known to carry it.
        let claimed: f64 = self.claims.iter().map(|claim| claim.most).sum();
        let unclaimed = match self.config.capacity {
            Some(_) => (budget - claimed).max(0.0) / f64::from(whole_weight.max(1)),
            None => 0.0,
        };
        let initial = self.initial_budget(usual);
        self.initial_rate = InitialRate { rate: (initial - limited.0).max(initial / 8.0), weight };
        for report in reports {
            let Some(flow) = self.flows.get_mut(&report.id) else { continue };
            // A connection without a claim gets the rate of a new one.
            let initial = self.initial_rate.rate / f64::from(weight + report.weight.max(1));
            let full = if report.backlogged { level } else { level.min(initial) };
            let full = (full * f64::from(report.weight.max(1))).min(budget);
            flow.full = match flow.limited_to {
                None => full,
                Some(used) => {
                    let soon = MAY_GROW.0 * used + MAY_GROW.1 * full;
                    let at_once = LIMITED_CLAIM * used + unclaimed * f64::from(report.weight.max(1));
                    full.min(soon.max(at_once))
                }
            };
            flow.rate = if flow.active { flow.full } else { 0.0 };
            give(report.id, flow.rate);
        }
    }

    /// The least that draining a queue leaves to a full share. A sender plans its next packet when it sends
    /// one: at the rate of a moment, a crowd's would come seconds later, and the link would run idle.
    fn least_level(&self) -> f64 {
        let usual = max_min::level(self.capacity.budget(Duration::ZERO), &mut self.claims.clone());
        (usual / 2.0).min(PLANNED.0 / PLANNED.1.as_secs_f64())
    }

    /// Takes a new configuration. Measurements are kept.
    pub fn reconfigure(&mut self, config: RateAllocatorConfig) {
        if config.capacity != self.config.capacity {
            self.capacity = Capacity::new(config.capacity, self.estimate.rtt);
        }
        self.config = config;
    }
}

#[cfg(test)]
mod tests;
