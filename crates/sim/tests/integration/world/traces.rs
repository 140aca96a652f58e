//! Transfers over links that vary.

use std::time::Duration;

use bentpipe_link::Profile;
use bentpipe_sim::file::Source;
use bentpipe_sim::scenario::Scenario;
use bentpipe_units::{Rate, Time};

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
    assert!(error.contains("write one of file"), "{error}");
}

/// The scenario over a profile instead of a file.
fn with_profile(table: &str, settings: &[&str]) -> Result<Scenario, String> {
    let text = SCENARIO.replace("delay = \"10ms\"\n", "").replace("{ KIND = \"trace\" }", table);
    let text = text.replace("[link.reverse]\nrate = \"10Mbit/s\"\n", "");
    let settings: Vec<_> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    let source = Source::parse("scenario.toml", &text).map_err(|error| error.to_string())?;
    source.with(&settings).map_err(|error| error.to_string())
}

#[test]
fn a_profile_is_made_for_as_long_as_the_run_and_knows_both_directions() {
    for duration in [60, 600] {
        let setting = format!("duration={duration}s");
        let profile = "{ profile = \"leo-handovers\", seed = 3 }";
        let scenario = with_profile(profile, &[&setting]).unwrap();
        let made = Profile::LeoHandovers.generate(3, Duration::from_secs(duration));
        assert_eq!(scenario.links[0].config, made);
        assert_ne!(made.forward.trace, made.reverse.trace);
        let scenario = with_profile(profile, &[&setting, "link.satellite.rate=9Mbit/s"]).unwrap();
        let config = &scenario.links[0].config;
        assert_eq!(
            [config.forward.rate, config.reverse.rate],
            [Some(Rate::mbps(9)); 2],
            "where it says nothing"
        );
        assert_eq!(config.reverse.trace, made.reverse.trace);
    }
}

#[test]
fn a_download_has_less_over_each_profile_than_it_carries_and_much_of_it() {
    // The share that Reno has: losses at handovers and in rain halve its window, outages end it for a while.
    for (profile, least) in [("leo-handovers", 0.1), ("rain-front", 0.5), ("aircraft", 0.02), ("ship", 0.02)]
    {
        let table = format!("{{ profile = \"{profile}\", seed = 5 }}");
        let scenario = with_profile(&table, &["duration=120s"]).unwrap();
        let direction = &scenario.links[0].config.forward;
        let capacity = direction.trace.capacity(direction.rate, Time::ZERO + scenario.duration).unwrap();
        let share = go(&scenario, 1).flows[0].bytes as f64 / (capacity as f64 * 1448.0 / 1500.0);
        assert!((least..1.0).contains(&share), "{profile}: {share}");
    }
}
