//! The daemon's outside: what can be seen of it and what it can be told, over HTTP.
//!
//! ```text
//! Unix socket (everything) ─┐              ┌──► Sight ──► Status, metrics, history
//! TCP (looking only) ───────┴──► router ───┤
//!                                          └──► Order ──► the daemon's main thread ──► Answer
//! ```

pub mod history;
mod order;
pub mod page;
mod status;

pub use order::{Answer, Order, Orders};
pub use status::Status;
