//! XCP and P-XCP between two boxes, one at each side of the satellite, in both worlds: what of the link they fill, counted from
//! the first SYN.

mod kernel;
mod virtual_time;

use std::time::Duration;

use bentpipe_units::Rate;

use super::{Experiment, Findings};
use crate::figure::{Axis, BarChart, BarGroup};
use crate::results::{Part, Verdict};
use crate::statistics::Summary;
use crate::table::{Cell, Column, Table};

pub(super) const XCP_BOXES: Experiment = Experiment {
    name: "p-xcp-boxes",
    title: "XCP and P-XCP between two boxes, on a GEO link that loses packets",
    source: "Lopez Pacheco and Lochin, IWSSC 2009; Katabi, Handley and Rohrs, SIGCOMM 2002; Zhou, Yeung and Li, GLOBECOM 2004",
    seeds: 5,
    run: virtual_time::run,
    on_kernel: Some((1, kernel::run)),
};

const RATE: Rate = Rate::mbps(10);
/// The congestion control of both boxes towards the satellite.
const WAYS: [&str; 3] = ["p-xcp", "xcp", "hybla"];
const NAMES: [&str; 3] = ["P-XCP", "XCP", "Hybla"];
const P_XCP: usize = 0;
const XCP: usize = 1;
/// Packet error rates, and round-trip times of the empty link in milliseconds.
const LINKS: [(f64, u64); 6] =
    [(0.001, 500), (0.001, 600), (0.001, 1000), (0.01, 500), (0.01, 600), (0.01, 1000)];
/// Payload of a full-size packet: 1500 bytes less the headers of IPv4 and TCP and the timestamps option. The congestion header
/// takes 16 bytes of it, which count as lost here.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// How long a download runs, from its first SYN.
const TIME: Duration = Duration::from_secs(60);

/// What there is to be had at a packet error rate, bits per second.
fn limit_bps(per: f64) -> f64 {
    RATE.bps() as f64 * PAYLOAD_SHARE * (1.0 - per)
}

fn rtt(link: usize) -> Duration {
    Duration::from_millis(LINKS[link].1)
}

/// Goodputs as parts of the limit, over the seeds: by way, then by link.
struct Comparison {
    of_limit: Vec<Vec<Summary>>,
}

impl Comparison {
    /// Of the goodputs of each way, link and seed, bits per second.
    fn of(goodputs_bps: &[Vec<Vec<f64>>]) -> Self {
        let summary = |link: usize, seeds: &Vec<f64>| {
            let shares: Vec<f64> = seeds.iter().map(|goodput| goodput / limit_bps(LINKS[link].0)).collect();
            Summary::of(&shares).expect("an experiment has a seed")
        };
        let of_way =
            |way: &Vec<Vec<f64>>| way.iter().enumerate().map(|(at, seeds)| summary(at, seeds)).collect();
        Self { of_limit: goodputs_bps.iter().map(of_way).collect() }
    }

    fn findings(&self) -> Findings {
        Findings {
            verdicts: vec![self.p_xcp_fills_the_link(), self.losses_cost_xcp_more()],
            tables: vec![Part::new("goodput", self.table())],
            figures: vec![Part::new("goodput", self.chart())],
        }
    }

    fn p_xcp_fills_the_link(&self) -> Verdict {
        let shares = self.of_limit[P_XCP].iter().map(|share| 100.0 * share.mean);
        let least = shares.clone().fold(f64::INFINITY, f64::min);
        let observed: Vec<String> = shares.map(|share| format!("{share:.1}")).collect();
        Verdict::new(
            "P-XCP: a minute from the first SYN has 90% of the limit or more, at PER 0.1% and 1%, RTT 500, 600 and 1000 ms",
            least >= 90.0,
            format!("{} %", observed.join(", ")),
        )
    }

    fn losses_cost_xcp_more(&self) -> Verdict {
        let ratio = |link: usize| self.of_limit[XCP][link].mean / self.of_limit[P_XCP][link].mean;
        let lossy = (0..LINKS.len()).filter(|link| LINKS[*link].0 == 0.01);
        let most = lossy.map(ratio).fold(0.0, f64::max);
        Verdict::new(
            "At PER 1% XCP, which halves its window at each loss, has at most three quarters of what P-XCP has",
            most <= 0.75,
            format!("{:.0} % of it at the most", 100.0 * most),
        )
    }

    fn table(&self) -> Table {
        let column = |name: &str, way: &str| {
            Column::new(name, format!("{}_of_limit", way.replace('-', "_"))).shown_in("% of the limit", 0.01)
        };
        let fixed = [
            Column::new("PER", "per").shown_in("%", 0.01),
            Column::new("RTT", "rtt_s").shown_in("ms", 0.001),
        ];
        let ways = NAMES.iter().zip(WAYS).map(|(name, way)| column(name, way));
        let mut table =
            Table::new("A minute from the first SYN, 10 Mbit/s", fixed.into_iter().chain(ways).collect());
        for (at, (per, _)) in LINKS.into_iter().enumerate() {
            let cells = self.of_limit.iter().map(|way| Cell::interval(Some(way[at]), 1));
            let link = [Cell::Number(per, 1), Cell::Number(rtt(at).as_secs_f64(), 0)];
            table.push(link.into_iter().chain(cells).collect());
        }
        table
    }

    fn chart(&self) -> BarChart {
        let chart = BarChart::new(
            "A minute of a download through two boxes, 10 Mbit/s",
            Axis::dimensionless("packet error rate, round-trip time"),
            Axis::new("goodput, of the limit", "%"),
            LINKS.map(|(per, rtt_ms)| format!("{} %, {rtt_ms} ms", per * 100.0)),
        );
        NAMES.iter().zip(&self.of_limit).fold(chart, |chart, (name, shares)| {
            let bars = shares.iter().map(|share| Some(share.estimate().in_unit(0.01)));
            chart.with(BarGroup::new(*name, bars))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_case_below_nine_tenths_is_enough_to_disagree() {
        let goodputs = |least: f64| {
            let mut links: Vec<Vec<f64>> =
                LINKS.iter().map(|(per, _)| vec![0.95 * limit_bps(*per)]).collect();
            links[5] = vec![least * limit_bps(0.01)];
            vec![links; WAYS.len()]
        };
        assert!(Comparison::of(&goodputs(0.91)).p_xcp_fills_the_link().agrees);
        assert!(!Comparison::of(&goodputs(0.89)).p_xcp_fills_the_link().agrees);
    }
}
