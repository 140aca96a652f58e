//! Hosts as network namespaces, and a satellite link between two of them that carries their real packets.
//!
//! A [`Namespace`] is a host. [`veth`] joins two by a cable, [`SatelliteLink`] by a satellite: a TUN device
//! at each end and, between them, [`bentpipe_link`], which decides what becomes of each packet and when. The
//! hosts run the real TCP of the kernel and any program ([`Child`]); [`BehindLink`] is all of it for one
//! command.
//!
//! **Nothing is left behind.** A namespace has no name and is held by file descriptors only; a TUN device
//! exists as long as its descriptor; a child dies with this process. So when this process ends, even by
//! SIGKILL, the kernel removes namespaces, devices, addresses, routes and rules by itself, and there is
//! nothing that a next run must clear.
//!
//! ```no_run
//! use bentpipe_link::Profile;
//! use bentpipe_testbed::{Namespace, SatelliteLink, Subnet};
//!
//! # fn main() -> bentpipe_testbed::Result<()> {
//! let gateway = Namespace::new("gateway")?;
//! let terminal = Namespace::new("terminal")?;
//! let link = SatelliteLink::start(&gateway, "sat0", &terminal, "sat0", &Profile::Geo.config(), 42, 1500)?;
//! let subnet = Subnet::new(0);
//! subnet.assign(&gateway, "sat0", &terminal, "sat0")?;
//! let server = gateway.run(|| std::net::TcpListener::bind((subnet.left4(), 80)))?;
//! let client = terminal.run(|| std::net::TcpStream::connect((subnet.left4(), 80)))?;  // takes 600 ms
//! # Ok(())
//! # }
//! ```

mod address;
mod behind_link;
mod child;
mod clock;
mod end;
mod error;
mod forwarder;
mod forwarder_state;
mod lateness;
mod missing;
mod mounts;
mod namespace;
mod outage;
mod packet_log;
mod privilege;
mod reaper;
mod recorder;
mod require;
mod satellite;
mod signals;
mod timing_retry;
mod tun;
mod waker;

pub use address::{Subnet, default_route, forwarding, veth};
pub use behind_link::BehindLink;
pub use child::Child;
pub use error::{Error, Result};
pub use lateness::LatenessSummary;
pub use missing::{Missing, MissingItem, Need};
pub use mounts::{with_file, with_own_folder};
pub use namespace::{Namespace, find_tool};
pub use packet_log::PacketFiles;
pub use privilege::{drop_capabilities, enter_user_namespace, is_privileged};
pub use require::{LINK_NEEDS, require};
pub use satellite::{Delivered, SatelliteLink};
pub use timing_retry::with_timing_retries;
