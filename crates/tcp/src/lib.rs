//! A TCP endpoint as a state machine.
//!
//! The caller passes events to an [`Endpoint`] (a segment arrives, the application writes or reads, a timer
//! expires), and polls it for segments to send and for its next timer. It has no clock, no socket and no
//! thread, and it counts the payload instead of storing it: memory grows with the data in flight, not with
//! the transfer.
//!
//! | part | file | decides |
//! |---|---|---|
//! | connection | `endpoint.rs`, `handshake.rs`, `state.rs`, `metrics.rs` | handshake, closing, giving up, the next segment |
//! | sender | `sender.rs`, `send_queue.rs`, `delivery_rate.rs` | which data is outstanding, lost, selectively acknowledged |
//! | receiver | `receiver.rs`, `right_sizing.rs` | which data may be read, when an acknowledgement goes out, the window |
//! | timers | `rto.rs`, `syn.rs` | retransmission timeout, backoff, the schedule of the SYNs |
//! | loss recovery | `recovery/` | when a segment counts as lost: [`Recovery`] |
//! | congestion control | `congestion/` | how much, how fast: [`congestion::CongestionControl`] |
//!
//! Offsets in the stream are 64-bit and never wrap; sequence numbers do, and live only in [`Segment`].

#![deny(clippy::disallowed_methods)]
#![deny(unsafe_code)]

mod config;
pub mod congestion;
mod delivery_rate;
mod endpoint;
mod handshake;
mod metrics;
mod receiver;
pub mod recovery;
mod right_sizing;
mod rto;
mod segment;
mod send_queue;
mod sender;
mod state;
mod syn;
mod wire;

pub use config::{Config, ConfigError, MAX_RECEIVE_BUFFER};
pub use delivery_rate::RateSample;
pub use endpoint::Endpoint;
pub use metrics::{Metrics, MetricsCache};
pub use recovery::Recovery;
pub use rto::{Rto, RtoLimits};
pub use segment::{CongestionOption, Flags, MAX_SACK_BLOCKS, SackBlocks, Segment, SynOptions, Timestamps};
pub use state::{End, Reported, State, Statistics, Variables};
pub use syn::SynSchedule;
pub use wire::WireError;
