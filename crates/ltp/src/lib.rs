//! The Licklider Transmission Protocol (RFC 5326): blocks of bytes over links that are so long, or so seldom
//! there, that TCP's timers end every connection.
//!
//! ```text
//! client ── block ──► Engine ── datagrams, paced ──► link ──► Engine ── block ──► client
//!        ◄── Sent ──        ◄── reports ─────────── link ◄──        ◄── accepted
//! ```
//!
//! Nothing is negotiated: each block has a session of its own, which its first segment begins. Its end, the
//! checkpoint, asks for a report; what the report does not claim is sent again, with a checkpoint at the end,
//! until all has arrived. So a block of any length takes one round trip where nothing is lost, and any number
//! of blocks are on their way at once. Timers are those of the link, which is known, and not measured as TCP's
//! are; while the peer cannot be heard they stand still.
//!
//! An [`Engine`] holds the sessions with one peer. It has no clock, no socket and no random numbers: `now` is a
//! parameter, datagrams come and go as bytes.
//!
//! Where RFC 5326 leaves a choice:
//! - A block is red or green as a whole. Blocks with a red part and a green one are received.
//! - The report that claims all of a block is sent when the client is responsible for it, so that whoever has
//!   sent a block may forget it then.
//! - A segment that was sent after a checkpoint is not sent again because of that checkpoint's report.
//! - With an [`Authentication`] (RFC 5327 §2.1) segments are sent with a proof, and those of the peer are only
//!   taken with one. Cookies (§2.2) are neither sent nor asked for. Other extensions are skipped.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods)]

mod authentication;
mod clock;
mod engine;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod pacer;
mod receiving;
pub mod sdnv;
pub mod segment;
mod sending;

pub use authentication::{Authentication, KEY_LENGTHS, NotAuthentic, Random, UnusableKey};
pub use engine::{Config, Engine, Event, Failure, Statistics, Unreadable};
pub use pacer::Pacer;
pub use segment::{Reason, SessionId};

/// The client service of the Bundle Protocol (CCSDS 734.1-B-1 §4.4).
pub const BUNDLE_PROTOCOL: u64 = 1;
/// The UDP port of LTP (RFC 5326 §10).
pub const PORT: u16 = 1113;

/// The client's number for a block that it sends.
pub type Handle = u64;

/// How a block is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Color {
    /// What is lost is sent again, until the peer's client is responsible for all of it.
    Red,
    /// Once, and nothing is heard of it: for links without a way back.
    Green,
}
