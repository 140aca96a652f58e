//! Deferred accept: the SYNs that the rules take, until a listener answers them.
//!
//! Linux answers a SYN as soon as it reaches a listener. So the rules give a copy of each SYN that is to be
//! split to a thread, and drop it. With an early handshake the thread sends it to its path's listener at
//! once. With a faithful one it keeps it, and connects to the server in the client's name. Once the server
//! has answered, the SYN goes to the listener, the kernel answers, and the worker that accepts the connection
//! claims the server's side from the [`PendingTable`]. If the server refuses, or an ICMP error says that it
//! cannot be reached, the SYN is sent on to the server, unsplit, and what the client sees is the answer that
//! it would have had without a proxy. And where nobody answers the client hears nothing.
//!
//! ```text
//! SYN ══► rules ══► log group ──► thread ──► connect ══► server
//!                                   │  answered, or early    │  failed
//!  listener ◄══ rules ◄══ lo ◄══════╧                        ╧═══ raw socket ══► server
//! ```
//!
//! A client that repeats a SYN although a listener has had it for seconds, while nothing has been accepted,
//! shows that something on this host swallows what the rules take ([`Progress`]): then connections pass
//! unsplit for a while.
//!
//! What drops the SYNs ends with the process ([`SynSockets`]): without the daemon they take the way that they
//! always took.

use std::sync::Arc;

use bentpipe_legs::Legs;

use crate::config::{AtLimit, Config};
use crate::connect::listener;
use crate::types::leg_pair::LegPair;

mod half_open;
mod pending_table;
mod progress;
mod recent_syns;
mod syn;
mod syn_handler;
mod taken;

pub(crate) use pending_table::{Claim, Connected, Entry, FourTuple, PendingTable};
pub(crate) use recent_syns::RecentSyns;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use syn::Syn;
pub(crate) use syn::is_between_hosts;
pub(crate) use syn_handler::SynHandler;
pub(crate) use taken::{Inherited, SynSockets};

/// The settings of deferred accept; a reload changes them.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) legs: Arc<Legs>,
    /// The paths, by the ports of which the rules tell them.
    pub(crate) pairs: Vec<LegPair>,
    /// What happens to a SYN that is not admitted.
    pub(crate) at_limit: AtLimit,
    /// Handshakes that the listeners may have open.
    pub(crate) half_open: u64,
}

impl Settings {
    pub(crate) fn of(config: &Config, legs: &Arc<Legs>, pairs: &[LegPair]) -> Self {
        // The workers share the connections evenly, but not exactly so.
        let half_open = config.proxy.workers.get() as u64 * u64::from(listener::backlog()) * 3 / 4;
        Self { legs: legs.clone(), pairs: pairs.to_vec(), at_limit: config.limits.at_limit, half_open }
    }
}
