//! What the daemon holds and counts, compared with what it held at the start and with what the clients saw.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::disturbance::Operator;
use crate::operated::Topology;

/// How long the daemon may take to let go of what ended connections had.
const PATIENCE: Duration = Duration::from_secs(120);
/// Memory that may be more in the end than when caches had filled: a tenth, and so much.
const MORE_MEMORY: u64 = 16 << 20;

/// Threads, and descriptors by kind, but for the pipes that the daemon keeps for the next connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Accounts {
    threads: usize,
    descriptors: BTreeMap<String, usize>,
}

impl Accounts {
    /// Of a daemon that is ready, without what a thread holds for a moment.
    pub(crate) fn at_rest(pid: u32) -> Self {
        let mut before = Self::take(pid);
        loop {
            std::thread::sleep(Duration::from_millis(50));
            let now = Self::take(pid);
            if now == before {
                return now;
            }
            before = now;
        }
    }

    fn take(pid: u32) -> Self {
        let entries =
            |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).into_iter().flatten().flatten();
        let mut descriptors = BTreeMap::new();
        for descriptor in entries("fd") {
            let Ok(target) = std::fs::read_link(descriptor.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            let kind = match target.split_once(":[") {
                Some((kind, _)) if kind != "anon_inode" => kind.to_owned(),
                _ => target,
            };
            if kind != "pipe" {
                *descriptors.entry(kind).or_default() += 1;
            }
        }
        Self { threads: entries("task").count(), descriptors }
    }

    /// What differs now that nothing happens any more.
    pub(crate) fn compare(
        &self,
        topology: &Topology,
        operator: &Operator,
        private_before: Option<u64>,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        let start = Instant::now();
        let (mut now, mut status) = (Self::take(operator.pid()), topology.status());
        while (&now != self || !is_empty(&status)) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(200));
            (now, status) = (Self::take(operator.pid()), topology.status());
        }
        if &now != self {
            faults.push(format!("it holds {now:?}, at the start {self:?}"));
        }
        let totals = &status["totals"];
        let count = |key: &str| totals[key].as_u64().unwrap_or_default();
        if !is_empty(&status) {
            faults.push(format!("connections are open, or their data is buffered: {totals}"));
        }
        let ended = count("flows_finished") + count("flows_reset") + count("connects_failed");
        if count("flows_total") != ended {
            faults.push(format!("{} flows were accepted, {ended} ended: {totals}", count("flows_total")));
        }
        let lines = topology.access_log_lines() - operator.lines_before();
        if lines + count("access_log_lost") != ended {
            faults.push(format!("{ended} flows ended, the access log has {lines} lines"));
        }
        let private = private_memory(operator.pid());
        println!(
            "private memory: {} KiB, when warm {} KiB",
            private / 1024,
            private_before.unwrap_or(0) / 1024
        );
        if private_before.is_some_and(|before| private > before + before / 10 + MORE_MEMORY) {
            faults.push(format!("private memory has grown from {private_before:?} to {private} bytes"));
        }
        faults
    }
}

fn is_empty(status: &Value) -> bool {
    ["flows_open", "flows_connecting", "held_open", "relay_buffers_in_use", "buffered"]
        .iter()
        .all(|key| status["totals"][key].as_u64().unwrap_or(0) == 0)
}

/// What the process shares with nobody, bytes (proc(5), `smaps_rollup`).
pub(crate) fn private_memory(pid: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let of = |key: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    1024 * (of("Private_Clean:") + of("Private_Dirty:"))
}
