//! Downloads over a leg that is told the rate of its link, over one that is not, and end to end: what the
//! experiments on links of unknown capacity have in common.

use std::time::Duration;

use bentpipe_link::{Counters, LinkConfig};
use bentpipe_sim::{Observer, Scenario};
use bentpipe_units::{ByteCount, Rate, Span, Time};

use super::{Lab, Runs, over_seeds};
use crate::Error;
use crate::course::{Carries, Course, Window};
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::statistics::{Estimate, Sample};
use crate::trial::Trial;

const SCENARIO: (&str, &str) =
    ("scenarios/explicit.toml", include_str!("../../../../scenarios/explicit.toml"));
/// The satellite among the scenario's links.
const SATELLITE: usize = 2;
/// How long after the end the link is looked at: what its queue waits for.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// What the gateway is told of the link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scheme {
    /// Nothing.
    Unknown,
    /// Its rate, or the highest one.
    Told,
    /// There is no gateway, and the server has BBR.
    EndToEnd,
}

pub(super) const SCHEMES: [Scheme; 3] = [Scheme::Unknown, Scheme::Told, Scheme::EndToEnd];

impl Scheme {
    pub(super) fn name(self) -> &'static str {
        match self {
            Scheme::Unknown => "not told",
            Scheme::Told => "told",
            Scheme::EndToEnd => "BBR end to end",
        }
    }

    /// The start of its keys in CSV.
    pub(super) fn key(self) -> &'static str {
        match self {
            Scheme::Unknown => "unknown",
            Scheme::Told => "told",
            Scheme::EndToEnd => "bbr",
        }
    }

    /// One download over a link on the kernel.
    pub(super) fn trial(self, rate: Rate, rtt: Duration, per: f64, seconds: f64, seed: u64) -> Trial {
        let congestion = if self == Scheme::EndToEnd { "bbr" } else { "explicit" };
        Trial {
            configured: (self == Scheme::Told).then_some(rate),
            split: self != Scheme::EndToEnd,
            lasts: Duration::from_secs_f64(seconds),
            ..Trial::of_a_minute(rate, rtt, per, congestion, seed)
        }
    }

    /// One download over a link in virtual time, where there is no BBR.
    pub(super) fn scenario(self, lab: &Lab<'_>, link: &LinkConfig, seconds: f64) -> Result<Scenario, Error> {
        let rate = link.forward.highest_rate().expect("the link has a rate");
        let capacity = if self == Scheme::Told { rate.to_string() } else { "unknown".into() };
        let settings = [
            format!("duration={seconds}s"),
            "sample_interval=10ms".into(),
            "flow.download.count=1".into(),
            "flow.late.start=0s".into(),
            "tcp.satellite.lost_retransmissions=true".into(),
            "link.terrestrial.rate=1Gbit/s".into(),
            "link.terrestrial.delay=0.5ms".into(),
            "tcp.terrestrial.receive_buffer=64MB".into(),
            format!("link.satellite.rate={rate}"),
            format!("link.satellite.delay={}", Span::from(link.forward.delay)),
            format!("link.satellite.explicit.capacity={capacity}"),
        ];
        let mut scenario = lab.scenario(&SCENARIO, &settings)?;
        scenario.links[SATELLITE].config = link.clone();
        Ok(scenario)
    }
}

/// Reads and queue of the first flow in virtual time, each 10 ms.
#[derive(Debug, Default)]
struct Samples {
    read: u64,
    /// Time; bytes read, in the queue, and delivered by the link.
    samples: Vec<(Time, [u64; 3])>,
}

impl Samples {
    fn course(&self, carries: &Carries) -> Course {
        let samples = self.samples.iter();
        let samples = samples
            .map(|&(at, [read, queued, delivered])| carries.sample(at, read, queued, delivered))
            .collect();
        Course::new(samples)
    }
}

impl Observer for Samples {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, _: Time, flow: usize, bytes: u64) {
        if flow == 0 {
            self.read = bytes;
        }
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        if link == SATELLITE && forward {
            self.samples.push((now, [self.read, backlog.get(), counters.delivered_bytes]));
        }
    }
}

/// The courses of each scenario of [`Scheme::scenario`], over the seeds.
pub(super) fn courses(lab: &Lab<'_>, scenarios: &[Scenario]) -> Result<Vec<Vec<Course>>, Error> {
    let runs = lab.observe(scenarios, Samples::default)?;
    let of_a_scenario = |(scenario, runs): (&Scenario, Runs<Samples>)| {
        let direction = &scenario.links[SATELLITE].config.forward;
        let carries = Carries::new(direction, Time::ZERO + scenario.duration + AFTERWARDS);
        runs.observers().map(|samples| samples.course(&carries)).collect()
    };
    Ok(scenarios.iter().zip(runs).map(of_a_scenario).collect())
}

/// The courses of each scheme on a link, over the seeds.
pub(super) struct Tried<L> {
    pub(super) link: L,
    pub(super) by_scheme: Vec<(Scheme, Vec<Course>)>,
}

impl<L> Tried<L> {
    fn courses(&self, scheme: Scheme) -> Option<&[Course]> {
        self.by_scheme.iter().find(|(other, _)| *other == scheme).map(|(_, courses)| courses.as_slice())
    }

    /// A window of a scheme in each run.
    fn windows(&self, scheme: Scheme, [from, until]: [f64; 2]) -> Option<Vec<Window>> {
        let window = |course: &Course| course.between(from, until).expect("the run was as long");
        Some(self.courses(scheme)?.iter().map(window).collect())
    }

    pub(super) fn used(&self, scheme: Scheme, window: [f64; 2]) -> Option<Sample> {
        Some(over_seeds(self.windows(scheme, window)?.iter().map(|window| window.of_limit)))
    }

    /// What is delivered or, if that is less, the use of the link.
    pub(super) fn at_least(&self, scheme: Scheme, window: [f64; 2]) -> Option<Sample> {
        let windows = self.windows(scheme, window)?;
        Some(over_seeds(windows.iter().map(|window| window.of_limit.min(window.used))))
    }

    pub(super) fn queue(&self, scheme: Scheme, window: [f64; 2]) -> Option<Sample> {
        Some(over_seeds(self.windows(scheme, window)?.iter().map(|window| window.queue_95_s)))
    }

    /// What any transport could have delivered, bits per second.
    pub(super) fn capacity_bps(&self, window: [f64; 2]) -> Option<Sample> {
        let windows = self.windows(self.by_scheme.first()?.0, window)?;
        Some(over_seeds(windows.iter().map(|window| window.deliverable_bps)))
    }

    /// What a scheme has of another one's, run by run.
    pub(super) fn ratios(
        &self,
        scheme: Scheme,
        other: Scheme,
        window: [f64; 2],
        measure: impl Fn(&Window) -> f64,
    ) -> Option<Vec<f64>> {
        let (ours, theirs) = (self.windows(scheme, window)?, self.windows(other, window)?);
        Some(ours.iter().zip(&theirs).map(|(ours, theirs)| measure(ours) / measure(theirs)).collect())
    }

    /// What each scheme delivers in each second of one run.
    pub(super) fn plot(&self, title: String, seconds: f64) -> Plot {
        let plot = Plot::new(title, Axis::new("time", "s"), Axis::new("of what can be delivered", "%"));
        let curve = |(scheme, courses): &(Scheme, Vec<Course>)| {
            let points = (0..seconds as u64).filter_map(|second| {
                let window = courses[0].between(second as f64, second as f64 + 1.0)?;
                Some(Point::new(second as f64 + 0.5, Estimate::from(100.0 * window.of_limit)))
            });
            Series::new(scheme.name(), Style::Curve, points.collect::<Vec<_>>())
        };
        self.by_scheme.iter().map(curve).fold(plot, Plot::with)
    }
}
