//! What leaves by an interface and is not data of connections with explicit rates is counted, and nothing
//! else; and what is beyond a limit is marked or dropped.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use bentpipe_kernel::cross_traffic::CrossTrafficCounter;
use bentpipe_kernel::explicit::{Explicit, SharedLeg};
use bentpipe_kernel::rated_leg::RatedLeg;
use bentpipe_kernel::sockopt;
use bentpipe_kernel::tun::Tun;
use bentpipe_link::explicit::{CrossTrafficLimit, EgressCount, FLOW_BUCKETS, Signalled};
use bentpipe_units::Time;
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};

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
            // Closing it would not do: a child that another test starts may hold it for a moment.
            run("ip", "link del sat0", "");
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

/// A second's worth of the limit below is a thousand of these datagrams.
const PAYLOAD: [u8; 972] = [0; 972];
const LIMIT: CrossTrafficLimit = CrossTrafficLimit {
    rate: 1e6,
    target: Duration::from_millis(5),
    interval: Duration::from_millis(100),
    may_drop: false,
    judged: [u64::MAX; FLOW_BUCKETS / 64],
};
/// The two lowest bits of the second byte of IP (RFC 3168 §5).
const NOT_ECT: u8 = 0;
const ECT0: u8 = 2;
const CE: u8 = 3;

/// A device through which a leg sends, with its counter.
struct Leg {
    device: Tun,
    counter: CrossTrafficCounter,
}

impl Leg {
    fn new(leg: &SharedLeg) -> Self {
        let device = Tun::create("sat0").unwrap();
        run("ip", "addr add 192.0.2.1/24 dev sat0", "");
        run("ip", "link set sat0 up txqueuelen 2000", "");
        let mut counter = counter(leg, "sat0");
        counter.follow().unwrap();
        let leg = Self { device, counter };
        // What the kernel itself sends by a new interface.
        thread::sleep(Duration::from_millis(50));
        leg.sent();
        leg
    }

    fn limit(&self, limit: &CrossTrafficLimit) {
        self.counter.limit(now(), Some(limit));
    }

    /// The bytes that have left beside the leg's connections.
    fn counted(&mut self) -> u64 {
        match self.counter.read() {
            Some(EgressCount::CrossTraffic(bytes)) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// The ECN fields of the packets of IPv4 that have left since the last call.
    fn sent(&self) -> Vec<u8> {
        let (mut packet, mut fields) = ([0; 2000], Vec::new());
        while self.device.read(&mut packet).is_ok() {
            if packet[0] == 0x45 {
                fields.push(packet[1] & 3);
            }
        }
        fields
    }

    /// Sends so many datagrams at once, and returns how many have left: with CE, and without.
    fn burst(&self, socket: &Socket, count: usize) -> [usize; 2] {
        let to = "192.0.2.2:9".parse::<std::net::SocketAddr>().unwrap().into();
        for _ in 0..count {
            // A packet that is dropped is an error of its own to a local sender (ENOBUFS).
            let _ = socket.send_to(&PAYLOAD, &to);
        }
        let sent = self.sent();
        let marked = sent.iter().filter(|&&ecn| ecn == CE).count();
        [marked, sent.len() - marked]
    }
}

fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

fn datagrams(ecn: u8) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.set_tos_v4(ecn.into()).unwrap();
    socket.set_send_buffer_size(4 << 20).unwrap();
    socket
}

/// Runs `test` with a leg of its own in a network of its own.
fn with_leg(name: &str, test: impl FnOnce(&mut Leg) + Send) {
    in_namespace(&[], || {
        let explicit = Explicit::acquire().unwrap();
        test(&mut Leg::new(&explicit.leg(name).unwrap()));
    });
}

#[test]
fn packets_beyond_the_limit_are_marked_if_they_can_be_and_else_pass() {
    with_leg("marks", |leg| {
        let [ecn, other] = [ECT0, NOT_ECT].map(datagrams);
        assert_eq!(leg.burst(&ecn, 300), [0, 300], "without a limit");
        leg.limit(&LIMIT);
        // 25 ms are 25 packets; a burst takes a few milliseconds, in which some more drain.
        let [marked, unmarked] = leg.burst(&ecn, 300);
        assert!(marked + unmarked == 300 && marked >= 200, "{marked} and {unmarked}");
        assert_eq!(leg.counter.signalled(), Signalled { marked: marked as u64, dropped: 0 });
        assert_eq!(leg.burst(&other, 300), [0, 300], "they cannot be marked, and may not be dropped");
    });
}

#[test]
fn packets_that_cannot_be_marked_are_dropped_where_they_may_be() {
    with_leg("drops", |leg| {
        leg.limit(&CrossTrafficLimit { may_drop: true, ..LIMIT });
        let before = leg.counted();
        let [marked, sent] = leg.burst(&datagrams(NOT_ECT), 300);
        assert!(marked == 0 && (20..100).contains(&sent), "{sent}");
        assert_eq!(leg.counted() - before, 1000 * sent as u64, "what is dropped has not left");
        assert_eq!(leg.counter.signalled(), Signalled { marked: 0, dropped: 300 - sent as u64 });
    });
}

#[test]
fn nothing_is_dropped_of_flows_that_are_not_named_nor_of_icmp_nor_by_a_limit_that_is_over() {
    with_leg("passes", |leg| {
        let may_drop = CrossTrafficLimit { may_drop: true, ..LIMIT };
        leg.limit(&CrossTrafficLimit { judged: [0; FLOW_BUCKETS / 64], ..may_drop });
        assert_eq!(leg.burst(&datagrams(NOT_ECT), 300), [0, 300], "not named");
        leg.limit(&may_drop);
        let ping = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
        assert_eq!(leg.burst(&ping, 300), [0, 300], "ICMP");
        let a_while_ago = Time::from_nanos(now().as_nanos() - 1_100_000_000);
        leg.counter.limit(a_while_ago, Some(&may_drop));
        assert_eq!(leg.burst(&datagrams(NOT_ECT), 300), [0, 300], "not renewed");
        leg.limit(&may_drop);
        leg.counter.limit(now(), None);
        assert_eq!(leg.burst(&datagrams(NOT_ECT), 300), [0, 300], "taken back");
        assert_eq!(leg.counter.signalled(), Signalled::default());
    });
}

#[test]
fn flows_are_counted_while_there_is_a_limit() {
    with_leg("flows", |leg| {
        let (mut flows, socket) = (Vec::new(), datagrams(NOT_ECT));
        let mut sum = || {
            assert!(leg.counter.read_flows(&mut flows));
            assert_eq!(flows.len(), FLOW_BUCKETS);
            (flows.iter().sum::<u64>(), flows.iter().filter(|&&bytes| bytes > 0).count())
        };
        leg.burst(&socket, 10);
        assert_eq!(sum().0, 0);
        leg.limit(&LIMIT);
        leg.burst(&socket, 10);
        assert_eq!(sum(), (10_000, 1));
        for _ in 0..20 {
            leg.burst(&datagrams(NOT_ECT), 1);
        }
        let (bytes, buckets) = sum();
        assert!(bytes == 30_000 && buckets > 10, "{bytes} in {buckets}");
    });
}
