//! What is no log, or not of this scenario, is told so, and is no finding.

use std::path::Path;
use std::time::Duration;

use bentpipe_sim::PacketLog;
use bentpipe_sim::file::Source;
use bentpipe_verify::{Scenario, verify};

const LINK: &str = "duration = \"2s\"\n[[link]]\nname = \"sat\"\nbetween = [\"a\", \"b\"]\nrate = \"1Mbit/s\"\n\
                    [[flow]]\nname = \"f\"\nfrom = \"a\"\nto = \"b\"\nbytes = 20000\n";

fn log() -> String {
    let scenario = Source::parse("link.toml", LINK).unwrap().with(&[]).unwrap();
    let mut log = PacketLog::new(Vec::new(), &scenario).unwrap();
    bentpipe_sim::run(&scenario, 1, &mut log);
    String::from_utf8(log.into_inner().unwrap()).unwrap()
}

fn error(log: &str, scenario: &str) -> String {
    let scenario = Scenario::parse(scenario, Path::new(""), &[]).unwrap();
    verify(log.as_bytes(), &scenario, Duration::ZERO).unwrap_err().to_string()
}

#[test]
fn a_log_that_ends_early_is_not_complete() {
    let log = log();
    let without_sums: String =
        log.lines().filter(|line| !line.contains("sum_")).map(|line| format!("{line}\n")).collect();
    assert!(error(&without_sums, LINK).contains("it is not complete"));
    assert!(error(&log[..log.len() - 5], LINK).contains("it is cut off"));
    assert!(error("", LINK).contains("line 1"));
    let missing = format!("{log}3.000000000,,missing,12,,,,,,,\n");
    assert!(error(&missing, LINK).contains("12 rows are missing"));
}

#[test]
fn a_log_of_another_scenario_names_what_that_has_not() {
    let log = log();
    assert!(error(&log, &LINK.replace("\"sat\"", "\"other\"")).contains("no link \"sat\""));
    assert!(error(&log, &LINK.replace("\"f\"", "\"g\"")).contains("no flow \"f\""));
    let two = format!("{LINK}[[link]]\nname = \"second\"\nbetween = [\"b\", \"c\"]\ndelay = \"1ms\"\n");
    assert!(error(&log, &two).starts_with("second forward: the packet log has no sum_offered"));
}

#[test]
fn rows_that_go_back_in_time_are_no_log() {
    let log = log();
    let mut lines: Vec<&str> = log.lines().collect();
    let last_enter = lines.iter().rposition(|line| line.contains("forward,enter")).unwrap();
    let row = lines.remove(last_enter);
    lines.insert(1, row);
    assert!(error(&format!("{}\n", lines.join("\n")), LINK).contains("is before the row before it"));
}
