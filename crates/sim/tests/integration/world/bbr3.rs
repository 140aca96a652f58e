//! BBR version 3 over a GEO satellite and beside CUBIC.

use std::time::Duration;

use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::Algorithm;

use crate::world::go;
use crate::world::scene::{chain, direction, flow, ms, symmetric};

/// Payload of the link's 10 Mbit/s, in full segments: 1448 of 1500 bytes.
const LIMIT: f64 = 10e6 * 1448.0 / 1500.0;

fn config(congestion: Algorithm) -> Config {
    Config { congestion, ..Config::linux_stock() }
}

/// The goodput of flows of two minutes that share 10 Mbit/s, as parts of the limit; the queue holds a
/// bandwidth-delay product.
fn shares(delay: Duration, per: f64, flows: &[Algorithm]) -> Vec<f64> {
    let mut scenario = chain(vec![symmetric(direction(10, delay, per))]);
    scenario.duration = Duration::from_secs(120);
    for congestion in flows {
        scenario.flows.push(flow(&scenario, None, config(*congestion)));
    }
    go(&scenario, 1).flows.iter().map(|flow| flow.goodput_bps / LIMIT).collect()
}

/// ProbeRTT comes 5 s after the one before. Half a product drains in half a round trip without a segment, and
/// in the round trip that follows the other half is sent: a round trip of the link goes unused each time.
#[test]
fn alone_on_a_clean_geo_link_it_uses_what_its_probes_for_the_round_trip_leave() {
    let (rtt, paced) = (0.6, 0.99);
    let expected = paced * (1.0 - rtt / (5.0 + 1.5 * rtt));
    let used = shares(ms(300), 0.0, &[Algorithm::Bbr3])[0];
    assert!((expected - 0.04..expected + 0.02).contains(&used), "{used}, and {expected} without Startup");
    let near = shares(ms(12), 0.0, &[Algorithm::Bbr3])[0];
    assert!(near > 0.95, "{near}");
}

#[test]
fn one_loss_in_a_hundred_takes_little_of_it_and_most_of_cubic() {
    for delay in [ms(12), ms(300)] {
        let bbr3 = shares(delay, 0.01, &[Algorithm::Bbr3])[0];
        let cubic = shares(delay, 0.01, &[Algorithm::Cubic])[0];
        assert!(bbr3 > 0.7 && bbr3 > 1.5 * cubic, "{bbr3} and {cubic} at {delay:?}");
    }
}

#[test]
fn beside_cubic_both_have_a_fifth_at_least() {
    for delay in [ms(12), ms(50), ms(300)] {
        let both = shares(delay, 0.0, &[Algorithm::Bbr3, Algorithm::Cubic]);
        let share = both[0] / (both[0] + both[1]);
        assert!((0.2..=0.8).contains(&share), "{share} of {both:?} at {delay:?}");
    }
}
