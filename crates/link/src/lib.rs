//! What happens to a packet on a satellite link.
//!
//! A [`Link`] joins a gateway and a terminal by two [`Direction`]s that share nothing. A packet offered to a
//! direction meets its effects in this order, each a file of its own:
//!
//! 1. **Encapsulation** adds headers and padding: the packet becomes longer on the wire ([`Encapsulation`]).
//! 2. **Queue**: a drop-tail queue in bytes in front of the transmitter; no room, no transmission.
//! 3. **Rate**: a FIFO transmitter sends one packet after the other at a fixed bit rate.
//! 4. **Radio**: what has been sent may be lost to an outage ([`OutageTrace`]), to a burst of errors
//!    ([`GilbertElliott`]) or to a lone packet error. It has used its time on the transmitter all the same.
//! 5. **Delay**: what survives arrives one propagation time after its last bit has left.
//!
//! What sits at the link's ends and helps TCP across it is in [`agent`]; what shares the link out among its senders in
//! [`explicit`].
//!
//! A direction delivers in order and unharmed. A [`Mangler`] behind it reorders, duplicates and corrupts what it delivers.
//!
//! The answer is a [`Fate`]: delivered at a time, or dropped for a [`Cause`]; [`Counters`] keep the sums.
//! Nothing here has a clock, a socket or a thread: the caller says what time it is. An emulator that moves
//! real packets and a simulator in virtual time therefore run this same code, and a seed gives the same fates
//! in both.
//!
//! ```
//! use bentpipe_link::{Fate, Link, Profile};
//! use bentpipe_units::Time;
//!
//! let mut link = Link::new(&Profile::Geo.config(), 42);
//! // 1500 bytes need 1.2 ms at 10 Mbit/s, and 300 ms to the terminal.
//! assert_eq!(link.forward.offer(Time::ZERO, 1500), Fate::Deliver { at: Time::from_nanos(301_200_000) });
//! ```

#![deny(clippy::disallowed_methods)]

pub mod agent;
mod counters;
mod csv;
mod direction;
mod encapsulation;
pub mod explicit;
pub mod ip;
mod loss;
mod mangling;
mod outage;
mod profile;
mod random;
mod transmitter;

pub use counters::{Cause, Counters, Drops, Fate};
pub use csv::TraceError;
pub use direction::{
    Direction, DirectionConfig, FULL_SIZE_PACKET, Link, LinkConfig, MIN_DEFAULT_QUEUE_PACKETS,
};
pub use encapsulation::{Encapsulation, Frame};
pub use ip::IpPacket;
pub use loss::GilbertElliott;
pub use mangling::{Arrival, Mangled, MangledCounters, Mangler, Mangling};
pub use outage::OutageTrace;
pub use profile::{Profile, UnknownProfile};
