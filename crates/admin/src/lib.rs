//! The daemon's HTTP server: status, live page, metrics, health, and commands.
//!
//! ```text
//! Unix socket (everything) ─┐              ┌──► StatsHandle ──► Status, metrics, history
//! TCP (read only) ──────────┴──► router ───┤
//!                                          └──► Command ──► the daemon's main thread ──► Answer
//! ```

mod bundle_node;
mod client;
mod command;
pub mod history;
mod host;
mod metrics;
mod names;
pub mod page;
mod routes;
mod server;
mod sockets;
mod status;
mod view;

pub use bentpipe_http::TokenError;
pub use bundle_node::BundleNodeReport;
pub use client::{Client, ClientError, DAEMON, Flows};
pub use command::{Answer, Command, Commands, DrainTimes};
pub use server::{Admin, serve};
pub use sockets::{AdminError, Sockets, check_token};
pub use status::Status;
pub use view::{Identity, View};
