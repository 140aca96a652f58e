//! The two ends of a flow.

use serde::{Deserialize, Serialize};

/// One of the two ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Side {
    Client = 0,
    Server = 1,
}
