//! The link layer's retransmission: what it does in which case, and what always holds.

mod anything;
mod timelines;
mod world;
