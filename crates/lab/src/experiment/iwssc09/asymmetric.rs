//! One of two flows is limited elsewhere.

use super::super::observers::SteadyState;
use super::{Lab, MBIT, Output, PAYLOAD, SCENARIO, Scheme, VARIANTS};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, Plot};
use crate::results::Part;
use crate::table::{Cell, Column, Table};

const FIGURES: &str = "the comparison with a flow of 0.5 Mbit/s";
/// The end of the start-up phase, seconds. The shares of the capacity are compared from then on.
const STARTS_UNTIL: u64 = 20;
const CAPACITY: f64 = 100e6;
/// The load of the limited flow, bits per second of IP.
const LIMIT: f64 = 0.5e6;
/// The bottleneck among the scenario's links. Its queue is not measured here.
const BOTTLENECK: usize = 0;

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let scenarios = lab.scenarios(&SCENARIO, &VARIANTS, &[()], |variant: Scheme, ()| variant.with([]))?;
    let runs = lab.observe(&scenarios, || SteadyState::since(STARTS_UNTIL, BOTTLENECK))?;
    let goodput = |at: usize, flow: usize| runs[at].observed(|steady| steady.goodputs_bps()[flow]);
    let available = (CAPACITY - LIMIT) * PAYLOAD;
    let share = |at: usize| runs[at].observed(|steady| steady.goodputs_bps()[0] / available);
    let mut table = Table::new(
        "Goodput of two flows on 100 Mbit/s, from 20 s on",
        vec![
            Column::new("", "variant"),
            Column::new("the free flow", "free_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("the limited flow", "limited_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("of what is available to the free flow", "free_share").shown_in("%", 1e-2),
        ],
    );
    for (at, variant) in VARIANTS.into_iter().enumerate() {
        table.push(vec![
            Cell::text(variant.name),
            Cell::interval(Some(goodput(at, 0)), 2),
            Cell::interval(Some(goodput(at, 1)), 2),
            Cell::interval(Some(share(at)), 1),
        ]);
    }
    let plot = VARIANTS.into_iter().zip(&runs).fold(
        Plot::new(
            "The flow that nothing else limits, one run",
            Axis::new("time", "s"),
            Axis::new("goodput", "Mbit/s"),
        ),
        |plot, (variant, runs)| plot.with(runs.0[0].1.first_flow(variant.name)),
    );
    Ok(Output {
        claims: vec![
            Claim::stated("With XCP the free flow gets around 90% of what is available: 85 to 93%", FIGURES)
                .shown_in("%", 1e-2, 1)
                .with(Range::between(0.85, 0.93).of_mean(&share(0))),
            Claim::stated("With P-XCP it gets more than 95%", FIGURES)
                .shown_in("%", 1e-2, 1)
                .with(Range::above(0.95).of_mean(&share(1))),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot)],
    })
}
