//! Figure 2: goodput by packet error rate.

use super::super::{Curves, Experiment, Lab, Measure, Output};
use super::{FIGURE_2, at_per, by_per, settings, undetermined};
use super::{GATEWAY_WINDOW, KBIT, PACKET, SCENARIO, SEEDS, SOURCE, WINDOW};
use super::{RENO, SACK, SCHEMES, SNOOP, SNOOP_BY_ORDER, SPLIT_DELAYED, SPLIT_SACK};
use crate::Error;
use crate::claim::{Claim, Range, Test};
use crate::figure::{Axis, Plot};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::Column;

pub(in super::super) const FIG2: Experiment = Experiment {
    name: "surrey-fig2",
    title: "Five ways to a satellite host, by packet error rate",
    source: SOURCE,
    plan: Plan::doubling(SEEDS),
    run: Some(fig2),
    on_kernel: Some((1, fig2)),
};

/// From 10⁻⁵ to 5·10⁻².
const PERS: [f64; 8] = [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 5e-2];
const FIRST: usize = 0;
const LAST: usize = PERS.len() - 1;
/// What "slightly inferior" (§3.2) is taken for, seen from the other.
pub(super) const SLIGHTLY_AHEAD: Range = Range::between(1.0, 1.5);
/// The scenario's round trip, seconds.
const RTT: f64 = 0.6;

fn fig2(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = lab.sweep(&SCENARIO, &SCHEMES, &PERS, settings)?;
    let measure = Measure { key: "goodput_bps", unit: ("kbit/s", KBIT), decimals: 0 };
    let goodput = Curves::of_runs(SCHEMES, measure, &runs, |runs| runs.first_flow(|flow| flow.goodput_bps));
    let table = goodput.table(
        "Goodput of a file of 4 MB by packet error rate",
        [Column::new("PER", "per")],
        by_per(&PERS, 5),
    );
    let plot = Plot::new(
        "A file of 4 MB for a satellite host",
        Axis::dimensionless("packet error rate").log(),
        Axis::new("goodput", "kbit/s").including(0.0),
    );
    let plot = goodput.plot(plot, PERS);
    let claims = Claims(goodput);
    Ok(Output {
        claims: vec![
            claims.end_to_end_is_worst(),
            claims.end_to_end_is_alike(),
            claims.split_sack_leads_where_little_is_lost(),
            claims.split_sack_loses_its_lead(),
            claims.snoop_is_limited_by_the_window(),
            claims.snoop_is_ahead_of_split_sack(),
            claims.delayed_dup_acks_are_best(),
            claims.snoop_is_slightly_ahead_at_the_end(),
            claims.ours_is_ahead_of_the_published(),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot)],
    })
}

/// The paper's claims on the goodputs in its figure.
struct Claims(Curves);

impl Claims {
    fn at(&self, scheme: usize, at: usize) -> &Sample {
        &self.0.curve(scheme)[at]
    }

    fn test(&self, range: Range, scheme: usize, to: usize, at: usize) -> Test {
        range.of_ratio(self.at(scheme, at), self.at(to, at))
    }

    /// At low rates Snoop has the same window as end-to-end TCP and is no better. So "worst" is taken as: no
    /// scheme is worse than the better one of the two by more than a twentieth.
    fn end_to_end_is_worst(&self) -> Claim {
        let better = |at: usize| {
            let [reno, sack] = [RENO, SACK].map(|scheme| self.at(scheme, at));
            if reno.mean() > sack.mean() { reno } else { sack }
        };
        let tests = [SPLIT_SACK, SPLIT_DELAYED, SNOOP].into_iter().flat_map(|scheme| {
            (0..PERS.len()).map(move |at| {
                let test = Range::at_least(0.95).of_ratio(self.at(scheme, at), better(at));
                test.at(format!("for {} {}", SCHEMES[scheme].name, at_per(PERS[at])))
            })
        });
        Claim::stated("End to end is worst at every packet error rate", FIGURE_2).with_all(tests)
    }

    fn end_to_end_is_alike(&self) -> Claim {
        let tests = (0..PERS.len())
            .map(|at| self.test(Range::between(0.85, 1.15), SACK, RENO, at).at(at_per(PERS[at])));
        Claim::stated("Reno and SACK end to end are practically the same: within 15% of each other", FIGURE_2)
            .with_all(tests)
    }

    fn split_sack_leads_where_little_is_lost(&self) -> Claim {
        Claim::stated(
            "At the lowest rate split SACK is far ahead of SACK end to end: twice or more",
            FIGURE_2,
        )
        .with(self.test(Range::at_least(2.0), SPLIT_SACK, SACK, FIRST).at(at_per(PERS[FIRST])))
        .noting(format!("the windows differ {:.1} times", GATEWAY_WINDOW / WINDOW))
    }

    fn split_sack_loses_its_lead(&self) -> Claim {
        Claim::stated("At the highest rate the lead is gone: 1.25 times or less", FIGURE_2)
            .with(self.test(Range::at_most(1.25), SPLIT_SACK, SACK, LAST).at(at_per(PERS[LAST])))
    }

    fn snoop_is_limited_by_the_window(&self) -> Claim {
        let limit = WINDOW * PACKET * 8.0 / RTT;
        let within = Range::between(0.9 * limit, 1.1 * limit).of_mean(self.at(SNOOP, FIRST));
        Claim::stated(
            "At the lowest rate Snoop is limited by the sender's window (within 10% of window/RTT), below \
             split SACK",
            FIGURE_2,
        )
        .with(within.shown_in("kbit/s", KBIT, 0))
        .with(self.test(Range::below(1.0), SNOOP, SPLIT_SACK, FIRST).at("of split SACK"))
        .noting(format!("window/RTT is {:.0} kbit/s", limit / KBIT))
    }

    fn snoop_is_ahead_of_split_sack(&self) -> Claim {
        let high = PERS.len() - 3..PERS.len();
        Claim::stated("From PER 1e-2 on Snoop is ahead of split SACK", FIGURE_2)
            .with_all(high.map(|at| self.test(Range::above(1.0), SNOOP, SPLIT_SACK, at).at(at_per(PERS[at]))))
    }

    fn delayed_dup_acks_are_best(&self) -> Claim {
        let tests = [RENO, SACK, SPLIT_SACK, SNOOP].into_iter().flat_map(|scheme| {
            (0..LAST).map(move |at| {
                let test = self.test(Range::at_least(0.99), SPLIT_DELAYED, scheme, at);
                test.at(format!("of {} {}", SCHEMES[scheme].name, at_per(PERS[at])))
            })
        });
        Claim::stated("Delayed duplicate ACKs are best at every rate but the highest", FIGURE_2)
            .with_all(tests)
    }

    fn snoop_is_slightly_ahead_at_the_end(&self) -> Claim {
        Claim::stated(
            "At PER 5e-2 Snoop is slightly ahead of delayed duplicate ACKs: 1 to 1.5 times",
            FIGURE_2,
        )
        .with(self.test(SLIGHTLY_AHEAD, SNOOP, SPLIT_DELAYED, LAST))
        .noting(undetermined(
            "how its Snoop finds lost retransmissions, the rates, the delay d and how often the link layer retransmits",
        ))
    }

    /// Of twenty retransmissions one is lost at the highest rate, and there the published Snoop waits; and a
    /// second hole in a window costs it another round trip. A fifth is what we take for worth the name.
    fn ours_is_ahead_of_the_published(&self) -> Claim {
        Claim::ours(
            "At PER 5e-2 a Snoop that finds lost retransmissions without a timer is ahead of the published one: \
             1.2 times or more",
        )
        .with(self.test(Range::at_least(1.2), SNOOP_BY_ORDER, SNOOP, LAST))
    }
}
