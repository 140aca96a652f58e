//! `bentpipe lab` as users meet it: the list, the document and files of an experiment, and what it refuses
//! before it runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    assert_failure_on_a_full_disk, assert_misuse, assert_numbers, assert_success_without_reader,
    assert_texts, bentpipe, command, document, refusal, success,
};
use serde_json::Value;

/// An experiment that takes no time, and one that depends on the seed.
const QUICK: &str = "radius07-reach";
const RANDOM: &str = "pepsal-fairness";

#[test]
fn the_list_has_the_published_experiments() {
    let document = document(&["lab", "list", "--json"]);
    let experiments = document["experiments"].as_array().unwrap();
    let text = success(&bentpipe(&["lab", "list"]));
    for experiment in experiments {
        assert_texts(experiment, &["name", "title", "source"]);
        assert_numbers(experiment, &["seeds", "max_seeds"]);
        assert!(text.contains(experiment["name"].as_str().unwrap()), "{text}");
    }
    for name in ["psats09-fig4", "psats09-fig5", "pepsal-both", QUICK, RANDOM] {
        assert!(experiments.iter().any(|experiment| experiment["name"] == name), "{name}");
    }
}

fn assert_is_an_experiment(document: &Value) {
    assert_texts(document, &["name", "world", "source"]);
    assert_eq!((&document["world"], &document["seeds"]), (&"sim".into(), &2.into()));
    assert_eq!((&document["from_seeds"], &document["max_seeds"]), (&2.into(), &2.into()));
    let verdicts = document["verdicts"].as_array().unwrap();
    assert!(!verdicts.is_empty());
    for verdict in verdicts {
        assert_texts(verdict, &["claim", "observed", "outcome", "label"]);
        let one_of = |key: &str, words: &[&str]| words.contains(&verdict[key].as_str().unwrap());
        assert!(one_of("outcome", &["agrees", "contradicts", "undecided"]), "{verdict}");
        assert!(one_of("label", &["stated", "expected", "ours"]), "{verdict}");
        assert_eq!(verdict["reference"].is_string(), verdict["label"] != "ours", "{verdict}");
        assert_eq!(verdict["margin"].as_array().unwrap().len(), 2, "{verdict}");
        assert!(verdict["power"].is_number(), "two seeds have an interval: {verdict}");
    }
    for (kind, beginning) in [("figures", "<svg"), ("tables", "")] {
        let files = document[kind].as_array().unwrap();
        assert!(!files.is_empty(), "{kind}");
        for path in files {
            let text = fs::read_to_string(path.as_str().unwrap()).unwrap();
            assert!(text.starts_with(beginning) && text.lines().count() > 2, "{path}");
        }
    }
}

#[test]
fn one_experiment_is_the_promised_document_and_several_are_a_list_of_them() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("deep/er");
    let out = out.to_str().unwrap();
    let run = |names: &[&str]| {
        document(&[&["lab", "run", "--json", "--on", "sim", "--seeds", "2", "--out", out], names].concat())
    };
    assert_is_an_experiment(&run(&[QUICK]));
    let several = run(&[QUICK, RANDOM, QUICK]);
    let several = several["experiments"].as_array().unwrap();
    several.iter().for_each(assert_is_an_experiment);
    let names: Vec<_> = several.iter().map(|experiment| experiment["name"].as_str().unwrap()).collect();
    assert_eq!(names, [QUICK, RANDOM], "each once, in the order of the arguments");
}

/// What an experiment prints and writes, with this many threads; without what tells the time.
fn outcome(threads: &str) -> (String, BTreeMap<String, Vec<u8>>) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = command(&["lab", "run", RANDOM, "--seeds", "2", "--seed", "5", "--out", "out"]);
    let output = command.current_dir(&folder).env("RAYON_NUM_THREADS", threads).output().unwrap();
    let mut files = files_of(&folder.path().join("out"));
    assert!(files.remove("report.html").unwrap().starts_with(b"<!DOCTYPE html>"));
    let record = files.get_mut("pepsal-fairness.result.json").unwrap();
    let mut document: Value = serde_json::from_slice(record).unwrap();
    assert_texts(&document.as_object_mut().unwrap().remove("origin").unwrap(), &["began"]);
    *record = document.to_string().into_bytes();
    (success(&output), files)
}

fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

#[test]
fn the_same_command_prints_and_writes_the_same_bytes_on_any_number_of_threads() {
    let first = outcome("1");
    let names: Vec<&str> = first.1.keys().map(String::as_str).collect();
    assert_eq!(names, ["csv", "md", "result.json", "svg"].map(|ending| format!("pepsal-fairness.{ending}")));
    assert_eq!(outcome("1"), first);
    assert_eq!(outcome("3"), first);
}

#[test]
fn results_of_two_folders_make_one_report() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other, page] = ["one", "other", "page.html"].map(|name| folder.path().join(name));
    for (name, out) in [(QUICK, &one), (RANDOM, &other)] {
        success(&bentpipe(&["lab", "run", name, "--seeds", "2", "--out", out.to_str().unwrap()]));
    }
    let folders = ["lab", "report", one.to_str().unwrap(), other.to_str().unwrap()];
    let joined = bentpipe(&[&folders[..], &["--out", page.to_str().unwrap()]].concat());
    assert_eq!(success(&joined), format!("{}\n", page.display()));
    let report = fs::read_to_string(&page).unwrap();
    for name in [QUICK, RANDOM] {
        assert!(report.contains(&format!("id=\"{name}\"")), "{name} is not in {report}");
        assert!(
            report.contains(&format!("bentpipe lab run {name} --on sim --seed 1 --seeds 2 --max-seeds 2"))
        );
    }
    assert_eq!(success(&bentpipe(&folders)), format!("{}\n", one.join("report.html").display()));
}

#[test]
fn a_folder_without_results_makes_no_report() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    refusal(&bentpipe(&["lab", "report", path]), &["no results in", path, "lab run"]);
    refusal(&bentpipe(&["lab", "report", "/absent"]), &["cannot read /absent"]);
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
    assert_misuse(&["lab", "report"], &["FOLDER"]);
}

#[test]
fn a_run_that_ends_early_leaves_a_report_that_says_what_is_missing() {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().to_str().unwrap();
    success(&bentpipe(&["lab", "run", QUICK, "--out", path]));
    fs::create_dir(out.path().join("pepsal-fairness.svg")).unwrap();
    let names = ["lab", "run", RANDOM, QUICK, "--seeds", "2", "--out", path];
    refusal(&bentpipe(&names), &["pepsal-fairness.svg", "a folder has the name"]);
    let report = fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(report.contains("it has not finished") && report.contains("it has not begun"), "{report}");
    assert!(report.contains("What is below is of an earlier run"), "{report}");
}

#[test]
fn a_run_that_is_killed_leaves_a_report_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let long =
        ["lab", "run", QUICK, "surrey-fig4", "--seeds", "500", "--out", folder.path().to_str().unwrap()];
    // Itself, not below `timeout`, which would be killed in its place.
    let mut run = Command::new(env!("CARGO_BIN_EXE_bentpipe"));
    let mut run = run.args(long).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let given_up = Instant::now() + Duration::from_secs(120);
    let report = loop {
        let report = fs::read_to_string(&page).unwrap_or_default();
        if report.contains("it has not finished") && !report.contains("it has not begun") {
            break report;
        }
        assert!(run.try_wait().unwrap().is_none() && Instant::now() < given_up, "{report}");
        std::thread::sleep(Duration::from_millis(20));
    };
    run.kill().unwrap();
    run.wait().unwrap();
    assert_eq!(fs::read_to_string(&page).unwrap(), report);
    assert!(report.contains("--seeds 500") && report.contains("without randomness"), "{report}");
    success(&bentpipe(&["lab", "report", folder.path().to_str().unwrap()]));
    assert!(fs::read_to_string(&page).unwrap().contains("it has not finished"));
}

#[test]
fn an_unknown_experiment_is_answered_with_all_before_any_runs() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    for names in [&["psats09-fig6"][..], &[QUICK, "psats09-fig6"], &["all", "psats09-fig6"], &[""], &["../x"]]
    {
        let output = bentpipe(&[&["lab", "run", "--out", out.to_str().unwrap()], names].concat());
        refusal(&output, &[names[names.len() - 1], "psats09-fig4", "radius07-step"]);
        assert!(!out.exists(), "{names:?}");
    }
}

#[test]
fn a_folder_that_takes_no_files_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    fs::write(&taken, "a file").unwrap();
    for out in ["/dev/null/out", "/proc/out", taken.to_str().unwrap()] {
        refusal(
            &bentpipe(&["lab", "run", "all", "--out", out]),
            &["cannot write to the folder", out, "--out"],
        );
    }
    assert_eq!(fs::read_to_string(taken).unwrap(), "a file");
}

#[test]
fn seeds_beyond_the_last_one_are_refused() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().to_str().unwrap();
    let output =
        bentpipe(&["lab", "run", QUICK, "--seed", "18446744073709551615", "--seeds", "2", "--out", out]);
    refusal(&output, &["18446744073709551615", "--seed 18446744073709551613"]);
}

#[test]
fn more_seeds_run_only_as_long_as_a_claim_is_undecided() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().to_str().unwrap();
    let run = |name: &str, seeds: &str, most: &str| {
        document(&["lab", "run", name, "--json", "--seeds", seeds, "--max-seeds", most, "--out", out])
    };
    assert_eq!(run(QUICK, "1", "4")["seeds"], 1, "without randomness nothing is undecided");
    assert_eq!(run(RANDOM, "1", "2")["seeds"], 2, "one seed decides nothing");
    let output = bentpipe(&["lab", "run", QUICK, "--seeds", "3", "--max-seeds", "2", "--out", out]);
    refusal(&output, &["--max-seeds 2", "--max-seeds 3 or more"]);
}

#[test]
fn arguments_that_make_no_sense_are_misuse() {
    assert_misuse(&["lab", "run"], &["NAME"]);
    assert_misuse(&["lab", "run", QUICK, "--seeds", "0"], &["--seeds", "1..=10000"]);
    assert_misuse(&["lab", "run", QUICK, "--max-seeds", "0"], &["--max-seeds", "1..=10000"]);
    assert_misuse(&["lab", "run", QUICK, "--seeds", "-3"], &["--seeds", "-3"]);
    assert_misuse(&["lab", "run", QUICK, "--on", "moon"], &["--on", "sim"]);
    assert_misuse(&["lab", "list", QUICK], &[QUICK]);
}

#[test]
fn a_reader_that_goes_away_is_no_error_but_a_full_disk_is() {
    let out = tempfile::tempdir().unwrap();
    let run = ["lab", "run", QUICK, "--seeds", "1", "--out", out.path().to_str().unwrap()];
    assert_success_without_reader(&["lab", "list"]);
    assert_success_without_reader(&run);
    assert_failure_on_a_full_disk(&["lab", "list"]);
    assert_failure_on_a_full_disk(&run);
}

#[test]
fn the_kernel_is_for_experiments_that_have_a_form_for_it() {
    let document = document(&["lab", "list", "--json"]);
    let worlds = |name: &str| {
        let found = document["experiments"].as_array().unwrap().iter().find(|found| found["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}"))["worlds"].clone()
    };
    assert_eq!(worlds("psats09-fig3"), serde_json::json!(["sim"]));
    assert_eq!(worlds("lossy-link"), serde_json::json!(["sim", "kernel"]));
    assert_eq!(worlds("quic"), serde_json::json!(["kernel"]));
}

#[test]
fn an_experiment_without_a_form_for_virtual_time_is_refused_with_the_option_for_the_kernel() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("results");
    let output = bentpipe(&["lab", "run", "quic", "--out", folder.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("quic runs on the kernel only: --on kernel"), "{text}");
    assert!(!folder.exists(), "nothing has run");
}
