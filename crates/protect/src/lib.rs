//! Protected legs: IP packets that cannot be split (QUIC, WireGuard, ESP, ICMP, TCP that stays end to end)
//! cross a lossy link in numbered frames, and what the link loses is put together again at its far end.
//!
//! Two boxes, one at each end of the leg, run a [`Leg`] each. A leg is sans-IO: it knows no clock, socket or
//! thread. It is given packets, frames and the time, and is asked for frames and packets, so that a daemon,
//! an emulated link and virtual time drive the same code.
//!
//! # What flows
//!
//! ```text
//!  packets in        Leg of one box                   the link              Leg of the other box        packets out
//!             ┌─ Sender ───────────────┐                              ┌─ Receiver ──────────────┐
//!  next() ──► │ Compressor ► Encoder   │ Frame ► Seal ► bytes ─ ─ ─ ► │ Open ► Decoder ► order  │ ──► next_packet()
//!             │ redundancy             │                              │ ► Expander              │
//!             │ retransmissions        │                              │ LossMeter   requests    │
//!             └──────────▲─────────────┘                              └───────────┬─────────────┘
//!                        └───────────── Report ◄ Open ◄ ─ ─ ─ Seal ◄ ─────────────┘
//! ```
//!
//! and the same the other way round. Three rules hold everywhere:
//!
//! - **One call, one frame.** [`Leg::poll`] gives at most one frame and takes at most one packet for it, from
//!   a closure. Pacing, queues, fairness and ECN are outside, in front of it: the leg holds no packet back
//!   that it has not sent.
//! - **Everything has a bound**: packets remembered at both ends ([`Memory`](encoder::Memory)), equations,
//!   missing packets, redundancy, retransmissions. A peer can lie within them, and no further.
//! - **Nothing is delivered that was not sent.** Frames are authenticated, numbered and taken once; a
//!   repaired packet is a solution of equations that all come from authentic frames.
//!
//! # Types at the borders
//!
//! | module | what it holds |
//! |---|---|
//! | [`gf256`] | y ⊕= c·x with whatever vectors the processor has |
//! | [`window`], [`encoder`], [`decoder`] | the code: RLC over GF(2⁸) in the manner of RFC 8681, variable length, on-the-fly elimination |
//! | [`frame`] | what is in a frame, as bytes and as [`Frame`](frame::Frame) |
//! | [`header`], [`compress`] | headers that a flow's packets have in common, left out |
//! | [`wire`] | what every frame has, and why one is refused |
//! | [`seal`] | keys, AEAD, replay window |
//! | [`handshake`] | which sessions of the two boxes belong together |
//! | [`loss`] | what a receiver counts, and what a sender makes of it: how many repair symbols |
//! | `sender`, `receiver` | one direction, both classes |
//! | [`leg`] | both directions and the session: what a daemon holds |
//! | [`queue`] | what waits in front of a leg: fair among flows, with CoDel and ECN |
//!
//! # Classes
//!
//! `latency`: code only; a packet is delivered when it comes or is repaired, in whatever order that is.
//! Redundancy is high enough that nothing else is needed. `bulk`: code and retransmission on request; packets
//! are delivered in order, because QUIC takes three packets that overtake another one for its loss (RFC 9002
//! §6.1.1). A packet that is not there in time is skipped. Each class numbers its packets from 0 and has a
//! code of its own.
//!
//! # Walks
//!
//! **A packet that is lost and repaired by the code.** Packet 4 of a class leaves in a source frame and is
//! lost. The receiver sees number 5 and keeps it: 4 is missing since now. The sender has gathered credit with
//! each source frame, as much as the peer's reports ask for; it reaches 1, and the next frame is a repair
//! symbol of the last 256 packets that the peer may miss. It arrives; all of its packets but 4 are known, so
//! 4 is what remains of it. 4 and 5 are delivered. The next report tells one frame lost of so many.
//!
//! **A burst that is longer than the redundancy.** Packets 100 to 139 are lost. When 140 arrives, the
//! receiver counts 40 unknown packets, and knows from the repair symbols so far that one comes each 30
//! packets: that takes longer than the quarter of a round trip that the code has. It asks at once, by a
//! report with the range 100–139. The sender sends them again ahead of all that is new, and repair symbols of
//! this very range behind them, one for each that may be lost again: any 40 of these frames will do. If the
//! report is lost, the next one says the same; the sender answers what it has not answered within this round
//! trip. 140 to … wait meanwhile; they are delivered behind 139, or when a round trip and a margin have
//! passed since the request.
//!
//! **A silent peer.** No authentic frame has come for 1.8 seconds: [`Leg::is_alive`] is false, and the daemon
//! passes packets unprotected or drops them. The leg goes on reporting four times a second. If the link was
//! out, the peer's next frame ends the silence, in the same session. If the peer has started anew, it says
//! hello with another nonce; ours answers with one of its own that was never used; both nonces make the keys
//! of a new session, in which all numbers begin at 0. What is heard of the old one is no longer authentic.
//!
//! [`Leg`]: leg::Leg
//! [`Leg::poll`]: leg::Leg::poll
//! [`Leg::is_alive`]: leg::Leg::is_alive

#![deny(clippy::disallowed_methods)]

mod codel;
mod coefficients;
pub mod compress;
mod config;
pub mod decoder;
pub mod encoder;
pub mod frame;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod gf256;
pub mod handshake;
pub mod header;
mod ip;
pub mod leg;
pub mod loss;
pub mod queue;
mod receiver;
mod return_delay;
pub mod seal;
mod sender;
pub mod window;
pub mod wire;

pub use config::{ClassConfig, Config};
pub use frame::Class;
pub use leg::{Leg, LegStats, Sent};
pub use queue::{Choice, Queue, QueueStats};
pub use receiver::ReceiverStats;
pub use seal::{Cipher, Secret};
pub use sender::SenderStats;
pub use wire::FrameError;
