//! The legs of a daemon: their settings, the socket options that follow, and the thread that allocates
//! explicit rates.
//!
//! ```text
//! [legs.NAME], [terrestrial] ──► Legs ──► Leg::apply, to every socket that faces the leg
//!                                 └─────► RateController, for sockets with the congestion control `explicit`
//! ```

mod legs;
mod network;
mod rate_controller;
mod settings;
mod values;

pub use legs::{LegId, Legs};
pub use network::Network;
pub use rate_controller::{LinkEstimates, RateController, RateControllerError, Waker};
pub use settings::{SatelliteLeg, TerrestrialLeg};
pub use values::{Aqm, Congestion, Interface, Keepalive, Share};
