//! Errors of the daemon.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use bentpipe_legs::RateControllerError;
use serde::{Deserialize, Serialize};

use crate::config::Effect;
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

/// Why a reload changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The key, or a section, a leg or a rule, that it is about; none where it is no single one.
    pub key: Option<String>,
    /// What is wrong and what to do.
    pub reason: String,
    /// When the new value can take effect instead, if it ever can.
    pub possible: Option<Effect>,
}

impl Refusal {
    /// This key cannot have its new value.
    pub(crate) fn of(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: Some(key.into()), reason: reason.into(), possible: None }
    }

    /// It takes another process, because this one has given up its privileges.
    pub(crate) fn until_upgrade(key: impl Into<String>, what: &str) -> Self {
        let reason = format!(
            "{what} takes effect at an upgrade or a restart of the daemon: what it needs is made with the privileges \
             that the daemon has at its start"
        );
        Self { possible: Some(Effect::Upgrade), ..Self::of(key, reason) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            // The reason may begin with the key itself.
            Some(key) if !self.reason.starts_with(key.as_str()) => write!(f, "{key}: {}", self.reason),
            _ => f.write_str(&self.reason),
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { key: None, reason: error.to_string(), possible: None }
    }
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
