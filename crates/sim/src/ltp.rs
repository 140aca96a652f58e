//! Blocks over LTP in virtual time: two engines, as bundle nodes have them, at the ends of one link.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use bentpipe_link::{Direction, Link, LinkConfig};
use bentpipe_ltp::{BUNDLE_PROTOCOL, Color, Config, Engine, Event, Statistics};
use bentpipe_units::{Rate, Time};
use serde::Serialize;

/// Headers of IPv4 and UDP, bytes.
const AROUND: u64 = 20 + 8;
/// The longest datagram, so that it fits an MTU of 1500 bytes, in a tunnel, too.
const DATAGRAM: usize = 1400;
/// What an answer may take beyond two propagation delays.
const MARGIN: Duration = Duration::from_secs(1);
/// The window in round trips.
const ROUND_TRIPS: u32 = 4;
/// A checkpoint is sent again so often at most.
const RETRIES: u32 = 100;

/// One node sends blocks to another all the time.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockTransfer {
    /// The link; its forward direction carries the blocks, its reverse one the reports.
    pub link: LinkConfig,
    /// The rate of the sender, headers of IP and UDP included.
    pub rate: Rate,
    /// Bytes of a block.
    pub block: u64,
    /// How long it lasts.
    pub duration: Duration,
}

/// What has come of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockResult {
    /// Blocks that have arrived whole.
    pub blocks: u64,
    /// Their bytes per second, in bits, from the arrival of the first byte on.
    pub goodput_bps: f64,
    /// When the first block was whole, seconds.
    pub first_s: Option<f64>,
    /// Segments of data that were sent, and those of them that were sent again.
    pub segments: u64,
    /// See [`segments`](Self::segments).
    pub repeated: u64,
    /// Timers of either end that were over before an answer came.
    pub timeouts: u64,
}

/// Datagrams on their way in one direction.
struct Way<'a> {
    direction: &'a mut Direction,
    /// When each arrives, with its number.
    arrivals: BinaryHeap<Reverse<(Time, u64)>>,
    /// Those that are on their way, and empty ones of those that are not, by number.
    datagrams: VecDeque<Vec<u8>>,
    first: u64,
}

impl BlockTransfer {
    /// Runs it. The same seed gives the same result.
    pub fn run(&self, seed: u64) -> BlockResult {
        let mut link = Link::new(&self.link, seed);
        let one_way = self.link.forward.delay.max(self.link.reverse.delay);
        let [mut sender, mut receiver] =
            [1, 2].map(|own| Engine::new(self.config(own, one_way), seed, Time::ZERO));
        let mut there = Way::new(&mut link.forward);
        let mut back = Way::new(&mut link.reverse);
        let end = Time::ZERO + self.duration;
        let (mut now, mut out, mut received) = (Time::ZERO, Vec::new(), Received::default());
        loop {
            there.deliver(now, &mut receiver);
            back.deliver(now, &mut sender);
            sender.advance(now);
            receiver.advance(now);
            received.take(now, &mut receiver);
            while sender.event().is_some() {}
            while sender.room(now).is_some_and(|room| room >= self.block) {
                sender.send(0, Color::Red, vec![0; self.block as usize].into());
            }
            for (engine, way) in [(&mut sender, &mut there), (&mut receiver, &mut back)] {
                while engine.transmit(now, &mut out) {
                    way.offer(now, &out);
                }
            }
            let next = [sender.due(), receiver.due(), there.next(), back.next()].into_iter().flatten().min();
            match next {
                Some(next) if next <= end => now = now.max(next),
                _ => break,
            }
        }
        self.result(&received, one_way, sender.statistics(), receiver.statistics())
    }

    fn config(&self, own: u64, one_way: Duration) -> Config {
        let interval = 2 * one_way + MARGIN;
        let window = self.rate.bytes_in(ROUND_TRIPS * interval).max(4 * self.block);
        Config {
            own,
            peer: 3 - own,
            client: BUNDLE_PROTOCOL,
            one_way,
            margin: MARGIN,
            rate: self.rate.bps() as f64 / 8.0,
            datagram: DATAGRAM,
            around: AROUND,
            window,
            memory: window,
            longest: self.block,
            retries: RETRIES,
        }
    }

    fn result(
        &self,
        received: &Received,
        one_way: Duration,
        near: Statistics,
        far: Statistics,
    ) -> BlockResult {
        let seconds = self.duration.saturating_sub(one_way).as_secs_f64();
        let bits = 8.0 * (received.blocks * self.block) as f64;
        BlockResult {
            blocks: received.blocks,
            goodput_bps: if seconds > 0.0 { bits / seconds } else { 0.0 },
            first_s: received.first.map(Time::as_secs_f64),
            segments: near.segments,
            repeated: near.repeated,
            timeouts: near.timeouts + far.timeouts,
        }
    }
}

#[derive(Debug, Default)]
struct Received {
    blocks: u64,
    first: Option<Time>,
}

impl Received {
    fn take(&mut self, now: Time, receiver: &mut Engine) {
        while let Some(event) = receiver.event() {
            if let Event::Received(session, _) = event {
                receiver.accepted(session, Ok(()));
                self.blocks += 1;
                self.first.get_or_insert(now);
            }
        }
    }
}

impl<'a> Way<'a> {
    fn new(direction: &'a mut Direction) -> Self {
        Self { direction, arrivals: BinaryHeap::new(), datagrams: VecDeque::new(), first: 0 }
    }

    fn next(&self) -> Option<Time> {
        self.arrivals.peek().map(|Reverse((at, _))| *at)
    }

    fn offer(&mut self, now: Time, datagram: &[u8]) {
        let bytes = datagram.len() + AROUND as usize;
        let Ok(arrivals) = self.direction.transmit(now, bytes, bytes) else { return };
        // A datagram with a flipped bit fails its checksum.
        let whole = [Some(arrivals.packet), arrivals.duplicate].into_iter().flatten();
        for arrival in whole.filter(|arrival| arrival.flipped_bit.is_none()) {
            self.arrivals.push(Reverse((arrival.at, self.first + self.datagrams.len() as u64)));
            self.datagrams.push_back(datagram.to_vec());
        }
    }

    fn deliver(&mut self, now: Time, engine: &mut Engine) {
        while let Some(&Reverse((at, number))) = self.arrivals.peek().filter(|Reverse((at, _))| *at <= now) {
            self.arrivals.pop();
            let datagram = std::mem::take(&mut self.datagrams[(number - self.first) as usize]);
            let taken = engine.receive(at, &datagram);
            debug_assert_eq!(taken, Ok(()), "an engine understands its peer");
            while self.datagrams.front().is_some_and(Vec::is_empty) {
                self.datagrams.pop_front();
                self.first += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_link::DirectionConfig;

    fn transfer(delay_s: u64, per: &str) -> BlockTransfer {
        let rate = Rate::from_bps(200_000).unwrap();
        let direction = DirectionConfig {
            rate: Some(rate),
            delay: Duration::from_secs(delay_s),
            per: per.parse().unwrap(),
            ..DirectionConfig::default()
        };
        let link = LinkConfig::symmetric(direction);
        BlockTransfer { link, rate, block: 20_000, duration: Duration::from_secs(40 * delay_s + 60) }
    }

    #[test]
    fn losses_cost_what_is_sent_again_and_distance_costs_nothing() {
        for delay in [1, 480] {
            let clean = transfer(delay, "0%").run(1);
            let lossy = transfer(delay, "1%").run(1);
            assert!(clean.goodput_bps > 0.19e6, "{delay} s: {clean:?}");
            assert!(
                lossy.goodput_bps > 0.18e6 && lossy.goodput_bps < clean.goodput_bps,
                "{delay} s: {lossy:?}"
            );
            assert_eq!((clean.repeated, clean.timeouts), (0, 0));
            assert!(lossy.repeated as f64 > 0.008 * lossy.segments as f64, "{lossy:?}");
            assert!((clean.first_s.unwrap() - delay as f64) < 1.0);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_result() {
        let transfer = transfer(3, "2%");
        assert_eq!(transfer.run(5), transfer.run(5));
        assert_ne!(transfer.run(5), transfer.run(6));
    }
}
