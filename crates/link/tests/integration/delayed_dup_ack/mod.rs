//! Delayed duplicate ACKs: what becomes of which segment, and what always holds.

mod anything;
pub(crate) mod terminal;
mod timelines;
