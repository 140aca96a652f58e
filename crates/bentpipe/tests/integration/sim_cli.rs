//! `bentpipe sim` as users meet it: its document, the same bytes each time, and what it says to what is no
//! scenario.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{
    assert_failure_on_a_full_disk, assert_misuse, assert_numbers, assert_success_without_reader,
    assert_texts, bentpipe, command, document, refusal, success,
};
use serde_json::Value;

const GEO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/geo-download.toml");

/// A scenario that runs; the faults of the tests are put in the place of its lines.
const SCENARIO: &str = r#"duration = "60s"

[[link]]
name = "sat"
between = ["server", "client"]
rate = "10Mbit/s"
delay = "300ms"
per = "1%"
outages = []

[tcp.host]
initial_window = 10

[[flow]]
name = "file"
from = "server"
to = "client"
via = []
bytes = "100kB"
count = 1
tcp = "host"
"#;

/// Writes a file into a folder of its own.
fn file(bytes: &[u8]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.toml");
    fs::write(&path, bytes).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn one_run_is_the_promised_document() {
    let document = document(&["sim", GEO, "--json", "--seed", "7"]);
    assert_numbers(&document, &["seed", "events", "wall_s", "seconds"]);
    assert_eq!(document["seed"], 7);
    let flows = document["flows"].as_array().unwrap();
    assert_eq!(flows.len(), 2);
    for flow in flows {
        assert_texts(flow, &["name", "end"]);
        assert_numbers(flow, &["goodput_bps", "retransmissions", "timeouts", "bytes", "seconds"]);
        assert_eq!((&flow["bytes"], &flow["finished"]), (&10_000_000.into(), &true.into()));
    }
}

#[test]
fn named_cases_and_pairs_are_columns_and_a_manifest_lists_every_run() {
    let (folder, scenario) = file(SCENARIO.as_bytes());
    let manifest = folder.path().join("manifest.json");
    let sweeps =
        ["case=short,long:flow.file.bytes=100MB", "link.sat.rate+link.sat.delay=1Mbit/s+10ms,10Mbit/s+300ms"];
    let arguments = ["sim", &scenario, "--sweep", sweeps[0], "--sweep", sweeps[1], "--seeds", "2"];
    let text = success(&bentpipe(&[&arguments[..], &["--manifest", manifest.to_str().unwrap()]].concat()));
    let row = |words: &[&str]| text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == words);
    let heading = text.lines().find(|line| line.contains("goodput")).unwrap();
    assert!(heading.trim_start().starts_with("case   link.sat.rate  link.sat.delay"), "{text}");
    let unfinished =
        text.lines().find(|line| line.starts_with("long") && line.ends_with("unfinished")).unwrap();
    assert!(unfinished.contains("  –  "), "no time of a flow that is not finished: {text}");
    assert!(text.lines().any(|line| line.starts_with("short") && line.ends_with("finished")), "{text}");
    assert!(!row(&["short"]), "{text}");
    let manifest: Value = serde_json::from_str(&fs::read_to_string(&manifest).unwrap()).unwrap();
    let runs = manifest["runs"].as_array().unwrap();
    let states: Vec<&str> = runs.iter().map(|run| run["state"].as_str().unwrap()).collect();
    assert_eq!(states, [["finished"; 4], ["unfinished"; 4]].concat());
    assert_eq!(
        (&runs[7]["case"], &runs[7]["seed"], &runs[7]["point"]),
        (&"long".into(), &2.into(), &4.into())
    );
    assert_eq!(runs[7]["settings"]["link.sat.delay"], "300ms");
    assert_eq!(manifest["scenario_sha256"].as_str().unwrap().len(), 64);
    let json = document(&[&arguments[..], &["--json"]].concat());
    assert_eq!(
        (&json["runs"][7]["case"], &json["runs"][7]["flows"][0]["finished"]),
        (&"long".into(), &false.into())
    );
}

#[test]
fn every_scenario_of_the_project_runs_as_a_table() {
    for entry in fs::read_dir(Path::new(GEO).parent().unwrap()).unwrap() {
        let path = entry.unwrap().path();
        let text = success(&bentpipe(&["sim", path.to_str().unwrap()]));
        assert!(text.contains("goodput (Mbit/s)") && text.contains("of virtual time"), "{path:?}: {text}");
    }
}

#[test]
fn streams_have_a_table_of_their_own_and_need_no_flow() {
    let stream = r#"[[udp]]
name = "call"
from = "server"
to = "client"
rate = "80kbit/s"
packet_size = "200B"
end = "50s"
"#;
    let (links, _) = SCENARIO.split_once("[tcp.host]").unwrap();
    let (_folder, path) = file(format!("{links}{stream}").as_bytes());
    let text = success(&bentpipe(&["sim", &path, "--set", "link.sat.per=0"]));
    let row = text.lines().find(|line| line.starts_with("call")).unwrap_or_else(|| panic!("{text}"));
    let row: Vec<&str> = row.split_whitespace().collect();
    // 0.16 ms at 10 Mbit/s, and 300 ms.
    assert_eq!(row, ["call", "client", "2500", "2500", "0", "0.00", "300.2", "300.2"], "{text}");
    assert!(text.contains("UDP streams") && !text.contains("goodput"), "{text}");
}

/// The document without the one thing that differs.
fn repeatable(arguments: &[&str], threads: Option<&str>) -> Value {
    let mut command = command(arguments);
    if let Some(threads) = threads {
        command.env("RAYON_NUM_THREADS", threads);
    }
    let text = success(&command.output().unwrap());
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("\"wall_s\"")).collect();
    lines.join("\n").into()
}

#[test]
fn the_same_command_gives_the_same_bytes_on_any_number_of_threads() {
    let arguments = [
        "sim",
        GEO,
        "--json",
        "--seeds",
        "3",
        "--set",
        "flow.split.bytes=1MB",
        "--sweep",
        "link.satellite.per=0,1%",
    ];
    let first = repeatable(&arguments, None);
    for threads in [None, Some("1"), Some("3")] {
        assert_eq!(repeatable(&arguments, threads), first, "{threads:?} threads");
    }
}

#[test]
fn an_invalid_scenario_is_one_line_about_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("long"), "a = 1\n".repeat(350_000)).unwrap();
    fs::write(at("garbage"), [0x80, 0xff, 0x00, 0x1b].repeat(1000)).unwrap();
    fs::write(at("text"), "It was a dark and stormy night.\n").unwrap();
    fs::write(at("nested"), "[".repeat(500_000)).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    for (name, parts) in [
        ("missing", &["cannot read", "No such file"][..]),
        (".", &["cannot read", "Is a directory"]),
        ("empty", &["empty:1: duration is missing", "duration = \"60s\""]),
        ("long", &["long is longer than 1048576 bytes"]),
        ("garbage", &["cannot read", "UTF-8"]),
        ("text", &["text:1: "]),
        ("nested", &["nested:1: "]),
        ("pipe", &["cannot read the scenario", "named pipe"]),
        ("/dev/zero", &["/dev/zero is longer than 1048576 bytes"]),
    ] {
        let path = if name.starts_with('/') { name.to_owned() } else { at(name) };
        let text = refusal(&bentpipe(&["sim", &path]), parts);
        assert!(text.contains(&path) && text.len() < 1000, "{name}: {text}");
    }
    assert_misuse(&["sim"], &["FILE"]);
}

#[test]
fn an_error_names_file_line_key_and_accepted_values() {
    for (line, fault, parts) in [
        (
            "rate = \"10Mbit/s\"",
            "rate = \"-10Mbit/s\"",
            &["6: link.sat.rate: ", "-10Mbit/s", "zero or more"][..],
        ),
        ("rate = \"10Mbit/s\"", "rate = nan", &["6: link.sat.rate: ", "nan"]),
        ("rate = \"10Mbit/s\"", "rate = \"inf\"", &["6: link.sat.rate: ", "10Mbit/s"]),
        ("per = \"1%\"", "per = 1.1", &["8: link.sat.per: ", "between 0 and 1"]),
        ("per = \"1%\"", "per = inf", &["8: link.sat.per: ", "inf"]),
        ("delay = \"300ms\"", "delay = \"-1s\"", &["7: link.sat.delay: ", "-1s"]),
        ("duration = \"60s\"", "duration = \"1e300h\"", &["1: duration: ", "30 years"]),
        ("duration = \"60s\"", "duraton = \"60s\"", &["1: ", "duraton", "duration"]),
        ("via = []", "via = [\"server\"]", &["via: ", "server twice", "no loops"]),
        ("via = []", "via = [\"moon\"]", &["via", "there is no moon; there is server, client"]),
        ("count = 1", "count = 1000000000", &["count: ", "1000000000", "10000"]),
        ("count = 1", "count = -1", &["count: ", "-1"]),
        ("bytes = \"100kB\"", "bytes = \"10EB\"", &["bytes: ", "10EB", "10MB"]),
        ("initial_window = 10", "initial_window = 0", &["12: tcp.host.initial_window: "]),
        ("tcp = \"host\"", "tcp = \"hots\"", &["tcp: ", "there is no hots", "host"]),
        (
            "outages = []",
            "outages = [{ start = \"1s\", duration = \"5s\" }, { start = \"2s\", duration = \"1s\" }]",
            &["9: link.sat.outages: ", "overlaps", "at 6s or later"],
        ),
        (
            "outages = []",
            "outages = { file = \"/dev/zero\" }",
            &["9: link.sat.outages.file: ", "not a regular file"],
        ),
    ] {
        assert!(SCENARIO.contains(line), "{line}");
        let (_folder, path) = file(SCENARIO.replace(line, fault).as_bytes());
        let text = refusal(&bentpipe(&["sim", &path]), parts);
        assert!(text.starts_with(&format!("bentpipe: {path}:")), "{fault}: {text}");
    }
}

#[test]
fn several_faults_are_named_at_once_each_in_its_line() {
    let text = SCENARIO
        .replace("per = \"1%\"", "per = 7")
        .replace("count = 1", "count = 0")
        .replace("10Mbit/s", "x");
    let (_folder, path) = file(text.as_bytes());
    let output = bentpipe(&["sim", &path]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let faults = [":6: link.sat.rate: ", ":8: link.sat.per: "];
    assert!(
        text.lines().count() == 2 && text.lines().zip(faults).all(|(line, fault)| line.contains(fault)),
        "{text}"
    );
}

#[test]
fn a_path_that_comes_back_is_refused() {
    let links = "[[link]]\nname = \"a\"\nbetween = [\"server\", \"hub\"]\ndelay = \"1ms\"\n\n\
                 [[link]]\nname = \"b\"\nbetween = [\"hub\", \"spoke\"]\ndelay = \"1ms\"\n\n[tcp.host]";
    let text =
        SCENARIO.replace("[tcp.host]", links).replace("via = []", "via = [\"hub\", \"spoke\", \"hub\"]");
    let (_folder, path) = file(text.as_bytes());
    refusal(&bentpipe(&["sim", &path]), &["flow.file.via: ", "comes to hub twice"]);
}

#[test]
fn an_outage_file_with_overlaps_is_named_with_both_lines() {
    let (folder, path) = file(SCENARIO.replace("[]\n\n[tcp", "{ file = \"o.csv\" }\n\n[tcp").as_bytes());
    fs::write(folder.path().join("o.csv"), "start_s,duration_s\n10,5\n12,1\n").unwrap();
    refusal(&bentpipe(&["sim", &path]), &[":9: link.sat.outages: ", "line 3 ", "line 2 ", "o"]);
}

#[test]
fn settings_and_sweeps_are_checked_before_the_first_run() {
    for (option, setting, part) in [
        ("--set", "link.sat.per=101%", "between 0 and 1"),
        ("--set", "link.moon.per=1%", "there is no moon; there is sat"),
        ("--set", "nonsense", "KEY=VALUE"),
        ("--sweep", "link.sat.per=0,1%,2", "\"2\" is not a probability"),
        ("--sweep", "link.sat.per", "KEY=VALUE,VALUE"),
        ("--set", "flow.file.count=1000000000", "10000"),
    ] {
        let (folder, path) = file(SCENARIO.as_bytes());
        let trace = folder.path().join("trace");
        let output = bentpipe(&["sim", &path, option, setting, "--trace", trace.to_str().unwrap()]);
        refusal(&output, &[part]);
        assert!(!trace.exists(), "{setting}: a run has begun");
    }
}

#[test]
fn numbers_out_of_range_are_misuse() {
    assert_misuse(&["sim", GEO, "--seeds", "0"], &["--seeds", "1..=1000000"]);
    assert_misuse(&["sim", GEO, "--seeds", "1000000000"], &["--seeds", "1..=1000000"]);
    assert_misuse(&["sim", GEO, "--seed", "-1"], &["--seed", "-1"]);
    assert_misuse(&["sim", GEO, "--packets"], &["--trace"]);
    assert_misuse(&["sim", GEO, GEO], &[GEO]);
}

#[test]
fn a_hundred_thousand_runs_fit_into_the_memory() {
    let (_folder, path) = file(SCENARIO.replace("100kB", "1kB").as_bytes());
    let output = bentpipe(&["sim", &path, "--json", "--seeds", "100000"]);
    assert!(success(&output).contains("\"seed\": 100000,"));
}

#[test]
fn the_last_seeds_of_all_are_seeds() {
    let (_folder, path) = file(SCENARIO.as_bytes());
    document(&["sim", &path, "--json", "--seed", "18446744073709551615", "--seeds", "2"]);
}

#[test]
fn a_trace_that_cannot_be_written_is_named() {
    let (_folder, path) = file(SCENARIO.as_bytes());
    refusal(
        &bentpipe(&["sim", &path, "--trace", "/dev/null/trace"]),
        &["/dev/null/trace", "Not a directory"],
    );
}

#[test]
fn a_scenario_comes_through_a_pipe_too() {
    let (_folder, path) = file(SCENARIO.as_bytes());
    let mut cat = Command::new("cat").arg(path).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let output = command(&["sim", "/dev/stdin"]).stdin(cat.stdout.take().unwrap()).output().unwrap();
    cat.wait().unwrap();
    success(&output);
}

#[test]
fn a_reader_that_goes_away_is_no_error_but_a_full_disk_is() {
    assert_success_without_reader(&["sim", GEO, "--json"]);
    assert_failure_on_a_full_disk(&["sim", GEO]);
}
