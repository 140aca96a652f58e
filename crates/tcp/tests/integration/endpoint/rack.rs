//! RACK and tail loss probes (RFC 8985): what is sent, and when.

use std::time::Duration;

use crate::endpoint::timeline::{RTT, Timeline, cwnd, rack, ten_sent};
use bentpipe_tcp::{Config, RtoLimits};

/// One segment beyond a hole is enough, a quarter of a round trip later (§6.2, step 4 and 5).
#[test]
fn a_hole_is_lost_when_the_reordering_window_is_over() {
    let mut timeline = ten_sent(rack());
    timeline.after(RTT).sack(0, &[(2, 2)]).sends([11]);
    timeline.timer_after(RTT / 4).sends([1]);
    assert!(timeline.endpoint.variables().recovering);
    assert_eq!(cwnd(&timeline), 5);
}

/// Three of them make it a loss at once (DupThresh), while no reordering has been seen.
#[test]
fn three_segments_beyond_a_hole_need_no_window() {
    let mut timeline = ten_sent(rack());
    timeline.after(RTT).sack(0, &[(2, 4)]);
    assert_eq!(timeline.sent()[0], 1);
}

/// A segment that comes behind a later one makes the sender patient: neither DupThresh nor a repair counts.
#[test]
fn where_segments_are_reordered_the_window_is_waited_for() {
    let mut timeline = ten_sent(rack());
    timeline.after(RTT).sack(0, &[(2, 2)]).sends([11]);
    timeline.ack(2).sent();
    timeline.sack(2, &[(4, 10)]);
    assert!(!timeline.sent().contains(&3));
    timeline.timer_after(RTT / 4);
    assert_eq!(timeline.sent()[0], 3);
}

/// RFC 6675 leaves a retransmission that is lost to the timer; here what left after it and has arrived tells.
#[test]
fn a_lost_retransmission_is_found_when_a_later_segment_arrives() {
    let mut timeline = ten_sent(rack());
    timeline.after(RTT).sack(0, &[(2, 4)]).sends([1]);
    timeline.sack(0, &[(2, 10)]);
    let sent = timeline.sent();
    assert_eq!(sent[0], 11, "new data, as the rate reduction allows");
    timeline.after(RTT).sack(0, &[(2, 11)]);
    assert_eq!(timeline.sent()[0], 1);
    assert_eq!(timeline.endpoint.statistics().timeouts, 0);
    assert_eq!(timeline.endpoint.statistics().recoveries, 1);
    assert_eq!(cwnd(&timeline), 5, "the window is reduced once");
}

/// What was lost of what left during a repair is another loss, though its repetition has left already: Linux
/// reduces the window once more when the first repair ends.
#[test]
fn a_loss_during_a_repair_begins_another_when_the_repair_ends() {
    let mut timeline = ten_sent(rack());
    timeline.after(RTT).sack(0, &[(2, 4)]).sends([1]);
    timeline.sack(0, &[(2, 10)]).sends([11, 12, 13, 14]);
    timeline.after(RTT).sack(0, &[(12, 14), (2, 10)]);
    assert_eq!(timeline.sent()[..2], [1, 11], "both are lost, and sent again");
    assert_eq!((timeline.endpoint.statistics().recoveries, cwnd(&timeline)), (1, 5));
    timeline.after(RTT).sack(10, &[(12, 14)]);
    assert_eq!((timeline.endpoint.statistics().recoveries, cwnd(&timeline)), (2, 2));
    assert!(timeline.endpoint.variables().recovering);
}

/// Three losses are repaired in one round trip, and the flight follows the window down.
#[test]
fn losses_of_one_flight_are_repaired_in_one_round_trip() {
    let mut timeline = ten_sent(rack());
    timeline.after(RTT);
    timeline.sack(0, &[(2, 3)]).sends([11, 12]);
    timeline.sack(0, &[(5, 5), (2, 3)]).sends([1]);
    timeline.sack(0, &[(5, 6), (2, 3)]);
    timeline.sack(0, &[(8, 10), (5, 6), (2, 3)]);
    let sent = timeline.sent();
    assert_eq!(sent[..2], [4, 7]);
    timeline.after(RTT).ack(sent.last().copied().unwrap().max(12));
    assert!(!timeline.endpoint.variables().recovering);
    assert_eq!(timeline.endpoint.statistics().retransmissions, 3);
}

/// The retransmission timer takes only what left long ago for lost (§6.3), and the window is a segment larger
/// than what is believed to be on its way.
#[test]
fn a_timeout_spares_what_left_within_a_round_trip() {
    let config = Config { initial_window: 20, ..rack() };
    let mut timeline = Timeline::established(config, Duration::from_millis(RTT));
    timeline.write(10).sends(1..=10);
    timeline.after(RTT).ack(10);
    timeline.write(10).sends(11..=20);
    timeline.after(250).write(5).sends(21..=25);
    timeline.timer_after(50).sends([11]);
    assert_eq!((timeline.endpoint.statistics().timeouts, cwnd(&timeline)), (1, 6));
    timeline.after(RTT).sack(11, &[(21, 25)]);
    assert_eq!(timeline.sent()[..2], [12, 13]);
}

fn probing() -> Config {
    Config { tail_loss_probe: true, ..rack() }
}

/// The last segments of a transfer are lost: the last one again, two round trips later, tells of the others.
#[test]
fn a_probe_finds_the_loss_of_the_last_segments() {
    let mut timeline = Timeline::established(probing(), Duration::from_millis(RTT));
    timeline.write(10).sends(1..=10);
    timeline.after(RTT).ack(7).sends_nothing();
    timeline.timer_after(2 * RTT + 2).sends([10]);
    timeline.after(RTT).sack(7, &[(10, 10)]).sends([8]);
    timeline.after(RTT).sack(8, &[(10, 10)]).sends([9]);
    assert_eq!(timeline.endpoint.statistics().timeouts, 0);
}

/// New data is the better probe.
#[test]
fn a_probe_is_new_data_where_there_is_some() {
    let mut timeline = ten_sent(probing());
    timeline.timer_after(2 * RTT + 2).sends([11]);
    assert_eq!(timeline.endpoint.statistics().retransmissions, 0);
    let rto = timeline.endpoint.variables().rto.as_millis() as u64;
    timeline.timer_after(rto).sends([1]);
    assert_eq!(timeline.endpoint.statistics().timeouts, 1, "no second probe follows");
}

/// The probe itself repairs the loss of the last segment; the window is reduced for it (§7.4).
#[test]
fn the_loss_that_a_probe_repairs_reduces_the_window() {
    let reduces = |twice: bool| {
        let config = Config { duplicate_sack: true, rto: RtoLimits::RFC6298, ..probing() };
        let mut timeline = Timeline::established(config, Duration::from_millis(RTT));
        timeline.write(10).sends(1..=10);
        timeline.after(RTT).ack(9).sends_nothing();
        let before = cwnd(&timeline);
        timeline.timer_after(2 * RTT + 200).sends([10]);
        timeline.write(1).sends([11]);
        timeline.after(RTT);
        if twice {
            timeline.sack(10, &[(10, 10)]);
        } else {
            timeline.ack(10);
        }
        timeline.ack(11);
        cwnd(&timeline) < before
    };
    assert!(reduces(false));
    assert!(!reduces(true), "the segment has arrived twice: none was lost");
}
