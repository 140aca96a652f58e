//! The verdicts on known values, and the experiment in virtual time.

use super::*;
use crate::claim::Level;
use crate::claim::Outcome::{self, Agrees, Contradicts, Undecided};
use crate::experiment::in_virtual_time;

const SENDERS: [Sender; 2] = [
    Sender { name: "Reno", key: "reno", must_gain: true },
    Sender { name: "BBR", key: "bbr", must_gain: false },
];

fn measured(goodput_bps: f64) -> Measured {
    Measured { goodput_bps, held_bytes: 0.0, sender: None }
}

/// The outcomes of the three claims with these gains in each case, by seed.
fn outcomes(gains: impl Fn(&Case) -> Vec<f64>) -> Vec<Outcome> {
    let cases = cases(&SENDERS);
    let pairs =
        |case: &Case| gains(case).into_iter().map(|gain| [measured(1e6), measured(gain * 1e6)]).collect();
    let runs: Vec<Vec<Pair>> = cases.iter().map(pairs).collect();
    let output = Comparison::of(&cases, &runs).output();
    output.claims.iter().map(|claim| claim.judge(Level::of_looks(1)).outcome).collect()
}

/// A gain that fulfils the claims.
fn good(case: &Case) -> f64 {
    if case.sender.must_gain && case.per == ONE_PERCENT { 3.1 } else { 0.91 }
}

#[test]
fn each_claim_is_refused_by_one_case_that_contradicts_it() {
    let [yes, no] = [Agrees, Contradicts];
    // Two seeds that hardly differ.
    let seeds = |gain: f64| vec![gain, 1.0001 * gain];
    assert_eq!(outcomes(|case| seeds(good(case))), [yes; 3]);
    let but = |per: f64, queue_bdps: f64, sender: &'static str, gain: f64| {
        outcomes(move |case| {
            let is_it = case.per == per && case.queue_bdps == queue_bdps && case.sender.key == sender;
            seeds(if is_it { gain } else { good(case) })
        })
    };
    for (queue, _) in QUEUES {
        assert_eq!(but(NO_LOSS, queue, "bbr", 0.89), [no, yes, yes]);
        assert_eq!(but(ONE_PERCENT, queue, "bbr", 0.89), [yes, yes, no]);
    }
    assert_eq!(but(ONE_PERCENT, 1.0, "reno", 2.9), [yes, no, yes]);
    assert_eq!(but(ONE_PERCENT, 0.125, "reno", 2.9), [yes; 3]);
    assert_eq!(but(0.001, 0.125, "bbr", 0.1), [yes; 3]);
}

#[test]
fn an_interval_that_reaches_the_claim_does_not_decide_it() {
    let spread = |deviation: f64| {
        outcomes(move |case| [-deviation, 0.0, deviation].map(|by| good(case) - 0.2 + by).to_vec())
    };
    assert_eq!(spread(0.005), [Contradicts; 3]);
    assert_eq!(spread(0.2), [Undecided; 3]);
}

#[test]
fn queues_are_parts_of_the_bandwidth_delay_product() {
    let cases = cases(&SENDERS);
    assert_eq!(cases.len(), SENDERS.len() * QUEUES.len() * PERS.len());
    assert_eq!((cases[0].queue().get(), cases[3].queue().get()), (93_750, 750_000));
}

#[test]
fn in_virtual_time_sender_queue_and_snoop_make_each_a_difference() {
    let results = in_virtual_time(&SNOOP_SENDERS, 3);
    assert!(results.verdicts[1].agrees(), "{:#?}", results.verdicts);
    let [goodput, sender] = &results.tables[..] else { panic!("{} tables", results.tables.len()) };
    let value = |table: &Table, row: usize, column: usize| match table.rows()[row][column] {
        Cell::Interval(estimate, _) => estimate.value,
        ref other => panic!("{other:?} in row {row}"),
    };
    assert_eq!(goodput.content.rows().len(), 12);
    // Without losses and without Snoop: the two queues, and CUBIC in the first of them.
    let [short, long, cubic] = [0, 3, 6].map(|row| value(&goodput.content, row, 3));
    assert!(short < 0.8 * long && short < 0.8 * cubic, "{short} {long} {cubic}");
    // Cache and queue have their bounds, and only where there is Snoop something is held.
    let most = value(&goodput.content, 5, 6);
    assert!(0.1e6 < most && most <= 5.0 * 750e3, "{most}");
    // What the link has lost there the sender has sent again: NewReno at PER 1%.
    assert!(value(&sender.content, 5, 3) > 0.0);
}
