//! What can happen to a packet on a direction of a link: one file for each effect, all behind one trait.
//!
//! A [`Direction`](crate::Direction) is a list of effects. Each packet walks through the list as a
//! [`Transit`], which every effect may change. To add an effect, write its file, give
//! [`DirectionConfig`](crate::DirectionConfig) its parameters, and register it in the list that
//! `Direction::new` builds.

mod burst_errors;
mod corrupt;
mod delay;
mod duplicate;
mod encapsulation;
mod impairments;
mod outage;
mod packet_errors;
mod reorder;
mod transmitter;

use std::fmt;
use std::time::Duration;

use bentpipe_units::Time;

pub(crate) use burst_errors::BurstErrors;
pub use burst_errors::GilbertElliott;
pub(crate) use delay::Delay;
pub use encapsulation::{Encapsulation, Frame};
pub use impairments::{ImpairmentCounters, Impairments};
pub use outage::{OutageTrace, TraceError};
pub(crate) use packet_errors::PacketErrors;
pub(crate) use transmitter::Transmitter;

use crate::Cause;

/// One thing that happens to the packets of a direction.
///
/// An effect knows no clock, and nothing of the other effects. If it is random, it has a generator of its own
/// and takes equally many draws for each packet, also for one that is lost already: so one effect's
/// parameters never change which packets another effect hits.
pub(crate) trait Effect: fmt::Debug + Send {
    /// Acts on a packet. Packets come in the order in which they were offered.
    fn apply(&mut self, packet: &mut Transit);

    /// Wire bytes that wait in this effect at `now`; a packet that has partly left counts with the rest.
    fn backlog(&self, now: Time) -> u64 {
        let _ = now;
        0
    }
}

/// A packet on its way through the effects of a direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transit {
    /// Its length as IP sends it, in bytes: what corruption can hit.
    pub(crate) ip_bytes: usize,
    /// Its length on the wire, in bytes.
    pub(crate) wire_bytes: u64,
    /// When its last bit leaves; before the transmitter, when it was offered.
    pub(crate) departure: Time,
    /// How long it is on its way after that.
    pub(crate) delay: Duration,
    /// The packet itself, at the far end.
    pub(crate) packet: PacketCopy,
    /// A second copy of it, if it was duplicated.
    pub(crate) duplicate: Option<PacketCopy>,
    loss: Option<Cause>,
}

/// The state of one copy of a packet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PacketCopy {
    /// How much later it arrives than in order, if it is held back.
    pub(crate) held_back: Option<Duration>,
    /// The bit that is wrong, counted from the most significant one of the first byte.
    pub(crate) flipped_bit: Option<usize>,
}

impl Transit {
    /// A packet that is offered `now`: `bytes` for the link, of which `ip_bytes` are the IP packet.
    pub(crate) fn new(now: Time, bytes: usize, ip_bytes: usize) -> Self {
        Self {
            ip_bytes,
            wire_bytes: bytes as u64,
            departure: now,
            delay: Duration::ZERO,
            packet: PacketCopy::default(),
            duplicate: None,
            loss: None,
        }
    }

    /// The packet is lost. Where several effects lose the same packet, the first one counts.
    pub(crate) fn lose(&mut self, cause: Cause) {
        self.loss.get_or_insert(cause);
    }

    /// Why the packet is lost, if it is.
    pub(crate) fn loss(&self) -> Option<Cause> {
        self.loss
    }

    /// Lets `act` decide for each of the two copies that a packet can have, and keeps the outcome for those
    /// that exist.
    pub(crate) fn for_both_copies(&mut self, mut act: impl FnMut(&mut PacketCopy)) {
        act(&mut self.packet);
        act(self.duplicate.as_mut().unwrap_or(&mut PacketCopy::default()));
    }
}
