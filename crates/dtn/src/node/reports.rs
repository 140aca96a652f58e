//! Status reports on the bundles of this node's applications.

use std::collections::{HashMap, VecDeque};
use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::Eid;
use crate::bundle::BundleId;
use crate::bundle::report::{AdminRecord, RECORD_LIMIT, Report};
use crate::store::{Payload, Store};

/// The most bundles with remembered reports; the oldest are forgotten.
const MAX_BUNDLES: usize = 10_000;
/// The most remembered reports on one bundle.
const MAX_OF_ONE: usize = 64;

/// Reports by the bundle that they concern.
#[derive(Debug, Default)]
pub(crate) struct ReportLog {
    of: HashMap<BundleId, Vec<ReportedEvent>>,
    order: VecDeque<BundleId>,
}

/// A reported event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedEvent {
    /// The node that reports it.
    #[serde(default)]
    pub node: String,
    /// The bundle or fragment.
    pub subject: String,
    /// The event: received, forwarded, delivered or deleted.
    pub status: String,
    /// The reason.
    pub reason: String,
    /// The time of the event, milliseconds since 2000 by the reporting node's clock, if it was reported.
    pub time_ms: Option<u64>,
}

impl ReportLog {
    pub(crate) fn note(&mut self, node: &Eid, report: &Report) {
        let id = report.subject.whole();
        if !self.of.contains_key(&id) {
            if self.order.len() == MAX_BUNDLES
                && let Some(oldest) = self.order.pop_front()
            {
                self.of.remove(&oldest);
            }
            self.order.push_back(id.clone());
        }
        let events = self.of.entry(id).or_default();
        if events.len() < MAX_OF_ONE {
            events.push(ReportedEvent {
                node: node.to_string(),
                subject: report.subject.to_string(),
                status: report.status.to_string(),
                reason: report.reason.to_string(),
                time_ms: report.time.map(|time| time.millis()),
            });
        }
    }

    pub(crate) fn of(&self, id: &BundleId) -> Vec<ReportedEvent> {
        self.of.get(&id.whole()).cloned().unwrap_or_default()
    }
}

pub(crate) fn read(store: &Store, payload: &Payload) -> Result<AdminRecord, String> {
    if payload.len() > RECORD_LIMIT as u64 {
        return Err(format!("it has {} bytes, at most {RECORD_LIMIT} are read", payload.len()));
    }
    let mut bytes = Vec::new();
    store.read(payload).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Report::parse(&bytes).map_err(|error| error.to_string())
}
