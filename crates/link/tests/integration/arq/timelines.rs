//! One case each. The link takes 50 ms one way; packets leave one each millisecond from 0 ms on, so that
//! packet n leaves at n ms and arrives at n + 50 ms.

use bentpipe_link::agent::arq::{
    Arq, ArqConfig, ArqFrame, DATA_HEADER, Delivery, FLOOR_FRAME, MAX_RANGES, RANGE, REPORT_HEADER,
};
use bentpipe_units::{ByteCount, Time};

use crate::arq::world::{DELAY, LENGTH, MS, Parcel, World, at_ms, config};

fn in_order() -> ArqConfig {
    config(Delivery::InOrder)
}

/// All ids below this one.
fn all(packets: u32) -> Vec<u32> {
    (0..packets).collect()
}

#[test]
fn a_clean_link_is_left_alone() {
    let mut world = World::new(&in_order());
    world.send_each_ms(100);
    world.settle();
    assert_eq!(world.ids(), all(100));
    assert_eq!(world.came_at(99), at_ms(99) + DELAY);
    // One report for 8 frames, and one for the last 4.
    assert_eq!((world.data.len(), world.reports.len()), (100, 13));
    let counters = world.sender.counters();
    assert_eq!((counters.packets, counters.retransmitted, counters.timed_out), (100, 0, 0));
    assert_eq!((counters.held_bytes, world.receiver.counters().delivered), (0, 100));
}

#[test]
fn reports_on_the_link_carry_their_weight() {
    let mut world = World::new(&in_order()).losing(|index, _| index == 1);
    world.send_each_ms(3);
    world.settle();
    assert_eq!(world.data[0].frame.length(), LENGTH + DATA_HEADER);
    let about_a_gap = &world.reports[0].frame;
    assert_eq!((about_a_gap.length(), about_a_gap.packet()), (REPORT_HEADER + RANGE, None));
    let sum: usize = world.reports.iter().map(|sent| sent.frame.length()).sum();
    assert_eq!(world.receiver.counters().report_bytes, sum as u64);
    assert_eq!(ArqFrame::<Parcel>::Floor { incarnation: 0, floor: 0 }.length(), FLOOR_FRAME);
}

#[test]
fn a_lone_loss_is_repaired_after_one_report() {
    let mut world = World::new(&in_order()).losing(|index, _| index == 5);
    world.send_each_ms(20);
    world.settle();
    // Packet 6 arrives at 56 ms and is reported at once; the report arrives at 106 ms, and packet 5 at 156
    // ms.
    assert_eq!(world.came_at(5), at_ms(6) + DELAY * 3);
    assert_eq!(world.ids(), all(20));
    assert_eq!(world.came_at(19), world.came_at(5), "all behind it have waited");
    assert_eq!((world.sender.counters().retransmitted, world.sender.counters().timed_out), (1, 0));
    assert_eq!(world.receiver.counters().duplicates, 0);
}

#[test]
fn immediate_delivery_waits_for_nothing_and_hands_the_late_one_on() {
    let mut world = World::new(&config(Delivery::Immediate)).losing(|index, _| index == 5);
    world.send_each_ms(20);
    world.settle();
    let others = (0..20).filter(|&id| id != 5);
    assert_eq!(world.ids(), others.chain([5]).collect::<Vec<_>>());
    assert_eq!(world.came_at(6), at_ms(6) + DELAY);
    assert_eq!(world.receiver.counters().held_bytes, 0);
}

#[test]
fn a_packet_for_which_the_queue_had_no_room_is_not_repaired_and_not_waited_for() {
    let mut world = World::new(&in_order()).losing(|index, _| index == 5).refusing();
    world.send_each_ms(20);
    world.settle();
    assert_eq!(world.ids(), (0..20).filter(|&id| id != 5).collect::<Vec<_>>());
    assert_eq!(world.came_at(6), at_ms(6) + DELAY, "the next frame says that there is nothing to wait for");
    let counters = world.sender.counters();
    assert_eq!((counters.refused, counters.retransmitted, counters.held_bytes), (1, 0, 0));
}

#[test]
fn a_retransmission_for_which_the_queue_had_no_room_has_used_up_no_retry() {
    // The link loses the first transmission, the full queue the next five, and three retransmissions are
    // allowed.
    let mut world = World::new(&in_order()).losing_copies(5, 6).refusing_retransmissions();
    world.send_each_ms(1000);
    world.settle();
    assert_eq!(world.ids(), all(1000));
    assert_eq!((world.sender.counters().refused, world.sender.counters().given_up), (0, 0));
}

#[test]
fn a_lost_retransmission_is_a_gap_like_any_other() {
    let mut world = World::new(&in_order()).losing_copies(5, 2);
    world.send_each_ms(300);
    world.settle();
    assert_eq!(world.ids(), all(300));
    let counters = world.sender.counters();
    assert_eq!((counters.retransmitted, counters.timed_out, counters.given_up), (2, 0, 0));
    // It leaves again at 106 ms, and packet 106 right behind it shows the gap at 156 ms; 100 ms later it has
    // come.
    assert_eq!(world.came_at(5), at_ms(106) + DELAY * 3);
}

#[test]
fn a_lost_report_is_made_good_by_the_next_one() {
    // The first is about packets 0 to 7; the second is the one about the gap.
    let mut world =
        World::new(&in_order()).losing(|index, _| index == 12).losing_reports(|index, _| index == 1);
    world.send_each_ms(40);
    world.settle();
    assert_eq!(world.ids(), all(40));
    assert_eq!((world.sender.counters().retransmitted, world.sender.counters().timed_out), (1, 0));
    // Packet 13 shows the gap; 8 frames later it is told again.
    assert_eq!(world.came_at(12), at_ms(13 + 8) + DELAY * 3);
}

#[test]
fn a_gap_is_told_until_the_sender_knows_and_no_longer() {
    let mut world = World::new(&in_order()).losing(|index, _| index == 2);
    world.send_each_ms(200);
    world.settle();
    let tells = |sent: &&crate::arq::world::Sent| matches!(&sent.frame, ArqFrame::Report(it) if !it.missing.is_empty());
    let last = world.reports.iter().rfind(tells).unwrap().at;
    // First told at 53 ms, known to the sender at 103 ms, and to the receiver at 153 ms.
    assert!((at_ms(145)..=at_ms(153)).contains(&last), "{last:?}");
    assert_eq!(world.sender.counters().retransmitted, 1);
}

#[test]
fn a_lost_tail_is_sent_again_when_no_report_comes() {
    let mut world = World::new(&in_order()).losing(|index, _| index == 9);
    world.send_each_ms(10);
    world.settle();
    assert_eq!(world.ids(), all(10));
    let counters = world.sender.counters();
    assert_eq!((counters.timed_out, counters.retransmitted), (1, 0));
    // Two reports have come, the second when packet 8 has waited for 10 ms: at 118 ms. Then srtt + 4·rttvar
    // of two like measurements, 100 ms + 4·37.5 ms, and 10 ms.
    assert_eq!(world.data.last().unwrap().at, at_ms(118 + 100 + 150 + 10));
}

#[test]
fn a_lost_tail_of_many_needs_one_timeout_and_one_report() {
    let mut world = World::new(&in_order()).losing(|index, _| (50..100).contains(&index));
    world.send_each_ms(100);
    world.settle();
    assert_eq!(world.ids(), all(100));
    let counters = world.sender.counters();
    assert_eq!((counters.timed_out, counters.retransmitted), (1, 49));
    assert_eq!(world.receiver.counters().duplicates, 0);
}

#[test]
fn the_measured_round_trip_has_no_part_in_the_receivers_leisure() {
    let slow = ArqConfig { report_within: MS * 500, report_every: 1000, ..in_order() };
    let mut world = World::new(&slow).losing(|index, _| index >= 40);
    for _ in 0..40 {
        world.send();
        world.run_until(world.now + MS * 700);
    }
    world.send();
    let sent_at = world.now;
    world.run_until(world.now + MS * 650);
    // srtt is 100 ms, rttvar nothing: a quarter more than that, and the leisure.
    assert_eq!(world.data.last().unwrap().at, sent_at + MS * 625);
}

#[test]
fn a_packet_is_given_up_after_its_retransmissions_and_the_others_go_on() {
    let config = ArqConfig { retransmissions: 2, ..in_order() };
    let mut world = World::new(&config).losing_copies(5, u32::MAX);
    world.send_each_ms(600);
    world.settle();
    let sender = world.sender.counters();
    assert_eq!((sender.retransmitted, sender.given_up, sender.timed_out), (2, 1, 0));
    assert_eq!(world.ids(), (0..600).filter(|&id| id != 5).collect::<Vec<_>>());
    // Lost for the third time at 206 ms, which is known at 306 ms; the next frame says so.
    assert_eq!((world.came_at(6), world.receiver.counters().skipped), (at_ms(306) + DELAY, 1));
}

#[test]
fn one_retransmission_less_and_it_would_have_come() {
    let config = ArqConfig { retransmissions: 2, ..in_order() };
    let mut world = World::new(&config).losing_copies(5, 2);
    world.send_each_ms(600);
    world.settle();
    assert_eq!((world.ids(), world.sender.counters().given_up), (all(600), 0));
}

#[test]
fn without_retransmissions_the_receiver_learns_at_once_that_nothing_comes() {
    let mut world = World::new(&ArqConfig { retransmissions: 0, ..in_order() }).losing(|index, _| index == 5);
    world.send_each_ms(10);
    world.settle();
    // The report of 56 ms arrives at 106 ms, and what it is answered, without a packet, at 156 ms.
    assert_eq!(world.came_at(9), at_ms(156));
    assert_eq!(world.ids(), (0..10).filter(|&id| id != 5).collect::<Vec<_>>());
    assert_eq!((world.data_frames(), world.sender.counters().floors_sent), (10, 1));
}

#[test]
fn if_the_floor_is_lost_too_the_receiver_loses_its_patience() {
    let config = ArqConfig { retransmissions: 0, ..in_order() };
    let mut world = World::new(&config).losing(|index, _| index == 5 || index >= 10);
    world.send_each_ms(10);
    world.settle();
    // Heard last at 59 ms; the configured round trip three times, and 10 ms.
    assert_eq!(world.came_at(9), at_ms(59 + 310));
    assert_eq!(world.receiver.counters().skipped, 1);
}

#[test]
fn a_full_buffer_gives_up_the_oldest() {
    let small = ArqConfig { buffer: ByteCount::new(20 * LENGTH as u64), ..in_order() };
    let mut world = World::new(&small).losing(|index, _| index == 3);
    world.send_each_ms(200);
    world.settle();
    // Of the hundred packets of a round trip twenty are kept. Packet 3 is not any more when its loss is
    // known.
    let sender = world.sender.counters();
    assert_eq!((sender.retransmitted, sender.most_held_bytes), (0, 20 * LENGTH as u64));
    assert!(sender.crowded_out >= 80, "{sender:?}");
    assert_eq!(world.ids(), (0..200).filter(|&id| id != 3).collect::<Vec<_>>());
    // Nobody waits for it longer than for the packet that says so, which leaves when 20 more have.
    assert_eq!(world.came_at(4), at_ms(23) + DELAY);
}

#[test]
fn a_packet_larger_than_the_buffer_is_sent_once() {
    let mut world = World::new(&ArqConfig { buffer: ByteCount::new(500), ..in_order() });
    world.send_each_ms(30);
    world.settle();
    assert_eq!((world.ids(), world.data.len()), (all(30), 30));
    assert_eq!(world.sender.counters().most_held_bytes, 0);
}

#[test]
fn the_receivers_buffer_is_bounded_too_and_then_holes_are_skipped() {
    let sending = in_order();
    let mut world = World::new(&sending).losing(|index, _| index == 0 || index == 7);
    world.receiver = Arq::new(&ArqConfig { buffer: ByteCount::new(10 * LENGTH as u64), ..sending });
    world.send_each_ms(30);
    world.settle();
    // Packet 0 is waited for until an eleventh would wait. It comes at 150 ms, and is late.
    let receiver = world.receiver.counters();
    assert_eq!(receiver.most_held_bytes, 10 * LENGTH as u64);
    assert_eq!((receiver.duplicates, receiver.skipped), (2, 2));
    assert!(world.ids().is_sorted() && world.ids().len() == 28, "{:?}", world.ids());
}

#[test]
fn an_outage_makes_no_storm_and_is_over_soon_after_it_ends() {
    let outage = at_ms(100)..at_ms(800);
    let mut world = World::new(&in_order()).losing(move |_, now| outage.contains(&now));
    world.send_each_ms(200);
    world.run_until(at_ms(800));
    let during = world.data.iter().filter(|sent| sent.lost).count();
    assert!((100..=103).contains(&during), "{during}");
    world.settle();
    assert_eq!(world.ids(), all(200));
    let counters = world.sender.counters();
    assert!(counters.timed_out <= 3 && counters.retransmitted < 105, "{counters:?}");
    assert!(world.came_at(199) < at_ms(1500), "{:?}", world.came_at(199));
}

#[test]
fn in_an_endless_outage_all_is_given_up_and_nothing_is_sent_any_more() {
    let mut world = World::new(&in_order()).losing(|_, now| now >= at_ms(100));
    world.send_each_ms(1000);
    world.settle();
    let counters = world.sender.counters();
    assert_eq!((counters.held_bytes, counters.given_up), (0, 900));
    assert!(counters.timed_out < 10, "{counters:?}");
    assert!(world.now < at_ms(20_000), "{:?}", world.now);
    assert_eq!((world.sender.wake_at(), world.receiver.wake_at()), (Time::MAX, Time::MAX));
}

#[test]
fn without_reports_memory_is_bounded_and_packets_still_arrive() {
    let small = ArqConfig { buffer: ByteCount::new(20_000), retransmissions: u32::MAX, ..in_order() };
    let mut world = World::new(&small).losing_reports(|_, now| now < at_ms(3000));
    world.send_each_ms(2000);
    world.run_until(at_ms(3100));
    assert_eq!(world.ids(), all(2000));
    assert_eq!(world.sender.counters().held_bytes, 20_000);
    // As many transmissions are remembered as packets of 40 bytes have room.
    for sent in &world.data {
        let ArqFrame::Data(frame) = &sent.frame else { continue };
        assert!(frame.serial - frame.settled < 500, "{frame:?}");
    }
    world.settle();
    assert_eq!((world.ids(), world.sender.counters().held_bytes), (all(2000), 0));
    assert_eq!(world.receiver.counters().delivered, 2000);
}

#[test]
fn more_gaps_than_a_report_has_room_for_are_told_by_several() {
    // Every second packet is lost, the first time.
    let mut world = World::new(&in_order()).losing(|index, _| index < 400 && index % 2 == 1);
    (0..401).for_each(|_| world.send());
    world.settle();
    assert_eq!(world.ids(), all(401));
    let sizes = world.reports.iter().map(|sent| sent.frame.length());
    assert_eq!(sizes.max(), Some(REPORT_HEADER + MAX_RANGES * RANGE));
    let counters = world.sender.counters();
    assert_eq!((counters.retransmitted, counters.timed_out), (200, 0));
    assert_eq!(world.receiver.counters().duplicates, 0);
    // The frames come all at once, so part of the gaps is told later: 200 of them in reports of 32, one each
    // 10 ms.
    assert!(world.came_at(400) <= at_ms(150 + 70), "{:?}", world.came_at(400));
}

#[test]
fn a_late_segment_is_retransmitted_in_vain_and_dropped() {
    let mut world = World::new(&in_order());
    world.send_each_ms(3);
    // The link has held packet 0 back: it comes after 1 and 2.
    let [first, second, third] = [0, 1, 2].map(|index: usize| world.data[index].frame.clone());
    let mut receiver = Arq::new(&in_order());
    for frame in [second, third, first] {
        receiver.on_frame(at_ms(60), frame);
    }
    let ids: Vec<u32> = std::iter::from_fn(|| receiver.poll_packet()).map(|packet| packet.id).collect();
    // It is met in the middle, and its floor is packet 0: it was waited for.
    assert_eq!(ids, all(3));
    // The reports that it makes of it have the sender send packet 0 again.
    while let Some(report) = receiver.poll_frame() {
        world.sender.on_frame(at_ms(110), report);
    }
    let again = world.sender.poll_frame().expect("it is thought lost");
    assert_eq!(again.packet().map(|packet| packet.id), Some(0));
    receiver.on_frame(at_ms(160), again);
    assert_eq!((receiver.poll_packet(), receiver.counters().duplicates), (None, 1));
}

#[test]
fn a_sender_that_begins_anew_is_a_new_one() {
    let mut world = World::new(&in_order()).losing(|index, _| index == 19);
    world.send_each_ms(21);
    world.run_until(at_ms(75));
    assert_eq!(world.ids().len(), 19, "packet 20 waits for 19");
    world.sender = Arq::new(&in_order());
    world.send_each_ms(30);
    world.settle();
    // What waited goes on; what only the former one knew is lost.
    assert_eq!(world.ids(), (0..51).filter(|&id| id != 19).collect::<Vec<_>>());
    assert_eq!((world.receiver.counters().peers, world.sender.counters().given_up), (2, 0));
    // Reports on the way were meant for the former one.
    assert!(world.sender.counters().stale > 0);
}

#[test]
fn the_former_senders_remains_are_dropped_when_the_new_one_appears() {
    let mut receiver = Arq::new(&in_order());
    let mut former = Arq::new(&in_order());
    let mut later = Arq::new(&in_order());
    former.send(at_ms(0), Parcel { id: 0, length: LENGTH });
    former.send(at_ms(1), Parcel { id: 1, length: LENGTH });
    later.send(at_ms(5), Parcel { id: 2, length: LENGTH });
    let [zero, one] = [(); 2].map(|()| former.poll_frame().unwrap());
    receiver.on_frame(at_ms(50), zero);
    receiver.on_frame(at_ms(55), later.poll_frame().unwrap());
    receiver.on_frame(at_ms(56), one);
    let ids: Vec<u32> = std::iter::from_fn(|| receiver.poll_packet()).map(|packet| packet.id).collect();
    assert_eq!((ids, receiver.counters().stale), (vec![0, 2], 1));
}

#[test]
fn a_receiver_that_begins_anew_goes_on_where_it_meets_the_sender() {
    let mut world = World::new(&in_order()).losing(|index, _| index == 40);
    world.send_each_ms(120);
    world.receiver = Arq::new(&in_order());
    world.send_each_ms(80);
    world.settle();
    // Packets 41 to 69 have waited in the former one, and those that it has reported are lost with it. All
    // others are there.
    let restarted = world.delivered.iter().position(|&(at, _)| at > at_ms(120)).unwrap();
    let (before, after) = (world.ids()[..restarted].to_vec(), world.ids()[restarted..].to_vec());
    assert_eq!((before, after[0]), (all(40), 40));
    assert!((61..=70).contains(&after[1]), "{after:?}");
    assert_eq!(after[1..], (after[1]..200).collect::<Vec<_>>());
    assert_eq!(world.sender.counters().held_bytes, 0);
}

#[test]
fn a_link_without_length_is_one_too() {
    let mut config = ArqConfig::for_link(&Default::default());
    config.report_within = std::time::Duration::ZERO;
    let [mut sender, mut receiver] = [(); 2].map(|()| Arq::new(&config));
    sender.send(Time::ZERO, Parcel { id: 0, length: LENGTH });
    receiver.on_frame(Time::ZERO, sender.poll_frame().unwrap());
    assert_eq!(receiver.wake_at(), Time::ZERO);
    receiver.on_timer(Time::ZERO);
    sender.on_frame(Time::ZERO, receiver.poll_frame().unwrap());
    assert_eq!((sender.held_bytes(), sender.wake_at(), receiver.wake_at()), (0, Time::MAX, Time::MAX));
}
