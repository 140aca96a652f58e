//! Deferred accept: completes a client's handshake only once the server's is complete.
//!
//! Linux answers a SYN as soon as it reaches a listener, so the rules route it into a TUN device instead. A
//! thread reads it there, keeps it, and connects to the server in the client's name. Once the server has
//! answered, the SYN is given back through the same device: the rules hand it to its path's listener, the
//! kernel answers, and the worker that accepts the connection claims the server's side from the
//! [`PendingTable`]. If the server refuses, or an ICMP error says that it cannot be reached, the SYN
//! is given back through another device, which the rules leave alone: it goes to the server, unsplit, and
//! what the client sees is the answer that it would have had without a proxy. And where nobody answers the
//! client hears nothing.
//!
//! ```text
//! SYN ══► rules ══► held device ──► thread ──► connect ══► server
//!                       ▲  answered    │  failed
//!  listener ◄══ rules ══╧◄─────────────┴────► passed device ══► server
//! ```
//!
//! The devices end with the process, and with them the route that leads into one: without the daemon the SYN
//! takes the way that it always took.

use std::sync::Arc;

use bentpipe_legs::Legs;

use crate::config::{AtLimit, Config, Interface};

mod pending_table;
mod recent_syns;
mod syn;
mod syn_handler;

pub(crate) use pending_table::{Claim, Connected, Entry, PendingTable};
pub(crate) use recent_syns::RecentSyns;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use syn::Syn;
pub(crate) use syn::is_between_hosts;
pub(crate) use syn_handler::SynHandler;

/// The settings of deferred accept; a reload changes them.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) legs: Arc<Legs>,
    /// The interfaces of the satellite legs, in the order of
    /// [`LegId::Satellite`](crate::types::leg_pair::LegId::Satellite).
    pub(crate) interfaces: Vec<Interface>,
    /// What happens to a SYN that is not admitted.
    pub(crate) at_limit: AtLimit,
}

impl Settings {
    pub(crate) fn of(config: &Config, legs: &Arc<Legs>) -> Self {
        Self { legs: legs.clone(), interfaces: config.interfaces(), at_limit: config.limits.at_limit }
    }
}
