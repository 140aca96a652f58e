//! One-way satellite access, in both worlds: forward by satellite, back by a terrestrial network.

use bentpipe_units::Rate;

use super::{Curves, Experiment, Lab, Measure, Output, Runs, Scheme};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart};
use crate::results::{Part, Plan};
use crate::table::{Cell, Column};
use crate::topology::PAYLOAD_SHARE;

pub(super) const ONE_WAY: Experiment = Experiment {
    name: "one-way",
    title: "Forward by satellite, back by a terrestrial network: end to end, and split with Hybla and explicit rates",
    source: "ours; the layout is that of PEPsal's first use in production: Caini, Firrincieli, Lacamera, slides of \
        \"PEPsal: a Performance Enhancing Proxy for TCP satellite connections\"",
    plan: Plan::doubling(5),
    run: Some(both_worlds),
    on_kernel: Some((3, both_worlds)),
};

const SCENARIO: (&str, &str) = ("scenarios/one-way.toml", include_str!("../../../../scenarios/one-way.toml"));
const RATE: Rate = Rate::mbps(10);
const PERS: [f64; 3] = [0.0, 0.001, 0.01];
/// The index of 1%.
const ONE_PERCENT: usize = 2;

const END_TO_END: usize = 0;
const HYBLA: usize = 1;
const EXPLICIT: usize = 2;
const SCHEMES: [Scheme; 3] = [
    Scheme { name: "end to end (CUBIC)", key: "end_to_end", settings: &["flow.download.split=[]"] },
    Scheme { name: "split (Hybla)", key: "hybla", settings: &["tcp.satellite.congestion=hybla"] },
    Scheme { name: "split (explicit rates)", key: "explicit", settings: &[] },
];

/// The claims' thresholds: what splitting has without losses, of CUBIC's goodput end to end; what it has at
/// PER 1%, in multiples of that; and what explicit rates have of what the link can deliver.
const NO_HARM: f64 = 0.95;
const TIMES: f64 = 3.0;
const OF_LIMIT: f64 = 0.9;

fn both_worlds(lab: &Lab<'_>) -> Result<Output, Error> {
    let settings = |scheme: Scheme, per: f64| scheme.with([format!("link.satellite.per={per}")]);
    let runs = lab.sweep(&SCENARIO, &SCHEMES, &PERS, settings)?;
    Ok(output(&runs))
}

fn output(runs: &[Vec<Runs>]) -> Output {
    let goodput = Curves::of_runs(SCHEMES, Measure::mbps("goodput_bps"), runs, |runs| {
        runs.first_flow(|flow| flow.goodput_bps)
    });
    let per = Column::new("PER", "per").shown_in("%", 0.01);
    let table = goodput.table("Goodput over a minute", [per], PERS.map(|per| vec![Cell::Number(per, 1)]));
    let chart = goodput.chart(BarChart::new(
        "10 Mbit/s and 270 ms forward, 1 Mbit/s and 30 ms back",
        Axis::dimensionless("packet error rate, forward"),
        Axis::new("goodput", "Mbit/s"),
        PERS.map(|per| format!("{} %", 100.0 * per)),
    ));
    Output {
        claims: claims(&goodput),
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", chart)],
    }
}

fn claims(goodput: &Curves) -> Vec<Claim> {
    let at = |scheme: usize, point: usize| &goodput.curve(scheme)[point];
    let times = |scheme, range: Range, point| {
        range.of_ratio(at(scheme, point), at(END_TO_END, point)).at(SCHEMES[scheme].name)
    };
    let of_limit = |point: usize| {
        let limit = RATE.bps() as f64 * PAYLOAD_SHARE * (1.0 - PERS[point]);
        Range::at_least(OF_LIMIT * limit)
            .of_mean(at(EXPLICIT, point))
            .at(format!("PER {}%", 100.0 * PERS[point]))
    };
    vec![
        Claim::ours(
            "Without losses splitting does no harm: with Hybla and with explicit rates 95% or more of CUBIC's goodput \
             end to end",
        )
        .with_all([HYBLA, EXPLICIT].map(|scheme| times(scheme, Range::at_least(NO_HARM), 0))),
        Claim::ours("At PER 1% splitting with Hybla has 3 times CUBIC's goodput end to end, or more")
            .with(times(HYBLA, Range::at_least(TIMES), ONE_PERCENT)),
        Claim::ours(
            "At each packet error rate splitting with explicit rates has 90% or more of what the forward direction \
             can deliver",
        )
        .shown_in("Mbit/s", 1e6, 2)
        .with_all((0..PERS.len()).map(of_limit)),
        Claim::ours("At PER 1% explicit rates have no less than Hybla").with(
            Range::at_least(1.0)
                .of_ratio(at(EXPLICIT, ONE_PERCENT), at(HYBLA, ONE_PERCENT))
                .at(SCHEMES[EXPLICIT].name),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn splitting_gains_where_the_satellite_loses_and_no_claim_is_contradicted() {
        let results = in_virtual_time(&ONE_WAY, 3);
        assert_eq!(results.contradicted().count(), 0, "{:#?}", results.verdicts);
        let gains = results.verdicts.iter().find(|verdict| verdict.claim.contains("3 times")).unwrap();
        assert!(gains.agrees(), "{gains:#?}");
    }
}
