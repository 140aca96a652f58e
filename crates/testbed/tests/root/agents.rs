//! Agents at the ends of the satellite link, and real packets through them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Topology, can_run, delay, symmetric, wait_until};
use bentpipe_link::agent::ack_filter::AckFilterConfig;
use bentpipe_link::agent::arq::{ArqConfig, ArqCounters, Delivery};
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::snoop::SnoopConfig;
use bentpipe_link::agent::{AgentConfig, AgentReport, LinkEndConfig, LinkEndReport};
use bentpipe_link::{DirectionConfig, Impairments, LinkConfig};
use bentpipe_units::{ByteCount, Probability, Rate};
use sha2::{Digest, Sha256};

/// A link end through which everything passes: an agent without room for any connection.
fn pass_through() -> LinkEndConfig {
    let config = SnoopConfig { flows: 0, ..SnoopConfig::with_cache(ByteCount::new(0)) };
    LinkEndConfig { agents: vec![AgentConfig::Snoop(config)], arq: None }
}

/// All agents where they belong.
fn all_agents(link: &LinkConfig) -> [LinkEndConfig; 2] {
    let snoop = AgentConfig::Snoop(SnoopConfig::with_cache("1MB".parse().unwrap()));
    let delayed = DelayedDupAckConfig::with_delay(link.forward.delay + link.reverse.delay);
    let arq = Some(ArqConfig::for_link(link));
    [
        LinkEndConfig { agents: vec![snoop], arq },
        LinkEndConfig { agents: vec![AgentConfig::DelayedDupAck(delayed)], arq },
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

/// The same with room for all that a test sends at once, so that errors of the radio are all that is to be
/// repaired.
fn lossy_and_roomy(per: f64) -> LinkConfig {
    let mut config = lossy(per);
    config.reverse.queue = Some("10MB".parse().unwrap());
    config
}

/// Two megabytes, from the gateway to the terminal, are the same at both.
fn assert_identical_download(topology: &Topology) {
    let sent: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
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
    assert_eq!(topology.link.unintended_drops().unwrap(), 0);
    topology.link.check().unwrap();
}

#[test]
fn a_download_through_agents_that_pass_everything_is_identical() {
    if !can_run() {
        return;
    }
    let topology = Topology::with_agents(&lossy(0.01), &[pass_through(), pass_through()]);
    assert_identical_download(&topology);
    wait_until("all that the model delivers is written", || {
        let (delivered, counters) = (topology.link.delivered(), topology.link.counters());
        (delivered.0.packets, delivered.1.packets) == (counters.0.delivered, counters.1.delivered)
    });
    assert!(topology.link.counters().0.dropped.packet_error > 0, "the link was not lossy");
    assert_eq!(topology.link.delivered().0.bytes, topology.link.counters().0.delivered_bytes);
    assert_eq!(topology.link.held_bytes(), [0, 0]);
}

#[test]
fn a_download_through_all_agents_is_identical() {
    if !can_run() {
        return;
    }
    let config = lossy(0.01);
    let topology = Topology::with_agents(&config, &all_agents(&config));
    assert_identical_download(&topology);
    let [gateway, terminal] = topology.link.link_end_reports();
    assert_eq!((gateway.agents.len(), terminal.agents.len()), (1, 1));
    assert!(gateway.arq.is_some() && terminal.arq.is_some());
}

#[test]
fn a_download_over_a_thin_way_back_is_identical_and_its_acks_are_thinned() {
    if !can_run() {
        return;
    }
    let mut config = lossy(0.01);
    let thin = Rate::from_bps(50_000).unwrap();
    (config.reverse.rate, config.reverse.queue) = (Some(thin), Some("1MB".parse().unwrap()));
    let filter = AgentConfig::AckFilter(AckFilterConfig::for_link(thin));
    let ends = [LinkEndConfig::default(), LinkEndConfig { agents: vec![filter], arq: None }];
    let topology = Topology::with_agents(&config, &ends);
    assert_identical_download(&topology);
    let [_, terminal] = topology.link.link_end_reports();
    let [AgentReport::AckFilter(counters)] = terminal.agents[..] else { panic!("{terminal:?}") };
    assert!(counters.superseded > counters.released && counters.released > 0, "{counters:?}");
}

#[test]
fn duplicate_acks_are_held_back_until_the_link_layer_has_filled_the_hole() {
    if !can_run() {
        return;
    }
    let config = lossy(0.01);
    let mut ends = all_agents(&config);
    // Far longer than any repair takes, so that a busy machine does not matter.
    let delayed = DelayedDupAckConfig::with_delay(Duration::from_secs(10));
    ends[0].agents.clear();
    ends[1].agents = vec![AgentConfig::DelayedDupAck(delayed)];
    for arq in ends.iter_mut().filter_map(|end| end.arq.as_mut()) {
        (arq.delivery, arq.retransmissions) = (Delivery::Immediate, 20);
    }
    let topology = Topology::with_agents(&config, &ends);
    assert_identical_download(&topology);
    let [_, terminal] = topology.link.link_end_reports();
    let [AgentReport::DelayedDupAck(counters)] = terminal.agents[..] else { panic!("{terminal:?}") };
    assert!(counters.held > 0 && counters.dropped > 0, "{counters:?}");
}

#[test]
fn a_download_over_an_impaired_link_with_all_agents_is_identical() {
    if !can_run() {
        return;
    }
    let config = lossy(0.0);
    let topology = Topology::with_agents(&config, &all_agents(&config));
    let [reorder, duplicate, corrupt] = ["1%", "1%", "0.5%"].map(|share| share.parse().unwrap());
    topology
        .link
        .impair(&Impairments { reorder, reorder_by: Duration::from_millis(2), duplicate, corrupt }, 1);
    assert_identical_download(&topology);
    let impaired = topology.link.impairment_counters().0;
    assert!(impaired.held_back > 0 && impaired.duplicated > 0 && impaired.corrupted > 0, "{impaired:?}");
}

#[test]
fn an_echo_through_agents_takes_both_delays_in_both_families() {
    if !can_run() {
        return;
    }
    let topology = Topology::with_agents(&delay(50), &[pass_through(), pass_through()]);
    topology.start_echo();
    let mut sockets = vec![topology.terminal_socket(topology.echo())];
    if topology.gateway.has_ipv6() {
        sockets.push(topology.terminal_socket((topology.subnet.left6(), 7)));
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
    let topology = Topology::with_agents(&delay(1), &Default::default());
    topology.start_echo();
    let socket = topology.terminal_socket(topology.echo());
    socket.send(b"bare").unwrap();
    assert_eq!(socket.recv(&mut [0; 10]).unwrap(), 4);
    assert_eq!(topology.link.link_end_reports(), <[LinkEndReport; 2]>::default());
    assert_eq!(topology.link.held_bytes(), [0, 0]);
}

#[test]
fn a_packet_corrupted_between_agents_is_found_by_the_receiving_kernel() {
    if !can_run() {
        return;
    }
    assert_corruption_is_found(&Topology::with_agents(&delay(1), &[pass_through(), pass_through()]));
}

/// The link layer does not see what is wrong: its own headers are right.
#[test]
fn a_packet_corrupted_between_arqs_is_found_by_the_receiving_kernel_and_not_by_them() {
    if !can_run() {
        return;
    }
    let topology = with_arq(&delay(1), ArqConfig::for_link(&delay(1)));
    assert_corruption_is_found(&topology);
    assert_eq!(arq_counters(&topology)[0].delivered, 200);
}

/// Of numbered datagrams from the terminal all arrive but those with a flipped bit.
fn assert_corruption_is_found(topology: &Topology) {
    topology.link.impair(&Impairments { corrupt: "50%".parse().unwrap(), ..Default::default() }, 1);
    let sink = topology.gateway.run(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let socket = topology.terminal_socket((topology.subnet.left4(), 9));
    (0..200_u32).for_each(|number| assert_eq!(socket.send(&number.to_be_bytes()).unwrap(), 4));
    let mut packet = [0; 4];
    let arrived: Vec<u32> =
        std::iter::from_fn(|| sink.recv(&mut packet).is_ok().then(|| u32::from_be_bytes(packet))).collect();
    let corrupted = topology.link.impairment_counters().1.corrupted;
    assert!(arrived.is_sorted() && arrived.iter().all(|&number| number < 200), "{arrived:?}");
    assert_eq!(arrived.len() as u64, 200 - corrupted);
    assert!(corrupted > 50);
    assert_eq!(topology.link.unintended_drops().unwrap(), 0);
}

#[test]
fn a_duplicate_between_agents_is_a_second_frame_and_counts_once() {
    if !can_run() {
        return;
    }
    let topology = Topology::with_agents(&delay(1), &[pass_through(), pass_through()]);
    topology.link.impair(&Impairments { duplicate: "1".parse().unwrap(), ..Default::default() }, 1);
    let sink = topology.gateway.run(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    let socket = topology.terminal_socket((topology.subnet.left4(), 9));
    (0..100).for_each(|_| assert_eq!(socket.send(b"twice").unwrap(), 5));
    wait_until("all arrive twice", || topology.link.delivered().1.packets == 200);
    let counters = topology.link.counters().1;
    assert_eq!((counters.offered, counters.delivered), (100, 100));
    drop(sink);
}

fn with_arq(config: &LinkConfig, arq: ArqConfig) -> Topology {
    let end = LinkEndConfig { agents: Vec::new(), arq: Some(arq) };
    Topology::with_agents(config, &[end.clone(), end])
}

/// The gateway's and the terminal's.
fn arq_counters(topology: &Topology) -> [ArqCounters; 2] {
    topology.link.link_end_reports().map(|report| report.arq.unwrap())
}

#[test]
fn with_arq_all_datagrams_cross_a_link_that_loses_one_in_five_in_order() {
    if !can_run() {
        return;
    }
    /// Few enough for a socket's buffer.
    const COUNT: u32 = 200;
    let config = lossy_and_roomy(0.2);
    let topology = with_arq(&config, ArqConfig { retransmissions: 20, ..ArqConfig::for_link(&config) });
    let sink = topology.gateway.run(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    let socket = topology.terminal_socket((topology.subnet.left4(), 9));
    (0..COUNT).for_each(|number| assert_eq!(socket.send(&number.to_be_bytes()).unwrap(), 4));
    // Each is lost for good with a probability of 0.2²¹.
    wait_until("all have arrived", || topology.link.delivered().1.packets == u64::from(COUNT));
    let mut packet = [0; 4];
    for number in 0..COUNT {
        sink.recv(&mut packet).unwrap();
        assert_eq!(u32::from_be_bytes(packet), number);
    }
    let (lost, [gateway, terminal]) =
        (topology.link.counters().1.dropped.packet_error, arq_counters(&topology));
    assert!(lost > 10 && terminal.retransmitted + terminal.timed_out > 10, "{lost} lost, {terminal:?}");
    assert_eq!((gateway.delivered, terminal.given_up), (COUNT.into(), 0), "{gateway:?}, {terminal:?}");
    assert_eq!(topology.link.unintended_drops().unwrap(), 0);
}

#[test]
fn three_retransmissions_leave_little_of_a_loss_of_one_in_twenty() {
    if !can_run() {
        return;
    }
    const COUNT: u64 = 2000;
    let config = lossy_and_roomy(0.05);
    let arq =
        ArqConfig { retransmissions: 3, buffer: "10MB".parse().unwrap(), ..ArqConfig::for_link(&config) };
    let topology = with_arq(&config, arq);
    let sink = topology.gateway.run(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    let socket = topology.terminal_socket((topology.subnet.left4(), 9));
    (0..COUNT).for_each(|_| assert_eq!(socket.send(&[0; 100]).unwrap(), 100));
    wait_until("the link layer has done what it can", || {
        let [gateway, terminal] = arq_counters(&topology);
        terminal.packets == COUNT && gateway.delivered + terminal.given_up >= COUNT
    });
    let lost = COUNT - topology.link.delivered().1.packets;
    // A hundred without; 0.05⁴ of them, 0.0125, are expected.
    assert!(lost <= 4, "{lost} lost, {:?}", arq_counters(&topology));
    drop(sink);
}

/// Nothing else is under way, so that all that happens is done by timers.
#[test]
fn a_lone_packet_that_an_outage_loses_is_sent_again_by_the_timer() {
    if !can_run() {
        return;
    }
    let config = delay(10);
    let topology = with_arq(&config, ArqConfig { retransmissions: 20, ..ArqConfig::for_link(&config) });
    let sink = topology.gateway.run(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    sink.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    topology.link.set_outage(true);
    topology.terminal_socket((topology.subnet.left4(), 9)).send(b"alone").unwrap();
    wait_until("the packet is lost", || topology.link.counters().1.dropped.outage > 0);
    topology.link.set_outage(false);
    assert_eq!(sink.recv(&mut [0; 10]).unwrap(), 5);
    wait_until("the report has ended the timer", || topology.link.held_bytes() == [0, 0]);
    let [gateway, terminal] = arq_counters(&topology);
    assert!(terminal.timed_out > 0 && gateway.reports_sent > 0, "{gateway:?}, {terminal:?}");
}

/// The report is due while the thread that sends from the gateway sleeps, and it was the other one that made
/// it due.
#[test]
fn a_lone_packet_is_reported_before_it_is_sent_again() {
    if !can_run() {
        return;
    }
    let config = delay(1000);
    let topology = with_arq(
        &config,
        ArqConfig { report_within: Duration::from_secs(1), ..ArqConfig::for_link(&config) },
    );
    let sink = topology.gateway.run(|| UdpSocket::bind("0.0.0.0:9")).unwrap().unwrap();
    topology.terminal_socket((topology.subnet.left4(), 9)).send(b"alone").unwrap();
    wait_until("it is reported", || arq_counters(&topology)[1].reports_received == 1);
    assert_eq!(arq_counters(&topology)[1].timed_out, 0, "the report came late");
    assert_eq!(topology.link.held_bytes(), [0, 0]);
    drop(sink);
}

/// A device is there as long as anybody holds it, a thread of the link for example.
#[test]
fn a_link_dropped_with_packets_in_flight_and_held_ends_at_once_and_leaves_no_thread() {
    if !can_run() {
        return;
    }
    let far_away = delay(300_000);
    let Topology { gateway, terminal, link, subnet } =
        Topology::with_agents(&far_away, &all_agents(&far_away));
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
