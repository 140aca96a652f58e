//! ns-3's side: the programs of `peers/ns3`, each of which answers with JSON.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The folder in which the compiled programs lie.
#[derive(Debug, Clone)]
pub(crate) struct Ns3 {
    programs: PathBuf,
}

/// Why there is nothing to compare, in a sentence for the user.
pub(crate) type Error = String;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SingleFlow {
    pub(crate) goodput_bps: f64,
    pub(crate) retransmissions: u64,
    pub(crate) timeouts: u64,
    pub(crate) complete: bool,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dumbbell {
    pub(crate) events: u64,
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) queue_drops: u64,
    pub(crate) flows: Vec<DumbbellFlow>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct DumbbellFlow {
    pub(crate) goodput_bps: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Handshake {
    pub(crate) one_way_s: u64,
    pub(crate) delivered: bool,
    pub(crate) syns: u64,
    pub(crate) syn_acks: u64,
}

impl Ns3 {
    pub(crate) fn new(programs: impl Into<PathBuf>) -> Self {
        Self { programs: programs.into() }
    }

    /// Runs one of the programs and reads what it answers.
    pub(crate) fn ask<A: DeserializeOwned>(&self, program: &str, options: &[String]) -> Result<A, Error> {
        let path = self.programs.join(program);
        let mut command = Command::new(&path);
        let output = command.args(options).stdin(Stdio::null()).output();
        let output = output.map_err(|error| {
            let program = path.display();
            format!("cannot run {program}: {error}; build it with scripts/setup-peers and peers/ns3/build")
        })?;
        let command = || format!("{program} {}", options.join(" "));
        // A flow that does not end in time is an answer too, with exit code 1 and "complete": false.
        if output.stdout.is_empty() {
            let message = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} failed ({}): {}", command(), output.status, message.trim()));
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| format!("the answer of {} cannot be read: {error}", command()))
    }
}
