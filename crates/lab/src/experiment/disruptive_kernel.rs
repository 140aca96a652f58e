//! Outages of the satellite with the TCP of this machine's kernel, in real time: end to end, through the daemon, and as bundles
//! from a node to another, with the same satellite leg.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bentpipe_link::OutageTrace;
use bentpipe_units::{ByteCount, Rate};

use super::{Findings, Lab};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};
use crate::trial::{Measured, Trial};

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const PER: f64 = 0.01;
const MBIT: f64 = 1e6;
/// One outage in the middle of each run, seconds; none is what an outage is compared with.
const OUTAGES_S: [u64; 4] = [0, 1, 10, 60];
/// Connections and windows have grown by then, and the outage begins so much later, and ends so long before the end.
const WARMUP: Duration = Duration::from_secs(10);
const CLEAR: Duration = Duration::from_secs(45);
/// A fifth of a second of the link: delivery is as good as continuous, and heads and acknowledgements are a part in a thousand.
const BUNDLE: ByteCount = ByteCount::new(250_000);
/// A file of some 42 s, and when the link goes down in its middle.
const FILE: ByteCount = ByteCount::new(50_000_000);
const FILE_OUTAGE_AT: Duration = Duration::from_secs(20);

/// How data gets across.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    EndToEnd,
    Proxy(&'static str),
    Bundles(&'static str),
}

impl Way {
    const ALL: [Way; 5] = [
        Way::EndToEnd,
        Way::Proxy("explicit"),
        Way::Bundles("explicit"),
        Way::Proxy("hybla"),
        Way::Bundles("hybla"),
    ];
    /// The ways of a file: the proxy's and the nodes'.
    const OF_FILE: [Way; 2] = [Way::Proxy("explicit"), Way::Bundles("explicit")];

    fn name(self) -> String {
        match self {
            Way::EndToEnd => "end to end, CUBIC".into(),
            Way::Proxy(congestion) => format!("proxy, {congestion}"),
            Way::Bundles(congestion) => format!("bundles, {congestion}"),
        }
    }

    fn key(self) -> String {
        match self {
            Way::EndToEnd => "cubic".into(),
            Way::Proxy(congestion) => format!("proxy_{congestion}"),
            Way::Bundles(congestion) => format!("bundles_{congestion}"),
        }
    }

    fn trial(self, outages: OutageTrace, lasts: Duration, seed: u64) -> Trial {
        let congestion = match self {
            Way::EndToEnd => "cubic",
            Way::Proxy(congestion) | Way::Bundles(congestion) => congestion,
        };
        let trial = Trial {
            outages,
            lasts,
            warmup: WARMUP,
            split: matches!(self, Way::Proxy(_)),
            ..Trial::of_a_minute(RATE, RTT, PER, congestion, seed)
        };
        match self {
            Way::Bundles(_) => Trial { flows: Vec::new(), bundles: Some(BUNDLE), ..trial },
            _ => trial,
        }
    }
}

/// What one seed finds of one outage: by way.
struct Round {
    streams: Vec<Measured>,
    /// Seconds.
    files: Vec<f64>,
}

pub(super) fn disruptive(lab: &Lab<'_>) -> Result<Findings, Error> {
    let runs = Way::ALL.len() + Way::OF_FILE.len();
    let rounds = (OUTAGES_S.len() * lab.seeds().count() * runs) as u64;
    lab.progress.planned.fetch_add(rounds, Ordering::Relaxed);
    let by_seed = |outage_s| lab.seeds().map(move |seed| round(lab, outage_s, seed)).collect();
    let found = Found(OUTAGES_S.into_iter().map(by_seed).collect::<Result<_, Error>>()?);
    Ok(Findings {
        verdicts: found.verdicts(),
        tables: vec![Part::new("goodput", found.goodputs()), Part::new("file", found.files())],
        figures: vec![Part::new("goodput", found.chart())],
    })
}

/// All ways at the same time, so that what disturbs the machine disturbs all of them alike.
fn round(lab: &Lab<'_>, outage_s: u64, seed: u64) -> Result<Round, Error> {
    let outage = Duration::from_secs(outage_s);
    let streams = Way::ALL.map(|way| {
        let trial = way.trial(outage_at(WARMUP + CLEAR, outage_s), WARMUP + CLEAR * 2 + outage, seed);
        move || trial.run()
    });
    let files = Way::OF_FILE.map(|way| {
        let trial = way.trial(outage_at(FILE_OUTAGE_AT, outage_s), Duration::ZERO, seed);
        move || trial.file(FILE)
    });
    std::thread::scope(|scope| {
        let streams = streams.map(|run| scope.spawn(|| done(lab, run)));
        let files = files.map(|run| scope.spawn(|| done(lab, run)));
        let streams = streams.into_iter().map(|run| run.join().expect("a trial does not panic")).collect();
        let files = files.into_iter().map(|run| run.join().expect("a trial does not panic"));
        Ok(Round {
            streams: Result::from_iter::<Vec<_>>(streams)?,
            files: files.map(|time| Ok(time?.as_secs_f64())).collect::<Result<_, Error>>()?,
        })
    })
}

fn done<T>(lab: &Lab<'_>, run: impl FnOnce() -> T) -> T {
    let outcome = run();
    lab.progress.done.fetch_add(1, Ordering::Relaxed);
    outcome
}

fn outage_at(start: Duration, length_s: u64) -> OutageTrace {
    if length_s == 0 {
        return OutageTrace::none();
    }
    let row = format!("start_s,duration_s\n{},{length_s}\n", start.as_secs());
    OutageTrace::from_csv(&row).expect("a valid row")
}

/// By outage and seed.
struct Found(Vec<Vec<Round>>);

impl Found {
    fn goodput(&self, outage: usize, way: Way) -> Summary {
        let at = Way::ALL.iter().position(|other| *other == way).expect("one of all ways");
        self.summary(outage, |round| round.streams[at].goodputs_bps[0])
    }

    fn file(&self, outage: usize, way: usize) -> Summary {
        self.summary(outage, |round| round.files[way])
    }

    fn summary(&self, outage: usize, merit: impl Fn(&Round) -> f64) -> Summary {
        let values: Vec<f64> = self.0[outage].iter().map(merit).collect();
        Summary::of(&values).expect("an experiment has a seed")
    }

    fn ratios(&self, above: Way, below: Way) -> Vec<f64> {
        let goodput = |outage, way| self.goodput(outage, way).mean;
        (0..OUTAGES_S.len()).map(|outage| goodput(outage, above) / goodput(outage, below)).collect()
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let alike = |congestion| {
            let ratios = self.ratios(Way::Bundles(congestion), Way::Proxy(congestion));
            Verdict::new(
                format!("Ours: with {congestion} the bundles' goodput is not more than 5% below the proxy's"),
                ratios.iter().all(|ratio| *ratio >= 0.95),
                told(&ratios, 3),
            )
        };
        let far_above = |way: Way| {
            let ratios = self.ratios(way, Way::EndToEnd);
            Verdict::new(
                format!("{} is far above CUBIC end to end (5 times or more)", way.name()),
                ratios.iter().all(|ratio| *ratio >= 5.0),
                told(&ratios, 1),
            )
        };
        let files: Vec<f64> =
            (0..OUTAGES_S.len()).map(|at| self.file(at, 1).mean / self.file(at, 0).mean).collect();
        vec![
            alike("explicit"),
            alike("hybla"),
            far_above(Way::Proxy("explicit")),
            far_above(Way::Bundles("explicit")),
            Verdict::new(
                "Ours: a file of 50 MB as one bundle takes not more than 5% longer than as a download through the proxy",
                files.iter().all(|ratio| *ratio <= 1.05),
                told(&files, 3),
            ),
        ]
    }

    fn goodputs(&self) -> Table {
        let columns = Way::ALL.map(|way| {
            Column::new(way.name(), format!("{}_clear_sky_goodput_bps", way.key())).shown_in("Mbit/s", MBIT)
        });
        let columns = [Column::new("outage", "outage_s").shown_in("s", 1.0)].into_iter().chain(columns);
        let mut table = Table::new(
            "Clear-sky goodput, application to application, by the length of the outage",
            columns.collect(),
        );
        for (at, length) in OUTAGES_S.into_iter().enumerate() {
            let cells = Way::ALL.map(|way| Cell::interval(Some(self.goodput(at, way)), 2));
            table.push([Cell::Number(length as f64, 0)].into_iter().chain(cells).collect());
        }
        table
    }

    fn files(&self) -> Table {
        let column = |way: Way| Column::new(way.name(), format!("{}_file_s", way.key())).shown_in("s", 1.0);
        let columns = [Column::new("outage", "outage_s").shown_in("s", 1.0)];
        let columns = columns.into_iter().chain(Way::OF_FILE.map(column)).collect();
        let mut table =
            Table::new("A file of 50 MB, as a download and as one bundle: time until it is there", columns);
        for (at, length) in OUTAGES_S.into_iter().enumerate() {
            let cells = [0, 1].map(|way| Cell::interval(Some(self.file(at, way)), 1));
            table.push([Cell::Number(length as f64, 0)].into_iter().chain(cells).collect());
        }
        table
    }

    fn chart(&self) -> BarChart {
        let chart = BarChart::new(
            "A transfer with an outage in its middle",
            Axis::new("length of the outage", "s"),
            Axis::new("clear-sky goodput", "Mbit/s"),
            OUTAGES_S.map(|length| length.to_string()),
        );
        Way::ALL.into_iter().fold(chart, |chart, way| {
            let bar = |at| -> Option<Estimate> { Some(self.goodput(at, way).estimate().in_unit(MBIT)) };
            chart.with(BarGroup::new(way.name(), (0..OUTAGES_S.len()).map(bar)))
        })
    }
}

fn told(ratios: &[f64], decimals: usize) -> String {
    let told: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.decimals$}")).collect();
    format!("{} times at {} s", told.join(" / "), OUTAGES_S.map(|length| length.to_string()).join("/"))
}
