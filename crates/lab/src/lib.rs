//! Experiments on satellite links: a topology of hosts and a link, downloads through it, and the results as a
//! table, a figure and a JSON document.
//!
//! [`topology::Topology`] builds client, gateway and server with a satellite link between the first two;
//! [`download`] moves a stream and checks every byte of it; [`demo`] compares several schemes; and [`figure`]
//! shows the result. The published experiments are in [`experiment`], and [`report`] makes a page of their
//! results.
#![forbid(unsafe_code)]

pub mod claim;
pub mod course;
pub mod crowd;
pub mod demo;
pub mod download;
pub mod esp;
pub mod experiment;
pub mod figure;
mod file;
mod number;
pub mod on_kernel;
pub mod outage;
pub mod processors;
pub mod quic;
pub mod reach;
pub mod report;
pub mod results;
pub mod slow_start;
pub mod squid;
pub mod statistics;
pub mod table;
pub mod topology;
pub mod trace;
pub mod trial;
pub mod tunnel;
pub mod unsplit;
pub mod wireguard;

/// An error of an experiment.
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
    /// A tunnel could not be set up.
    #[error("cannot set up a tunnel: {0}")]
    Tunnel(String),
    /// Hybla could not be loaded.
    #[error(transparent)]
    Hybla(#[from] bentpipe_kernel::StructOpsError),
    /// A transfer failed.
    #[error("the download by {run} failed: {source}")]
    Transfer {
        /// The run's name.
        run: String,
        /// The error of the socket.
        source: std::io::Error,
    },
    /// There is no such experiment.
    #[error("there is no experiment \"{name}\": choose one of {known}")]
    UnknownExperiment {
        /// The requested name.
        name: String,
        /// The existing names.
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
    /// An experiment has no form for virtual time.
    #[error("{name} runs on the kernel only: --on kernel")]
    NotInVirtualTime {
        /// The experiment.
        name: String,
    },
    /// A scenario needs what no kernel can do.
    #[error("the scenario cannot run on the kernel: {why}")]
    NotOnKernel {
        /// What it needs.
        why: String,
    },
    /// A scenario of an experiment is not valid.
    #[error("cannot set up the experiment: {0}")]
    Scenario(String),
    /// A folder of results could not be read.
    #[error("cannot read {path}: {message}")]
    Read {
        /// The folder.
        path: String,
        /// Why.
        message: String,
    },
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
