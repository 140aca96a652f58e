//! TCPCLv4: how bundles move between two nodes over TCP (RFC 9174).
//!
//! This module transfers bytes and knows nothing of bundles. A session serves a
//! [`BundleAgent`](crate::convergence::BundleAgent).

mod driver;
pub mod identity;
pub mod message;
pub mod session;
mod settings;
mod tls;

pub use driver::run;
pub use settings::{EndedBy, PeerOverride, Role, SessionEnd, SessionSettings};
pub use tls::{Tls, TlsConfig};
