//! Satellite and terrestrial flows under one router.

use super::super::pepsal::{OF_A_KIND, SCENARIO, jain, shares_chart, shares_table};
use super::{Lab, Output};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart};
use crate::results::Part;

/// The congestion controls of all flows: the name, the scenario's name, and whether the bottleneck is an XCP
/// router.
const CONTROLS: [(&str, &str, bool); 3] =
    [("NewReno", "newreno", false), ("XCP", "xcp", true), ("P-XCP", "p-xcp", true)];

fn settings((_, control, has_router): (&str, &str, bool)) -> Vec<String> {
    let mut settings = vec![
        "flow.satellite.split=[]".to_owned(),
        format!("flow.satellite.count={OF_A_KIND}"),
        format!("flow.wired.count={OF_A_KIND}"),
        format!("tcp.standard.congestion={control}"),
    ];
    if has_router {
        settings.push("link.bottleneck.xcp.at=r1".to_owned());
        settings.push(format!("link.bottleneck.xcp.variant={control}"));
    }
    settings
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.run(&lab.scenarios(&SCENARIO, &CONTROLS, &[()], |control, ()| settings(control))?)?;
    let names = CONTROLS.map(|control| control.0);
    let table = shares_table(
        "Goodput of a flow, the mean over three of a kind; round trips 600 and 25 ms, 10 Mbit/s",
        "terrestrial",
        &names,
        &runs,
        4,
    );
    let chart = BarChart::new(
        "Three satellite and three terrestrial flows on 10 Mbit/s",
        Axis::dimensionless("congestion control"),
        Axis::new("goodput of a flow", "Mbit/s"),
        names,
    );
    let claim = |at: usize| {
        let sentence = format!(
            "With {} six flows share alike whatever their round trips: Jain's index is 0.99 or more",
            names[at]
        );
        let claim = match at {
            1 => Claim::stated(sentence, "the simulations of fairness"),
            _ => Claim::ours(sentence),
        };
        claim
            .shown_in("", 1.0, 4)
            .with(Range::at_least(0.99).of_mean(&jain(&runs[at])))
            .noting(format!("{:.4} with NewReno", jain(&runs[0]).mean()))
    };
    Ok(Output {
        claims: vec![claim(1), claim(2)],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", shares_chart(chart, "terrestrial", &runs))],
    })
}
