//! Small types that every layer shares.

pub(crate) mod draining;
pub mod leg_pair;
pub(crate) mod mailbox;
pub(crate) mod side;
pub(crate) mod slab;

pub(crate) use draining::Draining;
pub(crate) use side::Side;
