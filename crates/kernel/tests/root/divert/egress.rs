//! What leaves.

use bentpipe_kernel::cross_traffic::CrossTrafficCounter;
use bentpipe_kernel::explicit::Explicit;
use bentpipe_kernel::rated_leg::RatedLeg;
use bentpipe_link::explicit::EgressCount;

use super::*;
use crate::common::frame::{HeaderFields, Segment, checksum_is_right, payload, with_link_header};
use crate::common::injector::Injector;

const MSS: usize = 1200;

#[test]
fn marked_packets_go_to_the_device_and_others_leave() {
    with_each_kind(|world| {
        let divert = diverting();
        for family in [0, 1] {
            // Without a mark, with other bits, and with another value of these bits.
            for other in [0, 1, 0x10, 0x30] {
                socket(family, other).send(&[7; 1001]).unwrap();
                assert_eq!(world.count(), (0, 1), "mark {other:#x}");
            }
            socket(family, MARKED).send(&[7; 1001]).unwrap();
            let (diverted, left) = (world.diverted(), world.left());
            assert_eq!((diverted.len(), left.len()), (1, 0));
            let packet = &diverted[0];
            assert_eq!(
                (packet.len(), &packet[headers(packet) + 8..]),
                (headers(packet) + 1009, &[7; 1001][..])
            );
            assert_eq!(udp_sum(packet), 0xffff, "the checksum is complete");
        }
        let counters = divert.counters();
        assert_eq!((counters.diverted, counters.diverted_bytes), (2, 1029 + 1049));
        assert_eq!((counters.passed, counters.dropped, counters.arrived, counters.homeless), (0, 0, 0, 0));
        drop(divert);
        wait_for("the program to go with its value", || {
            // A child that another test has forked may hold a copy of the link until it executes its program.
            socket(0, MARKED).send(&[7; 10]).unwrap();
            (world.count() == (0, 1)).then_some(())
        });
    });
}

#[test]
fn packets_pass_or_are_dropped_while_nobody_reads() {
    with_each_kind(|world| {
        let mut divert = load(WhenSilent::Drop);
        divert.follow("sat0").unwrap();
        let send = |divert: &Divert| {
            for family in [0, 1] {
                // A packet that is dropped is an error of its own to a local sender (ENOBUFS).
                let _ = socket(family, MARKED).send(&[7; 100]);
            }
            let counters = divert.counters();
            (world.count(), [counters.diverted, counters.passed, counters.dropped])
        };
        assert_eq!(send(&divert), ((0, 2), [0, 0, 0]), "it stands by");
        divert.divert_until(PAST);
        assert_eq!(send(&divert), ((0, 0), [0, 0, 2]));
        divert.divert_until(in_future(60));
        assert_eq!(send(&divert), ((2, 0), [2, 0, 2]));
        let start = Instant::now();
        divert.divert_until(in_future(1));
        let outcome = wait_for("the end of the time", || {
            let (count, counters) = send(&divert);
            (count.0 == 0).then_some((count, counters))
        });
        assert!(start.elapsed() >= Duration::from_secs(1) && outcome.0 == (0, 0), "{outcome:?}");
        divert.set_when_silent(WhenSilent::Pass);
        assert_eq!(send(&divert).0, (0, 2));
        assert_eq!(divert.counters().passed, 2);
        divert.stand_by();
        assert_eq!(send(&divert).0, (0, 2));
        assert_eq!(divert.counters().passed, 2);
        divert.set_when_silent(WhenSilent::Drop);
        divert.stand_in_until(in_future(60));
        assert_eq!(send(&divert).0, (2, 0), "it stands in");
        divert.stand_in_until(PAST);
        let before = divert.counters();
        assert_eq!((send(&divert).0, divert.counters()), ((0, 2), before), "it stands by again");
    });
}

/// The other end of the cable is of the same network namespace, so that packets keep their mark.
#[test]
fn a_packet_that_passes_has_lost_the_bits_of_this_mark_and_no_others() {
    in_namespace(&["ip", "nft"], || {
        let world = World::new(Kind::Ethernet);
        let rules = "table netdev seen { chain seen { type filter hook ingress device sat1 priority 0;
            udp dport 7009 meta mark 0x1 counter
            udp dport 7009 meta mark 0x21 counter
            }
        }";
        run("nft", "-f -", rules);
        let packets = || {
            let seen = run("nft", "list table netdev seen", "");
            let counts = seen.split("counter packets ").skip(1);
            counts.map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect::<Vec<u32>>()
        };
        let mut divert = load(WhenSilent::Pass);
        divert.follow("sat0").unwrap();
        socket(0, MARKED).send(&[7; 100]).unwrap();
        assert_eq!((world.count(), packets()), ((0, 1), vec![0, 1]), "it stands by");
        divert.divert_until(PAST);
        socket(0, MARKED).send(&[7; 100]).unwrap();
        assert_eq!((world.count(), packets()), ((0, 1), vec![1, 1]));
    });
}

/// A rule that comes before the program marks all that leaves, ARP included.
#[test]
fn what_is_not_ip_is_not_diverted() {
    in_namespace(&["ip", "nft"], || {
        let world = World::new(Kind::Ethernet);
        let Line::Ethernet(other_end) = &world.line else { unreachable!("a cable") };
        let rules = "table netdev marks { chain marks { type filter hook egress device sat0 priority 0
            meta mark set 0x20
            }
        }";
        run("nft", "-f -", rules);
        let divert = diverting();
        socket(0, 0).send(&[7; 100]).unwrap();
        assert_eq!(world.count(), (1, 0), "the rule marks");
        // Its address has to be asked for.
        UdpSocket::bind("192.0.2.1:0").unwrap().send_to(&[7; 100], ("192.0.2.3", PORT)).unwrap();
        let mut buffer = [0; 2000];
        wait_for("a question of ARP at the other end", || {
            let length = rustix::io::read(other_end, &mut buffer).ok()?;
            buffer[..length].starts_with(&[0, 1, 8, 0, 6, 4, 0, 1]).then_some(())
        });
        assert_eq!((divert.counters().diverted, divert.counters().passed), (1, 0));
    });
}

/// The TCP packets that come out of the device until they carry so many bytes, as frames.
fn receive_tcp(tun: &Tun, bytes: usize) -> Vec<Vec<u8>> {
    let (mut frames, mut buffer, mut carried) = (Vec::new(), [0; 70_000], 0);
    wait_for("packets from the device", || {
        while let Ok(length) = tun.read(&mut buffer) {
            if buffer[if buffer[0] >> 4 == 6 { 6 } else { 9 }] == 6 {
                let frame = with_link_header(&buffer[..length]);
                carried += payload(&frame).len();
                frames.push(frame);
            }
        }
        (carried >= bytes).then_some(())
    });
    frames
}

#[test]
fn packets_still_to_be_cut_come_in_pieces_with_complete_checksums_and_are_counted_one_by_one() {
    with_each_kind(|world| {
        let forwarding =
            [("ipv4/ip_forward", "1"), ("ipv4/conf/all/rp_filter", "0"), ("ipv6/conf/all/forwarding", "1")];
        for (key, value) in forwarding {
            std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
        }
        run("ip", "link add in0 type veth peer name in1 address 02:02:02:02:02:02", "");
        std::fs::write("/proc/sys/net/ipv4/conf/in1/rp_filter", "0").unwrap();
        run("ip", "link set in0 up", "");
        run("ip", "link set in1 up", "");
        run("ip", "addr add 10.9.9.9/32 dev in1", "");
        run("ip", "route add 10.0.0.2/32 via 192.0.2.2", "");
        run("ip", "-6 route add fd01::/16 via 2001:db8::2", "");
        let rules = "table inet marks { chain marks { type filter hook forward priority 0;
            oifname \"sat0\" meta mark set 0x20
            }
        }";
        run("nft", "-f -", rules);
        let (divert, cable, local) = (diverting(), Injector::open("in0"), Injector::open("sat0"));
        SockRef::from(&local).set_mark(MARKED).unwrap();
        let mut bytes = 0;
        for v6 in [false, true] {
            // From a packet socket the kernel takes them without the number of their segments.
            let sources = [(&cable, ETHERNET), (&local, world.link_header())];
            let lengths = [100, 3 * MSS + 7, 20 * MSS];
            for (length, (source, link)) in
                lengths.into_iter().flat_map(|length| sources.map(|at| (length, at)))
            {
                let fields = HeaderFields { rtt: 1, spacing: 2, feedback: 3 };
                let frame = Segment { fields: Some(fields), v6, payload: length, nops: 0 }.unfinished_frame();
                let before = divert.counters();
                source.send(&frame[ETHERNET - link..], link, MSS);
                let frames = receive_tcp(&world.device, length);
                assert_eq!(frames.len(), length.div_ceil(MSS));
                let data: Vec<u8> = frames.iter().flat_map(|frame| payload(frame)).copied().collect();
                assert_eq!(data, payload(&frame));
                assert!(frames.iter().all(|frame| checksum_is_right(frame) && frame.len() <= 1514));
                bytes += frames.iter().map(|frame| frame.len() - ETHERNET).sum::<usize>();
                let counters = divert.counters();
                assert_eq!(counters.diverted - before.diverted, frames.len() as u64);
                assert_eq!(counters.diverted_bytes, bytes as u64);
            }
        }
        divert.set_when_silent(WhenSilent::Drop);
        divert.divert_until(PAST);
        let frame = Segment { fields: None, v6: false, payload: 5 * MSS, nops: 0 }.unfinished_frame();
        cable.send(&frame, ETHERNET, MSS);
        wait_for("five packets dropped", || (divert.counters().dropped == 5).then_some(()));
    });
}

#[test]
fn a_packet_is_as_long_as_the_interface_allows_whatever_the_device_does() {
    with_each_kind(|world| {
        let _divert = diverting();
        run("ip", "link set bp0 mtu 1280", "");
        for (family, length) in [(0, 1472), (1, 1452)] {
            socket(family, MARKED).send(&vec![7; length]).unwrap();
            let diverted = world.diverted();
            assert_eq!(diverted.iter().map(Vec::len).collect::<Vec<_>>(), [1500]);
        }
    });
}

#[test]
fn what_is_diverted_is_not_counted_as_leaving_whichever_program_came_first() {
    with_each_kind(|world| {
        let explicit = Explicit::acquire().unwrap();
        let leg = explicit.leg("diverted").unwrap();
        for divert_comes_first in [false, true] {
            let mut counter = CrossTrafficCounter::new(&RatedLeg::Ebpf(leg.clone()), "sat0");
            let early = divert_comes_first.then(diverting);
            counter.follow().unwrap();
            let _divert = early.unwrap_or_else(diverting);
            let mut counted = || match counter.read() {
                Some(EgressCount::CrossTraffic(bytes)) => bytes,
                other => panic!("{other:?}"),
            };
            let before = counted();
            socket(0, MARKED).send(&[7; 1400]).unwrap();
            assert_eq!(world.count(), (1, 0));
            // The kernel may have said something of its own meanwhile.
            assert!(counted() - before < 1000);
            socket(0, 0).send(&[7; 1400]).unwrap();
            assert!(counted() - before >= 1428);
            assert_eq!(world.count(), (0, 1));
        }
    });
}
