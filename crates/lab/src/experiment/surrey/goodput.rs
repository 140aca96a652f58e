//! Figure 2: goodput by packet error rate.

use super::super::{Curves, Experiment, Lab, Measure, Output, listed};
use super::{GATEWAY_WINDOW, KBIT, PACKET, SCENARIO, SOURCE, WINDOW};
use super::{RENO, SACK, SCHEMES, SNOOP, SPLIT_DELAYED, SPLIT_SACK};
use super::{by_per, scientific, scientific_list, settings};
use crate::Error;
use crate::figure::{Axis, Plot};
use crate::results::{Part, Verdict};
use crate::statistics::Estimate;
use crate::table::Column;

pub(in super::super) const FIG2: Experiment = Experiment {
    name: "surrey-fig2",
    title: "Five ways to a satellite host, by packet error rate",
    source: SOURCE,
    seeds: 100,
    run: fig2,
    on_kernel: Some((1, fig2)),
};

/// From 10⁻⁵ to 5·10⁻².
const PERS: [f64; 8] = [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 5e-2];
const FIRST: usize = 0;
const LAST: usize = PERS.len() - 1;
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
        verdicts: vec![
            claims.end_to_end_is_worst(),
            claims.end_to_end_is_alike(),
            claims.split_sack_leads_where_little_is_lost(),
            claims.split_sack_loses_its_lead(),
            claims.snoop_is_limited_by_the_window(),
            claims.snoop_is_ahead_of_split_sack(),
            claims.delayed_dup_acks_are_best(),
            claims.snoop_is_slightly_ahead_at_the_end(),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot)],
    })
}

/// The paper's claims on the goodputs in its figure.
struct Claims(Curves);

impl Claims {
    fn mean(&self, scheme: usize, at: usize) -> f64 {
        self.0.curve(scheme)[at].mean
    }

    fn ratio(&self, scheme: usize, to: usize, at: usize) -> Estimate {
        self.0.curve(scheme)[at].ratio_to(&self.0.curve(to)[at])
    }

    /// At low rates Snoop has the same window as end-to-end TCP and is no better. So "worst" is taken as: no
    /// scheme is worse by more than a twentieth.
    fn end_to_end_is_worst(&self) -> Verdict {
        let best = |at: usize| f64::max(self.mean(RENO, at), self.mean(SACK, at));
        let others = [SPLIT_SACK, SPLIT_DELAYED, SNOOP];
        let worst =
            |at: usize| others.map(|scheme| self.mean(scheme, at) / best(at)).into_iter().fold(9.9, f64::min);
        let ratios: Vec<f64> = (0..PERS.len()).map(worst).collect();
        Verdict::new(
            "End to end is worst at every packet error rate",
            ratios.iter().all(|&ratio| ratio >= 0.95),
            format!(
                "the worst of the others has {} of the better one's goodput at PER {}",
                listed(&ratios, 2, ", "),
                scientific_list(&PERS)
            ),
        )
    }

    fn end_to_end_is_alike(&self) -> Verdict {
        let ratios: Vec<Estimate> = (0..PERS.len()).map(|at| self.ratio(SACK, RENO, at)).collect();
        Verdict::new(
            "Reno and SACK end to end are practically the same: within 15% of each other",
            ratios.iter().all(|ratio| ratio.may_be_at_least(0.85) && ratio.may_be_at_most(1.15)),
            format!("SACK has {} of Reno's at PER {}", values(&ratios), scientific_list(&PERS)),
        )
    }

    fn split_sack_leads_where_little_is_lost(&self) -> Verdict {
        let ratio = self.ratio(SPLIT_SACK, SACK, FIRST);
        Verdict::new(
            "At the lowest rate split SACK is far ahead of SACK end to end: twice or more",
            ratio.may_be_at_least(2.0),
            format!(
                "{:.2} times at PER {}; the windows differ {:.1} times",
                ratio.value,
                scientific(PERS[FIRST]),
                GATEWAY_WINDOW / WINDOW
            ),
        )
    }

    fn split_sack_loses_its_lead(&self) -> Verdict {
        let ratios = [FIRST, LAST].map(|at| self.ratio(SPLIT_SACK, SACK, at));
        Verdict::new(
            "At the highest rate the lead is gone: 1.25 times or less",
            ratios[1].may_be_at_most(1.25),
            format!("{:.2} times, {:.2} at the lowest", ratios[1].value, ratios[0].value),
        )
    }

    fn snoop_is_limited_by_the_window(&self) -> Verdict {
        let limit = WINDOW * PACKET * 8.0 / RTT;
        let (snoop, split) = (self.mean(SNOOP, FIRST), self.mean(SPLIT_SACK, FIRST));
        Verdict::new(
            "At the lowest rate Snoop is limited by the sender's window (within 10% of window/RTT), below \
             split SACK",
            (snoop / limit - 1.0).abs() <= 0.1 && snoop < split,
            format!("{:.0} kbit/s of {:.0}; split SACK {:.0}", snoop / KBIT, limit / KBIT, split / KBIT),
        )
    }

    fn snoop_is_ahead_of_split_sack(&self) -> Verdict {
        let high = PERS.len() - 3..PERS.len();
        let ratios: Vec<Estimate> = high.clone().map(|at| self.ratio(SNOOP, SPLIT_SACK, at)).collect();
        Verdict::new(
            "From PER 1e-2 on Snoop is ahead of split SACK",
            ratios.iter().all(|ratio| ratio.value > 1.0 && ratio.may_be_at_least(1.05)),
            format!("{} times at PER {}", values(&ratios), scientific_list(&PERS[high])),
        )
    }

    fn delayed_dup_acks_are_best(&self) -> Verdict {
        let others = [RENO, SACK, SPLIT_SACK, SNOOP];
        let lead = |at: usize| {
            let ratios = others.map(|scheme| self.ratio(SPLIT_DELAYED, scheme, at).value);
            ratios.into_iter().fold(f64::MAX, f64::min)
        };
        let leads: Vec<f64> = (0..LAST).map(lead).collect();
        Verdict::new(
            "Delayed duplicate ACKs are best at every rate but the highest",
            leads.iter().all(|&lead| lead >= 0.99),
            format!(
                "{} times the best of the others at PER {}",
                listed(&leads, 2, ", "),
                scientific_list(&PERS)
            ),
        )
    }

    fn snoop_is_slightly_ahead_at_the_end(&self) -> Verdict {
        let ratio = self.ratio(SNOOP, SPLIT_DELAYED, LAST);
        Verdict::new(
            "At PER 5e-2 Snoop is slightly ahead of delayed duplicate ACKs: 1 to 1.5 times",
            ratio.may_be_at_least(1.0) && ratio.may_be_at_most(1.5),
            format!("{:.2} times", ratio.value),
        )
    }
}

fn values(ratios: &[Estimate]) -> String {
    listed(ratios.iter().map(|ratio| ratio.value), 2, ", ")
}
