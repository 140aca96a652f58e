//! Short downloads over a GEO link, whose time is that of their round trips: by one box, by two, and without.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::{ByteCount, Rate};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::{Experiment, Lab, Load, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, BarChart, BarGroup};
use crate::results::{Part, Plan};
use crate::statistics::{Estimate, Sample, at_95};
use crate::table::{Cell, Column, Table};
use crate::topology::PAYLOAD_SHARE;
use crate::trial::Trial;

pub(super) const SHORT_DOWNLOADS: Experiment = Experiment {
    name: "short-downloads",
    title: "Downloads of 4 MB and 200 kB over 10 Mbit/s and 600 ms at PER 1%, by one box and by two",
    source: "ours",
    plan: Plan::doubling(20),
    run: Some(virtual_time),
    on_kernel: Some((20, kernel)),
};

const SCENARIO: (&str, &str) =
    ("scenarios/explicit.toml", include_str!("../../../../scenarios/explicit.toml"));
const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const PER: f64 = 0.01;
const SIZES: [ByteCount; 2] = [ByteCount::new(4_000_000), ByteCount::new(200_000)];
/// Payload of a full packet, and all of it, bytes.
const PACKET: (u64, u64) = (1448, 1500);
/// Downloads at the same time: each takes a tenth of a processor.
const AT_ONCE: usize = 2;
/// The claims' threshold, of the minimum and of the same with repetitions.
const NEAR: f64 = 1.25;
/// Runs of the ideal sender.
const DRAWS: u64 = 1000;

/// How the download crosses the satellite. The client's receive buffer is its kernel's own.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scheme {
    /// The server's BBR.
    EndToEnd,
    OneBox,
    TwoBoxes,
    /// Two boxes that have just been started, and have not been told the rate.
    Untold,
}

const SCHEMES: [Scheme; 4] = [Scheme::EndToEnd, Scheme::OneBox, Scheme::TwoBoxes, Scheme::Untold];

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::EndToEnd => "end to end, BBR",
            Scheme::OneBox => "one box",
            Scheme::TwoBoxes => "two boxes",
            Scheme::Untold => "two boxes, rate not told",
        }
    }

    fn has_two_boxes(self) -> bool {
        matches!(self, Scheme::TwoBoxes | Scheme::Untold)
    }

    fn trial(self, seed: u64) -> Trial {
        let congestion = if self == Scheme::EndToEnd { "bbr" } else { "explicit" };
        Trial {
            split: self != Scheme::EndToEnd,
            terminal: self.has_two_boxes().then(|| congestion.to_owned()),
            far_box: self.has_two_boxes(),
            stock_client: true,
            configured: (self != Scheme::Untold).then_some(RATE),
            ..Trial::of_a_minute(RATE, RTT, PER, congestion, seed)
        }
    }

    /// The time until the first byte of the answer can be at the client, seconds: a round trip of the request
    /// and, but where a box at the terminal answers the SYN, one before.
    fn first_byte(self) -> f64 {
        let round_trips = if self.has_two_boxes() { 1.0 } else { 2.0 };
        round_trips * RTT.as_secs_f64()
    }

    /// The physical minimum, seconds: the first byte, and then all at what the link delivers of them.
    fn minimum(self, bytes: ByteCount) -> f64 {
        let delivered = RATE.bps() as f64 / 8.0 * PAYLOAD_SHARE * (1.0 - PER);
        self.first_byte() + bytes.get() as f64 / delivered
    }

    /// The same for a sender that repeats what was lost as soon as anyone can know of it: a round trip
    /// after it was sent, and again if the repetition is lost. Its median.
    fn minimum_with_repetitions(self, bytes: ByteCount) -> f64 {
        let mut all: Vec<f64> = (0..DRAWS).map(|draw| ideal_transfer(bytes, draw)).collect();
        all.sort_by(f64::total_cmp);
        self.first_byte() + all[all.len() / 2]
    }
}

/// The time from the first packet's departure to the last one's, whatever is lost is repeated, seconds.
fn ideal_transfer(bytes: ByteCount, seed: u64) -> f64 {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let time = PACKET.1 as f64 * 8.0 / RATE.bps() as f64;
    let (mut fresh, mut now, mut last) = (bytes.get().div_ceil(PACKET.0), 0.0, 0.0);
    let mut lost: VecDeque<f64> = VecDeque::new();
    while fresh > 0 || !lost.is_empty() {
        match lost.front() {
            Some(&known) if known <= now || fresh == 0 => {
                now = f64::max(now, known);
                lost.pop_front();
            }
            _ => fresh -= 1,
        }
        now += time;
        let draw = random.next_u64() as f64 / u64::MAX as f64;
        if draw < PER {
            lost.push_back(now + RTT.as_secs_f64());
        } else {
            last = now;
        }
    }
    last
}

/// The times of a scheme's downloads of one size, seconds.
struct Times {
    scheme: Scheme,
    bytes: ByteCount,
    by_seed: Sample,
    /// In ascending order.
    seconds: Vec<f64>,
}

impl Times {
    fn new(scheme: Scheme, bytes: ByteCount, mut seconds: Vec<f64>) -> Self {
        let by_seed = over_seeds(seconds.iter().copied());
        seconds.sort_by(f64::total_cmp);
        Self { scheme, bytes, by_seed, seconds }
    }

    fn median(&self) -> f64 {
        let middle = self.seconds.len() / 2;
        match self.seconds.len() % 2 {
            0 => (self.seconds[middle - 1] + self.seconds[middle]) / 2.0,
            _ => self.seconds[middle],
        }
    }
}

fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let cases: Vec<_> = SIZES.iter().flat_map(|&size| SCHEMES.map(|scheme| (scheme, size))).collect();
    let jobs = cases.iter().flat_map(|&(scheme, size)| {
        lab.seeds().map(move |seed| move || Ok(scheme.trial(seed).file(size)?.as_secs_f64()))
    });
    let measured = rows(lab.side_by_side(AT_ONCE, Load::of_link(RATE), jobs.collect())?, lab.seeds().count());
    let times = cases.into_iter().zip(measured);
    let times: Vec<_> = times.map(|((scheme, size), seconds)| Times::new(scheme, size, seconds)).collect();
    let mut claims = near_the_minimum(&times, Scheme::TwoBoxes);
    claims.push(boxes_save_time(&times));
    Ok(output(&times, claims))
}

/// One box and a client whose window has room for the link; virtual time has no Fast Open.
fn virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let settings = |size: ByteCount| {
        vec![
            "flow.download.count=1".into(),
            format!("flow.download.bytes={}", size.get()),
            "tcp.satellite.lost_retransmissions=true".into(),
            "link.terrestrial.rate=1Gbit/s".into(),
            "link.terrestrial.delay=0.5ms".into(),
        ]
    };
    let scenarios: Result<Vec<_>, _> =
        SIZES.iter().map(|&size| lab.scenario(&SCENARIO, &settings(size))).collect();
    let runs = lab.run(&scenarios?)?.into_iter().zip(SIZES);
    let times: Vec<_> = runs
        .map(|(runs, size)| {
            Times::new(Scheme::OneBox, size, runs.results().map(|run| run.flows[0].seconds).collect())
        })
        .collect();
    let claims = near_the_minimum(&times, Scheme::OneBox);
    Ok(output(&times, claims))
}

fn near_the_minimum(times: &[Times], scheme: Scheme) -> Vec<Claim> {
    let of_scheme = times.iter().filter(|times| times.scheme == scheme);
    let claim = |times: &Times, what: &str, minimum: f64| {
        let sentence = format!("{} of {}: the median is within {NEAR} of {what}", scheme.name(), times.bytes);
        Claim::ours(sentence)
            .shown_in("s", 1.0, 2)
            .with(Range::at_most(NEAR * minimum).of_median(&times.by_seed))
            .noting(format!("{:.2} times {minimum:.2} s", times.median() / minimum))
    };
    of_scheme
        .flat_map(|times| {
            let bounds = [scheme.minimum(times.bytes), scheme.minimum_with_repetitions(times.bytes)];
            [
                claim(times, "the physical minimum", bounds[0]),
                claim(times, "the same with repetitions", bounds[1]),
            ]
        })
        .collect()
}

/// The median of the differences seed by seed.
fn boxes_save_time(times: &[Times]) -> Claim {
    let of = |bytes, scheme| {
        times.iter().find(|times| times.bytes == bytes && times.scheme == scheme).expect("all are tried")
    };
    let saved = |bytes: ByteCount, [more, less]: [Scheme; 2]| {
        let saved = of(bytes, less).by_seed.paired(&of(bytes, more).by_seed, |less, more| less - more);
        Range::above(0.0).of_median(&saved.expect("times are finite")).at(format!(
            "saved by {} of {bytes} after {}",
            more.name(),
            less.name()
        ))
    };
    let steps = [[Scheme::OneBox, Scheme::EndToEnd], [Scheme::TwoBoxes, Scheme::OneBox]];
    let medians = SIZES
        .map(|bytes| super::listed(SCHEMES[..3].iter().map(|&scheme| of(bytes, scheme).median()), 2, " / "));
    Claim::ours("One box is faster than BBR end to end, and two are faster than one")
        .shown_in("s", 1.0, 2)
        .with_all(SIZES.iter().flat_map(|&bytes| steps.map(|step| saved(bytes, step))))
        .noting(format!("medians {} s", medians.join(" s and ")))
}

fn output(times: &[Times], claims: Vec<Claim>) -> Output {
    Output {
        claims,
        tables: vec![Part::new("times", table(times))],
        figures: vec![Part::new("times", chart(times))],
    }
}

fn table(times: &[Times]) -> Table {
    let mut table = Table::new(
        "Time of a download, from its SYN on",
        vec![
            Column::new("", "case"),
            Column::new("median", "median_s").shown_in("s", 1.0),
            Column::new("95%", "p95_s").shown_in("s", 1.0),
            Column::new("physical minimum", "minimum_s").shown_in("s", 1.0),
            Column::new("the same with repetitions, median", "minimum_with_repetitions_s").shown_in("s", 1.0),
            Column::new("median, of the minimum", "of_minimum"),
        ],
    );
    for times in times {
        let (scheme, minimum) = (times.scheme, times.scheme.minimum(times.bytes));
        table.push(vec![
            Cell::text(format!("{}, {}", times.bytes, scheme.name())),
            Cell::Number(times.median(), 2),
            Cell::Number(at_95(&times.seconds), 2),
            Cell::Number(minimum, 2),
            Cell::Number(scheme.minimum_with_repetitions(times.bytes), 2),
            Cell::Number(times.median() / minimum, 2),
        ]);
    }
    table
}

fn chart(times: &[Times]) -> BarChart {
    let chart = BarChart::new(
        "Time of a download over 10 Mbit/s and 600 ms, PER 1%",
        Axis::dimensionless("size"),
        Axis::new("median time", "s"),
        SIZES.map(|size| size.to_string()),
    );
    let schemes = SCHEMES.iter().filter(|&&scheme| times.iter().any(|times| times.scheme == scheme));
    schemes.fold(chart, |chart, &scheme| {
        let of_scheme = times.iter().filter(|times| times.scheme == scheme);
        let bars = of_scheme.map(|times| Some(Estimate::from(times.median())));
        chart.with(BarGroup::new(scheme.name(), bars))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;
    use crate::results::Verdict;

    #[test]
    fn two_boxes_have_a_round_trip_less_than_one() {
        for size in SIZES {
            let saved = Scheme::OneBox.minimum(size) - Scheme::TwoBoxes.minimum(size);
            assert!((saved - RTT.as_secs_f64()).abs() < 1e-9, "{saved}");
        }
    }

    #[test]
    fn a_loss_costs_the_ideal_sender_at_most_a_round_trip_for_each_repetition() {
        let sent = |bytes: u64, seed| ideal_transfer(ByteCount::new(bytes), seed);
        let one = PACKET.1 as f64 * 8.0 / RATE.bps() as f64;
        for seed in 0..1000 {
            let packet = sent(1, seed);
            let repetitions = (packet / RTT.as_secs_f64()).floor();
            let expected = one + repetitions * (RTT.as_secs_f64() + one);
            assert!((packet - expected).abs() < 1e-6 && repetitions < 4.0, "{packet}");
        }
    }

    #[test]
    fn in_virtual_time_one_box_is_near_the_minimum_with_repetitions() {
        let results = in_virtual_time(&SHORT_DOWNLOADS, 8);
        let with_repetitions =
            results.verdicts.iter().filter(|verdict| verdict.claim.contains("repetitions"));
        assert_eq!(with_repetitions.clone().count(), SIZES.len());
        assert!(with_repetitions.clone().all(Verdict::agrees), "{:#?}", results.verdicts);
    }
}
