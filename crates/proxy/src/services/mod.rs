//! The threads beside the workers.

pub(crate) mod snoop;
pub(crate) mod watchdog;
pub(crate) mod xcp_router;
