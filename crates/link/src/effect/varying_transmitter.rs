//! Rate and queue where the rate changes with time.

use bentpipe_units::{ByteCount, Time};

use super::trace::{BIT_NANOS, Steps};
use super::{Effect, Transit};
use crate::Cause;

/// Sends packets one after the other at the rate of the moment, behind a drop-tail queue.
///
/// What the link could have sent since the beginning is the integral of its rate. A packet leaves when that has
/// grown by what is ahead of it and by itself: sums of integers, so nothing is rounded but the time that is
/// told, and nothing drifts.
#[derive(Debug)]
pub(crate) struct VaryingTransmitter {
    /// At the last packet that was offered.
    offered: Steps<u64>,
    /// At the departure of the last one that was accepted.
    departed: Steps<u64>,
    /// The integral at which all that was accepted has left.
    free_at: u128,
    room: Option<u128>,
}

impl VaryingTransmitter {
    /// A transmitter of these rates, bits per second, with room for `limit` wire bytes; `None` is room without
    /// end.
    pub(crate) fn new(rates: Steps<u64>, limit: Option<ByteCount>) -> Self {
        let room = limit.map(|limit| work(limit.get()));
        Self { offered: rates.clone(), departed: rates, free_at: 0, room }
    }

    /// When the last bit of a packet that is offered `now` leaves; `None` if the queue has no room for it. A
    /// packet that finds nothing ahead of it is sent whatever the limit is.
    fn send(&mut self, now: Time, wire_bytes: u64) -> Option<Time> {
        let possible = self.offered.integral(now.as_nanos());
        let backlog = self.free_at.saturating_sub(possible);
        if backlog > 0 && self.room.is_some_and(|room| backlog.saturating_add(work(wire_bytes)) > room) {
            return None;
        }
        self.free_at = self.free_at.max(possible) + work(wire_bytes);
        Some(Time::from_nanos(self.departed.time_of(self.free_at).max(now.as_nanos())))
    }
}

fn work(bytes: u64) -> u128 {
    u128::from(bytes) * u128::from(BIT_NANOS)
}

impl Effect for VaryingTransmitter {
    fn apply(&mut self, packet: &mut Transit) {
        match self.send(packet.departure, packet.wire_bytes) {
            Some(departure) => packet.departure = departure,
            None => packet.lose(Cause::QueueFull),
        }
    }

    /// A byte partly sent counts.
    fn backlog(&self, now: Time) -> u64 {
        let possible = self.offered.clone().integral(now.as_nanos());
        let backlog = self.free_at.saturating_sub(possible).div_ceil(BIT_NANOS.into());
        u64::try_from(backlog).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bentpipe_units::Rate;
    use proptest::prelude::*;

    use super::*;
    use crate::effect::Transmitter;

    const MILLI: u64 = 1_000_000;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * MILLI)
    }

    fn transmitter(rates: &[(u64, u64)], limit: Option<u64>) -> VaryingTransmitter {
        let rates: Vec<_> = rates.iter().map(|&(millis, mbit)| (at(millis), mbit * 1_000_000)).collect();
        VaryingTransmitter::new(Steps::new(rates[0].1, &rates, None), limit.map(ByteCount::new))
    }

    #[test]
    fn a_packet_leaves_at_the_rates_of_its_time() {
        // A megabyte per second, then a tenth of it, a pause, and again.
        let mut link = transmitter(&[(0, 8), (1, 0), (5, 8)], None);
        assert_eq!(link.send(at(0), 500), Some(Time::from_nanos(500_000)));
        assert_eq!(link.send(at(0), 1000), Some(Time::from_nanos(5_500_000)), "half before the pause");
        assert_eq!(link.backlog(at(3)), 500);
        assert_eq!(link.send(at(7), 1000), Some(at(8)));
    }

    #[test]
    fn the_queue_waits_in_a_pause_and_is_filled_to_the_byte() {
        let mut link = transmitter(&[(0, 0), (10, 8)], Some(3000));
        assert_eq!(link.send(at(0), 1500), Some(Time::from_nanos(11_500_000)));
        assert_eq!(link.send(at(1), 1501), None);
        assert!(link.send(at(1), 1500).is_some());
        assert_eq!(link.backlog(at(9)), 3000);
        assert_eq!(link.send(at(11), 1), Some(Time::from_nanos(13_001_000)));
    }

    proptest! {
        #[test]
        fn at_one_rate_it_is_the_other_transmitter(
            bps in 1_000u64..1_000_000_000_000,
            packets in prop::collection::vec((0u64..100_000, 1u64..100_000), 1..200),
            room in prop::option::of(0u64..1_000_000),
        ) {
            let limit = room.map(ByteCount::new);
            let mut fixed = Transmitter::new(Rate::from_bps(bps).unwrap(), limit);
            let mut varying = VaryingTransmitter::new(Steps::new(bps, &[], None), limit);
            let mut now = Time::ZERO;
            for (gap, bytes) in packets {
                now += Duration::from_nanos(gap);
                let [mut first, mut second] = [Transit::new(now, bytes as usize, 0); 2];
                fixed.apply(&mut first);
                varying.apply(&mut second);
                prop_assert_eq!((first.departure, first.loss()), (second.departure, second.loss()));
                prop_assert_eq!(fixed.backlog(now), varying.backlog(now));
            }
        }
    }
}
