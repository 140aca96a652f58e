//! Outages of the satellite with the TCP of this machine's kernel, in real time: end to end, through the
//! daemon, and as bundles between two nodes, with the same satellite leg.

use std::time::Duration;

use bentpipe_link::OutageTrace;
use bentpipe_units::{ByteCount, Rate};

use super::{Curves, Lab, Load, Measure, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart};
use crate::results::Part;
use crate::statistics::Sample;
use crate::table::{Cell, Column};
use crate::trial::{Flow, Trial};

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const PER: f64 = 0.01;
/// The length of one outage in the middle of each run, seconds; 0 is the run that the others are compared
/// with.
const OUTAGES_S: [u64; 4] = [0, 1, 10, 60];
/// Until then connections and windows have grown.
const WARMUP: Duration = Duration::from_secs(10);
/// From the end of the warm-up to the outage, and from the outage to the end of the run.
const CLEAR: Duration = Duration::from_secs(45);
/// A fifth of a second of the link: delivery is nearly continuous, and headers and acknowledgements take a
/// thousandth.
const BUNDLE: ByteCount = ByteCount::new(250_000);
/// A file of some 42 s, and the start of the outage in its middle.
const FILE: ByteCount = ByteCount::new(50_000_000);
const FILE_OUTAGE_AT: Duration = Duration::from_secs(20);

/// How data crosses the satellite, and with which congestion control.
#[derive(Debug, Clone, Copy)]
struct Transport {
    name: &'static str,
    key: &'static str,
    congestion: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    EndToEnd,
    Proxy,
    Bundles,
}

const STREAMS: [Transport; 5] = [
    Transport { name: "end to end, CUBIC", key: "cubic", congestion: "cubic", kind: Kind::EndToEnd },
    Transport { name: "proxy, explicit", key: "proxy_explicit", congestion: "explicit", kind: Kind::Proxy },
    Transport {
        name: "bundles, explicit",
        key: "bundles_explicit",
        congestion: "explicit",
        kind: Kind::Bundles,
    },
    Transport { name: "proxy, hybla", key: "proxy_hybla", congestion: "hybla", kind: Kind::Proxy },
    Transport { name: "bundles, hybla", key: "bundles_hybla", congestion: "hybla", kind: Kind::Bundles },
];
/// The transports of a single file: those with explicit rates.
const FILES: [Transport; 2] = [STREAMS[1], STREAMS[2]];

impl Transport {
    fn label(self) -> (&'static str, &'static str) {
        (self.name, self.key)
    }

    fn trial(self, outages: OutageTrace, lasts: Duration, seed: u64) -> Trial {
        let (flows, bundles) = match self.kind {
            Kind::Bundles => (Vec::new(), Some(BUNDLE)),
            Kind::EndToEnd | Kind::Proxy => (vec![Flow::default()], None),
        };
        Trial {
            outages,
            lasts,
            warmup: WARMUP,
            split: self.kind == Kind::Proxy,
            flows,
            bundles,
            ..Trial::of_a_minute(RATE, RTT, PER, self.congestion, seed)
        }
    }

    /// Clear-sky goodput of a stream, bits per second; `clear` before the outage and behind it.
    fn stream(self, outage_s: u64, clear: Duration, seed: u64) -> Result<f64, Error> {
        let lasts = WARMUP + clear * 2 + Duration::from_secs(outage_s);
        let measured = self.trial(outage_at(WARMUP + clear, outage_s), lasts, seed).run()?;
        Ok(measured.goodputs_bps[0])
    }

    /// The transfer time of a file, seconds.
    fn file(self, outage_s: u64, seed: u64) -> Result<f64, Error> {
        let trial = self.trial(outage_at(FILE_OUTAGE_AT, outage_s), Duration::ZERO, seed);
        Ok(trial.file(FILE)?.as_secs_f64())
    }
}

fn outage_at(start: Duration, length_s: u64) -> OutageTrace {
    if length_s == 0 {
        return OutageTrace::none();
    }
    let row = format!("start_s,duration_s\n{},{length_s}\n", start.as_secs());
    OutageTrace::from_csv(&row).expect("a valid row")
}

/// For each outage and seed, all transports run at the same time.
pub(super) fn disruptive(lab: &Lab<'_>) -> Result<Output, Error> {
    let runs = STREAMS.len() + FILES.len();
    let clear = if lab.quick { CLEAR / 3 } else { CLEAR };
    let mut jobs: Vec<Box<dyn FnOnce() -> Result<f64, Error> + Send>> = Vec::new();
    for outage_s in OUTAGES_S {
        for seed in lab.seeds() {
            for transport in STREAMS {
                jobs.push(Box::new(move || transport.stream(outage_s, clear, seed)));
            }
            for transport in FILES {
                jobs.push(Box::new(move || transport.file(outage_s, seed)));
            }
        }
    }
    let by_outage = rows(rows(lab.side_by_side(runs, Load::of_link(RATE), jobs)?, runs), lab.seeds().count());
    let over_seeds = |run: usize| -> Vec<Sample> {
        by_outage.iter().map(|seeds| over_seeds(seeds.iter().map(|runs| runs[run]))).collect()
    };
    let streams = Curves::new(
        STREAMS.map(Transport::label),
        Measure::mbps("clear_sky_goodput_bps"),
        (0..STREAMS.len()).map(over_seeds).collect(),
    );
    let files = Curves::new(
        FILES.map(Transport::label),
        Measure { key: "file_s", unit: ("s", 1.0), decimals: 1 },
        (STREAMS.len()..runs).map(over_seeds).collect(),
    );
    let length = || Column::new("outage", "outage_s").shown_in("s", 1.0);
    let lengths = || OUTAGES_S.map(|length| vec![Cell::Number(length as f64, 0)]);
    let chart = streams.chart(BarChart::new(
        "A transfer with an outage in its middle",
        Axis::new("length of the outage", "s"),
        Axis::new("clear-sky goodput", "Mbit/s"),
        OUTAGES_S.map(|length| length.to_string()),
    ));
    Ok(Output {
        claims: claims(&streams, &files),
        tables: vec![
            Part::new(
                "goodput",
                streams.table(
                    "Clear-sky goodput, application to application, by the length of the outage",
                    [length()],
                    lengths(),
                ),
            ),
            Part::new(
                "file",
                files.table(
                    "A file of 50 MB, as a download and as one bundle: time until it is there",
                    [length()],
                    lengths(),
                ),
            ),
        ],
        figures: vec![Part::new("goodput", chart)],
    })
}

fn claims(streams: &Curves, files: &Curves) -> Vec<Claim> {
    let alike = |congestion, proxy: usize, bundles: usize| {
        Claim::ours(format!("With {congestion} the bundles' goodput is not more than 5% below the proxy's"))
            .shown_in("times", 1.0, 3)
            .with_all(streams.ratios(bundles, proxy, Range::at_least(0.95), at_lengths()))
    };
    let far_above = |transport: usize| {
        Claim::ours(format!("{} is far above CUBIC end to end (5 times or more)", STREAMS[transport].name))
            .shown_in("times", 1.0, 1)
            .with_all(streams.ratios(transport, 0, Range::at_least(5.0), at_lengths()))
    };
    vec![
        alike("explicit", 1, 2),
        alike("hybla", 3, 4),
        far_above(1),
        far_above(2),
        Claim::ours(
            "A file of 50 MB as one bundle takes not more than 5% longer than as a download through the proxy",
        )
        .shown_in("times", 1.0, 3)
        .with_all(files.ratios(1, 0, Range::at_most(1.05), at_lengths())),
    ]
}

fn at_lengths() -> impl Iterator<Item = String> {
    OUTAGES_S.into_iter().map(|length| format!("at {length} s"))
}
