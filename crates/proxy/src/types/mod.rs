//! Small types that every layer shares.

pub mod leg_pair;
pub(crate) mod mailbox;
pub(crate) mod slab;
