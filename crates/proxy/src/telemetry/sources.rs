//! The sources of the numbers beside those of the legs.

use std::fmt;
use std::sync::Arc;

use bentpipe_kernel::leg::Leg;
use bentpipe_legs::Legs;

use crate::config::{Config, ConnectionRates};
use crate::stats::{Counters, Stats};

use super::flow_query::Request;
use super::report::LegReport;

/// The sources of a daemon's statistics: its threads, and what its configuration says of the legs. It keeps
/// no thread alive.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) workers: Vec<WorkerSource>,
    /// The counters of the other threads.
    pub(crate) services: Vec<Arc<Counters>>,
    /// The configured satellites in the order of their names, then the terrestrial leg; without figures.
    pub(crate) legs: Vec<LegReport>,
    /// The configured limits on new connections per second.
    pub(crate) rates: ConnectionRates,
}

/// A worker, as the telemetry reads it.
pub(crate) struct WorkerSource {
    /// Sends the worker a query for its flows.
    pub(crate) query: Box<dyn Fn(Request) + Send + Sync>,
    pub(crate) counters: Arc<Counters>,
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

impl LegReport {
    /// What the configuration says of each leg, and the congestion control that it has; the terrestrial one last, which is called `terrestrial`.
    pub(crate) fn configured(config: &Config, legs: &Legs) -> Vec<Self> {
        let in_use = |leg: &Leg| leg.congestion_in_use().map(ToOwned::to_owned);
        let satellites = config.legs.iter().map(|(name, leg)| Self {
            name: name.clone(),
            interface: Some(leg.interface.as_str().to_owned()),
            congestion: legs.leg(name).and_then(in_use),
            rate_bps: leg.rate.map(|rate| rate.bps()),
            ..Self::default()
        });
        let terrestrial = legs.terrestrial();
        let (name, congestion) = (terrestrial.name().to_owned(), in_use(terrestrial));
        let terrestrial = Self { name, congestion, ..Self::default() };
        satellites.chain([terrestrial]).collect()
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").field("legs", &self.legs).finish_non_exhaustive()
    }
}
