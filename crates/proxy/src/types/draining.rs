//! What it means that the daemon drains.

use std::time::Instant;

/// New connections pass unsplit, and the daemon ends with the last flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draining {
    /// When the remaining flows are reset, if ever.
    pub(crate) until: Option<Instant>,
}
