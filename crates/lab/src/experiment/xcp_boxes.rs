//! XCP and P-XCP between two proxies, one at each side of the satellite, in both worlds: the share of the
//! link that they use, from the first SYN on.

use std::time::Duration;

use bentpipe_units::Rate;

use super::{Curves, Experiment, Lab, Load, Measure, Output, Runs, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart};
use crate::results::{Part, Plan};
use crate::table::{Cell, Column};
use crate::topology::PAYLOAD_SHARE;
use crate::trial::Trial;

pub(super) const XCP_BOXES: Experiment = Experiment {
    name: "p-xcp-boxes",
    title: "XCP and P-XCP between two boxes, on a GEO link that loses packets",
    source: "Lopez Pacheco and Lochin, IWSSC 2009; Katabi, Handley and Rohrs, SIGCOMM 2002; Zhou, Yeung and \
        Li, GLOBECOM 2004",
    plan: Plan::fixed(5),
    run: Some(in_virtual_time),
    on_kernel: Some((1, on_the_kernel)),
};

const SCENARIO: (&str, &str) =
    ("scenarios/xcp-boxes.toml", include_str!("../../../../scenarios/xcp-boxes.toml"));
const RATE: Rate = Rate::mbps(10);
/// The congestion control of both proxies towards the satellite.
const CONTROLS: [&str; 3] = ["p-xcp", "xcp", "hybla"];
const NAMES: [&str; 3] = ["P-XCP", "XCP", "Hybla"];
const P_XCP: usize = 0;
const XCP: usize = 1;
/// Packet error rates, and round-trip times of the empty link in milliseconds.
const LINKS: [(f64, u64); 6] =
    [(0.001, 500), (0.001, 600), (0.001, 1000), (0.01, 500), (0.01, 600), (0.01, 1000)];
/// The length of a download, from its first SYN.
const TIME: Duration = Duration::from_secs(60);

/// Trials on the kernel that run at the same time; each takes a tenth of a CPU.
const AT_ONCE: usize = 3;

fn in_virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, &CONTROLS, &LINKS, settings)?;
    let goodputs = |runs: &Runs| runs.results().map(|run| run.flows[0].goodput_bps).collect();
    let goodputs: Vec<Vec<Vec<f64>>> =
        runs.iter().map(|links| links.iter().map(goodputs).collect()).collect();
    Ok(Shares::of(&goodputs).output())
}

fn settings(control: &str, (per, rtt_ms): (f64, u64)) -> Vec<String> {
    let router = match control {
        "hybla" => "link.satellite.xcp=off".to_owned(),
        variant => format!("link.satellite.xcp.variant={variant}"),
    };
    vec![
        format!("link.satellite.per={per}"),
        format!("link.satellite.delay={}ms", rtt_ms / 2),
        format!("tcp.satellite.congestion={control}"),
        router,
    ]
}

fn on_the_kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut jobs = Vec::new();
    for control in CONTROLS {
        for (link, (per, _)) in LINKS.into_iter().enumerate() {
            for seed in lab.seeds() {
                let trial = Trial {
                    terminal: Some(control.to_owned()),
                    lasts: if lab.quick { TIME / 2 } else { TIME },
                    ..Trial::of_a_minute(RATE, rtt(link), per, control, seed)
                };
                jobs.push(move || Ok(trial.run()?.goodputs_bps[0]));
            }
        }
    }
    let goodputs =
        rows(rows(lab.side_by_side(AT_ONCE, Load::of_link(RATE), jobs)?, lab.seeds().count()), LINKS.len());
    Ok(Shares::of(&goodputs).output())
}

/// The payload that the link can deliver at a packet error rate, bits per second. The 16 bytes of the
/// congestion header in each packet count as unused.
fn limit_bps(per: f64) -> f64 {
    RATE.bps() as f64 * PAYLOAD_SHARE * (1.0 - per)
}

fn rtt(link: usize) -> Duration {
    Duration::from_millis(LINKS[link].1)
}

/// Goodputs as shares of the limit, by congestion control and link.
struct Shares(Curves);

impl Shares {
    /// Of the goodputs in bits per second by congestion control, link and seed.
    fn of(goodputs_bps: &[Vec<Vec<f64>>]) -> Self {
        let measure = Measure { key: "of_limit", unit: ("% of the limit", 0.01), decimals: 1 };
        let share = |(link, seeds): (&(f64, u64), &Vec<f64>)| {
            over_seeds(seeds.iter().map(|goodput| goodput / limit_bps(link.0)))
        };
        let labels = NAMES.into_iter().zip(CONTROLS.map(|control| control.replace('-', "_")));
        let shares = goodputs_bps.iter().map(|links| LINKS.iter().zip(links).map(share).collect());
        Self(Curves::new(labels, measure, shares.collect()))
    }

    fn output(&self) -> Output {
        let table = self.0.table(
            "A minute from the first SYN, 10 Mbit/s",
            [
                Column::new("PER", "per").shown_in("%", 0.01),
                Column::new("RTT", "rtt_s").shown_in("ms", 0.001),
            ],
            (0..LINKS.len())
                .map(|link| vec![Cell::Number(LINKS[link].0, 1), Cell::Number(rtt(link).as_secs_f64(), 0)]),
        );
        let chart = self.0.chart(BarChart::new(
            "A minute of a download through two boxes, 10 Mbit/s",
            Axis::dimensionless("packet error rate, round-trip time"),
            Axis::new("goodput, of the limit", "%"),
            LINKS.map(|(per, rtt_ms)| format!("{} %, {rtt_ms} ms", per * 100.0)),
        ));
        Output {
            claims: vec![self.p_xcp_fills_the_link(), self.losses_cost_xcp_more()],
            tables: vec![Part::new("goodput", table)],
            figures: vec![Part::new("goodput", chart)],
        }
    }

    fn p_xcp_fills_the_link(&self) -> Claim {
        let shares = self.0.curve(P_XCP).iter().zip(LINKS);
        Claim::ours(
            "P-XCP: a minute from the first SYN has 90% of the limit or more, at PER 0.1% and 1%, RTT 500, \
             600 and 1000 ms",
        )
        .shown_in("%", 0.01, 1)
        .with_all(shares.map(|(share, link)| Range::at_least(0.9).of_mean(share).at(at_link(link))))
    }

    fn losses_cost_xcp_more(&self) -> Claim {
        let lossy = (0..LINKS.len()).filter(|link| LINKS[*link].0 == 0.01);
        Claim::expected(
            "At PER 1% XCP, which halves its window at each loss, has at most three quarters of what P-XCP \
             has",
            "Lopez Pacheco and Lochin",
        )
        .shown_in("%", 0.01, 0)
        .with_all(lossy.map(|link| {
            let [xcp, p_xcp] = [XCP, P_XCP].map(|control| &self.0.curve(control)[link]);
            Range::at_most(0.75).of_ratio(xcp, p_xcp).at(at_link(LINKS[link]))
        }))
    }
}

fn at_link((per, rtt_ms): (f64, u64)) -> String {
    format!("at {} %, {rtt_ms} ms", per * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Level, Outcome};

    #[test]
    fn one_case_below_nine_tenths_is_enough_to_disagree() {
        let outcome = |least: f64| {
            let seeds = |share: f64, per: f64| vec![share * limit_bps(per), 1.001 * share * limit_bps(per)];
            let mut links: Vec<Vec<f64>> = LINKS.iter().map(|(per, _)| seeds(0.95, *per)).collect();
            links[5] = seeds(least, 0.01);
            Shares::of(&vec![links; CONTROLS.len()]).p_xcp_fills_the_link().judge(Level::of_looks(1)).outcome
        };
        assert_eq!(
            [0.91, 0.9, 0.85].map(outcome),
            [Outcome::Agrees, Outcome::Undecided, Outcome::Contradicts]
        );
    }
}
