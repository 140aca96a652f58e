//! One of two flows is limited elsewhere.

use bentpipe_sim::{Observer, Scenario};
use bentpipe_units::Time;

use super::{Findings, Lab, MBIT, PAYLOAD, SCENARIO, Variant};
use crate::Error;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

/// The start is over by then; what is compared is how the capacity is shared out afterwards.
const SETTLED_S: f64 = 20.0;
const CAPACITY: f64 = 100e6;
/// What the limited flow offers, IP bits per second.
const LIMIT: f64 = 0.5e6;

/// What the applications have received by the moment at which the start is over, and at the end.
#[derive(Debug, Default)]
struct Settled {
    flows: [Option<Bytes>; 2],
    samples: Vec<(f64, u64)>,
}

#[derive(Debug, Clone, Copy)]
struct Bytes {
    from: (f64, u64),
    to: (f64, u64),
}

impl Observer for Settled {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        let now = now.as_secs_f64();
        if flow == 0 {
            self.samples.push((now, bytes));
        }
        if now >= SETTLED_S {
            self.flows[flow].get_or_insert(Bytes { from: (now, bytes), to: (now, bytes) }).to = (now, bytes);
        }
    }
}

impl Settled {
    fn goodput(&self, flow: usize) -> f64 {
        let rate = |bytes: Bytes| 8.0 * (bytes.to.1 - bytes.from.1) as f64 / (bytes.to.0 - bytes.from.0);
        self.flows[flow].map_or(0.0, rate)
    }

    /// Mbit/s of the free flow in each second.
    fn course(&self) -> Vec<Point> {
        let whole = self.samples.iter().filter(|(at, _)| (at - at.round()).abs() < 1e-6);
        let whole: Vec<_> = whole.collect();
        let step = |pair: &[&(f64, u64)]| {
            let rate = 8.0 * (pair[1].1 - pair[0].1) as f64 / (pair[1].0 - pair[0].0);
            Point::new(pair[1].0, Estimate::from(rate / MBIT))
        };
        whole.windows(2).map(step).collect()
    }
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Findings, Error> {
    let scenario = |variant: Variant| lab.scenario(&SCENARIO, &variant.settings("satellite", "satellite"));
    let scenarios = Variant::ALL.map(scenario).into_iter().collect::<Result<Vec<Scenario>, _>>()?;
    let runs = lab.observe(&scenarios, Settled::default);
    let summary = |at: usize, merit: &dyn Fn(&Settled) -> f64| {
        let values: Vec<f64> = runs[at].iter().map(|(_, settled)| merit(settled)).collect();
        Summary::of(&values).expect("an experiment has a seed")
    };
    let available = (CAPACITY - LIMIT) * PAYLOAD;
    let share = |at: usize| summary(at, &|settled| settled.goodput(0) / available);
    let mut table = Table::new(
        "Goodput of two flows on 100 Mbit/s, from 20 s on",
        vec![
            Column::new("", "variant"),
            Column::new("the free flow", "free_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("the limited flow", "limited_goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("of what is available to the free flow", "free_share").shown_in("%", 1e-2),
        ],
    );
    for (at, variant) in Variant::ALL.into_iter().enumerate() {
        table.push(vec![
            Cell::text(variant.name()),
            Cell::interval(Some(summary(at, &|settled| settled.goodput(0))), 2),
            Cell::interval(Some(summary(at, &|settled| settled.goodput(1))), 2),
            Cell::interval(Some(share(at)), 1),
        ]);
    }
    let plot = Variant::ALL.into_iter().zip(&runs).fold(
        Plot::new(
            "The flow that nothing else limits, one run",
            Axis::new("time", "s"),
            Axis::new("goodput", "Mbit/s"),
        ),
        |plot, (variant, runs)| plot.with(Series::new(variant.name(), Style::Curve, runs[0].1.course())),
    );
    let (xcp, p_xcp) = (share(0).mean, share(1).mean);
    Ok(Findings {
        verdicts: vec![
            Verdict::new(
                "With XCP the free flow gets around 90% of what is available: 85 to 93%",
                (0.85..0.93).contains(&xcp),
                format!("{:.1} %", 100.0 * xcp),
            ),
            Verdict::new("With P-XCP it gets more than 95%", p_xcp > 0.95, format!("{:.1} %", 100.0 * p_xcp)),
        ],
        tables: vec![Part::new("goodput", table)],
        figures: vec![Part::new("goodput", plot)],
    })
}

// Losses.
