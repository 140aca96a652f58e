use proptest::prelude::*;

use super::*;
use crate::ip::checksum;
use crate::ip::tests::{ipv4_udp, ipv6_udp};

/// 10 Mbit/s.
const RATE: f64 = 1.25e6;
const ECT: u8 = 2;
const CE: u8 = 3;

fn millis(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn time_of(bytes: usize) -> Duration {
    Duration::from_secs_f64(bytes as f64 / RATE)
}

/// A packet of a flow of so many bytes.
fn packet(flow: u16, bytes: usize, ecn: u8) -> Vec<u8> {
    ipv4_udp(flow, ecn, &vec![7; bytes - 28])
}

fn port(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[20], packet[21]])
}

fn ecn(packet: &[u8]) -> u8 {
    packet[1] & 3
}

/// A queue in which these flows do not share.
fn queue_of(flows: std::ops::Range<u16>, limit: u64) -> Queue {
    let distinct = |seed: &u64| {
        let mut indices: Vec<u64> =
            flows.clone().map(|flow| Flow::of(&packet(flow, 40, 0)).unwrap().hash(*seed) % 1024).collect();
        indices.sort_unstable();
        indices.windows(2).all(|pair| pair[0] != pair[1])
    };
    let mut queue = Queue::new((0..).find(distinct).unwrap(), ByteCount::new(limit));
    queue.set_rate(RATE);
    queue
}

#[test]
fn classes_are_chosen_by_rule_or_length() {
    let mut queue = Queue::new(1, ByteCount::new(10_000));
    for (choice, bytes) in
        [(Choice::Auto, 100), (Choice::Auto, 101), (Choice::Latency, 1000), (Choice::Bulk, 40)]
    {
        queue.push(packet(1, bytes, 0), choice, Time::ZERO);
    }
    let classes: Vec<Class> = std::iter::from_fn(|| queue.pop(Time::ZERO)).map(|(class, _)| class).collect();
    assert_eq!(classes, [Class::Latency, Class::Bulk, Class::Latency, Class::Bulk]);
}

#[test]
fn flows_with_packets_of_different_sizes_get_equal_parts() {
    let mut queue = queue_of(0..2, 10_000_000);
    for _ in 0..4000 {
        queue.push(packet(0, 1500, 0), Choice::Auto, Time::ZERO);
        (0..9).for_each(|_| queue.push(packet(1, 200, 0), Choice::Auto, Time::ZERO));
    }
    let mut bytes = [0; 2];
    for _ in 0..6000 {
        let (_, packet) = queue.pop(Time::ZERO).unwrap();
        bytes[usize::from(port(&packet))] += packet.len();
    }
    let share = bytes[0] as f64 / bytes.iter().sum::<usize>() as f64;
    assert!((0.475..0.525).contains(&share), "{bytes:?}");
}

/// The longest wait of packets of 120 bytes, of which one comes with each so many of eight flows that always
/// have full packets.
fn longest_wait_among_eight(every: u64) -> Duration {
    const BULKY: u16 = 8;
    let mut queue = queue_of(0..BULKY + 1, 20_000_000);
    queue.set_settling(true);
    let (mut now, mut longest) = (Time::ZERO, Duration::ZERO);
    let mut asked = VecDeque::new();
    for step in 0..4000u64 {
        (0..BULKY).for_each(|flow| queue.push(packet(flow, 1500, 0), Choice::Auto, now));
        // At the start all flows are new.
        if step > 20 && step % every == 0 {
            queue.push(packet(BULKY, 120, 0), Choice::Auto, now);
            asked.push_back(now);
        }
        let (_, packet) = queue.pop(now).unwrap();
        if port(&packet) == BULKY {
            longest = longest.max(now - asked.pop_front().unwrap());
        }
        now += time_of(packet.len());
    }
    assert!(queue.oldest_sojourn(now) > Duration::from_millis(500), "the others wait");
    longest
}

#[test]
fn a_sparse_flow_waits_for_less_than_a_round_of_quanta() {
    let round = time_of(1514 * 8);
    assert!(longest_wait_among_eight(50) < round / 8, "its packets go before the others");
    // One that comes again within a round waits for its turn, in which each may send a quantum and what it
    // had left of the last one.
    assert!(longest_wait_among_eight(7) < round * 2);
}

#[test]
fn a_full_queue_drops_from_the_longest_flow() {
    let mut queue = queue_of(0..2, 30_000);
    queue.push(packet(1, 1000, 0), Choice::Auto, Time::ZERO);
    (0..100).for_each(|_| queue.push(packet(0, 1000, 0), Choice::Auto, Time::ZERO));
    assert_eq!((queue.len(), queue.len_bytes(), queue.stats().dropped_full), (15, 15_000, 86));
    assert!(std::iter::from_fn(|| queue.pop(Time::ZERO)).any(|(_, packet)| port(&packet) == 1));
    queue.push(packet(0, 1500, 0), Choice::Auto, Time::ZERO);
    queue.set_limit(ByteCount::new(1000));
    queue.push(packet(0, 1200, 0), Choice::Auto, Time::ZERO);
    assert!(queue.is_empty() && queue.pop(Time::ZERO).is_none(), "neither fits");
}

#[test]
fn what_can_be_marked_has_the_whole_limit_and_the_rest_half_of_it() {
    let mut queue = queue_of(0..2, 30_000);
    (0..10).for_each(|_| queue.push(packet(1, 1000, 0), Choice::Auto, Time::ZERO));
    (0..100).for_each(|_| queue.push(packet(0, 1000, ECT), Choice::Auto, Time::ZERO));
    assert_eq!((queue.len_bytes(), queue.stats().dropped_full), (30_000, 80), "of the longest flow");
    (0..100).for_each(|_| queue.push(packet(1, 1000, 0), Choice::Auto, Time::ZERO));
    assert!(queue.len_bytes() <= 30_000 && queue.flows() == 2, "{} bytes", queue.len_bytes());
    assert_eq!(queue.stats().dropped_codel, 0);
}

#[test]
fn the_shortest_queue_has_room_for_a_packet_that_cannot_be_marked() {
    let mut queue = queue_of(0..1, 1500);
    queue.push(packet(0, 1436, 0), Choice::Auto, Time::ZERO);
    assert_eq!((queue.len(), queue.stats().dropped_full), (1, 0));
}

/// While the rate is being found it may be much too low, and says nothing of how long packets will wait.
#[test]
fn the_wait_to_come_is_no_sign_while_the_rate_is_being_found() {
    let mut queue = queue_of(0..1, 10_000_000);
    queue.set_rtt(Duration::from_millis(100));
    queue.set_rate(RATE / 100.0);
    queue.set_settling(true);
    (0..20).for_each(|_| queue.push(packet(0, 1500, ECT), Choice::Auto, Time::ZERO));
    for step in 0..1000 {
        queue.push(packet(0, 1500, ECT), Choice::Auto, millis(step));
        queue.pop(millis(step)).unwrap();
    }
    assert_eq!(queue.stats().marked, 0);
}

#[test]
fn what_stands_is_marked_where_that_is_understood_and_else_dropped() {
    for (sent, expected) in [(ECT, [true, false]), (1, [true, false]), (0, [false, true])] {
        let mut queue = queue_of(0..1, 10_000_000);
        (0..200).for_each(|_| queue.push(packet(0, 1500, sent), Choice::Auto, Time::ZERO));
        let mut marks = 0;
        for step in 0..1000 {
            let Some((_, packet)) = queue.pop(millis(step)) else { break };
            queue.push(self::packet(0, 1500, sent), Choice::Auto, millis(step));
            assert_eq!(checksum(&packet[..20]), 0);
            marks += u64::from(ecn(&packet) == CE);
        }
        let stats = queue.stats();
        assert_eq!(stats.marked, marks);
        assert_eq!([stats.marked > 1, stats.dropped_codel > 1], expected, "{stats:?}");
    }
}

/// A slow start that has passed the rate: twice as much comes as leaves.
#[test]
fn a_queue_that_grows_fast_is_told_at_once_where_that_takes_no_drop() {
    for (sent, expected) in [(ECT, 500), (0, 1500)] {
        let mut queue = queue_of(0..1, 10_000_000);
        queue.set_rtt(Duration::from_millis(600));
        let first = (0..4000).find(|step| {
            (0..2).for_each(|_| queue.push(packet(0, 1500, sent), Choice::Auto, millis(*step)));
            queue.pop(millis(*step));
            let stats = queue.stats();
            stats.marked + stats.dropped_codel > 0
        });
        // 600 ms at the rate are 500 packets. Of 300 ms, the target, the first packet knows at 600 ms, and an
        // interval later it is dropped.
        assert_eq!(first.map(|step| step.div_ceil(20) * 20), Some(expected), "{first:?}");
    }
}

#[test]
fn while_the_rate_is_being_found_only_a_queue_of_a_round_trip_is_one() {
    // 1500 bytes each ms: the queue is as long in time as it is in packets.
    for (packets, signals) in [(250, false), (900, true)] {
        let mut queue = queue_of(0..1, 10_000_000);
        queue.set_rtt(Duration::from_millis(300));
        queue.set_settling(true);
        (0..packets).for_each(|number| {
            queue.push(packet(0, 1500, ECT), Choice::Auto, millis(number));
        });
        for step in packets..packets + 1200 {
            queue.pop(millis(step)).unwrap();
            queue.push(packet(0, 1500, ECT), Choice::Auto, millis(step));
        }
        assert_eq!(queue.stats().marked > 0, signals, "{packets} packets");
        queue.set_settling(false);
        for step in packets + 1200..packets + 2000 {
            queue.pop(millis(step)).unwrap();
            queue.push(packet(0, 1500, ECT), Choice::Auto, millis(step));
        }
        assert!(queue.stats().marked > 0, "afterwards it is judged");
    }
}

#[test]
fn what_is_drained_is_in_the_order_of_arrival() {
    let mut queue = queue_of(0..3, 100_000);
    let sent: Vec<Vec<u8>> = (0..30).map(|i| packet(i * 7 % 3, 40 + 20 * usize::from(i), 0)).collect();
    sent.iter().for_each(|packet| queue.push(packet.clone(), Choice::Auto, Time::ZERO));
    queue.pop(Time::ZERO);
    let drained: Vec<(Class, Vec<u8>)> = queue.drain().collect();
    assert!(drained.iter().map(|(_, packet)| packet).eq(&sent[1..]));
    assert!(drained.iter().all(|(class, packet)| *class == Choice::Auto.class(packet.len())));
    assert_eq!((queue.len(), queue.len_bytes(), queue.stats().packets), (0, 0, 30));
    queue.push(packet(0, 40, 0), Choice::Auto, Time::ZERO);
    assert!(queue.pop(Time::ZERO).is_some());
}

/// A sender with a window: it grows by a packet in a round trip, and halves where a round trip has a mark or
/// a drop (RFC 5681, RFC 3168).
struct Aimd {
    window: f64,
    under_way: usize,
    /// When acknowledgements come back, when their packet was sent, and whether they tell of a mark or a loss.
    answers: VecDeque<(Time, Time, bool)>,
    /// What was sent before is of the window that was halved.
    reduced: Time,
}

impl Aimd {
    fn hear(&mut self, now: Time) {
        while self.answers.front().is_some_and(|answer| answer.0 <= now) {
            let (_, sent, congested) = self.answers.pop_front().unwrap();
            self.under_way -= 1;
            if !congested {
                self.window += 1.0 / self.window;
            } else if sent > self.reduced {
                self.window = (self.window / 2.0).max(2.0);
                self.reduced = now;
            }
        }
    }
}

/// Where a packet says which sender it is of: the first byte of its payload.
const SENDER: usize = 28;

/// The mean wait and the share of the link in the second half of a run, for so many senders that share one of
/// the queues, as in a tunnel; `ecn` is of their packets. Several need it, as drops do not say whose they are.
fn steady(rtt: Duration, ecn_sent: u8, senders: u8) -> (Duration, f64) {
    assert!(senders == 1 || ecn_sent == ECT);
    let window = RATE * rtt.as_secs_f64() / 1500.0 / f64::from(senders);
    let source = || Aimd { window, under_way: 0, answers: VecDeque::new(), reduced: Time::ZERO };
    let mut sources: Vec<Aimd> = (0..senders).map(|_| source()).collect();
    let mut queue = queue_of(0..1, 10_000_000);
    queue.set_rtt(rtt);
    let (mut now, mut free_at, mut lost) = (Time::ZERO, Time::ZERO, 0);
    let end = Time::ZERO + Duration::from_secs(400);
    let half = Time::ZERO + Duration::from_secs(200);
    let (mut waited, mut count, mut busy) = (Duration::ZERO, 0u32, Duration::ZERO);
    while now < end {
        for (number, source) in sources.iter_mut().enumerate() {
            source.hear(now);
            while (source.under_way as f64) < source.window {
                let mut packet = packet(0, 1500, ecn_sent);
                packet[SENDER] = number as u8;
                queue.push(packet, Choice::Auto, now);
                source.under_way += 1;
            }
        }
        if free_at <= now {
            let sojourn = queue.oldest_sojourn(now);
            if let Some((_, packet)) = queue.pop(now) {
                free_at = now + time_of(packet.len());
                sources[usize::from(packet[SENDER])].answers.push_back((
                    free_at + rtt,
                    Time::from_nanos((now - Time::ZERO).saturating_sub(sojourn).as_nanos() as u64),
                    ecn(&packet) == CE,
                ));
                if now > half {
                    (waited, count, busy) = (waited + sojourn, count + 1, busy + time_of(packet.len()));
                }
            }
            let dropped = queue.stats().dropped_codel;
            (lost..dropped).for_each(|_| sources[0].answers.push_back((now + rtt, now, true)));
            lost = dropped;
        }
        let answer = sources.iter().filter_map(|source| source.answers.front()).map(|answer| answer.0).min();
        let free = if queue.is_empty() { end } else { free_at };
        now = answer.unwrap_or(end).min(free).max(now + Duration::from_nanos(1));
    }
    assert_eq!(queue.stats().dropped_full, 0);
    (waited / count, busy.as_secs_f64() / 200.0)
}

#[test]
fn a_sender_with_additive_increase_keeps_no_standing_queue() {
    for (rtt, target) in [(100, 43), (600, 257)] {
        for ecn_sent in [0, ECT] {
            let (wait, share) = steady(Duration::from_millis(rtt), ecn_sent, 1);
            println!("{rtt} ms, ECN {ecn_sent}: {wait:?} in the mean, {:.1}% of the link", 100.0 * share);
            assert!(wait < 2 * Duration::from_millis(target) && share > 0.9, "{rtt} ms: {wait:?}, {share}");
        }
    }
}

/// Each needs a signal of its own: one every three round trips would let the queue grow to its limit.
#[test]
fn many_senders_in_a_tunnel_keep_no_queue_of_a_round_trip() {
    for senders in [4, 30] {
        let (wait, share) = steady(Duration::from_millis(600), ECT, senders);
        println!("{senders} senders: {wait:?} in the mean, {:.1}% of the link", 100.0 * share);
        assert!(wait < Duration::from_millis(600) && share > 0.95, "{senders} senders: {wait:?}, {share}");
    }
}

#[derive(Debug, Clone)]
enum Act {
    Push(u16, usize, u8, bool),
    Pop(u32),
    Wait(u64),
    Settle(bool),
    Drain,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0u16..2000, 28usize..1500, 0u8..4, any::<bool>()).prop_map(|(f, b, e, v6)| Act::Push(f, b, e, v6)),
        3 => (0u32..6).prop_map(Act::Pop),
        3 => (0u64..200).prop_map(Act::Wait),
        1 => any::<bool>().prop_map(Act::Settle),
        1 => Just(Act::Drain),
    ]
}

proptest! {
    /// Whatever comes: all bytes are accounted for, the limit holds, and each flow stays in order.
    #[test]
    fn bytes_are_conserved_and_flows_in_order(seed: u64, acts in proptest::collection::vec(act(), 1..400)) {
        let mut queue = Queue::new(seed, ByteCount::new(20_000));
        queue.set_rate(100_000.0);
        let (mut now, mut pushed, mut popped, mut number) = (Time::ZERO, 0usize, 0usize, 0u32);
        let mut last = std::collections::HashMap::new();
        for act in acts {
            let mut out = Vec::new();
            match act {
                Act::Push(flow, bytes, ecn, v6) => {
                    let mut payload = number.to_be_bytes().to_vec();
                    payload.resize(bytes, 0);
                    number += 1;
                    let packet = if v6 { ipv6_udp(flow, ecn, &payload) } else { ipv4_udp(flow, ecn, &payload) };
                    pushed += packet.len();
                    queue.push(packet, Choice::Auto, now);
                }
                Act::Pop(count) => out.extend((0..count).filter_map(|_| queue.pop(now))),
                Act::Wait(time) => now += Duration::from_millis(time),
                Act::Settle(settling) => queue.set_settling(settling),
                Act::Drain => out.extend(queue.drain()),
            }
            for (_, packet) in out {
                popped += packet.len();
                let v6 = packet[0] >> 4 == 6;
                let payload = if v6 { 48 } else { 28 };
                let number = u32::from_be_bytes(packet[payload..payload + 4].try_into().unwrap());
                let flow = (v6, packet[payload - 8], packet[payload - 7]);
                let before = last.insert(flow, number);
                prop_assert!(before.is_none_or(|before| before < number));
                prop_assert!(v6 || checksum(&packet[..20]) == 0);
            }
            let stats = queue.stats();
            prop_assert_eq!(pushed, popped + stats.dropped_bytes as usize + queue.len_bytes());
            let packets = stats.packets + stats.dropped_codel + stats.dropped_full + queue.len() as u64;
            prop_assert_eq!(packets, u64::from(number));
            prop_assert!(queue.len_bytes() <= 20_000 && queue.is_empty() == (queue.len_bytes() == 0));
        }
    }
}

#[test]
fn a_queue_has_four_products_of_a_known_leg_and_else_the_usual_bytes() {
    let rtt = Duration::from_millis(600);
    assert_eq!(Queue::usual_limit(Some(Rate::mbps(10)), rtt), ByteCount::new(3_000_000));
    assert_eq!(Queue::usual_limit(None, rtt), Queue::DEFAULT_LIMIT);
}
