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

/// Why ns-3 has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The program is not there.
    #[error("cannot run {program}: {source}; build it with scripts/setup-peers and peers/ns3/build")]
    Missing { program: String, source: std::io::Error },
    /// It was given options that it does not take, or ended in another way without a result.
    #[error("{command} failed ({status}): {message}")]
    Failed { command: String, status: std::process::ExitStatus, message: String },
    /// A flow did not end: there is nothing to compare.
    #[error("{pair}, PER {per}, seed {seed}: 10 MB did not arrive; give other seeds or leave this pair out")]
    Incomplete { pair: &'static str, per: f64, seed: u64 },
    /// A trace cannot be written.
    #[error("cannot write the traces into {folder}: {source}; name another folder")]
    Trace { folder: String, source: std::io::Error },
    /// Its answer cannot be read.
    #[error("the answer of {command} cannot be read: {source}")]
    Answer { command: String, source: serde_json::Error },
}

/// What `single_flow` answers.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SingleFlow {
    pub(crate) goodput_bps: f64,
    pub(crate) retransmissions: u64,
    pub(crate) timeouts: u64,
    pub(crate) complete: bool,
}

/// What `dumbbell` answers.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dumbbell {
    pub(crate) events: u64,
    pub(crate) wall_s: f64,
    pub(crate) cpu_s: f64,
    pub(crate) queue_drops: u64,
    pub(crate) flows: Vec<DumbbellFlow>,
}

/// A flow of [`Dumbbell`].
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct DumbbellFlow {
    pub(crate) goodput_bps: f64,
}

/// What `handshake` answers for one delay.
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
        let output =
            output.map_err(|source| Error::Missing { program: path.display().to_string(), source })?;
        let command = || format!("{program} {}", options.join(" "));
        // A flow that does not end in time is an answer too, with exit code 1 and "complete": false.
        if output.stdout.is_empty() {
            let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Failed { command: command(), status: output.status, message });
        }
        serde_json::from_slice(&output.stdout).map_err(|source| Error::Answer { command: command(), source })
    }
}
