//! Telemetry of a running daemon: totals, legs, flows.
//!
//! ```text
//! worker, once a second for each flow ──► LegStatsTable of each leg ──► LegReport ─┐
//! worker, when it is asked            ──► FlowReport ──────────────────────┼─► StatsHandle ──► observer
//! counters of all threads             ──► Stats ───────────────────────────┘
//! ```
//!
//! An observer has a [`StatsHandle`], which can only read. Without observers a daemon does the same work
//! except for the flows' reports.

mod flow_query;
mod flow_stats;
mod gain;
mod interfaces;
mod leg_reports;
mod leg_stats;
mod outage_detector;
mod report;
mod sources;
mod window;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bentpipe_legs::{LinkEstimates, Senders};
use serde::{Deserialize, Serialize};

use crate::access_log::AccessLog;
use crate::admission::{AdmissionControl, AdmissionLimits, Occupancy};
use crate::config::{AtLimit, PerSecond};
use crate::intercept::Liveness;
use crate::intercept::counters::{PolicyCounters, PolicyTotals, RuleTotal, Verdict};
use crate::stats::Stats;
use crate::types::Draining;

pub use report::{
    Drain, EndReport, ExplicitReport, FlowPhase, FlowReport, ForwardedBytes, ForwardedReport, Gain,
    GainState, LegReport, LimitsReport, PolicyReport, RuleReport, Use, VerdictReport,
};

pub(crate) use flow_query::Request;
pub(crate) use flow_stats::FlowStats;
pub(crate) use interfaces::LegInterfaces;
pub(crate) use leg_stats::LegStatsTable;
pub(crate) use sources::{Sources, WorkerSource};

/// Reads the state of a running daemon, from any thread. Clones read the same daemon.
#[derive(Debug, Clone)]
pub struct StatsHandle {
    shared: Arc<Shared>,
    inner: Arc<Mutex<Inner>>,
}

/// The state that the threads of a daemon share, and that observers read.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) admission: Arc<AdmissionControl>,
    pub(crate) access_log: Arc<AccessLog>,
    pub(crate) leg_stats: LegStatsTable,
    pub(crate) liveness: Liveness,
    pub(crate) policy_counters: Arc<PolicyCounters>,
    pub(crate) link_estimates: LinkEstimates,
    /// Senders that are no connections.
    pub(crate) senders: Senders,
    pub(crate) interfaces: LegInterfaces,
    draining: Mutex<Option<Draining>>,
    /// New connections pass unsplit until this is switched off.
    pub(crate) bypass: AtomicBool,
    /// Workers end.
    pub(crate) stop: AtomicBool,
    /// Why the daemon must end.
    failure: OnceLock<String>,
}

#[derive(Debug)]
struct Inner {
    sources: Arc<Sources>,
    began: Instant,
    before: CounterSnapshot,
}

/// The counters that a process hands over to its successor, so that they continue.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CounterSnapshot {
    /// Without what is open now, which the successor counts itself.
    stats: Stats,
    legs: Vec<LegCounterSnapshot>,
    policy: PolicyTotals,
    uptime: Duration,
    upgrades: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct LegCounterSnapshot {
    is_satellite: bool,
    name: String,
    totals: leg_stats::Totals,
}

impl Shared {
    /// Without a connection.
    pub(crate) fn new(limits: AdmissionLimits) -> rustix::io::Result<Self> {
        Ok(Self {
            admission: Arc::new(AdmissionControl::new(limits)?),
            access_log: Arc::new(AccessLog::new()?),
            leg_stats: LegStatsTable::default(),
            liveness: Liveness::new(),
            policy_counters: Arc::default(),
            link_estimates: LinkEstimates::default(),
            senders: Senders::default(),
            interfaces: LegInterfaces::default(),
            draining: Mutex::default(),
            bypass: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failure: OnceLock::new(),
        })
    }

    pub(crate) fn draining(&self) -> MutexGuard<'_, Option<Draining>> {
        self.draining.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part of the daemon has failed for good; the first one's reason is kept.
    pub(crate) fn fail(&self, reason: String) {
        tracing::error!("{reason}");
        let _ = self.failure.set(reason);
    }

    /// Why the daemon must end, if it must.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Whether new connections pass unsplit by order: the daemon drains, or its bypass is on.
    pub(crate) fn passes_by_order(&self) -> bool {
        self.bypass.load(Ordering::Acquire) || self.draining().is_some()
    }
}

impl LimitsReport {
    /// Without the rates.
    fn of(occupancy: Occupancy) -> Self {
        let Occupancy { limits, open, busiest_client, connecting, buffered } = occupancy;
        let of =
            |used: usize, most: Option<usize>| Use { used: used as u64, most: most.map(|most| most as u64) };
        Self {
            connections: of(open, Some(limits.connections.min(limits.descriptors))),
            connections_per_client: of(busiest_client, limits.per_client),
            connecting: of(connecting, Some(limits.connecting)),
            buffered_bytes: Use { used: buffered, most: Some(limits.buffered) },
            at_limit: match limits.at_limit {
                AtLimit::Pass => "pass".to_owned(),
                AtLimit::Refuse => "refuse".to_owned(),
            },
            ..Self::default()
        }
    }
}

impl StatsHandle {
    /// A handle to the daemon whose threads share this. It shows only the legs until it has
    /// [`sources`](Self::set_sources).
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let inner =
            Inner { sources: Arc::default(), began: Instant::now(), before: CounterSnapshot::default() };
        Self { shared, inner: Arc::new(Mutex::new(inner)) }
    }

    /// Reads these sources from now on. Call it when the daemon has started and when its legs have changed.
    pub(crate) fn set_sources(&self, sources: Sources) {
        self.inner().sources = Arc::new(sources);
    }

    /// Continues with the counters of the predecessor, plus one upgrade.
    pub fn inherit(&self, counters: CounterSnapshot) {
        for leg in &counters.legs {
            self.shared.leg_stats.leg(leg.is_satellite, &leg.name).inherit(leg.totals);
        }
        self.shared.policy_counters.inherit(counters.policy.clone());
        self.inner().before = CounterSnapshot { upgrades: counters.upgrades + 1, ..counters };
    }

    /// What a successor [inherits](Self::inherit). Call it after the workers have exported their flows: it
    /// counts what they have done until then, and the successor counts the rest.
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
            policy: self.shared.policy_counters.totals(),
            uptime: self.uptime(),
            upgrades: self.upgrades(),
        }
    }

    /// What the daemon has done so far, including its predecessors.
    pub fn stats(&self) -> Stats {
        let (sources, before) = {
            let inner = self.inner();
            (inner.sources.clone(), inner.before.stats)
        };
        let admission = &self.shared.admission;
        let (connecting, shed_clients) = (admission.connecting() as u64, admission.shed_clients() as u64);
        Stats { connecting, shed_clients, ..sources.stats() }.plus(&before)
    }

    /// The present state of its legs: the satellites in the order of their names, then the terrestrial one.
    /// Legs that the configuration no longer has are included while connections remain on them.
    pub fn legs(&self) -> Vec<LegReport> {
        let sources = self.sources();
        leg_reports::reports(&self.shared, &sources.legs, Instant::now())
    }

    /// What became of new connections, as the rules counted them a second ago.
    pub fn policy(&self) -> PolicyReport {
        let totals = self.shared.policy_counters.totals();
        let verdict = |verdict: Verdict| VerdictReport {
            verdict: verdict.name().to_owned(),
            count: totals.of(verdict),
        };
        let rule = |(place, rule): (u64, &RuleTotal)| RuleReport {
            place,
            action: rule.action.clone(),
            conditions: rule.conditions.clone(),
            comment: rule.comment.clone(),
            matched: rule.matched,
        };
        PolicyReport {
            verdicts: Verdict::ALL.into_iter().map(verdict).collect(),
            rules: (1..).zip(&totals.rules).map(rule).collect(),
        }
    }

    /// The limits, and how much of them is used.
    pub fn limits(&self) -> LimitsReport {
        let rates = self.sources().rates;
        let connection_rate = self.shared.policy_counters.rates().connections.round() as u64;
        let most = |rate: Option<PerSecond>| rate.map(|rate| rate.get().into());
        LimitsReport {
            connection_rate: Use { used: connection_rate, most: most(rates.all) },
            connection_rate_per_client: most(rates.per_client),
            ..LimitsReport::of(self.shared.admission.occupancy())
        }
    }

    /// What splitting gains now.
    pub fn gain(&self) -> Gain {
        leg_reports::gain(&self.shared.leg_stats, Instant::now())
    }

    /// The flows, the fastest first, at most `most` of them. It queries the workers and waits for their
    /// answers, less than a second; the flows of a worker that does not answer are left out.
    pub fn flows(&self, most: usize) -> Vec<FlowReport> {
        let sources = self.sources();
        flow_query::survey(sources.queries(), most)
    }

    /// Whether every thread is alive and the rules are in force: new connections are split.
    pub fn is_ready(&self) -> bool {
        self.shared.liveness.is_fresh() && !self.shared.passes_by_order()
    }

    /// Whether every thread is alive, whether or not new connections are split.
    pub fn is_alive(&self) -> bool {
        self.shared.liveness.is_alive()
    }

    /// Whether the daemon drains: new connections pass unsplit.
    pub fn draining(&self) -> Option<Drain> {
        let draining = *self.shared.draining();
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_secs_f64();
        draining.map(|draining| Drain { left_s: draining.until.map(left) })
    }

    /// Whether the bypass is on: new connections pass unsplit until it is switched off.
    pub fn bypass(&self) -> bool {
        self.shared.bypass.load(Ordering::Acquire)
    }

    /// The time since the start of the daemon, or of its first predecessor.
    pub fn uptime(&self) -> Duration {
        let inner = self.inner();
        inner.before.uptime + inner.began.elapsed()
    }

    /// The number of upgrades since then.
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
