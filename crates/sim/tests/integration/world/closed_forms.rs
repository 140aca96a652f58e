//! Transfers against closed forms.

use std::time::Duration;

use bentpipe_sim::scenario::Scenario;
use bentpipe_sim::{Observer, run};
use bentpipe_tcp::congestion::{Algorithm, Components};
use bentpipe_tcp::{Config, Recovery, Statistics, Variables};
use bentpipe_units::{Probability, Time};

use crate::world::go;
use crate::world::scene::{chain, direction, flow, ms, symmetric};

/// Mathis, Semke, Mahdavi, Ott, "The macroscopic behavior of the TCP congestion avoidance algorithm" (CCR
/// 27(3), 1997): BW = (MSS/RTT) · √(3/2) / √p, one segment more in each round trip. It holds for a TCP that
/// repairs any number of losses in a window without a timeout, and a window that nothing else limits.
fn mathis_bps(mss: f64, rtt_s: f64, p: f64) -> f64 {
    8.0 * mss / rtt_s * (1.5 / p).sqrt()
}

fn lossy(per: f64) -> Scenario {
    let mut link = symmetric(direction(1000, ms(50), 0.0));
    link.forward.per = Probability::new(per).unwrap();
    let mut scenario = chain(vec![link]);
    scenario.duration = Duration::from_secs(2000);
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
        assert!((0.85..1.15).contains(&ratio), "PER {per}: {ratio} of Mathis, {flow:?}");
    }
}

/// Hybla's window in segments at each sample.
#[derive(Default)]
struct Window(Vec<(f64, f64)>);

const MSS: f64 = 1448.0;

impl Observer for Window {
    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, now: Time, _: usize, _: usize, tcp: &Variables, _: &Statistics) {
        self.0.push((now.as_secs_f64(), tcp.cwnd as f64 / MSS));
    }
}

/// Hybla's growth alone, over a link that nothing but the window limits.
fn hybla(rtt: Duration, initial_window: u32) -> Scenario {
    let mut scenario = chain(vec![symmetric(direction(10_000, rtt / 2, 0.0))]);
    scenario.sample_interval = rtt;
    let components = Components { pacing: false, hoe: false, ..Components::PUBLISHED };
    let config = Config {
        congestion: Algorithm::Hybla(components),
        delayed_ack: None,
        initial_window,
        byte_counting_limit: None,
        send_buffer: 1 << 28,
        receive_buffer: 1 << 28,
        ..Config::default()
    };
    scenario.flows.push(flow(&scenario, None, config));
    scenario
}

/// Caini and Firrincieli 2004, equation 4: in slow start W(t) = ρ·2^(ρ·t/RTT), that is 2^(t/RTT0) times what
/// it was, at any distance. In rounds, as acknowledgements come: each multiplies the window by 2^ρ.
#[test]
fn in_slow_start_hyblas_window_is_multiplied_by_2_to_the_rho_in_each_round_trip() {
    for (rtt, rho) in [(ms(25), 1.0), (ms(50), 2.0), (ms(100), 4.0)] {
        let mut scenario = hybla(rtt, 10);
        scenario.duration = 4 * rtt;
        let mut window = Window::default();
        run(&scenario, 1, &mut window);
        // The handshake takes the first round trip; the first window is acknowledged just after the end of
        // the second.
        let first = window.0[2].1;
        for (round, sample) in window.0[2..].iter().enumerate() {
            let expected = first * f64::powf(2.0, rho * round as f64);
            assert!(
                (sample.1 / expected - 1.0).abs() < 0.02,
                "RTT {rtt:?}, round {round}: {} of {expected}",
                sample.1
            );
        }
    }
}

/// The same, in congestion avoidance: W(t) grows by ρ²/W for each acknowledgement, ρ² in each round trip,
/// ρ/RTT0 a second, so that the rate W/RTT grows alike at any distance.
#[test]
fn in_avoidance_hyblas_window_grows_by_rho_over_25_ms() {
    for (rtt, rho) in [(ms(50), 2.0), (ms(100), 4.0), (ms(300), 12.0), (ms(600), 24.0)] {
        let mut scenario = hybla(rtt, 20);
        // The loss of the very first segment ends slow start before an acknowledgement has opened the window.
        let outage = (Time::ZERO + rtt, Duration::from_micros(2));
        scenario.links[0].config.forward.outages = [outage].into_iter().collect();
        scenario.duration = 40 * rtt;
        let mut window = Window::default();
        let result = run(&scenario, 1, &mut window);
        assert_eq!(result.flows[0].legs[0].recoveries, Some(1), "{result:?}");
        let (from, to) = (window.0[10], window.0[35]);
        let slope = (to.1 - from.1) / (to.0 - from.0);
        let expected = rho / 0.025;
        // A window of 50.7 segments sends 50 in a round trip: of the fraction nothing is acknowledged.
        assert!(
            (slope / expected - 1.0).abs() < 0.04,
            "RTT {rtt:?}: {slope} of {expected} segments a second"
        );
    }
}
