//! Figure 3: the sender's window over time.

use super::super::observers::WindowTrace;
use super::super::{Experiment, Lab, Output, Runs, Scheme, listed};
use super::{GATEWAY_WINDOW, PACKET, SCENARIO, SCHEMES, SNOOP, SOURCE, SPLIT_SACK, WINDOW};
use super::{by_per, scientific, scientific_list, settings};
use crate::Error;
use crate::figure::{Axis, Plot};
use crate::results::{Part, Verdict};
use crate::statistics::Summary;
use crate::table::{Cell, Column, Table};

pub(in super::super) const FIG3: Experiment = Experiment {
    name: "surrey-fig3",
    title: "The sender's window with split SACK and with Snoop",
    source: SOURCE,
    seeds: 100,
    run: fig3,
    on_kernel: None,
};

const PERS: [f64; 4] = [1e-4, 1e-3, 1e-2, 5e-2];
const LAST: usize = PERS.len() - 1;
/// The schemes, each with its leg over the satellite and the most packets that the sender may have in flight
/// there.
const COMPARED: [(usize, usize, f64); 2] = [(SPLIT_SACK, 1, GATEWAY_WINDOW), (SNOOP, 0, WINDOW)];

/// The runs of a scheme at a packet error rate.
type WindowRuns = Runs<WindowTrace>;

fn mean_window(runs: &WindowRuns) -> Summary {
    runs.observed(WindowTrace::mean)
}

fn timeouts(runs: &WindowRuns) -> Summary {
    runs.first_flow(|flow| flow.timeouts as f64)
}

fn recoveries(runs: &WindowRuns) -> Summary {
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
        verdicts: vec![
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

fn both_windows(split: &[WindowRuns], snoop: &[WindowRuns], at: usize) -> String {
    let (split, snoop) = (mean_window(&split[at]).mean, mean_window(&snoop[at]).mean);
    format!("{split:.1} and {snoop:.1} packets at PER {}", scientific(PERS[at]))
}

fn larger_where_little_is_lost(split: &[WindowRuns], snoop: &[WindowRuns]) -> Verdict {
    let ratio = mean_window(&split[0]).ratio_to(&mean_window(&snoop[0]));
    Verdict::new(
        "At a low packet error rate the gateway makes use of its larger window: twice that of Snoop's sender \
         or more",
        ratio.may_be_at_least(2.0),
        both_windows(split, snoop, 0),
    )
}

fn smaller_where_much_is_lost(split: &[WindowRuns], snoop: &[WindowRuns]) -> Verdict {
    let ratios = [2, LAST].map(|at| mean_window(&split[at]).ratio_to(&mean_window(&snoop[at])));
    Verdict::new(
        "From PER 1e-2 on losses keep split SACK's window below that of Snoop's sender",
        ratios.iter().all(|ratio| ratio.may_be_at_most(1.0)),
        format!("{}; {}", both_windows(split, snoop, 2), both_windows(split, snoop, LAST)),
    )
}

fn isolated(split: &[WindowRuns], snoop: &[WindowRuns]) -> Verdict {
    let counts = |runs: &[WindowRuns]| listed(runs.iter().map(|runs| recoveries(runs).mean), 1, ", ");
    let fewer = snoop
        .iter()
        .zip(split)
        .all(|(snoop, split)| recoveries(snoop).mean <= 0.1 * recoveries(split).mean.max(1.0));
    Verdict::new(
        "Snoop keeps its sender from fast recovery: at most a tenth of split SACK's recoveries",
        fewer,
        format!("{} and {} at PER {}", counts(snoop), counts(split), scientific_list(&PERS)),
    )
}

fn some_timeouts(snoop: &[WindowRuns]) -> Verdict {
    let counts: Vec<f64> = snoop.iter().map(|runs| timeouts(runs).mean).collect();
    Verdict::new(
        "At high packet error rates some timeouts of Snoop's sender cannot be avoided",
        counts[2] > 0.0 || counts[LAST] > 0.0,
        format!("{} at PER {}", listed(&counts, 1, ", "), scientific_list(&PERS)),
    )
}
