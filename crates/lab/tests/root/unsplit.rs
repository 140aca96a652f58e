//! What no gateway can split, across a link between two boxes: QUIC, and TCP in tunnels, end to end. Bounds are
//! generous: what is reached on a quiet machine is in docs/experiments.

use std::time::Duration;

use bentpipe_lab::quic::{self, Congestion};
use bentpipe_lab::tunnel::Tunnel;
use bentpipe_lab::unsplit::{Channel, Crossing, Measured};
use bentpipe_lab::wireguard::PROGRAMS;
use bentpipe_testbed::{Need, require, with_timing_retries};
use bentpipe_units::{Probability, Rate};

use crate::common::missing;

/// Some seconds over 10 Mbit/s and 100 ms.
fn crossing(per: f64, seconds: u64) -> Crossing {
    let (rtt, channel) = (Duration::from_millis(100), Channel::Errors(Probability::new(per).unwrap()));
    let lasts = Duration::from_secs(seconds);
    Crossing { lasts, ..Crossing::of_a_minute(Rate::mbps(10), rtt, channel, 1) }
}

fn show(what: &str, measured: &Measured) {
    println!(
        "{what}: {:.3} of the limit, offered {:.3}, queue {:.3} s",
        measured.of_limit(),
        measured.offered,
        measured.queue_95_s()
    );
}

#[test]
fn quic_fills_a_link_that_loses_nothing_and_losses_keep_it_from_that() {
    if missing() {
        return;
    }
    with_timing_retries(|| {
        let [clean, lossy] =
            [0.0, 0.05].map(|per| quic::cross(&crossing(per, 8), Congestion::Cubic).unwrap());
        show("nothing lost", &clean);
        show("5% lost", &lossy);
        assert!(clean.intact && lossy.intact, "what has arrived is not what was sent");
        assert!((0.7..1.0).contains(&clean.of_limit()), "{}", clean.of_limit());
        assert!((0.01..0.5 * clean.of_limit()).contains(&lossy.of_limit()), "{}", lossy.of_limit());
        assert_eq!(clean.by_second_bps.len(), 8, "a value for each second");
        // The queue holds 100 ms, and CUBIC fills it.
        let excess = clean.excess_95_s().expect("a server tells its round trips");
        assert!((0.02..0.3).contains(&excess) && clean.queue_95_s() > 0.02, "{excess} s");
    });
}

#[test]
fn tcp_in_esp_crosses_the_link_as_it_was_sent() {
    if missing() {
        return;
    }
    with_timing_retries(|| crosses(Tunnel::Esp));
}

#[test]
fn tcp_in_wireguard_crosses_the_link_as_it_was_sent() {
    if missing() {
        return;
    }
    if let Err(missing) = require(&PROGRAMS.map(Need::Program)) {
        return println!("skipped: scripts/setup-peers vpn installs it: {missing}");
    }
    with_timing_retries(|| crosses(Tunnel::WireGuard));
}

fn crosses(tunnel: Tunnel) {
    let measured = tunnel.cross(&crossing(0.0, 6)).unwrap();
    show(tunnel.name(), &measured);
    assert!(measured.intact, "what has arrived is not what was sent");
    // Headers of the tunnel are offered to the link besides the payload.
    assert!((0.6..0.98).contains(&measured.of_limit()), "{}", measured.of_limit());
    assert!(measured.offered > measured.of_limit(), "{}", measured.offered);
}
