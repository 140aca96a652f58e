//! Configurations with the mistakes that operators make: `bentpipe check` and `bentpipe doctor -c` name each
//! with its line, the reason and the remedy, all of a file in one run. No test here needs root.

use std::io::Write;
use std::process::{Command, Output};

use serde_json::Value;

/// A mistake: the file, its line, and parts of the reason and of the remedy.
struct Mistake {
    text: &'static str,
    line: u64,
    reason: &'static str,
    remedy: &'static str,
}

const fn mistake(text: &'static str, line: u64, reason: &'static str, remedy: &'static str) -> Mistake {
    Mistake { text, line, reason, remedy }
}

/// Each file has one mistake.
const MISTAKES: &[Mistake] = &[
    // Units.
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nrate = 10000000\n",
        3,
        "legs.geo.rate: \"10000000\" is not a bit rate: it has no unit",
        "write rate = \"10Mbit/s\"",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nrate = \"10\"\n",
        3,
        "\"10\" is not a bit rate: it has no unit",
        "write rate = \"10Mbit/s\"",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nrate = \"10mbps\"\n",
        3,
        "tc takes it for bytes per second and everybody else for bits",
        "write rate = \"10Mbit/s\" for bits, \"80Mbit/s\" for bytes",
    ),
    mistake("[legs.geo]\ninterface = \"sat0\"\nrate = \"10MB/s\"\n", 3, "bytes per second", "10Mbit/s"),
    mistake("[legs.geo]\ninterface = \"sat0\"\nrtt = 600\n", 3, "legs.geo.rtt: ", "write for example 600ms"),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nrestart_within = \"1\"\n",
        3,
        "restart_within: \"1\" is not a time span: the unit is missing",
        "1.5s",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nsend_buffer = \"4MB/s\"\n",
        3,
        "send_buffer: \"4MB/s\" is not a byte count: unknown unit \"MB/s\"",
        "write for example 1500, 64KiB, 10MB",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nkeepalive = \"10\"\n",
        3,
        "\"10\" is no time for keepalives",
        "write keepalive = \"off\" or a time",
    ),
    // Names.
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\n[[rule]]\naction = \"pass\"\n",
        3,
        "rule: there is no such key (did you mean [[rules]]?)",
        "there is proxy",
    ),
    mistake(
        "[leg.geo]\ninterface = \"sat0\"\n",
        1,
        "leg: there is no such key (did you mean [legs]?)",
        "there is proxy, legs",
    ),
    mistake(
        "[legs.geo]\ninterfce = \"sat0\"\n",
        2,
        "legs.geo.interfce: there is no such key (did you mean interface?)",
        "there is interface, congestion, rate",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\ncongestion_control = \"bbr\"\n",
        3,
        "there is no such key (did you mean congestion?)",
        "there is interface",
    ),
    mistake(
        "[legs]\ninterface = \"sat0\"\n",
        2,
        "legs.interface: \"sat0\" is not a table",
        "write [legs.NAME] above it",
    ),
    mistake("", 1, "legs: no satellite leg", "add for example [legs.satellite]"),
    mistake(
        "[legs.geo]\nrate = \"10Mbit/s\"\n",
        1,
        "legs.geo: interface is missing",
        "write for example interface = \"sat0\"",
    ),
    // Forms.
    mistake("[legs.geo]\ninterface = sat0\n", 2, "in \"interface = sat0\"", "write interface = \"sat0\""),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nrate = \"1M\"\nrate = \"2M\"\n",
        4,
        "duplicate key",
        "leave one of the two out",
    ),
    mistake("[legs.geo\ninterface = \"sat0\"\n", 1, "in \"[legs.geo\"", "[TABLE]"),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nfast_open = \"yes\"\n",
        3,
        "\"yes\" is neither true nor false",
        "write true or false",
    ),
    mistake(
        "[proxy]\nworkers = \"4\"\n[legs.geo]\ninterface = \"sat0\"\n",
        2,
        "proxy.workers: \"4\" in quotation marks is not a whole number",
        "write 4",
    ),
    mistake(
        "[proxy]\nport = 0\n[legs.geo]\ninterface = \"sat0\"\n",
        2,
        "proxy.port: 0 is not a port",
        "write 1 to 65535",
    ),
    mistake(
        "[proxy]\nhandshake = \"lazy\"\n[legs.geo]\ninterface = \"sat0\"\n",
        2,
        "\"lazy\" is not accepted",
        "choose early or faithful",
    ),
    // Legs.
    mistake(
        "[legs.geo]\ninterface = \"lo\"\n",
        2,
        "legs.geo.interface: \"lo\" leads to this host only",
        "name the interface",
    ),
    mistake(
        "[legs.a]\ninterface = \"sat0\"\n[legs.b]\ninterface = \"sat0\"\n",
        4,
        "legs a and b both have interface \"sat0\"",
        "give each its own",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\ncongestion = \"xcp\"\n",
        1,
        "legs.geo.rate: congestion = \"xcp\" shares out a capacity",
        "add rate = ",
    ),
    // Rules.
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\n[[rules]]\nport = 22\n",
        3,
        "rules[1]: action is missing",
        "write for example action = \"pass\"",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\n[[rules]]\naction = \"drop\"\n",
        4,
        "\"drop\" is not accepted",
        "choose split, snoop, bundle, protect, pass or reject",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\n[[rules]]\naction = \"pass\"\nport = \"ssh\"\n",
        5,
        "rules[1].port: \"ssh\" is not a port nor a range",
        "write 1 to 65535",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\n[[rules]]\naction = \"pass\"\nclient = \"10.1.2.3/16\"\n",
        5,
        "has bits set behind its prefix",
        "write client = \"10.1.0.0/16\"",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\n[[rules]]\naction = \"pass\"\nweight = 4\n",
        3,
        "weight goes with action = \"split\" only",
        "leave it out of this rule",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\n[[rules]]\naction = \"split\"\n[[rules]]\naction = \"pass\"\nport = 22\n",
        5,
        "number 2 can never match",
        "write number 2 before it",
    ),
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\n[[rules]]\naction = \"snoop\"\n",
        1,
        "snoop.cache: a rule says snoop",
        "write legs.geo.rate = \"10Mbit/s\"",
    ),
    // Limits, log, page.
    mistake(
        "[legs.geo]\ninterface = \"sat0\"\nsurvive_outage = \"25m\"\n[limits]\nidle = \"10m\"\n",
        5,
        "limits.idle: \"600s\" would end connections in an outage",
        "write at least that",
    ),
    mistake(
        "[limits]\nburst = 5\n[legs.geo]\ninterface = \"sat0\"\n",
        2,
        "limits.burst: there is no rate that it belongs to",
        "write connection_rate",
    ),
    mistake(
        "[access_log]\nfile = \"access.log\"\n[legs.geo]\ninterface = \"sat0\"\n",
        2,
        "access_log.file: \"access.log\" is not the whole path",
        "/var/log/bentpipe/access.log",
    ),
    mistake(
        "[admin]\nlisten = \"0.0.0.0:7500\"\n[legs.geo]\ninterface = \"sat0\"\n",
        2,
        "can be reached from outside",
        "name a file with a secret in admin.token_file",
    ),
    mistake(
        "[admin]\nlisten = \"7500\"\n[legs.geo]\ninterface = \"sat0\"\n",
        2,
        "admin.listen: \"7500\" is not an address with a port",
        "write listen = \"127.0.0.1:7500\"",
    ),
];

fn bentpipe(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bentpipe")).args(arguments).output().unwrap()
}

fn file_of(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The line, the reason and the remedy of each error that `bentpipe check` finds.
fn checked(text: &str) -> Vec<(u64, String, String)> {
    let file = file_of(text);
    let output = bentpipe(&["check", "--json", file.path().to_str().unwrap()]);
    let found = document(&output)["errors"].as_array().unwrap().clone();
    assert_eq!(output.status.code(), Some(i32::from(!found.is_empty())), "{found:#?}");
    let text = |error: &Value, key: &str| error[key].as_str().unwrap().to_owned();
    found
        .iter()
        .map(|error| (error["line"].as_u64().unwrap(), text(error, "reason"), text(error, "remedy")))
        .collect()
}

/// The same of `bentpipe doctor`.
fn diagnosed(text: &str) -> Vec<(u64, String, String)> {
    let file = file_of(text);
    let output = bentpipe(&["doctor", "--json", "-c", file.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let checks = document(&output)["checks"].as_array().unwrap().clone();
    let part = |check: &Value| {
        let text = |key: &str| check[key].as_str().unwrap().to_owned();
        let (of, line) = check["name"].as_str()?.rsplit_once(':')?;
        assert_eq!((of, check["ok"].as_bool()), (file.path().to_str()?, Some(false)));
        Some((line.parse().unwrap(), text("found"), text("fix")))
    };
    checks.iter().map(|check| part(check).unwrap_or_else(|| panic!("{check}"))).collect()
}

#[test]
fn each_mistake_is_named_with_its_line_the_reason_and_the_remedy() {
    assert!(MISTAKES.len() >= 24);
    for Mistake { text, line, reason, remedy } in MISTAKES {
        for found in [checked(text), diagnosed(text)] {
            assert_eq!(found.len(), 1, "{text}{found:#?}");
            let (at, why, what) = &found[0];
            assert_eq!(at, line, "{text}{found:#?}");
            assert!(why.contains(reason) && what.contains(remedy), "{text}{found:#?}");
        }
    }
}

#[test]
fn all_mistakes_of_a_file_are_named_in_one_run_in_the_order_of_their_lines() {
    let text = "[proxy]\nworkers = \"4\"\nuser = root\n[[rule]]\naction = \"pass\"\n[legs.geo]\ninterface = \"lo\"\n\
                rate = 10000000\nrtt = \"600\"\n[legs.leo]\nfast_open = 1\n[limits]\nburst = 5\n[admin]\nlisten = \"7500\"\n";
    // The line that is not TOML might say anything, so checks of several values wait.
    let lines =
        |found: Vec<(u64, String, String)>| found.into_iter().map(|(line, ..)| line).collect::<Vec<_>>();
    assert_eq!(lines(checked(text)), [2, 3, 4, 8, 9, 11, 15]);
    let sound = text.replace("user = root", "user = \"root\"");
    let expected = [2, 4, 7, 8, 9, 10, 11, 13, 15];
    assert_eq!((lines(checked(&sound)), lines(diagnosed(&sound))), (expected.to_vec(), expected.to_vec()));
    // `run` refuses it for the same reasons.
    let file = file_of(&sound);
    let output = bentpipe(&["run", "-c", file.path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), expected.len()), "{said}");
    for line in expected {
        assert!(said.contains(&format!(".toml:{line}: ")), "{line} is not in {said}");
    }
}

#[test]
fn what_people_read_shows_the_line_of_the_file() {
    let file = file_of("[legs.geo]\ninterface = \"sat0\"\nrate = \"10\"\n");
    let output = bentpipe(&["check", file.path().to_str().unwrap()]);
    let (text, name) = (String::from_utf8(output.stdout).unwrap(), file.path().display());
    assert_eq!(
        text,
        format!(
            "ERROR  {name}:3: legs.geo.rate: \"10\" is not a bit rate: it has no unit\n       | rate = \"10\"\n       \
             → write rate = \"10Mbit/s\"\n{name}, a configuration of the proxy: 1 error, no warnings\n"
        )
    );
}

#[test]
fn a_value_that_is_hardly_meant_is_warned_of_and_no_error() {
    let text = "[legs.geo]\ninterface = \"sat0\"\nrate = \"9kbit/s\"\nrtt = \"600ms\"\n";
    let file = file_of(text);
    let output = bentpipe(&["check", "--json", file.path().to_str().unwrap()]);
    let found = document(&output);
    assert_eq!((output.status.code(), found["errors"].as_array().unwrap().len()), (Some(0), 0), "{found}");
    let warning = &found["warnings"][0];
    assert_eq!(warning["line"], 3);
    assert!(warning["reason"].as_str().unwrap().contains("very slow"), "{warning}");
    let output = bentpipe(&["doctor", "--json", "-c", file.path().to_str().unwrap()]);
    let checks = document(&output)["checks"].as_array().unwrap().clone();
    let at_line = |check: &&Value| check["name"].as_str().unwrap().ends_with(".toml:3");
    let check = checks.iter().find(at_line).unwrap();
    assert!(check["ok"] == true && check["warning"] == true, "{check}");
}

#[test]
fn a_node_and_a_scenario_are_told_by_their_tables() {
    let text = "[node]\nid = \"gs1\"\nquota = 7\n[[peers]]\nid = \"dtn://gs2/\"\ncolour = \"red\"\n";
    let lines: Vec<u64> = checked(text).into_iter().map(|(line, ..)| line).collect();
    assert_eq!(lines, [2, 6]);
    let text = "duration = 60\n[[link]]\nname = \"sat\"\nbetween = [\"a\", \"b\"]\nrate = \"10\"\ndelay = \"300ms\"\n\
                [[flow]]\nname = \"f\"\nfrm = \"a\"\nto = \"b\"\n";
    let lines: Vec<u64> = checked(text).into_iter().map(|(line, ..)| line).collect();
    assert_eq!(lines, [1, 5, 9]);
    for (kind, file) in [
        ("proxy", "dist/bentpipe.toml"),
        ("node", "dist/node.toml"),
        ("scenario", "scenarios/geo-download.toml"),
    ] {
        let file = format!("{}/../../{file}", env!("CARGO_MANIFEST_DIR"));
        let output = bentpipe(&["check", "--json", &file]);
        let found = document(&output);
        assert_eq!((output.status.code(), &found["kind"]), (Some(0), &Value::from(kind)), "{found}");
    }
}

#[test]
fn a_missing_interface_and_an_unknown_congestion_control_are_found_before_the_start() {
    let file = file_of("[legs.geo]\ninterface = \"nosuch0\"\ncongestion = \"bbr9\"\n");
    let output = bentpipe(&["doctor", "--json", "-c", file.path().to_str().unwrap()]);
    let checks = document(&output)["checks"].as_array().unwrap().clone();
    let check = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no {name} in {checks:#?}")).clone()
    };
    let interface = check("interface, leg geo");
    assert!(interface["ok"] == true && interface["warning"] == true, "{interface}");
    assert!(interface["found"].as_str().unwrap().contains("there is no nosuch0"), "{interface}");
    let congestion = check("congestion control, leg geo");
    assert!(
        congestion["ok"] == false && congestion["fix"].as_str().unwrap().contains("tcp_bbr9"),
        "{congestion}"
    );
    for absent in ["XCP", "explicit rates", "testbed"] {
        assert!(checks.iter().all(|check| !check["name"].as_str().unwrap().contains(absent)), "{checks:#?}");
    }
}
