//! Interruptions of the satellite: end to end, a PEP, and DTN. The slides to PEPSAL show a figure of short ones and say no
//! parameters; the long ones, which no TCP survives, are ours.

use super::{Experiment, Findings, Lab, Runs};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup, Plot, Point, Series, Style};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

const SCENARIO: (&str, &str) =
    ("scenarios/disruptive.toml", include_str!("../../../../scenarios/disruptive.toml"));
const MBIT: f64 = 1e6;

/// How long an interruption lasts, seconds; "short" in the slides.
const SHORT_S: [u32; 5] = [1, 3, 10, 30, 60];
/// Interruptions in a run, and the clear time before each and after the last.
const INTERRUPTIONS: u32 = 10;
const CLEAR_S: u32 = 60;

/// How long a single outage lasts, minutes. Linux gives a connection up after 15 minutes and a half.
const LONG_MIN: [u32; 4] = [10, 20, 60, 180];
/// The first of them that no connection survives.
const DEADLY: usize = 1;
/// When it begins, and what is to be transferred: more than twice what the link can have carried by then.
const OUTAGE_AT_S: u32 = 15;
const FILE_BYTES: f64 = 50e6;

pub(super) const DISRUPTIVE: Experiment = Experiment {
    name: "dtn-disruptive",
    title: "End-to-end TCP, PEPsal and DTN through interruptions of the satellite",
    source: "Caini, Firrincieli, Lacamera: PEPsal: a Performance Enhancing Proxy for TCP satellite connections, IEEE AESM 22(8), 2007, the slides",
    seeds: 10,
    run: disruptive,
    on_kernel: Some((1, super::disruptive_kernel::disruptive)),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Standard,
    Hybla,
    Pepsal,
    Dtn,
}

impl Way {
    const ALL: [Way; 4] = [Way::Standard, Way::Hybla, Way::Pepsal, Way::Dtn];

    fn name(self) -> &'static str {
        match self {
            Way::Standard => "end to end, NewReno",
            Way::Hybla => "end to end, Hybla",
            Way::Pepsal => "PEPsal (Hybla)",
            Way::Dtn => "DTN (Hybla)",
        }
    }

    fn key(self) -> &'static str {
        match self {
            Way::Standard => "newreno",
            Way::Hybla => "hybla",
            Way::Pepsal => "pepsal",
            Way::Dtn => "dtn",
        }
    }

    /// The scenario is DTN's; its legs are PEPsal's, and end to end there is one.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Way::Standard => &["flow.download.bundles=off", "flow.download.split=[]"],
            Way::Hybla => {
                &["flow.download.bundles=off", "flow.download.split=[]", "flow.download.tcp=satellite"]
            }
            Way::Pepsal => &["flow.download.bundles=off"],
            Way::Dtn => &[],
        }
    }
}

fn disruptive(lab: &Lab<'_>) -> Result<Findings, Error> {
    let short = Short::of(&run_all(lab, SHORT_S.map(short_interruptions))?);
    let long = Long::of(&run_all(lab, LONG_MIN.map(one_outage))?);
    Ok(Findings {
        verdicts: vec![
            short.far_above(Way::Pepsal),
            short.far_above(Way::Dtn),
            short.alike(),
            long.connections_die(),
            long.dtn_completes(),
        ],
        tables: vec![Part::new("goodput", short.table()), Part::new("outage", long.table())],
        figures: vec![Part::new("goodput", short.plot()), Part::new("outage", long.chart())],
    })
}

/// By way and then by situation.
fn run_all<const N: usize>(lab: &Lab<'_>, situations: [Vec<String>; N]) -> Result<Vec<Vec<Runs>>, Error> {
    let mut scenarios = Vec::with_capacity(Way::ALL.len() * N);
    for way in Way::ALL {
        let of_way = way.settings().iter().map(|&setting| setting.to_owned());
        for situation in &situations {
            let settings: Vec<String> = of_way.clone().chain(situation.iter().cloned()).collect();
            scenarios.push(lab.scenario(&SCENARIO, &settings)?);
        }
    }
    Ok(lab.run(&scenarios).chunks(N).map(<[Runs]>::to_vec).collect())
}

fn short_interruptions(length_s: u32) -> Vec<String> {
    let start = |number| CLEAR_S + number * (CLEAR_S + length_s);
    let outage = |number| format!("{{ start = \"{}s\", duration = \"{length_s}s\" }}", start(number));
    let outages: Vec<String> = (0..INTERRUPTIONS).map(outage).collect();
    vec![
        format!("duration={}s", start(INTERRUPTIONS)),
        format!("link.satellite.outages=[{}]", outages.join(", ")),
    ]
}

fn one_outage(length_min: u32) -> Vec<String> {
    vec![
        "duration=12h".into(),
        format!("flow.download.bytes={FILE_BYTES}"),
        "flow.download.start_within=0s".into(),
        format!("link.satellite.outages=[{{ start = \"{OUTAGE_AT_S}s\", duration = \"{length_min}m\" }}]"),
    ]
}

/// Clear-sky goodput by way and by the length of the interruptions.
struct Short(Vec<Vec<Summary>>);

impl Short {
    fn of(runs: &[Vec<Runs>]) -> Self {
        let goodput = |runs: &Runs| runs.first_flow(|flow| flow.clear_sky_goodput_bps);
        Self(runs.iter().map(|way| way.iter().map(goodput).collect()).collect())
    }

    fn way(&self, way: Way) -> &[Summary] {
        &self.0[way as usize]
    }

    fn ratios(&self, above: Way, below: Way) -> Vec<Estimate> {
        self.way(above).iter().zip(self.way(below)).map(|(above, below)| above.ratio_to(below)).collect()
    }

    fn table(&self) -> Table {
        let column = |way: Way| {
            Column::new(way.name(), format!("{}_clear_sky_goodput_bps", way.key())).shown_in("Mbit/s", MBIT)
        };
        let columns = [Column::new("interruption", "interruption_s").shown_in("s", 1.0)];
        let columns = columns.into_iter().chain(Way::ALL.map(column)).collect();
        let mut table = Table::new("Clear-sky goodput by the length of ten interruptions", columns);
        for (at, length) in SHORT_S.into_iter().enumerate() {
            let cells = self.0.iter().map(|way| Cell::interval(Some(way[at]), 2));
            table.push([Cell::Number(length.into(), 0)].into_iter().chain(cells).collect());
        }
        table
    }

    fn plot(&self) -> Plot {
        let axes =
            (Axis::new("each of ten interruptions", "s").log(), Axis::new("clear-sky goodput", "Mbit/s"));
        let plot = Plot::new("A download through interruptions, 60 s apart", axes.0, axes.1);
        Way::ALL.into_iter().zip(&self.0).fold(plot, |plot, (way, curve)| {
            let points = SHORT_S.into_iter().zip(curve);
            let points =
                points.map(|(length, value)| Point::new(length.into(), value.estimate().in_unit(MBIT)));
            plot.with(Series::new(way.name(), Style::Line, points))
        })
    }

    /// "Far above" is taken as three times: the figure is printed without numbers.
    fn far_above(&self, way: Way) -> Verdict {
        let ratios = self.ratios(way, Way::Standard);
        Verdict::new(
            format!(
                "{} is far above NewReno end to end (3 times or more) with interruptions of 1 to 60 s",
                way.name()
            ),
            ratios.iter().all(|ratio| ratio.value >= 3.0),
            told(&ratios, 1),
        )
    }

    fn alike(&self) -> Verdict {
        let ratios = self.ratios(Way::Dtn, Way::Pepsal);
        let alike = |ratio: &Estimate| ratio.may_be_at_least(0.9) && ratio.may_be_at_most(1.1);
        Verdict::new(
            "Ours: DTN and PEPsal, whose legs have the same TCP, are alike as long as it survives (within 10%)",
            ratios.iter().all(alike),
            told(&ratios, 2),
        )
    }
}

fn told(ratios: &[Estimate], decimals: usize) -> String {
    let told = |estimate: &Estimate| match estimate.half_width {
        Some(half) => format!("{:.decimals$} ± {half:.decimals$}", estimate.value),
        None => format!("{:.decimals$}", estimate.value),
    };
    let ratios: Vec<String> = ratios.iter().map(told).collect();
    format!("{} times at {} s", ratios.join(" / "), SHORT_S.map(|length| length.to_string()).join("/"))
}

/// What a single long outage leaves of a file, by way and by the length of the outage.
struct Long {
    /// Of the file's bytes.
    received: Vec<Vec<Summary>>,
    /// Of the runs those in which all of it has arrived.
    complete: Vec<Vec<Summary>>,
    /// When DTN had it all, seconds after the end of the outage; nothing where not every run did.
    time_after: Vec<Option<Summary>>,
}

impl Long {
    fn of(runs: &[Vec<Runs>]) -> Self {
        let by_way = |merit: fn(&bentpipe_sim::FlowResult) -> f64| {
            let of_way = |way: &Vec<Runs>| way.iter().map(|runs| runs.first_flow(merit)).collect();
            runs.iter().map(of_way).collect::<Vec<Vec<Summary>>>()
        };
        let time_after = |(runs, length): (&Runs, u32)| {
            let end = f64::from(OUTAGE_AT_S + 60 * length);
            let complete = runs.0.iter().all(|run| run.flows[0].complete);
            complete.then(|| runs.first_flow(|flow| flow.seconds - end))
        };
        Self {
            received: by_way(|flow| flow.bytes as f64 / FILE_BYTES),
            complete: by_way(|flow| f64::from(u8::from(flow.complete))),
            time_after: runs[Way::Dtn as usize].iter().zip(LONG_MIN).map(time_after).collect(),
        }
    }

    fn table(&self) -> Table {
        let column = |way: Way| {
            Column::new(format!("{}: received", way.name()), format!("{}_received_share", way.key()))
                .shown_in("%", 0.01)
        };
        let columns = [Column::new("outage", "outage_s").shown_in("min", 60.0)]
            .into_iter()
            .chain(Way::ALL.map(column))
            .chain([Column::new("DTN: complete after its end", "dtn_after_s").shown_in("s", 1.0)]);
        let mut table = Table::new("A file of 50 MB and an outage after 15 s", columns.collect());
        for (at, length) in LONG_MIN.into_iter().enumerate() {
            let cells = self.received.iter().map(|way| Cell::interval(Some(way[at]), 0));
            let row = [Cell::Number(f64::from(60 * length), 0)].into_iter().chain(cells);
            table.push(row.chain([Cell::interval(self.time_after[at], 0)]).collect());
        }
        table
    }

    fn chart(&self) -> BarChart {
        let chart = BarChart::new(
            "What arrives of 50 MB when an outage begins after 15 s",
            Axis::new("length of the outage", "min"),
            Axis::new("received", "%"),
            LONG_MIN.map(|length| length.to_string()),
        );
        Way::ALL.into_iter().zip(&self.received).fold(chart, |chart, (way, shares)| {
            let bars = shares.iter().map(|share| Some(share.estimate().in_unit(0.01)));
            chart.with(BarGroup::new(way.name(), bars))
        })
    }

    fn connections_die(&self) -> Verdict {
        let of_tcp = [Way::Standard, Way::Hybla, Way::Pepsal].map(|way| way as usize);
        let complete = |at: usize| of_tcp.map(|way| self.complete[way][at].mean);
        let survived = LONG_MIN[..DEADLY].iter().enumerate().all(|(at, _)| complete(at) == [1.0; 3]);
        let died = (DEADLY..LONG_MIN.len()).all(|at| complete(at) == [0.0; 3]);
        let received: Vec<String> =
            of_tcp.iter().map(|&way| format!("{:.0}", 100.0 * self.received[way][DEADLY].mean)).collect();
        Verdict::new(
            "Beyond the paper: through 10 minutes every connection lives, through 20 and more none does, PEPsal's neither",
            survived && died,
            format!("after 20 minutes {} % of the file have come, and no more will", received.join(", ")),
        )
    }

    fn dtn_completes(&self) -> Verdict {
        let complete = self.complete[Way::Dtn as usize].iter().all(|share| share.mean == 1.0);
        let after: Vec<String> = self
            .time_after
            .iter()
            .map(|time| time.map_or("never".into(), |time| format!("{:.0} s", time.mean)))
            .collect();
        Verdict::new(
            "Beyond the paper: DTN completes the transfer after an outage of any length, in every run",
            complete,
            format!("{} after its end", after.join(" / ")),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Progress;
    use crate::results::{Seeds, World};

    #[test]
    fn what_is_claimed_of_interruptions_comes_out() {
        let seeds = Seeds { first: 1, count: 2 };
        let results = DISRUPTIVE.run(World::Sim, seeds, &Progress::default()).unwrap();
        for verdict in results.verdicts {
            assert!(verdict.agrees, "{verdict:?}");
        }
    }
}
