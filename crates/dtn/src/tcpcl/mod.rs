//! TCPCLv4: how bundles move between two nodes over TCP (RFC 9174).
//!
//! This module transfers bytes and knows nothing of bundles. A session serves a
//! [`BundleAgent`](crate::convergence::BundleAgent).

mod authority;
mod driver;
pub mod identity;
pub mod message;
mod names;
pub mod session;
mod settings;
mod tls;

pub use authority::{Authority, Member};
pub use driver::run;
pub use settings::{EndedBy, PeerOverride, Role, SessionEnd, SessionSettings};
pub use tls::{Tls, TlsConfig};
