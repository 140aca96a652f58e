//! Links that reorder, duplicate and corrupt.

use std::time::Duration;

use bentpipe_link::agent::LinkEndConfig;
use bentpipe_link::agent::arq::ArqConfig;
use bentpipe_link::{DirectionConfig, Impairments};
use bentpipe_sim::{RunResult, Scenario};
use bentpipe_tcp::Config;
use bentpipe_units::{ByteCount, Probability};

use crate::world::scene::{chain, direction, flow, ms, symmetric};
use crate::world::{MB, go};

fn probability(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

/// 10 Mbit/s and 50 ms, with a queue that does not overflow; a full-size packet takes 1.2 ms.
fn impaired(impairments: Impairments) -> Scenario {
    let queue = Some(ByteCount::new(10 * MB));
    let mut scenario =
        chain(vec![symmetric(DirectionConfig { impairments, queue, ..direction(10, ms(50), 0.0) })]);
    scenario.flows.push(flow(&scenario, Some(MB), Config::default()));
    scenario
}

fn assert_whole(result: &RunResult) {
    let flow = &result.flows[0];
    assert_eq!((flow.bytes, flow.finished, flow.end), (MB, true, Some("closed")));
}

#[test]
fn a_download_survives_every_impairment_and_is_repeated_by_its_seed() {
    let scenario = impaired(Impairments {
        reorder: probability(0.05),
        reorder_by: ms(5),
        duplicate: probability(0.05),
        corrupt: probability(0.02),
    });
    let result = go(&scenario, 1);
    assert_whole(&result);
    assert_eq!(go(&scenario, 1), result);
    assert_ne!(go(&scenario, 2), result);
}

#[test]
fn a_corrupted_segment_is_discarded_by_its_receiver_and_sent_again() {
    let corrupt = |p| Impairments { corrupt: probability(p), ..Default::default() };
    let result = go(&impaired(corrupt(0.02)), 1);
    assert_whole(&result);
    assert!(result.flows[0].retransmissions > 5, "{result:?}");
    assert_eq!(result.links[0].forward.dropped_total(), 0, "the link has delivered all of them");
    assert!(!go(&impaired(corrupt(1.0)), 1).flows[0].finished);
}

#[test]
fn a_duplicated_segment_arrives_twice() {
    let result = go(&impaired(Impairments { duplicate: probability(1.0), ..Default::default() }), 1);
    assert_whole(&result);
    assert!(result.flows[0].legs[0].duplicate_bytes >= MB, "{result:?}");
}

#[test]
fn segments_held_back_for_less_than_a_packet_are_late_and_for_more_are_overtaken() {
    let reorder = |reorder_by| Impairments { reorder: probability(0.1), reorder_by, ..Default::default() };
    let [late, overtaken] = [Duration::from_micros(500), ms(10)].map(|time| go(&impaired(reorder(time)), 1));
    assert_whole(&late);
    assert_whole(&overtaken);
    assert_eq!(late.flows[0].retransmissions, 0);
    assert!(overtaken.flows[0].retransmissions > 5, "eight later ones look like a loss: {overtaken:?}");
}

#[test]
fn frames_between_two_arqs_are_impaired_too() {
    let mut scenario = impaired(Impairments {
        reorder: probability(0.05),
        reorder_by: ms(5),
        duplicate: probability(0.05),
        corrupt: probability(0.01),
    });
    let arq = ArqConfig::for_link(&scenario.links[0].config);
    let end = LinkEndConfig { arq: Some(arq), ..Default::default() };
    scenario.links[0].ends = [end.clone(), end];
    let result = go(&scenario, 1);
    assert_whole(&result);
    assert!(result.links[0].ends[1].report.arq.unwrap().duplicates > 5, "{result:?}");
}
