//! `bentpipe demo` in virtual time; the one on the kernel is in `tests/root/cli.rs`.

use std::fs;

use crate::common::{
    assert_failure_on_a_full_disk, assert_misuse, assert_numbers, assert_success_without_reader,
    assert_texts, bentpipe, document, refusal,
};

#[test]
fn the_comparison_is_the_promised_document_and_the_same_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let arguments = ["demo", "--on", "sim", "--json", "--size", "1MB", "--out", out];
    let found = document(&arguments);
    assert_eq!(found["world"], "sim");
    assert_numbers(&found, &["limit_bps"]);
    let runs = found["runs"].as_array().unwrap();
    let names: Vec<_> = runs.iter().map(|run| run["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["reno", "cubic", "bbr", "bentpipe-hybla", "bentpipe"]);
    for run in runs {
        assert_texts(run, &["congestion"]);
        assert_numbers(run, &["goodput_bps", "seconds"]);
        assert_eq!((&run["bytes"], &run["identical"]), (&1_000_000.into(), &true.into()));
        assert!(run["goodput_bps"].as_f64() < found["limit_bps"].as_f64(), "{run}");
    }
    assert_eq!(document(&arguments), found);
    assert!(fs::read_to_string(folder.path().join("demo.svg")).unwrap().starts_with("<svg"));
}

#[test]
fn the_loss_rate_is_reported() {
    let out = tempfile::tempdir().unwrap();
    let output = bentpipe(&["demo", "--on", "sim", "--per", "7%", "--out", out.path().to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains(", 7% of packets lost"), "{text}");
}

#[test]
fn inconclusive_values_are_refused_with_conclusive_ones() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    for (option, value, parts) in [
        ("--size", "0", &["--size", "1B to 1GB"][..]),
        ("--size", "1000GB", &["1000GB", "--size 1GB"]),
        ("--per", "100%", &["--per", "less than 100%"]),
    ] {
        let output = bentpipe(&["demo", "--on", "sim", option, value, "--out", out.to_str().unwrap()]);
        refusal(&output, parts);
        assert!(!out.exists(), "{option} {value}");
    }
}

#[test]
fn values_that_are_none_are_misuse() {
    for (option, value, part) in [
        ("--rate", "-5M", "10Mbit/s"),
        ("--rate", "0", "--rate"),
        ("--rate", "nan", "10Mbit/s"),
        ("--rtt", "-1s", "600ms"),
        ("--rtt", "inf", "600ms"),
        ("--per", "101%", "between 0 and 1"),
        ("--per", "-0.1", "--per"),
        ("--size", "-1", "--size"),
        ("--size", "many", "10MB"),
        ("--seed", "-1", "--seed"),
        ("--on", "moon", "kernel, sim"),
    ] {
        assert_misuse(&["demo", option, value], &[option, value, part]);
    }
}

#[test]
fn a_folder_that_takes_no_files_is_refused_before_the_downloads() {
    for out in ["/dev/null/out", "/proc/out"] {
        refusal(
            &bentpipe(&["demo", "--on", "sim", "--out", out]),
            &["cannot write to the folder", out, "--out"],
        );
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error_but_a_full_disk_is() {
    let out = tempfile::tempdir().unwrap();
    let arguments = ["demo", "--on", "sim", "--size", "1MB", "--out", out.path().to_str().unwrap()];
    assert_success_without_reader(&arguments);
    assert_failure_on_a_full_disk(&arguments);
}
