//! Transfers over links that vary.

use bentpipe_sim::file::Source;
use bentpipe_sim::scenario::Scenario;
use bentpipe_units::Time;

use crate::world::go;

const SCENARIO: &str = r#"
title = "a link that varies"
duration = "60s"
[[link]]
name = "satellite"
between = ["server", "client"]
delay = "10ms"
trace = { KIND = "trace" }
[link.reverse]
rate = "10Mbit/s"
[[flow]]
name = "download"
from = "server"
to = "client"
"#;

/// The scenario with this trace in its file.
fn load(kind: &str, trace: &str) -> Result<Scenario, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("trace"), trace).unwrap();
    let path = folder.path().join("scenario.toml");
    std::fs::write(&path, SCENARIO.replace("KIND", kind)).unwrap();
    Source::load(&path).and_then(|source| source.with(&[])).map_err(|error| error.to_string())
}

/// What a download had, as a share of what the trace lets through.
fn share(scenario: &Scenario) -> f64 {
    let trace = &scenario.links[0].config.forward.trace;
    let capacity = trace.capacity(None, Time::ZERO + scenario.duration).unwrap();
    // 1448 bytes of payload in packets of 1500.
    let payload = capacity as f64 * 1448.0 / 1500.0;
    go(scenario, 1).flows[0].bytes as f64 / payload
}

#[test]
fn a_download_has_what_rates_and_pauses_of_the_trace_let_through() {
    let steps = "at_s,rate\n0,8Mbit/s\n10,2Mbit/s\n20,0\n20.2,8Mbit/s\n30,repeat\n";
    let share_of_steps = share(&load("file", steps).unwrap());
    assert!((0.95..1.0).contains(&share_of_steps), "{share_of_steps}");
    // 12 Mbit/s in the first half of each second, and 1.2 in the second one.
    let fast = (1..=500).map(|millis| format!("{millis}\n"));
    let slow = (501..=1000).filter(|millis| millis % 10 == 0).map(|millis| format!("{millis}\n"));
    let share_of_mahimahi = share(&load("mahimahi", &fast.chain(slow).collect::<String>()).unwrap());
    assert!((0.9..1.0).contains(&share_of_mahimahi), "{share_of_mahimahi}");
}

#[test]
fn a_trace_that_cannot_be_read_is_named_with_its_line() {
    let error = load("file", "at_s,rate\n0,fast\n").unwrap_err();
    assert!(error.contains("line 2, column rate") && error.contains("scenario.toml"), "{error}");
    let error = load("mahimahi", "5\n4\n").unwrap_err();
    assert!(error.contains("less than the line before it"), "{error}");
    let error = load("file = \"trace\", mahimahi", "").unwrap_err();
    assert!(error.contains("either file"), "{error}");
}
