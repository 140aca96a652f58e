//! TCP across a link that loses packets, in both worlds: end to end, with splitting, which gives up TCP's
//! end-to-end semantics, and with three mitigations that keep them, two of the literature and protected legs.

pub(super) mod kernel;

use std::time::Duration;

use bentpipe_sim::RunResult;

use super::{Curves, Experiment, Lab, Measure, Output, Runs, over_seeds};
use crate::Error;
use crate::claim::{Claim, Range, Test};
use crate::figure::{Axis, BarChart};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column};

pub(super) const LOSSY_LINK: Experiment = Experiment {
    name: "lossy-link",
    title: "End to end, split, Snoop, delayed duplicate ACKs over ARQ, and protected legs, on a GEO link that loses packets",
    source: "Snoop: Balakrishnan, Seshan, Amir, Katz, MobiCom 1995; delayed duplicate ACKs: Vaidya, Mehta, \
        Perkins, Montenegro, Texas A&M University 1997; splitting: Caini, Firrincieli, Lacamera, IEEE AESM \
        22(8), 2007",
    plan: Plan::fixed(8),
    run: Some(in_virtual_time),
    on_kernel: Some((3, kernel::run)),
};

pub(super) const SCENARIO: (&str, &str) =
    ("scenarios/lossy-link.toml", include_str!("../../../../../scenarios/lossy-link.toml"));
const PERS: [f64; 4] = [0.0, 0.001, 0.01, 0.05];
/// The index of 1%.
const ONE_PERCENT: usize = 2;
/// The length of a download.
pub(super) const TIME: Duration = Duration::from_secs(60);
pub(super) const RTT: Duration = Duration::from_millis(600);
/// The delay of duplicate ACKs in round trips of the link. The experiment `surrey-delay` shows why.
const DELAY_RTTS: f64 = 1.5;
/// The size of Snoop's cache in bandwidth-delay products.
const CACHE_BDPS: f64 = 3.0;
/// The default size of Snoop's queue in bandwidth-delay products.
const QUEUE_BDPS: f64 = 2.0;
const MB: f64 = 1e6;
/// The satellite among the scenario's links, and the node whose memory is compared.
const SATELLITE: usize = 1;
const GATEWAY: &str = "gateway";

/// A mitigation of the link's losses. In this experiment the server's congestion control is Reno's with all
/// of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mitigation {
    EndToEnd,
    Split,
    Snoop,
    DelayedDupAcks,
    Protected,
}

impl Mitigation {
    const ALL: [Self; 5] = [Self::EndToEnd, Self::Split, Self::Snoop, Self::DelayedDupAcks, Self::Protected];

    fn label(self) -> (&'static str, &'static str) {
        match self {
            Self::EndToEnd => ("end to end", "end_to_end"),
            Self::Split => ("split (Hybla)", "split"),
            Self::Snoop => ("Snoop", "snoop"),
            Self::DelayedDupAcks => ("delayed dup-ACKs, ARQ", "delayed"),
            Self::Protected => ("protected", "protected"),
        }
    }
}

/// The measures of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub goodput_bps: f64,
    /// The most bytes that the gateway held at a time: in the proxy's buffers and sockets, or in its agents
    /// (Snoop's queue included) and its ARQ, or in its end of the protected leg and the queue in front of it.
    pub held_bytes: f64,
    /// The sender's counters; `None` if its socket did not report them in time.
    pub sender: Option<SenderCounts>,
}

/// A sender's reactions to losses, spurious ones included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SenderCounts {
    /// Segments retransmitted.
    pub retransmissions: u64,
    /// Expiries of the retransmission timer (RFC 6298 §5).
    pub timeouts: u64,
}

fn in_virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, &Mitigation::ALL, &PERS, settings)?;
    let measured = |runs: &Runs| runs.results().map(measured).collect();
    let measured: Vec<Vec<Vec<Measured>>> =
        runs.iter().map(|pers| pers.iter().map(measured).collect()).collect();
    Ok(Comparison::of(&measured).output())
}

pub(super) fn settings(mitigation: Mitigation, per: f64) -> Vec<String> {
    let delay_ms = DELAY_RTTS * RTT.as_secs_f64() * 1e3;
    let mut settings = vec![format!("link.satellite.per={per}")];
    match mitigation {
        Mitigation::EndToEnd => {}
        Mitigation::Split => settings.push(
            "flow.download.split=[{ at = \"gateway\", buffer = \"2.25MB\", tcp = \"satellite\" }]".into(),
        ),
        Mitigation::Snoop => {
            settings.push(format!("link.satellite.snoop={{ at = \"gateway\", cache_bdps = {CACHE_BDPS:?} }}"))
        }
        Mitigation::DelayedDupAcks => settings.extend([
            format!("link.satellite.delayed_dup_acks={{ at = \"client\", delay = \"{delay_ms}ms\" }}"),
            "link.satellite.arq={ delivery = \"immediate\" }".into(),
        ]),
        Mitigation::Protected => settings.push("link.satellite.protect={ class = \"auto\" }".into()),
    }
    settings
}

pub(super) fn measured(run: &RunResult) -> Measured {
    let flow = &run.flows[0];
    let ends = run.links[SATELLITE].ends.iter().filter(|end| end.node == GATEWAY);
    let split = flow.splitters.iter().map(|splitter| splitter.most_bytes);
    let held: u64 = ends.map(|end| end.most_held_bytes).chain(split).sum();
    let sender = SenderCounts { retransmissions: flow.retransmissions, timeouts: flow.timeouts };
    Measured { goodput_bps: flow.goodput_bps, held_bytes: held as f64, sender: Some(sender) }
}

/// The measures of each mitigation at each packet error rate, over the seeds.
struct Comparison {
    goodput: Curves,
    held: Curves,
}

impl Comparison {
    /// From the runs by mitigation, packet error rate and seed.
    fn of(runs: &[Vec<Vec<Measured>>]) -> Self {
        let curves = |measure, merit: fn(&Measured) -> f64| {
            let curve = |pers: &Vec<Vec<Measured>>| {
                pers.iter().map(|seeds| over_seeds(seeds.iter().map(merit))).collect()
            };
            Curves::new(Mitigation::ALL.map(Mitigation::label), measure, runs.iter().map(curve).collect())
        };
        let held = Measure { key: "held_bytes", unit: ("MB", MB), decimals: 2 };
        Self {
            goodput: curves(Measure::mbps("goodput_bps"), |run| run.goodput_bps),
            held: curves(held, |run| run.held_bytes),
        }
    }

    fn output(&self) -> Output {
        let table = |curves: &Curves, title| {
            let per = Column::new("PER", "per").shown_in("%", 0.01);
            curves.table(title, [per], PERS.map(|per| vec![Cell::Number(per, 1)]))
        };
        let goodput = table(&self.goodput, "Goodput over a minute");
        let held = table(&self.held, "The most that the gateway held, Snoop in its cache and its queue");
        let chart = self.goodput.chart(BarChart::new(
            "A minute of a download, 10 Mbit/s, 600 ms",
            Axis::dimensionless("packet error rate"),
            Axis::new("goodput", "Mbit/s"),
            PERS.map(|per| format!("{} %", per * 100.0)),
        ));
        Output {
            claims: vec![
                self.no_harm(),
                self.delay_hides_congestion(),
                self.snoop_multiplies(),
                self.delayed_dup_acks_multiply(),
                self.protected_legs_multiply(),
                self.snoop_is_bounded(),
            ],
            tables: vec![Part::new("goodput", goodput), Part::new("held", held)],
            figures: vec![Part::new("goodput", chart)],
        }
    }

    fn times_end_to_end(&self, range: Range, mitigation: Mitigation, at: usize) -> Test {
        let goodput = |mitigation: Mitigation| &self.goodput.curve(mitigation as usize)[at];
        range.of_ratio(goodput(mitigation), goodput(Mitigation::EndToEnd))
    }

    fn no_harm(&self) -> Claim {
        Claim::ours("Without losses on the link Snoop does no harm: 95% or more of the goodput without it")
            .with(self.times_end_to_end(Range::at_least(0.95), Mitigation::Snoop, 0))
    }

    /// "the inefficiency reported in [8] with regard to the handling of congestion events", SURREY §3.2.
    fn delay_hides_congestion(&self) -> Claim {
        Claim::expected(
            "Where what is lost is lost in the queue, delaying duplicate ACKs costs something: less goodput \
             than without",
            "Karaliopoulos, Tafazolli, Evans, section 3.2",
        )
        .with(self.times_end_to_end(Range::below(1.0), Mitigation::DelayedDupAcks, 0))
    }

    fn snoop_multiplies(&self) -> Claim {
        Claim::ours("At PER 1% Snoop has 5 times the goodput of the same TCP without it, or more")
            .shown_in("times", 1.0, 1)
            .with(self.times_end_to_end(Range::at_least(5.0), Mitigation::Snoop, ONE_PERCENT))
    }

    fn delayed_dup_acks_multiply(&self) -> Claim {
        Claim::ours(
            "At PER 1% delayed dup-ACKs over ARQ have 5 times the goodput of the same TCP without them, or \
             more",
        )
        .shown_in("times", 1.0, 1)
        .with(self.times_end_to_end(Range::at_least(5.0), Mitigation::DelayedDupAcks, ONE_PERCENT))
    }

    fn protected_legs_multiply(&self) -> Claim {
        Claim::ours(
            "At PER 1% protected legs have 10 times the goodput of the same TCP without them, or more",
        )
        .shown_in("times", 1.0, 1)
        .with(self.times_end_to_end(Range::at_least(10.0), Mitigation::Protected, ONE_PERCENT))
    }

    fn snoop_is_bounded(&self) -> Claim {
        let held = self.held.curve(Mitigation::Snoop as usize).iter().flat_map(Sample::values);
        let bound = (CACHE_BDPS + QUEUE_BDPS) * 10e6 / 8.0 * RTT.as_secs_f64();
        Claim::ours(
            "Snoop holds no more than its cache of three bandwidth-delay products and its queue of two, in \
             every run",
        )
        .shown_in("MB", MB, 2)
        .with(Range::between(1.0, bound).of_each(held.copied().collect()))
        .noting(format!("the bound is {:.2} MB", bound / MB))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn help_helps_where_it_is_needed_and_does_no_harm_elsewhere() {
        let results = in_virtual_time(&LOSSY_LINK, 3);
        assert_eq!(results.contradicted().count(), 0, "{:#?}", results.verdicts);
        let multiply = results.verdicts.iter().filter(|verdict| verdict.claim.contains(" times the goodput"));
        assert!(multiply.clone().count() == 3 && multiply.clone().all(|verdict| verdict.agrees()));
    }
}
