//! What leaves at once where something paces.

use std::time::Duration;

use bentpipe_tcp::congestion::Algorithm;
use bentpipe_tcp::{Config, Endpoint, Recovery};
use bentpipe_units::Time;

use super::timeline::{MSS, Timeline, config};

/// When segments leave, microseconds after the first of them, and how many each time, until the window is
/// full.
fn departures(endpoint: &mut Endpoint, mut now: Time) -> Vec<(u128, usize)> {
    let began = now;
    let mut departures = Vec::new();
    loop {
        let count = std::iter::from_fn(|| endpoint.poll_transmit(now)).count();
        if count > 0 {
            departures.push(((now - began).as_micros(), count));
        }
        let wake_at = endpoint.wake_at();
        // The retransmission timer, or a probe.
        if wake_at - now > Duration::from_millis(50) {
            return departures;
        }
        now = wake_at;
        endpoint.on_timer(now);
    }
}

/// A sender whose initial window of ten segments is acknowledged, after a round trip of 100 ms.
fn after_the_first_window(choice: Config) -> Timeline {
    let mut timeline = Timeline::established(choice, Duration::from_millis(100));
    timeline.write(1000).sends(1..=10).after(100);
    timeline.endpoint.on_segment(timeline.now, &timeline.acknowledgement(10));
    timeline
}

#[test]
fn a_host_that_paces_sends_two_windows_in_a_round_trip_of_slow_start() {
    let paced = Config { fq_pacing: true, byte_counting_limit: None, ..config(Recovery::Sack) };
    let mut timeline = after_the_first_window(paced);
    // Twenty segments in half of 100 ms.
    let departures = departures(&mut timeline.endpoint, timeline.now);
    assert_eq!(departures.len(), 20, "{departures:?}");
    assert_eq!((departures[1], departures[19]), ((2_500, 1), (47_500, 1)));
}

#[test]
fn without_pacing_the_window_leaves_at_once() {
    let plain = Config { segmentation_offload: true, byte_counting_limit: None, ..config(Recovery::Sack) };
    let mut timeline = after_the_first_window(plain);
    assert_eq!(departures(&mut timeline.endpoint, timeline.now), [(0, 20)]);
}

#[test]
fn paced_bursts_have_two_segments_at_the_least() {
    let paced = Config {
        fq_pacing: true,
        segmentation_offload: true,
        byte_counting_limit: None,
        ..config(Recovery::Sack)
    };
    let mut timeline = after_the_first_window(paced);
    let departures = departures(&mut timeline.endpoint, timeline.now);
    assert_eq!(departures.len(), 10, "{departures:?}");
    assert_eq!(departures[..3], [(0, 2), (5_000, 2), (10_000, 2)]);
}

/// At a window of 500 segments of 1000 bytes in 10 ms of round trip, 1.2 of them are 60 MB/s: a burst of
/// 58 segments each 1/1024 s.
#[test]
fn fast_bursts_are_what_the_pace_carries_in_a_millisecond() {
    let fast = Config {
        fq_pacing: true,
        segmentation_offload: true,
        initial_window: 500,
        congestion: Algorithm::NewReno,
        ..config(Recovery::Sack)
    };
    let mut timeline = Timeline::established(fast, Duration::from_millis(10));
    timeline.window(8192).write(5000);
    timeline.endpoint.on_segment(timeline.now, &timeline.acknowledgement(0));
    let departures = departures(&mut timeline.endpoint, timeline.now);
    // Ten segments leave unpaced; 100 MB/s in slow start would be 97 segments, but 64 kB are the most.
    assert_eq!(departures[0], (0, 10 + 65_536 / MSS as usize), "{departures:?}");
    assert_eq!(departures[1].1, 65, "{departures:?}");
}
