//! SURREY: Karaliopoulos, Tafazolli, Evans, "Enhancing TCP's performance over GEO satellite links with
//! split-connections and link level retransmissions".

mod buffers;
mod delay;
mod goodput;
mod windows;

pub(super) use buffers::FIG4;
pub(super) use delay::DELAY;
pub(super) use goodput::FIG2;
pub(super) use windows::FIG3;

use super::Scheme;
use crate::table::Cell;

const SOURCE: &str = "Karaliopoulos, Tafazolli, Evans: Enhancing TCP's performance over GEO satellite links \
    with split-connections and link level retransmissions";
const SCENARIO: (&str, &str) =
    ("scenarios/surrey.toml", include_str!("../../../../../scenarios/surrey.toml"));

/// Payload of a packet, bytes.
const PACKET: f64 = 1000.0;
/// The windows of the terrestrial sender and of the gateway, packets.
const WINDOW: f64 = 32.0;
const GATEWAY_WINDOW: f64 = 100.0;
/// The length of the file, bytes.
const FILE: f64 = 4e6;
const KBIT: f64 = 1e3;

const RENO: usize = 0;
const SACK: usize = 1;
const SPLIT_SACK: usize = 2;
const SPLIT_DELAYED: usize = 3;
const SNOOP: usize = 4;
/// The scenario is Reno's.
const SCHEMES: [Scheme; 6] = [
    Scheme { name: "Reno, end to end", key: "reno", settings: &[] },
    Scheme { name: "SACK, end to end", key: "sack", settings: &["flow.file.tcp=sack"] },
    Scheme {
        name: "split, SACK",
        key: "split_sack",
        settings: &["flow.file.split=[{ at = \"gateway\", buffer = \"100MB\", tcp = \"gateway-sack\" }]"],
    },
    Scheme {
        name: "split, delayed dup-ACKs",
        key: "split_delayed",
        settings: &[
            "flow.file.split=[{ at = \"gateway\", buffer = \"100MB\", tcp = \"gateway-reno\" }]",
            "link.satellite.delayed_dup_acks={ at = \"terminal\", delay = \"700ms\" }",
            "link.satellite.arq={ delivery = \"immediate\", retransmissions = 1 }",
        ],
    },
    // The paper's Snoop retransmits once, without pacing, whatever the cause of the loss.
    Scheme {
        name: "Snoop",
        key: "snoop",
        settings: &[
            "link.satellite.snoop={ at = \"gateway\", copies = 1, pace = \"off\", hide_congestion = true }",
        ],
    },
    // Delayed duplicate ACKs with bentpipe's own choice where the paper leaves one.
    Scheme {
        name: "split, delayed longer",
        key: "split_delayed_longer",
        settings: &[
            "flow.file.split=[{ at = \"gateway\", buffer = \"100MB\", tcp = \"gateway-reno\" }]",
            "link.satellite.delayed_dup_acks={ at = \"terminal\", delay = \"1200ms\" }",
            "link.satellite.arq={ delivery = \"immediate\", retransmissions = 3 }",
        ],
    },
];

/// A scheme at a packet error rate of the satellite.
fn settings(scheme: Scheme, per: f64) -> Vec<String> {
    scheme.with([format!("link.satellite.per={per}")])
}

/// The leading cells of a table with a row for each packet error rate.
fn by_per(pers: &[f64], decimals: usize) -> impl Iterator<Item = Vec<Cell>> {
    pers.iter().map(move |&per| vec![Cell::Number(per, decimals)])
}

/// `1e-5, 1e-4`.
fn scientific_list(pers: &[f64]) -> String {
    pers.iter().map(|&per| scientific(per)).collect::<Vec<_>>().join(", ")
}

/// A probability in scientific notation: 0.00001 is `1e-5`.
fn scientific(per: f64) -> String {
    format!("{per:e}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Experiment, Progress};
    use crate::results::{Seeds, World};

    /// The claims that do not agree, with few seeds. A hundred seeds would also refute the last one of figure
    /// 2.
    fn disagreements(experiment: &Experiment, count: u64) -> Vec<String> {
        let seeds = Seeds { first: 1, count };
        let results = experiment.run(World::Sim, seeds, &Progress::default()).unwrap();
        let against = results.verdicts.into_iter().filter(|verdict| !verdict.agrees);
        against.map(|verdict| format!("{}: {}", verdict.claim, verdict.observed)).collect()
    }

    #[test]
    fn the_papers_claims_about_its_figures_hold() {
        for experiment in [FIG2, FIG3, FIG4] {
            assert_eq!(disagreements(&experiment, 4), [""; 0], "{}", experiment.name);
        }
    }
}
