//! Stations at the ends of the satellite link, and real packets through them.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_link::agent::arq::ArqConfig;
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::snoop::SnoopConfig;
use bentpipe_link::agent::{AgentConfig, StationConfig, StationReport};
use bentpipe_link::{DirectionConfig, LinkConfig, Mangling};
use bentpipe_units::{ByteCount, Probability, Rate};
use common::{Bed, can_run, delay, symmetric, wait_until};
use sha2::{Digest, Sha256};

/// A station through which everything passes: an agent without room for any connection.
fn pass_through() -> StationConfig {
    let config = SnoopConfig { flows: 0, ..SnoopConfig::with_cache(ByteCount::new(0)) };
    StationConfig { agents: vec![AgentConfig::Snoop(config)], arq: None }
}

/// All agents where they belong.
fn all_agents(link: &LinkConfig) -> [StationConfig; 2] {
    let snoop = AgentConfig::Snoop(SnoopConfig::with_cache("1MB".parse().unwrap()));
    let delayed = DelayedDupAckConfig::with_delay(link.forward.delay + link.reverse.delay);
    let arq = Some(ArqConfig::for_link(link));
    [
        StationConfig { agents: vec![snoop], arq },
        StationConfig { agents: vec![AgentConfig::DelayedDupAck(delayed)], arq },
    ]
}

fn lossy(per: f64) -> LinkConfig {
    symmetric(DirectionConfig {
        rate: Rate::from_bps(50_000_000),
        delay: Duration::from_millis(5),
        per: Probability::new(per).unwrap(),
        ..DirectionConfig::default()
    })
}

/// Two megabytes, from the gateway to the terminal, are the same at both.
fn assert_identical_download(bed: &Bed) {
    let sent: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
    let digest = Sha256::digest(&sent);
    let listener = bed.gateway.run(|| TcpListener::bind("0.0.0.0:80")).unwrap().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = stream.read(&mut [0]);
    });
    let mut client = bed.terminal.run(|| TcpStream::connect((bed.subnet.left4(), 80))).unwrap().unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    drop(client);
    server.join().unwrap();
    assert_eq!(Sha256::digest(&received), digest);
    assert_eq!(bed.link.unintended_drops().unwrap(), 0);
    bed.link.check().unwrap();
}

#[test]
fn a_download_through_stations_that_let_all_pass_is_identical() {
    if !can_run() {
        return;
    }
    let bed = Bed::with_stations(&lossy(0.01), &[pass_through(), pass_through()]);
    assert_identical_download(&bed);
    wait_until("all that the model delivers is written", || {
        let (delivered, counters) = (bed.link.delivered(), bed.link.counters());
        (delivered.0.packets, delivered.1.packets) == (counters.0.delivered, counters.1.delivered)
    });
    assert!(bed.link.counters().0.dropped.packet_error > 0, "the link was not lossy");
    assert_eq!(bed.link.delivered().0.bytes, bed.link.counters().0.delivered_bytes);
    assert_eq!(bed.link.held_bytes(), [0, 0]);
}

#[test]
fn a_download_through_all_agents_is_identical() {
    if !can_run() {
        return;
    }
    let config = lossy(0.01);
    let bed = Bed::with_stations(&config, &all_agents(&config));
    assert_identical_download(&bed);
    let [gateway, terminal] = bed.link.station_reports();
    assert_eq!((gateway.agents.len(), terminal.agents.len()), (1, 1));
    assert!(gateway.arq.is_some() && terminal.arq.is_some());
}

#[test]
fn a_download_over_a_mangling_link_with_all_agents_is_identical() {
    if !can_run() {
        return;
    }
    let config = lossy(0.0);
    let bed = Bed::with_stations(&config, &all_agents(&config));
    let [reorder, duplicate, corrupt] = ["1%", "1%", "0.5%"].map(|share| share.parse().unwrap());
    bed.link.mangle(&Mangling { reorder, reorder_by: Duration::from_millis(2), duplicate, corrupt }, 1);
    assert_identical_download(&bed);
    let mangled = bed.link.mangled().0;
    assert!(mangled.held_back > 0 && mangled.duplicated > 0 && mangled.corrupted > 0, "{mangled:?}");
}

#[test]
fn an_echo_over_stations_takes_both_delays_in_both_families() {
    if !can_run() {
        return;
    }
    let bed = Bed::with_stations(&delay(50), &[pass_through(), pass_through()]);
    bed.start_echo();
    let mut sockets = vec![bed.terminal_socket(bed.echo())];
    if bed.gateway.has_ipv6() {
        sockets.push(bed.terminal_socket((bed.subnet.left6(), 7)));
    }
    for socket in sockets {
        let asked = Instant::now();
        socket.send(b"are you there?").unwrap();
        assert_eq!(socket.recv(&mut [0; 100]).unwrap(), 14);
        assert!(asked.elapsed() >= Duration::from_millis(100), "{:?}", asked.elapsed());
    }
}

#[test]
fn without_anything_at_the_ends_there_are_no_reports() {
    if !can_run() {
        return;
    }
    let bed = Bed::with_stations(&delay(1), &Default::default());
    bed.start_echo();
    let socket = bed.terminal_socket(bed.echo());
    socket.send(b"bare").unwrap();
    assert_eq!(socket.recv(&mut [0; 10]).unwrap(), 4);
    assert_eq!(bed.link.station_reports(), <[StationReport; 2]>::default());
    assert_eq!(bed.link.held_bytes(), [0, 0]);
}

#[test]
fn a_packet_corrupted_between_stations_is_found_by_the_receiving_kernel() {
    if !can_run() {
        return;
    }
    let bed = Bed::with_stations(&delay(1), &[pass_through(), pass_through()]);
    bed.link.mangle(&Mangling { corrupt: "50%".parse().unwrap(), ..Default::default() }, 1);
    let sink = bed.gateway.run(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let socket = bed.terminal_socket((bed.subnet.left4(), 9));
    (0..200_u32).for_each(|number| assert_eq!(socket.send(&number.to_be_bytes()).unwrap(), 4));
    let mut packet = [0; 4];
    let arrived: Vec<u32> =
        std::iter::from_fn(|| sink.recv(&mut packet).is_ok().then(|| u32::from_be_bytes(packet))).collect();
    let corrupted = bed.link.mangled().1.corrupted;
    assert!(arrived.is_sorted() && arrived.iter().all(|&number| number < 200), "{arrived:?}");
    assert_eq!(arrived.len() as u64, 200 - corrupted);
    assert!(corrupted > 50);
    assert_eq!(bed.link.unintended_drops().unwrap(), 0);
}

#[test]
fn a_duplicate_between_stations_is_a_second_frame_and_counts_once() {
    if !can_run() {
        return;
    }
    let bed = Bed::with_stations(&delay(1), &[pass_through(), pass_through()]);
    bed.link.mangle(&Mangling { duplicate: "1".parse().unwrap(), ..Default::default() }, 1);
    let sink = bed.gateway.run(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    let socket = bed.terminal_socket((bed.subnet.left4(), 9));
    (0..100).for_each(|_| assert_eq!(socket.send(b"twice").unwrap(), 5));
    wait_until("all arrive twice", || bed.link.delivered().1.packets == 200);
    let counters = bed.link.counters().1;
    assert_eq!((counters.offered, counters.delivered), (100, 100));
    drop(sink);
}

/// A device is there as long as anybody holds it, a thread of the link for example.
#[test]
fn a_link_dropped_with_packets_in_flight_and_held_ends_at_once_and_leaves_no_thread() {
    if !can_run() {
        return;
    }
    let far_away = delay(300_000);
    let Bed { gateway, terminal, link, subnet } = Bed::with_stations(&far_away, &all_agents(&far_away));
    let socket = terminal.run(|| UdpSocket::bind("0.0.0.0:0")).unwrap().unwrap();
    for _ in 0..100 {
        socket.send_to(&[0; 100], (subnet.left4(), 9)).unwrap();
    }
    wait_until("all packets offered", || link.counters().1.offered >= 100);
    let dropped = Instant::now();
    drop(link);
    assert!(dropped.elapsed() < Duration::from_secs(100), "it waited for what was in flight");
    for host in [gateway, terminal] {
        let devices = host.command("ip").args(["-brief", "link"]).output().unwrap();
        let devices = String::from_utf8(devices.stdout).unwrap();
        assert!(devices.contains("lo ") && !devices.contains("sat0"), "{devices}");
    }
}
