//! Senders whose rate nobody knows: the capacity of the link is found and followed.

use std::num::NonZeroU32;
use std::time::Duration;

use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_link::{Counters, DirectionConfig, LinkTrace};
use bentpipe_sim::scenario::Scenario;
use bentpipe_sim::{Observer, run};
use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_units::{ByteCount, Rate, Time};

use crate::world::scene::{chain, direction, flow, ms, symmetric};

/// The bytes that have arrived and those in the queue, at each sample of 10 ms.
#[derive(Default)]
struct Samples {
    arrived: Vec<u64>,
    queued: Vec<u64>,
}

impl Observer for Samples {
    fn wants_samples(&self) -> bool {
        true
    }

    fn queue(&mut self, _: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        if link == 0 && forward {
            self.queued.push(backlog.get());
            self.arrived.push(counters.delivered_bytes);
        }
    }
}

const PER_SECOND: usize = 100;

/// A download over this direction, and what the rate allocator is told of its capacity.
fn measure(direction: DirectionConfig, told: Option<Rate>, seconds: u64, seed: u64) -> Samples {
    let rtt = 2 * direction.delay;
    let mut scenario: Scenario = chain(vec![symmetric(direction)]);
    scenario.links[0].shared[0] = Some(RateAllocatorConfig::new(told, rtt));
    scenario.duration = Duration::from_secs(seconds);
    scenario.sample_interval = ms(1000 / PER_SECOND as u64);
    let congestion = Algorithm::Explicit { weight: NonZeroU32::MIN };
    let config = Config { congestion, lost_retransmissions: true, ..Config::linux() };
    scenario.flows.push(flow(&scenario, None, config));
    let mut samples = Samples::default();
    run(&scenario, seed, &mut samples);
    samples
}

impl Samples {
    /// The bytes that have left the link in these seconds.
    fn carried(&self, from: f64, to: f64) -> f64 {
        let left = |at: f64| {
            let sample = ((at * PER_SECOND as f64) as usize).min(self.arrived.len() - 1);
            self.arrived[sample].saturating_sub(self.queued[sample]) as f64
        };
        left(to) - left(from)
    }

    /// The 95th percentile of the queue in these seconds, in seconds at this rate.
    fn queue_p95(&self, from: f64, to: f64, mbps: u64) -> f64 {
        let [from, to] = [from, to].map(|at| (at * PER_SECOND as f64) as usize);
        let mut queued = self.queued[from..to.min(self.queued.len())].to_vec();
        queued.sort_unstable();
        queued[queued.len() * 95 / 100] as f64 / (mbps as f64 * 125e3)
    }
}

/// After five seconds the sender has what it would have if the capacity were known, and the queue is short.
#[test]
fn an_unknown_capacity_is_used_as_a_known_one_after_five_seconds() {
    for (mbps, rtt, per) in [
        (2, 600, 0.01),
        (10, 600, 0.01),
        (50, 600, 0.0),
        (50, 600, 0.01),
        (100, 150, 0.001),
        (100, 40, 0.001),
    ] {
        let seconds = if mbps < 10 { 40 } else { 20 };
        let link = direction(mbps, ms(rtt / 2), per);
        let found = measure(link.clone(), None, seconds, 1);
        let told = measure(link, Some(Rate::mbps(mbps)), seconds, 1);
        let end = seconds as f64;
        let ratio = found.carried(5.0, end) / told.carried(5.0, end);
        let queue = found.queue_p95(5.0, end, mbps);
        let name = format!("{mbps} Mbit/s, {rtt} ms, PER {per}");
        println!("{name}: {ratio:.3} of what it has if told, queue {:.1} ms", queue * 1e3);
        assert!(ratio > 0.95, "{name}: {ratio} of what it has if told");
        // A train is of eight packets beyond the capacity, or more.
        let allowed = if mbps < 10 { 0.07 } else { 0.035 };
        assert!(queue < allowed, "{name}: the queue is {queue} s at the 95th percentile");
    }
}

/// The capacity falls to a fifth for 12 s and rises again.
#[test]
fn a_capacity_that_changes_is_followed_down_and_up() {
    for (most, rtt, per, [down, up]) in [(50, 600, 0.01, [3.0, 5.0]), (100, 40, 0.001, [1.0, 1.5])] {
        let least = most / 5;
        let trace = format!("at_s,rate\n0,{most}Mbit/s\n10,{least}Mbit/s\n22,{most}Mbit/s\n");
        let mut link = direction(most, ms(rtt / 2), per);
        link.trace = LinkTrace::from_csv(&trace).unwrap();
        let samples = measure(link, None, 35, 1);
        for (from, to, mbps) in [(5.0, 10.0, most), (10.0 + down, 22.0, least), (22.0 + up, 34.5, most)] {
            let used = samples.carried(from, to) / ((to - from) * mbps as f64 * 125e3);
            let settled = if mbps == least { from + 2.0 } else { from };
            let queue = samples.queue_p95(settled, to, mbps);
            let name = format!("{rtt} ms, {from} to {to} s at {mbps} Mbit/s");
            println!("{name}: {used:.3}, queue {:.1} ms", queue * 1e3);
            assert!(used > 0.93, "{name}: {used} of the capacity is used");
            assert!(queue < 0.05, "{name}: the queue is {queue} s at the 95th percentile");
        }
    }
}
