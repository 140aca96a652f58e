//! Explicit rates with the TCP of this machine's kernel, in real time, through the daemon.

use std::time::Duration;

use bentpipe_link::OutageTrace;
use bentpipe_units::Rate;

use super::{Lab, Load, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart, BarGroup};
use crate::results::Part;
use crate::statistics::{Sample, jain_index};
use crate::table::{Cell, Column, Table};
use crate::trial::{Flow, Measured, Trial};

const RTT: Duration = Duration::from_millis(600);
const TEN: Rate = Rate::mbps(10);
const FIFTY: Rate = Rate::mbps(50);
/// The proxy's congestion controls towards the satellite.
const CONTROLS: [&str; 3] = ["explicit", "hybla", "bbr"];
/// The links on which they are compared: the rate, and the packet error rate.
const LINKS: [(Rate, f64); 4] = [(TEN, 0.0), (TEN, 0.01), (TEN, 0.05), (FIFTY, 0.01)];
/// The connection, the request and the first windows take at most this long.
const STARTED: Duration = Duration::from_secs(5);
/// Within this time the controller finds the real rate of a link that is slower than configured.
const CONVERGED: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);
/// The start of the later two of four downloads.
const LATER: Duration = Duration::from_secs(30);
/// The rate at which the limited one of two downloads reads.
const LIMITED: Rate = match Rate::from_bps(500_000) {
    Some(rate) => rate,
    None => unreachable!(),
};
/// Trials that run at the same time. Each takes a tenth of a CPU; those of 50 Mbit/s take a third.
const AT_ONCE: usize = 2;
const TUNNELS: &str = include_str!("../../../../data/direttissima.csv");
const SPEED_KMH: f64 = 180.0;
/// 96 km at 180 km/h.
const JOURNEY: Duration = Duration::from_secs(1920);

/// The trials, in this order.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Case {
    /// A congestion control on a link, after the start-up.
    Alone { control: usize, link: usize },
    /// Explicit rates on a link, for a minute from the first SYN.
    FromTheStart { link: usize },
    /// Four downloads that begin together.
    Four,
    /// Two downloads, and two more later.
    TwoAndTwo,
    /// Two downloads, one of which reads slowly.
    OneLimited,
    /// The link carries half of the configured rate.
    Slower,
    /// No rate is configured.
    Unknown,
}

impl Case {
    fn all() -> Vec<Case> {
        let alone = (0..CONTROLS.len())
            .flat_map(|control| (0..LINKS.len()).map(move |link| Case::Alone { control, link }));
        let rest = [1, 3].map(|link| Case::FromTheStart { link }).into_iter();
        let shares = [Case::Four, Case::TwoAndTwo, Case::OneLimited, Case::Slower, Case::Unknown];
        alone.chain(rest).chain(shares).collect()
    }

    fn label(self) -> String {
        let on = |link: usize| format!("{}, PER {}%", LINKS[link].0, LINKS[link].1 * 100.0);
        match self {
            Case::Alone { control, link } => format!("{}, {}", CONTROLS[control], on(link)),
            Case::FromTheStart { link } => format!("explicit, {}, from the first SYN", on(link)),
            Case::Four => "four downloads".into(),
            Case::TwoAndTwo => format!("two downloads, and two more after {} s", LATER.as_secs()),
            Case::OneLimited => format!("two downloads, one of which reads {LIMITED}"),
            Case::Slower => "a link of 5 Mbit/s, configured as 10".into(),
            Case::Unknown => "no configured capacity".into(),
        }
    }

    fn trial(self, seed: u64) -> Trial {
        let of_a_minute = |link: usize, control, warmup| Trial {
            warmup,
            lasts: warmup + MINUTE,
            ..Trial::of_a_minute(LINKS[link].0, RTT, LINKS[link].1, control, seed)
        };
        let flow = |begins, reads| Flow { begins, reads, ..Flow::default() };
        let at_once = flow(Duration::ZERO, None);
        let plain = of_a_minute(1, CONTROLS[0], STARTED);
        match self {
            Case::Alone { control, link } => of_a_minute(link, CONTROLS[control], STARTED),
            Case::FromTheStart { link } => of_a_minute(link, CONTROLS[0], Duration::ZERO),
            Case::Four => Trial { flows: vec![at_once; 4], ..plain },
            Case::TwoAndTwo => Trial {
                flows: vec![at_once, at_once, flow(LATER, None), flow(LATER, None)],
                ..of_a_minute(1, CONTROLS[0], LATER + STARTED)
            },
            Case::OneLimited => Trial { flows: vec![at_once, flow(Duration::ZERO, Some(LIMITED))], ..plain },
            Case::Slower => Trial { rate: Rate::mbps(5), ..of_a_minute(1, CONTROLS[0], CONVERGED) },
            Case::Unknown => Trial { configured: None, ..plain },
        }
    }
}

/// All cases, with each seed.
pub(super) fn shares(lab: &Lab<'_>) -> Result<Output, Error> {
    let cases = Case::all();
    let jobs = cases.iter().flat_map(|&case| lab.seeds().map(move |seed| move || case.trial(seed).run()));
    let measured = rows(lab.side_by_side(AT_ONCE, Load::of_link(TEN), jobs.collect())?, lab.seeds().count());
    let measured = Measurements { by_case: cases.into_iter().zip(measured).collect() };
    Ok(Output {
        claims: measured.claims(),
        tables: vec![Part::new("trials", measured.table())],
        figures: vec![Part::new("goodput", measured.chart())],
    })
}

/// The railway, 32 minutes, or the first four of them in a quick look. All journeys run at the same time, to
/// save two of them.
pub(super) fn railway(lab: &Lab<'_>) -> Result<Output, Error> {
    let outages = OutageTrace::from_railway_csv(TUNNELS, SPEED_KMH).expect("the file is our own");
    let journey = |control, seed| {
        let trial = Trial {
            outages: outages.clone(),
            lasts: if lab.quick { JOURNEY / 8 } else { JOURNEY },
            ..Trial::of_a_minute(TEN, RTT, 0.01, control, seed)
        };
        move || trial.run()
    };
    let jobs: Vec<_> =
        CONTROLS.iter().flat_map(|control| lab.seeds().map(move |seed| journey(control, seed))).collect();
    let measured = rows(lab.side_by_side(jobs.len(), Load::of_link(TEN), jobs)?, lab.seeds().count());
    let mut table = Table::new(
        format!("A train at {SPEED_KMH} km/h, clear-sky goodput"),
        vec![
            Column::new("congestion control of the leg", ""),
            Column::new("goodput", "goodput_bps").shown_in("Mbit/s", 1e6),
            Column::new("of the limit", "of_limit").shown_in("%", 0.01),
        ],
    );
    for (control, runs) in CONTROLS.iter().zip(&measured) {
        table.push(vec![
            Cell::text(*control),
            Cell::interval(Some(summary(runs, |run| run.goodputs_bps[0])), 2),
            Cell::interval(Some(summary(runs, Measured::of_limit)), 1),
        ]);
    }
    let claim = Claim::ours("At 180 km/h the clear-sky goodput is 90% of the limit or more")
        .shown_in("%", 0.01, 1)
        .with(Range::at_least(0.9).of_mean(&summary(&measured[0], Measured::of_limit)));
    Ok(Output { claims: vec![claim], tables: vec![Part::new("railway", table)], figures: Vec::new() })
}

fn summary(runs: &[Measured], measure: impl Fn(&Measured) -> f64) -> Sample {
    over_seeds(runs.iter().map(measure))
}

/// The trials of each case, over the seeds.
struct Measurements {
    by_case: Vec<(Case, Vec<Measured>)>,
}

impl Measurements {
    fn runs(&self, case: Case) -> &[Measured] {
        &self.by_case.iter().find(|(other, _)| *other == case).expect("every case is tried").1
    }

    fn of(&self, case: Case, merit: impl Fn(&Measured) -> f64) -> Sample {
        summary(self.runs(case), merit)
    }

    fn table(&self) -> Table {
        let columns = vec![
            Column::new("", "trial"),
            Column::new("goodput of all", "goodput_bps").shown_in("Mbit/s", 1e6),
            Column::new("of the limit", "of_limit").shown_in("%", 0.01),
            Column::new("Jain index", "jain"),
            Column::new("queue, median", "queue_s").shown_in("ms", 0.001),
            Column::new("queue, 95%", "queue_95_s").shown_in("ms", 0.001),
            Column::new("dropped by the queue", "queue_drops").shown_in("%", 0.01),
        ];
        let mut table = Table::new("Explicit rates on the kernel, 600 ms", columns);
        for (case, runs) in &self.by_case {
            let cell = |merit: &dyn Fn(&Measured) -> f64, decimals| {
                Cell::interval(Some(summary(runs, merit)), decimals)
            };
            table.push(vec![
                Cell::text(case.label()),
                cell(&|run| run.goodputs_bps.iter().sum(), 2),
                cell(&Measured::of_limit, 1),
                cell(&jain, 4),
                cell(&Measured::median_queue_s, 0),
                cell(&|run| run.queue_s[run.queue_s.len() * 95 / 100], 0),
                cell(&|run| run.queue_drops, 2),
            ]);
        }
        table
    }

    fn chart(&self) -> BarChart {
        let links = LINKS.map(|(rate, per)| format!("{rate}, {} %", per * 100.0));
        let chart = BarChart::new(
            "A download through the proxy, of what the link can deliver",
            Axis::dimensionless("link, packet error rate"),
            Axis::new("goodput, of the limit", "%"),
            links,
        );
        CONTROLS.iter().enumerate().fold(chart, |chart, (control, name)| {
            let bars = (0..LINKS.len()).map(|link| {
                let runs = self.runs(Case::Alone { control, link });
                Some(summary(runs, Measured::of_limit).estimate().in_unit(0.01))
            });
            chart.with(BarGroup::new(*name, bars))
        })
    }

    fn claims(&self) -> Vec<Claim> {
        let [ten, fifty] = [1, 3].map(|link| Case::Alone { control: 0, link });
        vec![
            self.share("At PER 1%, 10 Mbit/s, a minute has 95% of the limit or more", ten, 0.95),
            self.share("The same at 50 Mbit/s", fifty, 0.95),
            self.queue(&[ten, fifty]),
            self.fair("Four downloads share with a Jain index of 0.98 or more", Case::Four),
            self.fair("The same where two of them have been running for 30 s", Case::TwoAndTwo),
            self.leaves_its_share(),
            self.share(
                "A link slower than configured by half has 90% of its real limit or more",
                Case::Slower,
                0.9,
            ),
            self.is_not_overfilled(),
        ]
    }

    fn share(&self, claim: &str, case: Case, least: f64) -> Claim {
        let share = self.of(case, Measured::of_limit);
        Claim::ours(claim).shown_in("%", 0.01, 1).with(Range::at_least(least).of_mean(&share))
    }

    fn queue(&self, cases: &[Case]) -> Claim {
        let test = |&case: &Case| {
            Range::below(0.05).of_mean(&self.of(case, Measured::median_queue_s)).at(case.label())
        };
        Claim::ours("Meanwhile the queue's delay is below 50 ms at the median")
            .shown_in("ms", 1e-3, 0)
            .with_all(cases.iter().map(test))
    }

    fn fair(&self, claim: &str, case: Case) -> Claim {
        Claim::ours(claim).shown_in("", 1.0, 4).with(Range::at_least(0.98).of_mean(&self.of(case, jain)))
    }

    fn leaves_its_share(&self) -> Claim {
        let free = |run: &Measured| run.goodputs_bps[0] / (run.limit_bps - run.goodputs_bps[1]);
        Claim::ours(
            "A download that is limited elsewhere leaves its share: the other has 95% of the rest or more",
        )
        .shown_in("%", 0.01, 1)
        .with(Range::at_least(0.95).of_mean(&self.of(Case::OneLimited, free)))
    }

    fn is_not_overfilled(&self) -> Claim {
        let dropped = self.of(Case::Slower, |run| run.queue_drops);
        Claim::ours("Its queue drops 1% of the packets or less")
            .shown_in("%", 0.01, 2)
            .with(Range::at_most(0.01).of_mean(&dropped))
    }
}

fn jain(run: &Measured) -> f64 {
    jain_index(&run.goodputs_bps).unwrap_or(1.0)
}
