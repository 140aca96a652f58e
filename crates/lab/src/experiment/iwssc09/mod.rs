//! IWSSC09: Lopez Pacheco and Lochin, "Optimal Configuration for Satellite PEPs using a Reliable Service on
//! Top of a Routers-Assisted Approach" (IWSSC 2009); and the fairness of XCP (Katabi, Handley and Rohrs,
//! SIGCOMM 2002).

mod asymmetric;
mod fairness;
mod loss;

pub(super) use loss::LOSS;

use super::{Experiment, Lab, Output, Runs, Scheme};
use crate::results::Plan;

const SOURCE: &str = "Lopez Pacheco, Lochin: Optimal Configuration for Satellite PEPs using a Reliable \
    Service on Top of a Routers-Assisted Approach, IWSSC 2009";
const KATABI: &str =
    "Katabi, Handley, Rohrs: Congestion Control for High Bandwidth-Delay Product Networks, SIGCOMM 2002";
const SCENARIO: (&str, &str) = ("scenarios/xcp.toml", include_str!("../../../../../scenarios/xcp.toml"));
const MBIT: f64 = 1e6;
/// Payload of a 1500-byte packet with 20 bytes of IP, 20 of TCP, 12 of timestamps and 16 of congestion
/// header.
const PACKET: f64 = 1432.0;
const PAYLOAD: f64 = PACKET / 1500.0;

pub(super) const ASYMMETRIC: Experiment = Experiment {
    name: "iwssc09-asymmetric",
    title: "XCP and P-XCP where one of two flows is limited elsewhere",
    source: SOURCE,
    plan: Plan::doubling(3),
    run: Some(asymmetric::run),
    on_kernel: Some((1, asymmetric::run)),
};

pub(super) const FAIRNESS: Experiment = Experiment {
    name: "xcp-fairness",
    title: "Three satellite flows and three terrestrial ones under one XCP router",
    source: KATABI,
    plan: Plan::doubling(5),
    run: Some(fairness::run),
    on_kernel: Some((1, fairness::run)),
};

/// The router and its senders.
const VARIANTS: [Scheme; 2] = [
    Scheme {
        name: "XCP",
        key: "xcp",
        settings: &["link.satellite.xcp.variant=xcp", "tcp.satellite.congestion=xcp"],
    },
    Scheme {
        name: "P-XCP",
        key: "p_xcp",
        settings: &["link.satellite.xcp.variant=p-xcp", "tcp.satellite.congestion=p-xcp"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn shares_are_as_published_where_one_flow_is_limited_and_where_round_trips_differ() {
        for experiment in [ASYMMETRIC, FAIRNESS] {
            let results = in_virtual_time(&experiment, 3);
            assert!(results.agrees(), "{:#?}", results.verdicts);
        }
    }

    /// Of the losses at random that of Slow-but-Steady at 500 ms, and of the events that of Impatient
    /// beyond a round trip.
    #[test]
    fn losses_act_as_published_but_for_two_claims() {
        let results = in_virtual_time(&LOSS, 5);
        let differs = ["less than once in three minutes", "times out there, too"];
        for refuted in results.contradicted() {
            assert!(differs.iter().any(|end| refuted.claim.ends_with(end)), "{refuted:#?}");
        }
        for claim in ["over SACK", "within a round trip: P-XCP over NewReno, Impatient", "overflow"] {
            let verdict = results.verdicts.iter().find(|verdict| verdict.claim.contains(claim)).unwrap();
            assert!(verdict.agrees(), "{verdict:#?}");
        }
    }
}
