//! Timelines: what goes in, and what comes out on which side.

mod pacing;
mod published;

use std::time::Duration;

use bentpipe_units::{ByteCount, Time};
use proptest::prelude::*;

use super::*;
use crate::agent::TcpFlags;

const ACK: u8 = 0x10;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
/// Payload of a segment, and its length with the headers of IPv4 and TCP.
const MSS: u32 = 1000;
const LENGTH: u64 = 1040;
const SERVER: u16 = 80;
const CLIENT: u16 = 4000;
const RTT: Duration = Duration::from_millis(600);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    source: u16,
    destination: u16,
    seq: u32,
    ack: u32,
    payload: u32,
    window: u16,
    flags: u8,
    sack: Vec<(u32, u32)>,
    says_more: bool,
}

impl Packet for Segment {
    type End = u16;

    fn ip_length(&self) -> usize {
        40 + self.payload as usize
    }

    fn tcp(&self) -> Option<TcpHeader<'_, u16>> {
        let Self { source, destination, seq, ack, payload, window, flags, .. } = *self;
        let flags = TcpFlags(flags);
        Some(TcpHeader { source, destination, seq, ack, payload, window, flags, sack: &self.sack })
    }

    fn says_more(&self) -> bool {
        self.says_more
    }

    fn without_sack(&self) -> Self {
        Self { sack: Vec::new(), ..self.clone() }
    }
}

/// A download: data towards the client over the link, acknowledgements back. Segments are counted from the
/// first.
struct Timeline {
    snoop: Snoop<Segment>,
    now: Time,
    /// The sequence number of segment 0.
    isn: u32,
}

impl Timeline {
    fn new() -> Self {
        Self::with(SnoopConfig::with_cache(ByteCount::new(1_000_000)))
    }

    /// One copy of what is sent again: the timelines are easier to read.
    fn with(config: SnoopConfig) -> Self {
        Self::with_copies(1, config)
    }

    fn with_copies(copies: u32, config: SnoopConfig) -> Self {
        let config = SnoopConfig { copies, ..config };
        Self { snoop: Snoop::new(&config), now: Time::ZERO, isn: 1 }
    }

    fn wait(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    fn seq(&self, number: u32) -> u32 {
        self.isn.wrapping_add(number.wrapping_mul(MSS))
    }

    fn number(&self, seq: u32) -> u32 {
        seq.wrapping_sub(self.isn) / MSS
    }

    fn data(&self, number: u32) -> Segment {
        Segment {
            source: SERVER,
            destination: CLIENT,
            seq: self.seq(number),
            ack: 1,
            payload: MSS,
            window: 500,
            flags: ACK,
            sack: Vec::new(),
            says_more: false,
        }
    }

    /// "Segment `number` is what I wait for, and these ranges I have."
    fn ack(&self, number: u32, sack: &[(u32, u32)]) -> Segment {
        let sack = sack.iter().map(|&(first, end)| (self.seq(first), self.seq(end))).collect();
        let ack = self.seq(number);
        Segment {
            source: CLIENT,
            destination: SERVER,
            seq: 1,
            ack,
            payload: 0,
            window: 500,
            flags: ACK,
            sack,
            says_more: false,
        }
    }

    /// The server sends these segments; they must pass, each once.
    fn send(&mut self, numbers: impl IntoIterator<Item = u32>) -> &mut Self {
        for number in numbers {
            let segment = self.data(number);
            self.outbound(segment);
        }
        self
    }

    fn outbound(&mut self, segment: Segment) {
        let mut out = Outbox::default();
        self.snoop.outbound(self.now, segment.clone(), &mut out);
        assert_eq!((out.to_link.make_contiguous().to_vec(), out.to_host.len()), (vec![segment], 0));
    }

    /// An acknowledgement comes back: what passes to the server, and which segments are sent again.
    fn inbound(&mut self, segment: Segment) -> (Vec<Segment>, Vec<u32>) {
        let mut out = Outbox::default();
        self.snoop.inbound(self.now, segment, &mut out);
        self.numbers(out)
    }

    fn tick(&mut self) -> Vec<u32> {
        let mut out = Outbox::default();
        self.snoop.on_timer(self.now, &mut out);
        let (passed, resent) = self.numbers(out);
        assert_eq!(passed, []);
        resent
    }

    /// Waits until something is sent again. A wake-up may come too early.
    fn expiry(&mut self) -> Vec<u32> {
        loop {
            self.now = self.snoop.wake_at();
            let resent = self.tick();
            if !resent.is_empty() {
                return resent;
            }
        }
    }

    fn numbers(&self, out: Outbox<Segment>) -> (Vec<Segment>, Vec<u32>) {
        let resent = out.to_link.iter().map(|segment| self.number(segment.seq)).collect();
        (out.to_host.into(), resent)
    }

    fn passes(&mut self, number: u32) {
        let ack = self.ack(number, &[]);
        assert_eq!(self.inbound(ack.clone()), (vec![ack], vec![]), "{number} passes");
    }

    fn is_suppressed(&mut self, number: u32) {
        let ack = self.ack(number, &[]);
        assert_eq!(self.inbound(ack), (vec![], vec![]), "{number} is suppressed");
    }

    fn triggers(&mut self, number: u32, resent: &[u32]) {
        let ack = self.ack(number, &[]);
        assert_eq!(self.inbound(ack), (vec![], resent.to_vec()), "{number} triggers {resent:?}");
    }

    fn only_flow(&self) -> &SnoopedFlow<Segment> {
        let mut flows = self.snoop.slots.iter().filter_map(|slot| slot.flow.as_ref());
        &flows.next().expect("a flow is looked after").1
    }

    fn counters(&self) -> SnoopCounters {
        let AgentReport::Snoop(counters) = self.snoop.report() else { panic!("a Snoop's report") };
        counters
    }
}

#[test]
fn the_first_duplicate_passes_the_second_triggers_and_those_that_must_follow_are_suppressed() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    line.passes(3);
    // Segment 3 is lost. 4 to 9 arrive, each with a duplicate ACK.
    line.passes(3);
    line.triggers(3, &[3]);
    for _ in 6..10 {
        line.is_suppressed(3);
    }
    // What has gone out behind the retransmission arrives behind it.
    line.wait(RTT).passes(10);
    assert_eq!((line.counters().retransmitted, line.counters().suppressed), (1, 5));
    assert_eq!(line.counters().held_bytes, 0);
}

#[test]
fn across_the_wrap_of_sequence_numbers_it_is_the_same() {
    let mut line = Timeline { isn: 0_u32.wrapping_sub(4 * MSS + 300), ..Timeline::new() };
    line.send(0..10).wait(RTT);
    line.passes(4);
    line.passes(4);
    // Segment 4 itself lies across the wrap.
    line.triggers(4, &[4]);
    line.is_suppressed(4);
    line.wait(RTT).passes(10);
    assert_eq!(line.counters().held_bytes, 0);
}

#[test]
fn a_lost_retransmission_is_detected_by_duplicates_of_later_segments() {
    let mut line = Timeline::new();
    line.send(0..6).wait(RTT);
    line.passes(1);
    line.passes(1);
    line.triggers(1, &[1]);
    // 4 and 5 were sent before it.
    line.is_suppressed(1);
    line.is_suppressed(1);
    // 6 and 7 are sent behind it.
    line.send(6..8).wait(RTT);
    line.triggers(1, &[1]);
    line.is_suppressed(1);
    line.wait(RTT).passes(8);
}

#[test]
fn the_next_hole_is_known_when_the_retransmission_has_filled_the_first() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    // 2 and 5 are lost.
    line.passes(2);
    line.passes(2);
    line.triggers(2, &[2]);
    line.wait(RTT);
    // The retransmission of 2 was behind 5, so 5 cannot come any more.
    let partial = line.ack(5, &[]);
    assert_eq!(line.inbound(partial.clone()), (vec![partial], vec![5]));
    line.wait(RTT).passes(10);
}

#[test]
fn with_sack_all_holes_are_filled_in_one_round_trip_and_the_sender_sees_none() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    // 2, 5 and 7 are lost.
    line.passes(2);
    let first = line.ack(2, &[(3, 4)]);
    assert_eq!(line.inbound(first), (vec![line.ack(2, &[])], vec![]), "the first passes, its block does not");
    let second = line.ack(2, &[(3, 5)]);
    assert_eq!(line.inbound(second), (vec![], vec![2]));
    let third = line.ack(2, &[(6, 7), (3, 5)]);
    assert_eq!(line.inbound(third), (vec![], vec![5]));
    let fourth = line.ack(2, &[(8, 9), (6, 7), (3, 5)]);
    assert_eq!(line.inbound(fourth), (vec![], vec![7]));
    let fifth = line.ack(2, &[(8, 10), (6, 7), (3, 5)]);
    assert_eq!(line.inbound(fifth), (vec![], vec![]));
    line.wait(RTT);
    let filled = line.ack(5, &[(8, 10), (6, 7)]);
    assert_eq!(line.inbound(filled), (vec![line.ack(5, &[])], vec![]), "the other holes are being filled");
    line.passes(10);
    assert_eq!((line.counters().retransmitted, line.counters().sack_hidden), (3, 2));
}

#[test]
fn with_sack_a_retransmission_that_is_lost_is_sent_again_when_a_later_one_arrives() {
    let mut line = Timeline::new();
    line.send(0..8).wait(RTT);
    // 1 and 3 are lost, and then the retransmission of 1.
    line.passes(1);
    line.inbound(line.ack(1, &[(2, 3)]));
    assert_eq!(line.inbound(line.ack(1, &[(4, 5), (2, 3)])).1, [1, 3]);
    line.wait(RTT);
    assert_eq!(line.inbound(line.ack(1, &[(2, 8)])).1, [1]);
    line.wait(RTT).passes(8);
}

#[test]
fn a_block_below_the_acknowledgement_says_nothing_of_holes() {
    let mut line = Timeline::new();
    line.send(0..4).wait(RTT);
    line.passes(2);
    // D-SACK (RFC 2883): 0 has arrived twice.
    let (_, resent) = line.inbound(line.ack(2, &[(0, 1)]));
    assert_eq!(resent, [0; 0]);
}

#[test]
fn acknowledgements_of_duplicates_are_no_sign_of_loss_and_reach_the_sender() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    line.passes(4);
    // The sender's timer had expired too early: 0 to 3 arrive again, each with a D-SACK (RFC 2883).
    for number in 0..4 {
        let (passed, resent) = line.inbound(line.ack(4, &[(number, number + 1)]));
        assert_eq!((passed.len(), resent), (1, vec![]), "{number}");
    }
    line.passes(10);
}

#[test]
fn memory_of_blocks_is_bounded_by_the_cache() {
    let mut line = Timeline::new();
    line.send(0..100).wait(RTT);
    line.passes(1);
    let isn = line.isn;
    // One byte in two, of a receiver that means no good.
    for byte in 0..20_000 {
        let block = isn + 2 * MSS + 2 * byte;
        let ack = Segment { sack: vec![(block, block + 1)], ..line.ack(1, &[]) };
        line.inbound(ack);
    }
    let ranges = line.only_flow().remembered_ranges();
    assert!(ranges <= 100, "{ranges} ranges");
    // It is of no use to the others of that flow's segments, and does them no harm.
    line.wait(RTT).passes(100);
    assert_eq!(line.counters().held_bytes, 0);
}

#[test]
fn retransmissions_that_have_arrived_are_forgotten_without_sack_too() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    // A download that loses one segment in ten and never falls silent.
    for round in 1..200 {
        let (lost, next) = (round * 10 - 8, round * 10);
        line.passes(lost);
        line.passes(lost);
        line.triggers(lost, &[lost]);
        line.send(next..next + 10).wait(RTT).passes(next);
    }
    let retransmissions = line.only_flow().remembered_retransmissions();
    assert!(retransmissions <= 10, "{retransmissions} retransmissions");
}

#[test]
fn connections_that_come_and_go_leave_no_wake_ups_behind() {
    let mut line = Timeline::new();
    for _ in 0..1000 {
        line.send([0]).wait(Duration::from_millis(1));
        line.outbound(Segment { payload: 0, flags: RST, ..line.data(1) });
    }
    assert!(line.snoop.timers.len() <= 2, "{} timers", line.snoop.timers.len());
    // The one that is left is of no flow.
    while line.snoop.wake_at() < Time::MAX {
        line.now = line.snoop.wake_at();
        assert_eq!(line.tick(), [0; 0]);
    }
}

#[test]
fn without_hiding_blocks_pass() {
    let mut line =
        Timeline::with(SnoopConfig { hide_sack: false, ..SnoopConfig::with_cache(ByteCount::new(1 << 20)) });
    line.send(0..4).wait(RTT);
    let ack = line.ack(1, &[(2, 3)]);
    assert_eq!(line.inbound(ack.clone()), (vec![ack], vec![]));
}

#[test]
fn a_senders_own_retransmission_and_its_acknowledgements_pass() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    line.passes(3);
    line.passes(3);
    line.triggers(3, &[3]);
    // The sender's timer has expired.
    line.send([3]);
    for _ in 0..5 {
        line.passes(3);
    }
    let ack = line.ack(3, &[(5, 6)]);
    assert_eq!(line.inbound(ack.clone()).0, [ack]);
    line.wait(RTT).passes(10);
}

#[test]
fn a_segment_lost_before_the_gateway_is_the_senders_care() {
    let mut line = Timeline::new();
    line.send([0, 1, 3, 4, 5, 6]).wait(RTT);
    for _ in 0..6 {
        line.passes(2);
    }
    line.send([2]).wait(RTT);
    line.passes(7);
    assert_eq!(line.counters().retransmitted, 0);
}

#[test]
fn the_local_timer_sends_the_first_again_and_doubles() {
    let mut line = Timeline::new();
    line.send(0..4).wait(RTT);
    line.passes(1);
    // srtt + 4·rttvar of one measurement is three times it (RFC 6298 (2.2)).
    let timeout = RTT * 3;
    let start = line.now;
    line.now = start + (timeout - Duration::from_nanos(1));
    assert_eq!(line.tick(), [0; 0]);
    assert_eq!((line.expiry(), line.now - start), (vec![1], timeout));
    assert_eq!((line.expiry(), line.now - start), (vec![1], timeout * 3));
    line.passes(4);
    assert_eq!(line.counters().timed_out, 2);
}

#[test]
fn a_segment_sent_again_in_vain_is_given_up_and_its_duplicates_pass() {
    let mut line = Timeline::with(SnoopConfig {
        retransmissions: 2,
        ..SnoopConfig::with_cache(ByteCount::new(1 << 20))
    });
    line.send(0..4).wait(RTT);
    line.passes(1);
    let mut resent = Vec::new();
    while line.snoop.wake_at() < line.now + Duration::from_secs(100) {
        line.now = line.snoop.wake_at();
        resent.extend(line.tick());
    }
    assert_eq!(resent, [1, 1]);
    for _ in 0..4 {
        line.passes(1);
    }
}

#[test]
fn a_flow_that_is_joined_in_the_middle_is_helped_from_there() {
    let mut line = Timeline::new();
    // 0 to 99 went out before Snoop was there.
    line.send(100..110).wait(RTT);
    // 98 is lost: nothing is kept of it.
    for _ in 0..4 {
        line.passes(98);
    }
    line.send([98]).wait(RTT);
    line.passes(102);
    line.passes(102);
    line.triggers(102, &[102]);
}

#[test]
fn an_old_acknowledgement_passes_and_changes_nothing() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    line.passes(5);
    line.passes(3);
    line.passes(3);
    line.passes(3);
    line.passes(5);
    line.triggers(5, &[5]);
}

#[test]
fn a_window_that_changes_is_told_and_is_no_duplicate() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    line.passes(2);
    for window in [400, 300, 200] {
        let ack = Segment { window, ..line.ack(2, &[]) };
        assert_eq!(line.inbound(ack.clone()), (vec![ack], vec![]));
    }
    // With new blocks it is both.
    line.inbound(Segment { window: 100, ..line.ack(2, &[(3, 4)]) });
    let both = Segment { window: 90, ..line.ack(2, &[(3, 5)]) };
    assert_eq!(line.inbound(both), (vec![Segment { window: 90, ..line.ack(2, &[]) }], vec![2]));
}

#[test]
fn acknowledgements_that_carry_data_are_not_suppressed() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    line.passes(2);
    for _ in 0..5 {
        let ack = Segment { payload: 10, ..line.ack(2, &[]) };
        assert_eq!(line.inbound(ack.clone()), (vec![ack], vec![]));
    }
}

#[test]
fn acknowledgements_with_something_else_to_say_are_not_suppressed() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    line.passes(2);
    for _ in 0..5 {
        let ack = Segment { says_more: true, ..line.ack(2, &[]) };
        assert_eq!(line.inbound(ack.clone()), (vec![ack], vec![]));
    }
}

#[test]
fn a_fin_is_kept_like_data_and_the_flow_goes_when_it_is_acknowledged() {
    let mut line = Timeline::new();
    line.send(0..3);
    let fin = Segment { payload: 0, flags: ACK | FIN, ..line.data(3) };
    line.outbound(fin);
    line.wait(RTT);
    line.passes(3);
    assert_eq!(line.expiry(), [3], "the FIN was lost");
    assert_eq!(line.counters().flows, 1);
    let last = Segment { ack: line.seq(3).wrapping_add(1), ..line.ack(3, &[]) };
    assert_eq!(line.inbound(last.clone()), (vec![last], vec![]));
    assert_eq!((line.counters().flows, line.counters().held_bytes), (0, 0));
}

#[test]
fn a_reset_from_either_side_ends_the_flow() {
    for from_server in [true, false] {
        let mut line = Timeline::new();
        line.send(0..3);
        if from_server {
            line.outbound(Segment { payload: 0, flags: RST, ..line.data(3) });
        } else {
            let reset = Segment { flags: RST, ..line.ack(0, &[]) };
            assert_eq!(line.inbound(reset.clone()), (vec![reset], vec![]));
        }
        assert_eq!((line.counters().flows, line.counters().held_bytes), (0, 0));
        line.wait(Duration::from_secs(500));
        assert_eq!(line.tick(), [0; 0]);
    }
}

#[test]
fn a_syn_begins_anew() {
    let mut line = Timeline::new();
    line.send(0..3);
    line.outbound(Segment { payload: 0, flags: SYN, seq: 77, ..line.data(0) });
    assert_eq!(line.counters().held_bytes, 0);
    line.isn = 78;
    line.send(0..3).wait(RTT);
    line.passes(1);
    line.passes(1);
    line.triggers(1, &[1]);
}

#[test]
fn an_answered_syn_begins_anew_whichever_side_opens() {
    for outbound in [true, false] {
        let mut line = Timeline::new();
        line.send(0..3);
        if outbound {
            line.outbound(Segment { payload: 0, flags: SYN | ACK, seq: 77, ..line.data(0) });
        } else {
            let answer = Segment { flags: SYN | ACK, ..line.ack(0, &[]) };
            assert_eq!(line.inbound(answer.clone()), (vec![answer], vec![]));
        }
        assert_eq!((line.counters().flows, line.counters().held_bytes), (0, 0));
    }
}

/// Forty segments meet no queue; of the twenty that follow every second one meets a queue and every other
/// finds it full.
fn overflow(config: SnoopConfig) -> Timeline {
    let mut line = Timeline::with(config);
    for number in 0..40 {
        line.send([number]).wait(RTT);
        line.passes(number + 1);
    }
    line.send(40..60).wait(RTT * 2);
    line.passes(41);
    line
}

#[test]
fn losses_that_come_with_a_queue_are_left_to_the_sender_and_those_without_are_not() {
    let mut line = overflow(SnoopConfig::with_cache(ByteCount::new(1_000_000)));
    for number in [42, 44, 46, 48] {
        line.inbound(line.ack(41, &[(number, number + 1)]));
    }
    // Four losses may be chance; with the fifth the sender sees all that the receiver says.
    for number in [50, 52, 54] {
        let ack = line.ack(41, &[(number, number + 1)]);
        assert_eq!(line.inbound(ack.clone()), (vec![ack], vec![]), "{number}");
    }
    assert_eq!(line.counters().yielded, 1);
    // The sender repairs, the queue drains, and the next loss meets none.
    line.send([41, 43, 45, 47, 49, 51, 53]).wait(RTT);
    for number in 60..80 {
        line.send([number]).wait(RTT);
        line.passes(number + 1);
    }
    line.send(80..90).wait(RTT);
    line.passes(80);
    line.triggers(80, &[80]);
    assert_eq!(line.counters().yielded, 1);
}

#[test]
fn where_congestion_is_to_be_hidden_those_are_repaired_too() {
    let config = SnoopConfig { hide_congestion: true, ..SnoopConfig::with_cache(ByteCount::new(1_000_000)) };
    let mut line = overflow(config);
    let mut resent = Vec::new();
    for number in [42, 44, 46, 48, 50] {
        resent.extend(line.inbound(line.ack(41, &[(number, number + 1)])).1);
    }
    assert_eq!((resent, line.counters().yielded), (vec![41, 43, 45, 47, 49], 0));
}

#[test]
fn a_second_copy_goes_with_a_retransmission_and_the_duplicate_that_it_causes_is_not_told() {
    let mut line = Timeline::with_copies(2, SnoopConfig::with_cache(ByteCount::new(1_000_000)));
    line.send(0..10).wait(RTT);
    line.passes(3);
    line.passes(3);
    line.triggers(3, &[3, 3]);
    assert_eq!(line.counters().retransmitted, 1);
    (6..10).for_each(|_| line.is_suppressed(3));
    // Both copies arrive: the first fills the hole, the second is a duplicate and no hole behind it.
    line.wait(RTT).passes(10);
    line.is_suppressed(10);
    // The next duplicate is none of ours.
    line.send(10..14).wait(RTT);
    line.passes(10);
    line.triggers(10, &[10, 10]);
}

#[test]
fn sacked_segments_are_released_and_reneging_is_left_to_the_sender() {
    let mut line = Timeline::new();
    line.send(0..10).wait(RTT);
    line.inbound(line.ack(0, &[(1, 5)]));
    assert_eq!(line.counters().held_bytes, 6 * LENGTH);
    line.inbound(line.ack(0, &[(1, 10)]));
    assert_eq!(line.counters().held_bytes, LENGTH);
    // 0 arrives, and the receiver says that it has none of the others (RFC 2018 §8).
    line.wait(RTT).passes(1);
    assert_eq!(line.counters().held_bytes, 0);
    for _ in 0..4 {
        line.passes(1);
    }
}

#[test]
fn a_receiver_that_keeps_one_hole_open_does_not_make_its_records_grow_without_limit() {
    let mut line = Timeline::with(SnoopConfig::with_cache(ByteCount::new(16_000)));
    for number in 0..2000 {
        line.outbound(Segment { seq: 1 + number * 10, payload: 10, ..line.data(0) });
        let ack = Segment { sack: vec![(11, 11 + number * 10)], ..line.ack(0, &[]) };
        line.inbound(ack);
    }
    let records = line.only_flow().size().1;
    assert_eq!((records, line.snoop.records), (16_000 / RECORD, records));
    assert_eq!(line.counters().held_bytes, 50);
}

#[test]
fn another_connection_of_the_same_ends_is_known_by_its_numbers() {
    let mut line = Timeline::new();
    line.send(0..3);
    line.isn = 0xC000_0000;
    line.send(0..3).wait(RTT);
    assert_eq!(line.counters().held_bytes, 3 * LENGTH);
    line.passes(1);
    line.passes(1);
    line.triggers(1, &[1]);
}

#[test]
fn packets_beyond_the_queue_are_left_to_the_sender() {
    let mut line = Timeline::with(SnoopConfig::with_cache(ByteCount::new(3 * LENGTH)));
    line.send(0..6).wait(RTT);
    assert_eq!(line.counters().held_bytes, 3 * LENGTH);
    assert_eq!((line.counters().cached, line.counters().not_cached), (3, 3));
    line.passes(3);
    // 3 is lost.
    for _ in 0..4 {
        line.passes(3);
    }
    assert_eq!(line.counters().most_held_bytes, 3 * LENGTH);
    // There is room again.
    line.send([6, 7]);
    assert_eq!(line.counters().held_bytes, 2 * LENGTH);
}

#[test]
fn no_flow_exceeds_its_share_once_half_of_the_cache_is_taken() {
    let mut line = Timeline::with(SnoopConfig::with_cache(ByteCount::new(10 * LENGTH)));
    line.send(0..4);
    let other = |number| Segment { source: 81, ..line.data(number) };
    let others: Vec<Segment> = (0..6).map(other).collect();
    others.into_iter().for_each(|segment| line.outbound(segment));
    assert_eq!(line.counters().held_bytes, 9 * LENGTH, "4 and 5");
}

#[test]
fn a_flow_that_has_fallen_silent_is_forgotten() {
    let mut line = Timeline::new();
    line.send(0..3);
    let mut resent = 0;
    while line.counters().flows > 0 {
        line.now = line.snoop.wake_at();
        resent += line.tick().len();
    }
    assert!(resent as u32 <= SnoopConfig::with_cache(ByteCount::new(0)).retransmissions);
    assert!(line.now >= Time::ZERO + Duration::from_secs(120));
    assert_eq!((line.counters().held_bytes, line.snoop.wake_at()), (0, Time::MAX));
}

#[test]
fn flows_beyond_the_limit_pass() {
    let mut line =
        Timeline::with(SnoopConfig { flows: 2, ..SnoopConfig::with_cache(ByteCount::new(1 << 20)) });
    for source in 1..=3 {
        let segment = Segment { source, ..line.data(0) };
        line.outbound(segment);
    }
    assert_eq!((line.counters().flows, line.counters().flows_passed), (2, 1));
    for _ in 0..3 {
        let ack = Segment { destination: 3, ..line.ack(0, &[]) };
        assert_eq!(line.inbound(ack.clone()), (vec![ack], vec![]));
    }
}

fn arbitrary() -> impl Strategy<Value = (Segment, u64)> {
    // Numbers near each other, near the wrap and anywhere.
    let number = || prop_oneof![8 => (0u32..30).prop_map(|n| n.wrapping_mul(500).wrapping_sub(5000)), 1 => any::<u32>()];
    let header = (1u16..4, 1u16..4, number(), number(), 0u32..1500, 0u16..3);
    let rest = (
        prop_oneof![8 => Just(ACK), 1 => any::<u8>()],
        prop::collection::vec((number(), number()), 0..5),
        0u64..2_000_000_000,
    );
    (header, rest).prop_map(|((source, destination, seq, ack, payload, window), (flags, sack, gap))| {
        (Segment { source, destination, seq, ack, payload, window, flags, sack, says_more: false }, gap)
    })
}

proptest! {
    /// Whatever comes: no panic, nothing from the server is lost or held back, nothing is invented, and the
    /// sums are right.
    #[test]
    fn hostile_segments_do_no_harm(
        events in prop::collection::vec((arbitrary(), any::<bool>()), 1..300),
        cache in 0u64..20_000,
        flows in 0usize..5,
        published in any::<bool>(),
    ) {
        let detection = if published { Detection::Published } else { Detection::Order };
        let config = SnoopConfig { flows, detection, ..SnoopConfig::with_cache(ByteCount::new(cache)) };
        let mut snoop = Snoop::new(&config);
        let mut now = Time::ZERO;
        let mut seen = Vec::new();
        for ((segment, gap), outbound) in events {
            now += Duration::from_nanos(gap);
            let mut out = Outbox::default();
            if snoop.wake_at() <= now {
                snoop.on_timer(now, &mut out);
                prop_assert!(snoop.wake_at() > now && out.to_host.is_empty());
            }
            if outbound {
                seen.push(segment.clone());
                snoop.outbound(now, segment.clone(), &mut out);
                prop_assert_eq!(out.to_link.pop_back(), Some(segment));
            } else {
                snoop.inbound(now, segment.clone(), &mut out);
                let passed = out.to_host.pop_front();
                prop_assert!(out.to_host.is_empty());
                prop_assert!(passed.as_ref().is_none_or(|p| *p == segment || *p == segment.without_sack()));
                // An acknowledgement with something of its own to say is never kept from the sender.
                prop_assert!(passed.is_some() || segment.payload == 0);
            }
            prop_assert!(out.to_link.iter().all(|segment| seen.contains(segment)));
            let held: u64 = snoop.slots.iter().filter_map(|slot| slot.flow.as_ref()).map(|(_, tracked)| tracked.held()).sum();
            prop_assert_eq!(held, snoop.held_bytes());
            prop_assert!(held <= cache && snoop.by_ends.len() <= flows);
        }
        // Left alone, it forgets.
        while snoop.wake_at() < Time::MAX {
            let mut out = Outbox::default();
            now = now.max(snoop.wake_at());
            snoop.on_timer(now, &mut out);
        }
        prop_assert_eq!((snoop.held_bytes(), snoop.by_ends.len()), (0, 0));
    }
}
