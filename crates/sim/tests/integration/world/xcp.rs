//! XCP end to end: senders whose windows a router in front of the link sets.

use std::time::Duration;

use bentpipe_link::Cause;
use bentpipe_link::agent::xcp::{Variant, XcpConfig, XcpCounters};
use bentpipe_link::agent::{AgentConfig, AgentReport};
use bentpipe_sim::scenario::Scenario;
use bentpipe_sim::{FlowResult, RunResult};
use bentpipe_tcp::congestion::{Algorithm, XcpSender};
use bentpipe_tcp::{Config, Recovery};
use bentpipe_units::Rate;

use crate::world::go;
use crate::world::scene::{chain, direction, flow, ms, symmetric};

const SECONDS: u64 = 120;

fn config(sender: XcpSender) -> Config {
    Config { congestion: Algorithm::Xcp(sender), ..Config::linux() }
}

/// A link of 10 Mbit/s, with a router of P-XCP of this capacity if there is one, and a flow without end.
fn scene(one_way: Duration, per: f64, router: Option<Rate>, config: Config) -> Scenario {
    let mut scenario = chain(vec![symmetric(direction(10, one_way, per))]);
    scenario.duration = Duration::from_secs(SECONDS);
    let agent = |capacity| {
        AgentConfig::Xcp(XcpConfig { variant: Variant::PXcp, ..XcpConfig::with_capacity(capacity) })
    };
    scenario.links[0].ends[0].agents.extend(router.map(agent));
    let buffers = 16 << 20;
    let config = Config { send_buffer: buffers, receive_buffer: buffers, ..config };
    scenario.flows.push(flow(&scenario, None, config));
    scenario
}

fn queue_drops(result: &RunResult) -> u64 {
    result.links[0].forward.dropped(Cause::QueueFull)
}

fn counters(result: &RunResult) -> XcpCounters {
    match result.links[0].ends[0].report.agents[..] {
        [AgentReport::Xcp(counters)] => counters,
        _ => panic!("{:?}", result.links[0]),
    }
}

/// Of the payload that the link could carry: 1432 of 1500 bytes.
fn share(flow: &FlowResult) -> f64 {
    flow.goodput_bps / (10e6 * 1432.0 / 1500.0)
}

/// Handshake, first feedback and first growth take eight round trips or so, which is a fifth of the run at 3
/// s.
#[test]
fn a_link_is_filled_without_a_drop_at_round_trips_to_three_seconds() {
    for (one_way, least) in [(30, 0.97), (300, 0.95), (1500, 0.85)] {
        for sender in [XcpSender::Xcp, XcpSender::PXcp] {
            let scenario = scene(ms(one_way), 0.0, Some(Rate::mbps(10)), config(sender));
            let result = go(&scenario, 1);
            let flow = &result.flows[0];
            assert!(share(flow) > least, "{one_way} ms, {sender:?}: {} {flow:?}", share(flow));
            assert_eq!((queue_drops(&result), flow.retransmissions), (0, 0), "{one_way} ms, {sender:?}");
            let counters = counters(&result);
            assert!((900..1100).contains(&(counters.asking_milli + counters.limited_milli)), "{counters:?}");
            let rtt = Duration::from_micros(counters.mean_rtt_us);
            assert!(rtt >= 2 * ms(one_way) && rtt < 3 * ms(one_way), "{rtt:?}");
        }
    }
}

#[test]
fn the_capacity_and_not_the_link_rate_is_filled() {
    let scenario = scene(ms(30), 0.0, Some(Rate::mbps(4)), config(XcpSender::PXcp));
    let filled = share(&go(&scenario, 1).flows[0]);
    assert!((0.37..0.405).contains(&filled), "{filled}");
}

#[test]
fn losses_that_are_no_congestion_do_not_slow_p_xcp_down() {
    let filled =
        |sender| share(&go(&scene(ms(300), 0.005, Some(Rate::mbps(10)), config(sender)), 3).flows[0]);
    let (xcp, p_xcp) = (filled(XcpSender::Xcp), filled(XcpSender::PXcp));
    assert!(p_xcp > 0.9 && xcp < 0.7 * p_xcp, "{xcp} and {p_xcp}");
}

#[test]
fn feedback_comes_through_however_full_of_sack_blocks_the_acknowledgements_are() {
    let scenario = scene(ms(300), 0.01, Some(Rate::mbps(10)), config(XcpSender::PXcp));
    let result = go(&scenario, 2);
    assert!(share(&result.flows[0]) > 0.8, "{} {:?}", share(&result.flows[0]), result.flows[0]);
    assert_eq!(queue_drops(&result), 0);
}

/// At PER 5% a repair never ends. Reduced proportionally the flight would stay where the first one found it.
#[test]
fn a_repair_leaves_the_window_to_the_router() {
    for recovery in [Recovery::Sack, Recovery::Rack] {
        let config = Config { recovery, lost_retransmissions: true, ..config(XcpSender::PXcp) };
        let result = go(&scene(ms(300), 0.05, Some(Rate::mbps(10)), config), 1);
        let share = share(&result.flows[0]);
        println!("{recovery:?}: {share}");
        assert!(share > 0.85, "{recovery:?}: {share}");
    }
}

/// The other side does not offer it; or both do, and there is no router: then it is what NewReno is.
#[test]
fn without_the_other_side_or_a_router_it_is_newreno() {
    let standard = Config { congestion: Algorithm::NewReno, ..Config::linux() };
    let goodput = |router, config: Config, receiver: Option<Config>| {
        let mut scenario = scene(ms(300), 0.001, router, config);
        let leg = &mut scenario.flows[0].legs[0];
        leg.receiver.congestion = receiver.unwrap_or(leg.sender).congestion;
        let result = go(&scenario, 1);
        (result.flows[0].goodput_bps, result.flows[0].retransmissions)
    };
    let reno = goodput(None, standard, None);
    for sender in [XcpSender::Xcp, XcpSender::PXcp] {
        assert_eq!(goodput(Some(Rate::mbps(10)), config(sender), Some(standard)), reno, "{sender:?}");
        let (alone, _) = goodput(None, config(sender), None);
        // The option makes segments shorter, so that other ones are lost.
        assert!((0.5..2.0).contains(&(alone / reno.0)), "{sender:?}: {alone} and {}", reno.0);
    }
}

#[test]
fn later_flows_get_as_much() {
    let mut scenario = scene(ms(100), 0.0, Some(Rate::mbps(10)), config(XcpSender::PXcp));
    let mut late = scenario.flows[0].clone();
    late.name = "late".into();
    late.start += ms(30_000);
    scenario.flows.push(late);
    let result = go(&scenario, 1);
    // Of 120 s the first had 30 alone: (30 + 45) to 45 if they share alike.
    let ratio = result.flows[0].bytes as f64 / result.flows[1].bytes as f64;
    assert!((1.5..1.9).contains(&ratio), "{ratio}");
    assert_eq!(queue_drops(&result), 0);
}
