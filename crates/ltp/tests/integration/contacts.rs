//! Timers, and links that are not always there.

use std::time::Duration;

use bentpipe_ltp::segment::{Content, Segment};
use bentpipe_ltp::{Color, Failure, Reason};
use bentpipe_units::Rate;

use crate::world::{World, at, block};

const GEO: Duration = Duration::from_millis(300);

/// Loses the first datagram of this kind.
fn lose_first(world: &mut World, is: fn(&Content<'_>) -> bool) {
    let mut is_lost = false;
    world.loses = Box::new(move |_, datagram| {
        let first = !is_lost && is(&Segment::parse(datagram).unwrap().content);
        is_lost |= first;
        first
    });
}

#[test]
fn whatever_is_lost_costs_one_timer() {
    type Is = fn(&Content<'_>) -> bool;
    let kinds: [(&str, Is); 3] = [
        (
            "checkpoint",
            |content| matches!(content, Content::Data(data) if matches!(data.part, bentpipe_ltp::segment::Part::Checkpoint(_))),
        ),
        ("report", |content| matches!(content, Content::Report(_))),
        ("acknowledgement", |content| matches!(content, Content::ReportAck(_))),
    ];
    for (what, is) in kinds {
        let mut world = World::symmetric(Rate::mbps(10), GEO, "0%", 1);
        lose_first(&mut world, is);
        world.send(1, 5000);
        world.run(at(60.0));
        assert_eq!(world.received[1].len(), 1, "{what}");
        assert!(world.sent[0].contains_key(&1), "{what}");
        let timeouts: u64 = world.ends.iter().map(|end| end.statistics().timeouts).sum();
        // The checkpoint's timer and the report's may both be over before the report comes again.
        assert!((1..=2).contains(&timeouts), "{what}: {timeouts}");
        assert!(world.ends.iter().all(|end| end.due().is_none()), "{what}");
    }
}

#[test]
fn timers_stand_still_while_the_peer_cannot_be_heard() {
    let mut world = World::symmetric(Rate::mbps(10), GEO, "0%", 1);
    world.send(1, 5000);
    world.run(at(0.1));
    // The satellite sets, for an hour: what is on its way arrives, and the answer waits.
    let now = world.now;
    world.ends.iter_mut().for_each(|end| end.set_contact(now, false, false));
    world.send(2, 5000);
    world.run(at(3600.0));
    assert_eq!(world.received[1].len(), 1);
    assert!(world.sent[0].is_empty() && world.ends[0].room(world.now).is_none());
    world.now = at(3600.0);
    let now = world.now;
    world.ends.iter_mut().for_each(|end| end.set_contact(now, true, true));
    world.run(at(3700.0));
    assert_eq!((world.received[1].len(), world.sent[0].len()), (2, 2));
    assert!(world.ends.iter().all(|end| end.statistics().timeouts == 0));
}

#[test]
fn a_long_block_on_a_slow_link_is_no_silence() {
    let rate = Rate::from_bps(64_000).unwrap();
    let mut world = World::symmetric(rate, GEO, "0%", 1);
    // Two minutes until its checkpoint.
    world.send(1, 1_000_000);
    world.run_fed(at(120.0), |world| assert!(!world.ends[0].is_silent(world.now)));
    world.run(at(200.0));
    assert!(world.sent[0].contains_key(&1));
}

#[test]
fn after_all_is_given_up_one_block_asks_whether_the_peer_is_there() {
    let mut world = World::symmetric(Rate::mbps(10), GEO, "0%", 1);
    world.loses = Box::new(|_, _| true);
    world.send(1, 5000);
    world.run(at(60.0));
    assert_eq!(world.failed[0].len(), 1);
    assert!(world.ends[0].room(world.now).is_some());
    world.send(2, 5000);
    assert!(world.ends[0].room(world.now).is_none());
    // It answers again.
    world.loses = Box::new(|_, _| false);
    world.run(at(90.0));
    assert!(world.sent[0].contains_key(&2) && world.ends[0].room(world.now).is_some());
}

#[test]
fn timers_follow_a_delay_that_changes() {
    // The probe is farther away than it was: what is sent now is not sent again before it can be answered.
    let mut world = World::symmetric(Rate::mbps(10), Duration::from_secs(20), "0%", 1);
    world.ends.iter_mut().for_each(|end| end.set_one_way(Duration::from_millis(300)));
    world.send(1, 5000);
    world.run(at(30.0));
    assert!(world.ends[0].statistics().timeouts >= 3);
    let mut world = World::symmetric(Rate::mbps(10), Duration::from_secs(20), "0%", 1);
    world.ends.iter_mut().for_each(|end| end.set_one_way(Duration::from_secs(20)));
    world.send(1, 5000);
    world.run(at(100.0));
    assert!(world.ends[0].statistics().timeouts == 0 && world.sent[0].contains_key(&1));
}

#[test]
fn a_peer_that_does_not_answer_is_given_up_and_the_block_is_told() {
    let mut world = World::symmetric(Rate::mbps(10), GEO, "0%", 1);
    world.loses = Box::new(|_, _| true);
    world.send(1, 5000);
    world.run(at(3600.0));
    assert_eq!(world.failed[0], [(1, Failure::Unanswered)]);
    // 11 checkpoints at 1.6 s each.
    assert_eq!(world.ends[0].statistics().timeouts, 10);
    assert!(world.ends[0].due().is_none() && !world.ends[0].in_flight());
}

#[test]
fn a_client_that_refuses_a_block_says_so_to_the_sender() {
    let mut world = World::symmetric(Rate::mbps(10), GEO, "5%", 2);
    world.answer = |_| Some(Err(Reason::System));
    for number in 0..20 {
        world.send(number, 5000);
    }
    world.run(at(600.0));
    let mut failed = world.failed[0].clone();
    failed.sort_by_key(|(handle, _)| *handle);
    assert_eq!(failed.len(), 20);
    assert!(failed.iter().all(|(_, why)| *why == Failure::Cancelled(Reason::System)));
    assert!(world.ends.iter().all(|end| end.due().is_none()));
}

#[test]
fn nothing_is_reported_before_the_client_is_responsible() {
    let mut world = World::symmetric(Rate::mbps(10), GEO, "0%", 1);
    world.answer = |_| None;
    world.send(1, 5000);
    world.run(at(1.0));
    let session = world.received[1][0].0;
    assert!(world.sent[0].is_empty());
    world.ends[1].accepted(session, Ok(()));
    world.run(at(1.5));
    assert!(world.sent[0].contains_key(&1));
}

#[test]
fn a_receiver_that_was_started_anew_loses_nothing() {
    for seed in 0..200 {
        let mut world = World::symmetric(Rate::mbps(10), GEO, "20%", seed);
        world.send(1, 60_000);
        // After the first report, and before the rest has come.
        world.run(at(0.85));
        let had_it = !world.received[1].is_empty();
        let fresh = World::symmetric(Rate::mbps(10), GEO, "0%", seed + 1000);
        let [_, receiver] = fresh.ends;
        world.ends[1] = receiver;
        world.run(at(600.0));
        let has_it = had_it || world.received[1].iter().any(|(_, bytes)| bytes[..] == block(1, 60_000)[..]);
        match world.sent[0].contains_key(&1) {
            true => assert!(has_it, "seed {seed}: said to be there, and is not"),
            false => assert_eq!(world.failed[0].len(), 1, "seed {seed}"),
        }
    }
}

#[test]
fn a_sender_that_gives_up_has_its_handles_again() {
    let mut world = World::symmetric(Rate::mbps(10), GEO, "0%", 1);
    for number in 0..3 {
        world.ends[0].send(number, Color::Red, block(number, 100_000));
    }
    world.run(at(0.1));
    let mut handles = world.ends[0].give_up();
    handles.sort_unstable();
    assert_eq!(handles, [0, 1, 2]);
    assert!(!world.ends[0].in_flight() && world.ends[0].room(world.now).is_some());
    world.run(at(600.0));
    assert!(world.sent[0].is_empty() && world.failed[0].is_empty());
}
