//! All scenarios of the repository, shortened, and variants with every effect and agent: nothing is found.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bentpipe_sim::PacketLog;
use bentpipe_sim::file::{Setting, Source};
use bentpipe_verify::{Report, Scenario, verify};

/// A link between two hosts with a download; the settings of a test make something of it.
const LINK: &str = r#"
duration = "12s"

[[link]]
name = "sat"
between = ["server", "client"]
rate = "10Mbit/s"
delay = "100ms"

[tcp.host]
base = "linux"
congestion = "hybla"

[[flow]]
name = "download"
from = "server"
to = "client"
tcp = "host"

[[flow]]
name = "file"
from = "client"
to = "server"
bytes = "300kB"
tcp = "host"
"#;

/// Runs a scenario, and checks its log.
fn check(source: &Source, scenario: &Scenario, settings: &[String], seed: u64) -> Report {
    let parsed: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    let checked = source.with(&parsed).unwrap();
    let mut log = PacketLog::new(Vec::new(), &checked).unwrap();
    bentpipe_sim::run(&checked, seed, &mut log);
    let log = log.into_inner().unwrap();
    verify(&log[..], scenario, Duration::ZERO).unwrap()
}

fn assert_silent(name: &str, report: &Report) {
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{name}:\n{}", findings.join("\n"));
}

fn owned(settings: &[&str]) -> Vec<String> {
    settings.iter().map(|&setting| setting.to_owned()).collect()
}

#[test]
fn nothing_is_found_in_any_scenario_of_the_repository() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios"));
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    assert!(files.len() >= 15, "{files:?}");
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let settings = match name {
            // The first outage is a minute away; the first tunnel too, at this speed.
            "disruptive.toml" => owned(&["duration=62s"]),
            "railway.toml" | "psats09.toml" => {
                owned(&["duration=62s", "link.satellite.outages.speed_kmh=850"])
            }
            "explicit.toml" => owned(&["duration=8s", "flow.late.start=1s", "flow.late.count=1"]),
            "xcp.toml" => owned(&["duration=2s"]),
            "deep-space.toml" => owned(&["duration=8s", "link.space.delay=300ms"]),
            _ => owned(&["duration=8s"]),
        };
        let scenario = Scenario::load(&file, &settings).unwrap();
        let report = check(&Source::load(&file).unwrap(), &scenario, &settings, 1);
        assert_silent(name, &report);
        assert!(report.packets > 20, "{name}: {} packets", report.packets);
    }
}

#[test]
fn nothing_is_found_with_any_effect_or_agent() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("link.toml");
    std::fs::write(&file, LINK).unwrap();
    let trace = "at_s,rate,delay,per\n0,8M,100ms,\n3,2M,80ms,1%\n5,0,,\n5.5,9M,140ms,0\n7,,,100%\n7.25,,,0\n9,repeat\n";
    std::fs::write(folder.path().join("trace.csv"), trace).unwrap();
    std::fs::write(folder.path().join("rates.txt"), "1\n1\n3\n4\n7\n8\n8\n9\n11\n").unwrap();
    std::fs::write(folder.path().join("delays.txt"), "24\n18.5\n31\n").unwrap();
    std::fs::write(folder.path().join("outages.csv"), "start_km,length_km\n0.1,0.05\n0.3,0.0333\n").unwrap();
    let variants: [&[&str]; 22] = [
        &[],
        &["link.sat.queue=20kB"],
        &["link.sat.rate=unlimited"],
        &["link.sat.rate=7777777bit/s", "link.sat.delay=33.333333ms"],
        &[
            "link.sat.encapsulation=dvb-mpe",
            "link.sat.reverse.encapsulation=aal5-atm",
            "link.sat.reverse.rate=300k",
        ],
        &["link.sat.encapsulation={ overhead = 7, frame_payload = 100, frame_header = 3 }"],
        &["link.sat.per=2%"],
        &["link.sat.losses=[1, 40, 41, 300]", "link.sat.queue=20kB", "link.sat.reverse.losses=[2]"],
        &["link.sat.gilbert_elliott={ good_to_bad = 0.002, bad_to_good = 0.3 }", "link.sat.per=0.5%"],
        &[
            "link.sat.gilbert_elliott={ good_to_bad = 0.01, bad_to_good = 0.2, loss_in_good = 0.001, loss_in_bad = 0.4 }",
        ],
        &["link.sat.gilbert_elliott={ good_to_bad = 0.001, bad_to_good = 0.05, slot = \"1ms\" }"],
        &[
            "link.sat.outages=[{ start = \"2s\", duration = \"700ms\" }, { start = \"9s\", duration = \"1s\" }]",
            "link.sat.per=1%",
        ],
        &["link.sat.outages={ file = \"outages.csv\", speed_kmh = 97.3 }"],
        &["link.sat.trace={ file = \"trace.csv\" }"],
        &["link.sat.trace={ mahimahi = \"rates.txt\", delays = \"delays.txt\" }", "link.sat.per=0.3%"],
        &["link.sat.duplicate=1%", "link.sat.reorder=2%", "link.sat.reorder_by=4ms", "link.sat.corrupt=0.5%"],
        &["link.sat.reorder=5%", "link.sat.reverse.reorder=0", "link.sat.trace={ file = \"trace.csv\" }"],
        &["link.sat.per=1%", "link.sat.snoop={ at = \"server\" }"],
        &["link.sat.per=1%", "link.sat.arq={}", "link.sat.corrupt=1%", "link.sat.duplicate=1%"],
        &[
            "link.sat.per=1%",
            "link.sat.delayed_dup_acks={ at = \"client\", delay = \"300ms\" }",
            "link.sat.arq={ delivery = \"immediate\" }",
        ],
        &["link.sat.per=1%", "link.sat.protect={}", "link.sat.corrupt=1%", "link.sat.duplicate=1%"],
        &["link.sat.reverse.rate=50k", "link.sat.ack_filter={ at = \"client\" }"],
    ];
    for settings in variants {
        let settings = owned(settings);
        let scenario = Scenario::load(&file, &settings).unwrap();
        let report = check(&Source::load(&file).unwrap(), &scenario, &settings, 1);
        assert_silent(&format!("{settings:?}"), &report);
        assert!(report.packets > 300, "{settings:?}: {} packets", report.packets);
    }
}

#[test]
fn a_run_is_found_out_by_another_scenario() {
    let folder = Path::new("");
    let source = Source::parse("link.toml", LINK).unwrap();
    for (setting, what) in [
        ("link.sat.rate=10.001Mbit/s", "departure"),
        ("link.sat.delay=100.001ms", "delay"),
        ("link.sat.reverse.per=1%", "losses"),
        ("link.sat.losses=[100]", "losses"),
        ("link.sat.queue=3kB", "queue"),
        ("link.sat.encapsulation={ overhead = 1 }", "departure"),
        ("link.sat.outages=[{ start = \"1s\", duration = \"1ms\" }]", "outage"),
        ("link.sat.duplicate=20%", "copies"),
        ("flow.file.bytes=299999", "application"),
    ] {
        let scenario = Scenario::parse(LINK, folder, &owned(&[setting])).unwrap();
        let report = check(&source, &scenario, &[], 1);
        let checks: Vec<String> = report.findings.iter().map(|finding| finding.check.to_string()).collect();
        assert!(checks.iter().any(|check| check == what), "{setting}: {checks:?}");
    }
}
