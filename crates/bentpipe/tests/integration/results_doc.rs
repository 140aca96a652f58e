//! `docs/results.md` names every column and key that the programs write.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{bentpipe, document, success};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Everything that a scenario can make results of: a splitter, agents of each kind, an ARQ, a protected leg,
/// bundles, a stream.
const SCENARIO: &str = r#"duration = "20s"

[[link]]
name = "ground"
between = ["server", "gateway"]
delay = "10ms"
protect = {}

[[link]]
name = "sat"
between = ["gateway", "client"]
rate = "10Mbit/s"
delay = "100ms"
snoop = { at = "gateway", cache = "2MB" }
delayed_dup_acks = { at = "client", delay = "300ms" }
arq = {}
xcp = { at = "gateway" }

[[flow]]
name = "file"
from = "server"
to = "client"
bytes = "100kB"
split = [{ at = "gateway" }]

[[flow]]
name = "bundles"
from = "server"
to = "client"
bytes = "100kB"
split = [{ at = "gateway" }]
bundles = {}

[[udp]]
name = "call"
from = "server"
to = ["gateway", "client"]
rate = "80kbit/s"
"#;

/// The names between backquotes in the first cells of the tables of a section.
fn documented(section: &str) -> BTreeSet<String> {
    let page = fs::read_to_string(Path::new(ROOT).join("docs/results.md")).unwrap();
    let (_, rest) =
        page.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
    let text = rest.split("\n## ").next().unwrap();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).collect()
}

/// The paths to all values of a document: `flows[].legs[].segments`. What is below `settings` has keys of its
/// own.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields)
            if !fields.is_empty() && path != "settings" && !path.ends_with("].settings") =>
        {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                paths(value, &path, found);
            }
        }
        Value::Array(elements) if !elements.is_empty() => {
            elements.iter().for_each(|element| paths(element, &format!("{path}[]"), found));
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

fn paths_of(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    paths(document, "", &mut found);
    found
}

/// The counters that stand under several keys have tables of their own: the prefix of a path, and what to
/// look up instead.
const SHARED: &[&str] = &[
    "links[].forward.",
    "links[].reverse.",
    "links[].stations[].report.agents[].",
    "links[].stations[].report.arq.",
    "links[].stations[].protect.",
];

fn assert_documented(section: &str, found: &BTreeSet<String>) {
    let known = documented(section);
    let missing: Vec<&String> = found
        .iter()
        .filter(|path| {
            let short = SHARED.iter().find_map(|prefix| path.strip_prefix(prefix)).unwrap_or(path);
            // An empty list has no elements to name.
            let elements = format!("{short}[]");
            !known.iter().any(|name| name == short || name.starts_with(&elements))
        })
        .collect();
    assert!(!found.is_empty() && missing.is_empty(), "docs/results.md, {section}: not there: {missing:?}");
}

fn scenario(folder: &Path) -> String {
    let path = folder.join("all.toml");
    fs::write(&path, SCENARIO).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_key_of_a_simulation_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let (file, trace) = (scenario(folder.path()), folder.path().join("trace"));
    let run =
        document(&["sim", &file, "--json", "--set", "duration=30s", "--trace", trace.to_str().unwrap()]);
    assert!(run["flows"][1]["bundles"].is_object(), "the scenario has bundles: {run}");
    let ends = run["links"][1]["stations"].as_array().unwrap();
    let agents: usize = ends.iter().map(|end| end["report"]["agents"].as_array().unwrap().len()).sum();
    assert!(agents == 3 && ends[0]["report"]["arq"].is_object(), "the scenario has every agent: {ends:?}");
    assert_documented("`bentpipe sim --json`", &paths_of(&run));
    let several = document(&["sim", &file, "--json", "--seeds", "2"]);
    let paths = paths_of(&several);
    assert!(
        paths.contains("title") && paths.iter().all(|path| path == "title" || path.starts_with("runs[]."))
    );
}

#[test]
fn every_column_of_a_trace_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let (file, trace) = (scenario(folder.path()), folder.path().join("trace"));
    success(&bentpipe(&["sim", &file, "--trace", trace.to_str().unwrap(), "--packets"]));
    let known = documented("Traces of the simulator");
    let mut files = 0;
    for entry in fs::read_dir(&trace).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "csv") {
            continue;
        }
        files += 1;
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(known.contains(&name), "{name}");
        let text = fs::read_to_string(&path).unwrap();
        for column in text.lines().next().unwrap().split(',') {
            assert!(known.contains(column), "{name}: {column}");
        }
    }
    assert_eq!(files, 5);
}

#[test]
fn every_column_of_an_experiment_is_documented() {
    let known: Vec<String> = documented("CSV files of experiments").into_iter().collect();
    let is_known = |column: &str| {
        let quantity =
            column.strip_suffix("_mean").or_else(|| column.strip_suffix("_ci95")).unwrap_or(column);
        // A number in a name stands for any.
        let parts: Vec<&str> = quantity.split('_').collect();
        let general = |part: &&str| match part.strip_suffix("ms").unwrap_or(part) {
            digits if digits.chars().all(|c| c.is_ascii_digit()) && *part != "95" => {
                part.replace(digits, "N")
            }
            _ => (*part).to_owned(),
        };
        let quantity = parts.iter().map(general).collect::<Vec<_>>().join("_");
        let has = |name: &str| known.iter().any(|known| known == name);
        has(&quantity)
            || quantity.match_indices('_').any(|(at, _)| has(&quantity[..at]) && has(&quantity[at + 1..]))
    };
    assert!(
        !is_known("mystery_goodput_bps") && !is_known("goodput_bytes"),
        "the check tells what is missing"
    );
    let mut files = 0;
    for entry in fs::read_dir(Path::new(ROOT).join("docs/experiments")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            files += 1;
            let text = fs::read_to_string(&path).unwrap();
            for column in text.lines().next().unwrap().split(',') {
                assert!(is_known(column), "{}: {column} is not in docs/results.md", path.display());
            }
        }
    }
    assert!(files > 10, "{files}");
}

#[test]
fn every_key_of_an_experiment_a_demonstration_and_a_radius_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let experiment = document(&["lab", "run", "radius07-reach", "--on", "sim", "--json", "--out", out]);
    assert_documented("`bentpipe lab run --json`", &paths_of(&experiment));
    let demo = document(&["demo", "--on", "sim", "--json", "--size", "100kB", "--out", out]);
    assert_documented("`bentpipe demo --json`", &paths_of(&demo));
    let radius = document(&["radius", "--delay", "20s", "--outage", "1h", "--json"]);
    let paths = paths_of(&radius);
    assert!(paths.contains("protocols[].needs[].needs_s"), "{paths:?}");
    assert_documented("`bentpipe radius --json`", &paths);
}
