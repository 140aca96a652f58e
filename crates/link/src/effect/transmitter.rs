//! Rate and queue: a FIFO transmitter behind a drop-tail queue, without a queue.
//!
//! In a FIFO of fixed rate, everything about the packets ahead is known from one number: when the last of
//! them will have left (Lindley 1952). The backlog is the rate times the time until then, so no packet has to
//! be stored.

use bentpipe_units::{ByteCount, Rate, Time};

use super::{Effect, Transit};
use crate::Cause;

/// Sends packets one after the other at a fixed rate.
///
/// Time is counted in ticks of 1/rate nanoseconds. A bit takes 10⁹ of them whatever the rate is, and a
/// nanosecond takes `rate` of them: both are integers, so nothing is ever rounded in the state and nothing
/// can drift.
#[derive(Debug)]
pub(crate) struct Transmitter {
    ticks_per_nano: u128,
    /// Room in front of the transmitter, in ticks.
    room: Option<u128>,
    /// When the last accepted packet will have left.
    free_at: u128,
}

const TICKS_PER_BYTE: u128 = 8 * 1_000_000_000;

impl Transmitter {
    /// A transmitter of `rate` with room for `limit` wire bytes; `None` is room without end.
    pub(crate) fn new(rate: Rate, limit: Option<ByteCount>) -> Self {
        Self {
            ticks_per_nano: u128::from(rate.bps()),
            room: limit.map(|limit| u128::from(limit.get()) * TICKS_PER_BYTE),
            free_at: 0,
        }
    }

    /// When the last bit of a packet of `wire_bytes` that arrives `now` leaves; `None` if the queue has no
    /// room for it.
    ///
    /// The backlog is everything not yet sent: the waiting packets and the rest of the one being sent. A
    /// packet that finds the transmitter idle does not queue, and is sent whatever the limit is.
    fn send(&mut self, now: Time, wire_bytes: u64) -> Option<Time> {
        let work = u128::from(wire_bytes) * TICKS_PER_BYTE;
        let backlog = self.unsent(now);
        if backlog > 0 && self.room.is_some_and(|room| backlog.saturating_add(work) > room) {
            return None;
        }
        self.free_at = self.ticks(now).max(self.free_at).saturating_add(work);
        Some(self.last_departure())
    }

    fn unsent(&self, now: Time) -> u128 {
        self.free_at.saturating_sub(self.ticks(now))
    }

    /// Rounded up to the nanosecond, so that no packet is reported to have left before it has.
    fn last_departure(&self) -> Time {
        let nanos = self.free_at.div_ceil(self.ticks_per_nano);
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn ticks(&self, time: Time) -> u128 {
        u128::from(time.as_nanos()) * self.ticks_per_nano
    }
}

impl Effect for Transmitter {
    #[inline]
    fn apply(&mut self, packet: &mut Transit) {
        match self.send(packet.departure, packet.wire_bytes) {
            Some(departure) => packet.departure = departure,
            None => packet.lose(Cause::QueueFull),
        }
    }

    /// A byte partly sent counts.
    fn backlog(&self, now: Time) -> u64 {
        u64::try_from(self.unsent(now).div_ceil(TICKS_PER_BYTE)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_million_packets_do_not_drift_by_a_nanosecond() {
        // 1501 bytes at 7 Mbit/s take 1,715,428 + 4/7 ns each.
        let mut transmitter = Transmitter::new(Rate::mbps(7), None);
        let last = (0..1_000_000).filter_map(|_| transmitter.send(Time::ZERO, 1501)).last();
        assert_eq!(last, Some(Time::from_nanos(1_715_428_571_429)));
    }

    #[test]
    fn the_queue_is_filled_to_the_byte() {
        let mut transmitter = Transmitter::new(Rate::mbps(8), Some(ByteCount::new(3000)));
        assert!(transmitter.send(Time::ZERO, 1000).is_some());
        assert!(transmitter.send(Time::ZERO, 1500).is_some());
        assert!(transmitter.send(Time::ZERO, 501).is_none(), "2500 + 501 exceeds 3000");
        assert!(transmitter.send(Time::ZERO, 500).is_some(), "2500 + 500 does not");
        // A byte takes a microsecond: after one, one byte of room is free.
        assert!(transmitter.send(Time::from_nanos(999), 1).is_none());
        assert!(transmitter.send(Time::from_nanos(1000), 1).is_some());
    }

    #[test]
    fn an_idle_transmitter_refuses_nothing() {
        let mut transmitter = Transmitter::new(Rate::mbps(8), Some(ByteCount::new(0)));
        assert!(transmitter.send(Time::ZERO, 1500).is_some());
        assert!(transmitter.send(Time::ZERO, 1).is_none());
        assert!(transmitter.send(Time::from_nanos(1_500_000), 1500).is_some());
    }

    #[test]
    fn the_backlog_drains_at_the_rate() {
        let mut transmitter = Transmitter::new(Rate::mbps(8), None);
        transmitter.send(Time::ZERO, 1500);
        let at = |nanos| transmitter.backlog(Time::from_nanos(nanos));
        assert_eq!([at(0), at(500_000), at(1_500_000), at(9_999_000)], [1500, 1000, 0, 0]);
        assert_eq!(at(1_499_999), 1, "a byte partly sent counts");
    }

    #[test]
    fn the_slowest_rate_and_the_longest_packet_end_at_the_end_of_time() {
        let mut transmitter = Transmitter::new(Rate::from_bps(1).unwrap(), None);
        assert_eq!(transmitter.send(Time::MAX, u64::MAX), Some(Time::MAX));
        assert_eq!(transmitter.backlog(Time::ZERO), u64::MAX);
    }

    proptest! {
        #[test]
        fn an_idle_transmitter_takes_the_time_of_the_rate(
            bps in 1u64..1_000_000_000_000,
            bytes in 0u64..100_000,
        ) {
            let rate = Rate::from_bps(bps).unwrap();
            let departure = Transmitter::new(rate, None).send(Time::ZERO, bytes).unwrap();
            prop_assert_eq!(departure, Time::ZERO + rate.time_for(bytes));
        }

        #[test]
        fn nothing_is_sent_faster_than_the_rate(
            bps in 1_000u64..1_000_000_000,
            packets in prop::collection::vec((0u64..10_000_000, 1u64..2000), 1..200),
        ) {
            let rate = Rate::from_bps(bps).unwrap();
            let mut transmitter = Transmitter::new(rate, Some(ByteCount::new(20_000)));
            let (mut now, mut sent) = (Time::ZERO, 0);
            for (gap, bytes) in packets {
                now += std::time::Duration::from_nanos(gap);
                if let Some(departure) = transmitter.send(now, bytes) {
                    sent += bytes;
                    prop_assert!(rate.bytes_in(departure.since(Time::ZERO)) >= sent);
                }
                prop_assert!(transmitter.backlog(now) <= 20_000);
            }
        }
    }
}
