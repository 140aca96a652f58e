//! Two convergence layers of bundle nodes, TCPCLv4 and LTP, over ever longer links, in virtual time. What ends
//! the one is the protocol radius of TCP; the other has the timers of the link.

use std::time::Duration;

use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_sim::ltp::{BlockResult, BlockTransfer};
use bentpipe_units::{Probability, Rate};
use rayon::prelude::*;

use super::{Curves, Experiment, Lab, Measure, Output, Scheme, over_seeds};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, Plot};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column};

pub(super) const LTP_REACH: Experiment = Experiment {
    name: "ltp-reach",
    title: "Bundles over TCPCLv4 and over LTP, from a geostationary satellite to eight minutes of light",
    source: "ours; the reach of TCP's timers is that of Peoples, Wood and others, \"TCP's protocol radius\", 2007; LTP is \
        RFC 5326",
    plan: Plan::doubling(3),
    run: Some(reach),
    on_kernel: None,
};

const SCENARIO: (&str, &str) =
    ("scenarios/deep-space.toml", include_str!("../../../../scenarios/deep-space.toml"));
/// Of the scenario.
const RATE: Rate = Rate::mbps(1);
const BLOCK: u64 = 100_000;
const PER: f64 = 0.01;

/// One way, seconds.
const DELAYS_S: [f64; 6] = [0.3, 10.0, 30.0, 60.0, 120.0, 480.0];
/// The first delay at which a SYN has no answer within the 127 s after which Linux gives it up (RFC 6298 timers
/// of 1, 2, 4 … 64 s; `tcp_syn_retries` = 6).
const TOO_FAR: usize = 4;
/// How long a run lasts, in one-way delays, and at least, seconds.
const LASTS: (f64, f64) = (40.0, 600.0);

const TCPCL: usize = 0;
const LTP: usize = 1;
const SCHEMES: [Scheme; 2] = [
    Scheme { name: "TCPCLv4 (explicit rates)", key: "tcpcl", settings: &[] },
    Scheme { name: "LTP", key: "ltp", settings: &[] },
];

/// The claims' threshold: of what the link can deliver.
const OF_LIMIT: f64 = 0.9;

fn lasts(delay: f64) -> f64 {
    (LASTS.0 * delay).max(LASTS.1)
}

fn reach(lab: &Lab<'_>) -> Result<Output, Error> {
    let settings = |scheme: Scheme, delay: f64| {
        scheme.with([
            format!("duration={}s", lasts(delay)),
            format!("link.space.delay={delay}s"),
            format!("link.space.per={PER}"),
        ])
    };
    let tcp = lab.sweep(&SCENARIO, &SCHEMES[..LTP], &DELAYS_S, settings)?;
    let usable = |delay: f64| lasts(delay) - delay;
    let tcp: Vec<Sample> = tcp[TCPCL]
        .iter()
        .zip(DELAYS_S)
        .map(|(runs, delay)| runs.first_flow(|flow| 8.0 * flow.bytes as f64 / usable(delay)))
        .collect();
    let ltp: Vec<Vec<BlockResult>> = DELAYS_S
        .into_par_iter()
        .map(|delay| {
            lab.seeds().collect::<Vec<_>>().into_par_iter().map(|seed| transfer(delay).run(seed)).collect()
        })
        .collect();
    let ltp = ltp.iter().map(|runs| over_seeds(runs.iter().map(|run| run.goodput_bps))).collect();
    let goodput = Curves::new(SCHEMES, Measure::mbps("goodput_bps"), vec![tcp, ltp]);
    Ok(output(&goodput))
}

fn transfer(delay: f64) -> BlockTransfer {
    let direction = DirectionConfig {
        rate: Some(RATE),
        delay: Duration::from_secs_f64(delay),
        per: Probability::new(PER).unwrap_or_default(),
        ..DirectionConfig::default()
    };
    BlockTransfer {
        link: LinkConfig::symmetric(direction),
        rate: RATE,
        block: BLOCK,
        duration: Duration::from_secs_f64(lasts(delay)),
    }
}

fn output(goodput: &Curves) -> Output {
    let delay = Column::new("one way", "delay_s").shown_in("s", 1.0);
    let table = goodput.table(
        "Data of whole bundles, from the arrival of the first byte on",
        [delay],
        DELAYS_S.map(|delay| vec![Cell::Number(delay, 1)]),
    );
    let plot = Plot::new(
        "Bundles over 1 Mbit/s at PER 1%",
        Axis::new("propagation delay, one way", "s").log(),
        Axis::new("goodput", "Mbit/s"),
    );
    Output {
        claims: claims(goodput),
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", goodput.plot(plot, DELAYS_S))],
    }
}

fn claims(goodput: &Curves) -> Vec<Claim> {
    let limit = RATE.bps() as f64 * (1.0 - PER);
    let at = |scheme: usize, point: usize, range: Range| {
        range.of_mean(&goodput.curve(scheme)[point]).at(format!("at {} s", DELAYS_S[point]))
    };
    vec![
        Claim::ours("LTP has 90% or more of what the link can deliver at every distance")
            .shown_in("Mbit/s", 1e6, 2)
            .with_all((0..DELAYS_S.len()).map(|point| at(LTP, point, Range::at_least(OF_LIMIT * limit)))),
        Claim::expected(
            "Where a round trip is longer than a SYN is repeated, TCPCLv4 carries nothing",
            "the paper's protocol radius of TCP's handshake",
        )
        .shown_in("Mbit/s", 1e6, 2)
        .with_all((TOO_FAR..DELAYS_S.len()).map(|point| at(TCPCL, point, Range::at_most(0.0)))),
        Claim::ours("At a geostationary satellite the two are alike (within 10%)").with_all(goodput.ratios(
            LTP,
            TCPCL,
            Range::between(0.9, 1.1),
            ["at 0.3 s".to_owned()],
        )),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn distance_ends_tcp_and_costs_ltp_nothing() {
        let results = in_virtual_time(&LTP_REACH, 3);
        assert_eq!(results.contradicted().count(), 0, "{:#?}", results.verdicts);
        assert!(results.verdicts[0].agrees() && results.verdicts[1].agrees(), "{:#?}", results.verdicts);
    }
}
