//! The legs of a daemon: their settings, the socket options that follow, and the thread that allocates
//! explicit rates.
//!
//! ```text
//! [legs.NAME], [terrestrial] ──► Legs ──► Leg::apply, to every socket that faces the leg
//!                                 └─────► RateController, for sockets with the congestion control `explicit`,
//!                                         and for Senders that are no sockets of TCP
//! ```

mod legs;
mod network;
mod protect;
mod rate_controller;
mod senders;
mod settings;
mod values;

pub use legs::{LegId, Legs};
pub use network::Network;
pub use protect::{Peer, ProtectCipher, ProtectClass, ProtectPort, ProtectSettings, WhenSilent};
pub use rate_controller::{LinkEstimates, RateController, RateControllerError, Waker};
pub use senders::{Sender, Senders};
pub use settings::{SatelliteLeg, TerrestrialLeg};
pub use values::{Aqm, Congestion, Interface, Keepalive, Share};
