//! Flows that come and go: the authors "made other simulations with several competing flows asynchronously
//! incoming and leaving the network and have obtained similar results" (section V-B), of which they show none.

use super::{IMPATIENT, Lab, Output, P_XCP, RECOVERIES, Runs, SCENARIO, STEADY, Scheme, VARIANTS};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::results::Part;
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};

const TEXT: &str = "section V-B, end";
/// With these a link of 5 Mbit/s is nearly full, and two to five flows share it at most times.
const FLOWS: usize = 12;
const BYTES: &str = "3MB";
/// One loss in about every third window of a hundred packets.
const PER: &str = "0.3%";

/// The variants with their loss recoveries.
const CASES: [(usize, usize); 3] = [(0, STEADY), (P_XCP, IMPATIENT), (P_XCP, STEADY)];
const XCP: usize = 0;
const OVER_IMPATIENT: usize = 1;
const OVER_STEADY: usize = 2;

fn settings((variant, recovery): (usize, usize)) -> Vec<String> {
    let variant: Scheme = VARIANTS[variant];
    variant.with([
        "duration=240s".to_owned(),
        "flow.limited.count=0".to_owned(),
        format!("flow.free.count={FLOWS}"),
        format!("flow.free.bytes={BYTES}"),
        "flow.free.start_within=60s".to_owned(),
        "link.satellite.rate=5Mbit/s".to_owned(),
        format!("link.satellite.per={PER}"),
        format!("tcp.satellite.recovery={}", RECOVERIES[recovery].1),
    ])
}

/// Retransmission timeouts of all flows on the satellite.
fn timeouts(runs: &Runs) -> Sample {
    runs.sample(|run| run.flows.iter().map(|flow| flow.legs[1].timeouts as f64).sum())
}

/// The mean time of a flow, seconds.
fn time(runs: &Runs) -> Sample {
    runs.sample(|run| run.flows.iter().map(|flow| flow.seconds).sum::<f64>() / FLOWS as f64)
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let scenarios = lab.scenarios(&SCENARIO, &CASES, &[()], |case, ()| settings(case))?;
    let runs = lab.run(&scenarios)?;
    let [steady, impatient] = [OVER_STEADY, OVER_IMPATIENT].map(|case| timeouts(&runs[case]));
    let above = steady.paired(&impatient, |steady, impatient| steady - 0.5 * impatient);
    Ok(Output {
        claims: vec![
            Claim::stated(
                "Flows that come and go: P-XCP over Slow-but-Steady times out less than half as often as over \
                 Impatient",
                TEXT,
            )
            .shown_in("timeouts more than half", 1.0, 1)
            .with(Range::below(0.0).of_mean(&above.expect("numbers of timeouts are finite"))),
            takes_longer(&runs[XCP], &runs[OVER_STEADY]),
        ],
        tables: vec![Part::new("flows", table(&CASES, &runs))],
        figures: Vec::new(),
    })
}

/// Over Linux without SACK ([`kernel`](super::kernel)).
pub(super) fn on_kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let cases = [CASES[XCP], CASES[OVER_STEADY]];
    let scenarios = lab.scenarios(&SCENARIO, &cases, &[()], |case, ()| {
        let mut settings = settings(case);
        settings.push(super::kernel::setting(case.1));
        settings
    })?;
    let runs = lab.run(&scenarios)?;
    Ok(Output {
        claims: vec![takes_longer(&runs[0], &runs[1])],
        tables: vec![Part::new("flows", table(&cases, &runs))],
        figures: Vec::new(),
    })
}

fn takes_longer(xcp: &Runs, p_xcp: &Runs) -> Claim {
    let mut flows = [xcp, p_xcp].into_iter().flat_map(Runs::results).flat_map(|run| &run.flows);
    let finished = flows.all(|flow| flow.finished);
    Claim::stated(
        "Flows that come and go: with XCP a flow takes at least 5% longer than with P-XCP, both over \
         Slow-but-Steady",
        TEXT,
    )
    .with(Range::at_least(1.05).of_ratio(&time(xcp), &time(p_xcp)))
    .noting(if finished { "all flows finished" } else { "not all flows finished" })
}

fn table(cases: &[(usize, usize)], runs: &[Runs]) -> Table {
    let mut table = Table::new(
        "Twelve flows of 3 MB that begin within a minute, 5 Mbit/s, 250 ms one way, PER 0.3%",
        vec![
            Column::new("", "variant"),
            Column::new("loss recovery", "recovery"),
            Column::new("mean time of a flow", "time_s").shown_in("s", 1.0),
            Column::new("timeouts of all", "timeouts"),
        ],
    );
    for (&(variant, recovery), runs) in cases.iter().zip(runs) {
        table.push(vec![
            Cell::text(VARIANTS[variant].name),
            Cell::text(RECOVERIES[recovery].0),
            Cell::interval(Some(time(runs)), 1),
            Cell::interval(Some(timeouts(runs)), 1),
        ]);
    }
    table
}
