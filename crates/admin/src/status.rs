//! The status document.

use bentpipe_proxy::Stats;
use bentpipe_proxy::telemetry::{Drain, FlowReport, Gain, LegReport, LimitsReport, PolicyReport};
use serde::{Deserialize, Serialize};

use crate::bundle_node::BundleNodeReport;

/// The status of a daemon: the reply to `GET /status`, and what `bentpipe status --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// The host's name.
    #[serde(default)]
    pub host: String,
    /// The host's time zone, such as `Europe/Berlin`, if it has a name.
    #[serde(default)]
    pub time_zone: Option<String>,
    /// The configuration that it reads.
    pub config: String,
    /// Identifies its program file: another value is another program.
    pub program: String,
    /// Time since it started, upgrades included, s.
    pub uptime_s: f64,
    /// Upgrades since then.
    pub upgrades: u64,
    /// Every thread is alive, and new connections that the host forwards are split.
    pub ready: bool,
    /// Why not.
    #[serde(default)]
    pub not_ready: Option<String>,
    /// New connections pass, and it ends after its last flow.
    pub draining: Option<Drain>,
    /// New connections pass until the bypass is switched off.
    #[serde(default)]
    pub bypass: bool,
    /// Its counters since then.
    pub totals: Stats,
    /// The gain of splitting.
    pub gain: Gain,
    /// What became of new connections, and which rules have matched.
    #[serde(default)]
    pub policy: PolicyReport,
    /// The limits, and how much of them is used.
    #[serde(default)]
    pub limits: LimitsReport,
    /// The bundle node of this host, if one answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_node: Option<BundleNodeReport>,
    /// Its legs, the satellites first.
    pub legs: Vec<LegReport>,
    /// Its flows, as many as were requested; the fastest first.
    pub flows: Vec<FlowReport>,
}
