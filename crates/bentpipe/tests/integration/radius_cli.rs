//! `bentpipe radius` as users meet it.

use std::fs;

use crate::common::{
    assert_failure_on_a_full_disk, assert_misuse, assert_numbers, assert_success_without_reader,
    assert_texts, bentpipe, document, refusal, success,
};
use serde_json::Value;

/// A number, or `null` for what has no bound.
fn is_bound(value: &Value) -> bool {
    value.is_number() || value.is_null()
}

fn protocol<'a>(document: &'a Value, name: &str) -> &'a Value {
    let protocols = document["protocols"].as_array().unwrap();
    protocols.iter().find(|protocol| protocol["name"] == name).unwrap()
}

#[test]
fn the_radii_are_the_promised_document() {
    let document = document(&["radius", "--json"]);
    let protocols = document["protocols"].as_array().unwrap();
    assert!(protocols.len() > 20);
    for protocol in protocols {
        assert_texts(protocol, &["name", "source"]);
        assert!(is_bound(&protocol["inner_s"]) && is_bound(&protocol["limit_s"]), "{protocol:#}");
    }
    // RADIUS07, section 4.
    assert_eq!(protocol(&document, "TCP, Windows Server 2003")["limit_s"], 4.5);
    assert_eq!(protocol(&document, "TCP, OPNET 11.5")["limit_s"], 22.5);
    assert!(protocol(&document, "TCP, ns-2")["limit_s"].is_null());
}

#[test]
fn a_path_is_answered_for_each_protocol() {
    let document = document(&["radius", "--json", "--delay", "8min", "--outage", "2h"]);
    assert_numbers(&document["path"], &["delay_s", "rtt_s", "outage_s"]);
    assert_eq!(
        (&document["path"]["delay_s"], &document["path"]["outage_s"]),
        (&480.0.into(), &7200.0.into())
    );
    assert_eq!(protocol(&document, "TCP, Linux")["verdict"], "fails");
    assert_eq!(protocol(&document, "Bundle Protocol 7, RFC 9171")["verdict"], "works");
    assert_texts(&document, &["conclusion"]);
}

#[test]
fn the_same_question_has_the_same_answer() {
    for arguments in [&["radius"][..], &["radius", "--json"], &["radius", "--delay", "1s"]] {
        assert_eq!(success(&bentpipe(arguments)), success(&bentpipe(arguments)));
    }
}

#[test]
fn the_nearest_and_the_farthest_path_have_answers() {
    for delay in ["0s", "1ns", "262800h"] {
        let text = success(&bentpipe(&["radius", "--delay", delay, "--outage", delay]));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{delay}: {text}");
    }
}

#[test]
fn an_invalid_time_is_a_usage_error_with_an_example() {
    for delay in ["-1s", "nan", "infs", "1e999s", "5", "8 parsecs", "", "31000000h"] {
        assert_misuse(&["radius", "--delay", delay], &["--delay", delay]);
        assert_misuse(&["radius", "--on", "kernel", "--delays", &format!("1s,{delay}")], &["--delays"]);
    }
    assert_misuse(&["radius", "--outage", "1h"], &["--delay"]);
    assert_misuse(&["radius", "--delays", "1s"], &["--on"]);
    assert_misuse(&["radius", "--on", "sim"], &["kernel"]);
    assert_misuse(&["radius", "--on", "kernel", "--delay", "1s"], &["cannot be used with"]);
}

#[test]
fn a_measurement_that_would_take_days_is_refused() {
    refusal(&bentpipe(&["radius", "--on", "kernel", "--delays", "1s,4h"]), &["14400s", "10800s"]);
}

#[test]
fn the_figure_is_written_or_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new/radius.svg");
    success(&bentpipe(&["radius", "--figure", file.to_str().unwrap()]));
    assert!(fs::read_to_string(&file).unwrap().trim_end().ends_with("</svg>"));
    for (name, why) in
        [("/dev/null/x.svg", "File exists"), ("/", "Is a directory"), ("/dev/full", "No space left")]
    {
        refusal(&bentpipe(&["radius", "--figure", name]), &["cannot write ", name, why, "--figure"]);
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error_but_a_full_disk_is() {
    assert_success_without_reader(&["radius"]);
    assert_failure_on_a_full_disk(&["radius", "--json"]);
}
