//! The same comparison in virtual time, for machines that do not allow network namespaces.

use std::time::Duration;

use bentpipe_kernel::timers::{Intentions, Timers};
use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_sim::scenario::{FlowSpec, Hop, LegSpec, LinkSpec, Scenario, Side, SplitterSpec};
use bentpipe_sim::{Observer, run};
use bentpipe_tcp as tcp;
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_units::{Rate, Time};
use rayon::prelude::*;

use super::{Comparison, RESTART_WITHIN, Run, SURVIVE_OUTAGE, Scheme, Settings};
use crate::results::World;

/// Gateway and server stand side by side.
const TERRESTRIAL: Rate = Rate::mbps(1000);
/// A transfer that takes longer than this has failed.
const TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// The client's receive buffer in bandwidth-delay products. The kernel's own begins small and grows, which
/// virtual time does not model.
const CLIENT_BUFFER_BDPS: u64 = 4;
const SMALLEST_BUFFER: u64 = 131_072;

/// Runs all schemes with the simulator's TCP instead of the kernel's. Schemes whose congestion control exists
/// only in the kernel are skipped; their names are returned as well.
pub fn compare(settings: &Settings) -> (Comparison, Vec<String>) {
    let modelled = |scheme: &&Scheme| algorithm(scheme.congestion()).is_some();
    let (schemes, left_out): (Vec<&Scheme>, Vec<&Scheme>) = settings.schemes.iter().partition(modelled);
    let runs = schemes.into_par_iter().map(|scheme| cross(settings, scheme)).collect();
    let comparison = Comparison {
        world: World::Sim,
        limit_bps: settings.limit_bps(),
        seed: settings.seed,
        kernel: String::new(),
        runs,
    };
    (comparison, left_out.into_iter().map(|scheme| scheme.name()).collect())
}

fn algorithm(congestion: &str) -> Option<Algorithm> {
    match congestion {
        "reno" => Some(Algorithm::NewReno),
        name => name.parse().ok(),
    }
}

fn cross(settings: &Settings, scheme: &Scheme) -> Run {
    let mut timeline = Timeline::default();
    let result = run(&scenario(settings, scheme), settings.seed, &mut timeline);
    let flow = &result.flows[0];
    timeline.0.push((Duration::from_secs_f64(flow.seconds), flow.bytes));
    Run {
        name: scheme.name(),
        congestion: scheme.congestion().to_owned(),
        goodput_bps: flow.goodput_bps,
        bytes: flow.bytes,
        seconds: flow.seconds,
        identical: flow.finished,
        finished: flow.finished,
        timeline: timeline.0,
    }
}

/// A client that calls a server through a gateway, which splits or does not.
fn scenario(settings: &Settings, scheme: &Scheme) -> Scenario {
    let ground = DirectionConfig { rate: Some(TERRESTRIAL), ..DirectionConfig::default() };
    let ground = LinkConfig { forward: ground.clone(), reverse: ground };
    let link = |name: &str, between, config, shared| LinkSpec {
        name: name.into(),
        between,
        config,
        ends: Default::default(),
        shared,
        protect: None,
    };
    let allocator = RateAllocatorConfig::new(Some(settings.rate), settings.rtt);
    Scenario {
        title: "a download over a satellite".into(),
        duration: TIMEOUT,
        sample_interval: Duration::from_millis(100),
        nodes: ["server", "gateway", "client"].map(String::from).to_vec(),
        links: vec![
            link("terrestrial", [0, 1], ground, [None, None]),
            link("satellite", [1, 2], settings.link(), [Some(allocator), None]),
        ],
        flows: vec![flow(settings, scheme)],
        udp: Vec::new(),
    }
}

fn flow(settings: &Settings, scheme: &Scheme) -> FlowSpec {
    let hop = |link| Hop { link, forward: true };
    let bdp = settings.rate.bytes_in(settings.rtt);
    let end = tcp::Config { receive_buffer: buffer(bdp), send_buffer: buffer(bdp), ..tcp::Config::linux() };
    let congestion = algorithm(scheme.congestion()).expect("only such schemes are run");
    let (legs, splitters) = match scheme {
        Scheme::EndToEnd(_) => {
            let sender = tcp::Config { congestion, ..end };
            (vec![LegSpec { path: vec![hop(0), hop(1)], sender, receiver: end }], Vec::new())
        }
        Scheme::Split(_) => {
            let gateway = tcp::Config { congestion, ..satellite_leg(settings, end) };
            let legs = vec![
                LegSpec { path: vec![hop(0)], sender: end, receiver: end },
                LegSpec { path: vec![hop(1)], sender: gateway, receiver: end },
            ];
            (legs, vec![SplitterSpec { node: 1, buffer: buffer(bdp), quota: None }])
        }
    };
    FlowSpec {
        name: scheme.name(),
        bytes: Some(settings.bytes),
        start: Time::ZERO,
        start_within: Duration::ZERO,
        opened_by: Side::Destination,
        legs,
        splitters,
        bundles: None,
    }
}

fn buffer(bdp: u64) -> u64 {
    (CLIENT_BUFFER_BDPS * bdp).clamp(SMALLEST_BUFFER, tcp::MAX_RECEIVE_BUFFER)
}

/// The timers that the proxy's satellite leg has.
fn satellite_leg(settings: &Settings, end: tcp::Config) -> tcp::Config {
    let intentions = Intentions {
        restart_within: Some(RESTART_WITHIN),
        survive_outage: Some(SURVIVE_OUTAGE),
        ..Intentions::default()
    };
    // With the queue of one bandwidth-delay product a round trip takes twice as long.
    let timers = Timers::derive(intentions, 2 * settings.rtt);
    let max = timers.rto_max.unwrap_or(end.rto.max);
    tcp::Config { rto: tcp::RtoLimits { max, ..end.rto }, user_timeout: timers.user_timeout, ..end }
}

/// Bytes received over time.
#[derive(Debug, Default)]
struct Timeline(Vec<(Duration, u64)>);

impl Observer for Timeline {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, now: Time, _: usize, bytes: u64) {
        self.0.push((now - Time::ZERO, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bentpipe_leads_as_on_the_kernel_and_ways_without_a_model_are_left_out() {
        let settings = Settings::default();
        let schemes = settings.schemes.iter().cloned().chain([Scheme::EndToEnd("vegas".into())]);
        let settings = Settings { schemes: schemes.collect(), ..settings };
        let (comparison, left_out) = compare(&settings);
        assert_eq!(left_out, ["vegas"]);
        let goodput = |name: &str| comparison.runs.iter().find(|run| run.name == name).unwrap().goodput_bps;
        assert!(goodput("bentpipe") > 10.0 * goodput("reno"), "{comparison:?}");
        assert!(comparison.runs.iter().all(|run| run.identical && run.bytes == 4_000_000));
        let svg = comparison.figure().to_svg().unwrap();
        let labels: Vec<&str> = svg.lines().filter(|line| line.parse::<f64>().is_ok()).collect();
        for label in ["1", "2", "5", "10", "20", "50", "100", "200"] {
            assert!(labels.contains(&label), "no {label} s in {labels:?}");
        }
        assert!(!svg.contains("Not shown"), "every point has a place on the logarithmic axis");
    }
}
