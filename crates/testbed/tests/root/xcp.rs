//! XCP's ends in the kernel and its router at the satellite: rates, losses, and acknowledgements that are
//! full.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Topology, can_run, wait_until};
use bentpipe_kernel::sockopt::{congestion, set_congestion};
use bentpipe_kernel::tcp_info::tcp_info;
use bentpipe_kernel::xcp::{RoomInAcks, Xcp, XcpParameters};
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_testbed::Namespace;
use bentpipe_units::{Probability, Rate};
use socket2::{Domain, Socket, Type};

const FALLBACK: &str = "reno";

/// Counts full headers, and those that have a sum of feedback in them.
const COUNTING: &str = "
    table inet counting {
        chain seen {
            type filter hook input priority 0
            tcp doff 15 counter
            tcp doff 15 tcp option @254,16,16 0x4250 tcp option @254,8,8 8 counter
        }
    }
";

/// A satellite link that loses data, and no acknowledgements.
fn lossy(rate: Rate, rtt_ms: u64, per: f64) -> LinkConfig {
    let reverse = DirectionConfig {
        rate: Some(rate),
        delay: Duration::from_millis(rtt_ms) / 2,
        ..DirectionConfig::default()
    };
    LinkConfig {
        forward: DirectionConfig { per: Probability::new(per).unwrap(), ..reverse.clone() },
        reverse,
    }
}

/// A topology whose gateway has a P-XCP router in front of the link.
fn topology(config: &LinkConfig) -> Topology {
    let router =
        XcpConfig { variant: Variant::PXcp, ..XcpConfig::with_capacity(config.forward.rate.unwrap()) };
    let router = LinkEndConfig { agents: vec![AgentConfig::Xcp(router)], arq: None };
    Topology::with_agents(config, &[router, LinkEndConfig::default()])
}

fn p_xcp(capacity: Option<Rate>) -> Xcp {
    Xcp::acquire(XcpParameters { p_xcp: true, capacity, fallback: FALLBACK }).unwrap()
}

fn make_room(xcp: &Xcp, topology: &Topology) -> RoomInAcks {
    topology.terminal.run(|| xcp.make_room_on("sat0")).unwrap().unwrap()
}

fn socket(address: IpAddr, congestion: &str) -> Socket {
    let domain = if address.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::STREAM, None).unwrap();
    set_congestion(&socket, congestion).unwrap();
    socket
}

/// The gateway's end, which sends, and the terminal's, which receives.
fn connect(topology: &Topology, xcp: &Xcp, address: IpAddr) -> [TcpStream; 2] {
    let listener: TcpListener = topology
        .gateway
        .run(|| {
            let socket = socket(address, xcp.name());
            socket.bind(&SocketAddr::new(address, 80).into()).unwrap();
            socket.listen(1).unwrap();
            socket.into()
        })
        .unwrap();
    let client = topology.terminal.run(|| {
        let socket = socket(address, xcp.name());
        socket.connect(&SocketAddr::new(address, 80).into()).unwrap();
        TcpStream::from(socket)
    });
    [listener.accept().unwrap().0, client.unwrap()]
}

/// Sends without end, as long as somebody reads.
fn start_sending(sender: &TcpStream) {
    let mut sender = sender.try_clone().unwrap();
    thread::spawn(move || {
        let block = vec![7; 65_536];
        while sender.write_all(&block).is_ok() {}
    });
}

/// Reads so many bytes; how long it took.
fn receive(receiver: &mut TcpStream, bytes: u64) -> Duration {
    let start = Instant::now();
    let read = std::io::copy(&mut receiver.take(bytes), &mut std::io::sink()).unwrap();
    assert_eq!(read, bytes);
    start.elapsed()
}

fn counted(host: &Namespace) -> [u64; 2] {
    let mut list = host.command("nft");
    let rules = list.args(["list", "table", "inet", "counting"]).output().unwrap();
    let rules = String::from_utf8(rules.stdout).unwrap();
    let counts = rules.lines().filter_map(|line| line.split("packets ").nth(1));
    let counts: Vec<u64> = counts.map(|count| count.split(' ').next().unwrap().parse().unwrap()).collect();
    counts.try_into().expect("two rules")
}

/// TCP segments that the calling thread's host has dropped for their checksum (proc_net_snmp,
/// `InCsumErrors`).
fn wrong_checksums() -> u64 {
    let lines = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut tcp = lines.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (tcp.next().unwrap().split(' '), tcp.next().unwrap().split(' '));
    names.zip(values).find(|(name, _)| *name == "InCsumErrors").unwrap().1.parse().unwrap()
}

#[test]
fn p_xcp_fills_a_satellite_that_loses_one_packet_in_a_hundred() {
    if !can_run() {
        return;
    }
    let rate = Rate::mbps(10);
    let topology = topology(&lossy(rate, 600, 0.01));
    let xcp = p_xcp(Some(rate));
    let _room = make_room(&xcp, &topology);
    let [sender, mut receiver] = connect(&topology, &xcp, topology.subnet.left4().into());
    start_sending(&sender);
    // The receive window has opened and the rate is there; then what a disk image is made of.
    receive(&mut receiver, 5_000_000);
    let took = receive(&mut receiver, 10_000_000);
    let goodput = 80e6 / took.as_secs_f64();
    // Headers with timestamps and the request are 68 bytes of each packet.
    let limit = rate.bps() as f64 * 1432.0 / 1500.0 * 0.99;
    assert!(goodput >= 0.7 * limit, "{goodput:.0} bit/s of {limit:.0}: {:?}", tcp_info(&sender));
    assert_eq!(congestion(&sender).unwrap(), xcp.name());
    let counters = topology.link.counters().0;
    assert!(counters.dropped.packet_error > 50, "the link was not lossy: {counters:?}");
    assert_eq!(counters.dropped.queue_full, 0, "{counters:?}");
}

#[test]
fn feedback_comes_through_where_sack_blocks_fill_every_acknowledgement() {
    if !can_run() {
        return;
    }
    let rate = Rate::mbps(40);
    let topology = topology(&lossy(rate, 200, 0.05));
    let addresses: [IpAddr; 2] = [topology.subnet.left4().into(), topology.subnet.left6().into()];
    for address in addresses.into_iter().filter(|address| address.is_ipv4() || topology.gateway.has_ipv6()) {
        let xcp = p_xcp(Some(rate));
        let _room = make_room(&xcp, &topology);
        let [sender, mut receiver] = connect(&topology, &xcp, address);
        start_sending(&sender);
        receive(&mut receiver, 3_000_000);
        // From here on many segments are missing at any time.
        topology.gateway.nft(COUNTING).unwrap();
        receive(&mut receiver, 7_000_000);
        let [full, sums] = counted(&topology.gateway);
        assert!(full > 1000 && sums * 8 > full, "{address}: {sums} of {full} tell of feedback");
        assert_eq!(congestion(&sender).unwrap(), xcp.name(), "{address}: {:?}", tcp_info(&sender));
        topology.gateway.nft("delete table inet counting").unwrap();
        assert_eq!(topology.gateway.run(wrong_checksums).unwrap(), 0);
    }
}

#[test]
fn feedback_comes_through_where_data_go_both_ways() {
    if !can_run() {
        return;
    }
    let rate = Rate::mbps(10);
    let topology = topology(&lossy(rate, 100, 0.0));
    let xcp = p_xcp(Some(rate));
    let [mut gateway, mut terminal] = connect(&topology, &xcp, topology.subnet.left4().into());
    let ends = [gateway.try_clone().unwrap(), terminal.try_clone().unwrap()];
    ends.iter().for_each(start_sending);
    thread::scope(|scope| {
        scope.spawn(|| receive(&mut gateway, 3_000_000));
        receive(&mut terminal, 3_000_000);
    });
    assert_eq!(ends.each_ref().map(|end| congestion(end).unwrap()), [xcp.name(), xcp.name()]);
}

#[test]
fn a_sender_that_nothing_tells_of_the_capacity_falls_back() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&lossy(Rate::mbps(10), 100, 0.0));
    let xcp = p_xcp(None);
    let [sender, mut receiver] = connect(&topology, &xcp, topology.subnet.left4().into());
    start_sending(&sender);
    // It gives up before this takes a minute: what it would ask for grows and grows.
    (0..50)
        .find(|_| {
            receive(&mut receiver, 1_000_000);
            congestion(&sender).unwrap() == FALLBACK
        })
        .expect("the sender has noticed the queue");
}

#[test]
fn a_sum_that_claims_too_much_brings_no_more_than_was_asked_for() {
    if !can_run() {
        return;
    }
    let config = lossy(Rate::mbps(100), 100, 0.0);
    let topology = Topology::new(&config);
    let xcp = p_xcp(None);
    let [mut sender, mut receiver] = connect(&topology, &xcp, topology.subnet.left4().into());
    // 2 GB/s, where a segment asks for some 15 kB/s.
    let lie = "tcp option @254,8,8 8 tcp option @254,32,32 set 0x7fff0000";
    let rules =
        format!("table ip lying {{\nchain path {{\ntype filter hook output priority 0\n{lie}\n}}\n}}\n");
    topology.terminal.nft(&rules).unwrap();
    let before = tcp_info(&sender).unwrap().cwnd;
    sender.write_all(&[7; 10_000]).unwrap();
    receive(&mut receiver, 10_000);
    wait_until("all is acknowledged", || tcp_info(&sender).unwrap().unacked == 0);
    let after = tcp_info(&sender).unwrap().cwnd;
    // Each segment asks for as much as itself.
    assert!(after > before && after <= 2 * before, "{before} segments, then {after}");
}
