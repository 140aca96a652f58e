//! What can be seen of a daemon is what happens.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::company::alone;
use crate::common::{Net, PATIENCE, SERVER, abort, network, network_over, pattern, read_all};
use bentpipe_link::{DirectionConfig, LinkConfig, OutageTrace};
use bentpipe_units::{ByteCount, Probability, Rate, Time};
use socket2::SockRef;

const RATE: Rate = Rate::mbps(10);

/// Towards the server and back, with a queue that does not overflow.
fn link(rtt_ms: u64, per: f64) -> LinkConfig {
    let direction = DirectionConfig {
        rate: Some(RATE),
        delay: Duration::from_millis(rtt_ms / 2),
        queue: Some(ByteCount::new(4_000_000)),
        per: Probability::new(per).unwrap(),
        ..Default::default()
    };
    LinkConfig { forward: direction.clone(), reverse: direction }
}

fn config(name: &str, rtt_ms: u64) -> String {
    format!("[legs.{name}]\ninterface = \"sat0\"\nrate = \"{RATE}\"\nrtt = \"{rtt_ms}ms\"\n")
}

/// A connection whose client sends to the server, over the satellite, for as long as the link takes it; the
/// server's end.
fn endless_upload(net: &Net) -> (TcpStream, TcpStream) {
    let listener = net.listen(SERVER[0]);
    let (client, server) = net.connection(&listener);
    let (mut sender, mut receiver) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    std::thread::spawn(move || while sender.write_all(&[7; 65_536]).is_ok() {});
    std::thread::spawn(move || while receiver.read(&mut [0; 65_536]).is_ok_and(|count| count > 0) {});
    (client, server)
}

fn end((client, server): (TcpStream, TcpStream)) {
    for stream in [client, server] {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

#[test]
fn totals_match_the_carried_bytes_even_of_short_connections() {
    let Some(net) = network_over(&link(40, 0.0)) else { return };
    let mut daemon = net.try_daemon(&config("sky", 40)).unwrap();
    let listener = net.listen(SERVER[0]);
    let (up, down) = (pattern(1, 300_000), pattern(2, 700_000));
    for _ in 0..3 {
        let (mut client, mut server) = net.connection(&listener);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(read_all(&mut server).unwrap(), up);
                server.write_all(&down).unwrap();
                server.shutdown(std::net::Shutdown::Write).unwrap();
            });
            client.write_all(&up).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(read_all(&mut client).unwrap(), down);
        });
    }
    daemon.wait_for("flows_open", 0);
    let seen = daemon.stats_handle();
    assert!(seen.ready && seen.flows.is_empty(), "{seen:#?}");
    let (sky, ground) = (seen.leg("sky"), seen.leg("terrestrial"));
    // Each way's end of a connection may count as a byte.
    let agree = |bytes: u64, wanted: u64| (3 * wanted..=3 * (wanted + 2)).contains(&bytes);
    assert!(agree(sky.sent_bytes, 300_000) && agree(sky.received_bytes, 700_000), "{sky:#?}");
    assert!(agree(ground.sent_bytes, 700_000) && agree(ground.received_bytes, 300_000), "{ground:#?}");
    assert!((600..10_000).contains(&sky.segments), "{sky:#?}");
    assert_eq!((sky.flows, ground.flows), (0, 0));
    assert_eq!((sky.interface.as_deref(), sky.rate_bps), (Some("sat0"), Some(10_000_000)));
    assert_eq!(ground.interface, None);
    daemon.settle();
}

#[test]
fn the_rates_and_both_ends_of_an_upload_are_those_of_their_legs() {
    let _alone = alone();
    let Some(net) = network_over(&link(200, 0.0)) else { return };
    let mut daemon = net.try_daemon(&config("sky", 200)).unwrap();
    let streams = endless_upload(&net);
    // 10 Mbit/s on the wire are 9.65 Mbit/s of payload.
    let is_fast = |bps: f64| (8.0e6..10.5e6).contains(&bps);
    let seen = daemon.wait_to_see("a full link", |seen| {
        is_fast(seen.leg("sky").sent_bps) && seen.flows.first().is_some_and(|flow| is_fast(flow.up_bps))
    });
    let (sky, ground, flow) = (seen.leg("sky"), seen.leg("terrestrial"), &seen.flows[0]);
    assert_eq!((sky.flows, sky.active, ground.flows, seen.flows.len()), (1, 1, 1, 1));
    assert!(sky.received_bps == 0.0 && ground.received_bytes > 1_000_000, "{seen:#?}");
    assert!(sky.srtt_s.is_some_and(|rtt| (0.19..1.0).contains(&rtt)), "{sky:#?}");
    assert!(sky.min_rtt_s.is_some_and(|rtt| (0.19..0.4).contains(&rtt)), "{sky:#?}");
    assert!(ground.srtt_s.is_some_and(|rtt| rtt < 0.1), "{ground:#?}");
    assert!(sky.outage_s.is_none() && ground.outage_s.is_none(), "{seen:#?}");
    assert!(sky.explicit.is_some_and(|explicit| explicit.active == 1), "{sky:#?}");
    assert_eq!(sky.congestion.as_deref(), Some("explicit"));
    let (near, far) = (&flow.client_end, &flow.server_end);
    assert_eq!((near.leg.as_str(), far.leg.as_str()), ("terrestrial", "sky"));
    assert_eq!(flow.client, streams.0.local_addr().unwrap().to_string());
    assert_eq!(flow.server, streams.0.peer_addr().unwrap().to_string());
    assert!(far.srtt_s > 0.19 && far.rto_s > far.srtt_s && near.srtt_s < 0.1, "{flow:#?}");
    assert!(far.cwnd > 50 && far.unacked > 0 && far.mss > 1000 && far.segments > 100, "{flow:#?}");
    assert!(flow.up_bytes > 0 && flow.down_bytes == 0 && flow.idle_s < 3.0 && flow.age_s > 0.5, "{flow:#?}");
    assert!(flow.buffered_bytes > 0, "{flow:#?}");
    // Without a loss splitting gains by its start alone.
    let gain = seen.gain.ratio;
    assert_eq!((sky.retransmissions, gain.is_none_or(|ratio| (1.0..5.0).contains(&ratio))), (0, true));
    end(streams);
    let seen = daemon.wait_to_see("a leg that rests", |seen| seen.leg("sky").sent_bps == 0.0);
    assert_eq!((seen.leg("sky").flows, seen.leg("sky").active), (0, 0), "{seen:#?}");
    daemon.settle();
}

#[test]
fn a_lossy_link_shows_its_losses_and_the_gain_of_splitting() {
    let Some(net) = network_over(&link(200, 0.02)) else { return };
    let mut daemon = net.try_daemon(&config("sky", 200)).unwrap();
    let streams = endless_upload(&net);
    let seen = daemon.wait_to_see("loss and gain", |seen| {
        let sky = seen.leg("sky");
        sky.segments > 3000
            && sky.loss.is_some_and(|loss| (0.01..0.05).contains(&loss))
            && seen.gain.ratio.is_some_and(|ratio| ratio > 6.0)
    });
    let gain = seen.gain;
    assert!(gain.actual_bps > 3e6 && gain.end_to_end_bps < 1.5e6, "{gain:#?}");
    end(streams);
    daemon.settle();
}

#[test]
fn an_outage_is_seen_while_it_lasts_and_no_longer() {
    let outage = |from: u64, length| (Time::from_nanos(from * 1_000_000_000), Duration::from_secs(length));
    let direction = |config: DirectionConfig| DirectionConfig {
        outages: OutageTrace::from_iter([outage(8, 6)]),
        ..config
    };
    let LinkConfig { forward, reverse } = link(40, 0.0);
    let trace = LinkConfig { forward: direction(forward), reverse: direction(reverse) };
    let Some(net) = network_over(&trace) else { return };
    let text = config("sky", 40) + "restart_within = \"1s\"\nsurvive_outage = \"10m\"\n";
    let mut daemon = net.try_daemon(&text).unwrap();
    let streams = endless_upload(&net);
    let link = net.link.as_ref().unwrap();
    let now = || link.now().as_secs_f64();
    daemon.wait_to_see("a download", |seen| seen.leg("sky").sent_bps > 1e6);
    let seen = loop {
        let seen = daemon.stats_handle();
        match seen.leg("sky").outage_s {
            Some(_) => break seen,
            None => assert!(now() < 14.0, "the outage is over and was not seen"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let (at, length) = (now(), seen.leg("sky").outage_s.unwrap());
    assert!(at >= 8.0, "there is no outage yet at {at}");
    println!("the outage of 8.0 s is seen at {at:.2} s: {length:.2} s");
    // It counts from what was last heard: a round trip, with what stood in the queue, after its beginning at
    // the latest.
    assert!((7.8..8.6).contains(&(at - length)), "seen at {at}, of {length} s");
    assert_eq!(seen.leg("terrestrial").outage_s, None);
    while now() < 13.5 {
        let length = daemon.stats_handle().leg("sky").outage_s.expect("it lasts");
        assert!((now() - length - (at - length_at(&seen))).abs() < 0.5, "it goes on to count");
        std::thread::sleep(Duration::from_millis(100));
    }
    let seen = daemon.wait_to_see("the end of the outage", |seen| seen.leg("sky").outage_s.is_none());
    assert!(now() >= 14.0 && seen.leg("sky").timeouts > 0, "{seen:#?}");
    end(streams);
    daemon.settle();
}

fn length_at(seen: &crate::common::Seen) -> f64 {
    seen.leg("sky").outage_s.unwrap()
}

#[test]
fn numbers_stay_with_their_legs_when_a_reload_gives_them_other_names() {
    let Some(net) = network_over(&link(40, 0.0)) else { return };
    let mut daemon = net.try_daemon(&config("sky", 40)).unwrap();
    let listener = net.listen(SERVER[0]);
    let carry = |(client, server): &mut (TcpStream, TcpStream)| {
        client.write_all(&[7; 50_000]).unwrap();
        server.read_exact(&mut [0; 50_000]).unwrap();
    };
    let mut old = net.connection(&listener);
    carry(&mut old);
    daemon.wait_to_see("50,000 bytes", |seen| seen.leg("sky").sent_bytes == 50_000);
    daemon.reload(&config("heaven", 40)).unwrap();
    let mut new = net.connection(&listener);
    carry(&mut new);
    carry(&mut old);
    let seen = daemon.wait_to_see("50,000 bytes more on both", |seen| {
        seen.leg("sky").sent_bytes == 100_000 && seen.leg("heaven").sent_bytes == 50_000
    });
    let names: Vec<&str> = seen.legs.iter().map(|leg| leg.name.as_str()).collect();
    assert_eq!(names, ["heaven", "sky", "terrestrial"]);
    assert_eq!(seen.leg("heaven").interface.as_deref(), Some("sat0"));
    assert_eq!(seen.leg("sky").interface, None, "the configuration knows it no more");
    assert_eq!(["heaven", "sky", "terrestrial"].map(|name| seen.leg(name).flows), [1, 1, 2]);
    let mut legs: Vec<&str> = seen.flows.iter().map(|flow| flow.server_end.leg.as_str()).collect();
    legs.sort_unstable();
    assert_eq!(legs, ["heaven", "sky"]);
    drop(old);
    let seen = daemon.wait_to_see("two legs", |seen| seen.legs.len() == 2);
    assert_eq!(seen.leg("terrestrial").flows, 1);
    // The old name, and its numbers, again.
    daemon.reload(&config("sky", 40)).unwrap();
    let seen = daemon.stats_handle();
    assert!((100_000..=100_002).contains(&seen.leg("sky").sent_bytes), "{seen:#?}");
    drop(new);
    // Replaced listeners stay for a minute.
    daemon.stop();
}

#[test]
fn connections_are_counted_exactly_however_they_end() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (clients, servers) = net.connections(&listener, 60);
    let counts = |daemon: &mut crate::common::Running| {
        let seen = daemon.stats_handle();
        (seen.leg("satellite").flows, seen.leg("terrestrial").flows, seen.flows.len())
    };
    daemon.wait_for("flows_open", 60);
    assert_eq!(counts(&mut daemon), (60, 60, 60));
    let mut ids: Vec<u64> = daemon.stats_handle().flows.iter().map(|flow| flow.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 60, "each has its own number");
    // A third is reset by the client, a third by the server, and a third ends in order.
    for (number, client) in clients.into_iter().enumerate() {
        if number % 3 == 0 { abort(client) } else { drop(client) }
    }
    for (number, server) in servers.into_iter().enumerate() {
        if number % 3 == 1 { abort(server) } else { drop(server) }
    }
    daemon.wait_for("flows_open", 0);
    assert_eq!(counts(&mut daemon), (0, 0, 0));
    // A server that refuses, and one that is not there and is given up by its client.
    crate::common::stop_listening(listener.try_clone().unwrap());
    let refused = net.client.enter(|| TcpStream::connect(listener.local_addr().unwrap()));
    if let Ok(mut stream) = refused {
        crate::common::error_of_reading(&mut stream);
    }
    daemon.wait_for("flows_open", 0);
    assert_eq!(counts(&mut daemon), (0, 0, 0));
    let seen = daemon.stats_handle();
    assert!(seen.leg("satellite").active == 0 && seen.leg("terrestrial").active == 0, "{seen:#?}");
    daemon.settle();
}

#[test]
fn a_connection_that_waits_for_a_server_that_is_not_there_is_no_outage() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    net.server
        .rules("table inet deaf { chain in { type filter hook input priority 0; meta l4proto tcp drop; }; }");
    let to = crate::common::socket_address(SERVER[0], 9);
    let socket = net.client.enter(|| {
        let socket = crate::common::socket(&to);
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&to.into());
        socket
    });
    let start = Instant::now();
    daemon.wait_to_see("a connection that waits", |seen| {
        seen.flows.first().is_some_and(|flow| {
            flow.phase == bentpipe_proxy::telemetry::FlowPhase::Connecting
                && flow.server_end.retransmissions > 0
        })
    });
    let silent = Instant::now();
    while silent.elapsed() < Duration::from_secs(4) {
        assert_eq!(daemon.stats_handle().leg("satellite").outage_s, None);
        std::thread::sleep(Duration::from_millis(100));
    }
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
    drop(socket);
    daemon.wait_for("flows_open", 0);
    assert!(start.elapsed() < PATIENCE);
    daemon.settle();
}
