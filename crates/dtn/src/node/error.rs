//! Why a node cannot start.

use std::io;
use std::path::PathBuf;

use bentpipe_http::TokenError;
use bentpipe_legs::RateControllerError;

use crate::config::ConfigError;
use crate::node::KeyError;
use crate::store::StoreError;
use crate::tcpcl::identity::IdentityError;

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration contradicts itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Certificates or keys cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A key for bundles cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The token of the metrics cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The rate controller cannot start.
    #[error(transparent)]
    RateController(#[from] RateControllerError),
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// This node cannot have a service that the configuration names.
    #[error("{0}")]
    Service(String),
    /// Another node listens at the socket.
    #[error("another node answers at {0}; give each node its own node.socket")]
    SocketTaken(PathBuf),
}

impl NodeError {
    pub(crate) fn system(action: String) -> impl FnOnce(io::Error) -> Self {
        |source| Self::System { action, source }
    }
}
