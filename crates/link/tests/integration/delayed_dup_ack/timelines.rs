//! One case each; d is 100 ms. Segments are numbered from 0 on in the order in which the host sends them, and
//! leave as (ms, number, with SACK blocks).

use std::time::Duration;

use bentpipe_link::agent::Agent;
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_units::Time;

use crate::delayed_dup_ack::terminal::{ACK, DELAY_MS, FIN, Left, RST, SYN, Segment, Terminal, ack};

const BARE: bool = false;
const SACK: bool = true;

/// An ACK of 1000, and duplicates of it each ms from 1 ms on.
fn with_duplicates(duplicates: u32) -> Terminal {
    let mut terminal = Terminal::new();
    (0..=duplicates).for_each(|ms| terminal.sends(ms, ack(1000)));
    terminal
}

fn bare(left: &[(u32, usize)]) -> Vec<Left> {
    left.iter().map(|&(ms, id)| (ms, id, BARE)).collect()
}

#[test]
fn the_first_two_duplicates_pass_and_the_third_and_later_are_held_for_d_each() {
    let mut terminal = with_duplicates(5);
    assert_eq!(terminal.left_until(102), bare(&[(0, 0), (1, 1), (2, 2)]));
    assert_eq!(terminal.agent.held_bytes(), 3 * 40);
    assert_eq!(terminal.left_until(1000), bare(&[(103, 3), (104, 4), (105, 5)]));
    let counters = terminal.counters();
    assert_eq!((counters.held, counters.released, counters.dropped, counters.held_bytes), (3, 3, 0, 0));
    assert_eq!((counters.most_held_bytes, terminal.agent.wake_at()), (120, Time::MAX));
}

#[test]
fn duplicates_with_something_else_to_say_are_not_held() {
    let mut terminal = Terminal::new();
    (0..6).for_each(|ms| terminal.sends(ms, Segment { says_more: true, ..ack(1000) }));
    assert_eq!(terminal.left_until(1000), bare(&[(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]));
}

#[test]
fn if_the_hole_fills_before_the_timer_held_acknowledgements_are_dropped() {
    let mut terminal = with_duplicates(5);
    terminal.sends(102, ack(9000));
    assert_eq!(terminal.left_until(1000), bare(&[(0, 0), (1, 1), (2, 2), (102, 6)]));
    assert_eq!((terminal.counters().dropped, terminal.agent.held_bytes()), (3, 0));
    assert_eq!(terminal.agent.wake_at(), Time::MAX);
}

#[test]
fn if_the_hole_fills_in_between_held_acknowledgements_are_dropped() {
    let mut terminal = with_duplicates(5);
    terminal.sends(104, ack(2000));
    assert_eq!(terminal.left_until(1000)[3..], bare(&[(103, 3), (104, 4), (104, 6)]));
    assert_eq!((terminal.counters().released, terminal.counters().dropped), (2, 1));
}

#[test]
fn each_hole_has_two_duplicates_that_pass() {
    let mut terminal = with_duplicates(3);
    (50..54).for_each(|ms| terminal.sends(ms, ack(2000)));
    let expected = [(0, 0), (1, 1), (2, 2), (50, 4), (51, 5), (52, 6), (153, 7)];
    assert_eq!(terminal.left_until(1000), bare(&expected));
}

#[test]
fn when_the_sender_has_been_told_nothing_is_held_any_more() {
    let mut terminal = with_duplicates(3);
    assert_eq!(terminal.left_until(103).last(), Some(&(103, 3, BARE)));
    terminal.sends(110, ack(1000));
    assert_eq!(terminal.left_until(1000), bare(&[(110, 4)]));
}

#[test]
fn no_duplicate_overtakes_those_that_wait() {
    let mut terminal = with_duplicates(3);
    terminal.sends(99, ack(1000));
    // The hole is older than d, but two are held, and this one goes behind them.
    terminal.sends(102, ack(1000));
    assert_eq!(terminal.left_until(1000)[3..], bare(&[(103, 3), (199, 4), (202, 5)]));
}

#[test]
fn a_window_update_is_no_duplicate() {
    let mut terminal = with_duplicates(2);
    terminal.sends(3, ack(1000).window(1001));
    terminal.sends(4, ack(1000).window(999));
    terminal.sends(5, ack(1000).window(999));
    assert_eq!(terminal.left_until(50)[3..], bare(&[(3, 3), (4, 4)]));
    assert_eq!(terminal.counters().held, 1, "the third duplicate is the last one");
}

#[test]
fn with_new_sack_blocks_it_is_a_duplicate_whatever_the_window() {
    let mut terminal = Terminal::new();
    terminal.sends(0, ack(1000));
    for ms in 1..5 {
        terminal.sends(ms, ack(1000).window(1000 - ms as u16).sack(2000, 2000 + ms));
    }
    // The same block and another window: an update.
    terminal.sends(5, ack(1000).window(5000).sack(2000, 2004));
    assert_eq!(terminal.left_until(50), bare(&[(0, 0), (1, 1), (2, 2), (5, 5)]));
    assert_eq!(terminal.counters().held, 2);
}

#[test]
fn segments_with_data_or_fin_pass_at_once_and_are_not_counted() {
    let mut terminal = with_duplicates(3);
    terminal.sends(4, ack(1000).payload(10));
    terminal.sends(5, ack(1000).flags(ACK | FIN));
    terminal.sends(6, ack(1000));
    assert_eq!(terminal.left_until(50)[3..], bare(&[(4, 4), (5, 5)]));
    assert_eq!(terminal.left_until(1000), bare(&[(103, 3), (106, 6)]));
}

#[test]
fn data_that_acknowledge_more_fill_the_hole_too() {
    let mut terminal = with_duplicates(3);
    terminal.sends(4, ack(1500).payload(10));
    assert_eq!(terminal.left_until(1000)[3..], bare(&[(4, 4)]));
    assert_eq!(terminal.counters().dropped, 1);
}

#[test]
fn an_old_ack_passes_and_changes_nothing() {
    let mut terminal = with_duplicates(2);
    (3..6).for_each(|ms| terminal.sends(ms, ack(900)));
    terminal.sends(6, ack(1000));
    assert_eq!(terminal.left_until(50)[3..], bare(&[(3, 3), (4, 4), (5, 5)]));
    assert_eq!(terminal.left_until(1000), bare(&[(106, 6)]));
}

#[test]
fn acknowledgement_numbers_wrap() {
    let mut terminal = Terminal::new();
    (0..4).for_each(|ms| terminal.sends(ms, ack(u32::MAX - 10)));
    terminal.sends(4, ack(5));
    terminal.sends(5, ack(u32::MAX - 10));
    (6..9).for_each(|ms| terminal.sends(ms, ack(5).sack(30, 40)));
    let expected = [(0, 0), (1, 1), (2, 2), (4, 4), (5, 5), (6, 6), (7, 7)];
    assert_eq!(terminal.left_until(50), bare(&expected));
    assert_eq!((terminal.counters().dropped, terminal.counters().held), (1, 2));
}

#[test]
fn blocks_across_the_wrap_are_beyond_the_ack_too() {
    let mut terminal = Terminal::new();
    terminal.sends(0, ack(u32::MAX - 10).sack(u32::MAX - 5, 7));
    terminal.sends(1, ack(u32::MAX).sack(3, 7));
    assert_eq!(terminal.left_until(50), bare(&[(0, 0), (1, 1)]));
    assert_eq!(terminal.counters().sack_hidden, 2);
}

#[test]
fn blocks_are_hidden_while_the_hole_is_young_and_shown_when_it_is_not_filled() {
    let mut terminal = Terminal::new();
    terminal.sends(0, ack(1000));
    for ms in 1..5 {
        terminal.sends(ms, ack(1000).sack(2000, 2000 + 1000 * ms));
    }
    terminal.sends(6, ack(1000).payload(10).sack(2000, 6000));
    assert_eq!(terminal.left_until(102), bare(&[(0, 0), (1, 1), (2, 2), (6, 5)]));
    assert_eq!(terminal.counters().sack_hidden, 3);
    // What was held has kept its blocks, and what comes later keeps them.
    assert_eq!(terminal.left_until(110), [(103, 3, SACK), (104, 4, SACK)]);
    terminal.sends(120, ack(1000).sack(2000, 9000));
    terminal.sends(121, ack(1000).payload(10).sack(2000, 9000));
    assert_eq!(terminal.left_until(1000), [(120, 6, SACK), (121, 7, SACK)]);
}

#[test]
fn the_hole_is_as_old_as_its_first_duplicate() {
    let mut terminal = Terminal::new();
    terminal.sends(0, ack(1000));
    terminal.sends(50, ack(1000).sack(2000, 3000));
    terminal.sends(149, ack(1000).sack(2000, 4000));
    terminal.sends(150, ack(1000).sack(2000, 5000));
    assert_eq!(terminal.left_until(1000), [(0, 0, BARE), (50, 1, BARE), (149, 2, BARE), (150, 3, SACK)]);
}

#[test]
fn an_ack_that_advances_with_blocks_shows_the_next_hole() {
    let mut terminal = Terminal::new();
    terminal.sends(0, ack(1000));
    terminal.sends(10, ack(2000).sack(3000, 4000));
    terminal.sends(20, ack(2000).sack(3000, 5000));
    terminal.sends(109, ack(2000).sack(3000, 6000));
    terminal.sends(110, ack(2000).sack(3000, 7000));
    assert_eq!(
        terminal.left_until(1000),
        [(0, 0, BARE), (10, 1, BARE), (20, 2, BARE), (109, 3, BARE), (110, 4, SACK)]
    );
    // Each has its own time: this one begins anew.
    terminal.sends(1000, ack(2500).sack(3000, 7000));
    terminal.sends(1100, ack(2500).sack(3000, 8000));
    assert_eq!(terminal.left_until(2000), [(1000, 5, BARE), (1100, 6, SACK)]);
}

#[test]
fn blocks_are_left_alone_if_that_is_asked() {
    let delay = Duration::from_millis(DELAY_MS.into());
    let mut terminal =
        Terminal::with(DelayedDupAckConfig { hide_sack: false, ..DelayedDupAckConfig::with_delay(delay) });
    (0..5).for_each(|ms| terminal.sends(ms, ack(1000).sack(2000, 3000 + ms)));
    let expected = [(0, 0, SACK), (1, 1, SACK), (2, 2, SACK), (103, 3, SACK), (104, 4, SACK)];
    assert_eq!(terminal.left_until(1000), expected);
    assert_eq!(terminal.counters().sack_hidden, 0);
}

#[test]
fn a_d_sack_alone_tells_of_no_hole() {
    let mut terminal = Terminal::new();
    terminal.sends(0, ack(1000));
    (1..5).for_each(|ms| terminal.sends(ms, ack(1000).sack(500, 600 + ms)));
    // Advancing with one is no hole either.
    terminal.sends(6, ack(2000).sack(1500, 1600));
    let d_sacks = [(1, 1, SACK), (2, 2, SACK), (3, 3, SACK), (4, 4, SACK), (6, 5, SACK)];
    assert_eq!(terminal.left_until(50)[1..], d_sacks);
    // Together with a block beyond the ACK number it is hidden like that.
    terminal.sends(60, ack(2000).sack(3000, 4000).sack(1500, 1600));
    assert_eq!(terminal.left_until(70), bare(&[(60, 6)]));
}

#[test]
fn a_connection_is_joined_in_the_middle() {
    let mut terminal = Terminal::new();
    // In the middle of a hole; the first one cannot be known for a duplicate.
    (0..5).for_each(|ms| terminal.sends(ms, ack(1000).sack(2000, 3000 + ms)));
    assert_eq!(terminal.left_until(50), bare(&[(0, 0), (1, 1), (2, 2)]));
    assert_eq!(terminal.counters().held, 2);
}

#[test]
fn connections_are_kept_apart() {
    let mut terminal = Terminal::new();
    for ms in 0..3 {
        terminal.sends(ms, ack(1000));
        terminal.sends(ms, Segment { source: 8, ..ack(1000) });
        // The other way between the same ends.
        terminal.sends(ms, ack(1000).of_server(500));
    }
    assert_eq!(terminal.left_until(50).len(), 9);
    assert_eq!((terminal.counters().flows, terminal.counters().held), (3, 0));
}

#[test]
fn a_reset_ends_it_from_either_side() {
    for from_host in [true, false] {
        let mut terminal = with_duplicates(4);
        if from_host {
            terminal.sends(10, ack(1000).flags(RST));
        } else {
            terminal.receives(10, ack(0).of_server(1000).flags(RST));
        }
        assert_eq!((terminal.counters().flows, terminal.counters().dropped), (0, 2));
        assert_eq!(terminal.left_until(1000).len(), 3 + usize::from(from_host));
    }
}

#[test]
fn a_syn_begins_another_connection() {
    for from_host in [true, false] {
        let mut terminal = with_duplicates(4);
        if from_host {
            terminal.sends(10, ack(0).flags(SYN));
        } else {
            terminal.receives(10, ack(0).of_server(77).flags(SYN));
        }
        // Below the number of before, and yet not an old one.
        (20..24).for_each(|ms| terminal.sends(ms, ack(78)));
        assert_eq!(terminal.counters().held, 2 + 1, "from the host: {from_host}");
    }
}

#[test]
fn a_finished_and_acknowledged_connection_is_forgotten() {
    let mut terminal = with_duplicates(4);
    // The server's last segment, out of order: 1000 to 2999 are missing. The FIN takes one number.
    terminal.receives(5, ack(500).of_server(3000).payload(100).flags(ACK | FIN));
    terminal.sends(6, ack(3000));
    assert_eq!(terminal.counters().flows, 1);
    terminal.sends(7, ack(3101));
    assert_eq!((terminal.counters().flows, terminal.counters().dropped), (0, 2));
    assert_eq!(terminal.left_until(1000)[3..], bare(&[(6, 5), (7, 6)]));
}

#[test]
fn answers_to_keep_alive_probes_do_not_use_up_the_duplicates_that_pass() {
    let mut terminal = Terminal::new();
    terminal.sends(0, ack(1000));
    [30_000, 60_000, 90_000].into_iter().for_each(|ms| terminal.sends(ms, ack(1000)));
    assert_eq!(terminal.left_until(90_000).len(), 4);
    (92_000..92_004).for_each(|ms| terminal.sends(ms, ack(1000).sack(2000, 3000 + ms)));
    assert_eq!(terminal.left_until(92_050), bare(&[(92_000, 4), (92_001, 5)]));
}

#[test]
fn connections_without_room_pass_as_they_are() {
    let config = DelayedDupAckConfig { flows: 2, ..DelayedDupAckConfig::with_delay(Duration::from_secs(1)) };
    let mut terminal = Terminal::with(config);
    for ms in 0..10 {
        (1..=3).for_each(|source| terminal.sends(ms, Segment { source, ..ack(1000).sack(2000, 3000 + ms) }));
    }
    let counters = terminal.counters();
    assert_eq!((counters.flows, counters.flows_passed, counters.held), (2, 10, 14));
    let with_blocks = terminal.left_until(20).iter().filter(|(_, _, sack)| *sack).count();
    assert_eq!(with_blocks, 10);
}

#[test]
fn idle_connections_make_room() {
    let config = DelayedDupAckConfig { flows: 10, ..DelayedDupAckConfig::with_delay(Duration::from_secs(1)) };
    let mut terminal = Terminal::with(config);
    (0..10).for_each(|source| terminal.sends(0, Segment { source, ..ack(1000) }));
    // One of them goes on; the others are idle for two minutes.
    (1..13).for_each(|times| terminal.sends(times * 10_000, Segment { source: 3, ..ack(1000 + times) }));
    (0..20).for_each(|times| terminal.sends(120_001 + times, Segment { source: 100, ..ack(times) }));
    assert_eq!(terminal.counters().flows, 2);
    assert!(terminal.counters().flows_passed < 10, "{:?}", terminal.counters());
}

#[test]
fn the_oldest_passes_if_too_many_are_held() {
    const MOST: usize = 4096;
    let mut terminal = Terminal::new();
    terminal.sends(0, ack(1000));
    (0..2 + MOST + 3).for_each(|id| terminal.sends(1, ack(1000).sack(2000, 3000 + id as u32)));
    // Three had to go, young as the hole is, and so without blocks.
    assert_eq!(terminal.left_until(50)[3..], bare(&[(1, 3), (1, 4), (1, 5)]));
    let counters = terminal.counters();
    assert_eq!((counters.crowded_out, counters.held_bytes), (3, MOST as u64 * 48));
    let left = terminal.left_until(1000);
    assert!(left.iter().map(|&(_, id, _)| id).eq(6..MOST + 6) && left.iter().all(|&(_, _, sack)| sack));
}

#[test]
fn all_connections_together_hold_a_bounded_number() {
    const MOST: u64 = 65_536;
    let mut terminal = Terminal::new();
    for source in 0..100 {
        (0..1000).for_each(|_| terminal.sends(0, Segment { source, ..ack(1000) }));
    }
    let counters = terminal.counters();
    assert_eq!(counters.held_bytes, MOST * 40);
    assert_eq!((counters.held, counters.crowded_out), (99_700, 99_700 - MOST));
    assert_eq!(terminal.left_until(1000).len(), 100_000, "none is lost");
}
