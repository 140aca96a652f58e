//! What a daemon's sockets have to do with a link: the settings of a leg as operators write them, the leg as the kernel takes
//! it, and the thread that shares out its rate.
//!
//! ```text
//! [legs.NAME], [terrestrial] ──► Legs ──► Leg::apply, to every socket that faces the leg
//!                                 └─────► RateController: rates for those whose congestion control is `explicit`
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
pub use values::{Congestion, Interface};
