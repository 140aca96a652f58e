//! Explicit rates through the tunnels of a railway: the journey of PSATS09, with the gateway's rate
//! controller.

use super::psats09::{
    GOODPUT, SCENARIO, SPEEDS_KMH, at_speeds, by_speed, chart_by_speed, clear_sky, journey,
};
use super::{Curves, Experiment, Lab, Output, Scheme};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::results::{Part, Plan};
use crate::topology::PAYLOAD_SHARE;

pub(super) const RAILWAY: Experiment = Experiment {
    name: "explicit-railway",
    title: "Explicit rates, Hybla and NewReno behind a splitter, through the tunnels of a railway",
    source: "ours; the scenario is that of Caini, Firrincieli, Lacamera: PEPsal Performance Analysis on \
        Disruptive Radio Channels, PSATS 2009",
    // Three are enough: the margins of the claims are far from the data.
    plan: Plan::doubling(3),
    run: Some(railway),
    on_kernel: Some((1, super::explicit_kernel::railway)),
};

/// The payload that the link can carry: 1448 of 1500 bytes, and one packet in a hundred is lost.
const LIMIT: f64 = 10e6 * PAYLOAD_SHARE * 0.99;
const EXPLICIT: usize = 0;
const HYBLA: usize = 1;
/// Congestion controls of the satellite leg, each with the lowest maximum RTO that its queue allows. Like
/// Linux, all detect lost retransmissions.
const SCHEMES: [Scheme; 4] = [
    Scheme {
        name: "explicit",
        key: "explicit",
        settings: &[
            "tcp.satellite.lost_retransmissions=true",
            "tcp.satellite.congestion=explicit",
            "link.satellite.explicit.at=gateway",
            "tcp.satellite.rto.max=1s",
        ],
    },
    Scheme {
        name: "Hybla",
        key: "hybla",
        settings: &[
            "tcp.satellite.lost_retransmissions=true",
            "tcp.satellite.hybla=all",
            "tcp.satellite.rto.max=1s",
        ],
    },
    Scheme {
        name: "Hybla, as published",
        key: "published_hybla",
        settings: &[
            "tcp.satellite.lost_retransmissions=true",
            "tcp.satellite.hybla=published",
            "tcp.satellite.rto.max=2s",
        ],
    },
    Scheme {
        name: "NewReno",
        key: "newreno",
        settings: &[
            "tcp.satellite.lost_retransmissions=true",
            "tcp.satellite.congestion=newreno",
            "tcp.satellite.rto.max=2s",
        ],
    },
];

fn railway(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep_by_seed(&SCENARIO, &SCHEMES, &SPEEDS_KMH, journey)?;
    let goodput = Curves::of_runs(SCHEMES, GOODPUT, &runs, clear_sky);
    let (column, speeds) = by_speed();
    let table = goodput.table("Clear-sky goodput for a journey", [column], speeds);
    let chart = goodput.chart(chart_by_speed("Clear-sky goodput from Bologna to Florence, split"));
    Ok(Output {
        claims: vec![near_the_limit(&goodput), ahead(&goodput)],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", chart)],
    })
}

fn near_the_limit(goodput: &Curves) -> Claim {
    let tests = goodput.curve(EXPLICIT).iter().zip(at_speeds());
    Claim::ours("Explicit rates have at least 90% of what the link can carry in clear sky, at each speed")
        .shown_in("%", 0.01 * LIMIT, 1)
        .with_all(tests.map(|(value, speed)| Range::at_least(0.9 * LIMIT).of_mean(value).at(speed)))
}

fn ahead(goodput: &Curves) -> Claim {
    Claim::ours("They are ahead of the best Hybla at each speed, by a tenth at least")
        .shown_in("times", 1.0, 3)
        .with_all(goodput.ratios(EXPLICIT, HYBLA, Range::at_least(1.1), at_speeds()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn explicit_rates_fill_the_link_between_the_tunnels() {
        let results = in_virtual_time(&RAILWAY, 2);
        assert!(results.verdicts[0].agrees(), "{:#?}", results.verdicts);
    }
}
