//! Uploads of explicit rates beside downloads that fill the way back of their acknowledgements.

use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_link::{Counters, OutageTrace};
use bentpipe_sim::scenario::{Hop, Scenario};
use bentpipe_sim::{Observer, run};
use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_units::{ByteCount, Rate, Time};

use crate::world::scene::{chain, direction, flow, ms, symmetric};

const UPLOADS: Range<usize> = 0..2;
const DOWNLOADS: Range<usize> = 2..6;
/// The second in which the downloads begin, and that in which there is an outage if there is one.
const DOWNLOADS_BEGIN: usize = 10;
const OUTAGE: usize = 30;
const END: usize = 90;
/// The receive buffer of four downloads that keep half a queue standing, bytes.
const STEADY_WINDOW: u64 = 280_000;

/// What the applications have received, by flow and second.
#[derive(Default)]
struct Received([Vec<u64>; 6]);

impl Observer for Received {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, _now: Time, flow: usize, bytes: u64) {
        self.0[flow].push(bytes);
    }
}

impl Received {
    /// What these flows had together between two seconds, Mbit/s of payload.
    fn mbps(&self, flows: Range<usize>, from: usize, to: usize) -> f64 {
        let bytes: u64 = flows.map(|flow| self.0[flow][to] - self.0[flow][from]).sum();
        bytes as f64 * 8e-6 / (to - from) as f64
    }
}

/// 10 Mbit/s each way with a queue of one bandwidth-delay product, the way out shared out; an outage of so
/// many seconds.
fn scene(downloads: Algorithm, outage: u32, timestamps: bool) -> Scenario {
    let mut way = direction(10, ms(300), 0.0);
    way.outages = OutageTrace::from_csv(&format!("start_s,duration_s\n{OUTAGE},{outage}\n")).unwrap();
    let mut scenario = chain(vec![symmetric(way)]);
    scenario.links[0].shared[0] = Some(RateAllocatorConfig::new(Some(Rate::mbps(10)), ms(600)));
    scenario.duration = Duration::from_secs(END as u64 + 1);
    scenario.sample_interval = Duration::from_secs(1);
    let congestion = Algorithm::Explicit { weight: NonZeroU32::MIN };
    for _ in UPLOADS {
        let config = Config { congestion, timestamps, lost_retransmissions: true, ..Config::linux() };
        scenario.flows.push(flow(&scenario, None, config));
    }
    for _ in DOWNLOADS {
        let config = Config { congestion: downloads, ..Config::linux() };
        let mut download = flow(&scenario, None, config);
        download.legs[0].path = vec![Hop { link: 0, forward: false }];
        download.start += Duration::from_secs(DOWNLOADS_BEGIN as u64);
        scenario.flows.push(download);
    }
    scenario
}

fn received(downloads: &str, outage: u32, timestamps: bool) -> Received {
    let mut received = Received::default();
    run(&scene(downloads.parse().unwrap(), outage, timestamps), 1, &mut received);
    received
}

/// The downloads' own acknowledgements take a part of the uploads' way.
#[test]
fn a_full_way_back_is_no_queue_of_the_uploads() {
    for downloads in ["cubic", "hybla"] {
        for outage in [0, 3, 8] {
            let received = received(downloads, outage, true);
            let before = received.mbps(UPLOADS, DOWNLOADS_BEGIN + 5, OUTAGE);
            let after = received.mbps(UPLOADS, OUTAGE + outage as usize + 5, END);
            assert!(before > 8.5 && after > 8.5, "{downloads}, {outage} s: {before} and {after}");
            let down = received.mbps(DOWNLOADS, OUTAGE + outage as usize + 10, END);
            assert!(down > 9.0, "{downloads}, {outage} s: {down}");
        }
    }
}

/// Without timestamps a full way back is taken for a queue, until it has stood unchanged for three round
/// trips: here that of downloads whose receivers limit them.
///
/// Unchanged is within 5 ms, as round trips vary by that much anyway. Four downloads with Hybla are no
/// example of it: their queue grows by 1.6 ms in a second, from 154 ms at 15 s to 276 ms at the end, on top
/// of 3 ms from one moment to the next, and three round trips take 2.3 s. The uploads then stay at 1.2
/// Mbit/s. After an outage of 3 s, whose longer queue grows by 1 ms in a second, they are at 7.7 Mbit/s from
/// 48 s on.
#[test]
fn without_timestamps_a_steady_way_back_is_found_out_to_be_none() {
    let mut scenario = scene(Algorithm::Cubic, 0, false);
    for download in &mut scenario.flows[DOWNLOADS] {
        download.legs[0].receiver.receive_buffer = STEADY_WINDOW;
    }
    let mut received = Received::default();
    run(&scenario, 1, &mut received);
    let uploads = received.mbps(UPLOADS, 50, END);
    assert!(uploads > 8.0, "{uploads}");
}

/// The longest that acknowledgements wait, seconds, and the goodput, Mbit/s, of one download of 10 Mbit/s that
/// loses one packet in a hundred, over a way back of 200 kbit/s with a queue of 30 s.
fn over_a_bloated_way_back(seed: u64) -> (f64, f64) {
    #[derive(Default)]
    struct Longest(u64);

    impl Observer for Longest {
        fn wants_samples(&self) -> bool {
            true
        }

        fn queue(&mut self, _: Time, _: usize, forward: bool, backlog: ByteCount, _: &Counters) {
            self.0 = self.0.max(if forward { 0 } else { backlog.get() });
        }
    }

    let mut scenario = chain(vec![symmetric(direction(10, ms(300), 0.01))]);
    let back = &mut scenario.links[0].config.reverse;
    (back.rate, back.queue) = (Rate::from_bps(200_000), Some(ByteCount::new(750_000)));
    scenario.links[0].shared[0] = Some(RateAllocatorConfig::new(Some(Rate::mbps(10)), ms(600)));
    scenario.duration = Duration::from_secs(120);
    scenario.sample_interval = ms(100);
    let congestion = Algorithm::Explicit { weight: NonZeroU32::MIN };
    let config = Config { congestion, lost_retransmissions: true, ..Config::linux() };
    scenario.flows.push(flow(&scenario, None, config));
    let mut longest = Longest::default();
    let result = run(&scenario, seed, &mut longest);
    (longest.0 as f64 * 8.0 / 200e3, result.flows[0].goodput_bps / 1e6)
}

#[test]
fn acknowledgements_that_fill_a_thin_way_back_do_not_wait_there_for_half_a_minute() {
    for seed in 1..4 {
        let (longest, mbps) = over_a_bloated_way_back(seed);
        println!("seed {seed}: {longest:.1} s at the longest, {mbps:.2} Mbit/s");
        // 200 kbit/s are 300 acknowledgements of 84 bytes with SACK blocks, of a segment each: 3.4 Mbit/s.
        assert!(longest < 6.0 && mbps > 0.9 * 3.4, "seed {seed}: {longest} s, {mbps} Mbit/s");
    }
}
