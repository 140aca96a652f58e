//! bentpipe's bundle node with an independent one, dtn7-rs, where `scripts/setup-peers dtn7` has installed
//! it. `make interop-dtn` tries more: larger bundles, and whoever connects.

// What the comparison in crates/dtn/examples/against_dtn7 uses besides.
#[allow(dead_code)]
#[path = "../../../dtn/examples/against_dtn7/interop.rs"]
mod interop;
#[allow(dead_code)]
#[path = "../../../dtn/examples/against_dtn7/nodes.rs"]
mod nodes;
#[allow(dead_code)]
#[path = "../../../dtn/examples/against_dtn7/web.rs"]
mod web;

use std::path::Path;

use interop::{Opener, Scheme, exchange, table};
use nodes::Programs;

/// One that goes in one segment, and one that is longer than what dtn7-rs says that it takes.
const SIZES: [usize; 2] = [1, 200_000];

fn bundles_arrive_as_they_were_sent(scheme: Scheme, opener: Opener) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let programs = Programs {
        dtn7: workspace.join("target/peers/dtn7/bin"),
        bentpipe: env!("CARGO_BIN_EXE_bentpipe").into(),
    };
    if let Some(missing) = programs.missing() {
        println!("skipped: {missing}");
        return;
    }
    let outcomes = exchange(&programs, scheme, opener, &SIZES).unwrap();
    // By UDP, what fits a datagram.
    let sizes = if opener == Opener::Nobody { 1 } else { SIZES.len() };
    assert_eq!(outcomes.len(), 2 * sizes);
    assert!(outcomes.iter().all(|outcome| outcome.failure.is_none()), "{}", table(&outcomes));
}

#[test]
fn bentpipe_connects_to_dtn7_and_both_send() {
    bundles_arrive_as_they_were_sent(Scheme::Dtn, Opener::Bentpipe);
}

#[test]
fn dtn7_connects_to_bentpipe_and_both_send() {
    bundles_arrive_as_they_were_sent(Scheme::Dtn, Opener::Dtn7);
}

#[test]
fn bundles_in_datagrams_arrive_without_a_session() {
    bundles_arrive_as_they_were_sent(Scheme::Dtn, Opener::Nobody);
}

#[test]
fn nodes_with_numbers_for_names_understand_each_other() {
    bundles_arrive_as_they_were_sent(Scheme::Ipn, Opener::Bentpipe);
}
