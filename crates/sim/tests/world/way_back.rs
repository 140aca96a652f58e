//! Uploads of explicit rates beside downloads that fill the way back of their acknowledgements.

use std::time::Duration;

use bentpipe_link::OutageTrace;
use bentpipe_link::explicit::SharerConfig;
use bentpipe_sim::scenario::{FlowSpec, Hop, Scenario, Side};
use bentpipe_sim::{Observer, run};
use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_units::{ByteCount, Rate, Time};

use crate::scene::{chain, direction, flow, ms, symmetric};

const UPLOADS: usize = 2;
const DOWNLOADS: usize = 4;

/// What the applications have received, each second.
#[derive(Default)]
struct Received([Vec<u64>; UPLOADS + DOWNLOADS], Vec<u64>);

impl Observer for Received {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, _now: Time, flow: usize, bytes: u64) {
        self.0[flow].push(bytes);
    }
    fn queue(
        &mut self,
        _now: Time,
        link: usize,
        forward: bool,
        backlog: ByteCount,
        _: &bentpipe_link::Counters,
    ) {
        if !forward && link == 0 {
            self.1.push(backlog.get() * 8 / 10_000)
        }
    }
}

impl Received {
    /// What these flows had together in each of so many seconds, Mbit/s of payload.
    fn mbps(&self, flows: std::ops::Range<usize>, from: usize, to: usize) -> f64 {
        let bytes: u64 = flows.map(|flow| self.0[flow][to] - self.0[flow][from]).sum();
        bytes as f64 * 8e-6 / (to - from) as f64
    }
}

fn scene(downloads: &str, outage: f64) -> Scenario {
    let mut way = direction(10, ms(300), 0.0);
    if outage > 0.0 {
        way.outages = OutageTrace::from_csv(&format!("start_s,duration_s\n30,{outage}\n")).unwrap();
    }
    let mut scenario = chain(vec![symmetric(way)]);
    scenario.links[0].shared[0] = Some(SharerConfig { capacity: Some(Rate::mbps(10)), rtt: ms(600) });
    scenario.duration = Duration::from_secs(100);
    scenario.sample_interval = Duration::from_secs(1);
    let weight = std::num::NonZeroU32::MIN;
    let explicit =
        Config { congestion: Algorithm::Explicit { weight }, lost_retransmissions: true, ..Config::linux() };
    for _ in 0..UPLOADS {
        scenario.flows.push(flow(&scenario, None, explicit));
    }
    let down = Config { congestion: downloads.parse().unwrap(), ..Config::linux() };
    for _ in 0..DOWNLOADS {
        let mut download = flow(&scenario, None, down);
        download.legs[0].path = vec![Hop { link: 0, forward: false }];
        download.start = Time::ZERO + ms(10_000);
        scenario.flows.push(download);
    }
    scenario
}

#[test]
fn explore() {
    for downloads in ["cubic", "new-reno", "hybla", "bbr"] {
        if downloads.parse::<Algorithm>().is_err() {
            println!("no {downloads}");
            continue;
        }
        for outage in [0.0, 3.0, 8.0] {
            let mut received = Received::default();
            run(&scene(downloads, outage), 1, &mut received);
            println!("{downloads} outage {outage}");
            for (name, flows) in [("up", 0..2), ("down", 2..6)] {
                let line: Vec<_> = (0..95)
                    .step_by(5)
                    .map(|at| format!("{:.1}", received.mbps(flows.clone(), at, at + 5)))
                    .collect();
                println!("  {name} {}", line.join(" "));
            }
            println!("  q {:?}", &received.1[20..90]);
        }
    }
}
