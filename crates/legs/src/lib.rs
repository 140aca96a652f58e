//! What a daemon's sockets have to do with a link: the settings of a leg as operators write them, the leg as the kernel takes
//! it, and the thread that shares out its rate.
//!
//! ```text
//! [legs.NAME], [terrestrial] ──► Legs ──► Leg::apply, to every socket that faces the leg
//!                                 └─────► Sharing: rates for those whose congestion control is `explicit`
//! ```

mod legs;
mod network;
mod settings;
mod sharing;
mod values;

pub use legs::{LegId, Legs};
pub use network::Network;
pub use settings::{SatelliteLeg, TerrestrialLeg};
pub use sharing::{Bell, Sharing, SharingError, Standings};
pub use values::{Congestion, Interface};
