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
fn what_is_sent_again_goes_before_what_waits() {
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
fn what_finds_no_room_in_the_queue_is_dropped_and_the_senders_care() {
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
fn nobody_has_more_than_a_share_once_half_of_the_queue_is_taken() {
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
fn given_up_it_lets_go_of_all_that_waits() {
    let mut line = paced(100);
    line.offer(0..5);
    let mut out = Outbox::default();
    line.snoop.give_up(&mut out);
    assert_eq!(line.numbers(out).1, [1, 2, 3, 4]);
    assert_eq!((line.counters().queued_bytes, line.snoop.wake_at() > line.now + SLOT), (0, true));
}

proptest! {
    /// Segments of up to three flows come at any times.
    #[test]
    fn nothing_is_lost_but_what_is_counted_and_none_overtakes_its_like_or_the_pace(
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
