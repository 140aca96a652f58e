//! Errors of the daemon.

use std::io;
use std::net::SocketAddr;

use bentpipe_legs::RateControllerError;

use crate::snapshot::SnapshotError;
use crate::upgrade::UpgradeError;

/// Why the daemon could not start, reload or take over. It has undone what it had set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host or the configuration does not allow it. The text says what to change.
    #[error("{0}")]
    Refused(String),
    /// The process may not use foreign addresses.
    #[error(
        "cannot use the addresses of other hosts: {source}; run as root or give the program CAP_NET_ADMIN, CAP_NET_RAW and CAP_NET_BIND_SERVICE"
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
    /// What a configuration asks for cannot be had while the daemon runs.
    #[error("{what} takes effect only after a restart of the daemon")]
    Restart {
        /// What is asked for.
        what: &'static str,
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
