//! The same scenario and seed, natively and in the page: results and curves are the same text.

use std::path::Path;

use bentpipe_sim::Unobserved;
use bentpipe_sim::file::Source;
use bentpipe_sim::sweep::Plan;
use bentpipe_web::FILE;
use serde_json::Value;

use crate::built::{ROOT, open, run};
use crate::webdriver::Browser;

/// A scenario of the project. A page has no files; the one that a scenario names is also built in.
fn scenario(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.replace(r#"file = "../data/direttissima.csv""#, r#"trace = "direttissima""#)
}

/// Compares documents, and gives how many events they are of.
async fn assert_identical(browser: &Browser, what: &str, text: &str, seed: u64) -> u64 {
    let native = bentpipe_web::run(text, seed, &mut |_| ()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let page = run(browser, text, seed).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    if let Some(at) = native.bytes().zip(page.bytes()).position(|(native, page)| native != page) {
        let around = |text: &str| text.chars().skip(at.saturating_sub(100)).take(200).collect::<String>();
        panic!("{what}, seed {seed}\nnatively:    …{}\nin the page: …{}", around(&native), around(&page));
    }
    assert_eq!(native.len(), page.len(), "{what}, seed {seed}");
    serde_json::from_str::<Value>(&native).unwrap()["results"]["events"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_of_the_project_has_the_same_results_in_the_page() {
    let Some(browser) = open().await else { return };
    let mut files: Vec<_> =
        Path::new(ROOT).join("scenarios").read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let text = scenario(&file);
        let events = assert_identical(&browser, &name, &text, 1).await;
        assert!(events > 100, "{name}: {events} events");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_sliders_make_has_the_same_results_in_the_page() {
    let Some(browser) = open().await else { return };
    let settings = [
        "leg: 'hybla', ends: 'newreno'",
        "leg: 'bbr', ends: 'bbr'",
        "leg: 'bbr3', ends: 'hybla', size: 30",
        "leg: 'cubic', ends: 'bbr3', per: 0, queue: 0.1",
        "leg: 'newreno', rate: 0.128, size: 0.3, rtt: 5000",
        "rate: 200, size: 100, per: 1e-4, paths: 'split'",
        "start: 2, length: 20, per: 0.1, size: 1",
        "rtt: 20, per: 0.05, ends: 'newreno', paths: 'end-to-end'",
    ];
    for (number, changes) in settings.into_iter().enumerate() {
        let script = format!("return bentpipe.scenario({{ ...bentpipe.initial(), {changes} }})");
        let text = browser.run(&script).await.as_str().unwrap().to_owned();
        for seed in [1, (1 + number as u64) << 40] {
            assert_identical(&browser, changes, &text, seed).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_choice_of_the_sliders_is_a_scenario() {
    let Some(browser) = open().await else { return };
    let script = "return bentpipe.SETTINGS.flatMap(({ name, options }) => options.map(({ value }) => \
                  bentpipe.scenario({ ...bentpipe.initial(), length: 5, [name]: value })))";
    let texts = browser.run(script).await;
    let texts = texts.as_array().unwrap();
    assert!(texts.len() > 60, "{}", texts.len());
    for text in texts {
        let text = text.as_str().unwrap();
        Source::parse(FILE, text).unwrap().with(&[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}

/// The page's samples must not change what `bentpipe sim --json` prints, which takes none.
#[test]
fn results_are_those_of_a_run_that_nobody_observes() {
    for name in ["geo-download", "railway", "protected-leg", "deep-space"] {
        let text = scenario(&Path::new(ROOT).join(format!("scenarios/{name}.toml")));
        let source = Source::parse(FILE, &text).unwrap();
        let plan = Plan::new(&source, &[], &[], &[3]).unwrap();
        let result = bentpipe_sim::run(&plan.scenario(&plan.points()[0]).unwrap(), 3, &mut Unobserved);
        let document: Value =
            serde_json::from_str(&bentpipe_web::run(&text, 3, &mut |_| ()).unwrap()).unwrap();
        let mut results = document["results"].clone();
        results.as_object_mut().unwrap().remove("title").unwrap();
        assert_eq!(results, serde_json::to_value(&result).unwrap(), "{name}");
    }
}
