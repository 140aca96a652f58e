//! What the server looks at: a daemon, or in tests something that looks like one.

use std::path::PathBuf;
use std::time::Duration;

use bentpipe_proxy::Stats;
use bentpipe_proxy::telemetry::{
    Drain, FlowReport, Gain, LegReport, LimitsReport, PolicyReport, StatsHandle,
};

use crate::{Status, host};

/// The observable state of a daemon; see [`StatsHandle`], whose methods these are. All may block, for less
/// than a second.
pub trait View: Send + Sync + 'static {
    /// Its counters.
    fn stats(&self) -> Stats;
    /// Its legs as they are now.
    fn legs(&self) -> Vec<LegReport>;
    /// The present gain of splitting.
    fn gain(&self) -> Gain;
    /// What became of new connections.
    fn policy(&self) -> PolicyReport;
    /// Its limits, and their use.
    fn limits(&self) -> LimitsReport;
    /// Its flows, the fastest first, at most `most` of them.
    fn flows(&self, most: usize) -> Vec<FlowReport>;
    /// Whether every thread is alive and the rules are in force.
    fn is_ready(&self) -> bool;
    /// What keeps new connections from it although it works: a setting of the host, and the remedy.
    fn obstacle(&self) -> Option<String> {
        None
    }
    /// Whether it is draining.
    fn draining(&self) -> Option<Drain>;
    /// Whether its bypass is on.
    fn bypass(&self) -> bool;
    /// Time since it started, upgrades included.
    fn uptime(&self) -> Duration;
    /// Upgrades since then.
    fn upgrades(&self) -> u64;
}

/// The identity of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The configuration that it reads.
    pub config: PathBuf,
    /// Identifies its program file: another value is another program.
    pub program: String,
}

impl View for StatsHandle {
    fn stats(&self) -> Stats {
        self.stats()
    }

    fn legs(&self) -> Vec<LegReport> {
        self.legs()
    }

    fn gain(&self) -> Gain {
        self.gain()
    }

    fn policy(&self) -> PolicyReport {
        self.policy()
    }

    fn limits(&self) -> LimitsReport {
        self.limits()
    }

    fn flows(&self, most: usize) -> Vec<FlowReport> {
        self.flows(most)
    }

    fn is_ready(&self) -> bool {
        self.is_ready()
    }

    fn obstacle(&self) -> Option<String> {
        bentpipe_proxy::host::obstacle()
    }

    fn draining(&self) -> Option<Drain> {
        self.draining()
    }

    fn bypass(&self) -> bool {
        self.bypass()
    }

    fn uptime(&self) -> Duration {
        self.uptime()
    }

    fn upgrades(&self) -> u64 {
        self.upgrades()
    }
}

/// The status with at most `most` flows. Without flows, no worker is asked.
pub(crate) fn status(view: &dyn View, identity: &Identity, most: usize) -> Status {
    let flows = if most == 0 { Vec::new() } else { view.flows(most) };
    let readiness = readiness(view);
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        host: host::name(),
        time_zone: host::time_zone(),
        config: identity.config.display().to_string(),
        program: identity.program.clone(),
        uptime_s: view.uptime().as_secs_f64(),
        upgrades: view.upgrades(),
        ready: readiness.is_ok(),
        not_ready: readiness.err(),
        draining: view.draining(),
        bypass: view.bypass(),
        totals: view.stats(),
        gain: view.gain(),
        policy: view.policy(),
        limits: view.limits(),
        // It is another process, which is asked without a thread that blocks.
        bundle_node: None,
        legs: view.legs(),
        flows,
    }
}

/// Whether new connections are split, or why not.
pub(crate) fn readiness(view: &dyn View) -> Result<(), String> {
    let why = if view.draining().is_some() {
        "draining: new connections pass unsplit"
    } else if view.bypass() {
        "the bypass is on: new connections pass unsplit until `bentpipe bypass off`"
    } else if !view.is_ready() {
        "new connections pass unsplit: a thread is not responding or the rules are not in force; the log says which"
    } else {
        return view.obstacle().map_or(Ok(()), Err);
    };
    Err(why.to_owned())
}
