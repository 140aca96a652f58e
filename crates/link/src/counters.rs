//! The fate of a packet, and how many packets met which fate.

use std::fmt;

use bentpipe_units::Time;
use serde::Serialize;

/// The fate of a packet that was offered to a direction of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Its last bit arrives at the far end at this time.
    Deliver {
        /// End of serialisation plus propagation, and the time by which it is held back.
        at: Time,
    },
    /// It never arrives.
    Drop(Cause),
}

/// Why a packet was lost. Where several would have hit the same packet, the first in this order is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// No room was left in front of the transmitter: it was never sent.
    QueueFull,
    /// It was sent while the sky was obstructed.
    Outage,
    /// The Gilbert–Elliott channel lost it.
    BurstError,
    /// The uniform packet error rate hit it, or its loss was prescribed.
    PacketError,
}

impl Cause {
    /// Every cause, in the order of precedence.
    pub const ALL: [Cause; 4] = [Cause::QueueFull, Cause::Outage, Cause::BurstError, Cause::PacketError];
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Cause::QueueFull => "queue full",
            Cause::Outage => "outage",
            Cause::BurstError => "burst error",
            Cause::PacketError => "packet error",
        })
    }
}

/// The counters of a direction since its start. `offered` is always `delivered` plus all drops.
///
/// A packet counts when its fate is decided, which is when it is offered: `delivered` includes those still in
/// flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Packets offered to the transmitter.
    pub offered: u64,
    /// IP bytes of the packets offered.
    pub offered_bytes: u64,
    /// Packets that arrive at the far end.
    pub delivered: u64,
    /// IP bytes of the packets that arrive.
    pub delivered_bytes: u64,
    /// Bytes put on the wire, encapsulation included, whether or not they arrived.
    pub wire_bytes: u64,
    /// Packets dropped, by cause.
    pub dropped: Drops,
}

/// Packets dropped, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Drops {
    /// See [`Cause::QueueFull`].
    pub queue_full: u64,
    /// See [`Cause::Outage`].
    pub outage: u64,
    /// See [`Cause::BurstError`].
    pub burst_error: u64,
    /// See [`Cause::PacketError`].
    pub packet_error: u64,
}

impl Counters {
    /// Packets dropped for `cause`.
    pub fn dropped(&self, cause: Cause) -> u64 {
        match cause {
            Cause::QueueFull => self.dropped.queue_full,
            Cause::Outage => self.dropped.outage,
            Cause::BurstError => self.dropped.burst_error,
            Cause::PacketError => self.dropped.packet_error,
        }
    }

    /// Packets dropped for any cause.
    pub fn dropped_total(&self) -> u64 {
        Cause::ALL.iter().map(|&cause| self.dropped(cause)).sum()
    }

    /// A packet of `bytes` was offered, which took `wire_bytes` if it was sent, and was lost for this cause,
    /// if any.
    pub(crate) fn count(&mut self, bytes: u64, wire_bytes: u64, loss: Option<Cause>) {
        self.offered += 1;
        self.offered_bytes += bytes;
        if loss != Some(Cause::QueueFull) {
            self.wire_bytes += wire_bytes;
        }
        match loss {
            None => {
                self.delivered += 1;
                self.delivered_bytes += bytes;
            }
            Some(Cause::QueueFull) => self.dropped.queue_full += 1,
            Some(Cause::Outage) => self.dropped.outage += 1,
            Some(Cause::BurstError) => self.dropped.burst_error += 1,
            Some(Cause::PacketError) => self.dropped.packet_error += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_own_counter() {
        let mut counters = Counters::default();
        for (times, &cause) in (1..).zip(&Cause::ALL) {
            for _ in 0..times {
                counters.count(100, 100, Some(cause));
            }
        }
        assert_eq!(Cause::ALL.map(|cause| counters.dropped(cause)), [1, 2, 3, 4]);
        assert_eq!(counters.dropped_total(), 10);
        assert_eq!((counters.offered, counters.offered_bytes, counters.delivered), (10, 1000, 0));
    }

    #[test]
    fn counters_serialise_with_the_names_of_the_causes() {
        let mut counters = Counters::default();
        counters.count(1500, 1500, Some(Cause::BurstError));
        let json = serde_json::to_value(counters).unwrap();
        assert_eq!(json["dropped"]["burst_error"], 1);
        assert_eq!(serde_json::to_value(Cause::QueueFull).unwrap(), "queue_full");
    }

    #[test]
    fn causes_read_as_words() {
        assert_eq!(
            Cause::ALL.map(|cause| cause.to_string()),
            ["queue full", "outage", "burst error", "packet error"]
        );
    }
}
