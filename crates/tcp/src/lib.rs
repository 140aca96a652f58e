//! A TCP endpoint as a state machine.
//!
//! An [`Endpoint`] is told what happens (a segment arrives, the application writes or reads, a moment has come) and is
//! asked what it wants to send and when it wants to be woken. It has no clock, no socket and no thread, and the payload
//! is counted, not stored: a transfer of any size takes the memory of what is in flight.
//!
//! | part | file | what it decides |
//! |---|---|---|
//! | connection | `endpoint.rs`, `handshake.rs`, `state.rs` | handshake, closing, giving up, which segment goes out next |
//! | sender | `sender.rs`, `send_queue.rs` | what is outstanding, lost, selectively acknowledged |
//! | receiver | `receiver.rs` | what may be read, when an acknowledgement goes out, the window |
//! | timers | `rto.rs`, `syn.rs` | retransmission timeout, backoff, the schedule of the SYNs |
//! | loss recovery | `recovery/` | when a segment counts as lost: [`Recovery`] |
//! | congestion control | `congestion/` | how much may be in flight, and how fast: [`congestion::CongestionControl`] |
//!
//! Offsets in the stream are 64-bit and never wrap; sequence numbers do, and live only in [`Segment`].

#![deny(clippy::disallowed_methods)]

mod config;
pub mod congestion;
mod endpoint;
mod handshake;
mod ranges;
mod receiver;
pub mod recovery;
mod rto;
mod segment;
mod send_queue;
mod sender;
mod state;
mod syn;
mod wire;

pub use config::{Config, ConfigError, MAX_RECEIVE_BUFFER};
pub use endpoint::Endpoint;
pub use recovery::Recovery;
pub use rto::{Rto, RtoLimits};
pub use segment::{CongestionOption, Flags, MAX_SACK_BLOCKS, SackBlocks, Segment, SynOptions, Timestamps};
pub use state::{End, Reported, State, Statistics, Variables};
pub use syn::SynSchedule;
pub use wire::WireError;
