//! What the components do beside ρ: Hoe's estimate, the pacing, the queue, the growth in recovery.

use bentpipe_units::{Rate, Time};

use super::*;
use crate::congestion::{Acked, NO_SSTHRESH};

const MSS: u64 = 1448;
const INITIAL_WINDOW: u64 = 10;
const PARAMETERS: Parameters = Parameters {
    mss: MSS,
    initial_window: INITIAL_WINDOW * MSS,
    byte_counting_limit: None,
    hystart: false,
    linux_cubic: false,
};

fn millis(rtt: u64) -> Duration {
    Duration::from_millis(rtt)
}

fn assert_near(what: &str, observed: f64, expected: f64, tolerance: f64) {
    assert!(
        (observed / expected - 1.0).abs() <= tolerance,
        "{what}: observed {observed}, expected {expected}"
    );
}

/// One ACK of a segment, with this minimum and this smoothed round-trip time.
fn ack(min_rtt: Duration, srtt: Duration) -> Acked {
    Acked {
        now: Time::ZERO,
        bytes: MSS,
        rtt: Some(srtt),
        srtt,
        min_rtt,
        in_flight: 240 * MSS,
        cwnd_limited: true,
        in_recovery: false,
    }
}

#[test]
fn rho_follows_the_minimum_round_trip_not_the_smoothed_one() {
    let mut hybla = Hybla::new(PARAMETERS, Components::ALL);
    assert_eq!(hybla.rho(), 1.0, "nothing is measured yet");
    hybla.on_ack(&ack(millis(600), millis(1200)));
    assert_eq!(hybla.rho(), 24.0, "a queue of 600 ms does not count");
    hybla.on_ack(&ack(millis(300), millis(20)));
    assert_eq!(hybla.rho(), 12.0);
    hybla.on_ack(&ack(millis(10), millis(10)));
    assert_eq!(hybla.rho(), 1.0);
}

#[test]
fn a_handshake_that_measured_nothing_leaves_the_standard_window() {
    let mut hybla = Hybla::new(PARAMETERS, Components::ALL);
    hybla.on_established(Time::ZERO, None);
    assert_eq!(hybla.cwnd(), INITIAL_WINDOW * MSS);
    assert_eq!(hybla.pacing_rate(Duration::ZERO), None);
}

#[test]
fn a_window_that_was_lowered_in_vain_comes_back_with_its_threshold() {
    let lower: [fn(&mut Hybla); 2] =
        [|hybla| hybla.on_timeout(Time::ZERO, 240 * MSS, true), |hybla| hybla.on_loss(Time::ZERO, 240 * MSS)];
    for lower in lower {
        let mut hybla = Hybla::new(PARAMETERS, Components::ALL);
        hybla.on_established(Time::ZERO, Some(GEO));
        let before = (hybla.cwnd(), hybla.ssthresh());
        lower(&mut hybla);
        assert!(hybla.cwnd() < before.0 && hybla.ssthresh() < before.1);
        hybla.on_spurious();
        hybla.set_window(before.0, before.1);
        assert_eq!((hybla.cwnd(), hybla.ssthresh(), hybla.flight_limit()), (before.0, before.1, before.0));
    }
}

// Hoe's estimate and the pacing on a GEO link that carries one segment in 1.2 ms, a bandwidth-delay product
// of 500.

const SPACING: Duration = Duration::from_micros(1200);
const GEO: Duration = Duration::from_millis(600);

/// A connection over the GEO link after the acknowledgements of the first burst, `per_ack` segments for each.
fn after_first_burst(components: Components, per_ack: u32) -> Box<dyn CongestionControl> {
    let mut hybla = components.build(PARAMETERS);
    hybla.on_established(Time::ZERO, Some(GEO));
    for n in 1..=10 / per_ack {
        hybla.on_ack(&Acked {
            now: Time::ZERO + GEO + SPACING * n * per_ack,
            bytes: MSS * u64::from(per_ack),
            ..ack(GEO, GEO)
        });
    }
    hybla
}

#[test]
fn the_initial_threshold_is_the_bandwidth_delay_product_with_and_without_delayed_acks() {
    for components in [Components::ALL, Components::PUBLISHED] {
        for per_ack in [1, 2] {
            let hybla = after_first_burst(components, per_ack);
            let bdp = 500.0 * MSS as f64;
            assert_near("ssthresh", hybla.ssthresh() as f64, bdp, 1e-3);
            assert_eq!(hybla.cwnd(), hybla.ssthresh(), "a window that ran past it comes back");
        }
    }
}

#[test]
fn where_the_first_burst_tells_nothing_the_first_standing_queue_does() {
    let mut hybla = PublishedHybla::new(PARAMETERS, Components::PUBLISHED);
    hybla.on_established(Time::ZERO, Some(GEO));
    let mut now = Time::ZERO + GEO;
    hybla.on_ack(&Acked { now, bytes: 10 * MSS, ..ack(GEO, GEO) });
    for _ in 0..1000 {
        now += SPACING;
        hybla.on_ack(&Acked { now, ..ack(GEO, GEO) });
    }
    assert_eq!(hybla.ssthresh(), NO_SSTHRESH);
    // Twice what the path was seen to deliver.
    let rate = segments_per_second(hybla.pacing_rate(GEO));
    assert_near("without an estimate", rate, 2.0 / SPACING.as_secs_f64(), 0.01);
    for _ in 0..100 {
        now += SPACING;
        hybla.on_ack(&Acked { now, rtt: Some(millis(700)), ..ack(GEO, GEO) });
    }
    assert_near("ssthresh", hybla.ssthresh() as f64, 500.0 * MSS as f64, 0.01);
}

fn segments_per_second(rate: Option<Rate>) -> f64 {
    rate.expect("a pacing rate").bps() as f64 / 8.0 / MSS as f64
}

#[test]
fn the_pacing_stays_at_the_initial_window_until_the_estimate_and_then_at_w_over_rtt() {
    let mut hybla = PublishedHybla::new(PARAMETERS, Components::PUBLISHED);
    hybla.on_established(Time::ZERO, Some(GEO));
    assert_near("before an ACK", segments_per_second(hybla.pacing_rate(GEO)), 400.0, 1e-6);
    hybla.on_ack(&Acked { now: Time::ZERO + GEO, ..ack(GEO, GEO) });
    assert!(hybla.cwnd() > 16_000_000 * MSS);
    assert_near("before the estimate", segments_per_second(hybla.pacing_rate(GEO)), 400.0, 1e-6);
    let hybla = after_first_burst(Components::PUBLISHED, 1);
    assert_near("after it", segments_per_second(hybla.pacing_rate(GEO)), 500.0 / 0.6, 1e-3);
    let unpaced = after_first_burst(Components { pacing: false, ..Components::ALL }, 1);
    assert_eq!(unpaced.pacing_rate(GEO), None);
}

#[test]
fn with_the_queue_component_pacing_stays_within_an_eighth_of_the_links_rate() {
    let mut hybla = after_first_burst(Components::ALL, 1);
    let mut now = Time::ZERO + GEO + SPACING * 10;
    for _ in 0..5000 {
        now += SPACING;
        hybla.on_ack(&Acked { now, in_flight: hybla.cwnd(), ..ack(GEO, GEO) });
        let rate = segments_per_second(hybla.pacing_rate(GEO));
        assert!(rate <= 1.001 * 9.0 / 8.0 / SPACING.as_secs_f64(), "{rate} segments/s");
    }
    assert!(
        hybla.cwnd() > 2000 * MSS,
        "the window itself grows as the algorithm says: {}",
        hybla.cwnd() / MSS
    );
}

#[test]
fn a_standing_queue_reduces_the_window_to_the_paths_capacity_once() {
    let mut hybla = after_first_burst(Components::ALL, 1);
    let mut now = Time::ZERO + GEO + SPACING * 10;
    let mut acks = |hybla: &mut dyn CongestionControl, n: u32, rtt: Duration| {
        for _ in 0..n {
            now += SPACING;
            hybla.on_ack(&Acked { now, in_flight: hybla.cwnd(), rtt: Some(rtt), ..ack(GEO, GEO) });
        }
    };
    acks(&mut *hybla, 2000, GEO);
    let grown = hybla.cwnd();
    acks(&mut *hybla, 100, millis(680));
    assert_near("after the cut", hybla.cwnd() as f64 / MSS as f64, 500.0 * 9.0 / 8.0, 0.02);
    let cut = hybla.cwnd();
    assert!(cut < grown);
    // While the queue stands: a segment in a round trip, and no second cut.
    acks(&mut *hybla, 5 * 560, millis(680));
    assert!(((cut + 4 * MSS)..=(cut + 6 * MSS)).contains(&hybla.cwnd()), "{} after {cut}", hybla.cwnd());
    let rate = segments_per_second(hybla.pacing_rate(GEO));
    assert_near("pacing in the queue", rate, 1.0 / SPACING.as_secs_f64(), 0.02);
}

#[test]
fn the_window_grows_in_recovery_only_with_that_component() {
    for (components, grows) in [(Components::ALL, true), (Components::PUBLISHED, false)] {
        let mut hybla = after_first_burst(components, 1);
        hybla.on_loss(Time::ZERO, 500 * MSS);
        let before = hybla.cwnd();
        for _ in 0..100 {
            hybla.on_ack(&Acked { in_recovery: true, ..ack(GEO, GEO) });
        }
        assert_eq!(hybla.cwnd() > before, grows, "{components:?}");
    }
}
