//! The data file is read strictly: whatever does not fit is refused with the entry's name, and nothing makes
//! it panic.

use bentpipe_radius::{Catalogue, DataError};
use proptest::prelude::*;

const PLACE: &str = "[[place]]\nname = \"Moon\"\ndistance_km = 384400\nsource = \"NASA\"\n";

/// A protocol with one timer whose keys beside name, role and source are these.
fn with_timer(keys: &str) -> String {
    format!(
        "{PLACE}[[protocol]]\nname = \"X\"\nwhat = \"x\"\nround_trips = 1\n[[protocol.timer]]\nname = \"request\"\n\
         role = \"set-up\"\nsource = \"RFC 1\"\n{keys}\n"
    )
}

fn parse(text: &str) -> Result<Catalogue, DataError> {
    text.parse()
}

fn complaint(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn the_file_that_comes_with_the_program_is_valid() {
    assert!(Catalogue::embedded().protocol("TCP, Linux").is_some());
}

#[test]
fn the_three_ways_to_say_how_long_a_timer_waits_are_read() {
    for keys in ["waits_s = [1, 2]", "total_s = 9", "first_s = 1\ntotal_s = 9", "first_s = 1\nforever = true"]
    {
        let result = parse(&with_timer(&format!("round_trips = 1\n{keys}")));
        assert!(result.is_ok(), "{keys}: {result:?}");
    }
}

#[test]
fn a_value_that_makes_no_sense_is_refused_with_the_name_of_its_timer() {
    let bad = [
        "round_trips = 1",
        "round_trips = 0\ntotal_s = 9",
        "round_trips = 1\ntotal_s = -9",
        "round_trips = 1\ntotal_s = inf",
        "round_trips = 1\ntotal_s = nan",
        "round_trips = 1\ntotal_s = 1e300",
        "round_trips = 1\nwaits_s = []",
        "round_trips = 1\nwaits_s = [1, 0]",
        "round_trips = 1\nwaits_s = [1]\ntotal_s = 9",
        "round_trips = 1\nfirst_s = 9\ntotal_s = 9",
        "round_trips = 1\ntotal_s = 9\nforever = true",
        "round_trips = 1\ntotal_s = 9\nsetting = { kind = \"seconds\", name = \"\" }",
    ];
    for keys in bad {
        let text = complaint(&with_timer(keys));
        assert!(text.contains("protocol \"X\", timer \"request\""), "{keys}: {text}");
    }
}

#[test]
fn an_unknown_key_is_refused() {
    assert!(complaint(&with_timer("round_trips = 1\ntotal_s = 9\nretries = 3")).contains("retries"));
    assert!(complaint(&format!("{PLACE}colour = \"grey\"\n")).contains("colour"));
}

#[test]
fn an_unknown_role_is_refused_with_those_that_there_are() {
    let file = with_timer("round_trips = 1\ntotal_s = 9").replace("set-up", "sometimes");
    let text = complaint(&file);
    assert!(text.contains("sometimes") && text.contains("half-open"), "{text}");
}

#[test]
fn an_entry_without_its_source_is_refused() {
    let file = with_timer("round_trips = 1\ntotal_s = 9");
    assert!(complaint(&file.replace("source = \"RFC 1\"\n", "")).contains("source"));
    assert!(complaint(&file.replace("RFC 1", " ")).contains("source is empty"));
    assert!(complaint(&file.replace("NASA", "")).contains("place \"Moon\""));
}

#[test]
fn names_are_unique_and_a_protocol_stands_behind_the_one_that_it_runs_over() {
    let file = with_timer("round_trips = 1\ntotal_s = 9");
    let twice = format!("{file}{}", file.replace(PLACE, ""));
    assert!(complaint(&twice).contains("twice"));
    let on_itself = file.replace("what = \"x\"", "what = \"x\"\nover = \"X\"");
    assert!(complaint(&on_itself).contains("stands before it"));
}

#[test]
fn a_half_open_timer_needs_the_syns_that_restart_it() {
    let file = with_timer("round_trips = 1\nwaits_s = [1, 2]").replace("set-up", "half-open");
    assert!(complaint(&file).contains("half-open"));
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}") {
        let _ = parse(&text);
    }

    #[test]
    fn no_damage_to_a_valid_file_makes_it_panic(at in 0usize..10_000, new in "\\PC{0,3}", cut in 0usize..20) {
        let text = include_str!("../../../../data/protocol-timers.toml");
        let boundary = |from: usize| (from..).find(|&index| text.is_char_boundary(index.min(text.len())));
        let start = boundary(at % text.len()).unwrap().min(text.len());
        let end = boundary(start + cut).unwrap().min(text.len());
        let _ = parse(&[&text[..start], &new, &text[end..]].concat());
    }

    #[test]
    fn every_accepted_protocol_has_ordered_radii(first in 0.001f64..1e6, total in 0.001f64..1e6, round_trips in 0.5f64..20.0) {
        let keys = format!("round_trips = {round_trips}\nfirst_s = {first}\ntotal_s = {total}");
        if let Ok(catalogue) = parse(&with_timer(&keys)) {
            let reach = catalogue.reach(&catalogue.protocols()[0]);
            prop_assert!(reach.inner <= reach.limit, "{reach:?}");
        }
    }
}
