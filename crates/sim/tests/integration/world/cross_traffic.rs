//! Connections with explicit rates beside one that has none and wants all of the link.

use std::num::NonZeroU32;
use std::time::Duration;

use bentpipe_link::Counters;
use bentpipe_link::explicit::{CrossTrafficAqm, CrossTrafficShare, RateAllocatorConfig};
use bentpipe_sim::{Observer, run};
use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_units::{ByteCount, Rate, Time};

use crate::world::scene::{chain, direction, flow, ms, symmetric};

const MBPS: u64 = 10;
/// What follows is measured from then on.
const FROM: Time = Time::from_nanos(20_000_000_000);
const UNTIL: f64 = 80.0;

/// The queue at each sample of 10 ms, and what each flow has read by [`FROM`] and last.
#[derive(Default)]
struct Samples {
    queued: Vec<u64>,
    read: [[u64; 2]; 2],
}

impl Observer for Samples {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        self.read[flow][1] = bytes;
        if now <= FROM {
            self.read[flow][0] = bytes;
        }
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, _: &Counters) {
        if link == 0 && forward && now > FROM {
            self.queued.push(backlog.get());
        }
    }
}

impl Samples {
    /// A flow's part of the link, without headers.
    fn part(&self, flow: usize) -> f64 {
        let [before, after] = self.read[flow];
        (after - before) as f64 * 8.0 / ((UNTIL - FROM.as_secs_f64()) * MBPS as f64 * 1e6)
    }

    /// The 95th percentile of the queue, seconds.
    fn queue_s(&self) -> f64 {
        let mut queued = self.queued.clone();
        queued.sort_unstable();
        queued[queued.len() * 95 / 100] as f64 / (MBPS as f64 * 125e3)
    }
}

/// A download with a rate beside one by CUBIC, whose share is half of the link.
fn beside_cubic(aqm: CrossTrafficAqm) -> Samples {
    let mut scenario = chain(vec![symmetric(direction(MBPS, ms(50), 0.0))]);
    let config = RateAllocatorConfig::new(Some(Rate::mbps(MBPS)), ms(100));
    let cross_traffic = CrossTrafficShare::new(0.5).unwrap();
    scenario.links[0].shared[0] = Some(RateAllocatorConfig { cross_traffic, aqm, ..config });
    scenario.duration = Duration::from_secs_f64(UNTIL);
    scenario.sample_interval = ms(10);
    for congestion in [Algorithm::Explicit { weight: NonZeroU32::MIN }, "cubic".parse().unwrap()] {
        let config = Config { congestion, ..Config::linux() };
        scenario.flows.push(flow(&scenario, None, config));
    }
    let mut samples = Samples::default();
    run(&scenario, 1, &mut samples);
    samples
}

#[test]
fn an_aqm_holds_cubic_to_its_share_without_the_queue_that_it_makes_otherwise() {
    let [off, drop] = [CrossTrafficAqm::Off, CrossTrafficAqm::Drop].map(beside_cubic);
    let shown = |samples: &Samples| {
        format!("{:.3} and {:.3}, {:.3} s", samples.part(0), samples.part(1), samples.queue_s())
    };
    println!("off: {}; drop: {}", shown(&off), shown(&drop));
    assert!(off.queue_s() > 0.06, "{}", shown(&off));
    assert!(drop.queue_s() < 0.03, "{}", shown(&drop));
    assert!(drop.part(0) > 0.45 && drop.part(1) > 0.35, "{}", shown(&drop));
    assert!(drop.part(0) + drop.part(1) > 0.9, "{}", shown(&drop));
}
