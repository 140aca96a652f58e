//! What a packet meets on its way, seen from outside.

use std::num::NonZeroU64;
use std::time::Duration;

use bentpipe_link::{
    Cause, Direction, DirectionConfig, Encapsulation, Fate, GilbertElliott, Link, LinkConfig, OutageTrace,
    PrescribedLosses,
};
use bentpipe_units::{ByteCount, Probability, Rate, Time};
use proptest::prelude::*;

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1000)
}

fn probability(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

/// 10 Mbit/s, on which a full-size packet takes 1.2 ms, with a delay of 300 ms.
fn geo() -> DirectionConfig {
    DirectionConfig { rate: Some(Rate::mbps(10)), delay: Duration::from_millis(300), ..Default::default() }
}

fn outage(start_us: u64, length_us: u64) -> OutageTrace {
    [(at(start_us), Duration::from_micros(length_us))].into_iter().collect()
}

fn bursts() -> GilbertElliott {
    GilbertElliott {
        good_to_bad: probability(0.02),
        bad_to_good: probability(0.25),
        loss_in_good: probability(0.001),
        loss_in_bad: probability(0.7),
        slot: None,
    }
}

/// The fates of `n` full-size packets, offered one every 2 ms, so that none has to wait.
fn fates(config: &DirectionConfig, seed: u64, n: u64) -> Vec<Fate> {
    let mut direction = Direction::new(config, seed);
    (0..n).map(|i| direction.offer(at(2000 * i), 1500)).collect()
}

fn is_delivered(fate: &Fate) -> bool {
    matches!(fate, Fate::Deliver { .. })
}

#[test]
fn an_ideal_direction_delivers_at_once() {
    let mut direction = Direction::new(&DirectionConfig::default(), 0);
    for _ in 0..1000 {
        assert_eq!(direction.offer(at(5), 65_535), Fate::Deliver { at: at(5) });
    }
    assert_eq!(direction.backlog(at(5)), ByteCount::new(0));
}

#[test]
fn back_to_back_packets_leave_1200_microseconds_apart_at_10_mbit() {
    let mut direction = Direction::new(&geo(), 0);
    for i in 1..=100 {
        assert_eq!(direction.offer(at(0), 1500), Fate::Deliver { at: at(1200 * i + 300_000) });
    }
    assert_eq!(direction.backlog(at(0)), ByteCount::new(150_000));
    assert_eq!(direction.backlog(at(60_000)), ByteCount::new(75_000));
    assert_eq!(direction.backlog(at(120_000)), ByteCount::new(0));
}

#[test]
fn a_packet_behind_a_full_queue_is_dropped() {
    let mut direction = Direction::new(&DirectionConfig { queue: Some(ByteCount::new(15_000)), ..geo() }, 0);
    let fates: Vec<_> = (0..12).map(|_| direction.offer(at(0), 1500)).collect();
    assert!(fates[..10].iter().all(is_delivered));
    assert_eq!(fates[10..], [Fate::Drop(Cause::QueueFull); 2]);
    assert_eq!(direction.offer(at(1199), 1500), Fate::Drop(Cause::QueueFull));
    assert!(is_delivered(&direction.offer(at(1200), 1500)), "one packet has left");
    assert_eq!(direction.counters().dropped(Cause::QueueFull), 3);
}

fn prescribed<const N: usize>(numbers: [u64; N]) -> PrescribedLosses {
    numbers.into_iter().map(|number| NonZeroU64::new(number).unwrap()).collect()
}

#[test]
fn prescribed_losses_hit_the_packets_with_these_numbers_and_no_other() {
    let losses = prescribed([7, 3, 4, 3]);
    let fates = fates(&DirectionConfig { losses, ..geo() }, 1, 10);
    let lost: Vec<usize> =
        (1..).zip(&fates).filter(|(_, fate)| !is_delivered(fate)).map(|(at, _)| at).collect();
    assert_eq!(lost, [3, 4, 7]);
    assert!(lost.iter().all(|at| fates[at - 1] == Fate::Drop(Cause::PacketError)));
}

#[test]
fn a_packet_that_the_queue_drops_has_no_number_and_one_lost_in_an_outage_has() {
    let config = DirectionConfig {
        queue: Some(ByteCount::new(3000)),
        outages: outage(0, 1300),
        losses: prescribed([3]),
        ..geo()
    };
    let mut direction = Direction::new(&config, 0);
    let fates: Vec<_> = [0, 0, 0, 0, 9000, 9000].map(|micros| direction.offer(at(micros), 1500)).to_vec();
    let lost = |cause| Fate::Drop(cause);
    assert_eq!(fates[0], lost(Cause::Outage));
    assert_eq!(fates[2..5], [lost(Cause::QueueFull), lost(Cause::QueueFull), lost(Cause::PacketError)]);
    assert!(is_delivered(&fates[1]) && is_delivered(&fates[5]));
}

#[test]
fn a_prescribed_loss_does_not_move_the_random_ones() {
    let random = DirectionConfig { per: probability(0.05), gilbert_elliott: Some(bursts()), ..geo() };
    let both = DirectionConfig { losses: prescribed([10, 500]), ..random.clone() };
    let (random, both) = (fates(&random, 4, 1000), fates(&both, 4, 1000));
    for (number, (random, both)) in (1..).zip(random.iter().zip(&both)) {
        assert_eq!(is_delivered(both), is_delivered(random) && ![10, 500].contains(&number), "{number}");
    }
}

#[test]
fn the_default_queue_is_one_bdp_and_at_least_16_packets() {
    assert_eq!(geo().queue_limit(), Some(ByteCount::new(750_000)));
    let short = DirectionConfig { delay: Duration::ZERO, ..geo() };
    assert_eq!(short.queue_limit(), Some(ByteCount::new(16 * 1500)));
    let mpe = DirectionConfig { encapsulation: Encapsulation::dvb_mpe(), ..short };
    assert_eq!(mpe.queue_limit(), Some(ByteCount::new(16 * 1692)), "the limit is in wire bytes");
    assert_eq!(DirectionConfig::default().queue_limit(), None);

    let mut direction = Direction::new(&geo(), 0);
    let accepted = (0..1000).filter(|_| is_delivered(&direction.offer(at(0), 1500))).count();
    assert_eq!(accepted, 500);
}

#[test]
fn encapsulation_takes_its_share_of_the_rate() {
    let config = DirectionConfig { encapsulation: Encapsulation::dvb_mpe(), ..geo() };
    let mut direction = Direction::new(&config, 0);
    assert_eq!(direction.offer(at(0), 1500), Fate::Deliver { at: Time::from_nanos(301_353_600) });
    let counters = direction.counters();
    assert_eq!((counters.wire_bytes, counters.delivered_bytes), (1692, 1500));
}

#[test]
fn an_outage_loses_packets_that_leave_during_it() {
    // Packet i leaves at 2000·i + 1200 µs. The outage begins as the third leaves and ends as the fifth does.
    let config = DirectionConfig { outages: outage(5200, 4000), ..geo() };
    let delivered: Vec<_> = fates(&config, 0, 6).iter().map(is_delivered).collect();
    assert_eq!(delivered, [true, true, false, false, true, true]);
}

#[test]
fn a_lost_packet_takes_its_time_on_the_transmitter() {
    let mut direction = Direction::new(&DirectionConfig { outages: outage(0, 1201), ..geo() }, 0);
    assert_eq!(direction.offer(at(0), 1500), Fate::Drop(Cause::Outage));
    assert_eq!(direction.offer(at(0), 1500), Fate::Deliver { at: at(302_400) });
    assert_eq!(direction.counters().wire_bytes, 3000);
}

#[test]
fn of_several_causes_the_first_in_order_is_counted() {
    let always = probability(1.0);
    let bad = GilbertElliott {
        good_to_bad: always,
        bad_to_good: always,
        loss_in_good: always,
        loss_in_bad: always,
        slot: None,
    };
    let mut config =
        DirectionConfig { queue: Some(ByteCount::new(0)), outages: outage(0, 10_000), per: always, ..geo() };
    config.gilbert_elliott = Some(bad);
    let mut direction = Direction::new(&config, 0);
    assert_eq!(direction.offer(at(0), 1500), Fate::Drop(Cause::Outage));
    assert_eq!(direction.offer(at(0), 1500), Fate::Drop(Cause::QueueFull));
    assert_eq!(direction.offer(at(20_000), 1500), Fate::Drop(Cause::BurstError));
    let mut direction = Direction::new(&DirectionConfig { gilbert_elliott: None, ..config }, 0);
    assert_eq!(direction.offer(at(20_000), 1500), Fate::Drop(Cause::PacketError));
}

#[test]
fn a_clock_that_goes_back_is_taken_as_the_latest_time() {
    let mut direction = Direction::new(&DirectionConfig { delay: Duration::ZERO, ..geo() }, 0);
    assert_eq!(direction.offer(at(5000), 1500), Fate::Deliver { at: at(6200) });
    assert_eq!(direction.offer(at(0), 1500), Fate::Deliver { at: at(7400) });
    assert_eq!(direction.backlog(at(0)), ByteCount::new(3000));
}

#[test]
fn a_seed_repeats_its_fates_and_another_does_not() {
    let config = DirectionConfig { per: probability(0.1), gilbert_elliott: Some(bursts()), ..geo() };
    assert_eq!(fates(&config, 7, 10_000), fates(&config, 7, 10_000));
    assert_ne!(fates(&config, 7, 10_000), fates(&config, 8, 10_000));
}

#[test]
fn an_effect_does_not_change_which_packets_another_one_hits() {
    let per = DirectionConfig { per: probability(0.1), ..geo() };
    let burst = DirectionConfig { gilbert_elliott: Some(bursts()), ..geo() };
    let mut all = DirectionConfig { gilbert_elliott: Some(bursts()), ..per.clone() };
    all.outages = outage(3_000_000, 4_000_000);

    let alone = fates(&per, 3, 10_000).into_iter().zip(fates(&burst, 3, 10_000));
    for (i, (together, (per, burst))) in fates(&all, 3, 10_000).into_iter().zip(alone).enumerate() {
        let expected = match (all.outages.covers(at(2000 * i as u64 + 1200)), burst, per) {
            (true, _, _) => Fate::Drop(Cause::Outage),
            (false, Fate::Drop(_), _) => burst,
            (false, Fate::Deliver { .. }, _) => per,
        };
        assert_eq!(together, expected, "packet {i}");
    }
}

#[test]
fn the_directions_do_not_disturb_each_other() {
    let config = DirectionConfig { per: probability(0.2), ..geo() };
    let config = LinkConfig { forward: config.clone(), reverse: config };
    let (mut busy, mut quiet) = (Link::new(&config, 5), Link::new(&config, 5));
    for i in 0..1000 {
        busy.forward.offer(at(i), 1500);
        assert_eq!(busy.reverse.offer(at(2000 * i), 40), quiet.reverse.offer(at(2000 * i), 40));
    }
    assert_eq!(quiet.forward.counters().offered, 0);
}

/// Any direction, from ideal to hopeless.
fn any_config() -> impl Strategy<Value = DirectionConfig> {
    let p = || (0.0..=1.0f64).prop_map(probability);
    let chain = (p(), p(), p(), p()).prop_map(|(good_to_bad, bad_to_good, loss_in_good, loss_in_bad)| {
        GilbertElliott { good_to_bad, bad_to_good, loss_in_good, loss_in_bad, slot: None }
    });
    let outages = prop::collection::vec((0u64..1_000_000, 0u64..100_000), 0..10).prop_map(|rows| {
        rows.into_iter().map(|(start, length)| (at(start), Duration::from_micros(length))).collect()
    });
    let encapsulation = prop::sample::select(vec![
        Encapsulation::default(),
        Encapsulation::dvb_mpe(),
        Encapsulation::aal5_atm(),
    ]);
    let rate = prop::option::of((1_000u64..1_000_000_000).prop_map(|bps| Rate::from_bps(bps).unwrap()));
    let queue = prop::option::of((0u64..100_000).prop_map(ByteCount::new));
    (rate, 0u64..1_000_000, queue, p(), prop::option::of(chain), outages, encapsulation).prop_map(
        |(rate, delay_us, queue, per, gilbert_elliott, outages, encapsulation)| DirectionConfig {
            rate,
            delay: Duration::from_micros(delay_us),
            queue,
            per,
            gilbert_elliott,
            outages,
            encapsulation,
            ..DirectionConfig::default()
        },
    )
}

/// Packets at any time, in order or not, of any length that IP knows.
fn any_packets() -> impl Strategy<Value = Vec<(Time, usize)>> {
    prop::collection::vec(((0u64..1_000_000).prop_map(at), 0usize..65_536), 1..200)
}

proptest! {
    #[test]
    fn every_packet_offered_has_one_fate(config in any_config(), packets in any_packets(), seed: u64) {
        let mut direction = Direction::new(&config, seed);
        let mut seen = [0; Cause::ALL.len()];
        let (mut delivered, mut delivered_bytes) = (0, 0);
        for &(now, bytes) in &packets {
            match direction.offer(now, bytes) {
                Fate::Deliver { .. } => {
                    delivered += 1;
                    delivered_bytes += bytes as u64;
                }
                Fate::Drop(cause) => seen[cause as usize] += 1,
            }
        }
        let counters = direction.counters();
        prop_assert_eq!(counters.offered, packets.len() as u64);
        prop_assert_eq!(counters.delivered + counters.dropped_total(), counters.offered);
        prop_assert_eq!((counters.delivered, counters.delivered_bytes), (delivered, delivered_bytes));
        prop_assert_eq!(Cause::ALL.map(|cause| counters.dropped(cause)), seen);
    }

    #[test]
    fn packets_arrive_in_order_and_not_before_the_delay(
        config in any_config(),
        packets in any_packets(),
        seed: u64,
    ) {
        let mut direction = Direction::new(&config, seed);
        let mut last = Time::ZERO;
        for (now, bytes) in packets {
            if let Fate::Deliver { at } = direction.offer(now, bytes) {
                prop_assert!(at >= last && at >= now + config.delay);
                last = at;
            }
        }
    }
}
