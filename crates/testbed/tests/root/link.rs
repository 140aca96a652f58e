//! Real packets of real namespaces over the satellite link.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Topology, can_run, delay, symmetric, wait_until};
use bentpipe_link::{DirectionConfig, Impairments, OutageTrace};
use bentpipe_units::{Probability, Rate, Time};
use sha2::{Digest, Sha256};

#[test]
fn an_echo_takes_both_delays() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(150));
    topology.start_echo();
    let socket = topology.terminal_socket(topology.echo());
    let asked = Instant::now();
    socket.send(b"are you there?").unwrap();
    let mut answer = [0; 100];
    let len = socket.recv(&mut answer).unwrap();
    assert_eq!(&answer[..len], b"are you there?");
    // Never early; a loaded machine may make it late.
    assert!(asked.elapsed() >= Duration::from_millis(300), "{:?}", asked.elapsed());
}

#[test]
fn ipv6_crosses_the_link() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(1));
    if !topology.gateway.has_ipv6() {
        println!("skipped: this kernel has no IPv6");
        return;
    }
    topology.start_echo();
    let socket = topology.terminal_socket((topology.subnet.left6(), 7));
    socket.send(b"six").unwrap();
    let mut answer = [0; 100];
    assert_eq!(socket.recv(&mut answer).unwrap(), 3);
}

#[test]
fn an_idle_link_carries_nothing() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(1));
    thread::sleep(Duration::from_millis(1500));
    let (forward, reverse) = topology.link.counters();
    assert_eq!((forward.offered, reverse.offered), (0, 0), "the kernel talks on its own");
}

#[test]
fn packet_errors_are_counted_and_nothing_else_is_lost() {
    if !can_run() {
        return;
    }
    let lossy = DirectionConfig { per: Probability::new(0.2).unwrap(), ..DirectionConfig::default() };
    let topology = Topology::new(&symmetric(lossy));
    let sink = topology.gateway.run(|| std::net::UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    let socket = topology.terminal_socket((topology.subnet.left4(), 9));
    for _ in 0..1000 {
        socket.send(&[0; 100]).unwrap();
    }
    wait_until("all packets offered", || topology.link.counters().1.offered == 1000);
    let counters = topology.link.counters().1;
    wait_until("survivors delivered", || topology.link.delivered().1.packets == counters.delivered);
    assert_eq!(counters.delivered + counters.dropped.packet_error, 1000);
    // 200 are expected; the standard error is 13.
    assert!((150..250).contains(&counters.dropped.packet_error), "{counters:?}");
    assert_eq!(topology.link.unintended_drops().unwrap(), 0);
    drop(sink);
}

#[test]
fn a_full_queue_drops_and_counts() {
    if !can_run() {
        return;
    }
    let slow = DirectionConfig {
        rate: Rate::from_bps(1_000_000),
        queue: Some("15kB".parse().unwrap()),
        ..DirectionConfig::default()
    };
    let topology = Topology::new(&symmetric(slow));
    let socket = topology.terminal_socket((topology.subnet.left4(), 9));
    for _ in 0..100 {
        // An answer that the port is closed comes back as an error of a later send.
        let _ = socket.send(&[0; 1400]);
    }
    wait_until("packets dropped", || topology.link.counters().1.dropped.queue_full > 0);
}

#[test]
fn a_tcp_transfer_over_a_lossy_link_is_identical() {
    if !can_run() {
        return;
    }
    let lossy = DirectionConfig {
        rate: Rate::from_bps(50_000_000),
        delay: Duration::from_millis(5),
        per: Probability::new(0.01).unwrap(),
        ..DirectionConfig::default()
    };
    let topology = Topology::new(&symmetric(lossy));
    let sent: Vec<u8> = (0..2_000_000_u32).flat_map(|n| n.to_le_bytes()).take(2_000_000).collect();
    let digest = Sha256::digest(&sent);
    let listener = topology.gateway.run(|| TcpListener::bind("0.0.0.0:80")).unwrap().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = stream.read(&mut [0]);
    });
    let mut client =
        topology.terminal.run(|| TcpStream::connect((topology.subnet.left4(), 80))).unwrap().unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    drop(client);
    server.join().unwrap();
    assert_eq!(Sha256::digest(&received), digest);
    assert!(topology.link.counters().0.dropped.packet_error > 0, "the link was not lossy");
    assert!(topology.link.delivered_bytes().0 >= 2_000_000);
    assert_eq!(topology.link.unintended_drops().unwrap(), 0);
    topology.link.check().unwrap();
}

#[test]
fn a_commanded_outage_loses_packets_and_its_end_restores_the_link() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(10));
    topology.start_echo();
    let socket = topology.terminal_socket(topology.echo());
    let mut answer = [0; 10];
    topology.link.set_outage(true);
    for _ in 0..5 {
        socket.send(b"lost").unwrap();
    }
    wait_until("five lost to the outage", || topology.link.counters().1.dropped.outage == 5);
    topology.link.set_outage(false);
    socket.send(b"back").unwrap();
    assert_eq!(socket.recv(&mut answer).unwrap(), 4);
    assert_eq!(&answer[..4], b"back");
    let (forward, reverse) = topology.link.counters();
    assert_eq!((reverse.offered, reverse.delivered, forward.delivered), (6, 1, 1));
}

#[test]
fn a_packet_in_flight_when_the_link_is_cut_arrives() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(300));
    let sink = topology.gateway.run(|| std::net::UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    topology.terminal_socket((topology.subnet.left4(), 9)).send(b"first").unwrap();
    wait_until("the packet has left", || topology.link.counters().1.offered == 1);
    topology.link.set_outage(true);
    assert_eq!(sink.recv(&mut [0; 10]).unwrap(), 5);
}

/// Sends `count` numbered datagrams, few enough for a socket's buffer, and returns the numbers that arrive at
/// the gateway until nothing has come for a while.
fn numbers_that_arrive(topology: &Topology, count: u32) -> Vec<u32> {
    // Any port: a process that another test forks may have the last socket of this one for a moment.
    let sink = topology.gateway.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    let port = sink.local_addr().unwrap().port();
    sink.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let socket = topology.terminal_socket((topology.subnet.left4(), port));
    (0..count).for_each(|number| assert_eq!(socket.send(&number.to_be_bytes()).unwrap(), 4));
    let mut packet = [0; 4];
    std::iter::from_fn(|| sink.recv(&mut packet).is_ok().then(|| u32::from_be_bytes(packet))).collect()
}

/// UDP datagrams that were dropped for their checksum, or IPv4 packets for that of their header.
fn checksum_errors(topology: &Topology) -> u64 {
    let read = |table: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap();
    let counter = |text: &str, family: &str, name: &str| -> u64 {
        let mut lines = text.lines().filter(|line| line.starts_with(family)).map(str::split_whitespace);
        let column = lines.next().unwrap().position(|word| word == name).unwrap();
        lines.next().unwrap().nth(column).unwrap().parse().unwrap()
    };
    let at_gateway = || {
        let (snmp, netstat) = (read("snmp"), read("netstat"));
        counter(&snmp, "Udp:", "InCsumErrors") + counter(&netstat, "IpExt:", "InCsumErrors")
    };
    topology.gateway.run(at_gateway).unwrap()
}

#[test]
fn packets_held_back_are_overtaken_and_all_arrive() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(1));
    let reorder_by = Duration::from_millis(20);
    topology
        .link
        .impair(&Impairments { reorder: "10%".parse().unwrap(), reorder_by, ..Default::default() }, 1);
    let mut numbers = numbers_that_arrive(&topology, 200);
    assert!(!numbers.is_sorted());
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..200));
    let held_back = topology.link.impairment_counters().1.held_back;
    assert!((5..40).contains(&held_back), "{held_back}");
}

#[test]
fn a_duplicated_packet_arrives_twice() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(1));
    topology.link.impair(&Impairments { duplicate: "1".parse().unwrap(), ..Default::default() }, 1);
    assert!(numbers_that_arrive(&topology, 100).into_iter().eq((0..200).map(|number| number / 2)));
    let (delivered, counters) = (topology.link.delivered().1.packets, topology.link.counters().1);
    assert_eq!((delivered, counters.offered, counters.delivered), (200, 100, 100));
}

#[test]
fn the_receiving_kernel_finds_every_corrupted_packet_by_its_checksum() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(1));
    assert!(numbers_that_arrive(&topology, 200).into_iter().eq(0..200));
    assert_eq!(checksum_errors(&topology), 0, "packets have no complete checksums before they are corrupted");
    topology.link.impair(&Impairments { corrupt: "50%".parse().unwrap(), ..Default::default() }, 1);
    let numbers = numbers_that_arrive(&topology, 200);
    let corrupted = topology.link.impairment_counters().1.corrupted;
    // Nothing wrong arrives, and nothing right is missing.
    assert!(numbers.is_sorted() && numbers.iter().all(|&number| number < 200), "{numbers:?}");
    assert_eq!(numbers.len() as u64, 200 - corrupted);
    assert!(corrupted > 50 && checksum_errors(&topology) > corrupted / 2, "{corrupted}");
    assert_eq!(topology.link.unintended_drops().unwrap(), 0);
}

#[test]
fn an_outage_of_the_trace_begins_with_the_link() {
    if !can_run() {
        return;
    }
    let dark: OutageTrace = [(Time::ZERO, Duration::from_secs(3600))].into_iter().collect();
    let topology = Topology::new(&symmetric(DirectionConfig { outages: dark, ..DirectionConfig::default() }));
    topology.terminal_socket(topology.echo()).send(b"hello?").unwrap();
    wait_until("the packet is lost", || topology.link.counters().1.dropped.outage == 1);
}

#[test]
fn the_packets_on_the_link_are_not_larger_than_its_mtu() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(1));
    let listener = topology.gateway.run(|| TcpListener::bind("0.0.0.0:80")).unwrap().unwrap();
    let server = thread::spawn(move || {
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        received.len()
    });
    let mut client =
        topology.terminal.run(|| TcpStream::connect((topology.subnet.left4(), 80))).unwrap().unwrap();
    client.write_all(&[7; 500_000]).unwrap();
    drop(client);
    assert_eq!(server.join().unwrap(), 500_000);
    let counters = topology.link.counters().1;
    // A segmentation offload would show as a few packets of up to 64 KiB.
    assert!(counters.offered_bytes <= counters.offered * 1500, "{counters:?}");
    assert!(counters.offered >= 500_000 / 1460, "{counters:?}");
}

#[test]
fn a_packet_that_corruption_makes_one_of_no_ip_is_no_unintended_drop() {
    if !can_run() {
        return;
    }
    let topology = Topology::new(&delay(1));
    topology.link.impair(&Impairments { corrupt: "1".parse().unwrap(), ..Default::default() }, 1);
    let socket = topology.terminal_socket((topology.subnet.left4(), 9));
    for _ in 0..3000 {
        // An answer that the port is closed comes back as an error of a later send.
        while socket.send(&[0; 4]).is_err() {}
    }
    // The version is in 4 of a packet's 256 bits, and one of the four flips makes 4 into 6.
    wait_until("all packets corrupted", || topology.link.impairment_counters().1.corrupted == 3000);
    wait_until("the others written", || topology.link.delivered().1.packets > 2850);
    assert_eq!(topology.link.unintended_drops().unwrap(), 0);
}
