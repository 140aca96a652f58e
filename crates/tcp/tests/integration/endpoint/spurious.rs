//! Repairs that turn out to be spurious are taken back: F-RTO, timestamps, D-SACK.

use crate::endpoint::timeline::{MSS, RTT, Timeline, cwnd, rack, ten_sent};
use bentpipe_tcp::{Config, Endpoint, Flags, Segment, SynOptions};
use bentpipe_units::Time;

/// The initial timeout of these connections: three round trips, and not less than 200 ms beyond one.
const RTO: u64 = 300;

fn after_timeout(parts: Config) -> Timeline {
    let mut timeline = ten_sent(parts);
    timeline.timer_after(RTO).sends([1]);
    assert_eq!(cwnd(&timeline), 1);
    timeline
}

/// RFC 5682 §3.1, step 3.b: what was sent once and before the timeout arrives.
#[test]
fn f_rto_takes_a_timeout_back_when_an_original_arrives() {
    let mut timeline = after_timeout(Config { forward_rto: true, undo: true, ..rack() });
    timeline.after(50).ack(1).sends([11, 12]); // step 2: new data, no retransmission
    assert_eq!(cwnd(&timeline), 2);
    timeline.ack(2);
    assert_eq!(cwnd(&timeline), 11, "ten as before, and slow start goes on");
    assert_eq!(timeline.endpoint.statistics().retransmissions, 1);
    assert_eq!(timeline.endpoint.variables().ssthresh, u64::MAX);
}

/// Step 3.a: an acknowledgement that tells only of the new data says that the rest is lost.
#[test]
fn f_rto_retransmits_when_only_the_new_data_arrives() {
    let mut timeline = after_timeout(Config { forward_rto: true, undo: true, ..rack() });
    timeline.after(50).ack(1).sends([11, 12]);
    timeline.after(RTT).sack(1, &[(11, 11)]);
    assert_eq!(timeline.sent()[0], 2);
    assert_eq!(timeline.endpoint.variables().ssthresh, 5 * u64::from(MSS));
}

#[test]
fn without_f_rto_the_flight_is_sent_again() {
    let mut timeline = after_timeout(rack());
    timeline.after(50).ack(1).sends([2, 3]);
}

fn stamped() -> Config {
    Config { timestamps: true, mss: MSS as u16 + 12, undo: true, ..rack() }
}

/// RFC 3522: the acknowledgement of the first retransmission answers the original.
#[test]
fn timestamps_take_a_timeout_back_at_the_first_acknowledgement() {
    for (answered, window) in [(RTT, 11), (RTT + RTO, 2)] {
        let mut timeline = after_timeout(stamped());
        timeline.answering(answered as u32).after(50).ack(1);
        assert_eq!(cwnd(&timeline), window, "an answer to what left at {answered} ms");
    }
}

/// The same of a fast retransmit, where the segment was only reordered.
#[test]
fn timestamps_take_a_fast_retransmit_back() {
    let mut timeline = ten_sent(stamped());
    timeline.answering(RTT as u32).after(RTT).sack(0, &[(2, 4)]).sends([1]);
    assert_eq!(cwnd(&timeline), 5);
    timeline.ack(5);
    assert!(!timeline.endpoint.variables().recovering);
    assert!(cwnd(&timeline) >= 10);
}

/// RFC 3708: each retransmission has arrived twice, which is known when the repair is over already.
#[test]
fn duplicate_reports_take_a_fast_retransmit_back() {
    let config = Config { duplicate_sack: true, undo: true, ..rack() };
    let mut timeline = ten_sent(config);
    timeline.after(RTT).sack(0, &[(2, 4)]).sends([1]);
    timeline.ack(5).sent();
    timeline.ack(10).sent();
    assert_eq!(timeline.endpoint.variables().ssthresh, 5 * u64::from(MSS));
    timeline.after(RTT).sack(10, &[(1, 1)]);
    assert!(cwnd(&timeline) >= 10);
    assert_eq!(timeline.endpoint.variables().ssthresh, u64::MAX);
}

/// A D-SACK widens the window of reordering by a quarter of a round trip.
#[test]
fn a_duplicate_report_makes_the_sender_more_patient() {
    let mut timeline = ten_sent(Config { duplicate_sack: true, ..rack() });
    timeline.after(RTT).sack(0, &[(2, 2)]).sends([11]);
    timeline.timer_after(RTT / 4).sends([1]);
    timeline.sack(2, &[(1, 1)]).sent();
    timeline.after(RTT).ack(11);
    assert!(timeline.sent().len() > 3);
    timeline.after(RTT).sack(12, &[(14, 14)]).sent();
    let waits = timeline.endpoint.wake_at().since(timeline.now).as_millis() as u64;
    assert!((RTT / 2 - 1..=RTT / 2 + 1).contains(&waits), "{waits} ms");
}

/// RFC 2883 §4: the first block of the acknowledgement is what has arrived twice.
#[test]
fn the_receiver_reports_what_arrives_twice() {
    let reported = |duplicate_sack: bool| {
        let config = Config { timestamps: false, duplicate_sack, ..Config::default() };
        let mut endpoint = Endpoint::listen(config, 0);
        let data = |seq: u32, len: u32| Segment {
            seq,
            ack: 1,
            len,
            window: 65_535,
            flags: Flags::ACK,
            ..Segment::default()
        };
        let syn = Some(SynOptions { mss: Some(1000), window_scale: Some(7), sack_permitted: true });
        endpoint.on_segment(Time::ZERO, &Segment { seq: 0, flags: Flags::SYN, syn, ..Segment::default() });
        endpoint.poll_transmit(Time::ZERO).expect("the answer");
        let mut blocks = Vec::new();
        for (seq, len) in [(1, 1000), (1, 1000), (3001, 1000), (3001, 1000), (2001, 1500)] {
            endpoint.on_segment(Time::ZERO, &data(seq, len));
            let ack = endpoint.poll_transmit(Time::ZERO);
            blocks.push(ack.map_or(Vec::new(), |ack| ack.sack.as_slice().to_vec()));
        }
        blocks
    };
    assert_eq!(
        reported(true),
        [
            vec![],
            vec![(1, 1001)],
            vec![(3001, 4001)],
            vec![(3001, 4001), (3001, 4001)],
            vec![(3001, 3501), (2001, 4001)],
        ]
    );
    assert_eq!(reported(false)[1], []);
    assert_eq!(reported(false)[4], [(2001, 4001)]);
}
