//! A leg that the gateway does not have to itself: split downloads beside others that it cannot tell a rate,
//! on the kernel (QUIC, UDP) and in virtual time (TCP end to end, a stream that its source limits).
//!
//! One packet in a thousand is lost: fewer losses would leave QUIC's CUBIC to grow until the queue overflows,
//! and more would leave it so little that nothing is shared.

use std::time::Duration;

use bentpipe_link::explicit::CrossTrafficShare;
use bentpipe_link::{Counters, DirectionConfig};
use bentpipe_sim::Observer;
use bentpipe_units::{ByteCount, Probability, Rate, Time};

use super::{Experiment, Lab, Load, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::course::{self, Carries, Course};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};
use crate::trial::{CrossTraffic, Flow, Trial};

const SCENARIO: (&str, &str) =
    ("scenarios/shared-leg.toml", include_str!("../../../../scenarios/shared-leg.toml"));
/// The satellite among the scenario's links.
const SATELLITE: usize = 2;

pub(super) const SHARED_LEG: Experiment = Experiment {
    name: "shared-leg",
    title: "Split downloads beside QUIC and UDP on one leg",
    source: "ours",
    plan: Plan::doubling(3),
    run: Some(virtual_time),
    on_kernel: Some((3, kernel)),
};

const MBPS: u64 = 20;
const RTT: Duration = Duration::from_millis(600);
const PER: f64 = 0.001;
const STREAM_MBPS: u64 = 2;
/// Split downloads, and as many others.
const FLOWS: usize = 4;
/// The run without its start, seconds.
const FROM: f64 = 20.0;
const UNTIL: f64 = 59.5;

/// The claims' thresholds.
const USED: f64 = 0.97;
const QUEUE_S: f64 = 0.03;
/// Of what the others have alone: their losses come at random.
const OF_ALONE: f64 = 0.9;
const OF_STREAM: f64 = 0.98;
/// Of the payload in their share: above its own, the other side has the queue overflow, and both lose by
/// that.
const OF_SHARE: f64 = 0.85;

/// Who is on the leg.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scheme {
    /// The split downloads always give way.
    Ample,
    /// What is not split has the default share, less than it asks for.
    Scarce,
    /// Nothing is split.
    Alone,
}

const SCHEMES: [Scheme; 3] = [Scheme::Ample, Scheme::Scarce, Scheme::Alone];

/// What one run has measured: bits per second of payload, and the link.
#[derive(Debug, Clone, Copy)]
struct Run {
    split_bps: f64,
    others_bps: f64,
    stream_bps: f64,
    used: f64,
    queue_95_s: f64,
}

impl Scheme {
    fn share(self) -> f64 {
        if self == Self::Scarce { CrossTrafficShare::default().get() } else { 1.0 }
    }

    fn split(self) -> usize {
        if self == Self::Alone { 0 } else { FLOWS }
    }

    fn name(self) -> String {
        match self {
            Self::Alone => "nothing is split".into(),
            _ => format!("cross_traffic = \"{:.0}%\"", 100.0 * self.share()),
        }
    }

    fn trial(self, seed: u64) -> Trial {
        let cross_traffic = CrossTraffic {
            quic: FLOWS,
            udp: Some(Rate::mbps(STREAM_MBPS)),
            share: Probability::new(self.share()),
            ..CrossTraffic::default()
        };
        Trial {
            configured: None,
            flows: vec![Flow::default(); self.split()],
            cross_traffic,
            warmup: Duration::from_secs_f64(FROM),
            ..Trial::of_a_minute(Rate::mbps(MBPS), RTT, PER, "explicit", seed)
        }
    }

    fn settings(self) -> Vec<String> {
        vec![
            format!("flow.split.count={}", self.split()),
            format!("link.satellite.explicit.cross_traffic={}", self.share()),
            "sample_interval=10ms".into(),
        ]
    }
}

/// Each scheme with each seed, on the kernel.
fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let jobs = SCHEMES.iter().flat_map(|&scheme| {
        lab.seeds().map(move |seed| {
            move || {
                let measured = scheme.trial(seed).run()?;
                let window = measured.course.between(FROM, UNTIL).expect("the run was as long");
                let (quic, stream) = measured.cross_traffic_bps.split_at(FLOWS);
                Ok(Run {
                    split_bps: measured.goodputs_bps.iter().sum(),
                    others_bps: quic.iter().sum(),
                    stream_bps: stream.iter().sum(),
                    used: window.used,
                    queue_95_s: window.queue_95_s,
                })
            }
        })
    });
    let runs = rows(
        lab.side_by_side(1, Load::of_link(Rate::mbps(MBPS)).encrypted(), jobs.collect())?,
        lab.seeds().count(),
    );
    Ok(output("QUIC", &runs))
}

/// The same in virtual time.
fn virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let scenarios = SCHEMES.map(|scheme| lab.scenario(&SCENARIO, &scheme.settings()));
    let scenarios = scenarios.into_iter().collect::<Result<Vec<_>, _>>()?;
    let observed = lab.observe(&scenarios, Samples::default)?.into_iter().zip(SCHEMES);
    let runs = observed
        .map(|(runs, scheme)| runs.observers().map(|samples| samples.measured(scheme.split())).collect());
    Ok(output("end to end", &runs.collect::<Vec<Vec<Run>>>()))
}

/// In virtual time: what each flow has read by [`FROM`] and last, and the link each 10 ms.
#[derive(Debug, Default)]
struct Samples {
    read: Vec<[u64; 2]>,
    link: Vec<(Time, [u64; 2])>,
}

impl Observer for Samples {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        self.read.resize(self.read.len().max(flow + 1), [0; 2]);
        if now.as_secs_f64() <= FROM {
            self.read[flow] = [bytes; 2];
        } else if now.as_secs_f64() <= UNTIL {
            self.read[flow][1] = bytes;
        }
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        if link == SATELLITE && forward {
            self.link.push((now, [backlog.get(), counters.delivered_bytes]));
        }
    }
}

impl Samples {
    fn measured(&self, split: usize) -> Run {
        let per = Probability::new(PER).expect("a part of one");
        let direction = DirectionConfig { rate: Some(Rate::mbps(MBPS)), per, ..DirectionConfig::default() };
        // Its queue is empty a minute after the end.
        let carries = Carries::new(&direction, Time::ZERO + Duration::from_secs_f64(UNTIL + 60.0));
        let sample = |&(at, [queued, delivered]): &(Time, [u64; 2])| carries.sample(at, 0, queued, delivered);
        let course = Course::new(self.link.iter().map(sample).collect::<Vec<course::Sample>>());
        let window = course.between(FROM, UNTIL).expect("the run is as long");
        let bps = |reads: &[[u64; 2]]| {
            let bytes: u64 = reads.iter().map(|[before, after]| after - before).sum();
            8.0 * bytes as f64 / (UNTIL - FROM)
        };
        let (ours, others) = self.read.split_at(split);
        Run {
            split_bps: bps(ours),
            others_bps: bps(&others[..FLOWS]),
            stream_bps: bps(&others[FLOWS..]),
            used: window.used,
            queue_95_s: window.queue_95_s,
        }
    }
}

/// From the runs of each scheme; `others` is what goes end to end.
fn output(others: &str, runs: &[Vec<Run>]) -> Output {
    Output {
        claims: claims(others, runs),
        tables: vec![Part::new("shares", table(others, runs))],
        figures: Vec::new(),
    }
}

fn mean(runs: &[Run], measure: fn(&Run) -> f64) -> Sample {
    over_seeds(runs.iter().map(measure))
}

fn claims(others: &str, runs: &[Vec<Run>]) -> Vec<Claim> {
    let [ample, scarce, alone] = runs else { unreachable!("there are three schemes") };
    let of_alone = |least, measure: fn(&Run) -> f64| {
        Range::at_least(least).of_ratio(&mean(ample, measure), &mean(alone, measure))
    };
    let wanted = 1.0 - Scheme::Scarce.share();
    let kept = over_seeds(scarce.iter().map(|run| run.split_bps / (MBPS as f64 * 1e6 * PAYLOAD)));
    vec![
        Claim::ours(format!(
            "With all of the link as its share, {others} has 90% or more of what it has alone"
        ))
        .shown_in("%", 0.01, 1)
        .with(of_alone(OF_ALONE, |run| run.others_bps)),
        Claim::ours("So has the stream, 98% or more")
            .shown_in("%", 0.01, 1)
            .with(of_alone(OF_STREAM, |run| run.stream_bps)),
        Claim::ours("The link carries 97% or more of what it can")
            .shown_in("%", 0.01, 1)
            .with(Range::at_least(USED).of_mean(&mean(ample, |run| run.used))),
        Claim::ours("The queue is below 30 ms at the 95th percentile")
            .shown_in("ms", 1e-3, 0)
            .with(Range::below(QUEUE_S).of_mean(&mean(ample, |run| run.queue_95_s))),
        Claim::ours(format!(
            "With a share of {}, the split downloads keep 85% or more of theirs",
            percent(1.0 - wanted)
        ))
        .shown_in("%", 0.01, 1)
        .with(Range::at_least(OF_SHARE * wanted).of_mean(&kept))
        .noting(format!("theirs is {}", percent(wanted))),
    ]
}

/// The payload in a full packet with its headers, where the receiver sends timestamps.
const PAYLOAD: f64 = 1448.0 / 1500.0;

fn percent(part: f64) -> String {
    format!("{:.1}%", 100.0 * part)
}

fn table(others: &str, runs: &[Vec<Run>]) -> Table {
    let column = |name: String, key: &str, unit, factor| Column::new(name, key).shown_in(unit, factor);
    let columns = vec![
        Column::new("leg", "case"),
        column(format!("{FLOWS} split"), "split_goodput_bps", "Mbit/s", 1e6),
        column(format!("{FLOWS} {others}"), "end_to_end_goodput_bps", "Mbit/s", 1e6),
        column("stream".into(), "stream_goodput_bps", "Mbit/s", 1e6),
        column("use of the link".into(), "used", "%", 0.01),
        column("queue, 95%".into(), "queue_95_s", "ms", 0.001),
    ];
    let mut table = Table::new("Payload that arrives, and the link, from the 20th second on", columns);
    for (scheme, runs) in SCHEMES.into_iter().zip(runs) {
        table.push(vec![
            Cell::text(scheme.name()),
            Cell::interval(Some(mean(runs, |run| run.split_bps)), 2),
            Cell::interval(Some(mean(runs, |run| run.others_bps)), 2),
            Cell::interval(Some(mean(runs, |run| run.stream_bps)), 2),
            Cell::interval(Some(mean(runs, |run| run.used)), 1),
            Cell::interval(Some(mean(runs, |run| run.queue_95_s)), 0),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn in_virtual_time_what_is_not_split_has_its_share() {
        let results = in_virtual_time(&SHARED_LEG, 3);
        // TCP that does not pace sends in bursts, which queue by themselves.
        assert!(
            results.contradicted().all(|verdict| verdict.claim.contains("queue")),
            "{:#?}",
            results.verdicts
        );
        assert!(results.verdicts[4].agrees(), "{:#?}", results.verdicts);
    }
}
