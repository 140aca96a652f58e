//! The daemon's XCP routers: what they hand out follows from what passes and from the capacity, and no flow is harmed.

mod common;

use std::io::Read;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use bentpipe_kernel::router::programs_at;
use common::exchange::Exchange;
use common::{Host, Net, PATIENCE, Running, SERVER, network};
use socket2::{Domain, Protocol, Socket, Type};

fn leg(congestion: &str, rate: &str) -> String {
    format!("[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"{congestion}\"\nrate = \"{rate}\"\n")
}

fn started(net: &Net, text: &str) -> Running {
    net.try_daemon(text).unwrap_or_else(|error| panic!("daemon: {error}"))
}

fn programs(net: &Net) -> u32 {
    net.gateway.enter(|| programs_at("sat0").unwrap())
}

/// A sender on the gateway that asks for more in each of its packets, and what the server gets of it.
struct Asker {
    sender: Socket,
    receiver: Socket,
}

impl Asker {
    const ASKED: i32 = 1_000_000;
    /// Of nobody.
    const PORT: [u8; 2] = [0x42, 0x50];

    fn new(net: &Net) -> Self {
        let raw =
            |host: &Host| host.enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap());
        let (sender, receiver) = (raw(&net.gateway), raw(&net.server));
        sender.connect(&SocketAddrV4::new(SERVER[0].parse().unwrap(), 0).into()).unwrap();
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { sender, receiver }
    }

    /// Sends a packet each two milliseconds until one arrives whose feedback is as wanted.
    fn wait_for(&mut self, is_wanted: impl Fn(i32) -> bool) -> i32 {
        let start = Instant::now();
        loop {
            self.send();
            let feedback = self.receive();
            if is_wanted(feedback) {
                return feedback;
            }
            assert!(start.elapsed() < PATIENCE, "the feedback is still {feedback}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A kilobyte behind a congestion header that says 20 ms and 2 ms.
    fn send(&self) {
        let mut segment =
            [&Self::PORT[..], &Self::PORT, &[0; 8], &[9 << 4, 0x10, 0xff, 0xff, 0, 0, 0, 0]].concat();
        segment.extend([254, 16, 0x42, 0x50]);
        segment.extend([20_000u32, 2_000_000].map(u32::to_be_bytes).concat());
        segment.extend(Self::ASKED.to_be_bytes());
        segment.resize(1000, 0);
        self.sender.send(&segment).unwrap();
    }

    fn receive(&mut self) -> i32 {
        let mut packet = [0; 2048];
        loop {
            let length = self.receiver.read(&mut packet).unwrap();
            // Behind an IP header without options.
            if length == 1020 && packet[20..22] == Self::PORT {
                return i32::from_be_bytes(packet[52..56].try_into().unwrap());
            }
        }
    }
}

#[test]
fn spare_capacity_is_handed_out_and_too_much_traffic_taken_back_without_a_restart() {
    let Some(net) = network() else { return };
    for congestion in ["xcp", "p-xcp"] {
        let mut daemon = started(&net, &leg(congestion, "80Mbit/s"));
        let mut asker = Asker::new(&net);
        let given = asker.wait_for(|feedback| feedback > 0);
        assert!(given < Asker::ASKED, "{given}");
        assert!(daemon.counter("xcp_headers") > 0 && daemon.counter("xcp_lowered") > 0);
        daemon.reload(&leg(congestion, "80kbit/s")).unwrap();
        let taken = asker.wait_for(|feedback| feedback < 0);
        println!("{congestion}: {given} of 80 Mbit/s, {taken} of 80 kbit/s");
        daemon.reload(&leg(congestion, "80Mbit/s")).unwrap();
        asker.wait_for(|feedback| feedback > 0);
        assert_eq!(programs(&net), 1);
        daemon.stop();
        assert_eq!(programs(&net), 0);
    }
}

#[test]
fn flows_pass_the_router_as_they_are() {
    let Some(net) = network() else { return };
    let mut daemon = started(&net, &leg("p-xcp", "1Gbit/s"));
    for address in SERVER {
        Exchange::start(net.connection(&net.listen(address)), 2_000_000).expect_identical();
    }
    // The thread counts when it wakes.
    let start = Instant::now();
    while daemon.counter("xcp_packets") < 2 * 2_000_000 / 1448 {
        assert!(start.elapsed() < PATIENCE, "{}", daemon.counter("xcp_packets"));
    }
    assert_eq!((daemon.counter("xcp_headers"), daemon.counter("xcp_malformed")), (0, 0));
    daemon.settle();
}

#[test]
fn the_router_ends_with_a_daemon_that_is_killed() {
    let Some(net) = network() else { return };
    let daemon = started(&net, &leg("xcp", "10Mbit/s"));
    assert_eq!(programs(&net), 1);
    daemon.kill();
    let start = Instant::now();
    while programs(&net) > 0 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let asked = Asker::new(&net).wait_for(|_| true);
    assert_eq!(asked, Asker::ASKED);
}

#[test]
fn a_router_where_there_was_none_needs_a_restart() {
    let Some(net) = network() else { return };
    let mut daemon = started(&net, &leg("reno", "10Mbit/s"));
    assert_eq!(programs(&net), 0);
    let error = daemon.reload(&leg("xcp", "10Mbit/s")).unwrap_err();
    assert!(error.contains("xcp") && error.contains("restart"), "{error}");
    daemon.reload(&leg("cubic", "10Mbit/s")).unwrap();
    daemon.stop();
}
