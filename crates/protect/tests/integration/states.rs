//! Silence, restarts, and whatever else a network does to frames.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_link::{DirectionConfig, Impairments};
use bentpipe_protect::leg::ResumeError;
use bentpipe_protect::{Cipher, Class, Config, FrameError, Secret, Sent};
use bentpipe_units::Probability;
use proptest::prelude::*;

use crate::world::{Traffic, World, geo, secret};

const SECOND: Duration = Duration::from_secs(1);

fn both(direction: DirectionConfig, class: Class) -> World {
    let mut world = World::established([direction.clone(), direction], &Config::default(), 11);
    world.traffic = Traffic::Saturating(class);
    world
}

#[test]
fn the_round_trip_is_measured() {
    let world = World::established([geo(0.0), geo(0.0)], &Config::default(), 1);
    for side in &world.sides {
        let rtt = side.leg.rtt().unwrap();
        assert!((Duration::from_millis(599)..Duration::from_millis(603)).contains(&rtt), "{rtt:?}");
    }
}

#[test]
fn a_peer_that_falls_silent_is_known_to_be_within_two_seconds_and_comes_back_in_the_same_session() {
    let mut world = both(geo(0.01), Class::Bulk);
    world.run(5 * SECOND);
    world.sides[1].mute = |_| true;
    // What is in flight still arrives.
    world.run(Duration::from_millis(300) + 2 * SECOND);
    assert!(!world.sides[0].leg.is_alive(world.now));
    assert!(world.sides[1].leg.is_alive(world.now), "the other direction works");
    world.sides[1].mute = |_| false;
    world.run(SECOND);
    assert!(world.sides[0].leg.is_alive(world.now));
    assert!(world.sides.iter().all(|side| side.leg.stats().sessions == 1));
    world.traffic = Traffic::None;
    world.run(5 * SECOND);
    let run = world.summary();
    assert_eq!((run.lost, run.out_of_order), (0, 0));
}

#[test]
fn a_box_that_starts_anew_makes_a_new_session_and_traffic_goes_on() {
    for restarted in [0, 1] {
        let mut world = both(geo(0.01), Class::Bulk);
        world.run(5 * SECOND);
        world.restart(restarted, &Config::default(), 77);
        world.run(5 * SECOND);
        assert!(world.sides.iter().all(|side| side.leg.is_alive(world.now)));
        assert_eq!(world.sides[1 - restarted].leg.stats().sessions, 2);
        let before = world.delivered.len();
        world.run(5 * SECOND);
        // 858 packets a second.
        assert!(world.delivered.len() - before > 4000, "{} packets", world.delivered.len() - before);
        let unknown = |error: &FrameError| matches!(error, FrameError::UnknownKey { .. });
        assert!(
            world.sides.iter().flat_map(|side| &side.errors).all(unknown),
            "only frames of the old session"
        );
    }
}

#[test]
fn an_upgraded_box_goes_on_in_the_session_and_loses_nothing() {
    for upgraded in [0, 1] {
        let mut world = both(geo(0.01), Class::Bulk);
        for upgrade in 0..20 {
            world.run(Duration::from_millis(300 + 7 * upgrade));
            assert_eq!(world.upgrade(upgraded, secret(), 100 + upgrade as u8), Ok(()));
            assert!(world.sides[upgraded].leg.is_alive(world.now));
        }
        world.traffic = Traffic::None;
        world.run(5 * SECOND);
        let run = world.summary();
        assert_eq!((run.lost, run.out_of_order), (0, 0), "{run:?}");
        assert!(world.sides.iter().all(|side| side.leg.stats().sessions == 1 && side.errors.is_empty()));
    }
}

#[test]
fn a_session_does_not_go_on_under_another_secret() {
    let mut world = both(geo(0.0), Class::Bulk);
    world.run(SECOND);
    let other = Secret::new(Cipher::Aes128Gcm, [5; 32]);
    assert_eq!(world.upgrade(0, other, 9), Err(ResumeError::Secret));
    assert!(!world.sides[0].leg.has_session() && world.sides[0].leg.handover().is_none());
}

#[test]
fn without_reports_packets_are_still_delivered_in_order() {
    let mut world = both(geo(0.01), Class::Bulk);
    world.sides[1].mute = |sent| sent == Sent::Report;
    world.run(30 * SECOND);
    world.traffic = Traffic::None;
    world.run(5 * SECOND);
    let run = world.summary();
    // The code works with what it believed before; what it leaves cannot be asked for.
    assert!(run.out_of_order == 0 && run.lost < run.packets / 100, "{run:?}");
    assert!(run.added[3] < 2 * SECOND, "{run:?}");
}

#[test]
fn reordering_and_duplicates_change_nothing() {
    let p = |p| Probability::new(p).unwrap();
    let impairments = Impairments {
        reorder: p(0.05),
        reorder_by: Duration::from_millis(3),
        duplicate: p(0.05),
        ..Impairments::default()
    };
    for class in Class::ALL {
        let mut world = both(DirectionConfig { impairments, ..geo(0.01) }, class);
        world.run(30 * SECOND);
        world.traffic = Traffic::None;
        world.run(5 * SECOND);
        let run = world.summary();
        assert!(run.lost <= 1, "{run:?}");
        assert!(class == Class::Latency || run.out_of_order == 0, "{run:?}");
        let errors = &world.sides[1].errors;
        assert!(
            errors.len() > 500 && errors.iter().all(|error| matches!(error, FrameError::Replayed { .. }))
        );
    }
}

#[test]
fn corrupted_frames_are_refused_and_count_as_lost() {
    let corrupt = Probability::new(0.01).unwrap();
    let mut world = both(geo(0.0), Class::Bulk);
    let mut count = 0u32;
    world.copies = Box::new(move |frame| {
        count += 1;
        let mut copy = frame.to_vec();
        if count.is_multiple_of((1.0 / corrupt.get()) as u32) {
            let index = count as usize % copy.len();
            copy[index] ^= 1 << (count % 8);
        }
        vec![copy]
    });
    world.run(30 * SECOND);
    world.traffic = Traffic::None;
    world.run(5 * SECOND);
    let run = world.summary();
    assert_eq!((run.lost, run.out_of_order), (0, 0), "{run:?}");
    assert!(world.sides[1].errors.len() > 200);
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Pass,
    Drop,
    Twice,
    Hold,
    Release,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => Just(Act::Pass),
        2 => Just(Act::Drop),
        1 => Just(Act::Twice),
        1 => Just(Act::Hold),
        1 => Just(Act::Release),
    ];
    proptest::collection::vec(act, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever is done to frames of both directions, hellos among them: nothing is delivered twice or
    /// changed (the world checks), `bulk` comes in order but for what was skipped, and when the network
    /// behaves again, so do the legs.
    #[test]
    fn whatever_a_network_does_to_frames_legs_recover(acts in acts(), bulk: bool, restart in 0usize..3) {
        let class = if bulk { Class::Bulk } else { Class::Latency };
        let mut world = World::new([geo(0.0), geo(0.0)], &Config::default(), 5);
        world.traffic = Traffic::Bursts(class, 20, Duration::from_millis(50));
        let (mut held, mut index) = (VecDeque::new(), 0);
        let plan = acts.clone();
        world.copies = Box::new(move |frame| {
            index += 1;
            match plan[index % plan.len()] {
                Act::Pass => vec![frame.to_vec()],
                Act::Drop => vec![],
                Act::Twice => vec![frame.to_vec(); 2],
                Act::Hold => {
                    held.push_back(frame.to_vec());
                    vec![]
                }
                Act::Release => held.drain(..).chain([frame.to_vec()]).collect(),
            }
        });
        world.run(5 * SECOND);
        if restart > 0 {
            world.restart(restart - 1, &Config::default(), 99);
        }
        world.run(5 * SECOND);
        world.copies = Box::new(|frame| vec![frame.to_vec()]);
        world.run(4 * SECOND);
        prop_assert!(world.sides.iter().all(|side| side.leg.is_alive(world.now)));
        world.traffic = Traffic::None;
        world.run(3 * SECOND);
        let before = world.packets;
        world.traffic = Traffic::Bursts(class, 10, SECOND);
        world.run(2 * SECOND);
        world.traffic = Traffic::None;
        world.run(3 * SECOND);
        world.summary();
        let last: Vec<u64> =
            world.delivered.iter().map(|delivery| delivery.number).filter(|number| *number >= before).collect();
        prop_assert_eq!(last, (before..world.packets).collect::<Vec<_>>());
    }
}
