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

/// A download over a link of this trace, or this rate, whose capacity nobody knows.
fn measure(direction: DirectionConfig, seconds: u64, seed: u64) -> Samples {
    let rtt = 2 * direction.delay;
    let mut scenario: Scenario = chain(vec![symmetric(direction)]);
    scenario.links[0].shared[0] = Some(RateAllocatorConfig { capacity: None, rtt });
    scenario.duration = Duration::from_secs(seconds);
    scenario.sample_interval = ms(1000 / PER_SECOND as u64);
    let congestion = Algorithm::Explicit { weight: NonZeroU32::MIN };
    let config = Config { congestion, lost_retransmissions: true, ..Config::linux() };
    scenario.flows.push(flow(&scenario, None, config));
    let mut samples = Samples::default();
    run(&scenario, seed, &mut samples);
    samples
}

#[test]
fn print() {
    let Ok(trace) = std::env::var("STEPS") else { return };
    let rtt: u64 = std::env::var("RTT").unwrap().parse().unwrap();
    let per: f64 = std::env::var("PER").unwrap().parse().unwrap();
    let trace = LinkTrace::from_csv(&format!("at_s,rate\n{}\n", trace.replace(' ', "\n"))).unwrap();
    let mut direction = direction(50, ms(rtt / 2), per);
    direction.trace = trace.clone();
    let seconds = std::env::var("SECONDS").unwrap().parse().unwrap();
    let samples = measure(direction, seconds, 1);
    for step in (0..samples.arrived.len() - 50).step_by(50) {
        let at = |step: usize| {
            trace.capacity(Some(Rate::mbps(50)), Time::ZERO + ms(10 * step as u64)).unwrap_or(0)
        };
        let capacity = (at(step + 50) - at(step)) as f64;
        let left = |step: usize| samples.arrived[step] - samples.queued[step].min(samples.arrived[step]);
        let arrived = left(step + 50) as f64 - left(step) as f64;
        let queue = samples.queued[step..step + 50].iter().max().unwrap();
        println!(
            "{:5.1} s {:6.2} Mbit/s {:5.1}% queue {:.0} ms",
            step as f64 / 100.0,
            arrived * 16e-6,
            100.0 * arrived / capacity,
            *queue as f64 * 500.0 / capacity
        );
    }
}
