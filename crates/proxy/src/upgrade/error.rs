//! Why an upgrade fails.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::PROTOCOL_VERSION;

/// Why no process took over.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// No daemon listens at the socket.
    #[error("cannot take over: no daemon at {socket} ({source}); start one in the ordinary way")]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The other process refused.
    #[error("the upgrade is refused: {reason}")]
    Refused {
        /// The other process's reason.
        reason: String,
    },
    /// The two programs use different versions of the protocol.
    #[error(
        "the other process uses version {theirs} of the upgrade protocol, this program uses version \
         {PROTOCOL_VERSION}; restart the daemon instead"
    )]
    Version {
        /// The other program's version.
        theirs: u32,
    },
    /// A process of an account without the right to it asked for the connections.
    #[error(
        "process {pid} of user {user} asked for this daemon's connections; only root and the daemon's own account \
         may, and only root where that account is nobody"
    )]
    PermissionDenied {
        /// The process.
        pid: i32,
        /// Its user.
        user: u32,
    },
    /// The other process ended, or sent nothing for too long.
    #[error("lost the other process while {step}: {source}")]
    Disconnected {
        /// The step of the upgrade.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The successor took no step for so long that the predecessor has taken the connections back.
    #[error("the new process made no progress for {silence:?} while {step}: the old one continues")]
    Stalled {
        /// The step of the upgrade.
        step: &'static str,
        /// How long.
        silence: Duration,
    },
    /// The successor went on, but all connections stood still for too long.
    #[error("the new process was not ready after {standstill:?}: the old one continues")]
    TooSlow {
        /// How long they stood still.
        standstill: Duration,
    },
    /// The other process sent what this program does not expect.
    #[error("the other process breaks the protocol while {step}: {reason}")]
    Protocol {
        /// The step of the upgrade.
        step: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl UpgradeError {
    pub(crate) fn protocol(step: &'static str, reason: impl ToString) -> Self {
        Self::Protocol { step, reason: reason.to_string() }
    }
}
