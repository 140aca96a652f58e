//! Two hosts, each with a process that carries what is diverted to the other one.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;

const DATA: usize = 20_000_000;

/// Sets this host up: TCP that leaves by the cable is marked, and only what belongs to a connection that this
/// host knows, or begins one to the port, may come in.
fn host(name: &str, address: &str) -> (Tun, Divert) {
    let rules = format!(
        "table inet rules {{
            chain marks {{ type filter hook postrouting priority 0
                oifname \"{name}\" meta l4proto tcp meta mark set 0x20
            }}
            chain filter {{ type filter hook input priority 0; policy drop
                iifname \"{name}\" ct state established accept
                iifname \"{name}\" tcp dport 7009 accept
                meta l4proto icmpv6 accept
            }}
        }}"
    );
    run("nft", "-f -", &rules);
    for interface in ["all", "default", name] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "1").unwrap();
    }
    let device = Tun::create("bp0").unwrap();
    run("ip", "link set bp0 txqueuelen 10000 up", "");
    run("ip", &format!("link set {name} up"), "");
    let (v4, v6) = address.split_once(' ').unwrap();
    run("ip", &format!("addr add {v4}/24 dev {name}"), "");
    run("ip", &format!("addr add {v6}/64 dev {name} nodad"), "");
    let mut divert = load(WhenSilent::Drop);
    assert!(divert.follow(name).unwrap());
    divert.divert_until(in_future(600));
    (device, divert)
}

/// Carries packets from one device to the other until all is done; the longest.
fn carry(from: &Tun, to: &Tun, done: &AtomicBool) -> usize {
    let (mut buffer, mut longest) = ([0; 70_000], 0);
    while !done.load(Ordering::Acquire) {
        let mut ready = [PollFd::new(from, PollFlags::IN)];
        let moment = rustix::time::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        if poll(&mut ready, Some(&moment)).is_ok_and(|count| count == 0) {
            continue;
        }
        while let Ok(length) = from.read(&mut buffer) {
            longest = longest.max(length);
            to.write(&buffer[..length]).unwrap();
        }
    }
    longest
}

/// All is done, also if something has failed.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn transfer(there: &str, listener: &TcpListener) {
    thread::scope(|scope| {
        let sent: Vec<u8> = (0..DATA).map(|at| (at / 7 + at / 1000) as u8).collect();
        let connected = scope.spawn(|| {
            // On a thread of this network.
            let mut stream = TcpStream::connect((there, PORT)).unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received
        });
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(&sent).unwrap();
        drop(stream);
        assert!(connected.join().unwrap() == sent, "other data");
    });
}

#[test]
fn tcp_crosses_the_devices_and_both_hosts_see_it_at_their_interfaces() {
    in_namespace(&["ip", "nft"], || {
        let (listening, listeners) = mpsc::channel();
        let (built, start) = mpsc::channel::<()>();
        let done = AtomicBool::new(false);
        run("ip", "link add sat0 type veth peer name sat1", "");
        let (moved, thread_number) = mpsc::channel();
        thread::scope(|scope| {
            let done = &done;
            scope.spawn(move || {
                in_namespace(&[], move || {
                    moved.send(rustix::thread::gettid()).unwrap();
                    start.recv().unwrap();
                    let there = host("sat1", "192.0.2.2 2001:db8::2");
                    let listeners = THERE.map(|address| TcpListener::bind((address, PORT)).unwrap());
                    listening.send((there, listeners)).unwrap();
                    while !done.load(Ordering::Acquire) {
                        thread::sleep(Duration::from_millis(20));
                    }
                });
            });
            let _end = End(done);
            let number = thread_number.recv().unwrap().as_raw_nonzero();
            run("ip", &format!("link set sat1 netns {number}"), "");
            built.send(()).unwrap();
            let ((device_there, there), listeners) = listeners.recv().unwrap();
            let (device_here, here) = host("sat0", "192.0.2.1 2001:db8::1");
            let longest = thread::scope(|scope| {
                let _end = End(done);
                let pumps = [(&device_here, &device_there), (&device_there, &device_here)]
                    .map(|(from, to)| scope.spawn(move || carry(from, to, done)));
                for (address, listener) in THERE.into_iter().zip(&listeners) {
                    transfer(address, listener);
                }
                done.store(true, Ordering::Release);
                pumps.map(|pump| pump.join().unwrap())
            });
            let (here, there) = (here.counters(), there.counters());
            println!("{here:?} {there:?}");
            assert_eq!(longest.iter().max(), Some(&1500), "cut to the MTU");
            assert!(there.diverted_bytes > 2 * DATA as u64 && here.arrived_bytes > 2 * DATA as u64);
            for counters in [here, there] {
                assert_eq!((counters.passed, counters.dropped, counters.homeless), (0, 0, 0));
            }
        });
    });
}
