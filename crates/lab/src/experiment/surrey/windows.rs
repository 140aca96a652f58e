//! Figure 3: the sender's window over time.

use super::super::observers::WindowTrace;
use super::super::{Experiment, Lab, Output, Runs, Scheme};
use super::{FIGURE_3, at_per, by_per, scientific, settings};
use super::{GATEWAY_WINDOW, PACKET, SCENARIO, SCHEMES, SEEDS, SNOOP, SOURCE, SPLIT_SACK, WINDOW};
use crate::Error;
use crate::claim::{Claim, Range, Test};
use crate::figure::{Axis, Plot};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};

pub(in super::super) const FIG3: Experiment = Experiment {
    name: "surrey-fig3",
    title: "The sender's window with split SACK and with Snoop",
    source: SOURCE,
    plan: Plan::doubling(SEEDS),
    run: Some(fig3),
    on_kernel: Some((1, fig3)),
};

const PERS: [f64; 4] = [1e-4, 1e-3, 1e-2, 5e-2];
const LAST: usize = PERS.len() - 1;
/// The schemes, each with its leg over the satellite and the most packets that the sender may have in flight
/// there.
const COMPARED: [(usize, usize, f64); 2] = [(SPLIT_SACK, 1, GATEWAY_WINDOW), (SNOOP, 0, WINDOW)];

/// The runs of a scheme at a packet error rate.
type WindowRuns = Runs<WindowTrace>;

fn mean_window(runs: &WindowRuns) -> Sample {
    runs.observed(WindowTrace::mean)
}

fn timeouts(runs: &WindowRuns) -> Sample {
    runs.first_flow(|flow| flow.timeouts as f64)
}

fn recoveries(runs: &WindowRuns) -> Sample {
    runs.first_flow(|flow| flow.legs.iter().filter_map(|leg| leg.recoveries).sum::<u64>() as f64)
}

fn fig3(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut observed = Vec::new();
    for (scheme, leg, most) in COMPARED {
        let scenarios = lab.scenarios(&SCENARIO, &[SCHEMES[scheme]], &PERS, settings)?;
        let window = || WindowTrace { leg, packet: PACKET, most, samples: Vec::new() };
        observed.push(lab.observe(&scenarios, window)?);
    }
    let [split, snoop] = [&observed[0], &observed[1]];
    let mut figures = Vec::new();
    for (at, per) in PERS.into_iter().enumerate() {
        figures.push(Part::new(format!("per-{}", scientific(per)), plot(per, [&split[at], &snoop[at]])));
    }
    Ok(Output {
        claims: vec![
            larger_where_little_is_lost(split, snoop),
            smaller_where_much_is_lost(split, snoop),
            isolated(split, snoop),
            some_timeouts(snoop),
        ],
        tables: vec![Part::new("windows", table(&observed))],
        figures,
    })
}

fn table(observed: &[Vec<WindowRuns>]) -> Table {
    let columns = COMPARED.iter().flat_map(|(scheme, ..)| {
        let Scheme { name, key, .. } = SCHEMES[*scheme];
        [
            Column::new(format!("{name}: window, packets"), format!("{key}_window_packets")),
            Column::new(format!("{name}: fast recoveries"), format!("{key}_recoveries")),
            Column::new(format!("{name}: timeouts"), format!("{key}_timeouts")),
        ]
    });
    let mut table = Table::new(
        "The window of the sender towards the satellite, its mean over the transfer of 4 MB",
        [Column::new("PER", "per")].into_iter().chain(columns).collect(),
    );
    for (at, mut row) in by_per(&PERS, 4).enumerate() {
        for runs in observed.iter().map(|by_per| &by_per[at]) {
            let values = [mean_window(runs), recoveries(runs), timeouts(runs)];
            row.extend(values.map(|value| Cell::interval(Some(value), 1)));
        }
        table.push(row);
    }
    table
}

fn plot(per: f64, runs: [&WindowRuns; 2]) -> Plot {
    let plot = Plot::new(
        format!("The sender's window at PER {}, one run", scientific(per)),
        Axis::new("time", "s"),
        Axis::new("window", "packets"),
    );
    COMPARED
        .iter()
        .zip(runs)
        .fold(plot, |plot, ((scheme, ..), runs)| plot.with(runs.0[0].1.series(SCHEMES[*scheme].name)))
}

/// The window of split SACK's sender of that of Snoop's.
fn window_ratio(range: Range, split: &[WindowRuns], snoop: &[WindowRuns], at: usize) -> Test {
    range.of_ratio(&mean_window(&split[at]), &mean_window(&snoop[at])).at(at_per(PERS[at]))
}

fn larger_where_little_is_lost(split: &[WindowRuns], snoop: &[WindowRuns]) -> Claim {
    Claim::stated(
        "At a low packet error rate the gateway makes use of its larger window: twice that of Snoop's sender \
         or more",
        FIGURE_3,
    )
    .with(window_ratio(Range::at_least(2.0), split, snoop, 0))
}

fn smaller_where_much_is_lost(split: &[WindowRuns], snoop: &[WindowRuns]) -> Claim {
    Claim::stated("From PER 1e-2 on losses keep split SACK's window below that of Snoop's sender", FIGURE_3)
        .with_all([2, LAST].map(|at| window_ratio(Range::at_most(1.0), split, snoop, at)))
}

/// A tenth of the other's recoveries, as a difference, because there may be none. Where split SACK has less
/// than one itself, a tenth of one.
fn isolated(split: &[WindowRuns], snoop: &[WindowRuns]) -> Claim {
    let tests = PERS.iter().zip(snoop.iter().zip(split)).map(|(&per, (snoop, split))| {
        let (snoop, split) = (recoveries(snoop), recoveries(split));
        let allowed =
            if split.mean() < 1.0 { Sample::of(vec![1.0; split.values().len()]) } else { Some(split) };
        let above =
            allowed.and_then(|allowed| snoop.paired(&allowed, |snoop, allowed| snoop - 0.1 * allowed));
        Range::at_most(0.0).of_mean(&above.expect("numbers of recoveries are finite")).at(at_per(per))
    });
    Claim::stated(
        "Snoop keeps its sender from fast recovery: at most a tenth of split SACK's recoveries",
        FIGURE_3,
    )
    .shown_in("recoveries more than that", 1.0, 1)
    .with_all(tests)
}

/// At one rate is enough: at the highest.
fn some_timeouts(snoop: &[WindowRuns]) -> Claim {
    Claim::stated("At high packet error rates some timeouts of Snoop's sender cannot be avoided", FIGURE_3)
        .shown_in("timeouts", 1.0, 1)
        .with(Range::above(0.0).of_mean(&timeouts(&snoop[LAST])).at(at_per(PERS[LAST])))
        .noting(format!("{:.1} {}", timeouts(&snoop[2]).mean(), at_per(PERS[2])))
}
