//! Blocks over links that lose segments.

use std::time::Duration;

use bentpipe_link::{Impairments, LinkConfig};
use bentpipe_ltp::Color;
use bentpipe_units::{Rate, Time};
use proptest::prelude::*;

use crate::world::{World, at, block, config, direction};

const GEO: Duration = Duration::from_millis(300);

#[test]
fn a_block_takes_one_way_and_its_sender_knows_after_a_round_trip() {
    let mut world = World::symmetric(Rate::mbps(100), GEO, "0%", 1);
    world.send(7, 14_000);
    world.run(at(100.0));
    assert_eq!(world.received[1].len(), 1);
    assert_eq!(world.received[1][0].1[..], block(7, 14_000)[..]);
    let knows = world.sent[0][&7].as_secs_f64();
    assert!((0.6..0.61).contains(&knows), "{knows}");
    assert!(world.ends.iter().all(|end| end.due().is_none() && end.statistics().timeouts == 0));
}

/// Payload that arrived in a minute, as a part of what the link can carry in the bytes of datagrams that it
/// does not lose.
fn part_of_limit(rate: Rate, delay: Duration, per: &str, seconds: f64, len: usize) -> f64 {
    let window = 4 * rate.bytes_in(2 * delay);
    let wide = |own| bentpipe_ltp::Config { window, memory: window, ..config(own, delay, rate) };
    let link = LinkConfig::symmetric(direction(rate, delay, per));
    let mut world = World::new([1, 2].map(wide), &link, 3);
    let mut next = 0;
    world.run_fed(at(seconds), |world| {
        while world.ends[0].room(world.now).is_some_and(|room| room >= len as u64) {
            world.send(next, len);
            next += 1;
        }
    });
    for (_, received) in &world.received[1] {
        let number = u64::from_be_bytes(received[..8].try_into().unwrap());
        assert_eq!(received[..], block(number, len)[..]);
    }
    let bytes: usize = world.received[1].iter().map(|(_, block)| block.len()).sum();
    let loss: f64 = per.trim_end_matches('%').parse::<f64>().unwrap() / 100.0;
    let usable = seconds - delay.as_secs_f64();
    bytes as f64 * 8.0 / (rate.bps() as f64 * (1.0 - loss) * usable)
}

#[test]
fn over_a_satellite_it_uses_the_link_whatever_is_lost() {
    for (per, least) in [("0%", 0.95), ("0.1%", 0.94), ("1%", 0.93), ("5%", 0.90)] {
        let part = part_of_limit(Rate::mbps(20), GEO, per, 30.0, 200_000);
        assert!(part > least, "PER {per}: {part}");
    }
}

#[test]
fn eight_minutes_away_it_uses_the_link() {
    let part = part_of_limit(Rate::mbps(1), Duration::from_secs(480), "1%", 7200.0, 100_000);
    // What waits for retransmissions at the end has not arrived whole.
    assert!(part > 0.85, "{part}");
}

#[test]
fn a_green_block_needs_no_way_back() {
    let mut world = World::symmetric(Rate::mbps(10), GEO, "0%", 1);
    world.loses = Box::new(|end, _| end == 1);
    world.ends[0].send(1, Color::Green, block(1, 20_000));
    world.run(at(600.0));
    assert_eq!(world.received[1][0].1[..], block(1, 20_000)[..]);
    assert!(world.sent[0].contains_key(&1));
    assert!(world.ends.iter().all(|end| end.due().is_none()), "nothing is left");
}

#[test]
fn a_green_block_that_loses_a_segment_is_forgotten() {
    let mut world = World::symmetric(Rate::mbps(10), GEO, "0%", 1);
    let mut count = 0;
    world.loses = Box::new(move |_, _| {
        count += 1;
        count == 3
    });
    world.ends[0].send(1, Color::Green, block(1, 20_000));
    world.run(at(600.0));
    assert!(world.received[1].is_empty() && world.ends[1].due().is_none());
}

#[test]
fn a_block_with_more_gaps_than_a_report_has_room_for_arrives() {
    let rate = Rate::mbps(10);
    let link = LinkConfig::symmetric(direction(rate, GEO, "0%"));
    let small = [1, 2].map(|own| bentpipe_ltp::Config { datagram: 120, ..config(own, GEO, rate) });
    let mut world = World::new(small, &link, 1);
    let mut count = 0;
    // Every other segment of data.
    world.loses = Box::new(move |end, datagram| {
        count += usize::from(end == 0 && datagram[0] == 0);
        end == 0 && datagram[0] == 0 && count % 2 == 0 && count < 200
    });
    world.send(5, 20_000);
    world.run(at(60.0));
    assert_eq!(world.received[1][0].1[..], block(5, 20_000)[..]);
    assert!(world.sent[0].contains_key(&5));
    assert_eq!(world.ends[0].statistics().repeated, 99, "what was lost is sent again, once");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    /// Whatever a link does to them, all blocks arrive, once and unchanged, at both ends.
    #[test]
    fn every_block_arrives_once(
        sizes in prop::collection::vec(1..40_000usize, 1..12),
        per in 0..30u32,
        reorder in 0..20u32,
        duplicate in 0..20u32,
        seed: u64,
    ) {
        let rate = Rate::mbps(10);
        let mut way = direction(rate, Duration::from_millis(50), &format!("{per}%"));
        way.impairments = Impairments {
            reorder: format!("{reorder}%").parse().unwrap(),
            reorder_by: Duration::from_millis(9),
            duplicate: format!("{duplicate}%").parse().unwrap(),
            ..Impairments::default()
        };
        let configs = [1, 2].map(|own| {
            bentpipe_ltp::Config { retries: 100, ..config(own, Duration::from_millis(50), rate) }
        });
        let mut world = World::new(configs, &LinkConfig::symmetric(way), seed);
        for (number, len) in sizes.iter().enumerate() {
            world.ends[number % 2].send(number as u64, Color::Red, block(number as u64, *len));
        }
        world.run(Time::MAX);
        for end in 0..2 {
            let mut arrived: Vec<&[u8]> = world.received[1 - end].iter().map(|(_, block)| &block[..]).collect();
            arrived.sort();
            let numbers = (0..sizes.len()).filter(|number| number % 2 == end);
            let mut blocks: Vec<_> = numbers.map(|number| block(number as u64, sizes[number])).collect();
            blocks.sort();
            prop_assert!(arrived.iter().map(|block| block.to_vec()).eq(blocks.iter().map(|block| block.to_vec())));
            prop_assert_eq!(world.sent[end].len(), blocks.len());
            prop_assert!(world.failed[end].is_empty());
            prop_assert!(!world.ends[end].in_flight());
        }
    }
}
