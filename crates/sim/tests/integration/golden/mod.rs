//! Golden tables: what each algorithm makes of the same transfers, to the last retransmission.
//!
//! A change of an algorithm shows as a readable diff of `snapshots/`. Where the change is meant, take the new
//! tables over with `INSTA_UPDATE=always cargo test -p bentpipe-sim --test integration golden`, and say in
//! the commit why they moved.

mod table;

use std::path::Path;

use bentpipe_tcp::congestion::Algorithm;
use table::{Column, table};

/// A file of 2 MB over one link of 10 Mbit/s.
const TRANSFER: &str = r#"
title = "2 MB at 10 Mbit/s"
duration = "1h"

[sweep]
tcp.host.recovery = ["reno", "newreno-impatient", "newreno-slow-but-steady", "sack"]
link.path.delay = ["12.5ms", "300ms"]
link.path.per = ["0", "1e-3", "1e-2"]

[[link]]
name = "path"
between = ["server", "client"]
rate = "10Mbit/s"

[tcp.host]
base = "rfc"

[[flow]]
name = "file"
from = "server"
to = "client"
bytes = "2MB"
tcp = "host"
"#;

/// 4 MB from the ground over a gateway, which splits, to a satellite's terminal.
const SPLIT: &str = r#"
title = "4 MB, split between 100 Mbit/s of ground and 10 Mbit/s of satellite"
duration = "1h"

[sweep]
link.satellite.per = ["0", "1%"]
flow.file.split.gateway.buffer = ["64kB", "256kB", "1MB", "16MiB"]

[[link]]
name = "ground"
between = ["server", "gateway"]
rate = "100Mbit/s"
delay = "10ms"

[[link]]
name = "satellite"
between = ["gateway", "terminal"]
rate = "10Mbit/s"
delay = "300ms"

[tcp.space]
base = "linux"
congestion = "hybla"

[tcp.gateway]
base = "linux"
receive_buffer = "256kB"

[[flow]]
name = "file"
from = "server"
to = "terminal"
bytes = "4MB"
opened_by = "destination"
tcp = "linux"
split = [{ at = "gateway", receiver_tcp = "gateway", tcp = "space" }]
"#;

/// A transfer that an outage interrupts after five seconds.
const OUTAGE: &str = r#"
title = "2 MB at 10 Mbit/s and 600 ms, interrupted after 5 s"
duration = "1h"

[sweep]
link.path.outages = [
    '[{ start = "5s", duration = "1s" }]',
    '[{ start = "5s", duration = "10s" }]',
    '[{ start = "5s", duration = "100s" }]',
]
tcp.host.rto.max = ["2s", "10s", "120s"]

[[link]]
name = "path"
between = ["server", "client"]
rate = "10Mbit/s"
delay = "300ms"

[tcp.host]
base = "linux"
congestion = "newreno"

[[flow]]
name = "file"
from = "server"
to = "client"
bytes = "2MB"
tcp = "host"
"#;

/// The same transfer in bundles, through a node that connects anew when it has to.
const BUNDLES: &str = r#"
title = "4 MB in bundles through a gateway, 100 Mbit/s and 20 ms in front of 10 Mbit/s and 580 ms"
duration = "3h"

[sweep]
link.space.per = ["0", "1e-2"]
link.space.outages = ["[]", '[{ start = "3s", duration = "10s" }]', '[{ start = "3s", duration = "30m" }]']
flow.file.bundles.size = ["10kB", "100kB", "1MB"]

[[link]]
name = "ground"
between = ["server", "gateway"]
rate = "100Mbit/s"
delay = "10ms"

[[link]]
name = "space"
between = ["gateway", "terminal"]
rate = "10Mbit/s"
delay = "290ms"

[tcp.space]
base = "linux"
congestion = "hybla"

[[flow]]
name = "file"
from = "server"
to = "terminal"
bytes = "4MB"
tcp = "linux"
split = [{ at = "gateway", tcp = "space" }]
bundles = {}
"#;

const GOODPUT: Column = ("Mbit/s", |flow| megabits(flow.goodput_bps));
const RETRANSMISSIONS: Column = ("retransmissions", |flow| flow.retransmissions.to_string());
const TIMEOUTS: Column = ("timeouts", |flow| flow.timeouts.to_string());
const END: Column = ("end", |flow| flow.end.unwrap_or("under way").to_owned());

/// With each loss recovery, round trip and packet error rate.
fn check_transfers(congestion: &str) {
    let setting = format!("tcp.host.congestion={congestion}");
    check_with(congestion, &[&setting]);
}

fn check_with(congestion: &str, settings: &[&str]) {
    check(congestion, &table(TRANSFER, settings, &[GOODPUT, RETRANSMISSIONS, TIMEOUTS, END]));
}

#[test]
fn newreno_gives_the_known_table() {
    check_transfers("newreno");
}

#[test]
fn cubic_gives_the_known_table() {
    check_transfers("cubic");
}

#[test]
fn bbr_gives_the_known_table() {
    check_with("bbr", &["tcp.host.base=linux-stock", "tcp.host.recovery=rack", "tcp.host.congestion=bbr"]);
}

#[test]
fn bbr3_gives_the_known_table() {
    check_with("bbr3", &["tcp.host.base=linux-stock", "tcp.host.recovery=rack", "tcp.host.congestion=bbr3"]);
}

#[test]
fn linux_as_it_comes_gives_the_known_table() {
    check_with("linux-stock", &["tcp.host.base=linux-stock", "tcp.host.recovery=rack"]);
}

#[test]
fn hybla_gives_the_known_table() {
    check_transfers("hybla");
}

/// Without a router nobody lowers what is asked for, and both are NewReno with a longer header.
#[test]
fn xcp_without_a_router_gives_the_known_table() {
    check_transfers("xcp");
}

#[test]
fn p_xcp_without_a_router_gives_the_known_table() {
    check_transfers("p-xcp");
}

#[test]
fn explicit_rates_give_the_known_table() {
    check_with("explicit", &["tcp.host.congestion=explicit", "link.path.explicit={ at = 'server' }"]);
}

#[test]
fn every_congestion_control_has_a_table() {
    let snapshots = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/golden/snapshots");
    for congestion in Algorithm::NAMES {
        let snapshot = snapshots.join(format!("{congestion}.snap"));
        assert!(snapshot.exists(), "{congestion} has no table: add a test beside those above");
    }
}

#[test]
fn a_splitter_holds_as_much_as_the_known_table() {
    let most: Column = ("most held, kB", |flow| kilobytes(flow.splitters[0].most_bytes as f64));
    let mean: Column = ("mean, kB", |flow| kilobytes(flow.splitters[0].mean_bytes));
    check("split", &table(SPLIT, &[], &[GOODPUT, most, mean, RETRANSMISSIONS, TIMEOUTS, END]));
}

#[test]
fn bundles_arrive_as_in_the_known_table() {
    let time: Column = ("time, s", |flow| format!("{:.3}", flow.seconds));
    let most: Column = ("most held, kB", |flow| kilobytes(flow.splitters[0].most_bytes as f64));
    let bundles: Column = ("delivered, sessions, repeated", |flow| {
        let bundles = flow.bundles.as_ref().expect("the flow is carried in bundles");
        format!("{}, {}, {}", bundles.delivered, bundles.sessions[1], bundles.repeated[1])
    });
    check("bundles", &table(BUNDLES, &[], &[time, GOODPUT, most, bundles, RETRANSMISSIONS, END]));
}

#[test]
fn after_an_outage_a_flow_restarts_as_in_the_known_table() {
    let time: Column = ("time, s", |flow| format!("{:.3}", flow.seconds));
    let clear: Column = ("clear-sky Mbit/s", |flow| megabits(flow.clear_sky_goodput_bps));
    check("outage", &table(OUTAGE, &[], &[time, GOODPUT, clear, RETRANSMISSIONS, TIMEOUTS, END]));
}

fn check(name: &str, found: &str) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, found);
    });
}

fn megabits(bps: f64) -> String {
    format!("{:.4}", bps / 1e6)
}

fn kilobytes(bytes: f64) -> String {
    format!("{:.1}", bytes / 1e3)
}
