//! At a limit new connections pass or are refused, as configured, and afterwards everything is as before.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{Net, PATIENCE, Running, SERVER, configuration, network, pattern, read_all};

fn with_limits(limits: &str) -> String {
    format!("{}[limits]\n{limits}\n", configuration("workers = 1"))
}

/// Opens a connection and tells whether it was split: by the daemon's count.
fn is_split(net: &Net, daemon: &mut Running, listener: &TcpListener) -> (bool, (TcpStream, TcpStream)) {
    let before = daemon.counter("flows_total");
    let (mut client, mut server) = net.connection(listener);
    client.write_all(b"?").unwrap();
    server.read_exact(&mut [0]).unwrap();
    (daemon.counter("flows_total") > before, (client, server))
}

/// Opens connections until one is, or is not, split; the rules follow a limit within a moment.
fn wait_for_split(
    net: &Net,
    daemon: &mut Running,
    listener: &TcpListener,
    wanted: bool,
) -> (TcpStream, TcpStream) {
    let start = Instant::now();
    loop {
        let (split, ends) = is_split(net, daemon, listener);
        if split == wanted {
            return ends;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "connections are not {}",
            if wanted { "split" } else { "passed" }
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn beyond_the_limit_connections_pass_unsplit_until_others_have_ended() {
    let Some(net) = network() else { return };
    for address in SERVER {
        let mut daemon = net.try_daemon(&with_limits("connections = 3")).unwrap();
        let listener = net.listen(address);
        let mut flows: Vec<_> = (0..3).map(|_| is_split(&net, &mut daemon, &listener)).collect();
        assert!(flows.iter().all(|(split, _)| *split), "{address}");
        let _passed = wait_for_split(&net, &mut daemon, &listener, false);
        let (split, _another) = is_split(&net, &mut daemon, &listener);
        assert!(!split, "the limit stays");
        flows.clear();
        wait_for_split(&net, &mut daemon, &listener, true);
        assert_eq!(daemon.counter("flows_refused"), 0);
    }
}

#[test]
fn beyond_the_limit_connections_are_refused_where_that_is_configured() {
    let Some(net) = network() else { return };
    let mut daemon = net.try_daemon(&with_limits("connections = 2\nat_limit = \"refuse\"")).unwrap();
    for address in SERVER {
        let listener = net.listen(address);
        let flows = [net.connection(&listener), net.connection(&listener)];
        daemon.wait_for("flows_open", 2);
        let start = Instant::now();
        let to = listener.local_addr().unwrap();
        loop {
            match net.client.enter(|| TcpStream::connect(to)) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
                // One that comes before the rules know of it is answered and then reset, as early as that.
                Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
                _ => assert!(start.elapsed() < PATIENCE),
            }
        }
        drop(flows);
        daemon.wait_for("flows_open", 0);
        let start = Instant::now();
        let client = loop {
            match net.client.enter(|| TcpStream::connect(to)) {
                Ok(stream) => break stream,
                Err(_) => assert!(start.elapsed() < PATIENCE, "{address}: still refused"),
            }
        };
        // The client is answered before the daemon has counted it, the server is asked later.
        drop((listener.accept().unwrap(), client));
        daemon.wait_for("flows_open", 0);
    }
}

#[test]
fn one_client_at_its_limit_does_not_keep_others_out() {
    let Some(net) = network() else { return };
    let mut daemon = net.try_daemon(&with_limits("connections_per_client = 2")).unwrap();
    net.client.run("ip addr add 10.77.1.3/24 dev up0");
    // Not one that the kernel would choose by itself.
    net.client.run("ip addr add fd77:1:0:1::3/64 dev up0 nodad preferred_lft 0");
    net.gateway.run("ip route add fd77:1:0:1::/64 dev ground0");
    for (address, other) in SERVER.into_iter().zip(["10.77.1.3", "fd77:1:0:1::3"]) {
        let listener = net.listen(address);
        let mut flows: Vec<_> = (0..2).map(|_| is_split(&net, &mut daemon, &listener)).collect();
        assert!(flows.iter().all(|(split, _)| *split), "{address}");
        let _passed = wait_for_split(&net, &mut daemon, &listener, false);

        let before = daemon.counter("flows_total");
        let to = listener.local_addr().unwrap();
        let _others = net.client.enter(|| {
            let socket = crate::common::socket(&to);
            socket.bind(&crate::common::socket_address(other, 0).into()).unwrap();
            socket.connect(&to.into()).unwrap();
            socket
        });
        let _accepted = listener.accept().unwrap();
        daemon.wait_for("flows_total", before + 1);
        flows.clear();
        wait_for_split(&net, &mut daemon, &listener, true);
    }
}

#[test]
fn a_limit_in_effect_stays_in_effect_in_the_next_process_unless_it_changed() {
    let Some(net) = network() else { return };
    let listener = net.listen(SERVER[0]);
    for limit in ["connections_per_client", "connections"] {
        let [two, three] = [2, 3].map(|most| with_limits(&format!("{limit} = {most}")));
        let mut daemon = net.try_daemon(&two).unwrap();
        let mut flows = vec![net.connection(&listener), net.connection(&listener)];
        flows.push(wait_for_split(&net, &mut daemon, &listener, false));
        daemon.wait_for("flows_open", 2);
        // On a busy machine a third connection may have been split before the rules followed the limit.
        let total = daemon.counter("flows_total");
        for _ in 0..2 {
            daemon.succeed(&net, &two).unwrap();
            flows.push(is_split(&net, &mut daemon, &listener).1);
            assert_eq!((daemon.counter("flows_open"), daemon.counter("flows_total")), (2, total), "{limit}");
        }
        daemon.succeed(&net, &three).unwrap();
        flows.push(wait_for_split(&net, &mut daemon, &listener, true));
        flows.push(wait_for_split(&net, &mut daemon, &listener, false));
        flows.clear();
        wait_for_split(&net, &mut daemon, &listener, true);
        assert_eq!(daemon.counter("flows_refused"), 0, "{limit}");
    }
}

#[test]
fn a_flood_towards_dead_addresses_does_not_take_all_places() {
    let Some(net) = network() else { return };
    let mut daemon = net.try_daemon(&with_limits("connecting = 50\nconnections = 1000")).unwrap();
    // What goes there is answered by nobody, and nobody says so.
    net.server.rules(
        "table inet dead { chain in { type filter hook prerouting priority raw; ip daddr 10.77.2.200 drop; }; }",
    );
    net.gateway.run("ip neigh add 10.77.2.200 lladdr 02:00:00:00:00:01 dev sat0 nud permanent");
    let dead = crate::common::socket_address("10.77.2.200", 80);
    let flood: Vec<_> = net.client.enter(|| {
        (0..300)
            .map(|_| {
                let socket = crate::common::socket(&dead);
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&dead.into());
                socket
            })
            .collect()
    });
    let start = Instant::now();
    while daemon.counter("connecting") < 50 {
        assert!(start.elapsed() < PATIENCE);
    }
    // What the kernel answers before the rules know of it would wait behind the flood.
    while !net.gateway.output("nft list set inet bentpipe full").contains("expires") {
        assert!(start.elapsed() < PATIENCE, "the rules do not follow");
    }
    let listener = net.listen(SERVER[0]);
    let _good = wait_for_split(&net, &mut daemon, &listener, false);
    // Those that the kernel had answered when the limit was reached are a quarter more and sixteen at most.
    assert!(daemon.counter("connecting") <= 50 + 12 + 16, "{}", daemon.counter("connecting"));
    for socket in &flood {
        socket.set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop(flood);
    daemon.wait_for("connecting", 0);
    wait_for_split(&net, &mut daemon, &listener, true);
}

#[test]
fn buffers_beyond_their_limit_divert_new_connections_until_they_are_read() {
    let Some(net) = network() else { return };
    // Little enough for the buffers of a server that does not read, however slowly the kernel lets them grow.
    let mut daemon = net.try_daemon(&with_limits("buffered = \"500kB\"")).unwrap();
    let listener = net.listen(SERVER[0]);
    let (client, mut server) = net.connection(&listener);
    let sent = pattern(1, 30_000_000);
    let mut sender = client.try_clone().unwrap();
    sender.set_write_timeout(None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&sent).unwrap();
            sender.shutdown(Shutdown::Write).unwrap();
        });
        let start = Instant::now();
        while daemon.counter("buffered") < 500_000 {
            if start.elapsed() >= PATIENCE {
                // Or the sender would be waited for.
                client.shutdown(Shutdown::Both).unwrap();
                panic!("{} bytes are buffered", daemon.counter("buffered"));
            }
        }
        let _passed = wait_for_split(&net, &mut daemon, &listener, false);
        assert!(read_all(&mut server).unwrap() == sent);
    });
    wait_for_split(&net, &mut daemon, &listener, true);
    drop((client, server));
    daemon.wait_for("buffered", 0);
}

#[test]
fn a_connections_buffers_stay_within_their_limit() {
    let Some(net) = network() else { return };
    for relay in crate::common::RELAYS {
        let text = configuration(&format!("workers = 1\nrelay = \"{relay}\""));
        let limit = 600_000;
        let mut daemon =
            net.try_daemon(&format!("{text}[limits]\nbuffered_per_connection = \"{limit}B\"\n")).unwrap();
        let listener = net.listen(SERVER[0]);
        let (client, server) = net.connection(&listener);
        for stream in [&client, &server] {
            stream.set_nonblocking(true).unwrap();
        }
        // Both ends write and neither reads, until nothing moves any more.
        let block = vec![7u8; 65536];
        let mut still = 0;
        let mut most = 0;
        while still < 30 {
            let wrote = [&client, &server].map(|mut stream| stream.write(&block).is_ok()).contains(&true);
            still = if wrote { 0 } else { still + 1 };
            std::thread::sleep(Duration::from_millis(100));
            most = most.max(daemon.counter("buffered"));
        }
        assert!(most > limit / 4, "{relay}: {most} bytes were buffered: nothing was measured");
        assert!(most <= limit, "{relay}: {most} bytes were buffered");
    }
}

#[test]
fn idle_connections_are_reset_and_busy_ones_are_not() {
    let Some(net) = network() else { return };
    let mut daemon = net.try_daemon(&with_limits("idle = \"3s\"\nhalf_closed = \"3s\"")).unwrap();
    let listener = net.listen(SERVER[0]);
    let (mut idle_client, mut idle_server) = net.connection(&listener);
    let (mut busy_client, mut busy_server) = net.connection(&listener);
    let (mut half_client, mut half_server) = net.connection(&listener);
    half_client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut half_server).unwrap(), b"");
    let start = Instant::now();
    while daemon.counter("flows_expired") < 2 {
        assert!(start.elapsed() < PATIENCE);
        busy_client.write_all(b"tick").unwrap();
        busy_server.read_exact(&mut [0; 4]).unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    for stream in [&mut idle_client, &mut idle_server, &mut half_client] {
        assert_eq!(read_all(stream).unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
    assert_eq!(daemon.counter("flows_open"), 1);
    busy_server.write_all(b"tock").unwrap();
    busy_client.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn a_flow_whose_reader_is_slow_but_reads_is_not_idle() {
    let Some(net) = network() else { return };
    let mut daemon =
        net.try_daemon(&with_limits("idle = \"3s\"\nbuffered_per_connection = \"400kB\"")).unwrap();
    let listener = net.listen(SERVER[0]);
    let (client, mut server) = net.connection(&listener);
    let sent = pattern(2, 150_000);
    // All of it is in the kernel's buffers soon, and what the relay still sees is nothing.
    socket2::SockRef::from(&server).set_recv_buffer_size(4096).unwrap();
    (&client).write_all(&sent).unwrap();
    let mut received = Vec::new();
    let mut block = [0; 4000];
    while received.len() < sent.len() {
        let count = server.read(&mut block).unwrap();
        received.extend_from_slice(&block[..count]);
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(received == sent);
    assert_eq!(daemon.counter("flows_expired"), 0);
}

#[test]
fn an_end_that_says_it_is_there_keeps_an_idle_connection() {
    let Some(net) = network() else { return };
    let mut daemon = net.try_daemon(&with_limits("idle = \"3s\"")).unwrap();
    for (address, client_probes) in SERVER.into_iter().zip([true, false]) {
        let listener = net.listen(address);
        let (mut client, mut server) = net.connection(&listener);
        let every_second = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(1))
            .with_interval(Duration::from_secs(1));
        let prober = if client_probes { &client } else { &server };
        socket2::SockRef::from(prober).set_tcp_keepalive(&every_second).unwrap();
        // Two others, one after the other, are idle for their time in the meantime.
        for _ in 0..2 {
            let expired = daemon.counter("flows_expired");
            let _silent = net.connection(&listener);
            daemon.wait_for("flows_expired", expired + 1);
        }
        client.write_all(b"tick").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        server.write_all(b"tock").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
    }
}
