//! The two ends of a flow.

/// One of the two ends of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Client = 0,
    Server = 1,
}
