//! What happens to a packet on a satellite link.
//!
//! A [`Link`] joins a gateway and a terminal by two [`Direction`]s that share nothing. A direction is a list
//! of effects, each a file of its own behind one trait. A packet offered to it meets those that its
//! [`DirectionConfig`] asks for, in this order:
//!
//! 1. **Encapsulation** adds headers and padding: the packet becomes longer on the wire ([`Encapsulation`]).
//! 2. **Queue and rate**: a FIFO transmitter sends one packet after the other, behind a drop-tail queue in
//!    bytes; without room in the queue, a packet is not sent.
//! 3. **Losses**: a packet that has been sent may be lost to an outage ([`OutageTrace`]), to a burst of
//!    errors ([`GilbertElliott`]), because of its number ([`PrescribedLosses`]), or to a lone packet error.
//!    It has used its time on the transmitter all the same.
//! 4. **Delay**: a packet that survives arrives one propagation time after its last bit has left.
//! 5. **Impairments** ([`Impairments`]): a packet that arrives may be duplicated, held back so that others
//!    overtake it, and corrupted.
//!
//! Rate, delay and lone errors may change with time ([`LinkTrace`]). Links that do are read from files, or
//! made of a seed: [`LeoHandovers`], [`RainFront`], [`Aircraft`], [`Ship`].
//!
//! The agents at the link's ends, which help TCP across it, are in [`agent`]; the allocation of the link's
//! rate to its senders is in [`explicit`].
//!
//! The answer is a [`Fate`]: delivered at a time, or dropped for a [`Cause`]; [`Counters`] keep the sums.
//! [`InFlight`] keeps packets until their time comes. Nothing here has a clock, a socket or a thread: the
//! caller says what time it is. An emulator that moves real packets and a simulator in virtual time therefore
//! run this same code, and a seed gives the same fates in both.
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
#![forbid(unsafe_code)]

pub mod agent;
mod conditions;
mod counters;
mod direction;
mod effect;
pub mod explicit;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod in_flight;
pub mod ip;
pub mod mahimahi_log;
pub mod packet_log;
pub mod pcapng;
mod profile;
mod random;

pub use conditions::Conditions;
pub use counters::{Cause, Counters, Drops, Fate};
#[cfg(feature = "planted-faults")]
pub use direction::Fault;
pub use direction::{
    Arrival, Arrivals, Direction, DirectionConfig, FULL_SIZE_PACKET, Link, LinkConfig,
    MIN_DEFAULT_QUEUE_PACKETS,
};
pub use effect::{
    CustomEffect, Encapsulation, Frame, GilbertElliott, ImpairmentCounters, Impairments, LinkTrace,
    LinkTraceError, OutageTrace, PassingPacket, PrescribedLosses, TraceError,
};
pub use in_flight::InFlight;
pub use ip::IpPacket;
pub use profile::{Aircraft, LeoHandovers, Profile, RainFront, Ship, UnknownProfile};
