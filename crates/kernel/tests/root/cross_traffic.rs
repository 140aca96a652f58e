//! What leaves by an interface and is not data of connections with explicit rates is counted, and nothing
//! else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;

use bentpipe_kernel::cross_traffic::CrossTrafficCounter;
use bentpipe_kernel::explicit::{Explicit, SharedLeg};
use bentpipe_kernel::rated_leg::RatedLeg;
use bentpipe_kernel::sockopt;
use bentpipe_kernel::tun::Tun;
use bentpipe_link::explicit::EgressCount;

use crate::common::{in_namespace, run};

const DATA: usize = 400_000;

fn counter(leg: &SharedLeg, interface: &str) -> CrossTrafficCounter {
    CrossTrafficCounter::new(&RatedLeg::Ebpf(leg.clone()), interface)
}

/// The bytes that are counted during this.
fn counted(counter: &mut CrossTrafficCounter, during: impl FnOnce()) -> u64 {
    let mut read = || match counter.read() {
        Some(EgressCount::CrossTraffic(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    let before = read();
    during();
    read() - before
}

/// Sends data from a connection, which belongs to `leg` if there is one, to a receiver without a leg.
fn transfer(leg: Option<&SharedLeg>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    if let Some(leg) = leg {
        leg.set_initial_rate(100_000_000, 0, std::time::Duration::from_millis(1));
        leg.join(listener.as_fd(), 1).unwrap();
        sockopt::set_congestion(&listener, leg.explicit().name()).unwrap();
    }
    let mut receiver = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut sender = listener.accept().unwrap().0;
    let reader = thread::spawn(move || receiver.read_to_end(&mut Vec::new()).unwrap());
    sender.write_all(&[7; DATA]).unwrap();
    drop(sender);
    assert_eq!(reader.join().unwrap(), DATA);
}

#[test]
fn everything_but_the_data_of_the_legs_connections_is_counted() {
    in_namespace(&[], || {
        let explicit = Explicit::acquire().unwrap();
        let [leg, other] = ["counted", "another"].map(|name| explicit.leg(name).unwrap());
        let mut counter = counter(&leg, "lo");
        assert_eq!(counter.read(), None);
        counter.follow().unwrap();
        let [to, from] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let datagrams = || {
            for _ in 0..3 {
                from.send_to(&[0; 100], to.local_addr().unwrap()).unwrap();
            }
        };
        assert_eq!(counted(&mut counter, datagrams), 3 * 128);
        // Handshake, acknowledgements and the end alone.
        let of_the_leg = counted(&mut counter, || transfer(Some(&leg)));
        assert!((200..DATA as u64 / 20).contains(&of_the_leg), "{of_the_leg}");
        for leg in [None, Some(&other)] {
            let others = counted(&mut counter, || transfer(leg));
            assert!((DATA as u64..2 * DATA as u64).contains(&others), "{others}");
        }
    });
}

#[test]
fn the_count_follows_an_interface_that_goes_and_comes_back() {
    in_namespace(&[], || {
        let explicit = Explicit::acquire().unwrap();
        let leg = explicit.leg("returns").unwrap();
        let mut counter = counter(&leg, "sat0");
        counter.follow().unwrap();
        assert_eq!(counter.read(), None, "it has not come yet");
        for _ in 0..2 {
            let device = Tun::create("sat0").unwrap();
            run("ip", "addr add 192.0.2.1/24 dev sat0", "");
            run("ip", "link set sat0 up", "");
            counter.follow().unwrap();
            let from = UdpSocket::bind("192.0.2.1:0").unwrap();
            let datagram = || assert_eq!(from.send_to(&[0; 72], "192.0.2.2:9").unwrap(), 72);
            let sent = counted(&mut counter, datagram);
            assert!((100..200).contains(&sent), "{sent}");
            drop(device);
            counter.follow().unwrap();
            assert_eq!(counter.read(), None);
        }
    });
}

/// Interfaces of two networks have the same numbers, and a process may have legs in both.
#[test]
fn each_network_and_each_leg_at_an_interface_is_counted_once() {
    in_namespace(&[], || {
        let explicit = Explicit::acquire().unwrap();
        let [leg, same, elsewhere] =
            ["here", "also here", "elsewhere"].map(|name| explicit.leg(name).unwrap());
        let [mut here, mut also] = [&leg, &same].map(|leg| counter(leg, "lo"));
        here.follow().unwrap();
        also.follow().unwrap();
        let datagram = || {
            let [to, from] = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
            from.send_to(&[0; 100], to.local_addr().unwrap()).unwrap();
        };
        assert_eq!(counted(&mut also, || assert_eq!(counted(&mut here, datagram), 128)), 128);
        let there = || {
            in_namespace(&[], || {
                let mut there = counter(&elsewhere, "lo");
                there.follow().unwrap();
                assert_eq!(counted(&mut there, datagram), 128);
            });
        };
        assert_eq!(counted(&mut here, there), 0);
    });
}
