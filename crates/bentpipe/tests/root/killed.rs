//! What a daemon leaves behind that is killed, on kernels where a congestion control stays until somebody
//! removes it (before Linux 6.4), and where it goes with its process.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::operated::{PATIENCE, Topology};

const LEG: &str = "rate = \"10Mbit/s\"\nrtt = \"40ms\"\n";

/// The name of the congestion control that the gateway's connection to the server has.
fn in_use(topology: &Topology) -> String {
    let _connection = topology.connections(1);
    let sockets = topology.gateway_says("ss", "-tinH state established");
    let mut words = sockets.split_whitespace();
    let found = words.find(|word| word.starts_with("bp_"));
    found.unwrap_or_else(|| panic!("no eBPF congestion control: {sockets}")).to_owned()
}

fn is_registered(name: &str) -> bool {
    let available = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap();
    available.split_whitespace().any(|other| other == name)
}

/// The next daemon has the name, or nobody: others on this machine may take it for a moment.
fn assert_no_registration_is_left_of(name: &str, next: &str) {
    let start = Instant::now();
    while name != next && is_registered(name) {
        assert!(start.elapsed() < PATIENCE, "{name} is still there, and the daemon has {next}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn kill_and_start(congestion: &str) {
    let Some(mut topology) = Topology::new(Path::new(env!("CARGO_BIN_EXE_bentpipe")), None) else { return };
    topology.configure(&format!("{LEG}congestion = \"{congestion}\""), "listen = \"off\"");
    topology.start();
    let mut name = in_use(&topology);
    for _ in 0..3 {
        assert!(is_registered(&name));
        topology.daemon().kill().unwrap();
        topology.start();
        let next = in_use(&topology);
        assert_no_registration_is_left_of(&name, &next);
        name = next;
    }
    topology.stop();
    assert_no_registration_is_left_of(&name, "none");
}

#[test]
fn after_the_next_start_no_explicit_rates_are_registered_that_a_killed_daemon_had() {
    kill_and_start("explicit");
}

#[test]
fn after_the_next_start_no_hybla_is_registered_that_a_killed_daemon_had() {
    kill_and_start("hybla");
}
