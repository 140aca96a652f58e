//! Timelines of [`Detection::Published`].

use super::*;

const NANOSECOND: Duration = Duration::from_nanos(1);

fn published() -> Timeline {
    Timeline::with(SnoopConfig {
        detection: Detection::Published,
        ..SnoopConfig::with_cache(ByteCount::new(1_000_000))
    })
}

/// Segments 0 to 9, of which 0 to 2 are acknowledged after a round trip, which is the first measurement.
fn with_ten_segments() -> Timeline {
    let mut line = published();
    line.send(0..10).wait(RTT);
    line.passes(3);
    line
}

#[test]
fn the_first_duplicate_triggers_and_all_that_follow_are_suppressed() {
    let mut line = with_ten_segments();
    line.triggers(3, &[3]);
    for _ in 5..10 {
        line.is_suppressed(3);
    }
    line.wait(RTT).passes(10);
    assert_eq!((line.counters().retransmitted, line.counters().suppressed), (1, 6));
    assert_eq!((line.counters().timed_out, line.counters().held_bytes), (0, 0));
}

#[test]
fn a_lost_retransmission_waits_for_twice_the_round_trip_whatever_duplicates_say() {
    let mut line = with_ten_segments();
    line.triggers(3, &[3]);
    let left = line.now;
    // 10 to 19 leave behind the retransmission and arrive: more duplicates than it left outstanding.
    line.send(10..20).wait(RTT);
    for _ in 4..20 {
        line.is_suppressed(3);
    }
    line.now = left + (2 * RTT - NANOSECOND);
    assert_eq!(line.tick(), [0; 0]);
    assert_eq!((line.expiry(), line.now - left), (vec![3], 2 * RTT));
    line.wait(RTT).passes(20);
    assert_eq!((line.counters().retransmitted, line.counters().timed_out), (2, 1));
}

#[test]
fn the_timer_persists_without_backing_off_until_the_loss_is_left_to_the_sender() {
    let mut line = with_ten_segments();
    line.triggers(3, &[3]);
    for _ in 1..5 {
        let left = line.now;
        assert_eq!((line.expiry(), line.now - left), (vec![3], 2 * RTT));
    }
    line.wait(2 * RTT);
    assert_eq!(line.tick(), [0; 0], "five retransmissions are the limit");
    line.passes(3);
    assert_eq!(line.counters().retransmitted, 5);
}

#[test]
fn the_next_hole_waits_for_a_duplicate_of_its_own() {
    let mut line = with_ten_segments();
    // 3 and 6 are lost.
    line.triggers(3, &[3]);
    line.send(10..12).wait(RTT);
    line.passes(6);
    assert_eq!(line.tick(), [0; 0]);
    line.triggers(6, &[6]);
}

#[test]
fn without_duplicates_it_waits_for_silence_from_both_sides() {
    let mut line = with_ten_segments();
    line.triggers(3, &[3]);
    line.wait(RTT);
    line.passes(6);
    // Segment 6 is 1.2 s old, but something has just come from the server, too.
    line.wait(RTT).send([10]);
    let silent = line.now;
    line.now = silent + (2 * RTT - NANOSECOND);
    assert_eq!(line.tick(), [0; 0]);
    assert_eq!((line.expiry(), line.now - silent), (vec![6], 2 * RTT));
    // From then on it is the age of the retransmission that counts.
    line.send([11]).wait(2 * RTT - NANOSECOND);
    assert_eq!(line.tick(), [0; 0]);
    assert_eq!((line.expiry(), line.now - silent), (vec![6], 4 * RTT));
}

#[test]
fn blocks_show_no_further_holes() {
    let mut line = with_ten_segments();
    let blocks = line.ack(3, &[(6, 7), (4, 5)]);
    assert_eq!(line.inbound(blocks), (vec![], vec![3]));
    let more = line.ack(3, &[(8, 9), (6, 7), (4, 5)]);
    assert_eq!(line.inbound(more), (vec![], vec![]));
}

#[test]
fn duplicates_of_what_is_not_cached_or_what_the_sender_repeats_pass() {
    let mut line = published();
    line.send(5..10).wait(RTT);
    line.passes(3);
    line.passes(3);
    line.passes(6);
    line.send([6]);
    line.passes(6);
    line.passes(6);
    assert_eq!(line.counters().retransmitted, 0);
}
