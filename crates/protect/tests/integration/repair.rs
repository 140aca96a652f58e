//! What is left of losses, what that costs, and how long it takes, over GEO: 10 Mbit/s, 600 ms of round trip,
//! 200 seconds as fast as the link carries packets of 1400 bytes. `cargo test … -- --nocapture` prints the
//! figures.

use std::time::Duration;

use bentpipe_link::{DirectionConfig, GilbertElliott};
use bentpipe_protect::{Class, Config};
use bentpipe_units::Probability;

use crate::world::{Summary, Traffic, World, geo};

/// Bursts of 20 packets in the mean, in which all are lost, so many that this share is lost.
fn bursts_of_20(share: f64) -> DirectionConfig {
    let p = |p| Probability::new(p).unwrap();
    let gilbert_elliott = GilbertElliott {
        good_to_bad: p(share / 20.0 / (1.0 - share)),
        bad_to_good: p(1.0 / 20.0),
        loss_in_good: p(0.0),
        loss_in_bad: p(1.0),
        slot: None,
    };
    DirectionConfig { gilbert_elliott: Some(gilbert_elliott), ..geo(0.0) }
}

fn saturate(name: &str, direction: DirectionConfig, class: Class) -> Summary {
    let mut world = World::established([direction.clone(), direction], &Config::default(), 7);
    world.traffic = Traffic::Saturating(class);
    world.run(Duration::from_secs(200));
    world.traffic = Traffic::None;
    world.run(Duration::from_secs(5));
    let summary = world.summary();
    let [gateway, terminal] = world.sides.each_ref().map(|side| side.leg.stats());
    println!("{class:?}, {name}: {summary:?}\n  {:?}\n  {:?}", gateway.sender, terminal.receiver);
    assert!(world.sides.iter().all(|side| side.errors.is_empty()));
    summary
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn without_losses_a_leg_costs_less_than_two_percent_and_delays_nothing() {
    for class in Class::ALL {
        let run = saturate("PER 0", geo(0.0), class);
        assert_eq!((run.lost, run.out_of_order), (0, 0));
        assert!(run.repair + run.retransmission + run.reports < 0.005, "{run:?}");
        assert!(run.added[3] < Duration::from_micros(200), "{run:?}");
    }
}

#[test]
fn bulk_at_one_percent_loses_nothing_for_three_percent_of_repair_symbols() {
    let run = saturate("PER 1%", geo(0.01), Class::Bulk);
    // 1.6e5 packets: one would be 6e-6.
    assert!(run.lost <= 1 && run.out_of_order == 0, "{run:?}");
    assert!(run.repair < 0.04 && run.retransmission < 0.003, "{run:?}");
    assert!(run.added[1] < millis(250) && run.added[3] < millis(1000), "{run:?}");
}

#[test]
fn bulk_at_five_percent_loses_nothing_for_a_tenth() {
    let run = saturate("PER 5%", geo(0.05), Class::Bulk);
    assert!(run.lost <= 2 && run.out_of_order == 0, "{run:?}");
    assert!(run.repair < 0.14 && run.retransmission < 0.01, "{run:?}");
    assert!(run.added[1] < millis(400) && run.added[3] < millis(1000), "{run:?}");
}

#[test]
fn bulk_with_bursts_of_20_sends_them_again_and_wastes_no_code() {
    let run = saturate("bursts of 20, 1%", bursts_of_20(0.01), Class::Bulk);
    assert!(run.lost as f64 <= 1e-3 * run.packets as f64, "{run:?}");
    assert!(run.repair < 0.05 && run.retransmission < 0.015, "{run:?}");
    assert!(run.added[3] < millis(1200), "{run:?}");
}

#[test]
fn latency_repairs_within_an_eighth_of_a_round_trip_and_never_waits_for_others() {
    let run = saturate("PER 1%", geo(0.01), Class::Latency);
    assert!(run.lost <= 2, "{run:?}");
    assert!(run.repair < 0.09 && run.retransmission == 0.0, "{run:?}");
    assert!(run.added[1] < millis(1) && run.added[2] < millis(75), "{run:?}");
    let run = saturate("PER 5%", geo(0.05), Class::Latency);
    assert!(run.lost <= 5 && run.repair < 0.25 && run.added[2] < millis(75), "{run:?}");
}

#[test]
fn the_end_of_each_burst_of_traffic_is_repaired_without_waiting_for_the_next_one() {
    for (class, longest) in [(Class::Latency, millis(40)), (Class::Bulk, millis(1000))] {
        let mut world = World::established([geo(0.05), geo(0.05)], &Config::default(), 3);
        world.traffic = Traffic::Bursts(class, 5, Duration::from_secs(3));
        world.run(Duration::from_secs(600));
        world.traffic = Traffic::None;
        world.run(Duration::from_secs(5));
        let run = world.summary();
        println!("{class:?}, five packets each three seconds, PER 5%: {run:?}");
        assert_eq!(run.packets, 1005);
        assert!(run.lost <= 2 && run.added[2] < longest, "{run:?}");
    }
}

/// Share of the link's rate that the data of one connection gets in a minute.
fn connection(name: &str, direction: DirectionConfig) -> f64 {
    let mut world = World::established([direction.clone(), direction], &Config::default(), 7);
    world.connect();
    world.run(Duration::from_secs(60));
    let connection = world.connection.as_ref().unwrap();
    let share = connection.read as f64 * 8.0 / 60.0 / 10e6;
    println!("a connection with CUBIC, {name}: {share:.3}, {} dropped by the queue", connection.queue_drops);
    share
}

/// TCP stands for QUIC, which is not in virtual time. Headers and the start take 14% of the link without any
/// loss.
#[test]
fn a_connection_with_cubic_hardly_notices_losses() {
    let clean = connection("PER 0", geo(0.0));
    assert!(clean > 0.84, "{clean}");
    for (name, direction, least) in [
        ("PER 1%", geo(0.01), 0.95),
        ("PER 5%", geo(0.05), 0.85),
        ("bursts of 20, 1%", bursts_of_20(0.01), 0.85),
    ] {
        let share = connection(name, direction);
        assert!(share > least * clean, "{name}: {share} of {clean}");
    }
}
