//! `bentpipe doctor` and what a configuration says of its legs. No test here needs root.

use std::io::Write;
use std::process::{Command, Output};

use serde_json::Value;

fn bentpipe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bentpipe")).args(arguments).output().unwrap()
}

/// The checks for a configuration with one leg, `sat`, of these lines.
fn checks(lines: &str) -> Vec<Value> {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    writeln!(file, "[legs.sat]\ninterface = \"sat0\"\ncongestion = \"reno\"\n{lines}").unwrap();
    let output = bentpipe(&["doctor", "--json", "-c", file.path().to_str().unwrap()]);
    let document: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let checks = document["checks"].as_array().unwrap().clone();
    let healthy = checks.iter().all(|check| check["ok"] == true);
    assert_eq!(output.status.code(), Some(if healthy { 0 } else { 1 }));
    checks
}

/// Whether one check is passed, what it has found, and what it advises.
fn check(checks: &[Value], name: &str) -> (bool, String, String) {
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("no {name} in {checks:#?}"));
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    (check["ok"].as_bool().unwrap(), text("found"), text("fix"))
}

#[test]
fn a_geostationary_leg_is_in_reach_and_ntp_by_the_book_is_not_where_a_hop_is_longer() {
    let (ok, found, fix) = check(&checks(""), "protocol radius, leg sat");
    assert!(ok && found.contains("all known protocols") && fix.is_empty(), "{found} {fix}");
    let (ok, found, fix) = check(&checks("rtt = \"2560ms\""), "protocol radius, leg sat");
    assert!(ok, "advice, for it is others' timers that expire");
    assert!(found.contains("NTP, RFC 5905") && !found.contains("TCP, Linux"), "{found}");
    assert!(fix.contains("bentpipe radius --delay 1.28s "), "{fix}");
}

#[test]
fn an_outage_beyond_the_timers_of_those_at_the_ends_is_told() {
    let checks = checks("survive_outage = \"25m\"");
    let (ok, found, fix) = check(&checks, "protocol radius, leg sat");
    assert!(ok && fix.contains("--delay 300ms --outage 1500s"), "{fix}");
    for name in ["TCP, Linux", "BGP-4, RFC 4271", "QUIC, quinn"] {
        assert!(found.contains(name), "{name} is not in {found}");
    }
    // These wait on TCP's timers, which are the leg's own, and not on any of theirs.
    assert!(!found.contains("SSH") && !found.contains("LTP"), "{found}");
    let (ok, found, _) = check(&checks, "outages, leg sat");
    assert!(ok && found.starts_with("split connections survive 25 min of outage "), "{found}");
}

#[test]
fn the_advised_radius_command_is_one_that_the_program_takes() {
    let (_, _, fix) = check(&checks("survive_outage = \"25m\""), "protocol radius, leg sat");
    let command = fix.strip_prefix("bentpipe ").unwrap().split(" lists").next().unwrap();
    let output = bentpipe(&command.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{command}");
}

#[test]
fn a_leg_beyond_the_reach_of_tcps_handshake_is_lacking() {
    let (ok, found, _) = check(&checks(""), "connecting, leg sat");
    assert!(ok, "{found}");
    for rtt in ["16m", "3h"] {
        let (ok, found, fix) = check(&checks(&format!("rtt = \"{rtt}\"")), "connecting, leg sat");
        assert!(!ok && fix.contains("net.ipv4.tcp_synack_retries="), "{rtt}: {found} {fix}");
    }
    let (ok, _, fix) = check(&checks("rtt = \"90h\""), "connecting, leg sat");
    assert!(!ok && fix.contains("store and forward"), "{fix}");
}

#[test]
fn timers_that_cannot_meet_the_legs_settings_are_reported() {
    let lacking = |lines: &str, advice: &str| {
        let (ok, found, fix) = check(&checks(lines), "outages, leg sat");
        assert!(!ok && fix.contains(advice), "{lines}: {found} {fix}");
    };
    // Reno fills the queue, and the ceiling must stay above the round trip with it.
    lacking("restart_within = \"1s\"\nsurvive_outage = \"25m\"", "restart_within = \"1.4s\"");
    lacking("restart_within = \"2s\"", "survive_outage");
    lacking("survive_outage = \"700h\"", "survive_outage = \"596h\"");
    let (ok, found, _) =
        check(&checks("restart_within = \"2s\"\nsurvive_outage = \"25m\""), "outages, leg sat");
    assert!(ok, "{found}");
    assert!(check(&checks(""), "outages, leg terrestrial").0);
}

#[test]
fn a_cap_above_the_rate_is_lacking_and_one_below_is_not() {
    let lines = |cap: &str| format!("rate = \"10Mbit/s\"\npacing_cap = \"{cap}\"");
    let (ok, _, fix) = check(&checks(&lines("20Mbit/s")), "pacing cap, leg sat");
    assert!(!ok && fix.contains("pacing_cap = \"10Mbit/s\""), "{fix}");
    assert!(check(&checks(&lines("10Mbit/s")), "pacing cap, leg sat").0);
    assert!(checks("rate = \"10Mbit/s\"").iter().all(|check| check["name"] != "pacing cap, leg sat"));
}

#[test]
fn a_fixed_buffer_smaller_than_the_link_needs_is_reported() {
    let checks = checks("rate = \"10Mbit/s\"\nsend_buffer = \"1MB\"\nreceive_buffer = \"4MB\"");
    let (ok, found, fix) = check(&checks, "send buffer, leg sat");
    assert!(!ok && fix.contains("send_buffer = \"3MB\""), "{found} {fix}");
    assert!(check(&checks, "receive buffer, leg sat").0);
}

#[test]
fn fast_open_is_looked_at_where_a_leg_asks_for_it() {
    let name = "TCP Fast Open";
    assert!(checks("").iter().all(|check| check["name"] != name));
    let bits: u32 =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen").unwrap().trim().parse().unwrap();
    let (ok, found, fix) = check(&checks("fast_open = true"), name);
    assert_eq!(ok, bits & 3 == 3, "{found}");
    assert!(ok || fix == format!("sysctl -w net.ipv4.tcp_fastopen={}", bits | 3), "{fix}");
}

#[test]
fn limits_that_this_host_cannot_keep_are_lacking() {
    let checks = checks(
        "rate = \"10Mbit/s\"\n[limits]\nconnections = 900000000\nbuffered = \"900000GB\"\nbuffered_per_connection = \"1MB\"",
    );
    for (name, advice) in [
        ("connections at a time", "LimitNOFILE="),
        ("memory for buffers", "leave buffered out"),
        ("memory of a connection", "buffered_per_connection = \"18MB\""),
    ] {
        let (ok, found, fix) = check(&checks, name);
        assert!(!ok && fix.contains(advice), "{name}: {found} {fix}");
    }
}

#[test]
fn without_limits_doctor_prints_the_effect_of_the_defaults() {
    let checks = checks("");
    for name in ["connections at a time", "memory for buffers"] {
        let (ok, found, _) = check(&checks, name);
        assert!(ok, "{found}");
    }
    assert!(checks.iter().all(|check| check["name"] != "memory of a connection"));
}
