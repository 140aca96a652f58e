//! The same download over a satellite by several schemes, side by side.

mod table;
pub mod virtual_time;

use std::time::{Duration, Instant};

use bentpipe_kernel::congestion::EXPLICIT;
use bentpipe_link::LinkConfig;
use bentpipe_proxy::Config;
use bentpipe_units::{Probability, Rate, Span};
use serde::Serialize;

use crate::Error;
use crate::download::{Download, Progress, Request, SAMPLE_INTERVAL};
use crate::figure::{Axis, Figure, Legend, Plot, Series, Style};
use crate::results::World;
use crate::topology::{FarEnd, PAYLOAD_SHARE, Proxy, SATELLITE, Topology, symmetric};

/// A slow download is stopped when it has taken this many times as long as the slowest one through the proxy,
/// and at least [`STOP_AFTER`].
const STOP_FACTOR: u32 = 6;
/// See [`STOP_FACTOR`].
const STOP_AFTER: Duration = Duration::from_secs(30);
/// The interval between comparisons of the running downloads.
const TICK: Duration = Duration::from_millis(100);
/// The outage settings of the gateway's satellite leg.
const RESTART_WITHIN: Duration = Duration::from_secs(1);
const SURVIVE_OUTAGE: Duration = Duration::from_secs(25 * 60);

/// The link, the file and the schemes.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The satellite link's rate, both ways.
    pub rate: Rate,
    /// The round-trip time of the empty link.
    pub rtt: Duration,
    /// Packet error rate, both ways.
    pub per: Probability,
    /// The length of the file.
    pub bytes: u64,
    /// The seed of the link's losses and of the file's contents.
    pub seed: u64,
    /// The schemes to compare.
    pub schemes: Vec<Scheme>,
    /// Whether slow downloads run to their end, however long it takes.
    pub whole: bool,
}

/// How the download crosses the satellite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scheme {
    /// One connection from server to client, the server using this congestion control.
    EndToEnd(String),
    /// Split at the gateway, which uses this congestion control towards the satellite.
    Split(String),
}

impl Default for Settings {
    /// A GEO link as in the literature: 10 Mbit/s, 600 ms, one packet in a hundred lost.
    fn default() -> Self {
        Self {
            rate: Rate::mbps(10),
            rtt: Duration::from_millis(600),
            per: Probability::new(0.01).expect("between 0 and 1"),
            bytes: 4_000_000,
            seed: 1,
            schemes: ["reno", "cubic", "bbr"]
                .map(|name| Scheme::EndToEnd(name.into()))
                .into_iter()
                .chain(["hybla", EXPLICIT].map(|name| Scheme::Split(name.into())))
                .collect(),
            whole: false,
        }
    }
}

impl Settings {
    /// The most that any transport can deliver: rate · payload share · (1 − PER), bits per second.
    pub fn limit_bps(&self) -> f64 {
        self.rate.bps() as f64 * PAYLOAD_SHARE * (1.0 - self.per.get())
    }

    fn link(&self) -> LinkConfig {
        symmetric(self.rate, self.rtt, self.per)
    }

    fn proxy(&self, congestion: &str) -> Config {
        let text = format!(
            "[legs.satellite]\ninterface = \"{SATELLITE}\"\ncongestion = \"{congestion}\"\nrate = \"{}\"\n\
             rtt = \"{}\"\n\
             restart_within = \"{}\"\nsurvive_outage = \"{}\"\n",
            self.rate,
            Span(self.rtt),
            Span(RESTART_WITHIN),
            Span(SURVIVE_OUTAGE),
        );
        Config::parse("the demonstration's configuration", &text).expect("it is made of valid values")
    }
}

impl Scheme {
    /// The scheme's name. The proxy with its leg's default congestion control is "bentpipe".
    pub fn name(&self) -> String {
        match self {
            Scheme::EndToEnd(congestion) => congestion.clone(),
            Scheme::Split(congestion) if congestion == EXPLICIT => "bentpipe".to_owned(),
            Scheme::Split(congestion) => format!("bentpipe-{congestion}"),
        }
    }

    /// The congestion control towards the satellite.
    pub fn congestion(&self) -> &str {
        match self {
            Scheme::EndToEnd(congestion) | Scheme::Split(congestion) => congestion,
        }
    }
}

/// One scheme's result.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The scheme's name.
    pub name: String,
    /// The congestion control towards the satellite.
    pub congestion: String,
    /// Bytes of the file per second, from the start of the connection to the last byte, in bits.
    pub goodput_bps: f64,
    /// Bytes received.
    pub bytes: u64,
    /// From the start of the connection to the last byte, or until the download was stopped.
    pub seconds: f64,
    /// Whether the SHA-256 of the received file is that of the sent one.
    pub identical: bool,
    /// Whether the whole file arrived; if not, the download was stopped because it was slow.
    pub finished: bool,
    /// Bytes received at instants since the start.
    #[serde(skip)]
    pub timeline: Vec<(Duration, u64)>,
}

/// The results of all schemes, in the order of the settings.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Where it ran.
    pub world: World,
    /// The most that any transport can deliver, bits per second.
    pub limit_bps: f64,
    /// The seed that repeats the losses.
    pub seed: u64,
    /// The kernel that ran it; empty in virtual time.
    pub kernel: String,
    /// The results.
    pub runs: Vec<Run>,
}

/// Runs all schemes at the same time, each on a link of its own with the same seed. `watch` is called with
/// the progress of each scheme before the downloads start.
pub fn compare(settings: &Settings, watch: impl FnOnce(&[Progress])) -> Result<Comparison, Error> {
    let progress: Vec<Progress> = settings.schemes.iter().map(|_| Progress::default()).collect();
    let runs = std::thread::scope(|scope| {
        let schemes = settings.schemes.iter().zip(&progress);
        let runs: Vec<_> =
            schemes.map(|(scheme, progress)| scope.spawn(move || run(settings, scheme, progress))).collect();
        if !settings.whole {
            scope.spawn(|| stop_slow_schemes(&settings.schemes, &progress));
        }
        watch(&progress);
        runs.into_iter().map(|run| run.join().expect("a run does not panic")).collect::<Result<_, _>>()
    })?;
    Ok(Comparison {
        world: World::Kernel,
        limit_bps: settings.limit_bps(),
        seed: settings.seed,
        kernel: crate::kernel_release(),
        runs,
    })
}

/// Cancels the end-to-end downloads that are still running when those through the proxy have long been
/// finished.
fn stop_slow_schemes(schemes: &[Scheme], progress: &[Progress]) {
    let started = Instant::now();
    let split = |(scheme, _): &(&Scheme, &Progress)| matches!(scheme, Scheme::Split(_));
    let mut split_done_after = None;
    while !progress.iter().all(Progress::is_finished) {
        std::thread::sleep(TICK);
        let elapsed = started.elapsed();
        if split_done_after.is_none()
            && schemes.iter().zip(progress).filter(split).all(|(_, progress)| progress.is_finished())
        {
            split_done_after = Some(elapsed);
        }
        if split_done_after.is_some_and(|slowest| elapsed > STOP_AFTER.max(STOP_FACTOR * slowest)) {
            progress.iter().filter(|progress| !progress.is_finished()).for_each(Progress::cancel);
            return;
        }
    }
}

fn run(settings: &Settings, scheme: &Scheme, progress: &Progress) -> Result<Run, Error> {
    let outcome = cross(settings, scheme, progress);
    progress.finish();
    let (got, congestion) = outcome?;
    // A download that was stopped has taken all the time until then; one that broke off, until its last byte.
    let finished = got.bytes == settings.bytes;
    let seconds = if progress.is_cancelled() && !finished { got.elapsed } else { got.duration }.as_secs_f64();
    Ok(Run {
        name: scheme.name(),
        congestion,
        goodput_bps: got.bytes as f64 * 8.0 / seconds,
        bytes: got.bytes,
        seconds,
        identical: if progress.is_cancelled() { got.intact } else { got.identical },
        finished,
        timeline: got.timeline,
    })
}

/// What was downloaded, and by which congestion control: a kernel may not have the one that was wanted.
fn cross(settings: &Settings, scheme: &Scheme, progress: &Progress) -> Result<(Download, String), Error> {
    let fail = |source| Error::Transfer { run: scheme.name(), source };
    let topology =
        Topology::build_with(&settings.link(), &Default::default(), settings.seed, FarEnd::StockClient)?;
    let congestion = match scheme {
        Scheme::EndToEnd(congestion) => Some(congestion.as_str()),
        Scheme::Split(_) => None,
    };
    let _server = topology.serve(congestion, SAMPLE_INTERVAL).map_err(fail)?;
    let proxy = match scheme {
        Scheme::EndToEnd(_) => None,
        Scheme::Split(congestion) => Some(Proxy::start(&topology.gateway, &settings.proxy(congestion))?),
    };
    let request = Request { seed: settings.seed, bytes: settings.bytes };
    let leg = proxy.as_ref().and_then(|proxy| proxy.stats_handle().legs().into_iter().next()?.congestion);
    let congestion = leg.unwrap_or_else(|| scheme.congestion().to_owned());
    Ok((topology.download(request, progress).map_err(fail)?, congestion))
}

impl Comparison {
    /// A row for each scheme: its goodput, the share of the limit, and the gain over the slowest scheme.
    pub fn to_text(&self) -> String {
        table::text(self)
    }

    /// Bytes over time, a line for each scheme. The time is logarithmic: the fast schemes are done while the
    /// slow ones have hardly begun.
    pub fn figure(&self) -> Figure {
        let line = |run: &Run| {
            // The time before the first byte would take a third of a logarithmic axis.
            let points = run.timeline.iter().filter(|(_, bytes)| *bytes > 0);
            let points = points.map(|(at, bytes)| (at.as_secs_f64(), *bytes as f64 / 1e6));
            Series::new(run.label(), Style::Line, points)
        };
        let x = Axis::new("time since the connection began", "s").log();
        let y = Axis::new("received", "MB");
        let plot = Plot::new("A download over a GEO satellite", x, y);
        let plot = self.runs.iter().rev().map(line).fold(plot, Plot::with);
        Plot { legend: Legend::UpperLeft, ..plot }.into()
    }
}

impl Run {
    /// The scheme with its congestion control, where that is not its name.
    pub fn label(&self) -> String {
        match self.name.strip_prefix("bentpipe") {
            Some(_) => format!("bentpipe ({})", self.congestion),
            None => self.name.clone(),
        }
    }
}
