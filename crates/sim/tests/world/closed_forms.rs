//! Transfers against closed forms.

use bentpipe_sim::scenario::Scenario;
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_tcp::{Config, Recovery};

use crate::go;
use crate::scene::{chain, direction, flow, ms, symmetric};

/// Mathis, Semke, Mahdavi, Ott, "The macroscopic behavior of the TCP congestion avoidance algorithm" (CCR 27(3), 1997):
/// BW = (MSS/RTT) · √(3/2) / √p, one segment more in each round trip. It holds for a TCP that repairs any number of losses
/// in a window without a timeout, and a window that nothing else limits.
fn mathis_bps(mss: f64, rtt_s: f64, p: f64) -> f64 {
    8.0 * mss / rtt_s * (1.5 / p).sqrt()
}

fn lossy(per: f64) -> Scenario {
    let mut link = symmetric(direction(1000, ms(50), 0.0));
    link.forward.per = bentpipe_units::Probability::new(per).unwrap();
    let mut scenario = chain(vec![link]);
    scenario.duration = std::time::Duration::from_secs(2000);
    scenario
}

#[test]
fn the_goodput_of_reno_is_that_of_mathis_within_15_percent() {
    for per in [1e-3, 1e-2] {
        let mut scenario = lossy(per);
        let config = Config {
            congestion: Algorithm::NewReno,
            recovery: Recovery::Sack,
            delayed_ack: None,
            ..Config::default()
        };
        scenario.flows.push(flow(&scenario, None, config));
        let flow = &go(&scenario, 1).flows[0];
        let expected = mathis_bps(1448.0, 0.1, per);
        let ratio = flow.goodput_bps / expected;
        println!(
            "PER {per}: {:.3} of Mathis, {} timeouts, {} recoveries",
            ratio, flow.timeouts, flow.legs[0].recoveries
        );
        assert!((0.85..1.15).contains(&ratio), "PER {per}: {ratio} of Mathis, {flow:?}");
    }
}
