//! Segments that wait for their turn on the link.

use std::collections::HashMap;

use super::*;

/// What a segment takes of the link.
const SLOT: Duration = Duration::from_millis(10);
/// A link of 100 ms to and fro, on which ten segments are.
const ROUND_TRIP: Duration = Duration::from_millis(100);
/// A client that downloads something else.
const OTHER: u16 = 4001;

fn paced(queue: u64) -> Timeline {
    let pace = Pace { rate: "832kbit/s".parse().unwrap(), queue: ByteCount::new(queue * LENGTH) };
    let config = SnoopConfig { pace: Some(pace), ..SnoopConfig::with_cache(ByteCount::new(1_000_000)) };
    let mut line = Timeline::with(config);
    line.wait(Duration::from_secs(1));
    line
}

impl Timeline {
    /// The server sends these at once; which go out at once.
    fn offer(&mut self, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let segments: Vec<Segment> = numbers.into_iter().map(|number| self.data(number)).collect();
        let mut out = Outbox::default();
        segments.into_iter().for_each(|segment| self.snoop.outbound(self.now, segment, &mut out));
        self.numbers(out).1
    }

    /// What goes out until `span` has passed, and when, in milliseconds from now.
    fn leaves_within(&mut self, span: Duration) -> Vec<(u64, u32)> {
        let (start, end) = (self.now, self.now + span);
        let mut left = Vec::new();
        while self.snoop.wake_at() <= end {
            self.now = self.now.max(self.snoop.wake_at());
            let ms = (self.now - start).as_millis() as u64;
            left.extend(self.tick().into_iter().map(|number| (ms, number)));
        }
        self.now = end;
        left
    }
}

#[test]
fn a_burst_leaves_at_the_links_pace() {
    let mut line = paced(100);
    assert_eq!(line.offer(0..5), [0]);
    assert_eq!(line.counters().queued_bytes, 4 * LENGTH);
    // After a pause the first slot is shorter by what a timer may be late.
    assert_eq!(line.leaves_within(SLOT * 10), [(8, 1), (18, 2), (28, 3), (38, 4)]);
    let SnoopCounters { queued_bytes, most_queued_bytes, cached, .. } = line.counters();
    assert_eq!((queued_bytes, most_queued_bytes, cached), (0, 4 * LENGTH, 5));
}

#[test]
fn a_segment_is_kept_from_when_it_leaves_and_its_wait_is_no_round_trip() {
    let mut line = paced(100);
    line.offer(0..40);
    line.leaves_within(SLOT * 4);
    assert_eq!(line.counters().held_bytes, 5 * LENGTH);
    assert_eq!(line.snoop.held_bytes(), 40 * LENGTH);
    line.leaves_within(ROUND_TRIP - SLOT * 4);
    // The last of them has waited for nearly 400 ms.
    for number in 1..=40 {
        line.passes(number);
        line.leaves_within(SLOT);
    }
    assert_eq!((line.counters().timed_out, line.counters().retransmitted), (0, 0));
    let longest = line.only_flow().deadline(&line.snoop.config).since(line.now);
    assert!(line.only_flow().is_finished() || longest > Duration::ZERO);
}

#[test]
fn retransmissions_precede_waiting_packets() {
    let mut line = paced(100);
    line.offer(0..30);
    line.leaves_within(ROUND_TRIP);
    line.passes(1);
    // 1 is lost; 2 and 3 arrive.
    line.passes(1);
    assert_eq!(line.inbound(line.ack(1, &[])), (vec![], vec![]));
    assert_eq!(line.leaves_within(SLOT * 2).iter().map(|&(_, number)| number).collect::<Vec<_>>(), [1, 11]);
    assert_eq!(line.counters().retransmitted, 1);
}

#[test]
fn events_before_a_late_timer_keep_their_order() {
    let mut line = paced(100);
    line.offer(0..3);
    line.wait(SLOT * 5);
    assert_eq!(line.offer([3]), [0; 0]);
    assert_eq!(line.leaves_within(SLOT * 3).iter().map(|&(_, number)| number).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn each_copy_of_a_retransmission_takes_its_time_on_the_link() {
    let pace = Some(Pace { rate: "832kbit/s".parse().unwrap(), queue: ByteCount::new(100 * LENGTH) });
    let mut line =
        Timeline::with_copies(3, SnoopConfig { pace, ..SnoopConfig::with_cache(ByteCount::new(1_000_000)) });
    line.wait(Duration::from_secs(1));
    line.offer(0..5);
    line.leaves_within(ROUND_TRIP);
    line.passes(1);
    line.passes(1);
    assert_eq!(line.inbound(line.ack(1, &[])), (vec![], vec![1, 1, 1]));
    line.offer([5]);
    assert_eq!(line.leaves_within(SLOT * 3), [(28, 5)]);
    assert_eq!(line.counters().retransmitted, 1);
}

#[test]
fn flows_that_wait_one_after_the_other_need_one_place() {
    let mut line = paced(100);
    for client in 0..1000 {
        let [first, second] = [0, 1].map(|number| Segment { destination: client, ..line.data(number) });
        line.offer_segment(first);
        line.offer_segment(second);
        line.segments_within(SLOT * 2);
        // It ends, so that nothing is sent again.
        line.inbound(Segment { source: client, flags: RST, ..line.ack(0, &[]) });
    }
    assert_eq!(line.snoop.pacer.as_ref().unwrap().queues(), 1);
}

#[test]
fn flows_take_turns_however_much_one_has_waiting() {
    let mut line = paced(100);
    line.offer(0..20);
    let other = |number| Segment { destination: OTHER, ..line.data(number) };
    let others: Vec<Segment> = (0..3).map(other).collect();
    let mut out = Outbox::default();
    others.into_iter().for_each(|segment| line.snoop.outbound(line.now, segment, &mut out));
    let mut left = Vec::new();
    for _ in 0..8 {
        line.now = line.snoop.wake_at();
        let mut out = Outbox::default();
        line.snoop.on_timer(line.now, &mut out);
        left.extend(out.to_link.iter().map(|segment| segment.destination));
    }
    let others: Vec<usize> = (0..left.len()).filter(|&at| left[at] == OTHER).collect();
    assert_eq!(others.len(), 3, "{left:?}");
    assert!(*others.last().unwrap() <= 6, "{left:?}");
}

#[test]
fn packets_beyond_the_queue_are_dropped_and_left_to_the_sender() {
    let mut line = paced(6);
    assert_eq!(line.offer(0..10), [0]);
    assert_eq!((line.counters().queue_dropped, line.counters().queued_bytes), (3, 6 * LENGTH));
    line.leaves_within(ROUND_TRIP + SLOT * 8);
    line.offer([10, 11]);
    line.leaves_within(ROUND_TRIP);
    // 0 to 6 arrive, and then 10 and 11.
    for _ in 0..4 {
        line.passes(7);
    }
    assert_eq!(line.counters().retransmitted, 0);
}

#[test]
fn no_flow_exceeds_its_share_once_half_of_the_queue_is_taken() {
    let mut line = paced(8);
    line.offer(0..7);
    let mut out = Outbox::default();
    let other = Segment { destination: OTHER, ..line.data(0) };
    line.snoop.outbound(line.now, other, &mut out);
    // 6 of the first flow wait and one of the other: a share is four of eight.
    line.offer([7]);
    assert_eq!(line.counters().queue_dropped, 1);
    let other = Segment { destination: OTHER, ..line.data(1) };
    line.snoop.outbound(line.now, other, &mut out);
    assert_eq!(line.counters().queue_dropped, 1);
}

#[test]
fn until_half_of_the_queue_is_taken_one_may_have_more_than_a_share() {
    let mut line = paced(20);
    for client in [OTHER, OTHER, OTHER + 1] {
        let segment = Segment { destination: client, ..line.data(0) };
        line.offer_segment(segment);
    }
    // Two wait, of two flows; the third one's share is a third of twenty.
    line.offer(0..7);
    assert_eq!((line.counters().queue_dropped, line.counters().queued_bytes), (0, 9 * LENGTH));
}

#[test]
fn given_up_it_lets_go_of_all_that_waits() {
    let mut line = paced(100);
    line.offer(0..5);
    let mut out = Outbox::default();
    line.snoop.flush(&mut out);
    assert_eq!(line.numbers(out).1, [1, 2, 3, 4]);
    assert_eq!((line.counters().queued_bytes, line.snoop.wake_at() > line.now + SLOT), (0, true));
}

proptest! {
    /// Segments of up to three flows come at any times.
    #[test]
    fn every_loss_is_counted_and_order_and_pace_are_kept(
        arrivals in prop::collection::vec((0u64..30, 0u16..3, 1u32..1460), 1..200),
        queue in 1u64..20,
    ) {
        let mut line = paced(queue);
        let pace = line.snoop.config.pace.unwrap();
        let mut left: Vec<(Time, Segment)> = Vec::new();
        let mut next = HashMap::<u16, u32>::new();
        for &(wait, flow, payload) in &arrivals {
            let end = line.now + Duration::from_millis(wait);
            while line.snoop.wake_at() <= end {
                line.now = line.now.max(line.snoop.wake_at());
                let mut out = Outbox::default();
                line.snoop.on_timer(line.now, &mut out);
                left.extend(out.to_link.into_iter().map(|segment| (line.now, segment)));
            }
            line.now = end;
            let seq = next.entry(flow).or_default();
            let segment = Segment { destination: CLIENT + flow, seq: *seq, payload, ..line.data(0) };
            *seq += payload;
            let mut out = Outbox::default();
            line.snoop.outbound(line.now, segment, &mut out);
            left.extend(out.to_link.into_iter().map(|segment| (line.now, segment)));
            prop_assert!(line.counters().queued_bytes <= pace.queue.get());
        }
        // Nothing is acknowledged, so the local timers expire for ever: only first transmissions count here.
        while line.counters().queued_bytes > 0 && left.len() < 2000 {
            line.now = line.now.max(line.snoop.wake_at());
            let mut out = Outbox::default();
            line.snoop.on_timer(line.now, &mut out);
            left.extend(out.to_link.into_iter().map(|segment| (line.now, segment)));
        }
        let bits: u64 = left.iter().map(|(_, segment)| segment.ip_length() as u64 * 8).sum();
        let longest = 1500 * 8;
        let span = (left.last().unwrap().0 - left[0].0).as_secs_f64();
        prop_assert!(bits as f64 <= pace.rate.bps() as f64 * (span + 0.002) + 2.0 * f64::from(longest));
        let mut firsts = HashMap::<u16, u32>::new();
        let mut count = 0;
        for (_, segment) in &left {
            let expected = firsts.entry(segment.destination).or_default();
            if segment.seq >= *expected {
                *expected = segment.seq + segment.payload;
                count += 1;
            }
        }
        prop_assert_eq!(count + line.counters().queue_dropped, arrivals.len() as u64);
    }
}

/// Segments of the other client's.
fn of_other(segment: Segment) -> Segment {
    match segment.source {
        SERVER => Segment { destination: OTHER, ..segment },
        _ => Segment { source: OTHER, ..segment },
    }
}

impl Timeline {
    fn offer_segment(&mut self, segment: Segment) -> Vec<Segment> {
        let mut out = Outbox::default();
        self.snoop.outbound(self.now, segment, &mut out);
        out.to_link.into()
    }

    /// What goes out until `span` has passed.
    fn segments_within(&mut self, span: Duration) -> Vec<Segment> {
        let (mut left, end) = (Vec::new(), self.now + span);
        while self.snoop.wake_at() <= end {
            self.now = self.now.max(self.snoop.wake_at());
            let mut out = Outbox::default();
            self.snoop.on_timer(self.now, &mut out);
            left.extend(out.to_link);
        }
        self.now = end;
        left
    }

    /// Two flows have measured a round trip; then the other one learns that 60 of its segments are lost, so
    /// that repairs wait for 600 ms. Of the first flow 1 to 5 are on their way.
    fn behind_repairs(&mut self) {
        let other = |line: &Self, number| of_other(line.data(number));
        self.offer([0]);
        let segment = other(self, 0);
        self.offer_segment(segment);
        self.leaves_within(SLOT * 2);
        self.leaves_within(ROUND_TRIP - SLOT * 2);
        self.inbound(self.ack(1, &[]));
        self.inbound(of_other(self.ack(1, &[])));
        for number in 1..=62 {
            let segment = other(self, number);
            self.offer_segment(segment);
        }
        self.segments_within(SLOT * 62);
        self.offer(1..=5);
        assert_eq!(self.leaves_within(SLOT * 5).len(), 5);
        for end in [62, 63] {
            self.inbound(of_other(self.ack(1, &[(61, end)])));
        }
        self.segments_within(SLOT);
        // The first of the sixty has left.
        assert_eq!(self.counters().queued_bytes, 59 * LENGTH);
    }
}

#[test]
fn no_timer_runs_for_a_segment_that_waits_for_retransmission() {
    let mut line = paced(1000);
    line.behind_repairs();
    let timed_out = line.counters().timed_out;
    line.passes(1);
    // 1 is lost; what repairs it waits for longer than the local timer.
    line.inbound(line.ack(1, &[]));
    let before = line.counters().queued_bytes;
    let ours = |left: Vec<Segment>| left.iter().filter(|segment| segment.destination == CLIENT).count();
    let left = line.segments_within(SLOT * 40);
    assert_eq!((ours(left), line.counters().timed_out), (0, timed_out));
    // More duplicates than can be are not worth another copy while the first one waits, nor a try.
    (0..20).for_each(|_| line.is_suppressed(1));
    assert_eq!(line.counters().queued_bytes, before - 40 * LENGTH);
    let left = line.segments_within(SLOT * 18);
    assert_eq!((ours(left), line.counters().timed_out), (0, timed_out));
    let left = line.segments_within(SLOT * 3);
    assert_eq!((ours(left), line.counters().timed_out), (1, timed_out));
    // From then on it does.
    let left = line.segments_within(ROUND_TRIP * 5);
    assert!(ours(left) >= 1 && line.counters().timed_out > timed_out);
}

#[test]
fn data_that_arrived_while_waiting_are_not_sent_again() {
    let mut line = paced(1000);
    line.behind_repairs();
    line.passes(6);
    let before = line.counters().retransmitted;
    // They were late and not lost: up to 29 by number, and 31 to 40 by a block.
    line.inbound(of_other(line.ack(30, &[(31, 41), (61, 63)])));
    let left = line.segments_within(SLOT * 30);
    let numbers: Vec<u32> = left.iter().map(|segment| line.number(segment.seq)).collect();
    assert_eq!(numbers, [vec![30], (41..61).collect()].concat());
    assert_eq!((line.counters().retransmitted - before, line.counters().queued_bytes), (21, 0));
}

#[test]
fn queued_repairs_are_removed_with_their_flow() {
    let mut line = paced(1000);
    line.behind_repairs();
    line.inbound(of_other(Segment { flags: RST, ..line.ack(1, &[]) }));
    let left = line.segments_within(SLOT * 10);
    assert_eq!(left.iter().filter(|segment| segment.destination == OTHER).count(), 0);
    assert_eq!(line.counters().queued_bytes, 0);
}

#[test]
fn an_arrival_says_nothing_of_a_copy_that_waits() {
    let mut line = paced(1000);
    line.behind_repairs();
    let timed_out = line.counters().timed_out;
    // The acknowledgement of 1 is late, the timer expires, and another copy waits for longer than a round
    // trip.
    line.segments_within(ROUND_TRIP * 4);
    assert!(line.counters().timed_out > timed_out && line.counters().queued_bytes >= 10 * LENGTH);
    let timed_out = line.counters().timed_out;
    // 2 to 5 went out before that copy, and are not lost.
    line.segments_within(ROUND_TRIP);
    line.passes(2);
    let left = line.segments_within(ROUND_TRIP + SLOT * 5);
    let ours: Vec<u32> = left
        .iter()
        .filter(|segment| segment.destination == CLIENT)
        .map(|segment| line.number(segment.seq))
        .collect();
    assert_eq!((ours, line.counters().timed_out), (vec![], timed_out));
}

#[test]
fn queued_packets_of_an_ended_connection_pass_and_are_not_cached() {
    let fin = |line: &Timeline| Segment { payload: 0, flags: ACK | FIN, ..line.data(1) };
    let reset = |line: &mut Timeline| drop(line.inbound(Segment { flags: RST, ..line.ack(1, &[]) }));
    let syn = |line: &mut Timeline| drop(line.inbound(Segment { flags: SYN, ..line.ack(1, &[]) }));
    let finished = |line: &mut Timeline| {
        let ack = Segment { ack: line.seq(1).wrapping_add(1), ..line.ack(1, &[]) };
        line.inbound(ack);
    };
    for end in [reset, syn, finished] {
        let mut line = paced(100);
        line.offer([0]);
        let fin = fin(&line);
        line.offer_segment(fin);
        line.leaves_within(SLOT * 2);
        // What the sender sends again without need, while the end is on its way.
        line.offer([0, 0, 0, 0]);
        end(&mut line);
        // A new connection's.
        line.isn = 0x4000_0000;
        line.offer([0]);
        // The first of them left at once.
        assert_eq!(line.segments_within(SLOT * 3).len(), 3);
        assert_eq!((line.counters().flows, line.counters().held_bytes), (0, 0));
        line.segments_within(SLOT * 2);
        assert_eq!((line.counters().flows, line.counters().held_bytes), (1, LENGTH));
    }
}

#[test]
fn a_flow_that_begins_to_wait_has_its_turn_after_one_of_each_other() {
    let mut line = paced(1000);
    for number in 0..20 {
        for client in 0..9 {
            let segment = Segment { destination: CLIENT + 10 + client, payload: 1460, ..line.data(number) };
            line.offer_segment(segment);
        }
    }
    line.segments_within(SLOT * 50);
    let short = Segment { payload: 100, ..line.data(0) };
    line.offer_segment(short.clone());
    let left = line.segments_within(SLOT * 40);
    let before = left.iter().position(|segment| *segment == short).unwrap();
    assert!(before <= 10, "after {before} others");
}

#[test]
fn packets_longer_than_a_turn_leave_and_take_no_more_than_their_share() {
    let mut line = paced(1000);
    for number in 0..40 {
        let long = Segment { payload: 8960, seq: number * 8960, destination: OTHER, ..line.data(0) };
        line.offer_segment(long);
        for part in 0..6 {
            let short = Segment { payload: 1460, ..line.data(6 * number + part) };
            line.offer_segment(short);
        }
    }
    let left = line.segments_within(SLOT * 8 * 40);
    let bytes =
        |client| left.iter().filter(|s| s.destination == client).map(|s| s.ip_length()).sum::<usize>();
    let (long, short) = (bytes(OTHER), bytes(CLIENT));
    assert!(long.abs_diff(short) <= 2 * 9000, "{long}, {short}");
}

#[test]
fn many_that_wait_with_little_leave_room_for_a_packet_of_another() {
    let mut line = paced(100);
    for client in 0..600 {
        let little = Segment { payload: 60, destination: 5000 + client, ..line.data(0) };
        line.offer_segment(little);
    }
    assert!(line.counters().queued_bytes > 50 * LENGTH);
    // A share is 173 bytes.
    line.offer([0]);
    assert_eq!(line.counters().queue_dropped, 0);
    line.offer([1]);
    assert_eq!(line.counters().queue_dropped, 1);
}

#[test]
fn packets_that_need_not_wait_leave_at_once_whatever_the_queue() {
    for queue in [0, 1] {
        let mut line = Timeline::with(SnoopConfig {
            pace: Some(Pace { rate: Rate::from_bps(1).unwrap(), queue: ByteCount::new(queue) }),
            ..SnoopConfig::with_cache(ByteCount::new(1_000_000))
        });
        assert_eq!((line.offer([0, 1]), line.counters().queue_dropped), (vec![0], 1));
        // At one bit a second it takes hours, and then the next one leaves at once.
        line.wait(Duration::from_secs(3 * 3600));
        line.tick();
        assert_eq!(line.offer([2]), [2]);
    }
}

fn twice() -> Timeline {
    Timeline::with_copies(2, SnoopConfig::with_cache(ByteCount::new(1_000_000)))
}

#[test]
fn the_duplicate_of_a_second_copy_is_suppressed_and_no_other() {
    let mut line = twice();
    line.send(0..10).wait(RTT);
    line.passes(1);
    line.passes(1);
    line.triggers(1, &[1, 1]);
    // Both are lost, and the next two arrive.
    line.send(10..20).wait(RTT);
    for _ in 4..10 {
        line.is_suppressed(1);
    }
    line.triggers(1, &[1, 1]);
    line.send(20..30).wait(RTT).passes(20);
    // One is the second copy's. 20 is lost, too.
    line.is_suppressed(20);
    line.passes(20);
    line.triggers(20, &[20, 20]);
}

#[test]
fn the_answer_to_a_probe_is_no_second_copys() {
    let mut line = twice();
    line.send(0..4).wait(RTT);
    line.passes(1);
    line.passes(1);
    line.triggers(1, &[1, 1]);
    // The second copy is lost, and then the connection rests.
    line.wait(RTT).passes(4);
    line.wait(RTT * 2).passes(4);
}

proptest! {
    /// Whatever comes and waits: no panic, each packet of the server's leaves once or is counted, and the
    /// sums are right.
    #[test]
    fn hostile_segments_that_wait_do_no_harm(
        events in prop::collection::vec((arbitrary(), any::<bool>()), 1..300),
        kbps in 1u64..1000,
        queue in 0u64..20_000,
        copies in 0u32..4,
    ) {
        let pace = Some(Pace { rate: Rate::from_bps(kbps * 1000).unwrap(), queue: ByteCount::new(queue) });
        let mut snoop = Snoop::new(&SnoopConfig { pace, copies, ..SnoopConfig::with_cache(ByteCount::new(20_000)) });
        let (mut now, mut offered, mut left) = (Time::ZERO, 0, 0);
        let mut finish = |snoop: &mut Snoop<Segment>, until: Time, now: &mut Time| {
            while snoop.wake_at() <= until && snoop.wake_at() < Time::MAX {
                *now = (*now).max(snoop.wake_at());
                let mut out = Outbox::default();
                snoop.on_timer(*now, &mut out);
                left += out.to_link.len() as u64;
                assert!(snoop.wake_at() > *now && out.to_host.is_empty());
            }
        };
        for ((segment, gap), outbound) in events {
            let next = now + Duration::from_nanos(gap / 20);
            finish(&mut snoop, next, &mut now);
            now = next;
            let mut out = Outbox::default();
            if outbound {
                offered += 1;
                snoop.outbound(now, segment, &mut out);
            } else {
                snoop.inbound(now, segment, &mut out);
            }
            offered -= out.to_link.len() as i64;
            let counters = snoop.counters;
            let waiting = snoop.pacer.as_ref().unwrap().queued();
            prop_assert_eq!(counters.queued_bytes, waiting);
            // One copy at the most waits of what is kept, or was when it began to wait.
            prop_assert!(waiting <= queue + 20_000 + counters.most_held_bytes);
        }
        finish(&mut snoop, Time::from_nanos(u64::MAX - 1), &mut now);
        let SnoopCounters { queued_bytes, held_bytes, queue_dropped, retransmitted, .. } = snoop.counters;
        prop_assert_eq!((queued_bytes, held_bytes, snoop.by_ends.len()), (0, 0, 0));
        let firsts = offered - left as i64;
        prop_assert_eq!(firsts, queue_dropped as i64 - (retransmitted * u64::from(copies.max(1))) as i64);
    }
}
