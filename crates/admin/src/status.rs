//! The status: one document that everything else is a view of.

use bentpipe_proxy::Stats;
use bentpipe_proxy::telemetry::{Drain, FlowReport, Gain, LegReport};
use serde::{Deserialize, Serialize};

/// What a daemon is doing: the answer to `GET /status`, and what `bentpipe status --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// The configuration that it reads.
    pub config: String,
    /// Which file its program is: another value is another program.
    pub program: String,
    /// Since it, or the first of those that it has taken over from, was started, s.
    pub uptime_s: f64,
    /// Takeovers since then.
    pub upgrades: u64,
    /// Every thread lives, and new connections are split.
    pub ready: bool,
    /// New connections pass, and it ends when the last that is split has gone.
    pub draining: Option<Drain>,
    /// What it has done since then.
    pub totals: Stats,
    /// What splitting gains.
    pub gain: Gain,
    /// Its legs, the satellites first.
    pub legs: Vec<LegReport>,
    /// Its flows, or those that were asked for; the fastest first.
    pub flows: Vec<FlowReport>,
}
