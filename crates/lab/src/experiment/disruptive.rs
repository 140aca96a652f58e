//! Interruptions of the satellite: end to end, with a PEP, and with DTN. The slides of PEPSAL show a figure
//! of short interruptions without their parameters. The long ones, which no TCP survives, are ours.

use bentpipe_sim::FlowResult;

use super::{Curves, Experiment, Lab, Measure, Output, Runs, Scheme, listed};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart, Plot};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};

const SCENARIO: (&str, &str) =
    ("scenarios/disruptive.toml", include_str!("../../../../scenarios/disruptive.toml"));

/// The length of an interruption, seconds; "short" in the slides.
const SHORT_S: [u32; 5] = [1, 3, 10, 30, 60];
/// Interruptions in a run, and the clear time before each and after the last, seconds.
const INTERRUPTIONS: u32 = 10;
const CLEAR_S: u32 = 60;

/// The length of a single outage, minutes. Linux gives a connection up after 15 minutes and a half.
const LONG_MIN: [u32; 4] = [10, 20, 60, 180];
/// The index of the shortest outage that no connection survives.
const DEADLY: usize = 1;
/// The start of the outage, and the size of the file: more than twice what the link can carry until then.
const OUTAGE_AT_S: u32 = 15;
const FILE_BYTES: f64 = 50e6;

pub(super) const DISRUPTIVE: Experiment = Experiment {
    name: "dtn-disruptive",
    title: "End-to-end TCP, PEPsal and DTN through interruptions of the satellite",
    source: "Caini, Firrincieli, Lacamera: PEPsal: a Performance Enhancing Proxy for TCP satellite \
        connections, IEEE AESM 22(8), 2007, the slides",
    plan: Plan::fixed(10),
    run: Some(disruptive),
    on_kernel: Some((1, super::disruptive_kernel::disruptive)),
};

const STANDARD: usize = 0;
const PEPSAL: usize = 2;
const DTN: usize = 3;
/// The scenario is DTN's. PEPsal has the same legs; end to end there is one leg.
const SCHEMES: [Scheme; 4] = [
    Scheme {
        name: "end to end, NewReno",
        key: "newreno",
        settings: &["flow.download.bundles=off", "flow.download.split=[]"],
    },
    Scheme {
        name: "end to end, Hybla",
        key: "hybla",
        settings: &["flow.download.bundles=off", "flow.download.split=[]", "flow.download.tcp=satellite"],
    },
    Scheme { name: "PEPsal (Hybla)", key: "pepsal", settings: &["flow.download.bundles=off"] },
    Scheme { name: "DTN (Hybla)", key: "dtn", settings: &[] },
];

fn disruptive(lab: &Lab<'_>) -> Result<Output, Error> {
    let short =
        lab.sweep(&SCENARIO, &SCHEMES, &SHORT_S, |scheme, length| scheme.with(short_interruptions(length)))?;
    let long = lab.sweep(&SCENARIO, &SCHEMES, &LONG_MIN, |scheme, length| scheme.with(one_outage(length)))?;
    let short = Curves::of_runs(SCHEMES, Measure::mbps("clear_sky_goodput_bps"), &short, |runs| {
        runs.first_flow(|flow| flow.clear_sky_goodput_bps)
    });
    let long = Long::of(&long);
    let length = Column::new("interruption", "interruption_s").shown_in("s", 1.0);
    let goodput = short.table(
        "Clear-sky goodput by the length of ten interruptions",
        [length],
        SHORT_S.map(|length| vec![Cell::Number(length.into(), 0)]),
    );
    let plot = Plot::new(
        "A download through interruptions, 60 s apart",
        Axis::new("each of ten interruptions", "s").log(),
        Axis::new("clear-sky goodput", "Mbit/s"),
    );
    Ok(Output {
        claims: vec![
            far_above(&short, PEPSAL),
            far_above(&short, DTN),
            alike(&short),
            long.connections_die(),
            long.dtn_completes(),
        ],
        tables: vec![Part::new("goodput", goodput), Part::new("outage", long.table())],
        figures: vec![
            Part::new("goodput", short.plot(plot, SHORT_S.map(f64::from))),
            Part::new("outage", long.chart()),
        ],
    })
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

/// "Far above" is taken as three times, because the figure is printed without numbers.
fn far_above(goodput: &Curves, scheme: usize) -> Claim {
    Claim::expected(
        format!(
            "{} is far above NewReno end to end (3 times or more) with interruptions of 1 to 60 s",
            SCHEMES[scheme].name
        ),
        "the slides, \"performance on disruptive channels (short interruptions)\"",
    )
    .shown_in("times", 1.0, 1)
    .with_all(goodput.ratios(scheme, STANDARD, Range::at_least(3.0), at_lengths()))
}

fn alike(goodput: &Curves) -> Claim {
    Claim::ours("DTN and PEPsal, whose legs have the same TCP, are alike as long as it survives (within 10%)")
        .with_all(goodput.ratios(DTN, PEPSAL, Range::between(0.9, 1.1), at_lengths()))
}

fn at_lengths() -> impl Iterator<Item = String> {
    SHORT_S.into_iter().map(|length| format!("at {length} s"))
}

/// A file's transfer with a single long outage, by scheme and by the length of the outage.
struct Long {
    /// The received share of the file.
    received: Curves,
    /// Whether all of the file has arrived, by scheme, length and run: 1 if it has, else 0.
    complete: Vec<Vec<Sample>>,
    /// When DTN had the whole file, in seconds after the end of the outage; `None` where not every run
    /// finished.
    time_after: Vec<Option<Sample>>,
}

impl Long {
    fn of(runs: &[Vec<Runs>]) -> Self {
        let measure = Measure { key: "received_share", unit: ("%", 0.01), decimals: 0 };
        let share = |flow: &FlowResult| flow.bytes as f64 / FILE_BYTES;
        let complete = |runs: &Runs| runs.first_flow(|flow| f64::from(u8::from(flow.finished)));
        let time_after = |(runs, length): (&Runs, u32)| {
            let end = f64::from(OUTAGE_AT_S + 60 * length);
            let all_finished = runs.results().all(|run| run.flows[0].finished);
            all_finished.then(|| runs.first_flow(|flow| flow.seconds - end))
        };
        Self {
            received: Curves::of_runs(SCHEMES, measure, runs, |runs| runs.first_flow(share)),
            complete: runs.iter().map(|runs| runs.iter().map(complete).collect()).collect(),
            time_after: runs[DTN].iter().zip(LONG_MIN).map(time_after).collect(),
        }
    }

    fn table(&self) -> Table {
        let column = |scheme: Scheme| {
            Column::new(format!("{}: received", scheme.name), format!("{}_received_share", scheme.key))
                .shown_in("%", 0.01)
        };
        let columns = [Column::new("outage", "outage_s").shown_in("min", 60.0)]
            .into_iter()
            .chain(SCHEMES.map(column))
            .chain([Column::new("DTN: finished after its end", "dtn_after_s").shown_in("s", 1.0)]);
        let mut table = Table::new("A file of 50 MB and an outage after 15 s", columns.collect());
        for (at, length) in LONG_MIN.into_iter().enumerate() {
            let cells = self.received.all().iter().map(|shares| Cell::interval(Some(&shares[at]), 0));
            let row = [Cell::Number(f64::from(60 * length), 0)].into_iter().chain(cells);
            table.push(row.chain([Cell::interval(self.time_after[at].as_ref(), 0)]).collect());
        }
        table
    }

    fn chart(&self) -> BarChart {
        self.received.chart(BarChart::new(
            "What arrives of 50 MB when an outage begins after 15 s",
            Axis::new("length of the outage", "min"),
            Axis::new("received", "%"),
            LONG_MIN.map(|length| length.to_string()),
        ))
    }

    fn connections_die(&self) -> Claim {
        let of_tcp = |at: std::ops::Range<usize>| -> Vec<f64> {
            let lengths = self.complete[..DTN].iter().flat_map(|complete| &complete[at.clone()]);
            lengths.flat_map(Sample::values).copied().collect()
        };
        let received = self.received.all()[..DTN].iter().map(|shares| 100.0 * shares[DEADLY].mean());
        Claim::ours(
            "Through 10 minutes every connection lives, through 20 and more none does, PEPsal's neither, in \
             every run",
        )
        .shown_in("finished", 1.0, 0)
        .with(Range::at_least(1.0).of_each(of_tcp(0..DEADLY)).at("after 10 minutes"))
        .with(Range::at_most(0.0).of_each(of_tcp(DEADLY..LONG_MIN.len())).at("after 20 and more"))
        .noting(format!(
            "after 20 minutes {} % of the file have come, and no more will",
            listed(received, 0, ", ")
        ))
    }

    fn dtn_completes(&self) -> Claim {
        let complete = self.complete[DTN].iter().flat_map(Sample::values).copied().collect();
        let after: Vec<String> = self
            .time_after
            .iter()
            .map(|time| time.as_ref().map_or("never".into(), |time| format!("{:.0} s", time.mean())))
            .collect();
        Claim::ours("DTN completes the transfer after an outage of any length, in every run")
            .shown_in("finished", 1.0, 0)
            .with(Range::at_least(1.0).of_each(complete))
            .noting(format!("{} after its end", after.join(" / ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Outcome;
    use crate::experiment::in_virtual_time;

    #[test]
    fn no_claim_about_interruptions_is_refuted_and_those_about_long_ones_agree() {
        let results = in_virtual_time(&DISRUPTIVE, 5);
        assert_eq!(results.contradicted().count(), 0, "{:#?}", results.verdicts);
        // Of three schemes and three lengths there are enough runs; of one length there are not.
        let [dies, completes] = [3, 4].map(|claim: usize| results.verdicts[claim].outcome);
        assert_eq!((dies, completes), (Outcome::Undecided, Outcome::Undecided));
        let [pepsal, dtn] = [0, 1].map(|claim: usize| results.verdicts[claim].agrees());
        assert!(pepsal && dtn, "{:#?}", results.verdicts);
    }
}
