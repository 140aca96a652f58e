//! The transparent TCP splitter.
//!
//! A connection that crosses a satellite leg is intercepted by nftables ([`intercept`]), accepted in the
//! server's name, connected on in the client's name, and relayed, so that each leg has a TCP of its own: its
//! congestion control, its timers, its buffers. Neither end sees the proxy.
//!
//! ```text
//! client ══ leg ══► listener → flow → upstream ══ leg ══► server
//! ```
//!
//! Where a rule says so a flow is not split: its packets pass through the daemon, which sends lost ones again
//! (`services::snoop`).
//!
//! The ends still see half-closes, resets and refusals of each other. A crash of the daemon is a
//! reset at both ends, never an end of file; and while no daemon runs, connections pass unsplit.

mod access_log;
mod admission;
pub mod budget;
pub mod config;
mod connect;
mod daemon;
mod deferred_accept;
mod error;
mod flow;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
pub mod intercept;
mod relay;
mod services;
mod snapshot;
mod stats;
pub mod telemetry;
mod types;
pub mod upgrade;
mod worker;

pub use config::{Config, ConfigError};
pub use daemon::{Candidate, Daemon, Prepared, ReloadReport, check_alone};
pub use error::{Error, Refusal};
pub use services::check_protected_legs;
pub use stats::{ProtectStats, RouterStats, SnoopStats, Stats};
pub use types::leg_pair;
