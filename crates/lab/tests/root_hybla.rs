//! Hybla in the running kernel, over an emulated link: its window against the formula, its manners without losses, its
//! gain with them.

mod common;

use std::time::Duration;

use bentpipe_kernel::hybla::{Hybla, RTT0, STANDARD_WINDOW};
use bentpipe_kernel::tcp_info::TcpInfo;
use bentpipe_lab::download::{Progress, Request, Server, download};
use bentpipe_lab::scene::Scene;
use bentpipe_lab::trace::Sample;
use bentpipe_units::Rate;
use common::{missing, symmetric};

/// Downloads end to end with Hybla at the server and returns what its socket recorded.
fn record(rate: Rate, rtt_ms: u64, per: f64, bytes: u64, interval: Duration) -> (Vec<Sample>, Scene) {
    let hybla = Hybla::acquire().unwrap();
    let scene = Scene::build(&symmetric(rate, rtt_ms, per), 1).unwrap();
    let address = scene.server_address(80);
    let start = || Server::start_recording(address, Some(hybla.name()), interval).unwrap();
    let mut server = scene.server.run(start).unwrap();
    let request = Request { seed: 1, bytes };
    let got = scene.client.run(|| download(address, request, &Progress::default()).unwrap()).unwrap();
    assert!(got.identical, "{got:?}");
    // The client's last acknowledgement is still on its way.
    while server.traces().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    scene.server.run(|| server.stop()).unwrap();
    (server.traces().remove(0), scene)
}

/// W = ρ·W0 + (2^ρ − 1)·n after n acknowledged segments, until the slow-start threshold.
fn slow_start_window(info: &TcpInfo) -> f64 {
    let rho = (info.min_rtt.as_secs_f64() / RTT0.as_secs_f64()).max(1.0);
    // The kernel counts the SYN among what was delivered.
    let acknowledged = f64::from(info.delivered.saturating_sub(1));
    let window = (rho * f64::from(STANDARD_WINDOW)).floor() + (rho.exp2() - 1.0) * acknowledged;
    if info.ssthresh == TcpInfo::NO_SSTHRESH { window } else { window.min(f64::from(info.ssthresh)) }
}

#[test]
fn the_window_follows_the_formula_in_slow_start_until_hoes_threshold() {
    if missing() {
        return;
    }
    for (rate, rtt_ms) in [(100, 25), (100, 100), (10, 300), (10, 600)] {
        let (trace, _scene) =
            record(Rate::mbps(rate), rtt_ms, 0.0, 1_500_000, Duration::from_micros(200));
        let below = |sample: &&Sample| sample.info.cwnd < sample.info.ssthresh;
        let slow_start: Vec<_> = trace.iter().take_while(below).map(|sample| sample.info).collect();
        let threshold = trace[slow_start.len()].info;
        let windows: std::collections::BTreeSet<u32> = slow_start.iter().map(|info| info.cwnd).collect();
        println!("{rtt_ms} ms: windows {windows:?}, then the threshold {}", threshold.ssthresh);
        assert!(windows.len() >= 2, "{rtt_ms} ms: no growth was seen in {} samples", slow_start.len());
        for info in &slow_start {
            let (window, formula) = (f64::from(info.cwnd), slow_start_window(info));
            // The kernel's window and the emulation of 2^ρ saturate at 2^30 segments.
            let formula = formula.min(f64::from(1 << 30));
            assert!((window - formula).abs() <= 0.1 * formula, "{rtt_ms} ms: {window} is not {formula}: {info:?}");
        }
        assert_ne!(threshold.ssthresh, TcpInfo::NO_SSTHRESH, "{rtt_ms} ms: no threshold was found");
    }
}

#[test]
fn hoes_threshold_is_the_bandwidth_delay_product() {
    if missing() {
        return;
    }
    let (trace, _scene) = record(Rate::mbps(10), 600, 0.0, 1_500_000, Duration::from_millis(5));
    let threshold = trace.last().unwrap().info.ssthresh;
    // 10 Mbit/s for 600 ms are 500 packets of 1500 bytes; the spacing of ten ACKs is subject to the scheduler.
    assert!((300..=700).contains(&threshold), "{threshold}");
}

#[test]
fn without_losses_the_queue_never_overflows_and_nothing_is_sent_twice() {
    if missing() {
        return;
    }
    let (trace, scene) = record(Rate::mbps(10), 600, 0.0, 10_000_000, Duration::from_millis(20));
    let end = trace.last().unwrap().info;
    assert!(end.retransmissions * 100 < end.data_segments_out, "{end:?}");
    assert_eq!(scene.link.counters().0.dropped.queue_full, 0);
    let longest = trace.iter().map(|sample| sample.info.srtt).max().unwrap();
    assert!(longest < Duration::from_millis(1000), "a queue of {:?}", longest - end.min_rtt);
}

#[test]
fn at_one_percent_of_losses_hybla_fills_more_than_a_third_of_the_link() {
    if missing() {
        return;
    }
    let (trace, _scene) = record(Rate::mbps(10), 600, 0.01, 6_000_000, Duration::from_millis(100));
    let seconds = trace.last().unwrap().at.as_secs_f64();
    let goodput = 6e6 * 8.0 / seconds;
    // Reno has 0.2 Mbit/s here. The bound leaves room for a busy machine; docs/performance.md has the figure.
    assert!(goodput > 3.3e6, "{goodput} bit/s");
}
