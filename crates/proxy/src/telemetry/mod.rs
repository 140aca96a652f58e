//! What can be seen of a running daemon: its totals, its legs, its flows.
//!
//! ```text
//! worker, once a second for each flow ──► LegStatsTable of each leg ──► LegReport ─┐
//! worker, when it is asked            ──► FlowReport ──────────────────────┼─► StatsHandle ──► whoever looks
//! counters of all threads             ──► Stats ───────────────────────────┘
//! ```
//!
//! Whoever looks has a [`StatsHandle`], which is of no use for anything but looking; a daemon that nobody looks at does the same
//! work but for the flows' reports.

mod flow_query;
mod flow_stats;
mod gain;
mod leg_reports;
mod leg_stats;
mod outage_detector;
mod report;
mod sources;
mod window;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::admission::AdmissionControl;
use crate::intercept::Liveness;
use crate::stats::Stats;
use crate::types::Draining;

pub use report::{Drain, EndReport, ExplicitReport, FlowPhase, FlowReport, Gain, LegReport};

pub(crate) use flow_query::Request;
pub(crate) use flow_stats::FlowStats;
pub(crate) use leg_stats::LegStatsTable;
pub(crate) use sources::{LegFacts, Sources, WorkerSource};

/// Looks at a running daemon, from any thread. Clones look at the same one.
#[derive(Debug, Clone)]
pub struct StatsHandle {
    shared: View,
    inner: Arc<Mutex<Inner>>,
}

/// What the daemon and the telemetry share.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) admission: Arc<AdmissionControl>,
    pub(crate) leg_stats: Arc<LegStatsTable>,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) draining: Arc<Mutex<Option<Draining>>>,
}

#[derive(Debug)]
struct Inner {
    sources: Arc<Sources>,
    began: Instant,
    before: CounterSnapshot,
}

/// What a process leaves to the one that takes over from it, so that its numbers go on. It travels as any format that serde has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CounterSnapshot {
    /// What has been done, without what is there now: that the successor counts itself.
    stats: Stats,
    legs: Vec<LegCounterSnapshot>,
    uptime: Duration,
    upgrades: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct LegCounterSnapshot {
    is_satellite: bool,
    name: String,
    totals: leg_stats::Totals,
}

impl StatsHandle {
    /// Looks at the daemon whose threads share this. There is nothing to be seen but the legs until it is told the
    /// [`sources`](Self::look_at).
    pub(crate) fn new(shared: View) -> Self {
        let inner =
            Inner { sources: Arc::default(), began: Instant::now(), before: CounterSnapshot::default() };
        Self { shared, inner: Arc::new(Mutex::new(inner)) }
    }

    /// Looks at these from now on: to be called when the daemon has started and when its legs are others.
    pub(crate) fn look_at(&self, sources: Sources) {
        self.inner().sources = Arc::new(sources);
    }

    /// Goes on with the numbers of the process that was there before, one takeover more.
    pub fn inherit(&self, counters: CounterSnapshot) {
        for leg in &counters.legs {
            self.shared.leg_stats.leg(leg.is_satellite, &leg.name).inherit(leg.totals);
        }
        self.inner().before = CounterSnapshot { upgrades: counters.upgrades + 1, ..counters };
    }

    /// What a successor is to [`inherit`](Self::inherit). To be asked for when the flows that it takes over have been taken out:
    /// what they had done by then is in it, and what they do from then on the successor sees.
    pub fn snapshot(&self) -> CounterSnapshot {
        let now = Instant::now();
        let leg = |leg: Arc<leg_stats::LegStats>| LegCounterSnapshot {
            is_satellite: leg.is_satellite(),
            name: leg.name().to_owned(),
            totals: leg.figures(now).totals,
        };
        CounterSnapshot {
            stats: self.stats().carried_over(),
            legs: self.shared.leg_stats.legs().into_iter().map(leg).collect(),
            uptime: self.uptime(),
            upgrades: self.upgrades(),
        }
    }

    /// What the daemon has done so far, takeovers from earlier processes included.
    pub fn stats(&self) -> Stats {
        let (sources, before) = {
            let inner = self.inner();
            (inner.sources.clone(), inner.before.stats)
        };
        let connecting = self.shared.admission.connecting() as u64;
        Stats { connecting, ..sources.stats() }.plus(&before)
    }

    /// Its legs as they are now: the satellites in the order of their names, then the terrestrial one. Legs that the configuration
    /// has no more are among them for as long as connections are left on them.
    pub fn legs(&self) -> Vec<LegReport> {
        let sources = self.sources();
        leg_reports::reports(&self.shared.leg_stats, &sources, Instant::now())
    }

    /// What splitting gains now.
    pub fn gain(&self) -> Gain {
        leg_reports::gain(&self.shared.leg_stats, Instant::now())
    }

    /// The flows, the fastest first, at most `most` of them. It asks the workers and waits for their answers, less than a second;
    /// those of a worker that does not answer are left out.
    pub fn flows(&self, most: usize) -> Vec<FlowReport> {
        let sources = self.sources();
        flow_query::survey(sources.queries(), most)
    }

    /// Whether every thread has lately given a sign of life and the rules are in force: new connections are split.
    pub fn is_ready(&self) -> bool {
        self.shared.liveness.is_fresh() && self.draining().is_none()
    }

    /// Whether every thread has lately given a sign of life, whatever becomes of new connections.
    pub fn is_alive(&self) -> bool {
        self.shared.liveness.is_alive()
    }

    /// Whether new connections pass because the daemon is to end.
    pub fn draining(&self) -> Option<Drain> {
        let draining = *self.shared.draining.lock().unwrap_or_else(PoisonError::into_inner);
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_secs_f64();
        draining.map(|draining| Drain { left_s: draining.until.map(left) })
    }

    /// Since the daemon, or the first of those that it has taken over from, was started.
    pub fn uptime(&self) -> Duration {
        let inner = self.inner();
        inner.before.uptime + inner.began.elapsed()
    }

    /// How often a process has taken over from another since then.
    pub fn upgrades(&self) -> u64 {
        self.inner().before.upgrades
    }

    fn sources(&self) -> Arc<Sources> {
        self.inner().sources.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
