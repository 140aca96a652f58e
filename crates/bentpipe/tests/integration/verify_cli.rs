//! `bentpipe verify` as users meet it: silent about a run, and what it says of one that is not as told.

use std::path::Path;

use crate::common::{bentpipe, refusal, success};

const GEO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/geo-download.toml");
const SHORT: [&str; 2] = ["--set", "duration=5s"];

/// Logs a run, and returns the path of the log.
fn log(folder: &Path, settings: &[&str]) -> String {
    let path = folder.join("packets.csv").to_str().unwrap().to_owned();
    success(&bentpipe(&[&["sim", GEO, "--log", &path], &SHORT[..], settings].concat()));
    path
}

#[test]
fn a_run_is_as_its_scenario_says_and_not_as_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &["--set", "link.satellite.rate=9Mbit/s"]);
    let text = success(&bentpipe(&["verify", &log, GEO, "--set", "link.satellite.rate=9Mbit/s"]));
    assert!(text.contains(" packets in 8 directions, 5 s: all as the scenario says"), "{text}");
    let output = bentpipe(&["verify", &log, GEO]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.starts_with("satellite forward: ") && text.contains("expected its last bit to leave"),
        "{text}"
    );
    assert!(text.ends_with(": not as the scenario says\n"), "{text}");
}

#[test]
fn what_cannot_be_checked_has_an_exit_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let log = log(folder.path(), &[]);
    for (log, scenario, what) in [
        ("/none.csv", GEO, "cannot read the log /none.csv"),
        (&log, "/none.toml", "cannot read the scenario /none.toml"),
        (GEO, GEO, "line 1 of the packet log"),
    ] {
        let output = bentpipe(&["verify", log, scenario]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.starts_with("bentpipe: ") && text.contains(what), "{text}");
    }
}

#[test]
fn several_runs_have_no_log() {
    refusal(&bentpipe(&["sim", GEO, "--seeds", "2", "--log", "/dev/null"]), &["--log is for one run"]);
}

#[test]
fn every_column_and_event_of_a_log_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(log(folder.path(), &[])).unwrap();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.md");
    let page = std::fs::read_to_string(page).unwrap();
    let section = page.split("\n## Packet log\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let header = text.lines().next().unwrap().split(',');
    let events = text.lines().skip(1).filter_map(|line| line.split(',').nth(2));
    for name in header.chain(events) {
        assert!(section.contains(&format!("`{name}`")), "{name}");
    }
}
