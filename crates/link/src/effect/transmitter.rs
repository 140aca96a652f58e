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
/// can drift. It is kept as nanoseconds and ticks, each a machine word: almost all packets need no arithmetic
/// in two words and no division, because the one before was as long.
#[derive(Debug)]
pub(crate) struct Transmitter {
    ticks_per_nano: u64,
    /// Room in front of the transmitter, in ticks.
    room: Option<u128>,
    /// When the last accepted packet will have left: nanoseconds, and ticks of the one that has begun.
    /// `u64::MAX` nanoseconds are the end of time.
    free_at: (u64, u64),
    last: Length,
}

/// What packets of one length take.
#[derive(Debug, Clone, Copy)]
struct Length {
    wire_bytes: u64,
    /// Nanoseconds, and ticks of less than one.
    duration: (u64, u64),
    /// A backlog of fewer whole nanoseconds certainly leaves room for such a packet.
    fits_below: u64,
}

const TICKS_PER_BYTE: u64 = 8 * 1_000_000_000;

impl Transmitter {
    /// A transmitter of `rate` with room for `limit` wire bytes; `None` is room without end.
    pub(crate) fn new(rate: Rate, limit: Option<ByteCount>) -> Self {
        let (ticks_per_nano, room) = (rate.bps(), limit.map(|limit| work(limit.get())));
        Self { ticks_per_nano, room, free_at: (0, 0), last: Length::new(0, ticks_per_nano, room) }
    }

    /// When the last bit of a packet of `wire_bytes` that arrives `now` leaves; `None` if the queue has no
    /// room for it.
    ///
    /// The backlog is everything not yet sent: the waiting packets and the rest of the one being sent. A
    /// packet that finds the transmitter idle does not queue, and is sent whatever the limit is.
    #[inline]
    fn send(&mut self, now: Time, wire_bytes: u64) -> Option<Time> {
        if wire_bytes != self.last.wire_bytes {
            self.last = Length::new(wire_bytes, self.ticks_per_nano, self.room);
        }
        let now = now.as_nanos();
        let (start, ticks) = if self.free_at > (now, 0) {
            if self.free_at.0 - now >= self.last.fits_below && !self.has_room(now) {
                return None;
            }
            self.free_at
        } else {
            (now, 0)
        };
        let (nanos, rest) = self.last.duration;
        // Two parts of a nanosecond are less than two nanoseconds; as a sum they may exceed a word.
        let until_next = self.ticks_per_nano - rest;
        self.free_at = match ticks.checked_sub(until_next) {
            Some(beyond) => (start.saturating_add(nanos).saturating_add(1), beyond),
            None => (start.saturating_add(nanos), ticks + rest),
        };
        // Rounded up, so that no packet is reported to have left before it has.
        Some(Time::from_nanos(self.free_at.0.saturating_add((self.free_at.1 > 0).into())))
    }

    /// Whether a packet as long as the last one fits behind the backlog.
    #[cold]
    fn has_room(&self, now: u64) -> bool {
        let needed = self.unsent(now).saturating_add(work(self.last.wire_bytes));
        self.room.is_none_or(|room| needed <= room)
    }

    /// The ticks from `now` until all is sent.
    fn unsent(&self, now: u64) -> u128 {
        match self.free_at {
            (u64::MAX, _) => u128::MAX,
            (nanos, ticks) => nanos.checked_sub(now).map_or(0, |whole| {
                // Two words at most.
                u128::from(whole) * u128::from(self.ticks_per_nano) + u128::from(ticks)
            }),
        }
    }
}

impl Length {
    fn new(wire_bytes: u64, ticks_per_nano: u64, room: Option<u128>) -> Self {
        let nanos_of = |ticks: u128| u64::try_from(ticks / u128::from(ticks_per_nano)).unwrap_or(u64::MAX);
        let duration = match wire_bytes.checked_mul(TICKS_PER_BYTE) {
            // A division in one word is an order of magnitude cheaper than in two.
            Some(work) => (work / ticks_per_nano, work % ticks_per_nano),
            None => {
                let work = work(wire_bytes);
                (nanos_of(work), (work % u128::from(ticks_per_nano)) as u64)
            }
        };
        // A backlog of n whole nanoseconds is less than n + 1 of them.
        let fits_below = room.map_or(u64::MAX, |room| room.checked_sub(work(wire_bytes)).map_or(0, nanos_of));
        Self { wire_bytes, duration, fits_below }
    }
}

fn work(bytes: u64) -> u128 {
    u128::from(bytes) * u128::from(TICKS_PER_BYTE)
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
        u64::try_from(self.unsent(now.as_nanos()).div_ceil(TICKS_PER_BYTE.into())).unwrap_or(u64::MAX)
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

    /// The end of all that was accepted, in ticks, by the definition.
    fn exact_departure(free_at: &mut u128, bps: u64, now: Time, bytes: u64) -> Time {
        let rate = u128::from(bps);
        *free_at = (*free_at).max(u128::from(now.as_nanos()) * rate) + u128::from(bytes) * 8_000_000_000;
        Time::from_nanos(free_at.div_ceil(rate) as u64)
    }

    proptest! {
        #[test]
        fn departures_are_exact(
            bps in prop_oneof![1_000u64..1_000_000_000_000, (u64::MAX - 1000)..=u64::MAX],
            packets in prop::collection::vec((0u64..100_000, 0u64..100_000), 1..200),
        ) {
            let mut transmitter = Transmitter::new(Rate::from_bps(bps).unwrap(), None);
            let (mut now, mut free_at) = (Time::ZERO, 0);
            for (gap, bytes) in packets {
                now += std::time::Duration::from_nanos(gap);
                let expected = exact_departure(&mut free_at, bps, now, bytes);
                prop_assert_eq!(transmitter.send(now, bytes), Some(expected));
            }
        }

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
