//! Transfers in virtual time.

mod bbr3;
mod bundles;
mod capture;
mod closed_forms;
mod cross_traffic;
mod explicit;
mod followed;
mod hybla;
mod impairments;
mod link_ends;
mod mahimahi;
mod protect;
mod qlog;
mod scene;
mod traces;
mod udp;
mod unknown_capacity;
mod way_back;
mod wireshark;
mod xcp;

use std::time::Duration;

use bentpipe_sim::{RunResult, Scenario, Unobserved, run};
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_tcp::{Config, MetricsCache};
use bentpipe_units::{ByteCount, Time};
use scene::{chain, direction, flow, ms, split_at, symmetric};

const MB: u64 = 1_000_000;

fn go(scenario: &Scenario, seed: u64) -> RunResult {
    run(scenario, seed, &mut Unobserved)
}

/// Terrestrial in front, satellite behind.
fn gateway(per: f64) -> Scenario {
    chain(vec![symmetric(direction(100, ms(5), 0.0)), symmetric(direction(10, ms(300), per))])
}

#[test]
fn a_download_over_a_clean_geo_link_arrives_whole_and_takes_the_time_of_slow_start_and_rate() {
    let mut scenario = chain(vec![symmetric(direction(10, ms(300), 0.0))]);
    scenario.flows.push(flow(&scenario, Some(10 * MB), Config::default()));
    let result = go(&scenario, 1);
    let flow = &result.flows[0];
    assert_eq!((flow.bytes, flow.finished, flow.end), (10 * MB, true, Some("closed")));
    // 8.3 s of transmission, and six round trips or so of handshake and slow start.
    assert!((10.0..25.0).contains(&flow.seconds), "{flow:?}");
}

#[test]
fn a_run_is_the_same_to_the_byte_for_the_same_seed_and_another_for_another() {
    let mut scenario = gateway(0.01);
    scenario.flows.push(flow(&scenario, Some(MB), Config::default()));
    let json = |seed| serde_json::to_string(&go(&scenario, seed)).unwrap();
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

#[test]
fn a_splitter_forwards_everything_and_holds_no_more_than_its_buffers() {
    let mut scenario = gateway(0.01);
    let config = Config { receive_buffer: 500_000, ..Config::default() };
    let whole = flow(&scenario, Some(4 * MB), config);
    let hybla = Config { congestion: "hybla".parse().unwrap(), ..Config::default() };
    scenario.flows.push(split_at(whole, 1, 300_000, hybla));
    let result = go(&scenario, 1);
    let flow = &result.flows[0];
    assert_eq!((flow.bytes, flow.finished, flow.end), (4 * MB, true, Some("closed")));
    let held = flow.splitters[0];
    assert!((300_000..=800_000).contains(&held.most_bytes), "{held:?}");
    assert!(held.mean_bytes > 100_000.0, "{held:?}");
}

#[test]
fn at_one_loss_in_a_hundred_everything_arrives_with_every_congestion_control() {
    for congestion in Algorithm::NAMES {
        let mut scenario = gateway(0.01);
        let config = Config { congestion: congestion.parse().unwrap(), ..Config::default() };
        scenario.flows.push(flow(&scenario, Some(2 * MB), config));
        let flow = &go(&scenario, 3).flows[0];
        assert_eq!((flow.bytes, flow.end), (2 * MB, Some("closed")), "{congestion}");
        assert!(flow.retransmissions > 10, "{congestion}: {flow:?}");
    }
}

/// A second flow from node to node begins with the threshold that the first one has found; not that to
/// another node, nor one without a cache.
#[test]
fn a_flow_begins_with_what_the_one_before_it_has_found() {
    let losses = |metrics_cache: MetricsCache, first: MetricsCache| {
        let mut link = symmetric(direction(10, ms(100), 0.0));
        link.forward.queue = Some(ByteCount::new(60_000));
        let mut scenario = chain(vec![link]);
        for (metrics_cache, start) in [(first, 0), (metrics_cache, 100)] {
            let config = Config { metrics_cache, ..Config::default() };
            let mut flow = flow(&scenario, Some(3 * MB), config);
            flow.start = Time::ZERO + Duration::from_secs(start);
            scenario.flows.push(flow);
        }
        let result = go(&scenario, 1);
        [0, 1].map(|index| result.flows[index].legs[0].retransmissions)
    };
    let all = MetricsCache::RoundTripAndSsthresh;
    let [first, second] = losses(all, all);
    assert!(first > 20 && second < first / 4, "{first} and {second}");
    let [first, second] = losses(all, MetricsCache::Off);
    assert_eq!(first, second, "nothing is remembered");
    let [first, second] = losses(MetricsCache::RoundTrip, all);
    assert_eq!(first, second, "the threshold is not recalled");
}
