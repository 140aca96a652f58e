//! The daemon's outside: what can be seen of it and what it can be told, over HTTP.
//!
//! ```text
//! Unix socket (everything) ─┐              ┌──► Sight ──► Status, metrics, history
//! TCP (looking only) ───────┴──► router ───┤
//!                                          └──► Order ──► the daemon's main thread ──► Answer
//! ```

mod client;
mod guard;
pub mod history;
mod metrics;
mod order;
mod paced;
pub mod page;
mod reply;
mod routes;
mod server;
mod sockets;
mod status;
mod token;
mod view;

pub use client::{Client, ClientError, Flows};
pub use order::{Answer, Order, Orders};
pub use server::{Admin, serve};
pub use sockets::{AdminError, Sockets};
pub use status::Status;
pub use token::TokenError;
pub use view::{Identity, View};
