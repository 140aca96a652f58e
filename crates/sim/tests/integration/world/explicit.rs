//! Explicit rates end to end: senders that share out the link in front of them.

use std::num::NonZeroU32;
use std::time::Duration;

use bentpipe_link::Cause;
use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_sim::scenario::Scenario;
use bentpipe_sim::{FlowResult, RunResult};
use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_units::Rate;

use crate::world::scene::{chain, direction, flow, ms, split_at, symmetric};
use crate::world::{MB, go};

fn config(weight: u32) -> Config {
    let weight = NonZeroU32::new(weight).unwrap();
    Config { congestion: Algorithm::Explicit { weight }, lost_retransmissions: true, ..Config::linux() }
}

/// A link of 10 Mbit/s and 600 ms of this capacity, or of one that nobody shares out.
fn scene(per: f64, capacity: Option<Rate>) -> Scenario {
    let mut scenario = chain(vec![symmetric(direction(10, ms(300), per))]);
    scenario.links[0].shared[0] = capacity.map(|capacity| RateAllocatorConfig::new(Some(capacity), ms(600)));
    scenario.duration = Duration::from_secs(60);
    scenario
}

/// Of the payload that the link could carry: 1448 of 1500 bytes.
fn share(flow: &FlowResult) -> f64 {
    flow.goodput_bps / (10e6 * 1448.0 / 1500.0)
}

fn queue_drops(result: &RunResult) -> u64 {
    result.links[0].forward.dropped(Cause::QueueFull)
}

#[test]
fn a_link_is_filled_whatever_it_loses_and_without_a_drop() {
    for (per, least) in [(0.0, 0.95), (0.01, 0.92)] {
        let mut scenario = scene(per, Some(Rate::mbps(10)));
        scenario.flows.push(flow(&scenario, None, config(1)));
        let result = go(&scenario, 1);
        assert!(share(&result.flows[0]) > least, "{per}: {}", share(&result.flows[0]));
        assert_eq!(queue_drops(&result), 0, "{per}");
    }
}

#[test]
fn the_capacity_and_not_the_link_rate_is_shared_by_weight() {
    let mut scenario = scene(0.0, Some(Rate::mbps(4)));
    for weight in [1, 3] {
        scenario.flows.push(flow(&scenario, None, config(weight)));
    }
    let result = go(&scenario, 1);
    let [one, three] = [0, 1].map(|at| share(&result.flows[at]));
    assert!((0.36..0.405).contains(&(one + three)), "{one} and {three}");
    assert!((2.8..3.2).contains(&(three / one)), "{one} and {three}");
}

#[test]
fn without_a_rate_controller_it_is_ten_segments_in_a_round_trip() {
    let mut scenario = scene(0.0, None);
    scenario.flows.push(flow(&scenario, None, config(1)));
    let goodput = go(&scenario, 1).flows[0].goodput_bps;
    let standard = 10.0 * 1448.0 * 8.0 / 0.6;
    assert!((0.9..1.01).contains(&(goodput / standard)), "{goodput}");
}

/// Nobody sends for a while, and no rates are decided; the one that comes then has its rate all the same.
#[test]
fn after_a_pause_the_whole_link_is_there_at_once() {
    let mut scenario = scene(0.0, Some(Rate::mbps(10)));
    for start in [0, 30] {
        let mut download = flow(&scenario, Some(5 * MB), config(1));
        download.start += Duration::from_secs(start);
        scenario.flows.push(download);
    }
    let result = go(&scenario, 1);
    // 4.1 s of transmission, the handshake, the first window and the last acknowledgement.
    for flow in &result.flows {
        assert!(flow.finished && flow.seconds < 6.5, "{flow:?}");
    }
}

#[test]
fn a_splitter_in_front_of_the_link_is_a_sender_as_any_other() {
    let mut scenario =
        chain(vec![symmetric(direction(100, ms(5), 0.0)), symmetric(direction(10, ms(300), 0.01))]);
    scenario.links[1].shared[0] = Some(RateAllocatorConfig::new(Some(Rate::mbps(10)), ms(600)));
    scenario.duration = Duration::from_secs(60);
    let whole = flow(&scenario, None, Config::linux());
    scenario.flows.push(split_at(whole, 1, 16 << 20, config(1)));
    let result = go(&scenario, 1);
    assert!(share(&result.flows[0]) > 0.92, "{}", share(&result.flows[0]));
}
