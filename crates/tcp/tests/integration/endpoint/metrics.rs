//! What a connection begins with.

use std::time::Duration;

use bentpipe_tcp::{Config, Endpoint, Metrics, MetricsCache, Recovery};
use bentpipe_units::Time;

use super::timeline::{MSS, Timeline, config, cwnd};

const RTT: Duration = Duration::from_millis(100);

#[test]
fn a_first_threshold_ends_slow_start() {
    let ssthresh = Some(12 * u64::from(MSS));
    let mut timeline = Timeline::established(Config { ssthresh, ..config(Recovery::Sack) }, RTT);
    assert_eq!(timeline.endpoint.variables().ssthresh, 12_000);
    timeline.write(100).sends(1..=10);
    // One segment for each of two acknowledgements, and then one for a window.
    (1..=10).for_each(|n| {
        timeline.ack(n);
    });
    assert_eq!(cwnd(&timeline), 12);
}

#[test]
fn a_first_threshold_is_of_two_segments_at_the_least() {
    let timeline = Timeline::established(Config { ssthresh: Some(1), ..config(Recovery::Sack) }, RTT);
    assert_eq!(timeline.endpoint.variables().ssthresh, 2 * u64::from(MSS));
}

#[test]
fn a_recalled_round_trip_makes_the_first_timeout() {
    let srtt = Some(Duration::from_secs(1));
    let mut timeline = Timeline::established(Config { srtt, ..config(Recovery::Sack) }, RTT);
    timeline.write(1).sends(1..=1).timer_after(3_000);
}

#[test]
fn only_what_the_cache_is_for_is_recalled() {
    let metrics = Metrics { srtt: Some(Duration::from_secs(1)), ssthresh: Some(20_000) };
    let begun = |metrics_cache| {
        let mut endpoint = Endpoint::listen(Config { metrics_cache, ..config(Recovery::Sack) }, 1);
        endpoint.recall(&metrics);
        let mut caller = Endpoint::connect(config(Recovery::Sack), 2, Time::ZERO);
        let mut now = Time::ZERO;
        for _ in 0..3 {
            while let Some(segment) = caller.poll_transmit(now) {
                endpoint.on_segment(now + RTT / 2, &segment);
            }
            now += RTT / 2;
            while let Some(segment) = endpoint.poll_transmit(now) {
                caller.on_segment(now + RTT / 2, &segment);
            }
            now += RTT / 2;
        }
        let variables = endpoint.variables();
        (variables.rto, variables.ssthresh == 20_000)
    };
    assert_eq!(begun(MetricsCache::Off), (Duration::from_secs(1), false), "the floor");
    assert_eq!(begun(MetricsCache::RoundTrip), (Duration::from_secs(3), false));
    assert_eq!(begun(MetricsCache::RoundTripAndSsthresh), (Duration::from_secs(3), true));
}
