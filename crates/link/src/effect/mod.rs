//! What can happen to a packet on a direction of a link: one file for each effect, all behind one trait.
//!
//! A [`Direction`](crate::Direction) is a list of effects. Each packet walks through the list as a
//! [`Transit`], which every effect may change; what arrives of it are its [`Copies`]. To add an effect, write
//! its file, name it in the list at the end of this one, give [`DirectionConfig`](crate::DirectionConfig) its
//! parameters, and push it to the list that
//! `DirectionConfig::effects` builds.

mod burst_errors;
mod corrupt;
mod csv_lines;
mod custom;
mod delay;
mod duplicate;
mod encapsulation;
mod impairments;
mod outage;
mod packet_errors;
mod prescribed_losses;
mod reorder;
mod trace;
mod transmitter;
mod varying_transmitter;

use std::time::Duration;

use bentpipe_units::Time;

pub(crate) use burst_errors::BurstErrors;
pub use burst_errors::GilbertElliott;
use corrupt::Corrupt;
pub(crate) use custom::Custom;
pub use custom::{CustomEffect, PassingPacket};
pub(crate) use delay::VaryingDelay;
use duplicate::Duplicate;
pub use encapsulation::{Encapsulation, Frame};
pub use impairments::{ImpairmentCounters, Impairments};
pub(crate) use outage::Outages;
pub use outage::{OutageTrace, TraceError};
pub(crate) use packet_errors::{PacketErrors, VaryingPacketErrors};
pub(crate) use prescribed_losses::PrescribedErrors;
pub use prescribed_losses::PrescribedLosses;
use reorder::Reorder;
pub use trace::{LinkTrace, LinkTraceError};
pub(crate) use trace::{Steps, TraceBuilder};
pub(crate) use transmitter::Transmitter;
pub(crate) use varying_transmitter::VaryingTransmitter;

use crate::Cause;

/// One thing that happens to the packets of a direction.
///
/// An effect knows no clock, and nothing of the other effects. If it is random, it has a generator of its own
/// and takes equally many draws for each packet, also for one that is lost already: so one effect's
/// parameters never change which packets another effect hits.
pub(crate) trait Effect {
    /// Acts on a packet on the link. Packets come in the order in which they were offered.
    fn apply(&mut self, _packet: &mut Transit) {}

    /// Acts on the copies that arrive of a packet that the link has not lost.
    fn impair(&mut self, _copies: &mut Copies) {}

    /// Wire bytes that wait in this effect at `now`; a packet that has partly left counts with the rest.
    fn backlog(&self, _now: Time) -> u64 {
        0
    }
}

/// A packet on its way through the effects of a direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transit {
    /// Its length on the wire, in bytes.
    pub(crate) wire_bytes: u64,
    /// When its last bit leaves; before the transmitter, when it was offered.
    pub(crate) departure: Time,
    /// How long it is on its way after that, nanoseconds.
    pub(crate) delay_nanos: u64,
    loss: Option<Cause>,
}

/// A packet at the far end.
#[derive(Debug)]
pub(crate) struct Copies {
    /// Its length as IP sends it, in bytes: what corruption can hit.
    pub(crate) ip_bytes: usize,
    /// The packet itself.
    pub(crate) packet: PacketCopy,
    /// A second copy of it, if it was duplicated.
    pub(crate) duplicate: Option<PacketCopy>,
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
    /// When it arrives if it is not held back.
    pub(crate) fn in_order(&self) -> Time {
        Time::from_nanos(self.departure.as_nanos().saturating_add(self.delay_nanos))
    }

    /// A packet of `bytes` that is offered `now`, and on its way for so many nanoseconds at least.
    pub(crate) fn new(now: Time, bytes: usize, delay_nanos: u64) -> Self {
        Self { wire_bytes: bytes as u64, departure: now, delay_nanos, loss: None }
    }

    /// The packet is lost. Where several effects lose the same packet, the first one counts.
    pub(crate) fn lose(&mut self, cause: Cause) {
        self.loss.get_or_insert(cause);
    }

    /// Why the packet is lost, if it is.
    pub(crate) fn loss(&self) -> Option<Cause> {
        self.loss
    }
}

impl Copies {
    /// One copy, as it was sent.
    pub(crate) fn of(ip_bytes: usize) -> Self {
        Self { ip_bytes, packet: PacketCopy::default(), duplicate: None }
    }

    /// Lets `act` decide for each of the two copies that a packet can have, and keeps the outcome for those
    /// that exist.
    pub(crate) fn for_both(&mut self, mut act: impl FnMut(&mut PacketCopy)) {
        act(&mut self.packet);
        act(self.duplicate.as_mut().unwrap_or(&mut PacketCopy::default()));
    }
}

/// Declares the effects as one type: a packet walks through a list of them without an indirect call for each.
macro_rules! effects {
    ($($effect:ident),* $(,)?) => {
        /// One of the effects.
        #[derive(Debug)]
        pub(crate) enum AnyEffect {
            $($effect($effect),)*
        }

        impl Effect for AnyEffect {
            #[inline(always)]
            fn apply(&mut self, packet: &mut Transit) {
                match self {
                    $(Self::$effect(effect) => effect.apply(packet),)*
                }
            }

            fn impair(&mut self, copies: &mut Copies) {
                match self {
                    $(Self::$effect(effect) => effect.impair(copies),)*
                }
            }

            fn backlog(&self, now: Time) -> u64 {
                match self {
                    $(Self::$effect(effect) => effect.backlog(now),)*
                }
            }
        }

        $(impl From<$effect> for AnyEffect {
            fn from(effect: $effect) -> Self {
                Self::$effect(effect)
            }
        })*
    };
}

effects! {
    Encapsulation, Transmitter, VaryingTransmitter, Outages, BurstErrors, PrescribedErrors, PacketErrors,
    VaryingPacketErrors, VaryingDelay, Duplicate, Reorder, Corrupt, Custom,
}
