//! Experiments on satellite links: a scene of hosts and a link, downloads through it, and what came of them as a table,
//! a figure and a JSON document.
//!
//! The walk of an experiment: [`scene::Scene`] builds client, gateway and server with a satellite link between the first
//! two; [`download`] moves a stream whose every byte is checked; [`demo`] does so by several ways and compares them;
//! [`report`] and [`figure`] show the result.

pub mod counters;
pub mod demo;
pub mod download;
pub mod experiment;
pub mod figure;
mod file;
pub mod outage;
pub mod reach;
pub mod report;
pub mod results;
pub mod slow_start;
pub mod statistics;
pub mod table;
pub mod topology;
pub mod trace;
pub mod trial;

/// What can go wrong in an experiment.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The hosts or the link could not be set up.
    #[error(transparent)]
    Testbed(#[from] bentpipe_testbed::Error),
    /// The proxy did not start.
    #[error("cannot start the proxy in the gateway: {0}")]
    Proxy(String),
    /// A bundle node did not start.
    #[error("cannot start a bundle node: {0}")]
    Node(String),
    /// Hybla could not be loaded.
    #[error(transparent)]
    Hybla(#[from] bentpipe_kernel::StructOpsError),
    /// A transfer failed.
    #[error("the download by {run} failed: {source}")]
    Transfer {
        /// The run's name.
        run: String,
        /// What the socket said.
        source: std::io::Error,
    },
    /// There is no such experiment.
    #[error("there is no experiment \"{name}\": choose one of {known}")]
    UnknownExperiment {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// An experiment has no form for the kernel.
    #[error("{name} runs in virtual time only (--on sim); what runs on the kernel is {able}")]
    NotInThisWorld {
        /// The experiment.
        name: String,
        /// Those that have one.
        able: String,
    },
    /// A scenario of an experiment is not valid.
    #[error("cannot set up the experiment: {0}")]
    Scenario(String),
    /// A figure or a table could not be written.
    #[error("cannot write {path}: {message}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        message: String,
    },
}

/// The release of the running kernel, such as `6.18.0`.
fn kernel_release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}
