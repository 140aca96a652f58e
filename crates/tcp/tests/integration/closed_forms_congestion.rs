//! The windows of the congestion control algorithms against what theory says of them.
//!
//! A window's acknowledgements arrive evenly over a round trip; the application never runs dry. Windows and
//! rates are in segments, as the papers count them.

use std::time::Duration;

use bentpipe_tcp::congestion::{
    Acked, Components, CongestionControl, Cubic, NO_SSTHRESH, NewReno, Parameters, PublishedHybla, RTT0,
};
use bentpipe_units::Time;

const MSS: u64 = 1448;
const INITIAL_WINDOW: u64 = 10;
const PARAMETERS: Parameters = Parameters {
    mss: MSS,
    initial_window: INITIAL_WINDOW * MSS,
    byte_counting_limit: None,
    hystart: false,
    linux_cubic: false,
};

/// ρ alone: nothing but the growth of the window.
const RHO_ONLY: Components =
    Components { rho: true, pacing: false, hoe: false, recovery_growth: false, queue: false };

/// A connection over a path of constant round-trip time.
struct Flow<C> {
    control: C,
    now: Time,
    rtt: Duration,
}

impl<C: CongestionControl> Flow<C> {
    fn new(mut control: C, rtt: Duration) -> Self {
        control.on_established(Time::ZERO, Some(rtt));
        Self { control, now: Time::ZERO, rtt }
    }

    /// One that has just lost a segment of a flight of `segments`, so that slow start is over.
    fn after_loss_at(segments: u64, control: impl Fn(Parameters) -> C, rtt: Duration) -> Self {
        let mut flow = Self::new(control(Parameters { initial_window: segments * MSS, ..PARAMETERS }), rtt);
        flow.control.on_loss(Time::ZERO, segments * MSS);
        flow.control.on_recovery_end(Time::ZERO);
        flow
    }

    /// The window, segments.
    fn window(&self) -> f64 {
        self.control.cwnd() as f64 / MSS as f64
    }

    /// `n` acknowledgements of a segment each, spread over a round trip for every window.
    fn acknowledge(&mut self, n: u64) {
        for _ in 0..n {
            self.now += self.rtt.div_f64(self.window());
            self.control.on_ack(&Acked {
                now: self.now,
                bytes: MSS,
                rtt: Some(self.rtt),
                srtt: self.rtt,
                min_rtt: self.rtt,
                in_flight: self.control.cwnd(),
                cwnd_limited: true,
                in_recovery: false,
            });
        }
    }

    /// A round trip: what the window was at its beginning is acknowledged.
    fn round(&mut self) {
        self.acknowledge(self.control.cwnd() / MSS);
    }
}

fn assert_near(what: &str, observed: f64, expected: f64, tolerance: f64) {
    let deviation = observed / expected - 1.0;
    println!("{what}: observed {observed:.3}, expected {expected:.3}, {:+.3}%", deviation * 100.0);
    assert!(deviation.abs() <= tolerance, "{what}: observed {observed}, expected {expected}");
}

fn millis(rtt: u64) -> Duration {
    Duration::from_millis(rtt)
}

// NewReno: RFC 5681 §3.1; W(n) = W0 · 2ⁿ, then W(n) = W0 + n after n round trips.

#[test]
fn new_reno_doubles_in_each_round_trip_and_then_adds_a_segment_in_each() {
    let mut flow = Flow::new(NewReno::new(PARAMETERS), millis(100));
    for round in 1..=8 {
        flow.round();
        assert_eq!(flow.control.cwnd(), (INITIAL_WINDOW << round) * MSS);
    }
    flow.control.on_loss(flow.now, 100 * MSS);
    for round in 1..=100 {
        flow.round();
        assert_eq!(flow.control.cwnd(), (50 + round) * MSS);
    }
}

/// AIMD(α, β) with a loss every 1/p segments: the mean window is √(α(1+β) / 2(1−β)p) (Floyd, Handley and
/// Padhye 2000; RFC 9438, figure 3). For Reno it is Mathis's √(3/2p).
fn mean_window_with_a_loss_every(segments: u64, control: impl CongestionControl, rtt: Duration) -> f64 {
    let mut flow = Flow::new(control, rtt);
    for _ in 0..20 {
        flow.acknowledge(segments);
        flow.control.on_loss(flow.now, flow.control.cwnd());
    }
    let (began, cycles) = (flow.now, 100);
    for _ in 0..cycles {
        flow.acknowledge(segments);
        flow.control.on_loss(flow.now, flow.control.cwnd());
    }
    (cycles * segments) as f64 * rtt.as_secs_f64() / flow.now.since(began).as_secs_f64()
}

#[test]
fn new_reno_keeps_mathiss_mean_window() {
    for inverse_p in [100, 1_000, 10_000] {
        let mean = mean_window_with_a_loss_every(inverse_p, NewReno::new(PARAMETERS), millis(100));
        assert_near(&format!("p = 1/{inverse_p}"), mean, (1.5 * inverse_p as f64).sqrt(), 0.05);
    }
}

// CUBIC: RFC 9438.

/// W_cubic (§4.2) at `t` seconds after a loss at `w_max` segments.
fn w_cubic(t: f64, w_max: f64) -> f64 {
    let from_k = t - cubic_k(w_max);
    0.4 * from_k * from_k * from_k + w_max
}

fn cubic_k(w_max: f64) -> f64 {
    libm::cbrt(w_max * 0.3 / 0.4)
}

#[test]
fn cubic_is_concave_up_to_w_max_at_k_and_convex_beyond() {
    let mut flow = Flow::after_loss_at(1000, Cubic::new, millis(100));
    let k = cubic_k(1000.0);
    let mut windows = vec![(0.0, flow.window())];
    while flow.now.as_secs_f64() < 2.0 * k {
        flow.round();
        windows.push((flow.now.as_secs_f64(), flow.window()));
    }
    for &(t, window) in windows.iter().step_by(10) {
        assert_near(&format!("t = {t:.1} s"), window, w_cubic(t, 1000.0), 0.01);
    }
    let at_k = windows.iter().find(|(t, _)| *t >= k).unwrap().1;
    assert_near("W(K)", at_k, 1000.0, 0.002);
    let steps: Vec<(f64, f64)> = windows.windows(2).map(|w| (w[1].0, w[1].1 - w[0].1)).collect();
    // The first steps are those that catch up with a function that is a round trip ahead.
    for pair in steps[3..].windows(2) {
        let (t, before, after) = (pair[1].0, pair[0].1, pair[1].1);
        if t < k - 0.5 {
            assert!(after <= before, "concave at {t} s: {before}, then {after}");
        } else if t > k + 0.5 {
            assert!(after >= before, "convex at {t} s: {before}, then {after}");
        }
    }
}

#[test]
fn cubics_window_is_a_function_of_time_not_of_the_round_trip() {
    for rtt in [100, 300, 600] {
        let mut flow = Flow::after_loss_at(5000, Cubic::new, millis(rtt));
        while flow.now.as_secs_f64() < 30.0 {
            flow.round();
        }
        assert_near(&format!("RTT {rtt} ms"), flow.window(), w_cubic(flow.now.as_secs_f64(), 5000.0), 0.01);
    }
}

#[test]
fn at_a_short_round_trip_cubic_keeps_the_mean_window_of_reno() {
    for inverse_p in [100, 1_000] {
        let mean = mean_window_with_a_loss_every(inverse_p, Cubic::new(PARAMETERS), millis(5));
        assert_near(&format!("p = 1/{inverse_p}"), mean, (1.5 * inverse_p as f64).sqrt(), 0.08);
    }
}

#[test]
fn at_a_short_round_trip_cubic_grows_by_alpha_and_beyond_its_last_window_by_a_segment() {
    let mut flow = Flow::after_loss_at(100, Cubic::new, millis(1));
    let alpha = 3.0 * 0.3 / 1.7;
    for _ in 0..20 {
        flow.round();
    }
    assert_near("20 rounds", flow.window() - 70.0, 20.0 * alpha, 0.02);
    while flow.window() < 101.0 {
        flow.round();
    }
    let before = flow.window();
    for _ in 0..50 {
        flow.round();
    }
    assert_near("50 rounds beyond", flow.window() - before, 50.0, 0.02);
}

/// The mean window where CUBIC is not Reno-friendly: √⁴(C(3+β)/4(1−β)) · RTT^¾ / p^¾ (RFC 9438 §5.1, figure
/// 6).
#[test]
fn at_a_long_round_trip_cubic_keeps_the_mean_window_of_its_own_formula() {
    let inverse_p = 100_000;
    let mean = mean_window_with_a_loss_every(inverse_p, Cubic::new(PARAMETERS), millis(100));
    let root = |x: f64| x.sqrt().sqrt();
    let rounds_to_loss = 0.1 * inverse_p as f64;
    let expected = root(0.4 * 3.7 / (4.0 * 0.3)) * root(rounds_to_loss * rounds_to_loss * rounds_to_loss);
    assert_near("p = 1e-5", mean, expected, 0.05);
}

// Hybla: Caini and Firrincieli 2004. Slow start adds 2^ρ − 1 for each acknowledged segment, so a round trip
// multiplies W by 2^ρ: W(t) = ρ·W0·2^(ρt/RTT) = ρ·W0·2^(t/RTT0). Avoidance adds ρ²/W, so a round trip adds
// ρ²: W(t) = W(0) + ρ²·t/RTT = W(0) + ρ·t/RTT0. The rate W/RTT = W/(ρ·RTT0) does not depend on the RTT in
// either.

#[test]
fn hybla_in_slow_start_opens_two_to_the_rho_less_one_for_each_segment() {
    for (rtt, rho) in [(20, 1.0), (25, 1.0), (37, 1.48), (50, 2.0), (100, 4.0), (300, 12.0), (600, 24.0)] {
        let mut flow = Flow::new(PublishedHybla::new(PARAMETERS, RHO_ONLY), millis(rtt));
        assert_near("rho", flow.control.rho(), rho, 1e-12);
        for n in 0..=40 {
            let formula = rho * INITIAL_WINDOW as f64 + n as f64 * (libm::exp2(rho) - 1.0);
            // A window is a whole number of bytes.
            assert!(
                (flow.window() - formula).abs() <= formula * 1e-12 + 1.0 / MSS as f64,
                "RTT {rtt}, {n} ACKs"
            );
            flow.acknowledge(1);
        }
    }
}

#[test]
fn a_fraction_of_rho_counts() {
    let mut flow = Flow::new(PublishedHybla::new(PARAMETERS, RHO_ONLY), Duration::from_micros(37_500));
    assert_eq!(flow.control.rho(), 1.5);
    assert_eq!(flow.control.cwnd(), 15 * MSS);
    flow.acknowledge(100);
    assert_near("100 ACKs at rho 1.5", flow.window() - 15.0, 100.0 * (2.0 * 2f64.sqrt() - 1.0), 1e-5);
}

#[test]
fn hyblas_rate_in_slow_start_doubles_every_25_ms_whatever_the_round_trip() {
    for rtt in [25, 50, 75, 100] {
        let mut flow = Flow::new(PublishedHybla::new(PARAMETERS, RHO_ONLY), millis(rtt));
        for round in 1..=4 {
            flow.round();
            let t = f64::from(round) * rtt as f64;
            let rate_of_the_short_one = INITIAL_WINDOW as f64 * libm::exp2(t / 25.0) / 0.025;
            let rate = flow.window() / flow.rtt.as_secs_f64();
            assert_near(&format!("RTT {rtt} ms, round {round}"), rate, rate_of_the_short_one, 1e-3);
        }
    }
}

#[test]
fn hyblas_rate_in_avoidance_grows_alike_whatever_the_round_trip() {
    for rtt in [25, 100, 300, 600] {
        let rho = rtt as f64 / 25.0;
        let hybla = |parameters| PublishedHybla::new(parameters, RHO_ONLY);
        let mut flow = Flow::after_loss_at((rho * 200.0) as u64, hybla, millis(rtt));
        while flow.now.as_secs_f64() < 6.0 {
            flow.round();
        }
        let t = flow.now.as_secs_f64();
        let window = 100.0 * rho + rho * t / RTT0.as_secs_f64();
        assert_near(&format!("W at RTT {rtt} ms"), flow.window(), window, 0.03);
    }
}

#[test]
fn without_rho_hybla_grows_exactly_as_new_reno() {
    let components = Components { rho: false, ..RHO_ONLY };
    let mut hybla = Flow::new(PublishedHybla::new(PARAMETERS, components), millis(600));
    let mut new_reno = Flow::new(NewReno::new(PARAMETERS), millis(600));
    for cycle in 0..6 {
        for _ in 0..3 {
            hybla.round();
            new_reno.round();
            assert_eq!(hybla.control.cwnd(), new_reno.control.cwnd(), "cycle {cycle}");
        }
        let in_flight = new_reno.control.cwnd();
        hybla.control.on_loss(hybla.now, in_flight);
        new_reno.control.on_loss(new_reno.now, in_flight);
    }
}

#[test]
fn without_pacing_and_hoe_the_first_ack_of_a_geo_link_opens_sixteen_million_segments() {
    let mut flow = Flow::new(PublishedHybla::new(PARAMETERS, RHO_ONLY), millis(600));
    flow.acknowledge(1);
    assert_eq!(flow.control.cwnd(), (240 + (1 << 24) - 1) * MSS);
    assert_eq!(flow.control.ssthresh(), NO_SSTHRESH);
    let most = 1 << 40;
    flow.acknowledge(100);
    assert_eq!(flow.control.cwnd(), most);
    for rtt in [4, 25, 250, 10_000, u64::MAX / 1_000_000_000] {
        let mut flow = Flow::new(PublishedHybla::new(PARAMETERS, RHO_ONLY), Duration::from_secs(rtt));
        flow.acknowledge(1);
        assert_eq!(flow.control.cwnd(), most, "RTT {rtt} s, rho {}", flow.control.rho());
    }
}
