//! Four ways to help TCP across a link that loses packets, in both worlds: splitting, which ends TCP's end-to-end promise,
//! and the ways of the literature that keep it.

pub(super) mod kernel;
pub(super) mod virtual_time;

use std::time::Duration;

use super::{Experiment, Findings};
use crate::figure::{Axis, BarChart, BarGroup};
use crate::results::{Part, Verdict};
use crate::statistics::Summary;
use crate::table::{Cell, Column, Table};

pub(super) const LOSSY_LINK: Experiment = Experiment {
    name: "lossy-link",
    title: "End to end, split, Snoop, and delayed duplicate ACKs over ARQ, on a GEO link that loses packets",
    source: "Snoop: Balakrishnan, Seshan, Amir, Katz, MobiCom 1995; delayed duplicate ACKs: Vaidya, Mehta, Perkins, Montenegro, Texas A&M University 1997; splitting: Caini, Firrincieli, Lacamera, IEEE AESM 22(8), 2007",
    seeds: 5,
    run: virtual_time::run,
    on_kernel: Some((3, kernel::run)),
};

pub(super) const SCENARIO: (&str, &str) =
    ("scenarios/lossy-link.toml", include_str!("../../../../../scenarios/lossy-link.toml"));
const PERS: [f64; 4] = [0.0, 0.001, 0.01, 0.05];
/// Index of 1%.
const ONE_PERCENT: usize = 2;
/// How long a download runs.
const TIME: Duration = Duration::from_secs(60);
pub(super) const RTT: Duration = Duration::from_millis(600);
/// The delay of duplicate ACKs in round trips of the link; `surrey-delay` shows why.
const DELAY_RTTS: f64 = 1.5;
/// Snoop's cache in bandwidth-delay products.
const CACHE_BDPS: f64 = 3.0;
/// Snoop's queue where nothing is said of it, in bandwidth-delay products.
const QUEUE_BDPS: f64 = 2.0;
const MBIT: f64 = 1e6;
const MB: f64 = 1e6;

/// A way across the link. In this experiment the server's congestion control is Reno's in all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    EndToEnd,
    Split,
    Snoop,
    DelayedDupAcks,
}

impl Way {
    const ALL: [Way; 4] = [Way::EndToEnd, Way::Split, Way::Snoop, Way::DelayedDupAcks];

    fn name(self) -> &'static str {
        match self {
            Way::EndToEnd => "end to end",
            Way::Split => "split (Hybla)",
            Way::Snoop => "Snoop",
            Way::DelayedDupAcks => "delayed dup-ACKs, ARQ",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Way::EndToEnd => "end_to_end",
            Way::Split => "split",
            Way::Snoop => "snoop",
            Way::DelayedDupAcks => "delayed",
        }
    }
}

/// What came of a way at a packet error rate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub goodput_bps: f64,
    /// The most that the gateway held of it at a time: in the proxy's buffers and sockets, or in its agents and its ARQ, what waits in
    /// Snoop's queue for its turn among it.
    pub held_bytes: f64,
    /// What the sender had to repair; `None` where its socket did not say so in time.
    pub sender: Option<SenderCounts>,
}

/// What a sender has done about losses, those that it suspected among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SenderCounts {
    /// Segments sent again.
    pub retransmissions: u64,
    /// Expiries of the retransmission timer (RFC 6298 §5).
    pub timeouts: u64,
}

/// The runs of each way at each packet error rate, over the seeds.
struct Comparison {
    /// By way, then by packet error rate.
    goodput: Vec<Vec<Summary>>,
    held: Vec<Vec<Summary>>,
}

impl Comparison {
    /// From the runs by way, packet error rate and seed.
    fn of(runs: &[Vec<Vec<Measured>>]) -> Self {
        let summaries = |merit: fn(&Measured) -> f64| {
            let summary = |seeds: &Vec<Measured>| {
                let values: Vec<f64> = seeds.iter().map(merit).collect();
                Summary::of(&values).expect("an experiment has a seed")
            };
            runs.iter().map(|way| way.iter().map(summary).collect()).collect()
        };
        Self { goodput: summaries(|run| run.goodput_bps), held: summaries(|run| run.held_bytes) }
    }

    fn findings(&self) -> Findings {
        Findings {
            verdicts: vec![
                self.no_harm(),
                self.delay_hides_congestion(),
                self.snoop_multiplies(),
                self.delayed_dup_acks_multiply(),
                self.snoop_is_bounded(),
            ],
            tables: vec![
                Part::new(
                    "goodput",
                    self.table("Goodput over a minute", "goodput_bps", &self.goodput, ("Mbit/s", MBIT)),
                ),
                Part::new(
                    "held",
                    self.table(
                        "The most that the gateway held, Snoop in its cache and its queue",
                        "held_bytes",
                        &self.held,
                        ("MB", MB),
                    ),
                ),
            ],
            figures: vec![Part::new("goodput", self.chart())],
        }
    }

    fn table(&self, title: &str, key: &str, values: &[Vec<Summary>], (unit, size): (&str, f64)) -> Table {
        let column = |way: Way| Column::new(way.name(), format!("{}_{key}", way.key())).shown_in(unit, size);
        let columns = [Column::new("PER", "per").shown_in("%", 0.01)].into_iter().chain(Way::ALL.map(column));
        let mut table = Table::new(title, columns.collect());
        for (at, per) in PERS.into_iter().enumerate() {
            let cells = values.iter().map(|way| Cell::interval(Some(way[at]), 2));
            table.push([Cell::Number(per, 1)].into_iter().chain(cells).collect());
        }
        table
    }

    fn chart(&self) -> BarChart {
        let percent = PERS.map(|per| format!("{} %", per * 100.0));
        let chart = BarChart::new(
            "A minute of a download, 10 Mbit/s, 600 ms",
            Axis::dimensionless("packet error rate"),
            Axis::new("goodput", "Mbit/s"),
            percent,
        );
        Way::ALL.into_iter().zip(&self.goodput).fold(chart, |chart, (way, values)| {
            chart.with(BarGroup::new(
                way.name(),
                values.iter().map(|value| Some(value.estimate().in_unit(MBIT))),
            ))
        })
    }

    fn of_way(&self, way: Way) -> &[Summary] {
        let place = Way::ALL.iter().position(|other| *other == way).expect("all ways are there");
        &self.goodput[place]
    }

    fn times_end_to_end(&self, way: Way, at: usize) -> f64 {
        self.of_way(way)[at].mean / self.of_way(Way::EndToEnd)[at].mean
    }

    fn no_harm(&self) -> Verdict {
        let ratio = self.times_end_to_end(Way::Snoop, 0);
        Verdict::new(
            "Without losses on the link Snoop does no harm: 95% or more of the goodput without it",
            ratio >= 0.95,
            format!("{ratio:.2} of it"),
        )
    }

    /// "the inefficiency reported in [8] with regard to the handling of congestion events", SURREY §3.2.
    fn delay_hides_congestion(&self) -> Verdict {
        let ratio = self.times_end_to_end(Way::DelayedDupAcks, 0);
        Verdict::new(
            "Where what is lost is lost in the queue, delaying duplicate ACKs costs something: less goodput than without",
            ratio < 1.0,
            format!("{ratio:.2} of it"),
        )
    }

    fn snoop_multiplies(&self) -> Verdict {
        let ratio = self.times_end_to_end(Way::Snoop, ONE_PERCENT);
        Verdict::new(
            "At PER 1% Snoop has 5 times the goodput of the same TCP without it, or more",
            ratio >= 5.0,
            format!("{ratio:.1} times"),
        )
    }

    fn delayed_dup_acks_multiply(&self) -> Verdict {
        let ratio = self.times_end_to_end(Way::DelayedDupAcks, ONE_PERCENT);
        Verdict::new(
            "At PER 1% delayed dup-ACKs over ARQ have 5 times the goodput of the same TCP without them, or more",
            ratio >= 5.0,
            format!("{ratio:.1} times"),
        )
    }

    fn snoop_is_bounded(&self) -> Verdict {
        let place = Way::ALL.iter().position(|way| *way == Way::Snoop).expect("all ways are there");
        let most = self.held[place].iter().map(|value| value.mean).fold(0.0, f64::max);
        let bound = (CACHE_BDPS + QUEUE_BDPS) * 10e6 / 8.0 * RTT.as_secs_f64();
        Verdict::new(
            "Snoop holds no more than its cache of three bandwidth-delay products and its queue of two",
            most > 0.0 && most <= bound,
            format!("{:.2} of {:.2} MB", most / MB, bound / MB),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Progress;
    use crate::results::{Seeds, World};

    #[test]
    fn help_helps_where_it_is_needed_and_does_no_harm_elsewhere() {
        let seeds = Seeds { first: 1, count: 2 };
        let results = LOSSY_LINK.run(World::Sim, seeds, &Progress::default()).unwrap();
        for verdict in results.verdicts {
            assert!(verdict.agrees, "{verdict:?}");
        }
    }
}
