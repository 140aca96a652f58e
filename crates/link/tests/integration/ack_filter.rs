//! Timelines of the ACK filter. The way back carries an ACK without SACK blocks in 10 ms.

use std::time::Duration;

use bentpipe_link::agent::ack_filter::{AckFilter, AckFilterConfig, AckFilterCounters};
use bentpipe_link::agent::{Agent, AgentReport, Outbox};
use bentpipe_units::{Rate, Time};
use proptest::prelude::*;

use crate::delayed_dup_ack::terminal::{ACK, FIN, HOST, RST, SYN, Segment, ack};

const ECE: u8 = 0x40;
const DELAY_MS: u64 = 50;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// A filter and what has left it.
struct Terminal {
    filter: AckFilter<Segment>,
    now: Time,
    left: Vec<(u64, Segment)>,
}

impl Terminal {
    fn with_flows(flows: usize) -> Self {
        let (rate, delay) = (Rate::from_bps(32_000).unwrap(), Duration::from_millis(DELAY_MS));
        let filter = AckFilter::new(&AckFilterConfig { rate, delay, flows });
        Self { filter, now: Time::ZERO, left: Vec::new() }
    }

    fn sends(&mut self, at_ms: u64, segment: Segment) {
        self.until(at(at_ms));
        let mut out = Outbox::default();
        self.filter.outbound(self.now, segment, &mut out);
        self.take(out);
    }

    fn until(&mut self, until: Time) {
        while self.filter.wake_at() <= until {
            self.now = self.now.max(self.filter.wake_at());
            let mut out = Outbox::default();
            self.filter.on_timer(self.now, &mut out);
            self.take(out);
        }
        self.now = self.now.max(until);
    }

    fn take(&mut self, out: Outbox<Segment>) {
        let ms = self.now.as_nanos() / 1_000_000;
        self.left.extend(out.to_link.into_iter().map(|segment| (ms, segment)));
    }

    /// When which acknowledgement numbers have left.
    fn left_until(&mut self, at_ms: u64) -> Vec<(u64, u32)> {
        self.until(at(at_ms));
        std::mem::take(&mut self.left).into_iter().map(|(ms, segment)| (ms, segment.ack)).collect()
    }

    fn counters(&self) -> AckFilterCounters {
        match self.filter.report() {
            AgentReport::AckFilter(counters) => counters,
            other => panic!("{other:?}"),
        }
    }
}

fn terminal() -> Terminal {
    Terminal::with_flows(10)
}

#[test]
fn acks_that_the_link_can_carry_leave_at_once() {
    let mut terminal = terminal();
    (0..5).for_each(|n| terminal.sends(10 * n, ack(n as u32)));
    assert_eq!(terminal.left_until(40), [(0, 0), (10, 1), (20, 2), (30, 3), (40, 4)]);
    assert_eq!((terminal.counters().passed, terminal.counters().held), (5, 0));
}

#[test]
fn of_more_acks_the_newest_leave_as_fast_as_the_link_carries_them_and_the_last_one_always_does() {
    let mut terminal = terminal();
    (0..30).for_each(|n| terminal.sends(n, ack(n as u32)));
    assert_eq!(terminal.left_until(1000), [(0, 0), (10, 9), (20, 19), (30, 29)]);
    let AckFilterCounters { passed, held, released, superseded, .. } = terminal.counters();
    assert_eq!((passed, held, released, superseded), (1, 29, 3, 26));
    assert_eq!(terminal.filter.held_bytes(), 0);
}

#[test]
fn a_duplicate_ack_with_newer_sack_blocks_replaces_one_of_the_same_number() {
    let mut terminal = terminal();
    terminal.sends(0, ack(1000));
    terminal.sends(1, ack(1000).sack(2000, 3000));
    terminal.sends(2, ack(1000).sack(2000, 4000));
    terminal.sends(3, ack(1000).sack(2000, 4000).sack(5000, 6000));
    terminal.until(at(100));
    let left: Vec<_> = terminal.left.iter().map(|(ms, segment)| (*ms, segment.sack.clone())).collect();
    assert_eq!(left, [(0, vec![]), (10, vec![(5000, 6000), (2000, 4000)])]);
}

#[test]
fn an_ack_with_a_block_that_newer_ones_leave_out_stays_in_front_of_them() {
    let mut terminal = terminal();
    terminal.sends(0, ack(1000));
    // The receiver has no room for all blocks.
    for block in [2000, 4000, 6000] {
        terminal.sends(1, ack(1000).sack(block, block + 1000));
    }
    terminal.sends(3, ack(2000).sack(6000, 7000));
    terminal.until(at(200));
    let left: Vec<_> = terminal.left.iter().map(|(_, segment)| (segment.ack, segment.sack.clone())).collect();
    let of = |ack, start| (ack, vec![(start, start + 1000)]);
    assert_eq!(left, [(1000, vec![]), of(1000, 2000), of(1000, 4000), of(2000, 6000)]);
    assert_eq!(terminal.counters().superseded, 1, "the older one with the same block");
}

#[test]
fn no_more_than_four_acks_of_a_flow_wait() {
    let mut terminal = terminal();
    terminal.sends(0, ack(1000));
    (1..=5).for_each(|n| terminal.sends(1, ack(1000).sack(2000 * n, 2000 * n + 1000)));
    let left: Vec<_> = terminal.left.iter().map(|(ms, segment)| (*ms, segment.sack.clone())).collect();
    assert_eq!(left, [(0, vec![]), (1, vec![(2000, 3000)])]);
    assert_eq!(terminal.filter.held_bytes(), 4 * 48);
}

#[test]
fn a_d_sack_is_said_once_and_never_dropped() {
    let mut terminal = terminal();
    terminal.sends(0, ack(5000));
    // Below the acknowledgement, and within the second block.
    terminal.sends(1, ack(5000).sack(3000, 4000));
    terminal.sends(2, ack(5000).sack(6000, 9000).sack(7000, 8000));
    terminal.sends(3, ack(9000));
    assert_eq!(
        terminal.left_until(500).iter().map(|left| left.1).collect::<Vec<_>>(),
        [5000, 5000, 5000, 9000]
    );
}

#[test]
fn duplicates_without_blocks_are_counted_by_their_sender_until_the_number_advances() {
    let mut terminal = terminal();
    (0..4).for_each(|_| terminal.sends(0, ack(1000)));
    assert_eq!(terminal.left_until(35), [(0, 1000), (10, 1000), (20, 1000), (30, 1000)]);
    terminal.sends(41, ack(2000));
    (0..3).for_each(|_| terminal.sends(42, ack(2000)));
    terminal.sends(43, ack(3000));
    assert_eq!(terminal.left_until(100), [(41, 2000), (51, 3000)], "the hole is filled");
}

#[test]
fn the_newest_window_and_each_change_of_ecns_echo_reach_the_sender() {
    let mut terminal = terminal();
    terminal.sends(0, ack(1000));
    terminal.sends(1, ack(1000).window(0));
    terminal.sends(2, ack(1000).window(900));
    terminal.sends(3, ack(2000).flags(ACK | ECE));
    terminal.sends(4, ack(3000).flags(ACK | ECE));
    terminal.sends(5, ack(4000));
    terminal.until(at(100));
    let left = terminal.left.iter().map(|(_, segment)| (segment.ack, segment.window, segment.flags));
    let expected = [(1000, 1000, ACK), (1000, 900, ACK), (3000, 1000, ACK | ECE), (4000, 1000, ACK)];
    assert_eq!(left.collect::<Vec<_>>(), expected);
}

#[test]
fn an_ack_that_was_overtaken_is_dropped() {
    let mut terminal = terminal();
    terminal.sends(0, ack(1000));
    terminal.sends(1, ack(3000));
    terminal.sends(2, ack(2000));
    assert_eq!(terminal.left_until(100), [(0, 1000), (10, 3000)]);
}

#[test]
fn data_and_control_segments_pass_at_once_behind_what_they_do_not_say() {
    for segment in [ack(3000).payload(100), ack(3000).flags(ACK | FIN)] {
        let mut terminal = terminal();
        terminal.sends(0, ack(1000));
        terminal.sends(1, ack(2000));
        terminal.sends(2, segment);
        assert_eq!(terminal.left_until(100), [(0, 1000), (2, 3000)], "they acknowledge as well");
    }
    for segment in
        [ack(0).flags(RST), ack(0).flags(SYN), Segment { says_more: true, ..ack(2000).sack(5000, 6000) }]
    {
        let mut terminal = terminal();
        terminal.sends(0, ack(1000));
        terminal.sends(1, ack(2000).sack(7000, 8000));
        terminal.sends(2, segment.clone());
        assert_eq!(terminal.left_until(100), [(0, 1000), (2, 2000), (2, segment.ack)]);
    }
}

#[test]
fn flows_take_turns_and_those_beyond_the_limit_pass() {
    let of = |flow: u16, number| Segment { source: HOST + flow, ..ack(number) };
    let mut terminal = Terminal::with_flows(2);
    for ms in 0..3 {
        (0..3).for_each(|flow| terminal.sends(ms, of(flow, 10 * u32::from(flow) + ms as u32)));
    }
    // The first ACK of flow 0 passes; flows 1 and 2 wait; those of flow 0 have no room.
    assert_eq!(terminal.left_until(2), [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(terminal.left_until(100), [(30, 12), (40, 22)]);
    assert_eq!(terminal.counters().flows_passed, 2);
}

#[test]
fn where_data_fill_the_link_acks_wait_for_the_delay_at_most() {
    let mut terminal = terminal();
    let data = Segment { source: HOST + 1, ..ack(1).payload(1460) };
    for ms in 0..200 {
        terminal.sends(ms, data.clone());
        terminal.sends(ms, ack(1000 + ms as u32));
    }
    let left = terminal.left_until(1000);
    let acks: Vec<_> = left.into_iter().filter(|(_, ack)| *ack >= 1000).collect();
    assert_eq!(acks, [(50, 1049), (100, 1099), (150, 1149), (200, 1199)]);
}

#[test]
fn what_waits_leaves_when_the_agent_is_removed() {
    let mut terminal = terminal();
    (0..3).for_each(|n| terminal.sends(0, ack(n)));
    let mut out = Outbox::default();
    terminal.filter.flush(&mut out);
    assert_eq!((out.to_link.pop_front(), out.to_link.len()), (Some(ack(2)), 0));
    assert_eq!((terminal.filter.held_bytes(), terminal.filter.wake_at()), (0, Time::MAX));
}

fn segment() -> impl Strategy<Value = Segment> {
    let flags = prop_oneof![20 => Just(ACK), 2 => Just(ACK | ECE), 1 => Just(ACK | FIN), 1 => Just(SYN), 1 => Just(RST)];
    let sack = prop::collection::vec((0..20u32, 1..5u32), 0..4);
    let payload = prop_oneof![8 => Just(0u32), 1 => 1..2000u32];
    (0..3u16, 0..20u32, payload, 0..3u16, flags, sack, prop::bool::weighted(0.05)).prop_map(
        |(flow, number, payload, window, flags, sack, says_more)| Segment {
            source: HOST + flow,
            payload,
            window,
            flags,
            sack: sack.into_iter().map(|(start, length)| (start, start + length)).collect(),
            says_more,
            ..ack(number)
        },
    )
}

/// Whether a segment says of a flow what another one does: the number, and each block.
fn says(one: &Segment, other: &Segment) -> bool {
    let within = |&(start, end): &(u32, u32)| {
        end <= one.ack || one.sack.iter().any(|&(from, to)| from <= start && end <= to)
    };
    one.source == other.source
        && one.flags & ACK != 0
        && one.ack >= other.ack
        && other.sack.iter().all(within)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_is_dropped_but_acks_that_another_segment_says(
        segments in prop::collection::vec((segment(), 0..30u64), 1..200),
        flows in 1..4usize,
    ) {
        let mut terminal = Terminal::with_flows(flows);
        let mut ms = 0;
        for (id, (segment, gap)) in segments.iter().enumerate() {
            ms += gap;
            terminal.sends(ms, segment.clone().id(id));
        }
        terminal.until(at(ms + 1_000_000));
        let AckFilterCounters { held, released, superseded, held_bytes, .. } = terminal.counters();
        prop_assert_eq!((held, held_bytes), (released + superseded, 0));
        let left: Vec<&Segment> = terminal.left.iter().map(|(_, segment)| segment).collect();
        let mut missing = 0;
        for (id, (segment, _)) in segments.iter().enumerate() {
            match left.iter().filter(|other| other.id == id).count() {
                1 => continue,
                count => prop_assert_eq!(count, 0, "twice: {:?}", segment),
            }
            missing += 1;
            let is_pure_ack = segment.flags & !ECE == ACK && segment.payload == 0 && !segment.says_more;
            prop_assert!(is_pure_ack && left.iter().any(|other| says(other, segment)), "lost: {segment:?}");
        }
        prop_assert_eq!(missing, superseded);
        for flow in 0..3 {
            let of_flow = left.iter().filter(|segment| segment.source == HOST + flow);
            prop_assert!(of_flow.map(|segment| segment.id).is_sorted(), "a flow keeps its order");
        }
    }
}
