//! Two endpoints joined by a channel that loses, delays, reorders and duplicates: what must hold whatever it
//! does.
//!
//! proptest writes the plan of a failing run, seeds and all; a plan replays to the nanosecond.

mod channel;
mod connection;
mod hostile;
mod peer;
mod plan;
mod timelines;
mod transfers;
