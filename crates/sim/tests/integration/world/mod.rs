//! Transfers in virtual time.

mod bbr3;
mod bundles;
mod closed_forms;
mod cross_traffic;
mod explicit;
mod hybla;
mod impairments;
mod link_ends;
mod scene;
mod traces;
mod udp;
mod unknown_capacity;
mod way_back;
mod xcp;

use bentpipe_sim::{RunResult, Scenario, Unobserved, run};
use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::Algorithm;
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
    assert_eq!((flow.bytes, flow.complete, flow.end), (10 * MB, true, Some("finished")));
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
    assert_eq!((flow.bytes, flow.complete, flow.end), (4 * MB, true, Some("finished")));
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
        assert_eq!((flow.bytes, flow.end), (2 * MB, Some("finished")), "{congestion}");
        assert!(flow.retransmissions > 10, "{congestion}: {flow:?}");
    }
}
