//! The sources of the numbers beside those of the legs.

use std::fmt;
use std::sync::Arc;

use bentpipe_legs::TerrestrialLeg;

use crate::config::Config;
use crate::stats::{Counters, Stats};

use super::flow_query::Request;

/// The sources of a daemon's statistics: its threads, and what its configuration says of the legs. It keeps
/// no thread alive.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) workers: Vec<WorkerSource>,
    /// The counters of the other threads.
    pub(crate) services: Vec<Arc<Counters>>,
    /// The satellites in the order of their names, then the terrestrial one.
    pub(crate) legs: Vec<LegFacts>,
}

/// A worker, as the telemetry reads it.
pub(crate) struct WorkerSource {
    /// Sends the worker a query for its flows.
    pub(crate) query: Box<dyn Fn(Request) + Send + Sync>,
    pub(crate) counters: Arc<Counters>,
}

/// What the configuration says of a leg.
#[derive(Debug, Clone)]
pub(crate) struct LegFacts {
    pub(super) name: String,
    /// None for the terrestrial one.
    pub(super) interface: Option<String>,
    pub(super) congestion: Option<String>,
    pub(super) rate_bps: Option<u64>,
}

impl Sources {
    /// The threads' own numbers.
    pub(super) fn stats(&self) -> Stats {
        let workers = self.workers.iter().map(|worker| &worker.counters);
        Stats::sum(workers.chain(&self.services).map(|counters| &**counters))
    }

    /// Sends a query to each worker.
    pub(super) fn queries(&self) -> impl Iterator<Item = &dyn Fn(Request)> {
        self.workers.iter().map(|worker| &*worker.query as &dyn Fn(Request))
    }
}

impl LegFacts {
    /// Those of every leg, the terrestrial one last, which is called `terrestrial`.
    pub(crate) fn of(config: &Config, terrestrial: &str) -> Vec<Self> {
        let satellites = config.legs.iter().map(|(name, leg)| Self {
            name: name.clone(),
            interface: Some(leg.interface.as_str().to_owned()),
            congestion: Some(leg.congestion().to_owned()),
            rate_bps: leg.rate.map(|rate| rate.bps()),
        });
        satellites.chain([Self::terrestrial(&config.terrestrial, terrestrial)]).collect()
    }

    fn terrestrial(leg: &TerrestrialLeg, name: &str) -> Self {
        let congestion = leg.congestion.as_ref().map(|congestion| congestion.as_str().to_owned());
        Self { name: name.to_owned(), interface: None, congestion, rate_bps: None }
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("legs", &self.legs).finish_non_exhaustive()
    }
}
