//! Interfaces that come and go, processes that take over, rights, and errors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bentpipe_kernel::divert::DivertError;
use bentpipe_kernel::router::programs_at;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::*;

fn cable() {
    run("ip", "link add sat0 index 77 type veth peer name sat1 address 02:00:00:00:00:02", "");
    for name in ["sat0", "sat1"] {
        run("ip", &format!("link set {name} up"), "");
    }
    run("ip", "addr add 192.0.2.1/24 dev sat0", "");
    run("ip", "neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev sat0", "");
}

#[test]
fn an_interface_is_followed_when_it_goes_and_comes_back() {
    in_namespace(&["ip"], || {
        let device = Tun::create("bp0").unwrap();
        run("ip", "link set bp0 up", "");
        let mut divert = load(WhenSilent::Pass);
        divert.divert_until(in_future(60));
        assert!(!divert.follow("sat0").unwrap(), "it has not come yet");
        let sends = || {
            socket(0, MARKED).send(&[7; 100]).unwrap();
            datagrams(|buffer| device.read(buffer).ok()).len()
        };
        for round in 0..3 {
            cable();
            assert!(divert.follow("sat0").unwrap());
            assert!(divert.follow("sat0").unwrap());
            assert_eq!((programs_at("sat0").unwrap(), sends()), (1, 1));
            // Another interface of the same name and number, between two calls or not.
            run("ip", "link del sat0", "");
            if round > 0 {
                assert!(!divert.follow("sat0").unwrap());
            }
            cable();
            assert_eq!((programs_at("sat0").unwrap(), sends()), (0, 0));
            assert!(divert.follow("sat0").unwrap());
            assert_eq!((programs_at("sat0").unwrap(), sends()), (1, 1));
            run("ip", "link del sat0", "");
        }
        cable();
        assert!(divert.follow("sat0").unwrap());
        divert.leave("sat0");
        wait_for("the program to leave", || (programs_at("sat0").unwrap() == 0).then_some(()));
        assert_eq!(sends(), 0);
    });
}

#[test]
fn packets_leave_by_each_interface_of_a_leg_and_arrive_by_the_first_that_is_there() {
    in_namespace(&["ip"], || {
        let world = World::new(Kind::Ethernet);
        let mut divert = diverting();
        run("ip", "link add other type veth peer name other1", "");
        for name in ["other", "other1"] {
            run("ip", &format!("link set {name} up"), "");
        }
        run("ip", "addr add 203.0.113.1/24 dev other", "");
        run("ip", "neigh add 203.0.113.2 lladdr 02:00:00:00:00:02 dev other", "");
        assert!(divert.follow("other").unwrap());
        let by_other = UdpSocket::bind("203.0.113.1:0").unwrap();
        SockRef::from(&by_other).set_mark(MARKED).unwrap();
        by_other.send_to(&[7; 10], ("203.0.113.2", PORT)).unwrap();
        socket(0, MARKED).send(&[7; 10]).unwrap();
        assert_eq!(world.count(), (2, 0));
        let arrives_by = |interface: &str| {
            // Any port: the child of another test may keep a copy of the last socket open for a moment.
            let socket = UdpSocket::bind("203.0.113.1:0").unwrap();
            SockRef::from(&socket).bind_device(Some(interface.as_bytes())).unwrap();
            let to = socket.local_addr().unwrap();
            std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "0").unwrap();
            world.device.write(&datagram(0, to, b"restored")).unwrap();
            receive(&socket).is_some()
        };
        assert!(arrives_by("sat0"));
        run("ip", "link del sat0", "");
        assert!(!divert.follow("sat0").unwrap());
        assert!(arrives_by("other"));
        assert_eq!(divert.counters().arrived, 2);
    });
}

/// As an upgrade does it: the new process has the device's descriptor, and loads programs of its own.
#[test]
fn no_packet_is_lost_or_diverted_twice_while_one_process_takes_over_from_another() {
    with_each_kind(|world| {
        let device = Tun::inherited(world.device.descriptor().unwrap(), "bp0");
        let (sender, is_over) = (socket(0, MARKED), AtomicBool::new(false));
        let mut current = diverting();
        let (sent, diverted) = thread::scope(|scope| {
            let sent = scope.spawn(|| {
                let mut sent = 0_u64;
                while !is_over.load(Ordering::Acquire) {
                    sender.send(&sent.to_be_bytes()).unwrap();
                    let packets = datagrams(|buffer| device.read(buffer).ok());
                    assert_eq!(packets.len(), 1, "after {sent}");
                    assert!(packets[0].ends_with(&sent.to_be_bytes()));
                    sent += 1;
                }
                sent
            });
            let mut diverted = 0;
            for _ in 0..10 {
                let mut new = load(WhenSilent::Drop);
                new.follow("sat0").unwrap();
                thread::sleep(Duration::from_millis(2));
                new.divert_until(in_future(60));
                thread::sleep(Duration::from_millis(2));
                current.stand_by();
                let counters = current.counters();
                assert!(counters.diverted > 0 && counters.passed + counters.dropped == 0, "{counters:?}");
                diverted += counters.diverted;
                current = new;
            }
            is_over.store(true, Ordering::Release);
            (sent.join().unwrap(), diverted)
        });
        println!("{sent} packets");
        assert_eq!(sent, diverted + current.counters().diverted);
        assert_eq!(world.count(), (0, 0));
    });
}

#[test]
fn two_marks_have_two_devices() {
    with_each_kind(|world| {
        let _first = diverting();
        let device = Tun::create("bp1").unwrap();
        run("ip", "link set bp1 up", "");
        let mark = MarkMatch { value: 0x10, mask: 0x30 };
        let mut second = Divert::load("bp1", mark, WhenSilent::Pass).unwrap();
        second.follow("sat0").unwrap();
        second.divert_until(in_future(60));
        for (mark, expected) in [(0x20, (1, 0, 0)), (0x10, (0, 1, 0)), (0x30, (0, 0, 1))] {
            socket(0, mark).send(&[7; 100]).unwrap();
            let by_second = datagrams(|buffer| device.read(buffer).ok()).len();
            let (by_first, left) = world.count();
            assert_eq!((by_first, by_second, left), expected, "{mark:#x}");
        }
    });
}

#[test]
fn once_loaded_it_needs_cap_net_admin_alone() {
    with_each_kind(|world| {
        let mut divert = load(WhenSilent::Pass);
        // Of this thread, which ends with the test.
        let held = capabilities(None).unwrap();
        let only = CapabilitySet::NET_ADMIN;
        set_capabilities(None, CapabilitySets { effective: only, permitted: only, ..held }).unwrap();
        assert!(matches!(Divert::load("bp0", MARK, WhenSilent::Pass), Err(DivertError::Load(_))));
        assert!(divert.follow("sat0").unwrap());
        divert.divert_until(in_future(60));
        socket(0, MARKED).send(&[7; 100]).unwrap();
        assert_eq!((world.count(), divert.counters().diverted), ((1, 0), 1));
        assert!(divert.follow("sat0").unwrap());
    });
}

#[test]
fn errors_say_what_is_wrong() {
    in_namespace(&["ip"], || {
        let error = Divert::load("bp0", MARK, WhenSilent::Pass).unwrap_err().to_string();
        assert!(error.contains("\"bp0\"") && error.contains("create"), "{error}");
        let _device = Tun::create("bp0").unwrap();
        for (value, mask) in [(0, 0), (0, 0x30), (0x40, 0x30)] {
            let mark = MarkMatch { value, mask };
            let error = Divert::load("bp0", mark, WhenSilent::Pass).unwrap_err();
            assert!(matches!(error, DivertError::Mark { .. }), "{error}");
        }
        let mut divert = load(WhenSilent::Pass);
        assert!(matches!(divert.follow("bp0"), Err(DivertError::Itself { .. })));
        assert!(!divert.follow("a-name-that-is-longer-than-any").unwrap());
        Divert::probe().unwrap();
    });
}
