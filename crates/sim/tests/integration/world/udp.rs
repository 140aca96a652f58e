//! UDP streams beside flows, and alone.

use std::time::Duration;

use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_sim::scenario::{LinkSpec, UdpReceiver, UdpSpec};
use bentpipe_sim::{RunResult, Scenario};
use bentpipe_tcp::Config;
use bentpipe_units::{ByteCount, Probability, Rate, Time};

use super::go;
use crate::world::scene::{chain, direction, flow, hop, ms, symmetric};

const SECOND: u64 = 1_000_000_000;

/// A stream of packets of 1000 bytes over these links to each receiver, for so many seconds.
fn stream(kbps: u64, seconds: u64, receivers: &[(usize, &[usize])]) -> UdpSpec {
    let receiver = |&(node, links): &(usize, &[usize])| UdpReceiver {
        node,
        path: links.iter().map(|&link| hop(link)).collect(),
    };
    UdpSpec {
        name: "stream".into(),
        rate: Rate::from_bps(1000 * kbps).unwrap(),
        packet: 1000,
        start: Time::ZERO,
        end: Time::from_nanos(seconds * SECOND),
        source: 0,
        receivers: receivers.iter().map(receiver).collect(),
    }
}

/// A link of 1 Mbit/s with a queue of ten packets of 1000 bytes.
fn narrow(delay: Duration) -> LinkConfig {
    let queue = Some(ByteCount::new(10_000));
    symmetric(DirectionConfig { queue, ..direction(1, delay, 0.0) })
}

fn lasting(mut scenario: Scenario, seconds: u64) -> Scenario {
    scenario.duration = Duration::from_secs(seconds);
    scenario
}

fn of_only_stream(result: &RunResult) -> (u64, &[bentpipe_sim::UdpReceiverResult]) {
    let [stream] = &result.udp[..] else { panic!("{result:?}") };
    (stream.sent, &stream.receivers)
}

#[test]
fn a_queue_that_overflows_loses_what_the_link_cannot_carry_and_delays_the_rest_by_its_length() {
    let mut scenario = lasting(chain(vec![narrow(ms(100))]), 60);
    scenario.udp.push(stream(2000, 40, &[(1, &[0])]));
    let result = go(&scenario, 1);
    let (sent, receivers) = of_only_stream(&result);
    // 40 s at 1 Mbit/s, and what the queue holds at the end.
    assert_eq!(sent, 10_000);
    assert!((5009..=5012).contains(&receivers[0].received), "{receivers:?}");
    assert_eq!(receivers[0].received + receivers[0].lost, sent, "nothing is on its way: {receivers:?}");
    assert_eq!(result.links[0].forward.dropped.queue_full, receivers[0].lost);
    // A packet that finds room waits for nine or ten others of 8 ms each, and takes 8 ms itself.
    for delay in [receivers[0].delay_50_s, receivers[0].delay_95_s] {
        assert!((0.176..=0.189).contains(&delay.unwrap()), "{receivers:?}");
    }
    assert_eq!(result.seconds, 60.0, "without flows it lasts as long as it may");
}

#[test]
fn by_multicast_a_datagram_crosses_a_common_link_once_and_is_copied_behind_it() {
    // 0 ─ 1 ─ 2, and 3 beside 2 behind a link that loses a tenth.
    let mut scenario = lasting(chain(vec![symmetric(direction(10, ms(10), 0.0)); 2]), 30);
    scenario.nodes.push("node3".into());
    scenario.links.push(LinkSpec {
        name: "lossy".into(),
        between: [1, 3],
        config: symmetric(direction(10, ms(50), 0.1)),
        ..scenario.links[0].clone()
    });
    scenario.udp.push(stream(800, 20, &[(2, &[0, 1]), (1, &[0]), (3, &[0, 2])]));
    let result = go(&scenario, 5);
    let (sent, receivers) = of_only_stream(&result);
    assert_eq!(sent, 2000);
    let offered: Vec<u64> = result.links.iter().map(|link| link.forward.offered).collect();
    assert_eq!(offered, [2000, 2000, 2000], "one packet over each link");
    let got: Vec<u64> = receivers.iter().map(|receiver| receiver.received).collect();
    assert_eq!((got[0], got[1]), (2000, 2000));
    assert_eq!(got[2], 2000 - result.links[2].forward.dropped.packet_error);
    assert!((0.07..0.13).contains(&receivers[2].loss), "{receivers:?}");
    // 0.8 ms at 10 Mbit/s on each link.
    let delays: Vec<f64> = receivers.iter().map(|receiver| receiver.delay_95_s.unwrap()).collect();
    for (delay, expected) in delays.iter().zip([0.0216, 0.0108, 0.0616]) {
        assert!((delay - expected).abs() < 1e-6, "{delays:?}");
    }
}

#[test]
fn a_flow_has_what_a_stream_leaves_and_the_run_ends_with_it() {
    let goodput = |kbps: Option<u64>| {
        let mut scenario = lasting(chain(vec![symmetric(direction(10, ms(20), 0.0))]), 600);
        scenario.flows.push(flow(&scenario, Some(20_000_000), Config::default()));
        scenario.udp.extend(kbps.map(|kbps| stream(kbps, 600, &[(1, &[0])])));
        let result = go(&scenario, 2);
        assert!(result.flows[0].finished && result.seconds < 100.0, "{result:?}");
        result.flows[0].goodput_bps
    };
    let (alone, beside) = (goodput(None), goodput(Some(4000)));
    assert!(alone > 9e6 && (4.5e6..6e6).contains(&beside), "{alone} alone, {beside} beside a stream");
}

#[test]
fn what_a_link_corrupts_or_repeats_arrives_never_or_once() {
    let mut config = symmetric(direction(10, ms(20), 0.0));
    config.forward.impairments.corrupt = Probability::new(0.2).unwrap();
    config.forward.impairments.duplicate = Probability::new(0.2).unwrap();
    let mut scenario = lasting(chain(vec![config]), 30);
    scenario.udp.push(stream(800, 20, &[(1, &[0])]));
    let result = go(&scenario, 3);
    let receiver = &of_only_stream(&result).1[0];
    assert_eq!(receiver.received + receiver.lost, 2000, "{receiver:?}");
    // A fifth of the copies is corrupt; a fifth of the packets has two.
    assert!((0.13..0.20).contains(&receiver.loss), "{receiver:?}");
    assert!((190..320).contains(&receiver.duplicates), "{receiver:?}");
}
