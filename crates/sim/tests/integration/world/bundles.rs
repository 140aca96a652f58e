//! Flows in bundles, from node to node.

use std::time::Duration;

use bentpipe_link::OutageTrace;
use bentpipe_sim::scenario::{BundleSpec, Scenario};
use bentpipe_sim::{BundleResult, FlowResult, Observer};
use bentpipe_tcp::{Config, RtoLimits};
use bentpipe_units::Time;

use crate::world::scene::{chain, direction, flow, ms, split_at, symmetric};
use crate::world::{MB, gateway, go};

const SPEC: BundleSpec = BundleSpec {
    size: 100_000,
    segment: 64_000,
    reconnect: Duration::from_secs(1),
    keepalive: Duration::from_secs(60),
};

fn hybla() -> Config {
    Config { congestion: "hybla".parse().unwrap(), nagle: false, ..Config::linux() }
}

/// A flow over terrestrial and satellite link, with a bundle node between.
fn in_bundles(mut scenario: Scenario, bytes: Option<u64>, satellite: Config, spec: BundleSpec) -> Scenario {
    let whole = flow(&scenario, bytes, Config { nagle: false, ..Config::linux() });
    scenario.flows.push(split_at(whole, 1, 16 << 20, satellite));
    scenario.flows[0].bundles = Some(spec);
    scenario
}

/// The satellite link is dark from and for so many seconds.
fn dark(mut scenario: Scenario, outages: &[(u64, u64)]) -> Scenario {
    let outage = |&(from, length)| (Time::from_nanos(from * 1_000_000_000), Duration::from_secs(length));
    let trace: OutageTrace = outages.iter().map(outage).collect();
    let link = &mut scenario.links[1].config;
    (link.forward.outages, link.reverse.outages) = (trace.clone(), trace);
    scenario
}

fn bundles(flow: &FlowResult) -> &BundleResult {
    flow.bundles.as_ref().unwrap()
}

/// It gives up after three expiries of at most a second each.
fn impatient() -> Config {
    let rto = RtoLimits { max: Duration::from_secs(1), ..RtoLimits::LINUX };
    Config { rto, retries: Some(3), ..hybla() }
}

#[test]
fn without_losses_the_goodput_is_near_that_of_a_splitter() {
    let mut by_way = [None, Some(SPEC)].map(|bundles| {
        let mut scenario = in_bundles(gateway(0.0), Some(20 * MB), hybla(), SPEC);
        scenario.flows[0].bundles = bundles;
        go(&scenario, 1).flows.remove(0)
    });
    let [split, nodes] = &mut by_way;
    assert!(split.finished && nodes.finished && nodes.end == Some("closed"), "{nodes:?}");
    assert_eq!(bundles(nodes), &BundleResult { delivered: 200, sessions: vec![1, 1], repeated: vec![0, 0] });
    let ratio = nodes.goodput_bps / split.goodput_bps;
    assert!((0.85..1.0).contains(&ratio), "{ratio}");
}

/// Of one bundle over one link without a rate everything is round trips: the handshake, the contact headers,
/// SESS_INIT, and the bundle one way.
#[test]
fn the_first_bundle_comes_after_the_round_trips_of_the_session() {
    let mut link = symmetric(direction(1000, ms(300), 0.0));
    (link.forward.rate, link.reverse.rate) = (None, None);
    let mut scenario = chain(vec![link]);
    scenario.flows.push(flow(&scenario, Some(1000), hybla()));
    scenario.flows[0].bundles = Some(SPEC);
    let flow = go(&scenario, 1).flows.remove(0);
    assert_eq!((flow.bytes, flow.seconds), (1000, 2.1));
    // Contact header, SESS_INIT, and the bundle in one segment.
    assert_eq!(flow.legs[0].bytes_sent, 6 + 45 + 22 + 100 + 1000);
}

#[test]
fn transfers_of_a_dead_connection_are_repeated_and_delivered_once() {
    let scenario = in_bundles(gateway(0.01), Some(20 * MB + 1), impatient(), SPEC);
    let flow = go(&dark(scenario, &[(5, 20), (40, 20), (80, 20)]), 1).flows.remove(0);
    assert_eq!((flow.bytes, flow.finished, flow.end), (20 * MB + 1, true, Some("closed")));
    let result = bundles(&flow);
    assert_eq!((result.delivered, result.sessions[0]), (201, 1));
    assert!(result.sessions[1] >= 4, "{result:?}");
    assert!(flow.legs[1].bytes_sent > 20 * MB + 201 * 100, "{flow:?}");
}

/// Where whole bundles have arrived and their acknowledgements have not, the node there has them already.
#[test]
fn a_bundle_that_a_node_has_had_is_taken_once() {
    let small = BundleSpec { size: 10_000, ..SPEC };
    let repeated = (0..20).map(|seed| {
        let scenario = in_bundles(gateway(0.01), Some(4 * MB), impatient(), small);
        let flow = go(&dark(scenario, &[(4, 60)]), seed).flows.remove(0);
        assert_eq!((flow.bytes, bundles(&flow).delivered), (4 * MB, 400), "seed {seed}");
        bundles(&flow).repeated[1]
    });
    assert!(repeated.sum::<u64>() > 0);
}

/// The far end gives up while it waits to be acknowledged, with an answer yet to be sent (that is Nagle's
/// doing here). The near end has nothing on its way, so that TCP would never tell it.
#[test]
fn a_connection_with_a_vanished_peer_is_detected() {
    let mut link = symmetric(direction(10, ms(300), 0.0));
    // From when the second bundle has left.
    let dark = [(Time::from_nanos(2_000_000_000), Duration::from_secs(20))];
    link.forward.outages = dark.into_iter().collect();
    let mut scenario = chain(vec![link]);
    scenario.flows.push(flow(&scenario, Some(2000), hybla()));
    scenario.flows[0].bundles = Some(BundleSpec { size: 1000, ..SPEC });
    scenario.flows[0].legs[0].receiver = Config { nagle: true, ..impatient() };
    let flow = go(&scenario, 1).flows.remove(0);
    assert_eq!((flow.bytes, flow.end), (2000, Some("closed")), "{flow:?}");
    assert_eq!(bundles(&flow), &BundleResult { delivered: 2, sessions: vec![2], repeated: vec![1] });
}

/// A splitter's connection dies of an outage that is longer than TCP's patience, and what is not through is
/// lost with it.
#[test]
fn an_outage_that_no_connection_survives_ends_a_split_flow_and_not_one_in_bundles() {
    let [split, nodes] = [None, Some(SPEC)].map(|bundles| {
        let mut scenario = dark(in_bundles(gateway(0.0), Some(20 * MB), hybla(), SPEC), &[(10, 3600)]);
        scenario.flows[0].bundles = bundles;
        go(&scenario, 1).flows.remove(0)
    });
    assert!(!split.finished && split.end.is_some(), "{split:?}");
    assert!(nodes.finished && nodes.seconds > 3610.0, "{nodes:?}");
    // Meanwhile the rest has come to the gateway.
    assert!(nodes.splitters[0].most_bytes > 10 * MB, "{nodes:?}");
}

#[test]
fn a_node_holds_no_more_than_its_quota_and_the_sender_waits() {
    let held = |quota: Option<u64>| {
        let mut scenario = in_bundles(gateway(0.0), Some(20 * MB), hybla(), SPEC);
        scenario.flows[0].splitters[0].quota = quota;
        scenario.flows[0].legs[0].receiver.receive_buffer = 200_000;
        let flow = go(&dark(scenario, &[(5, 100)]), 1).flows.remove(0);
        assert!(flow.finished, "{flow:?}");
        (flow.splitters[0].most_bytes, flow.legs[0].bytes_sent)
    };
    let ((free, _), (bounded, sent)) = (held(None), held(Some(MB)));
    assert!(free > 10 * MB, "{free}");
    // Nine bundles of 100,100 bytes, and no byte of a tenth.
    assert_eq!(bounded, 9 * 100_100);
    assert!(sent < 21 * MB, "{sent}: nothing is sent again for want of room");
}

#[test]
fn a_run_is_the_same_to_the_byte_for_the_same_seed_and_another_for_another() {
    let scenario = dark(in_bundles(gateway(0.01), Some(5 * MB), impatient(), SPEC), &[(4, 30)]);
    let json = |seed| serde_json::to_string(&go(&scenario, seed)).unwrap();
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

/// The bytes that the destination has, at each sample.
#[derive(Default)]
struct Received(Vec<u64>);

impl Observer for Received {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, _: Time, _: usize, bytes: u64) {
        self.0.push(bytes);
    }
}

#[test]
fn a_flow_without_end_is_delivered_bundle_by_bundle() {
    let mut scenario = in_bundles(gateway(0.01), None, hybla(), SPEC);
    scenario.duration = Duration::from_secs(60);
    let mut received = Received::default();
    let result = bentpipe_sim::run(&scenario, 1, &mut received);
    assert!(result.flows[0].bytes > 10 * MB && result.flows[0].end.is_none(), "{:?}", result.flows[0]);
    assert!(received.0.iter().all(|bytes| bytes % SPEC.size == 0));
}
