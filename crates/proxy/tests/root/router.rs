//! The daemon's XCP routers: what they hand out follows from what passes and from the capacity, and no flow
//! is harmed.

use std::io::Read;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use crate::common::company::alone;
use crate::common::exchange::Exchange;
use crate::common::{Host, Net, PATIENCE, Running, SERVER, network};
use bentpipe_kernel::router::{Router, RouterConfig, Variant, programs_at};
use bentpipe_units::Rate;
use socket2::{Domain, Protocol, Socket, Type};

fn leg(congestion: &str, rate: &str) -> String {
    format!("[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"{congestion}\"\nrate = \"{rate}\"\n")
}

fn started(net: &Net, text: &str) -> Running {
    net.try_daemon(text).unwrap_or_else(|error| panic!("daemon: {error}"))
}

fn programs(net: &Net) -> usize {
    net.gateway.enter(|| programs_at("sat0").unwrap())
}

/// Raw sockets for segments from the gateway to the server, each of a kilobyte and with a congestion header.
struct Wire {
    sender: Socket,
    receiver: Socket,
}

/// What each segment asks for, bytes per second.
const ASKED: i32 = 1_000_000;
/// Bytes of a segment, and of the IP packet that it is in.
const SEGMENT: usize = 980;
const PACKET: usize = 1000;

impl Wire {
    fn new(net: &Net) -> Self {
        let raw =
            |host: &Host| host.enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap());
        let (sender, receiver) = (raw(&net.gateway), raw(&net.server));
        sender.connect(&SocketAddrV4::new(SERVER[0].parse().unwrap(), 0).into()).unwrap();
        receiver.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { sender, receiver }
    }

    /// A segment of `flow`, whose sender says that its round trip is so long and that it sends a packet in
    /// each `spacing`.
    fn send(&self, flow: u16, rtt: Duration, spacing: Duration) {
        let mut segment = [flow, flow].map(u16::to_be_bytes).concat();
        segment.extend([0, 0, 0, 0, 0, 0, 0, 0, 9 << 4, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend([254, 16, 0x42, 0x50]);
        segment.extend((rtt.as_micros() as u32).to_be_bytes());
        segment.extend((spacing.as_nanos() as u32).to_be_bytes());
        segment.extend(ASKED.to_be_bytes());
        segment.resize(SEGMENT, 0);
        self.sender.send(&segment).unwrap();
    }

    /// The next that has arrived: of which flow, and its feedback. The server's answers that it knows no such
    /// connection are not heard here, since they leave it.
    fn receive(&mut self) -> Option<(u16, i32)> {
        let mut packet = [0; 2048];
        loop {
            match self.receiver.read(&mut packet) {
                Ok(PACKET) => break,
                Ok(_) => {}
                Err(_) => return None,
            }
        }
        // Behind an IP header without options.
        let flow = u16::from_be_bytes([packet[20], packet[21]]);
        Some((flow, i32::from_be_bytes(packet[52..56].try_into().unwrap())))
    }

    /// Sends a packet each two milliseconds until one arrives whose feedback is as wanted.
    fn wait_for(&mut self, is_wanted: impl Fn(i32) -> bool) -> i32 {
        let start = Instant::now();
        loop {
            self.send(7, Duration::from_millis(20), Duration::from_millis(2));
            let (_, feedback) = self.receive().expect("a packet that was sent");
            if is_wanted(feedback) {
                return feedback;
            }
            assert!(start.elapsed() < PATIENCE, "the feedback is still {feedback}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A sender that does as it is told.
struct Obedient {
    flow: u16,
    /// Bytes per second.
    rate: f64,
    /// Bytes that should have been sent by now and have not.
    due: f64,
}

impl Obedient {
    const RTT: Duration = Duration::from_millis(50);

    fn new(flow: u16, rate: f64) -> Self {
        Self { flow, rate, due: 0.0 }
    }

    fn send(&mut self, wire: &Wire, elapsed: Duration) {
        self.due += self.rate * elapsed.as_secs_f64();
        let spacing = Duration::from_secs_f64(PACKET as f64 / self.rate);
        while self.due >= PACKET as f64 {
            wire.send(self.flow, Self::RTT, spacing);
            self.due -= PACKET as f64;
        }
    }

    fn obey(&mut self, feedback: i32) {
        self.rate = (self.rate + f64::from(feedback)).max(PACKET as f64 / Self::RTT.as_secs_f64());
    }
}

#[test]
fn spare_capacity_is_handed_out_and_too_much_traffic_taken_back_without_a_restart() {
    let _alone = alone();
    let Some(net) = network() else { return };
    for congestion in ["xcp", "p-xcp"] {
        let mut daemon = started(&net, &leg(congestion, "80Mbit/s"));
        let mut wire = Wire::new(&net);
        // An idle link is offered, and may have all that the first one asks for.
        let given = wire.wait_for(|feedback| feedback > 0);
        assert!(given <= ASKED, "{given}");
        daemon.reload(&leg(congestion, "80kbit/s")).unwrap();
        let taken = wire.wait_for(|feedback| feedback < 0);
        // The thread counts when it wakes.
        let start = Instant::now();
        while daemon.counter("xcp_headers") == 0 || daemon.counter("xcp_lowered") == 0 {
            assert!(start.elapsed() < PATIENCE, "{}", daemon.counter("xcp_headers"));
        }
        println!("{congestion}: {given} of 80 Mbit/s, {taken} of 80 kbit/s");
        daemon.reload(&leg(congestion, "80Mbit/s")).unwrap();
        wire.wait_for(|feedback| feedback > 0);
        // The router, and room in acknowledgements for either rate while there are listeners for it.
        assert_eq!(programs(&net), 3);
        daemon.stop();
        assert_eq!(programs(&net), 0);
    }
}

#[test]
fn senders_that_obey_come_to_share_the_capacity_evenly() {
    let _alone = alone();
    let Some(net) = network() else { return };
    let daemon = started(&net, &leg("xcp", "8Mbit/s"));
    let mut wire = Wire::new(&net);
    wire.receiver.set_nonblocking(true).unwrap();
    // The one has half of the capacity, the other nearly nothing.
    let mut senders = [Obedient::new(0, 500_000.0), Obedient::new(1, 20_000.0)];
    let (start, mut last, mut settled) = (Instant::now(), Instant::now(), 0);
    while settled < 200 {
        std::thread::sleep(Duration::from_millis(1));
        let elapsed = last.elapsed();
        last += elapsed;
        senders.iter_mut().for_each(|sender| sender.send(&wire, elapsed));
        while let Some((flow, feedback)) = wire.receive() {
            senders[usize::from(flow)].obey(feedback);
        }
        let rates = [senders[0].rate, senders[1].rate];
        let [sum, squares] = [rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum()];
        let is_fair = sum * sum / (2.0 * squares) > 0.99;
        settled = if is_fair && (900_000.0..1_100_000.0).contains(&sum) { settled + 1 } else { 0 };
        assert!(start.elapsed() < PATIENCE, "{rates:?} of 1000000");
    }
    println!("{:?} after {:?}", senders.map(|sender| sender.rate), start.elapsed());
    daemon.settle();
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
    assert_eq!(programs(&net), 2, "the router, and room in acknowledgements");
    daemon.kill();
    let start = Instant::now();
    while programs(&net) > 0 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(Wire::new(&net).wait_for(|_| true), ASKED);
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

#[test]
fn a_leg_without_a_router_has_the_next_best_congestion_control() {
    let Some(net) = network() else { return };
    let config =
        RouterConfig { capacity: Rate::mbps(10), variant: Variant::Xcp, longest_rtt: Duration::from_secs(1) };
    // Until the interface has no room for another program.
    let attach = || Router::attach("sat0", &config).ok();
    let others: Vec<_> = net.gateway.enter(|| std::iter::from_fn(attach).take(1000).collect());
    assert!((1..1000).contains(&others.len()));
    let mut daemon = started(&net, &leg("xcp", "10Mbit/s"));
    // What cannot be had is no reason to refuse what it goes on with.
    daemon.reload(&leg("xcp", "20Mbit/s")).unwrap();
    let (client, server) = net.connection(&net.listen(SERVER[0]));
    let sockets = net.gateway.output("ss -Htinoe state established");
    assert!(sockets.contains("bp_explicit"), "{sockets}");
    Exchange::start((client, server), 100_000).expect_identical();
    assert_eq!(daemon.counter("xcp_packets"), 0);
    daemon.stop();
}
