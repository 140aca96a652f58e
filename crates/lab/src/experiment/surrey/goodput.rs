//! Figure 2: goodput by packet error rate.

use super::super::{Experiment, Findings, Lab, Runs};
use super::{GATEWAY_WINDOW, KBIT, PACKET, SCENARIO, SOURCE, WINDOW, Way, scientific};
use crate::Error;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

pub(in super::super) const FIG2: Experiment = Experiment {
    name: "surrey-fig2",
    title: "Five ways to a satellite host, by packet error rate",
    source: SOURCE,
    seeds: 100,
    run: fig2,
    on_kernel: None,
};

/// From 10⁻⁵ to 5·10⁻².
const PERS: [f64; 8] = [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 5e-2];
const FIRST: usize = 0;
const LAST: usize = PERS.len() - 1;
/// The scenario's round trip, seconds.
const RTT: f64 = 0.6;

fn fig2(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut scenarios = Vec::new();
    for way in Way::ALL {
        for per in PERS {
            scenarios.push(lab.scenario(&SCENARIO, &way.with_per(per))?);
        }
    }
    let goodput = |runs: &Runs| runs.first_flow(|flow| flow.goodput_bps);
    let curves: Vec<Vec<Summary>> =
        lab.run(&scenarios).chunks(PERS.len()).map(|runs| runs.iter().map(goodput).collect()).collect();
    let curves = Curves(curves);
    Ok(Findings {
        verdicts: vec![
            curves.end_to_end_is_worst(),
            curves.end_to_end_is_alike(),
            curves.split_sack_leads_where_little_is_lost(),
            curves.split_sack_loses_its_lead(),
            curves.snoop_is_limited_by_the_window(),
            curves.snoop_is_ahead_of_split_sack(),
            curves.delayed_dup_acks_are_best(),
            curves.snoop_is_slightly_ahead_at_the_end(),
        ],
        tables: vec![Part::new("goodput", curves.table())],
        figures: vec![Part::new("goodput", curves.plot())],
    })
}

/// Goodput of each way at each packet error rate.
struct Curves(Vec<Vec<Summary>>);

impl Curves {
    fn of(&self, way: Way) -> &[Summary] {
        let place = Way::ALL.iter().position(|other| *other == way).expect("all ways are there");
        &self.0[place]
    }

    fn ratio(&self, way: Way, to: Way, at: usize) -> Estimate {
        self.of(way)[at].ratio_to(&self.of(to)[at])
    }

    fn table(&self) -> Table {
        let column =
            |way: Way| Column::new(way.name(), format!("{}_goodput_bps", way.key())).shown_in("kbit/s", KBIT);
        let columns = [Column::new("PER", "per")].into_iter().chain(Way::ALL.map(column)).collect();
        let mut table = Table::new("Goodput of a file of 4 MB by packet error rate", columns);
        for (at, per) in PERS.into_iter().enumerate() {
            let cells = self.0.iter().map(|curve| Cell::interval(Some(curve[at]), 0));
            table.push([Cell::Number(per, 5)].into_iter().chain(cells).collect());
        }
        table
    }

    fn plot(&self) -> Plot {
        let x = Axis::dimensionless("packet error rate").log();
        let plot = Plot::new(
            "A file of 4 MB for a satellite host",
            x,
            Axis::new("goodput", "kbit/s").including(0.0),
        );
        Way::ALL.into_iter().zip(&self.0).fold(plot, |plot, (way, curve)| {
            let points = PERS.into_iter().zip(curve);
            let points = points.map(|(per, value)| Point::new(per, value.estimate().in_unit(KBIT)));
            plot.with(Series::new(way.name(), Style::Line, points))
        })
    }

    /// At low rates Snoop has the same window as they and is no better, so "worst" is taken as: nobody is worse by more than a
    /// twentieth.
    fn end_to_end_is_worst(&self) -> Verdict {
        let best = |at: usize| f64::max(self.of(Way::Reno)[at].mean, self.of(Way::Sack)[at].mean);
        let others = [Way::SplitSack, Way::SplitDelayed, Way::Snoop];
        let worst =
            |at: usize| others.map(|way| self.of(way)[at].mean / best(at)).into_iter().fold(9.9, f64::min);
        let ratios: Vec<f64> = (0..PERS.len()).map(worst).collect();
        Verdict::new(
            "End to end is worst at every packet error rate",
            ratios.iter().all(|&ratio| ratio >= 0.95),
            format!(
                "the worst of the others has {} of the better one's goodput at PER {}",
                list(&ratios),
                pers()
            ),
        )
    }

    fn end_to_end_is_alike(&self) -> Verdict {
        let ratios: Vec<Estimate> = (0..PERS.len()).map(|at| self.ratio(Way::Sack, Way::Reno, at)).collect();
        Verdict::new(
            "Reno and SACK end to end are practically the same: within 15% of each other",
            ratios.iter().all(|ratio| ratio.may_be_at_least(0.85) && ratio.may_be_at_most(1.15)),
            format!("SACK has {} of Reno's at PER {}", list(&values(&ratios)), pers()),
        )
    }

    fn split_sack_leads_where_little_is_lost(&self) -> Verdict {
        let ratio = self.ratio(Way::SplitSack, Way::Sack, FIRST);
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
        let ratios = [FIRST, LAST].map(|at| self.ratio(Way::SplitSack, Way::Sack, at));
        Verdict::new(
            "At the highest rate the lead is gone: 1.25 times or less",
            ratios[1].may_be_at_most(1.25),
            format!("{:.2} times, {:.2} at the lowest", ratios[1].value, ratios[0].value),
        )
    }

    fn snoop_is_limited_by_the_window(&self) -> Verdict {
        let limit = WINDOW * PACKET * 8.0 / RTT;
        let (snoop, split) = (&self.of(Way::Snoop)[FIRST], &self.of(Way::SplitSack)[FIRST]);
        Verdict::new(
            "At the lowest rate Snoop is limited by the sender's window (within 10% of window/RTT), below split SACK",
            (snoop.mean / limit - 1.0).abs() <= 0.1 && snoop.mean < split.mean,
            format!(
                "{:.0} kbit/s of {:.0}; split SACK {:.0}",
                snoop.mean / KBIT,
                limit / KBIT,
                split.mean / KBIT
            ),
        )
    }

    fn snoop_is_ahead_of_split_sack(&self) -> Verdict {
        let high = PERS.len() - 3..PERS.len();
        let ratios: Vec<Estimate> =
            high.clone().map(|at| self.ratio(Way::Snoop, Way::SplitSack, at)).collect();
        Verdict::new(
            "From PER 1e-2 on Snoop is ahead of split SACK",
            ratios.iter().all(|ratio| ratio.value > 1.0 && ratio.may_be_at_least(1.05)),
            format!(
                "{} times at PER {}",
                list(&values(&ratios)),
                PERS[high].iter().map(|&per| scientific(per)).collect::<Vec<_>>().join(", ")
            ),
        )
    }

    fn delayed_dup_acks_are_best(&self) -> Verdict {
        let others = [Way::Reno, Way::Sack, Way::SplitSack, Way::Snoop];
        let lead = |at: usize| {
            others
                .map(|way| self.ratio(Way::SplitDelayed, way, at).value)
                .into_iter()
                .fold(f64::MAX, f64::min)
        };
        let leads: Vec<f64> = (0..LAST).map(lead).collect();
        Verdict::new(
            "Delayed duplicate ACKs are best at every rate but the highest",
            leads.iter().all(|&lead| lead >= 0.99),
            format!("{} times the best of the others at PER {}", list(&leads), pers()),
        )
    }

    fn snoop_is_slightly_ahead_at_the_end(&self) -> Verdict {
        let ratio = self.ratio(Way::Snoop, Way::SplitDelayed, LAST);
        Verdict::new(
            "At PER 5e-2 Snoop is slightly ahead of delayed duplicate ACKs: 1 to 1.5 times",
            ratio.may_be_at_least(1.0) && ratio.may_be_at_most(1.5),
            format!("{:.2} times", ratio.value),
        )
    }
}

fn values(ratios: &[Estimate]) -> Vec<f64> {
    ratios.iter().map(|ratio| ratio.value).collect()
}

fn list(values: &[f64]) -> String {
    values.iter().map(|value| format!("{value:.2}")).collect::<Vec<_>>().join(", ")
}

fn pers() -> String {
    PERS.map(scientific).join(", ")
}
