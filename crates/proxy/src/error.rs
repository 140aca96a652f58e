//! Errors of the daemon.

use std::io;
use std::net::SocketAddr;

use bentpipe_kernel::tun::TunError;
use bentpipe_legs::RateControllerError;

use crate::snapshot::SnapshotError;
use crate::upgrade::UpgradeError;

/// Why the daemon could not start, reload or take over. It has undone what it had set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A leg's interface is not there.
    #[error("leg {leg}: there is no network interface \"{interface}\"; this host has {existing}")]
    MissingInterface {
        /// The leg's name.
        leg: String,
        /// The interface that the configuration names.
        interface: String,
        /// The interfaces that exist.
        existing: String,
    },
    /// A setting of the host would make what the configuration asks for fail.
    #[error("{message}")]
    Setting {
        /// The setting, what it does, and the line that changes it.
        message: String,
    },
    /// The process may not use foreign addresses.
    #[error(
        "cannot use the addresses of other hosts: {source}; run as root or give the program CAP_NET_ADMIN and CAP_NET_BIND_SERVICE"
    )]
    Privileges {
        /// The system's error.
        source: io::Error,
    },
    /// Another process holds a port that the daemon needs.
    #[error("cannot listen on {address}: {source}; free that port or choose another range with proxy.port")]
    Port {
        /// The address that is taken.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The listeners of earlier configurations are still there for handshakes that are under route.
    #[error("the legs or weights have been changed several times within a minute; try again in {seconds} s")]
    TooManyReloads {
        /// When the next one is possible.
        seconds: u64,
    },
    /// The bundle node's port is one that a reload has given to listeners of the daemon's own.
    #[error(
        "bundle.port = {port} is a port of listeners that this daemon opened at a reload; choose another, or restart it"
    )]
    BundlePort {
        /// The port.
        port: u16,
    },
    /// What a configuration asks for cannot be had while the daemon runs.
    #[error("{what} takes effect only after a restart of the daemon")]
    Restart {
        /// What is asked for.
        what: &'static str,
    },
    /// Another daemon splits connections in this network namespace.
    #[error(
        "another bentpipe with the nftables table \"{table}\" runs in this network namespace; stop it first"
    )]
    AlreadyRunning {
        /// The table's name.
        table: &'static str,
    },
    /// `nft` or `ip` could not be run or refused.
    #[error("cannot {action} with `{command}`: {reason}")]
    Tool {
        /// What was attempted.
        action: &'static str,
        /// The command line.
        command: String,
        /// What went wrong and, where it is known, what to do.
        reason: String,
    },
    /// A device that the configuration needs could not be made.
    #[error("{purpose} cannot work: {source}; or {instead}")]
    Tun {
        /// What needs it.
        purpose: &'static str,
        /// What can be done without it.
        instead: &'static str,
        /// What went wrong.
        source: TunError,
    },
    /// Another process's connections could not be taken over.
    #[error(transparent)]
    Handover(#[from] UpgradeError),
    /// The rate controller could not start.
    #[error(transparent)]
    RateController(#[from] RateControllerError),
    /// Another system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: a predecessor's state is not what this program expects.
    pub(crate) fn snapshot(error: SnapshotError) -> Self {
        Self::Handover(UpgradeError::protocol("reading the snapshot", error))
    }

    /// For `map_err`: what was attempted when the system call failed.
    pub(crate) fn system<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action: action.into(), source: source.into() }
    }
}
