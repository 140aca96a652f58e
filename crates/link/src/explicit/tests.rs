//! An allocator on a fluid model of a link: data arrive after a round trip, the excess waits in a queue.

use super::*;

const TICK: Duration = Duration::from_millis(20);
const MOMENT: Duration = Duration::from_millis(5);

/// A link and its senders.
struct Testbed {
    now: Time,
    ticked: Time,
    allocator: RateAllocator,
    /// Bytes per second.
    carries: f64,
    /// The limit of the queue, seconds.
    room: f64,
    per: f64,
    rtt: Duration,
    up: bool,
    /// The queueing delay of the return path, seconds, and whether receivers send timestamps.
    back: f64,
    timestamps: bool,
    /// The weight of the connections that have begun since the last tick.
    joined: u32,
    queue: f64,
    dropped: f64,
    offered: f64,
    flows: Vec<Sender>,
    /// Bytes per second of cross traffic, and the bytes that the gateway has counted; nobody counts them if
    /// it is not told.
    cross_traffic: f64,
    counted: Option<f64>,
    /// What was sent in each moment and has not left the queue.
    waiting: std::collections::VecDeque<Waiting>,
    arriving: std::collections::VecDeque<(Time, Vec<[f64; 2]>, [f64; 2])>,
    queues: Vec<f64>,
}

/// What was sent in a moment: of each flow what arrives and what does not, the bytes in the queue, and how long
/// they wait.
struct Waiting {
    shares: Vec<[f64; 2]>,
    bytes: f64,
    left: f64,
    wait: f64,
}

#[derive(Clone, Default)]
struct Sender {
    weight: u32,
    most: f64,
    /// Below this rate its sender uses 70% of what it may.
    falls_short_below: f64,
    rate: f64,
    sent: f64,
    delivered: f64,
    lost: f64,
    rtt: f64,
    min_rtt: f64,
    forward: Option<f64>,
    at: Time,
    in_flight: bool,
    sent_at: f64,
}

impl Testbed {
    fn new(configured: Option<u64>, carries: u64, rtt_ms: u64) -> Self {
        let rtt = Duration::from_millis(rtt_ms);
        let config = RateAllocatorConfig::new(configured.map(Rate::mbps), rtt);
        Self {
            now: Time::ZERO,
            ticked: Time::ZERO,
            allocator: RateAllocator::new(config),
            carries: carries as f64 * 1e6 / 8.0,
            room: 1.0,
            per: 0.0,
            rtt,
            up: true,
            back: 0.0,
            timestamps: false,
            joined: 0,
            queue: 0.0,
            dropped: 0.0,
            offered: 0.0,
            flows: Vec::new(),
            cross_traffic: 0.0,
            counted: Some(0.0),
            waiting: Default::default(),
            arriving: Default::default(),
            queues: Vec::new(),
        }
    }

    fn join(&mut self, weight: u32, most_mbps: f64) -> usize {
        let initial = self.allocator.initial_rate();
        self.joined += weight;
        let rate = initial.rate * f64::from(weight) / f64::from(initial.weight + self.joined);
        let rtt = self.rtt.as_secs_f64();
        let most = most_mbps * 1e6 / 8.0;
        self.flows.push(Sender {
            weight,
            most,
            rate,
            rtt,
            min_rtt: rtt,
            at: self.now,
            in_flight: true,
            ..Sender::default()
        });
        self.flows.len() - 1
    }

    /// Until the next usual tick; where the allocator measures, it looks more often.
    fn step(&mut self) {
        let until = self.now + TICK;
        while self.now < until {
            self.carry();
            let interval = self.allocator.interval().unwrap_or(TICK);
            if self.now >= until || self.now - self.ticked >= interval {
                self.tick();
            }
        }
        self.queues.push(self.queue / self.carries);
    }

    /// A moment of the link.
    fn carry(&mut self) {
        self.now += MOMENT;
        let dt = MOMENT.as_secs_f64();
        let offered: Vec<f64> = self.flows.iter().map(|flow| flow.offered() * dt).collect();
        let cross_traffic = self.cross_traffic * dt;
        self.counted = self.counted.map(|counted| counted + cross_traffic);
        let sum: f64 = offered.iter().sum::<f64>() + cross_traffic;
        let mut carries = self.carries * dt;
        let fits = (self.room * self.carries - self.queue + carries).max(0.0).min(sum);
        self.offered += sum;
        self.dropped += sum - fits;
        let arrives = if self.up { fits / sum.max(1e-9) * (1.0 - self.per) } else { 0.0 };
        let shares = offered.iter().map(|bytes| [bytes * arrives, bytes * (1.0 - arrives)]).collect();
        for (flow, bytes) in self.flows.iter_mut().zip(&offered) {
            flow.sent += bytes;
        }
        self.waiting.push_back(Waiting { shares, bytes: fits, left: fits, wait: self.queue / self.carries });
        self.queue = (self.queue + fits - carries).max(0.0);
        while let Some(first) = self.waiting.front_mut().filter(|first| carries > 0.0 || first.left <= 0.0) {
            let leaves = first.left.min(carries);
            let part = if first.bytes > 0.0 { leaves / first.bytes } else { 1.0 };
            let shares = first.shares.iter().map(|share| share.map(|bytes| bytes * part)).collect();
            let rtt = self.rtt.as_secs_f64() + self.back;
            let arrival = self.now + Duration::from_secs_f64(rtt);
            self.arriving.push_back((arrival, shares, [rtt + first.wait, first.wait]));
            (first.left, carries) = (first.left - leaves, carries - leaves);
            if first.left <= 0.0 {
                self.waiting.pop_front();
            }
        }
        while self.arriving.front().is_some_and(|first| first.0 <= self.now) {
            let (_, shares, [rtt, wait]) = self.arriving.pop_front().unwrap();
            for (flow, [delivered, lost]) in self.flows.iter_mut().zip(shares) {
                if delivered > 0.0 {
                    flow.delivered += delivered;
                    flow.lost += lost;
                    flow.rtt = rtt;
                    flow.forward = self.timestamps.then_some(wait);
                    flow.min_rtt = flow.min_rtt.min(rtt);
                    flow.at = self.now;
                    flow.sent_at = flow.sent;
                }
            }
        }
    }

    fn tick(&mut self) {
        (self.joined, self.ticked) = (0, self.now);
        let reports: Vec<Report> = self.flows.iter().enumerate().map(|(id, flow)| flow.report(id)).collect();
        if let Some(counted) = self.counted {
            self.allocator.count(EgressCount::CrossTraffic(counted as u64));
        }
        let flows = &mut self.flows;
        self.allocator.tick(self.now, &reports, |id, rate| flows[id as usize].rate = rate);
    }

    fn run(&mut self, seconds: f64) {
        (0..(seconds / TICK.as_secs_f64()) as usize).for_each(|_| self.step());
    }

    /// The part of the link that was used in the next so many seconds.
    fn use_over(&mut self, seconds: f64) -> f64 {
        let delivered = |flows: &[Sender]| flows.iter().map(|flow| flow.delivered).sum::<f64>();
        let before = delivered(&self.flows);
        self.run(seconds);
        (delivered(&self.flows) - before) / seconds / self.carries
    }

    fn median_queue(&self) -> f64 {
        self.queue_at(0.5)
    }

    /// The queue, seconds, than which it was shorter for this part of the time.
    fn queue_at(&self, quantile: f64) -> f64 {
        let mut queues = self.queues.clone();
        queues.sort_by(f64::total_cmp);
        queues[(queues.len() as f64 * quantile) as usize]
    }
}

impl Sender {
    fn offered(&self) -> f64 {
        let usual = if self.rate < self.falls_short_below { 0.7 * self.rate } else { self.rate };
        usual.min(self.most)
    }

    fn report(&self, id: usize) -> Report {
        let span = |seconds: f64| Some(Duration::from_secs_f64(seconds));
        Report {
            id: id as u64,
            weight: self.weight,
            at: self.at,
            sent: self.sent_at as u64,
            delivered: self.delivered as u64,
            lost: self.lost as u64,
            in_flight: self.in_flight,
            rtt: span(self.rtt),
            min_rtt: span(self.min_rtt),
            forward: self.forward.map(Duration::from_secs_f64),
            window_limited: false,
            backlogged: true,
        }
    }
}

const ALL: f64 = f64::INFINITY;

#[test]
fn one_connection_fills_the_link_and_losses_change_nothing() {
    for (per, rtt) in [(0.0, 600), (0.01, 600), (0.05, 600), (0.01, 40), (0.01, 3000)] {
        let mut bed = Testbed::new(Some(10), 10, rtt);
        bed.per = per;
        bed.join(1, ALL);
        bed.run(5.0 * rtt as f64 / 1000.0);
        let used = bed.use_over(30.0);
        assert!(used > 0.98 * (1.0 - per), "{used} at {per}, {rtt} ms");
        assert!(bed.median_queue() < 0.02, "{}", bed.median_queue());
    }
}

#[test]
fn shares_follow_weights_and_later_connections_get_theirs() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    let first = [bed.join(1, ALL), bed.join(1, ALL)];
    bed.run(30.0);
    let second = [bed.join(1, ALL), bed.join(3, ALL)];
    bed.run(5.0);
    let rate = |index: usize| bed.flows[index].rate;
    assert!((rate(first[0]) / rate(second[0]) - 1.0).abs() < 0.01);
    assert!((rate(second[1]) / rate(first[1]) - 3.0).abs() < 0.01);
}

#[test]
fn the_others_get_the_share_that_one_does_not_use() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    let (free, limited) = (bed.join(1, ALL), bed.join(1, 0.5));
    bed.run(10.0);
    let rate = |index: usize| bed.flows[index].rate * 8.0 / 1e6;
    assert!(rate(free) > 9.2, "{} and {}", rate(free), rate(limited));
    bed.flows[limited].most = ALL;
    bed.run(4.0);
    let rate = |index: usize| bed.flows[index].rate;
    assert!((rate(free) / rate(limited) - 1.0).abs() < 0.01, "{} and {}", rate(free), rate(limited));
}

#[test]
fn those_that_use_little_may_have_at_once_what_nobody_claims() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    let mbps = |bed: &Testbed| bed.flows.iter().map(|flow| flow.rate * 8.0 / 1e6).collect::<Vec<_>>();
    let first = bed.join(1, 0.5);
    bed.run(10.0);
    assert!(mbps(&bed)[first] > 9.5, "{:?}", mbps(&bed));
    let second = bed.join(1, 0.5);
    bed.run(10.0);
    let rates = mbps(&bed);
    assert!(rates.iter().all(|rate| (4.7..5.1).contains(rate)), "{rates:?}");
    // Beside one that wants all, the other one may double, and has an eighth of its share more.
    bed.flows[second].most = ALL;
    bed.run(10.0);
    assert!((1.0..2.3).contains(&mbps(&bed)[first]), "{:?}", mbps(&bed));
}

#[test]
fn of_a_capacity_that_was_measured_nobody_has_all_at_once() {
    let mut bed = Testbed::new(None, 10, 600);
    let only = bed.join(1, ALL);
    bed.run(30.0);
    assert!(bed.use_over(5.0) > 0.95, "it is found");
    bed.flows[only].most = 0.5e6 / 8.0;
    bed.run(10.0);
    let mbps = bed.flows[only].rate * 8.0 / 1e6;
    assert!((1.0..2.5).contains(&mbps), "double its use, and an eighth of the link: {mbps}");
}

#[test]
fn a_link_slower_than_configured_is_not_overfilled() {
    for (room, per) in [(1.0, 0.0), (1.0, 0.01), (0.1, 0.01), (0.02, 0.0), (0.02, 0.01)] {
        let mut bed = Testbed::new(Some(10), 5, 600);
        (bed.room, bed.per) = (room, per);
        bed.join(1, ALL);
        bed.run(8.0);
        (bed.dropped, bed.offered) = (0.0, 0.0);
        bed.queues.clear();
        let used = bed.use_over(120.0);
        // A queue with no more room than a train takes loses part of each.
        let most = if room < 0.05 { 0.015 } else { 0.01 };
        assert!(used > 0.92 * (1.0 - per), "{used} with {room} s and {per}");
        assert!(
            bed.dropped < most * bed.offered,
            "{} of {} with {room} s and {per}",
            bed.dropped,
            bed.offered
        );
        assert!(bed.median_queue() < 0.05, "{}", bed.median_queue());
    }
}

#[test]
fn a_link_that_becomes_faster_again_is_used_again() {
    let mut bed = Testbed::new(Some(10), 5, 600);
    bed.join(1, ALL);
    bed.run(30.0);
    bed.carries *= 2.0;
    bed.run(60.0);
    assert!(bed.use_over(10.0) > 0.97);
}

#[test]
fn an_unknown_capacity_is_found() {
    for (carries, rtt) in [(2, 600), (10, 600), (100, 600), (10, 40)] {
        let mut bed = Testbed::new(None, carries, rtt);
        bed.per = 0.01;
        bed.join(1, ALL);
        bed.run(25.0 * rtt as f64 / 1000.0);
        (bed.dropped, bed.offered) = (0.0, 0.0);
        bed.queues.clear();
        let used = bed.use_over(60.0);
        assert!(used > 0.92, "{used} of {carries} Mbit/s at {rtt} ms");
        assert!(bed.dropped < 0.01 * bed.offered, "{} of {}", bed.dropped, bed.offered);
        assert!(bed.median_queue() < 0.05, "{}", bed.median_queue());
    }
}

/// The round trip is a fifteenth of what it is taken for, and the first packets are no train.
#[test]
fn an_unknown_capacity_is_found_by_a_sender_that_falls_short_of_low_rates() {
    let mut bed = Testbed::new(None, 100, 40);
    bed.allocator = RateAllocator::new(RateAllocatorConfig::new(None, 15 * bed.rtt));
    let id = bed.join(1, ALL);
    bed.flows[id].rate = 25_000.0;
    bed.flows[id].falls_short_below = 1e6;
    bed.run(4.0);
    let used = bed.use_over(5.0);
    assert!(used > 0.95, "{used}");
}

/// At the first rate, each packet is acknowledged before the next one is sent.
#[test]
fn an_unknown_capacity_is_found_by_a_sender_that_pauses_between_packets() {
    let mut bed = Testbed::new(None, 100, 40);
    bed.allocator = RateAllocator::new(RateAllocatorConfig::new(None, 15 * bed.rtt));
    let id = bed.join(1, ALL);
    for step in 0..100 {
        let flow = &mut bed.flows[id];
        flow.in_flight = flow.rate > 1e6 || step % 3 == 0;
        flow.most = if flow.in_flight { ALL } else { 0.0 };
        bed.step();
    }
    let used = bed.use_over(2.0);
    assert!(used > 0.95, "{used}");
}

#[test]
fn after_an_outage_the_former_rates_apply() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    bed.per = 0.01;
    bed.join(1, ALL);
    bed.join(1, ALL);
    bed.run(10.0);
    let before: Vec<f64> = bed.flows.iter().map(|flow| flow.rate).collect();
    bed.up = false;
    bed.run(60.0);
    assert!(bed.allocator.estimate().outage);
    bed.up = true;
    let used = bed.use_over(10.0);
    assert!(used > 0.88, "{used}");
    for (flow, before) in bed.flows.iter().zip(before) {
        assert!((flow.rate / before - 1.0).abs() < 0.02, "{} after {before}", flow.rate);
    }
}

/// The retransmission timer declares everything in flight lost before the silence is long enough for an
/// outage.
#[test]
fn losses_at_the_beginning_of_an_outage_do_not_lower_the_rate() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    bed.per = 0.01;
    bed.join(1, ALL);
    bed.run(10.0);
    bed.up = false;
    // Data in flight arrive for a round trip; then there is silence, and the timer.
    bed.run(0.6 + 0.5);
    bed.flows[0].lost += 900_000.0;
    bed.run(0.1);
    assert!(!bed.allocator.estimate().outage);
    bed.run(60.0);
    bed.up = true;
    let used = bed.use_over(10.0);
    assert!(used > 0.85, "{used}, {:?}", bed.allocator.estimate());
}

/// The losses of the outage are detected, and retransmitted, when the first retransmission has arrived; until
/// then little is sent.
#[test]
fn losses_detected_after_an_outage_do_not_lower_the_rate() {
    for round_trips in [0.5, 1.0, 1.5, 2.0] {
        let mut bed = Testbed::new(Some(10), 10, 600);
        bed.per = 0.01;
        bed.join(1, ALL);
        bed.run(10.0);
        bed.up = false;
        bed.run(10.0);
        bed.up = true;
        while bed.allocator.estimate().outage {
            bed.step();
        }
        bed.flows[0].most = 1.25e6 / 8.0;
        bed.run(0.6 * round_trips);
        bed.flows[0].lost += 900_000.0;
        bed.run(0.1);
        bed.flows[0].most = ALL;
        let used = bed.use_over(10.0);
        assert!(used > 0.85, "{round_trips} round trips: {used}, {:?}", bed.allocator.estimate());
    }
}

#[test]
fn one_moment_costs_three_quarters_at_most() {
    let mut capacity = super::capacity::Capacity::new(Rate::from_bps(10_000_000), Duration::from_millis(600));
    let before = capacity.bytes_per_second();
    let moment = super::capacity::Observation {
        now: Time::from_nanos(10_000_000_000),
        rates: Some(super::round::Rates { sent: before, delivered: 1500.0, lost: before, whole: true }),
        carried: Some(1500.0),
        carried_all: None,
        queue: Duration::ZERO,
        rtt: Duration::from_millis(600),
        wanted: true,
    };
    capacity.observe(&moment);
    let after = capacity.bytes_per_second();
    assert!(after < before && after >= before / 4.0, "{before} and {after}");
}

#[test]
fn a_path_that_becomes_longer_is_not_taken_for_a_queue_for_ever() {
    let mut bed = Testbed::new(Some(10), 10, 40);
    bed.join(1, ALL);
    bed.run(5.0);
    bed.rtt = Duration::from_millis(90);
    bed.run(10.0);
    assert!(bed.use_over(10.0) > 0.97);
    bed.rtt = Duration::from_millis(30);
    bed.run(5.0);
    assert!(bed.use_over(10.0) > 0.97);
}

/// The delay is below what is taken for a wrong estimate, and above what round trips vary by.
#[test]
fn a_path_that_becomes_a_little_longer_does_not_lower_the_estimate_step_by_step() {
    for (capacity, rtt_ms, longer_ms) in [(100, 40, 12), (100, 40, 8), (50, 600, 20), (10, 150, 14)] {
        let mut bed = Testbed::new(None, capacity, rtt_ms);
        bed.join(1, ALL);
        bed.run(10.0);
        bed.rtt = Duration::from_millis(rtt_ms + longer_ms);
        bed.run(20.0);
        let used = bed.use_over(19.0);
        assert!(used > 0.9, "{capacity} Mbit/s, {rtt_ms} ms and {longer_ms}: {used}");
    }
}

#[test]
fn losses_of_the_link_are_told_from_those_of_too_high_a_rate() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    bed.per = 0.25;
    bed.join(1, ALL);
    bed.run(10.0);
    let used = bed.use_over(60.0);
    assert!(used > 0.72, "{used}");
}

#[test]
fn losses_of_a_sender_that_hardly_sends_do_not_lower_the_estimate() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    bed.join(1, ALL);
    bed.run(10.0);
    (bed.flows[0].most, bed.per) = (0.5e6 / 8.0, 0.6);
    for _ in 0..50 {
        bed.run(0.1);
        let capacity = bed.allocator.estimate().capacity;
        assert!(capacity > 0.95 * bed.carries, "{capacity}");
    }
}

#[test]
fn many_connections_that_begin_at_once_do_not_flood_the_link() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    (0..100).for_each(|_| _ = bed.join(1, ALL));
    bed.run(20.0);
    let worst = bed.queues.iter().copied().fold(0.0, f64::max);
    assert!(worst < 0.3, "{worst} s");
    assert!(bed.use_over(10.0) > 0.97);
}

/// Each plans its next packet when it sends one: at a tenth of its rate that would be seconds ahead.
#[test]
fn draining_a_queue_leaves_each_of_a_crowd_half_of_its_share() {
    const CROWD: usize = 150;
    let mut bed = Testbed::new(Some(10), 5, 600);
    (0..CROWD).for_each(|_| _ = bed.join(1, ALL));
    let (mut least, mut longest) = (f64::INFINITY, 0.0);
    for _ in 0..500 {
        bed.step();
        let share = bed.allocator.estimate().capacity / CROWD as f64;
        let lowest = bed.flows.iter().map(|flow| flow.rate).fold(f64::INFINITY, f64::min);
        least = f64::min(least, lowest / share);
        longest = f64::max(longest, bed.allocator.estimate().queue.as_secs_f64());
    }
    assert!(longest > 0.2, "{longest} s of queue were to be drained");
    assert!(least > 0.49, "{least} of its share");
    assert!(bed.allocator.estimate().queue < Duration::from_millis(50), "it has been drained");
}

/// The queue of the return path grows and drains again and again, faster and slower than a round trip.
fn congest_the_return_path(bed: &mut Testbed, seconds: f64) {
    for step in 0..(seconds / TICK.as_secs_f64()) as usize {
        let phase = step as f64 * TICK.as_secs_f64();
        bed.back = 0.25 + 0.15 * libm::sin(phase * 1.3) + 0.1 * libm::sin(phase * 0.4);
        bed.step();
    }
    bed.back = 0.0;
}

#[test]
fn queueing_on_the_return_path_changes_no_rate() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    bed.timestamps = true;
    bed.join(1, ALL);
    bed.run(10.0);
    let before = bed.flows[0].delivered;
    congest_the_return_path(&mut bed, 60.0);
    let used = (bed.flows[0].delivered - before) / 60.0 / bed.carries;
    assert!(used > 0.97, "{used}, {:?}", bed.allocator.estimate());
    assert!(bed.allocator.estimate().capacity > 0.99 * bed.carries, "{:?}", bed.allocator.estimate());
}

/// A slower link is found while the return path is congested.
#[test]
fn a_queue_is_seen_despite_a_congested_return_path() {
    let mut bed = Testbed::new(Some(10), 5, 600);
    bed.timestamps = true;
    bed.join(1, ALL);
    congest_the_return_path(&mut bed, 20.0);
    let estimate = bed.allocator.estimate();
    assert!((0.85..1.05).contains(&(estimate.capacity / bed.carries)), "{estimate:?} of {}", bed.carries);
    bed.queues.clear();
    congest_the_return_path(&mut bed, 30.0);
    assert!(bed.median_queue() < 0.05, "{}", bed.median_queue());
}

#[test]
fn an_estimate_lowered_without_reason_recovers_within_a_few_round_trips() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    bed.join(1, ALL);
    bed.run(10.0);
    congest_the_return_path(&mut bed, 20.0);
    assert!(bed.allocator.estimate().capacity < 0.95 * bed.carries, "{:?}", bed.allocator.estimate());
    bed.run(8.0 * 0.6);
    assert!(bed.allocator.estimate().capacity > 0.95 * bed.carries, "{:?}", bed.allocator.estimate());
    assert!(bed.use_over(10.0) > 0.97);
}

/// The former rate is tried once; then growth goes in small steps.
#[test]
fn a_link_that_has_become_slower_is_overfilled_once() {
    let mut bed = Testbed::new(Some(10), 10, 600);
    bed.join(1, ALL);
    bed.run(10.0);
    bed.carries /= 2.0;
    bed.run(12.0);
    (bed.dropped, bed.offered) = (0.0, 0.0);
    bed.queues.clear();
    let used = bed.use_over(120.0);
    assert!(used > 0.92 && bed.dropped == 0.0, "{used}, {} of {}", bed.dropped, bed.offered);
    let above = bed.queues.iter().filter(|queue| **queue > 0.1).count();
    assert!(above < bed.queues.len() / 20, "{above} of {} ticks", bed.queues.len());
}

/// After a pause of ten seconds and more, half of the capacity is used at once, and all of it after a round
/// trip; the queue stays short even where the link has become slower meanwhile.
#[test]
fn a_capacity_is_remembered_over_a_pause() {
    for (now_carries, rtt) in [(50, 600), (50, 40), (20, 600)] {
        let mut bed = Testbed::new(None, 50, rtt);
        bed.timestamps = true;
        bed.join(1, ALL);
        bed.run(20.0);
        bed.flows.clear();
        bed.run(30.0);
        let estimate = bed.allocator.estimate();
        assert!((0.48..0.52).contains(&(estimate.capacity / bed.carries)), "{estimate:?}");
        bed.carries = f64::from(now_carries) * 125e3;
        bed.queues.clear();
        bed.join(1, ALL);
        bed.run(0.2);
        assert!(bed.flows[0].sent > 0.9 * 0.2 * 0.5 * 50.0 * 125e3, "{}", bed.flows[0].sent);
        bed.run(4.0);
        let worst = bed.queues.iter().copied().fold(0.0, f64::max);
        let allowed = if now_carries < 25 { 0.6 } else { 0.06 };
        assert!(worst < allowed, "{now_carries} Mbit/s, {rtt} ms: {worst} s");
        let used = bed.use_over(5.0);
        assert!(used > 0.9, "{now_carries} Mbit/s, {rtt} ms: {used}");
    }
}

/// Requests that do not need the capacity do not wear its memory out.
#[test]
fn a_memory_that_is_not_tried_stays() {
    let mut bed = Testbed::new(None, 50, 600);
    bed.join(1, ALL);
    bed.run(20.0);
    for _ in 0..5 {
        bed.flows.clear();
        bed.run(30.0);
        bed.join(1, 0.5);
        bed.run(3.0);
    }
    bed.flows.clear();
    bed.run(30.0);
    bed.join(1, ALL);
    bed.run(3.0);
    assert!(bed.allocator.estimate().capacity > 0.95 * bed.carries, "{:?}", bed.allocator.estimate());
}

#[test]
fn a_memory_of_another_life_is_where_the_search_begins_unless_the_rate_is_known() {
    let bed = Testbed::new(None, 50, 600);
    assert!(!bed.allocator.estimate().is_measured);
    for (told, memory, begins_with) in
        [(None, Memory::Past, 20.0), (None, Memory::Present, 40.0), (Some(50), Memory::Past, 50.0)]
    {
        let mut bed = Testbed::new(told, 50, 600);
        bed.allocator.remember(40.0 * 125e3, memory);
        let estimate = bed.allocator.estimate();
        assert!(
            estimate.is_measured == told.is_none() && (estimate.capacity - begins_with * 125e3).abs() < 1.0,
            "{estimate:?}"
        );
        bed.join(1, ALL);
        bed.run(3.0);
        assert!(bed.use_over(5.0) > 0.95, "{told:?}");
    }
}

mod cross_traffic {
    use super::*;

    const MBPS: f64 = 125e3;
    /// Of the queue at the 95th percentile, seconds.
    const SHORT: f64 = 0.03;

    fn bed(told: bool, share: f64) -> Testbed {
        let mut bed = Testbed::new(told.then_some(10), 10, 600);
        let config = RateAllocatorConfig {
            cross_traffic: CrossTrafficShare::new(share).unwrap(),
            ..RateAllocatorConfig::new(told.then(|| Rate::mbps(10)), Duration::from_millis(600))
        };
        bed.allocator = RateAllocator::new(config);
        (bed.timestamps, bed.per) = (true, 0.001);
        bed
    }

    #[test]
    fn a_constant_stream_loses_nothing_and_the_connections_have_the_rest_without_a_queue() {
        for told in [true, false] {
            let mut bed = bed(told, 0.5);
            (0..4).for_each(|_| _ = bed.join(1, ALL));
            bed.run(10.0);
            bed.cross_traffic = 5.0 * MBPS;
            bed.queues.clear();
            bed.run(2.0);
            let worst = bed.queue_at(0.999);
            assert!(worst < 0.06, "{worst} s, told: {told}");
            (bed.dropped, bed.offered) = (0.0, 0.0);
            bed.queues.clear();
            let used = bed.use_over(60.0) + 0.5;
            assert!((0.97..1.0).contains(&used), "{used}, told: {told}, {:?}", bed.allocator.estimate());
            assert!(bed.queue_at(0.95) < SHORT && bed.dropped == 0.0, "{} s", bed.queue_at(0.95));
        }
    }

    /// What the count is for.
    #[test]
    fn without_a_count_the_same_stream_makes_a_queue() {
        let mut bed = bed(true, 0.5);
        bed.counted = None;
        bed.join(1, ALL);
        bed.run(10.0);
        bed.cross_traffic = 5.0 * MBPS;
        bed.queues.clear();
        bed.run(5.0);
        assert!(bed.queue_at(0.95) > 6.0 * SHORT, "{} s", bed.queue_at(0.95));
    }

    #[test]
    fn an_unknown_capacity_is_found_beside_a_stream_that_was_there_before() {
        for mbps in [0.0, 1.0, 3.0, 5.0, 8.0] {
            let mut bed = bed(false, 0.9);
            bed.cross_traffic = mbps * MBPS;
            bed.run(5.0);
            bed.join(1, ALL);
            bed.run(10.0);
            bed.queues.clear();
            let used = bed.use_over(30.0) + mbps / 10.0;
            assert!((0.95..1.01).contains(&used), "{used} beside {mbps}, {:?}", bed.allocator.estimate());
            // A train of little beside much is paid back slowly.
            let short = if mbps > 5.0 { 0.05 } else { SHORT };
            assert!(bed.queue_at(0.95) < short, "{} s beside {mbps}", bed.queue_at(0.95));
        }
    }

    #[test]
    fn bursts_are_made_room_for_and_pauses_are_used() {
        let mut bed = bed(true, 0.5);
        bed.join(1, ALL);
        bed.run(10.0);
        bed.queues.clear();
        let mut used = 0.0;
        for second in 0..40 {
            bed.cross_traffic = if second % 2 == 0 { 4.0 * MBPS } else { 0.0 };
            used += bed.use_over(1.0) / 40.0;
        }
        assert!(used + 0.2 > 0.95, "{used}");
        assert!(bed.queue_at(0.95) < SHORT, "{} s", bed.queue_at(0.95));
    }

    #[test]
    fn above_its_share_it_does_not_push_the_connections_below_theirs() {
        for (share, kept) in [(0.5, 0.5), (0.2, 0.8)] {
            let mut bed = bed(true, share);
            bed.room = 0.1;
            bed.join(1, ALL);
            bed.run(10.0);
            bed.cross_traffic = 9.0 * MBPS;
            bed.run(20.0);
            let mut least = f64::INFINITY;
            for _ in 0..1000 {
                bed.step();
                least = least.min(bed.flows[0].rate / (10.0 * MBPS));
            }
            assert!(least > 0.95 * kept, "{least} of {kept}, {:?}", bed.allocator.estimate());
        }
    }

    /// Others that fill what they are left, as TCP end to end does, and halve their rate once the queue is
    /// full.
    #[test]
    fn senders_that_probe_for_more_end_at_their_share() {
        for share in [0.3, 0.5, 0.7] {
            let mut bed = bed(true, share);
            bed.room = 0.1;
            bed.join(1, ALL);
            bed.run(5.0);
            bed.cross_traffic = MBPS;
            let (mut sum, mut dropped) = (0.0, 0.0);
            for step in 0..12_000 {
                bed.step();
                // 1 Mbit/s more in each six seconds.
                bed.cross_traffic += MBPS / 300.0;
                if bed.dropped > dropped {
                    bed.cross_traffic *= 0.7;
                    bed.run(0.6);
                    dropped = bed.dropped;
                }
                sum += if step >= 6_000 { bed.cross_traffic / (10.0 * MBPS) / 6_000.0 } else { 0.0 };
            }
            assert!((0.75..1.25).contains(&(sum / share)), "{sum} of {share}");
        }
    }

    #[test]
    fn a_slower_link_is_found_beside_cross_traffic_and_a_faster_one_too() {
        for mbps in [1.0, 2.0] {
            let mut bed = bed(false, 0.5);
            bed.join(1, ALL);
            bed.cross_traffic = mbps * MBPS;
            bed.run(15.0);
            bed.carries = 5.0 * MBPS;
            bed.run(10.0);
            bed.queues.clear();
            let used = bed.use_over(30.0) + mbps / 5.0;
            assert!((0.97..1.01).contains(&used), "{used}, {:?}", bed.allocator.estimate());
            assert!(bed.queue_at(0.9) < 0.05, "{} s", bed.queue_at(0.9));
            bed.carries = 10.0 * MBPS;
            bed.run(10.0);
            let used = bed.use_over(10.0) + mbps / 10.0;
            assert!((0.97..1.01).contains(&used), "{used}, {:?}", bed.allocator.estimate());
        }
    }
}

mod arbitrary {
    use proptest::prelude::*;

    use super::*;

    fn report() -> impl Strategy<Value = Report> {
        let millis = |most: u64| prop::option::of((0..most).prop_map(Duration::from_millis));
        let counters = (any::<u32>(), any::<u32>(), any::<u32>());
        (0u64..6, 0u32..200, 0u64..20_000, counters, any::<bool>(), millis(5000), millis(5000), any::<bool>())
            .prop_map(|(id, weight, at, (sent, delivered, lost), in_flight, rtt, min_rtt, window_limited)| {
                Report {
                    id,
                    weight,
                    at: Time::from_nanos(at * 1_000_000),
                    sent: sent.into(),
                    delivered: delivered.into(),
                    lost: lost.into(),
                    in_flight,
                    rtt,
                    min_rtt,
                    forward: rtt.filter(|_| id % 2 == 0),
                    window_limited,
                    backlogged: weight % 2 == 0,
                }
            })
    }

    proptest! {
        #[test]
        fn arbitrary_reports_give_finite_rates_within_the_capacity(
            ticks in prop::collection::vec(
                (0u64..2000, prop::option::of(any::<(u64, bool)>()), prop::collection::vec(report(), 0..6)),
                1..60,
            ),
            known: bool,
        ) {
            let capacity = known.then_some(Rate::mbps(10));
            let mut allocator = RateAllocator::new(RateAllocatorConfig::new(capacity, Duration::from_millis(600)));
            let mut now = Time::ZERO;
            for (passed, count, mut reports) in ticks {
                now += Duration::from_millis(passed);
                if let Some((bytes, is_all)) = count {
                    allocator.count(if is_all { EgressCount::All(bytes) } else { EgressCount::CrossTraffic(bytes) });
                }
                reports.sort_by_key(|report| report.id);
                reports.dedup_by_key(|report| report.id);
                let mut rates = Vec::new();
                allocator.tick(now, &reports, |_, rate| rates.push(rate));
                prop_assert!(rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0), "{rates:?}");
                let initial = allocator.initial_rate();
                prop_assert!(initial.rate.is_finite() && initial.rate >= 0.0, "{initial:?}");
                let greedy: f64 = rates.iter().sum();
                prop_assert!(!known || greedy <= 6.0 * 1.25e6, "{rates:?}");
            }
        }
    }
}

#[test]
fn a_sender_that_only_waits_for_acknowledgements_leaves_its_share_to_the_others() {
    let mut allocator =
        RateAllocator::new(RateAllocatorConfig::new(Some(Rate::mbps(8)), Duration::from_millis(600)));
    let report = |id, backlogged| Report {
        id,
        weight: 1,
        at: Time::ZERO,
        sent: 30_000,
        delivered: 0,
        lost: 0,
        in_flight: true,
        rtt: None,
        min_rtt: None,
        forward: None,
        window_limited: false,
        backlogged,
    };
    let mut rates = IdMap::default();
    allocator.tick(Time::ZERO, &[report(1, true), report(2, false)], |id, rate| _ = rates.insert(id, rate));
    assert!(rates[&1] > 0.99e6, "{rates:?}");
    allocator
        .tick(Time::ZERO + TICK, &[report(1, true), report(2, true)], |id, rate| _ = rates.insert(id, rate));
    assert!((rates[&1] / rates[&2] - 1.0).abs() < 1e-9, "{rates:?}");
}
