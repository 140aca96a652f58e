use super::*;
use crate::congestion::test_path::{LINK, MSS, Path, RTT};

/// The link's bandwidth-delay product, bytes.
const BDP: u64 = 100_000;

fn path() -> Path<Bbr3> {
    Path::new(Bbr3::new)
}

fn millis(path: &Path<Bbr3>) -> u64 {
    path.now.as_nanos() / 1_000_000
}

/// Until the state is `state`, within a second for each of the twenty.
fn reach(path: &mut Path<Bbr3>, state: State) {
    let limit = millis(path) + 20_000;
    assert!(path.run_until(limit, |bbr| bbr.state == state), "{state:?} within 20 s: {:?}", path.control);
}

/// A delivery in the middle of things, with `lost` of `in_flight` bytes lost.
fn delivery(path: &Path<Bbr3>, in_flight: u64, lost: u64) -> Delivery {
    Delivery {
        now: path.now,
        bytes: MSS,
        delivered: path.delivered + MSS,
        lost,
        in_flight,
        prior_in_flight: in_flight + MSS,
        rtt: Some(RTT),
        srtt: RTT,
        phase: if lost > 0 { Phase::Recovery } else { Phase::Open },
        sample: Some(RateSample {
            bytes: BDP,
            interval: RTT,
            prior_delivered: path.delivered - BDP,
            is_app_limited: false,
            in_flight,
            lost,
        }),
    }
}

#[test]
fn startup_doubles_the_rate_until_it_grows_no_more_and_drain_empties_the_queue() {
    let mut path = path();
    assert_eq!(path.control.gains(), (2.77, 2.0));
    reach(&mut path, State::Drain);
    assert!(millis(&path) < 1500, "{} ms", millis(&path));
    assert!((path.control.max_bandwidth() / LINK - 1.0).abs() < 0.02);
    assert_eq!(path.control.gains(), (0.5, 2.0));
    reach(&mut path, State::Down);
    assert!(path.in_flight() <= BDP + 2 * MSS || path.control.rounds > path.control.drain_round + 3);
    path.longest_rtt = Duration::ZERO;
    path.run_to(4000);
    assert!(path.longest_rtt < RTT * 14 / 10, "{:?}", path.longest_rtt);
}

#[test]
fn startup_ends_with_six_losses_in_a_round_trip_of_a_repair_that_are_two_percent() {
    let mut path = path();
    (path.queue, path.link) = (BDP / 4, 10.0 * LINK);
    path.run_until(2_000, |bbr| bbr.full.reached);
    let bbr = &path.control;
    // Or else three rounds without growth would have ended it, without a bound.
    assert_ne!(bbr.inflight_long, UNBOUNDED, "{bbr:?}");
    assert_eq!(bbr.undo.state, Some(State::Startup));
}

#[test]
fn each_phase_of_probing_has_its_gains_and_comes_after_the_one_before() {
    let mut path = path();
    reach(&mut path, State::ProbeRtt);
    for (state, gains) in [
        (State::Cruise, (1.0, 2.0)),
        (State::Refill, (1.0, 2.0)),
        (State::Up, (1.25, 2.25)),
        (State::Down, (0.9, 2.0)),
        (State::Cruise, (1.0, 2.0)),
    ] {
        let before = path.control.state;
        path.run_until(20_000, |bbr| bbr.state != before);
        assert_eq!((path.control.state, path.control.gains()), (state, gains), "after {before:?}");
    }
}

#[test]
fn down_ends_when_the_queue_is_empty_and_cruise_after_two_to_three_seconds() {
    let mut path = path();
    reach(&mut path, State::ProbeRtt);
    reach(&mut path, State::Up);
    reach(&mut path, State::Down);
    assert!(path.in_flight() > 3 * BDP / 2, "{}", path.in_flight());
    reach(&mut path, State::Cruise);
    assert!(path.in_flight() <= path.control.inflight(path.control.max_bandwidth(), 1.0));
    reach(&mut path, State::ProbeRtt);
    reach(&mut path, State::Cruise);
    let began = path.now;
    reach(&mut path, State::Refill);
    let waited = path.now - began;
    assert!((Duration::from_secs(2)..Duration::from_millis(3100)).contains(&waited), "{waited:?}");
}

/// A Reno flow with the same flight needs as many rounds as its window has segments to get it back.
#[test]
fn a_small_flight_probes_after_as_many_rounds_as_it_has_segments() {
    let mut path = path();
    path.link = LINK / 10.0;
    reach(&mut path, State::Cruise);
    let (began, segments) = (path.control.rounds, path.control.target_inflight() / MSS);
    assert!((5..10).contains(&segments), "{segments}");
    reach(&mut path, State::Refill);
    let rounds = path.control.rounds - began;
    assert!(rounds.abs_diff(segments) <= 2, "{rounds} rounds of {segments} segments");
}

#[test]
fn refill_forgets_the_bounds_of_losses_and_lasts_a_round() {
    let mut path = path();
    reach(&mut path, State::Cruise);
    path.control.short_term = Bounds { bandwidth: LINK, inflight: BDP };
    reach(&mut path, State::Refill);
    assert!(path.control.short_term.bandwidth.is_infinite());
    assert_eq!(path.control.short_term.inflight, UNBOUNDED);
    let began = path.control.rounds;
    reach(&mut path, State::Up);
    assert_eq!(path.control.rounds, began + 1);
    assert!(path.control.is_probe_sample);
}

#[test]
fn up_finds_a_link_that_has_become_faster() {
    let mut path = path();
    reach(&mut path, State::Cruise);
    path.link = 2.0 * LINK;
    path.run_to(15_000);
    let bandwidth = path.control.max_bandwidth();
    assert!(bandwidth > 1.9 * LINK, "{bandwidth}");
}

/// Two cycles of probing remember a bandwidth that is there no more.
#[test]
fn a_link_that_has_become_slower_is_believed_after_two_cycles() {
    let mut path = path();
    reach(&mut path, State::Cruise);
    path.link = LINK / 2.0;
    path.run_to(15_000);
    let bandwidth = path.control.max_bandwidth();
    assert!((0.45 * LINK..0.6 * LINK).contains(&bandwidth), "{bandwidth}");
}

#[test]
fn a_probe_that_loses_more_than_two_percent_bounds_the_volume_and_goes_down() {
    let mut path = path();
    reach(&mut path, State::Up);
    let too_many = 3 * MSS;
    let lossy = delivery(&path, 130_000, too_many);
    path.control.on_delivery(&lossy);
    assert_eq!(path.control.state, State::Down);
    assert!(path.control.was_too_high);
    // Of the flight before the loss, and the prefix that 2% of it allows.
    let expected = (130_000 - too_many) as f64 * (1.0 + 0.02 / 0.98);
    assert!(path.control.inflight_long.abs_diff(expected as u64) <= 1, "{}", path.control.inflight_long);
    let bound = path.control.inflight_long;
    reach(&mut path, State::Cruise);
    assert!(path.control.cwnd() <= bound - (0.15 * bound as f64) as u64 + 1, "headroom for others");
}

#[test]
fn a_probe_that_loses_less_goes_on() {
    let mut path = path();
    reach(&mut path, State::Up);
    let harmless = delivery(&path, 130_000, MSS);
    path.control.on_delivery(&harmless);
    assert_eq!((path.control.state, path.control.inflight_long), (State::Up, UNBOUNDED));
}

#[test]
fn the_next_probe_after_one_that_lost_too_much_ends_at_the_bound_and_the_one_after_it_comes_at_once() {
    let mut path = path();
    reach(&mut path, State::Up);
    let lossy = delivery(&path, 130_000, 3 * MSS);
    path.control.on_delivery(&lossy);
    reach(&mut path, State::Up);
    reach(&mut path, State::Down);
    assert!(path.control.was_precautionary && !path.control.was_too_high, "{:?}", path.control);
    let began = path.now;
    reach(&mut path, State::Refill);
    assert!(path.now - began < 3 * RTT, "after {:?}", path.now - began);
}

#[test]
fn a_bound_rises_by_twice_as_many_segments_in_each_round_of_a_probe() {
    let mut path = path();
    reach(&mut path, State::Up);
    path.control.inflight_long = path.control.cwnd();
    path.control.up = Slope::FLAT;
    let mut raised = Vec::new();
    for round in 0..4 {
        path.control.raise_slope();
        path.control.cwnd = path.control.inflight_long;
        let before = path.control.inflight_long;
        for _ in 0..before / MSS {
            path.control.round_start = false;
            let full = delivery(&path, path.control.cwnd() - MSS, 0);
            path.control.raise_long_term(&full);
            path.control.cwnd = path.control.inflight_long;
        }
        raised.push(((path.control.inflight_long - before) / MSS, 1u64 << round));
    }
    for (segments, expected) in raised {
        assert!(segments.abs_diff(expected) <= 1, "{segments} of {expected}");
    }
}

#[test]
fn losses_outside_of_a_probe_lower_the_short_term_bounds_to_what_still_arrives() {
    let mut path = path();
    reach(&mut path, State::Cruise);
    let lossy = delivery(&path, BDP, MSS);
    path.control.on_delivery(&lossy);
    path.run_until(20_000, |bbr| bbr.short_term.inflight != UNBOUNDED || bbr.state != State::Cruise);
    let bounds = path.control.short_term;
    assert!(bounds.bandwidth >= 0.95 * LINK, "{bounds:?}");
    let window = path.control.bdp(path.control.max_bandwidth(), CWND_GAIN);
    assert!((BDP..window).contains(&bounds.inflight), "{bounds:?}");
}

#[test]
fn every_five_seconds_half_a_product_is_in_flight_for_a_round_trip_and_200_ms() {
    let mut path = path();
    reach(&mut path, State::ProbeRtt);
    assert!((5_000..5_200).contains(&millis(&path)), "{} ms", millis(&path));
    assert!(path.control.holds_back());
    let half = path.control.probe_rtt_window();
    assert!(half.abs_diff(BDP / 2) < 3 * MSS, "{half}");
    let began = path.now;
    reach(&mut path, State::Cruise);
    let lasted = path.now - began;
    assert!((Duration::from_millis(200)..Duration::from_millis(450)).contains(&lasted), "{lasted:?}");
    assert_eq!(path.control.min_rtt, Some(RTT));
    let next = path.now;
    reach(&mut path, State::ProbeRtt);
    assert!(path.now - next >= PROBE_RTT_INTERVAL);
}

#[test]
fn the_link_is_used_with_one_loss_in_a_hundred_and_without_any() {
    for (loses_one_in, least) in [(None, 0.95), (Some(100), 0.9)] {
        let mut path = path();
        path.loses_one_in = loses_one_in;
        let used = path.used(5_000, 35_000);
        assert!((least..1.0).contains(&used), "{used} with {loses_one_in:?}");
    }
}

#[test]
fn losses_that_were_none_give_back_bounds_and_probe() {
    let mut path = path();
    reach(&mut path, State::Up);
    let before = path.control.cwnd();
    let lossy = delivery(&path, 130_000, 3 * MSS);
    path.control.on_delivery(&lossy);
    assert_eq!(path.control.state, State::Down);
    path.control.on_spurious();
    assert_eq!((path.control.state, path.control.inflight_long), (State::Refill, UNBOUNDED));
    assert!(path.control.cwnd() >= before);
}

#[test]
fn a_pause_is_followed_by_the_bandwidth_without_a_probe() {
    let mut path = path();
    reach(&mut path, State::Up);
    path.control.on_restart(path.now);
    let rate = path.control.pacing_rate(RTT).unwrap().bps() as f64 / 8.0;
    assert!((0.97..1.0).contains(&(rate / path.control.bandwidth)), "{rate}");
}
