//! The same with filters of clsact, which kernels before 6.6 have instead of links. What they have in common
//! is in `tests/root/divert.rs`.

use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_units::Rate;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use rustix::time::{ClockId, clock_gettime};
use socket2::SockRef;

use super::*;
use crate::router::{Router, RouterConfig, Variant};
use crate::tun::Tun;

const MARK: MarkMatch = MarkMatch { value: 0x20, mask: 0x30 };

/// Runs `test` with a device `bp0` and a leg's interface `sat0` in a network of its own.
fn in_namespace(test: impl FnOnce(&Tun, &Tun) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let tried = thread::spawn(|| {
        // SAFETY: the new namespace is this thread's alone, and no file descriptors are concerned.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        let [device, leg] = ["bp0", "sat0"].map(|name| Tun::create(name).unwrap());
        for name in ["bp0", "sat0"] {
            // The kernel would say things of its own.
            std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").unwrap();
            ip(&format!("link set {name} up"));
        }
        ip("addr add 192.0.2.1/24 dev sat0");
        test(&device, &leg);
    });
    tried.join().unwrap();
}

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}

fn filters(hook: &str) -> usize {
    let output = Command::new("tc").args(["filter", "show", "dev"]).args(hook.split(' ')).output().unwrap();
    String::from_utf8(output.stdout).unwrap().matches("direct-action").count()
}

fn load() -> Divert {
    Divert::load_with(tc_hook::attach_as_filter, "bp0", MARK, WhenSilent::Drop).unwrap()
}

fn in_a_minute() -> Time {
    Time::from_nanos((clock_gettime(ClockId::Monotonic).tv_sec as u64 + 60) * 1_000_000_000)
}

fn send() {
    // Any port: the child of another test may keep a copy of the last socket open for a moment.
    let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
    SockRef::from(&socket).set_mark(0x21).unwrap();
    // A packet that is dropped is an error of its own to a local sender (ENOBUFS).
    let _ = socket.send_to(&[7; 100], "192.0.2.2:9");
}

/// The length of the next packet of IPv4 from a device: the kernel says things in IPv6 on its own.
fn read(tun: &Tun) -> Option<usize> {
    let mut packet = [0; 2000];
    loop {
        let length = tun.read(&mut packet).ok()?;
        if packet[0] == 0x45 {
            return Some(length);
        }
    }
}

#[test]
fn filters_divert_pass_let_arrive_and_end_with_their_value() {
    in_namespace(|device, leg| {
        let mut divert = load();
        assert!(divert.follow("sat0").unwrap() && divert.follow("sat0").unwrap());
        assert_eq!((filters("sat0 egress"), filters("bp0 ingress")), (1, 1));
        send();
        assert_eq!((read(device), read(leg)), (None, Some(128)), "it stands by");
        divert.divert_until(in_a_minute());
        send();
        assert_eq!((read(device), read(leg)), (Some(128), None));
        divert.divert_until(Time::from_nanos(1));
        send();
        assert_eq!((read(device), read(leg)), (None, None));
        divert.set_when_silent(WhenSilent::Pass);
        send();
        assert_eq!((read(device), read(leg)), (None, Some(128)));
        let counters = divert.counters();
        assert_eq!((counters.diverted, counters.passed, counters.dropped), (1, 1, 1));
        // The packet of a sender behind the leg, and a socket that takes only what comes by its interface.
        let receiver = UdpSocket::bind("192.0.2.1:10").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        SockRef::from(&receiver).bind_device(Some(b"sat0")).unwrap();
        let header = [
            [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0xf6, 0xc9, 192, 0, 2, 2, 192, 0, 2, 1].as_slice(),
            &[0, 9, 0, 10, 0, 12, 0, 0, 1, 2, 3, 4],
        ];
        device.write(&header.concat()).unwrap();
        let mut payload = [0; 10];
        assert_eq!(receiver.recv(&mut payload).unwrap(), 4);
        assert_eq!((divert.counters().arrived, divert.counters().arrived_bytes), (1, 32));
        drop(divert);
        assert_eq!((filters("sat0 egress"), filters("bp0 ingress")), (0, 0));
    });
}

#[test]
fn the_filter_of_a_process_that_takes_over_comes_first() {
    in_namespace(|device, _leg| {
        let [mut old, mut new] = [load(), load()];
        old.follow("sat0").unwrap();
        old.divert_until(in_a_minute());
        new.follow("sat0").unwrap();
        assert_eq!((filters("sat0 egress"), filters("bp0 ingress")), (2, 2));
        send();
        assert_eq!((read(device), old.counters().diverted), (Some(128), 1));
        new.divert_until(in_a_minute());
        send();
        assert_eq!((read(device), read(device), new.counters().diverted), (Some(128), None, 1));
        // The old process is killed, and its filter stays for a while: it does not drop what is diverted.
        old.divert_until(Time::from_nanos(1));
        send();
        assert_eq!((read(device), new.counters().diverted, old.counters().dropped), (Some(128), 2, 0));
    });
}

/// A router counts all packets that it sees.
#[test]
fn a_filter_that_diverts_comes_before_those_that_count_also_before_later_ones() {
    in_namespace(|device, leg| {
        let mut divert = load();
        let config = RouterConfig {
            capacity: Rate::mbps(10),
            variant: Variant::Xcp,
            longest_rtt: Duration::from_secs(1),
        };
        let routers = [Router::detached(&config).unwrap(), Router::detached(&config).unwrap()];
        let index = tc_hook::index_of("sat0").unwrap();
        let attach =
            |router: &Router| tc_hook::attach_as_filter(router.program(), Target::egress(index)).unwrap();
        let _earlier = attach(&routers[0]);
        divert.follow("sat0").unwrap();
        let _later = attach(&routers[1]);
        let counts = || routers.each_ref().map(|router| router.counters().packets);
        divert.divert_until(in_a_minute());
        let before = counts();
        send();
        assert_eq!((read(device), counts()), (Some(128), before));
        divert.stand_by();
        send();
        assert_eq!((read(leg), counts()), (Some(128), before.map(|count| count + 1)));
    });
}

#[test]
fn a_filter_comes_back_with_its_interface() {
    in_namespace(|device, _leg| {
        let mut divert = load();
        ip("link add sat5 type veth peer name sat6");
        divert.divert_until(in_a_minute());
        for _ in 0..2 {
            assert!(divert.follow("sat5").unwrap());
            assert_eq!(filters("sat5 egress"), 1);
            ip("link del sat5");
            assert!(!divert.follow("sat5").unwrap());
            // The same index, but another interface.
            ip("link add sat5 index 77 type veth peer name sat6");
            assert!(divert.follow("sat5").unwrap());
            ip("link del sat5");
            ip("link add sat5 index 77 type veth peer name sat6");
            assert_eq!(filters("sat5 egress"), 0);
        }
        assert!(divert.follow("sat5").unwrap());
        assert_eq!(filters("sat5 egress"), 1);
        let start = Instant::now();
        for _ in 0..20 {
            divert.follow("sat5").unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        assert_eq!(read(device), None);
    });
}
