//! The state of a daemon that drains.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::snapshot;

/// New connections pass unsplit, and the daemon ends with the last flow.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Draining {
    /// When the remaining flows are reset, if ever.
    #[serde(with = "snapshot::optional_instant")]
    pub(crate) until: Option<Instant>,
}
