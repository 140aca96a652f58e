//! A bundle node: store and forward (RFC 9171) where an end-to-end connection has no chance.
//!
//! ```text
//!  application ──HTTP over a Unix socket──► app ─┐                       ┌─► app ──► application
//!                                                ▼                       │
//!  next node ◄──TCPCLv4── tcpcl ◄── outgoing ── node ── accept ── store ─┘
//!  other node ──TCPCLv4──► tcpcl ── receiver ────┘      route
//! ```
//!
//! [`bundle`] encodes and decodes bundles, [`route`] finds the next hop, [`store`] keeps a bundle until the
//! next hop has acknowledged it, [`tcpcl`] transfers it between two nodes, as does LTP (crate `bentpipe-ltp`);
//! [`convergence`] is what both know of a node. [`node`] joins these, [`app`] is the interface for applications, [`transfer`] carries HTTP PUTs and files, and [`daemon`] starts all of it.
//! `bundle` and `route` know no clock, socket or thread.

pub mod app;
pub mod bundle;
pub mod config;
pub mod convergence;
pub mod daemon;
mod eid;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod node;
pub mod route;
pub mod store;
pub mod tcpcl;
mod time;
pub mod transfer;

pub use eid::{Eid, EidError, EidPattern, IpnForm};
pub use time::DtnTime;
