//! Delayed duplicate ACKs: what becomes of which segment, and what always holds.

mod anything;
mod terminal;
mod timelines;
