//! What each variant of loss recovery sends, and when.

use std::time::Duration;

use crate::endpoint::timeline::{RTT, Timeline, config, cwnd, ten_sent};
use bentpipe_tcp::{Config, Recovery, RtoLimits};

/// The third duplicate retransmits; each further one lets a segment go once the window allows it; the window
/// is halved.
#[test]
fn reno_retransmits_at_the_third_duplicate_and_halves_the_window() {
    let mut timeline = ten_sent(config(Recovery::Reno));
    timeline.after(RTT).ack(0).sends([11]); // limited transmit (RFC 3042)
    timeline.ack(0).sends([12]);
    timeline.ack(0).sends([1]);
    assert_eq!(cwnd(&timeline), 5, "half of the ten in flight, limited transmit left out");
    // In flight: 12, of which 3 have left. 9 of 5 allowed: four duplicates more, and then a segment for each.
    timeline.acks(0, 4).sends_nothing();
    timeline.ack(0).sends([13]);
    timeline.ack(0).sends([14]);
    timeline.after(RTT).ack(12);
    assert_eq!(timeline.endpoint.statistics().retransmissions, 1);
    assert!(!timeline.endpoint.variables().recovering);
}

/// Reno believes that the first acknowledgement of new data ends it, and has no duplicates left for the
/// second loss.
#[test]
fn reno_leaves_recovery_at_a_partial_acknowledgement_and_times_out() {
    let mut timeline = ten_sent(config(Recovery::Reno));
    timeline.after(RTT).acks(0, 3).sent();
    timeline.acks(0, 4).sends_nothing();
    timeline.after(RTT).ack(4);
    assert!(!timeline.endpoint.variables().recovering);
    timeline.sent();
    timeline.timer_after(1000).sends([5]);
    assert_eq!(timeline.endpoint.statistics().timeouts, 1);
}

/// A partial acknowledgement is the sign of the next loss, which is repaired at once (RFC 6582 §3.2 step 3).
#[test]
fn newreno_repairs_one_loss_in_a_round_trip() {
    for recovery in [Recovery::NewRenoImpatient, Recovery::NewRenoSlowButSteady] {
        let mut timeline = ten_sent(config(recovery));
        timeline.after(RTT).acks(0, 3);
        assert_eq!(timeline.sent(), [11, 12, 1], "{recovery}");
        timeline.acks(0, 4).sent();
        timeline.after(RTT).ack(4);
        assert_eq!(timeline.sent()[0], 5, "{recovery}");
        timeline.after(RTT).ack(7);
        assert_eq!(timeline.sent()[0], 8, "{recovery}");
        assert!(timeline.endpoint.variables().recovering);
        timeline.after(RTT).ack(12);
        assert!(!timeline.endpoint.variables().recovering, "everything sent before the repair has arrived");
        assert_eq!(timeline.endpoint.statistics().timeouts, 0);
    }
}

/// Three losses in a window, each repair a round trip of 600 ms: the timer of 1 s runs from the first partial
/// acknowledgement with Impatient, and from each one with Slow-but-Steady.
#[test]
fn with_three_losses_impatient_times_out_where_slow_but_steady_does_not() {
    let rto = RtoLimits { min: Duration::from_millis(1000), ..RtoLimits::RFC6298 };
    let lost_three = |recovery| {
        let config = Config { rto, ..config(recovery) };
        let mut timeline = Timeline::established(config, Duration::from_millis(600));
        // The measured round trips bring the timeout to its floor of 1 s.
        timeline.write(1000);
        let mut highest = 0;
        for _ in 0..6 {
            let sent = timeline.sent();
            timeline.after(600);
            for n in &sent {
                timeline.ack(*n);
            }
            highest = *sent.last().unwrap();
        }
        let flight = timeline.sent();
        let first = highest + 1;
        assert_eq!(flight[0], first);
        // Segments 0, 3 and 6 of the flight are lost: the first seven others are duplicates.
        timeline.after(600).acks(highest, 7);
        assert_eq!(timeline.sent()[0], first);
        timeline.after(600).ack(first + 2);
        assert_eq!(timeline.sent()[0], first + 3);
        (timeline, first)
    };
    let timeout = |timeline: &Timeline| timeline.endpoint.variables().rto.as_millis() as u64;

    let (mut steady, first) = lost_three(Recovery::NewRenoSlowButSteady);
    assert!((1000..1200).contains(&timeout(&steady)), "{}", timeout(&steady));
    steady.after(600).ack(first + 5);
    assert_eq!(steady.sent()[0], first + 6);
    steady.after(600).ack(first + 200);
    assert_eq!(steady.endpoint.statistics().timeouts, 0);

    let (mut impatient, first) = lost_three(Recovery::NewRenoImpatient);
    let timeout = timeout(&impatient);
    impatient.after(600).ack(first + 5);
    assert_eq!(impatient.sent()[0], first + 6);
    impatient.timer_after(timeout - 600);
    assert_eq!(impatient.sent(), [first + 6]);
    assert_eq!(impatient.endpoint.statistics().timeouts, 1);
}

/// Duplicates of what the timeout sends again are no new loss (RFC 6582 §3.2 step 1).
#[test]
fn duplicates_after_a_timeout_do_not_begin_a_recovery() {
    let mut timeline = ten_sent(config(Recovery::NewRenoSlowButSteady));
    timeline.timer_after(1000).sends([1]);
    timeline.after(RTT).acks(0, 5).sends_nothing();
    assert!(!timeline.endpoint.variables().recovering);
    assert_eq!(timeline.endpoint.statistics().recoveries, 0);
}

/// After a timeout everything is sent again in slow start, but for what turns out to have arrived.
#[test]
fn after_a_timeout_slow_start_retransmits_unacknowledged_data() {
    let mut timeline = ten_sent(config(Recovery::NewRenoSlowButSteady));
    timeline.timer_after(1000).sends([1]);
    assert_eq!(cwnd(&timeline), 1);
    timeline.after(RTT).ack(1).sends([2, 3]);
    timeline.after(RTT).ack(8).sends([9, 10, 11]);
}

/// SACK repairs all losses of a window in one round trip.
#[test]
fn sack_repairs_three_losses_in_one_round_trip() {
    let mut timeline = ten_sent(config(Recovery::Sack));
    timeline.after(RTT);
    timeline.sack(0, &[(2, 2)]).sends([11]); // limited transmit
    timeline.sack(0, &[(2, 3)]).sends([12]);
    timeline.sack(0, &[(5, 5), (2, 3)]).sends([1]);
    timeline.sack(0, &[(5, 6), (2, 3)]).sends_nothing();
    // Four is lost as well: three segments have arrived beyond it. Six in flight of six allowed at the end.
    timeline.sack(0, &[(8, 8), (5, 6), (2, 3)]);
    timeline.sack(0, &[(8, 9), (5, 6), (2, 3)]);
    timeline.sack(0, &[(8, 10), (5, 6), (2, 3)]);
    let sent = timeline.sent();
    assert_eq!(sent[..2], [4, 7]);
    timeline.after(RTT).ack(sent.last().copied().unwrap().max(12));
    assert!(!timeline.endpoint.variables().recovering);
    assert_eq!(timeline.endpoint.statistics().timeouts, 0);
    assert_eq!(timeline.endpoint.statistics().retransmissions, 3);
}

/// A retransmission that is lost again is found by the timer (RFC 6675 judges each segment once).
#[test]
fn a_lost_retransmission_waits_for_the_timer() {
    let mut timeline = ten_sent(config(Recovery::Sack));
    timeline.after(RTT).sack(0, &[(2, 4)]);
    assert_eq!(timeline.sent()[0], 1);
    timeline.sack(0, &[(2, 10)]);
    timeline.sent();
    timeline.timer_after(1000);
    assert_eq!(timeline.sent(), [1]);
}

/// A queue grows faster than it drains: while segments arrive that left before the first one was sent again,
/// the timer does not expire, where lost retransmissions are found without it.
#[test]
fn the_timer_waits_for_what_left_before_the_retransmission() {
    let mut timeline = ten_sent(Config { lost_retransmissions: true, ..config(Recovery::Sack) });
    timeline.after(RTT).sack(0, &[(2, 4)]);
    assert_eq!(timeline.sent()[0], 1);
    timeline.after(900).sack(0, &[(2, 7)]).sent();
    timeline.after(900).sack(0, &[(2, 9)]).sent();
    timeline.after(900).sack(0, &[(2, 10)]).sent();
    assert_eq!(timeline.endpoint.statistics().timeouts, 0);
}

/// What was selectively acknowledged is not sent again after a timeout.
#[test]
fn the_scoreboard_survives_a_timeout() {
    let mut timeline = ten_sent(config(Recovery::Sack));
    timeline.after(RTT).sack(0, &[(3, 4)]).sent();
    timeline.timer_after(900).sends([1]);
    timeline.after(RTT).sack(1, &[(3, 4)]).sends([2, 5]);
}

/// The tail of a transfer is rescued once when nothing else can be sent (RFC 6675 §4, rules 3 and 4).
#[test]
fn at_the_end_of_the_data_recovery_retransmits_possibly_lost_segments() {
    let mut timeline = Timeline::established(config(Recovery::Sack), Duration::from_millis(RTT));
    timeline.write(10).sends(1..=10);
    timeline.after(RTT).sack(0, &[(2, 4)]).sends([1]);
    timeline.sack(0, &[(2, 6)]).sends_nothing();
    timeline.sack(0, &[(2, 7)]).sends([10]);
    // Eight is below what has arrived, though not yet judged lost.
    timeline.sack(0, &[(9, 9), (2, 7)]).sends([8]);
    timeline.after(RTT).ack(10).sends_nothing();
}

/// Offsets do not wrap, sequence numbers do: in a handshake, in a window, in a SACK block.
#[test]
fn sequence_numbers_may_wrap_anywhere() {
    for initial in (0..12_000).step_by(250).map(|n| u32::MAX - n) {
        let rtt = Duration::from_millis(RTT);
        let mut timeline = Timeline::established_from(config(Recovery::Sack), rtt, initial);
        timeline.write(100).sends(1..=10);
        timeline.after(RTT).sack(0, &[(2, 4), (6, 7)]);
        assert_eq!(timeline.sent()[0], 1, "from {initial}");
        timeline.sack(0, &[(6, 10), (2, 4)]);
        assert_eq!(timeline.sent()[0], 5, "from {initial}");
        timeline.after(RTT).ack(10);
        assert!(timeline.sent().iter().all(|&n| n > 10), "from {initial}");
    }
}
