//! Explicit rates: how flows share a link, and the queue of a link that is slower than configured.

use super::observers::SteadyState;
use super::{Experiment, Lab, Output, Runs, over_seeds};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, Plot};
use crate::results::{Part, Plan};
use crate::statistics::{Sample, jain_index};
use crate::table::{Cell, Column, Table};
use crate::topology::PAYLOAD_SHARE;

const SCENARIO: (&str, &str) =
    ("scenarios/explicit.toml", include_str!("../../../../scenarios/explicit.toml"));
/// The satellite among the scenario's links.
const SATELLITE: usize = 2;
/// The payload share of the link's rate that arrives: one packet in a hundred is lost.
const PAYLOAD: f64 = PAYLOAD_SHARE * 0.99;

pub(super) const SHARES: Experiment = Experiment {
    name: "explicit-shares",
    title: "Explicit rates: four flows, new flows, a flow limited elsewhere, a link slower than configured",
    source: "ours",
    plan: Plan::doubling(10),
    run: Some(shares),
    on_kernel: Some((1, super::explicit_kernel::shares)),
};

struct Case {
    name: &'static str,
    key: &'static str,
    settings: &'static [&'static str],
    /// The end of the start-up phase, which is not compared, seconds.
    starts_until: u64,
    /// The link's rate, bits per second.
    rate: f64,
}

const FOUR: usize = 0;
const LATE: usize = 1;
const LIMITED: usize = 2;
const SLOWER: usize = 3;
const CASES: [Case; 4] = [
    Case {
        name: "four flows",
        key: "four",
        settings: &["duration=90s", "flow.download.count=4"],
        starts_until: 30,
        rate: 10e6,
    },
    Case {
        name: "two flows, and two more after 30 s",
        key: "late",
        settings: &["duration=90s", "flow.download.count=2", "flow.late.count=2"],
        starts_until: 40,
        rate: 10e6,
    },
    Case {
        name: "two flows, one of them limited to 0.5 Mbit/s elsewhere",
        key: "limited",
        settings: &["duration=90s", "flow.download.count=1", "flow.limited.count=1"],
        starts_until: 30,
        rate: 10e6,
    },
    Case {
        name: "one flow, and half the link's rate",
        key: "slower",
        settings: &[
            "duration=90s",
            "flow.download.count=1",
            "link.satellite.rate=5Mbit/s",
            "link.satellite.explicit.capacity=10Mbit/s",
        ],
        starts_until: 30,
        rate: 5e6,
    },
];

/// A case with all its runs.
struct Observed<'a> {
    case: &'a Case,
    runs: Runs<SteadyState>,
}

impl Observed<'_> {
    /// The goodput of all flows together, as a share of the payload that the link can carry.
    fn used(&self) -> Sample {
        let capacity = self.case.rate * PAYLOAD;
        self.runs.observed(|steady| steady.goodputs_bps().iter().sum::<f64>() / capacity)
    }

    fn fairness(&self) -> Sample {
        self.runs.observed(|steady| jain_index(&steady.goodputs_bps()).unwrap_or(0.0))
    }

    fn queue_s(&self) -> Sample {
        self.runs.observed(|steady| steady.median_queue_s(self.case.rate))
    }

    fn dropped(&self) -> Sample {
        over_seeds(self.runs.0.iter().map(|run| run.1.dropped(&run.0)))
    }
}

fn shares(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut observed = Vec::new();
    for case in &CASES {
        let mut settings: Vec<String> = case.settings.iter().map(|&setting| setting.to_owned()).collect();
        settings.push("tcp.satellite.lost_retransmissions=true".to_owned());
        let scenario = lab.scenario(&SCENARIO, &settings)?;
        let runs = lab.observe(&[scenario], || SteadyState::since(case.starts_until, SATELLITE))?;
        observed.extend(runs.into_iter().map(|runs| Observed { case, runs }));
    }
    Ok(Output {
        claims: vec![
            fair(&observed),
            leaves(&observed[LIMITED]),
            obeys(&observed[SLOWER]),
            short_queue(&observed),
        ],
        tables: vec![Part::new("shares", table(&observed))],
        figures: vec![Part::new("course", plot(&observed))],
    })
}

fn fair(observed: &[Observed<'_>]) -> Claim {
    let places = [(FOUR, "of four flows"), (LATE, "from 10 s after the new flows")];
    Claim::ours(
        "Four flows share alike, also when two of them have run for 30 s: Jain's index is at least 0.98",
    )
    .shown_in("", 1.0, 4)
    .with_all(places.map(|(case, place)| Range::at_least(0.98).of_mean(&observed[case].fairness()).at(place)))
}

fn leaves(limited: &Observed<'_>) -> Claim {
    let available = |rest: f64| limited.case.rate * PAYLOAD - rest;
    let share = limited.runs.observed(|steady| {
        let goodputs = steady.goodputs_bps();
        goodputs[0] / available(goodputs[1])
    });
    Claim::ours(
        "A flow that is limited to 0.5 Mbit/s elsewhere leaves its share: the other one has at least 95% of \
         the rest",
    )
    .shown_in("%", 1e-2, 1)
    .with(Range::at_least(0.95).of_mean(&share))
}

fn obeys(slower: &Observed<'_>) -> Claim {
    Claim::ours("A link of half the configured rate is used to at least 90%, and its queue drops at most 1%")
        .shown_in("%", 1e-2, 2)
        .with(Range::at_least(0.9).of_mean(&slower.used()).at("used"))
        .with(Range::at_most(0.01).of_mean(&slower.dropped()).at("dropped after 30 s"))
}

fn short_queue(observed: &[Observed<'_>]) -> Claim {
    let tests = observed.iter().map(|case| Range::below(0.05).of_mean(&case.queue_s()).at(case.case.key));
    Claim::ours("The queue in front of the link is below 50 ms at the median, in all of them")
        .shown_in("ms", 1e-3, 1)
        .with_all(tests)
}

fn table(observed: &[Observed<'_>]) -> Table {
    let mut table = Table::new(
        "From 30 s on, or from 10 s after the new flows",
        vec![
            Column::new("", "case"),
            Column::new("of what the link can carry", "used").shown_in("%", 1e-2),
            Column::new("Jain's index", "jain_index"),
            Column::new("median queue", "median_queue_s").shown_in("ms", 1e-3),
            Column::new("dropped by the queue", "dropped").shown_in("%", 1e-2),
        ],
    );
    for runs in observed {
        table.push(vec![
            Cell::text(runs.case.name),
            Cell::interval(Some(runs.used()), 1),
            Cell::interval(Some(runs.fairness()), 4),
            Cell::interval(Some(runs.queue_s()), 1),
            Cell::interval(Some(runs.dropped()), 2),
        ]);
    }
    table
}

/// The first flow over time, in one run of each case.
fn plot(observed: &[Observed<'_>]) -> Plot {
    let plot = Plot::new("The first flow, one run", Axis::new("time", "s"), Axis::new("goodput", "Mbit/s"));
    let curves = observed.iter().map(|runs| runs.runs.0[0].1.first_flow(runs.case.key));
    curves.fold(plot, Plot::with)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn links_are_shared_out_and_not_overfilled() {
        let results = in_virtual_time(&SHARES, 3);
        assert_eq!(results.contradicted().count(), 0, "{:#?}", results.verdicts);
        assert!(results.verdicts[3].agrees(), "{:#?}", results.verdicts);
    }
}
