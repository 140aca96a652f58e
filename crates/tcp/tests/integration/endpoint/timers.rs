//! Timers against their closed forms, to the nanosecond.

use std::time::Duration;

use crate::endpoint::timeline::{MSS, Timeline, config};
use bentpipe_tcp::{Config, End, Endpoint, Recovery, RtoLimits, State, SynSchedule};
use bentpipe_units::Time;

fn seconds(time: Time) -> f64 {
    time.as_secs_f64()
}

/// Runs an endpoint that hears nothing, from `from`; returns when it sent something, and when and how it
/// ended.
fn alone(endpoint: &mut Endpoint, from: Time, most: usize) -> (Vec<Time>, Option<(Time, End)>) {
    let (mut now, mut sent) = (from, Vec::new());
    loop {
        while endpoint.poll_transmit(now).is_some() {
            sent.push(now);
        }
        if endpoint.state() == State::Closed {
            return (sent, endpoint.end().map(|end| (now, end)));
        }
        let next = endpoint.wake_at();
        if next == Time::MAX || sent.len() >= most {
            return (sent, None);
        }
        assert!(next > now, "time must go on");
        now = next;
        endpoint.on_timer(now);
    }
}

fn connect(syn: SynSchedule) -> Endpoint {
    Endpoint::connect(Config { syn, ..Config::default() }, 1, Time::ZERO)
}

#[test]
fn the_syn_ladder_of_rfc_6298_is_1_3_7_15_31_63_seconds() {
    let (sent, end) = alone(&mut connect(SynSchedule::RFC6298), Time::ZERO, usize::MAX);
    let at: Vec<f64> = sent.iter().map(|&time| seconds(time)).collect();
    assert_eq!(at[..7], [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0]);
    assert_eq!(end.map(|end| end.1), Some(End::ConnectTimedOut));
}

#[test]
fn each_schedule_gives_up_when_it_says() {
    for schedule in [SynSchedule::OPNET, SynSchedule::WINDOWS_2003, SynSchedule::LINUX, SynSchedule::RFC6298]
    {
        let (sent, end) = alone(&mut connect(schedule), Time::ZERO, usize::MAX);
        let limit = Time::ZERO + schedule.give_up_after().unwrap();
        assert_eq!(end, Some((limit, End::ConnectTimedOut)), "{schedule:?}");
        assert_eq!(sent.len() as u32, schedule.waits.unwrap(), "{schedule:?}");
    }
}

#[test]
fn ns_never_gives_up_and_waits_64_seconds_at_most() {
    let (sent, end) = alone(&mut connect(SynSchedule::NS), Time::ZERO, 1000);
    assert_eq!((sent.len(), end), (1000, None));
    assert_eq!(sent[999] - sent[998], Duration::from_secs(64));
}

/// An established connection with one segment out, its timeout at the floor.
fn stranded(config: Config) -> Timeline {
    let mut timeline = Timeline::established(config, Duration::from_millis(1));
    timeline.write(1).sends([1]);
    timeline
}

#[test]
fn the_retransmission_ladder_is_1_3_7_15_31_63_seconds_to_the_microsecond() {
    let mut timeline = stranded(config(Recovery::Sack));
    let start = timeline.now;
    let (sent, _) = alone(&mut timeline.endpoint, start, 6);
    let at: Vec<u128> = sent.iter().map(|&time| (time - start).as_micros()).collect();
    assert_eq!(at, [1_000_000, 3_000_000, 7_000_000, 15_000_000, 31_000_000, 63_000_000]);
}

#[test]
fn the_backoff_ends_at_the_ceiling() {
    let rto = RtoLimits { max: Duration::from_secs(10), ..RtoLimits::RFC6298 };
    let mut timeline = stranded(Config { rto, ..config(Recovery::Sack) });
    let start = timeline.now;
    let (sent, _) = alone(&mut timeline.endpoint, start, 8);
    let at: Vec<u64> = sent.iter().map(|&time| (time - start).as_secs()).collect();
    assert_eq!(at, [1, 3, 7, 15, 25, 35, 45, 55]);
}

/// T = (2^(n+1) − 1)·RTO up to the ceiling, and (2^(k+1) − 1)·RTO + (n − k)·ceiling beyond, k =
/// ⌊log2(ceiling/RTO)⌋: with Linux' floor of 200 ms, ceiling of 120 s and 15 retries, 924.6 s.
#[test]
fn the_connection_is_given_up_when_the_formula_says() {
    for (ceiling, retries) in [(120, 0), (120, 3), (120, 9), (120, 10), (120, 15), (10, 15), (1, 15), (1, 40)]
    {
        let max = Duration::from_secs(ceiling);
        // A timeout of exactly 200 ms, as in the formula: Linux' would be 200 ms above the round trip.
        let min = Duration::from_millis(200);
        let rto = RtoLimits { min, max, granularity: Duration::from_millis(1), ..RtoLimits::RFC6298 };
        let mut timeline = stranded(Config { rto, retries: Some(retries), ..config(Recovery::Sack) });
        let start = timeline.now;
        let (sent, end) = alone(&mut timeline.endpoint, start, usize::MAX);
        let k = (ceiling as f64 / 0.2).log2().floor() as u32;
        let doubling = |n: u32| (2f64.powi(n as i32 + 1) - 1.0) * 0.2;
        let formula = match retries <= k {
            true => doubling(retries),
            false => doubling(k) + f64::from(retries - k) * ceiling as f64,
        };
        let (at, how) = end.unwrap();
        assert_eq!(how, End::TimedOut);
        assert!(
            (seconds(at) - seconds(start) - formula).abs() < 1e-6,
            "{ceiling} s, {retries} retries: {at:?}"
        );
        assert_eq!(sent.len() as u32, retries);
    }
}

#[test]
fn a_user_timeout_replaces_the_number_of_retries_and_ends_to_the_microsecond() {
    let user_timeout = Some(Duration::from_secs(1500));
    let mut timeline = stranded(Config { user_timeout, retries: Some(2), ..config(Recovery::Sack) });
    let start = timeline.now;
    let (_, end) = alone(&mut timeline.endpoint, start, usize::MAX);
    assert_eq!(end, Some((start + Duration::from_secs(1500), End::TimedOut)));
}

/// RFC 9293 §3.8.6.1: the window is closed; probes find out when it opens, at growing intervals, for ever.
#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let mut timeline = Timeline::established(config(Recovery::Sack), Duration::from_millis(1));
    timeline.window(0).ack(0).write(3).sends_nothing();
    for wait in [1, 2, 4] {
        timeline.timer_after(wait * 1000);
        let probe = timeline.endpoint.poll_transmit(timeline.now).expect("a probe");
        assert_eq!(probe.len, 0);
        timeline.ack(0).sends_nothing();
    }
    timeline.after(100).window(100).ack(0).sends(1..=3);
}

/// RFC 5681 §3.1 halves the flight of ten segments once; ns-2 halves a window of one segment after that, down
/// to two segments.
#[test]
fn the_threshold_after_several_timeouts_is_that_of_the_first_or_two_segments() {
    let thresholds = |each_timeout_reduces| {
        let config = Config { each_timeout_reduces, ..config(Recovery::Sack) };
        let mut timeline = Timeline::established(config, Duration::from_millis(1));
        timeline.write(10).sends(1..=10);
        [1000, 2000, 4000].map(|wait| {
            timeline.timer_after(wait).sends([1]);
            timeline.endpoint.variables().ssthresh / u64::from(MSS)
        })
    };
    assert_eq!(thresholds(false), [5, 5, 5]);
    assert_eq!(thresholds(true), [5, 2, 2]);
}

/// Karn: an acknowledgement of what was sent twice measures nothing, and the timeout stays backed off.
#[test]
fn the_backoff_lasts_until_something_sent_once_is_acknowledged() {
    let mut timeline = stranded(config(Recovery::Sack));
    timeline.timer_after(1000).sends([1]);
    timeline.after(500).ack(1);
    assert_eq!(timeline.endpoint.variables().backoff, 1);
    timeline.write(1).sends([2]);
    timeline.after(500).ack(2);
    assert_eq!(timeline.endpoint.variables().backoff, 0, "2 was sent once");
}
