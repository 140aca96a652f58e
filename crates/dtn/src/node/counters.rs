//! What the node has done since it started.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// The counters as they are kept.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// What the node has done since it started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[doc = $doc])+ pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl Counts {
            /// Each counter's name, what it counts, and its value.
            pub fn each(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Bundles that applications of this node have sent.
    originated,
    /// Bundles received from other nodes.
    received,
    /// Payload bytes of bundles received from other nodes.
    received_bytes,
    /// Bundles that other nodes have acknowledged.
    sent,
    /// Payload bytes of bundles that other nodes have acknowledged.
    sent_bytes,
    /// Bundles that applications have acknowledged.
    delivered,
    /// Payload bytes of bundles that applications have acknowledged.
    delivered_bytes,
    /// Bundles that this node had already.
    duplicates,
    /// Bundles that were not taken, for want of room or because they were malformed.
    refused,
    /// Bundles that were given up: their time was over, they had passed too many nodes, or an operator said so.
    given_up,
    /// Sessions with other nodes that have been established.
    sessions,
    /// Transfers that a session's end broke off, to be sent again.
    broken_off,
}
