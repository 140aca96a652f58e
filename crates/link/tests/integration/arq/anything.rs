//! What holds for any traffic on any link, and for any frame.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bentpipe_link::agent::arq::{Arq, ArqConfig, ArqFrame, DataFrame, Delivery, Report};
use bentpipe_link::{Direction, DirectionConfig, Fate, LinkConfig};
use bentpipe_units::{ByteCount, Probability, Rate, Time};
use proptest::prelude::*;

use crate::arq::world::{Frame, Parcel};

/// Two ends that both send, and what has happened.
struct Pair {
    ends: [Arq<Parcel>; 2],
    directions: [Direction; 2],
    /// On the way, from end 0 and from end 1.
    links: [VecDeque<(Time, Frame)>; 2],
    now: Time,
    data_frames: [usize; 2],
    /// Of these, those that did not arrive.
    lost_data: [u64; 2],
    came: [Vec<u32>; 2],
    buffer: u64,
}

impl Pair {
    fn new(config: &ArqConfig, direction: &DirectionConfig, seed: u64) -> Self {
        Self {
            ends: [(); 2].map(|()| Arq::new(config)),
            directions: [seed, !seed].map(|seed| Direction::new(direction, seed)),
            links: Default::default(),
            now: Time::ZERO,
            data_frames: [0; 2],
            lost_data: [0; 2],
            came: Default::default(),
            buffer: config.buffer.get(),
        }
    }

    fn run_until(&mut self, end: Time) {
        while let Some(next) = self.next_event().filter(|&at| at <= end) {
            self.now = self.now.max(next);
            for from in 0..2 {
                while self.links[from].front().is_some_and(|&(at, _)| at <= self.now) {
                    let (_, frame) = self.links[from].pop_front().unwrap();
                    self.ends[1 - from].on_frame(self.now, frame);
                    self.drain();
                }
                if self.ends[from].wake_at() <= self.now {
                    self.ends[from].on_timer(self.now);
                    assert!(self.ends[from].wake_at() > self.now, "a timer that is always due");
                }
            }
            self.drain();
        }
        self.now = self.now.max(end);
    }

    /// Until nothing happens any more.
    fn settle(&mut self) {
        let mut rounds = 0;
        while let Some(next) = self.next_event() {
            self.run_until(next);
            rounds += 1;
            assert!(rounds < 200_000, "it never comes to rest");
        }
    }

    fn next_event(&self) -> Option<Time> {
        let heads = self.links.iter().filter_map(|link| link.front().map(|&(at, _)| at));
        heads.chain(self.ends.iter().map(Arq::wake_at)).min().filter(|&at| at < Time::MAX)
    }

    fn drain(&mut self) {
        for from in 0..2 {
            while let Some(frame) = self.ends[from].poll_frame() {
                let is_data = frame.packet().is_some();
                self.data_frames[from] += usize::from(is_data);
                match self.directions[from].offer(self.now, frame.length()) {
                    Fate::Deliver { at } => self.links[from].push_back((at, frame)),
                    Fate::Drop(_) => self.lost_data[from] += u64::from(is_data),
                }
            }
            self.came[from]
                .extend(std::iter::from_fn(|| self.ends[from].poll_packet()).map(|packet| packet.id));
            // The receiver may hold one packet more than its buffer before it skips a hole.
            assert!(self.ends[from].counters().most_held_bytes <= 2 * self.buffer + 1500);
        }
    }
}

/// When packets are sent, by which end, and how long they are.
fn traffic() -> impl Strategy<Value = Vec<(u64, usize, usize)>> {
    let bursts = prop_oneof![4 => Just(0u64), 4 => 0..3_000u64, 1 => 0..1_000_000u64];
    prop::collection::vec((bursts, 0..2usize, 20..1500usize), 1..600)
}

fn link(per: f64, delay_ms: u64, rate_mbps: Option<u64>) -> DirectionConfig {
    DirectionConfig {
        rate: rate_mbps.map(Rate::mbps),
        delay: Duration::from_millis(delay_ms),
        // Losses are those of the radio: a queue that overflows would have packets sent for ever that cannot
        // be.
        queue: Some(ByteCount::new(1 << 40)),
        per: Probability::new(per).unwrap(),
        ..Default::default()
    }
}

fn run(
    config: &ArqConfig,
    direction: &DirectionConfig,
    seed: u64,
    traffic: &[(u64, usize, usize)],
) -> (Pair, [u32; 2]) {
    let mut pair = Pair::new(config, direction, seed);
    let mut sent = [0u32; 2];
    for &(gap, from, length) in traffic {
        pair.run_until(pair.now + Duration::from_micros(gap));
        pair.ends[from].send(pair.now, Parcel { id: sent[from], length });
        sent[from] += 1;
        pair.drain();
    }
    pair.settle();
    (pair, sent)
}

#[test]
fn steady_traffic_costs_little_more_than_the_losses() {
    for (per, delay) in [(0.001, 300), (0.01, 300), (0.1, 50), (0.3, 300)] {
        let direction = link(per, delay, Some(10));
        let links = LinkConfig { forward: direction.clone(), reverse: direction.clone() };
        // Packets that are lost five times in a row take longer than the usual buffer lasts.
        let buffer = ByteCount::new(100_000_000);
        let config = ArqConfig { retransmissions: 1000, buffer, ..ArqConfig::for_link(&links) };
        let traffic = vec![(2_000, 0, 1400); 20_000];
        let (pair, _) = run(&config, &direction, 7, &traffic);
        assert!(pair.came[1].iter().copied().eq(0..20_000), "PER {per}: not all, or not in order");
        let counters = pair.ends[0].counters();
        assert_eq!((counters.crowded_out, counters.given_up), (0, 0));
        // A timeout only for what was lost at the very end, or where a round trip's packets and reports have
        // bad luck.
        assert!(counters.timed_out <= 3, "PER {per}: {counters:?}");
        assert!(counters.retransmitted <= pair.lost_data[0], "PER {per}: {counters:?}");
        let bytes = pair.directions[1].counters().offered_bytes as f64
            / pair.directions[0].counters().offered_bytes as f64;
        assert!(bytes < 0.06, "PER {per}: reports weigh {bytes} of what they report on");
        println!("PER {per}, {delay} ms: {} frames, {counters:?}, reports {bytes:.4}", pair.data_frames[0]);
    }
}

fn delivery() -> impl Strategy<Value = Delivery> {
    prop_oneof![Just(Delivery::InOrder), Just(Delivery::Immediate)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn everything_arrives_once_and_nothing_is_sent_much_too_often(
        per in 0.0..0.3f64,
        delay in 0..400u64,
        rate in prop::option::of(1..20u64),
        seed in any::<u64>(),
        delivery in delivery(),
        traffic in traffic(),
    ) {
        let direction = link(per, delay, rate);
        let rtt = direction.delay * 2;
        let config = ArqConfig {
            retransmissions: 1000,
            delivery,
            buffer: ByteCount::new(10_000_000),
            report_every: 8,
            report_within: Duration::from_millis(20),
            rtt,
        };
        let (pair, sent) = run(&config, &direction, seed, &traffic);
        for (from, &sent) in sent.iter().enumerate() {
            let mut came = pair.came[1 - from].clone();
            if delivery == Delivery::Immediate {
                came.sort_unstable();
            }
            prop_assert_eq!(came, (0..sent).collect::<Vec<_>>(), "from {}", from);
            prop_assert_eq!(pair.ends[from].held_bytes(), 0);
            let counters = pair.ends[from].counters();
            let resent = counters.retransmitted + counters.timed_out;
            prop_assert_eq!(pair.data_frames[from] as u64, u64::from(sent) + resent);
            // What the radio has lost must be sent again. More than that only where no report came in time.
            let lost = pair.lost_data[from];
            prop_assert!(counters.retransmitted <= lost, "{:?}, {} lost", counters, lost);
        }
    }

    #[test]
    fn with_few_retransmissions_and_little_room_order_and_bounds_hold(
        per in 0.0..0.9f64,
        delay in 0..100u64,
        seed in any::<u64>(),
        delivery in delivery(),
        retransmissions in 0..4u32,
        buffer in 0..50_000u64,
        report_every in 0..20u32,
        traffic in traffic(),
    ) {
        let direction = link(per, delay, Some(10));
        let config = ArqConfig {
            retransmissions,
            delivery,
            buffer: ByteCount::new(buffer),
            report_every,
            report_within: Duration::from_millis(5),
            rtt: direction.delay * 2,
        };
        let (pair, sent) = run(&config, &direction, seed, &traffic);
        for (from, &sent) in sent.iter().enumerate() {
            let came = &pair.came[1 - from];
            let mut times = BTreeMap::new();
            came.iter().for_each(|id| *times.entry(id).or_insert(0) += 1);
            prop_assert!(times.values().all(|&times| times == 1), "twice");
            prop_assert!(delivery == Delivery::Immediate || came.is_sorted(), "out of order");
            prop_assert!(pair.data_frames[from] <= sent as usize * (1 + retransmissions as usize));
            prop_assert_eq!(pair.ends[from].held_bytes(), 0);
            prop_assert_eq!(pair.ends[from].wake_at(), Time::MAX);
        }
    }

    #[test]
    fn no_frame_makes_it_panic_or_hold_more_than_it_may(
        frames in prop::collection::vec((frame(), 0..2_000_000_000u64, any::<bool>()), 1..200),
        delivery in delivery(),
    ) {
        let config = ArqConfig { delivery, buffer: ByteCount::new(20_000), ..ArqConfig::for_link(&Default::default()) };
        let mut arq = Arq::new(&config);
        let mut now = Time::ZERO;
        for (frame, gap, sends) in frames {
            now += Duration::from_nanos(gap);
            if sends {
                arq.send(now, Parcel { id: 0, length: 1000 });
            }
            arq.on_frame(now, frame);
            if arq.wake_at() <= now {
                arq.on_timer(now);
            }
            while arq.poll_frame().is_some() || arq.poll_packet().is_some() {}
            prop_assert!(arq.held_bytes() <= 40_000);
        }
        for _ in 0..1000 {
            now = now.max(arq.wake_at());
            arq.on_timer(now);
            while arq.poll_frame().is_some() || arq.poll_packet().is_some() {}
            if arq.wake_at() == Time::MAX {
                break;
            }
        }
        prop_assert_eq!((arq.wake_at(), arq.held_bytes()), (Time::MAX, 0));
    }
}

/// Numbers near each other, and any.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..50u64, 1 => any::<u64>(), 1 => u64::MAX - 3..=u64::MAX]
}

fn frame() -> impl Strategy<Value = Frame> {
    let incarnation = 0..3u32;
    let data = (incarnation.clone(), [number(), number(), number(), number()], 20..2000usize);
    let range = || (number(), number()).prop_map(|(start, end)| start..end);
    let report =
        (incarnation.clone(), range(), prop::collection::vec(range(), 0..40), any::<Option<Duration>>());
    prop_oneof![
        3 => data.prop_map(|(incarnation, [serial, number, floor, settled], length)| {
            ArqFrame::Data(DataFrame { incarnation, serial, number, floor, settled, packet: Parcel { id: 0, length } })
        }),
        1 => (incarnation, number()).prop_map(|(incarnation, floor)| ArqFrame::Floor { incarnation, floor }),
        3 => report.prop_map(|(incarnation, covers, missing, delay)| {
            ArqFrame::Report(Report { incarnation, covers, missing, delay })
        }),
    ]
}
