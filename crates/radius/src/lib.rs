//! How far a protocol's timers let it reach.
//!
//! Every protocol that waits for an answer gives up at some time, and the answer needs a round trip: so its
//! timers bound the distance over which it works, whatever the radio could do. RADIUS07 (Peoples, Wood, Parr,
//! Scotney, Moore, "TCP's protocol radius", IWSSC 2007) names two bounds, and there is a third between them,
//! all as one-way delays in seconds of light:
//!
//! - the **inner radius**, half the first retransmission timeout: beyond it everything is sent at least twice
//!   before the first answer is there;
//! - the **ceiling radius**, half the longest retransmission timeout: beyond it data are sent at least twice
//!   even on a connection that knows its round trip;
//! - the **limiting radius**, half the time until the protocol gives up: beyond it nothing works.
//!
//! [`Catalogue`] holds the timers and the places, read strictly from a data file; [`Catalogue::reach`]
//! computes the radii of a protocol with the protocols below it; [`Catalogue::verdict`] turns the question
//! round and says what works over a given [`Path`], and which settings would make it work; [`text`],
//! [`document`] and [`figure`] show both.
//!
//! ```
//! use bentpipe_radius::Catalogue;
//!
//! let catalogue = Catalogue::embedded();
//! let opnet = catalogue.protocol("TCP, OPNET 11.5").unwrap();
//! assert_eq!(catalogue.reach(opnet).limit.unwrap().as_secs_f64(), 22.5);
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods)]

mod catalogue;
pub mod document;
pub mod figure;
mod file;
pub mod handshake;
mod path;
mod place;
mod protocol;
mod reach;
pub mod text;

pub use catalogue::Catalogue;
pub use file::DataError;
pub use path::{Answer, Need, Path, Verdict};
pub use place::Place;
pub use protocol::{Protocol, Role, Schedule, Setting, Timer};
pub use reach::{Reach, TimerReach};

/// The speed of light in vacuum, km/s (exact by the definition of the metre).
pub const LIGHT_KM_PER_S: f64 = 299_792.458;

/// A distance in kilometres as the time that light needs for it; the longest that there is, if it is longer.
pub fn light_time(km: f64) -> std::time::Duration {
    std::time::Duration::try_from_secs_f64(km / LIGHT_KM_PER_S).unwrap_or(std::time::Duration::MAX)
}

/// How far light gets in `delay`, km.
pub fn kilometres(delay: std::time::Duration) -> f64 {
    delay.as_secs_f64() * LIGHT_KM_PER_S
}
