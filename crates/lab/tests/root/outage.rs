//! Downloads through the proxy over a link that fails and returns.

use std::time::Duration;

use crate::common::{missing, symmetric};
use crate::counters::timeouts;
use bentpipe_lab::download::{Download, Progress, Request, SAMPLE_INTERVAL};
use bentpipe_lab::outage::cut;
use bentpipe_lab::topology::{Proxy, SATELLITE, Topology};
use bentpipe_proxy::Config;
use bentpipe_units::Rate;

fn config(timers: &str) -> Config {
    let text =
        format!("[legs.satellite]\ninterface = \"{SATELLITE}\"\nrate = \"10M\"\nrtt = \"600ms\"\n{timers}");
    Config::parse("test", &text).unwrap()
}

/// A download of `bytes` through the proxy, during which `meanwhile` cuts and restores the link.
fn download_while<T: Send>(
    topology: &Topology,
    config: &Config,
    bytes: u64,
    meanwhile: impl FnOnce(&Progress) -> T + Send,
) -> (std::io::Result<Download>, T) {
    let _server = topology.serve(None, SAMPLE_INTERVAL).unwrap();
    let _proxy = Proxy::start(&topology.gateway, config).unwrap();
    let progress = Progress::default();
    let request = Request { seed: 1, bytes };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| topology.download(request, &progress));
        let seen = meanwhile(&progress);
        (client.join().unwrap(), seen)
    })
}

fn wait_for(progress: &Progress, bytes: u64) {
    while progress.received() < bytes {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn after_fifty_seconds_of_outage_data_flows_again_in_time() {
    if missing() {
        return;
    }
    let topology = Topology::build(&symmetric(Rate::mbps(10), 600, 0.0), 1).unwrap();
    // As `bentpipe doctor` advises.
    topology.gateway.sysctl("net.ipv4.tcp_frto", "0").unwrap();
    let config = config("restart_within = \"1s\"\nsurvive_outage = \"25m\"\n");
    let (got, (spurious, restart)) = download_while(&topology, &config, 8_000_000, |progress| {
        wait_for(progress, 3_000_000);
        let spurious = timeouts(&topology.gateway);
        (spurious, cut(&topology, progress, Duration::from_secs(50)))
    });
    println!("{:.2} s to the next byte after the link's return: {restart:?}", restart.byte.as_secs_f64());
    assert!(got.unwrap().identical);
    assert_eq!(spurious, 0, "a ceiling below the round trip makes every round trip a timeout");
    // One second until the next try and 300 ms to the client, and what a busy machine adds. With the kernel's
    // default the next try comes up to 50 s later. That segment is one that the client has; only its
    // acknowledgement was lost. The next byte comes when a round trip has told the sender which ones were, or
    // up to three without probes: docs/outages.md.
    assert!(restart.segment < Duration::from_secs(2), "{restart:?}");
    assert!(restart.byte < Duration::from_secs(5), "{restart:?}");
}

/// Three retries are given up after three seconds, as the usual fifteen are after fifteen minutes: an outage
/// four times as long stands for one of an hour.
const FEW_RETRIES: &str = "3";
const FOUR_TIMES: Duration = Duration::from_secs(14);

#[test]
fn an_outage_four_times_longer_than_the_retries_last_is_survived() {
    if missing() {
        return;
    }
    let topology = Topology::build(&symmetric(Rate::mbps(10), 600, 0.0), 1).unwrap();
    topology.gateway.sysctl("net.ipv4.tcp_retries2", FEW_RETRIES).unwrap();
    let config = config("restart_within = \"1s\"\nsurvive_outage = \"25m\"\n");
    let (got, _) = download_while(&topology, &config, 4_000_000, |progress| {
        wait_for(progress, 1_000_000);
        cut(&topology, progress, FOUR_TIMES)
    });
    assert!(got.unwrap().identical);
}

#[test]
fn the_same_outage_ends_a_connection_that_was_not_told_to_survive_it() {
    if missing() {
        return;
    }
    let topology = Topology::build(&symmetric(Rate::mbps(10), 600, 0.0), 1).unwrap();
    topology.gateway.sysctl("net.ipv4.tcp_retries2", FEW_RETRIES).unwrap();
    let (got, _) = download_while(&topology, &config(""), 4_000_000, |progress| {
        wait_for(progress, 1_000_000);
        topology.link.set_outage(true);
        std::thread::sleep(FOUR_TIMES);
        topology.link.set_outage(false);
        std::thread::sleep(Duration::from_secs(5));
        progress.cancel();
    });
    assert!(got.map_or(true, |got| !got.identical), "the outage was too short to show anything");
}

#[test]
fn the_last_bytes_survive_an_outage_after_both_ends_have_finished_sending() {
    if missing() {
        return;
    }
    let topology = Topology::build(&symmetric(Rate::mbps(10), 600, 0.0), 1).unwrap();
    topology.gateway.sysctl("net.ipv4.tcp_orphan_retries", "1").unwrap();
    let config = config("restart_within = \"1s\"\nsurvive_outage = \"25m\"\n");
    let (got, _) = download_while(&topology, &config, 1_500_000, |progress| {
        // The server has long handed over everything; the rest lies in the gateway.
        wait_for(progress, 700_000);
        cut(&topology, progress, Duration::from_secs(10))
    });
    assert!(got.unwrap().identical);
}
