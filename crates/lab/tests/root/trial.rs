//! Explicit rates on this machine's kernel, through the daemon. Bounds are generous: what is reached on a
//! quiet machine is in docs/experiments.

use std::time::Duration;

use crate::common::missing;
use bentpipe_lab::statistics::jain_index;
use bentpipe_lab::trial::{Flow, Trial};
use bentpipe_link::{LeoHandovers, LinkConfig, OutageTrace, RainFront};
use bentpipe_testbed::with_timing_retries;
use bentpipe_units::Rate;

const RTT: Duration = Duration::from_millis(600);

fn explicit(per: f64, seconds: u64) -> Trial {
    with("explicit", per, seconds)
}

fn with(congestion: &str, per: f64, seconds: u64) -> Trial {
    let lasts = Duration::from_secs(seconds);
    let warmup = Duration::from_secs(5);
    Trial { lasts, warmup, ..Trial::of_a_minute(Rate::mbps(10), RTT, per, congestion, 1) }
}

#[test]
fn losses_do_not_keep_a_download_from_the_link_nor_does_a_queue_stand() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let measured = explicit(0.01, 25).run().unwrap();
        println!("{:.3} of the limit, {:.3} s", measured.of_limit(), measured.median_queue_s());
        assert!(measured.of_limit() > 0.7, "{}", measured.of_limit());
        assert!(measured.median_queue_s() < 0.05, "{} s", measured.median_queue_s());
    });
}

/// Ceilings instead of eBPF: here the kernel's CUBIC has a twentieth of the limit.
#[test]
fn without_ebpf_losses_do_not_keep_a_download_from_the_link_nor_does_a_queue_stand() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let measured = with("paced", 0.01, 25).run().unwrap();
        println!("{:.3} of the limit, {:.3} s", measured.of_limit(), measured.median_queue_s());
        assert!(measured.of_limit() > 0.7, "{}", measured.of_limit());
        assert!(measured.median_queue_s() < 0.05, "{} s", measured.median_queue_s());
    });
}

#[test]
fn later_flows_get_an_equal_share() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let later = Flow { begins: Duration::from_secs(10), ..Flow::default() };
        let warmup = Duration::from_secs(15);
        let flows = vec![Flow::default(), Flow::default(), later, later];
        let measured = Trial { flows, warmup, ..explicit(0.01, 35) }.run().unwrap();
        let index = jain_index(&measured.goodputs_bps).unwrap();
        assert!(index > 0.9, "{index}: {:?}", measured.goodputs_bps);
        assert!(measured.of_limit() > 0.7, "{}", measured.of_limit());
    });
}

#[test]
fn a_link_that_carries_half_is_not_overfilled() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let warmup = Duration::from_secs(10);
        let measured = Trial { rate: Rate::mbps(5), warmup, ..explicit(0.01, 30) }.run().unwrap();
        assert!(measured.queue_drops < 0.02, "{}", measured.queue_drops);
        assert!(measured.of_limit() > 0.75, "{}", measured.of_limit());
    });
}

/// Two minutes of the railway at 180 km/h, from kilometre 25.75: six tunnels of 1 to 16 s.
#[test]
fn a_train_between_tunnels_has_most_of_the_clear_sky() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let (from, lasts) = (515.0, 120.0);
        let railway = include_str!("../../../../data/direttissima.csv");
        let railway = OutageTrace::from_railway_csv(railway, 180.0).unwrap();
        let rows = railway.outages().filter_map(|(start, length)| {
            let start = start.as_secs_f64() - from;
            (0.0..lasts).contains(&start).then(|| format!("{start},{}\n", length.as_secs_f64()))
        });
        let rows: Vec<String> = rows.collect();
        assert_eq!(rows.len(), 6);
        let outages = OutageTrace::from_csv(&format!("start_s,duration_s\n{}", rows.concat())).unwrap();
        let measured =
            Trial { outages, warmup: Duration::ZERO, ..explicit(0.01, lasts as u64) }.run().unwrap();
        println!("{:.3} of the limit in {:.2} of the time", measured.of_limit(), measured.clear_sky);
        assert!((0.6..0.8).contains(&measured.clear_sky), "{}", measured.clear_sky);
        assert!(measured.of_limit() > 0.7, "{}", measured.of_limit());
    });
}

/// A download without a configured rate over a link that varies: its share of what could be delivered from
/// the fifth second on.
fn of_varying_limit(link: LinkConfig, seconds: f64) -> f64 {
    let rate = link.forward.highest_rate().unwrap();
    let rtt = link.forward.delay + link.reverse.delay;
    let trial = Trial {
        configured: None,
        lasts: Duration::from_secs_f64(seconds),
        link: Some(link),
        ..Trial::of_a_minute(rate, rtt, 0.0, "explicit", 1)
    };
    let window = trial.run().unwrap().course.between(5.0, seconds - 0.5).unwrap();
    println!("{:.3} of the limit, {:.3} s", window.of_limit, window.queue_95_s);
    window.of_limit
}

#[test]
fn a_leg_without_a_rate_follows_handovers_and_rain() {
    if missing() {
        return;
    }
    let lasts = Duration::from_secs(25);
    let leo = LeoHandovers { forward: [8, 16].map(Rate::mbps), ..LeoHandovers::default() };
    let rain = RainFront { time_compression: 30.0, ..RainFront::default() };
    with_timing_retries(|| {
        let share = of_varying_limit(leo.link(3, lasts), 25.0);
        // What a gap has held back may arrive in the window, so that it can be a little above one.
        assert!((0.6..1.1).contains(&share), "{share}");
    });
    with_timing_retries(|| {
        let share = of_varying_limit(rain.link(3, lasts), 25.0);
        assert!((0.5..1.1).contains(&share), "{share}");
    });
}
