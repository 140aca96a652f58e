//! Hybla in the running kernel, over an emulated link: its window against the formula, its manners without
//! losses, its gain with them.

use std::time::Duration;

use crate::common::{missing, symmetric};
use bentpipe_kernel::tcp_info::TcpInfo;
use bentpipe_lab::slow_start::{self, Recording, formula, split_at_threshold};
use bentpipe_testbed::with_timing_retries;
use bentpipe_units::Rate;

fn record(rate: Rate, rtt_ms: u64, per: f64, bytes: u64, interval: Duration) -> Recording {
    slow_start::record(&symmetric(rate, rtt_ms, per), bytes, interval).unwrap()
}

#[test]
fn the_window_follows_the_formula_in_slow_start_until_hoes_threshold() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        for (rate, rtt_ms) in [(100, 25), (100, 100), (10, 300), (10, 600)] {
            let recording = record(Rate::mbps(rate), rtt_ms, 0.0, 1_500_000, Duration::from_micros(200));
            let (slow_start, threshold) = split_at_threshold(&recording.samples);
            let windows: std::collections::BTreeSet<u32> =
                slow_start.iter().map(|sample| sample.info.cwnd).collect();
            let threshold = threshold.expect("the window reaches a threshold").info.ssthresh;
            println!("{rtt_ms} ms: windows {windows:?}, then the threshold {threshold}");
            assert!(windows.len() >= 2, "{rtt_ms} ms: no growth was seen in {} samples", slow_start.len());
            for info in slow_start.iter().map(|sample| &sample.info) {
                // The window itself saturates at 2^30 segments.
                let (window, formula) = (f64::from(info.cwnd), formula(info).min(f64::from(1 << 30)));
                assert!(
                    (window - formula).abs() <= 0.1 * formula,
                    "{rtt_ms} ms: {window} is not {formula}: {info:?}"
                );
            }
            assert_ne!(threshold, TcpInfo::NO_SSTHRESH, "{rtt_ms} ms: no threshold was found");
        }
    });
}

#[test]
fn hoes_threshold_is_the_bandwidth_delay_product() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let Recording { samples: trace, .. } =
            record(Rate::mbps(10), 600, 0.0, 1_500_000, Duration::from_millis(5));
        let threshold = trace.last().unwrap().info.ssthresh;
        // 10 Mbit/s for 600 ms are 500 packets of 1500 bytes; the spacing of ten ACKs is subject to the
        // scheduler.
        assert!((300..=700).contains(&threshold), "{threshold}");
    });
}

#[test]
fn without_losses_the_queue_never_overflows_and_nothing_is_sent_twice() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let Recording { samples: trace, topology } =
            record(Rate::mbps(10), 600, 0.0, 10_000_000, Duration::from_millis(20));
        let end = trace.last().unwrap().info;
        assert!(end.retransmissions * 100 < end.data_segments_out, "{end:?}");
        assert_eq!(topology.link.counters().0.dropped.queue_full, 0);
        let longest = trace.iter().map(|sample| sample.info.srtt).max().unwrap();
        assert!(longest < Duration::from_millis(1000), "a queue of {:?}", longest - end.min_rtt);
    });
}

#[test]
fn at_one_percent_of_losses_hybla_fills_more_than_a_third_of_the_link() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let Recording { samples: trace, .. } =
            record(Rate::mbps(10), 600, 0.01, 6_000_000, Duration::from_millis(100));
        let seconds = trace.last().unwrap().at.as_secs_f64();
        let goodput = 6e6 * 8.0 / seconds;
        // Reno has 0.2 Mbit/s here. The bound leaves room for a busy machine; docs/performance.md has the
        // figure.
        assert!(goodput > 3.3e6, "{goodput} bit/s");
    });
}
