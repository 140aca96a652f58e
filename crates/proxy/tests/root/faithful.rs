//! The faithful handshake: what the client sees of connecting is what the server, or the network, does.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use crate::common::{
    CLIENT, Host, Net, PATIENCE, RELAYS, SERVER, configuration, network, pattern, read_all, socket,
    socket_address, wait_until,
};
use bentpipe_kernel::sockopt;

const FAITHFUL: &str = "handshake = \"faithful\"";

/// What connecting from the client comes to, and how many SYNs it may take.
fn connect(net: &Net, to: SocketAddr, syn_retries: u32) -> Result<TcpStream, Error> {
    net.client.enter(|| {
        let socket = socket(&to);
        sockopt::set_syn_retries(&socket, syn_retries)?;
        socket.connect(&to.into())?;
        Ok(TcpStream::from(socket))
    })
}

/// The same on a thread of its own.
fn connecting(net: &Net, to: SocketAddr) -> Receiver<Result<TcpStream, Error>> {
    let (sender, receiver) = channel();
    net.client.enter(|| {
        // The thread is a child of one in the client's namespace, and so in it too.
        std::thread::spawn(move || sender.send(TcpStream::connect(to)));
    });
    receiver
}

/// Rules of one chain, `what` happening to packets at `hook`.
fn meddle(host: &Host, table: &str, hook: &str, what: &str) {
    host.rules(&format!(
        "table inet {table} {{ chain c {{ type filter hook {hook} priority -350; {what}; }}; }}"
    ));
}

/// Both ends of a connection say something that the other hears.
fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"question").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    server.write_all(b"answer").unwrap();
    client.read_exact(&mut [0; 6]).unwrap();
}

#[test]
fn an_accepted_connection_is_split_and_its_bytes_arrive_unchanged() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("{FAITHFUL}\nrelay = \"{relay}\""));
        for (from, address) in CLIENT.iter().zip(SERVER) {
            let listener = net.listen(address);
            let (mut client, mut server) = net.connection(&listener);
            assert_eq!(server.peer_addr().unwrap(), client.local_addr().unwrap());
            let from = SocketAddr::new(from.parse().unwrap(), 0).to_string();
            let at_gateway = net.gateway.output(&format!("ss -Htn src {}", from.trim_end_matches(":0")));
            assert!(at_gateway.contains(address), "{at_gateway}");
            let (up, down) = (pattern(1, 3_000_000), pattern(2, 3_000_000));
            let (sent_up, sent_down) = (up.clone(), down.clone());
            let (mut client_out, mut server_out) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let writers = [
                std::thread::spawn(move || {
                    client_out.write_all(&sent_up).unwrap();
                    client_out.shutdown(std::net::Shutdown::Write).unwrap();
                }),
                std::thread::spawn(move || {
                    server_out.write_all(&sent_down).unwrap();
                    server_out.shutdown(std::net::Shutdown::Write).unwrap();
                }),
            ];
            let reader = std::thread::spawn(move || read_all(&mut server).unwrap());
            assert!(read_all(&mut client).unwrap() == down, "{relay} {address}");
            assert!(reader.join().unwrap() == up, "{relay} {address}");
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        }
        daemon.wait_for("flows_finished", 2);
        assert_eq!(["held_total", "held_open", "syns_passed"].map(|name| daemon.counter(name)), [2, 0, 0]);
    }
}

#[test]
fn a_refused_connection_looks_refused() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    // What is the gateway's own has made no hop when it arrives, what it has forwarded one.
    let hops = "tcp flags syn ip ttl 63 counter; tcp flags syn ip6 hoplimit 63 counter";
    meddle(&net.server, "forwarded", "prerouting", hops);
    for address in SERVER {
        let error = connect(&net, socket_address(address, 9), 6).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
    }
    let forwarded = net.server.output("nft list table inet forwarded");
    assert_eq!(forwarded.matches("packets 1 ").count(), 2, "the client's own SYN: {forwarded}");
    assert_eq!(["held_refused", "held_open", "flows_total"].map(|name| daemon.counter(name)), [2, 0, 0]);
}

/// Networks behind the server, which says different things of them, as a router and as a firewall.
fn unreachable_networks(net: &Net) -> Vec<SocketAddr> {
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        net.server.sysctl(key, "1");
    }
    // What is asked is how it is said, not how often.
    net.server.sysctl("net.ipv4.icmp_ratelimit", "0");
    net.server.sysctl("net.ipv6.icmp.ratelimit", "0");
    let (mut addresses, mut rejects) = (Vec::new(), String::new());
    let kinds = [
        ("net-unreachable", "no-route"),
        ("host-unreachable", "addr-unreachable"),
        ("admin-prohibited", "admin-prohibited"),
        ("port-unreachable", "port-unreachable"),
    ];
    for (number, (v4, v6)) in kinds.into_iter().enumerate() {
        for (prefix, router) in
            [(format!("10.9{number}.0.0/16"), SERVER[0]), (format!("fd9{number}::/16"), SERVER[1])]
        {
            net.gateway.run(&format!("ip route add {prefix} via {router}"));
        }
        let (four, six) = (format!("10.9{number}.0.1"), format!("fd9{number}::1"));
        rejects += &format!(
            "ip daddr {four} reject with icmp type {v4}\nip6 daddr {six} reject with icmpv6 type {v6}\n"
        );
        addresses.extend([socket_address(&four, 80), socket_address(&six, 80)]);
    }
    net.server.rules(&format!(
        "table inet firewall {{ chain f {{ type filter hook forward priority 0;\n{rejects}}}; }}"
    ));
    addresses
}

#[test]
fn an_unreachable_server_looks_as_it_does_without_a_proxy() {
    let Some(net) = network() else { return };
    let mut addresses = unreachable_networks(&net);
    // Nobody answers for these neighbours of the gateway.
    addresses.extend(["10.77.2.99", "fd77:2::99"].map(|host| socket_address(host, 80)));
    // And to these it has no route.
    addresses.extend(["203.0.113.9", "2001:db8::9"].map(|host| socket_address(host, 80)));
    let errors = || -> Vec<_> {
        addresses.iter().map(|&to| connect(&net, to, 6).unwrap_err().raw_os_error()).collect()
    };
    let without = errors();
    let mut daemon = net.daemon(FAITHFUL);
    assert_eq!(errors(), without, "{addresses:?}");
    daemon.wait_for("held_open", 0);
    assert_eq!(
        (daemon.counter("held_total"), daemon.counter("flows_total")),
        (addresses.len() as u64 - 2, 0)
    );
}

#[test]
fn a_silent_server_is_silent() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    meddle(&net.server, "silent", "prerouting", "meta l4proto tcp drop");
    meddle(&net.client, "heard", "prerouting", "meta l4proto { tcp, icmp, icmpv6 } ip version 4 counter");
    for address in SERVER {
        let error = connect(&net, socket_address(address, 80), 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{address}");
    }
    let heard = net.client.output("nft list table inet heard");
    assert!(heard.contains("counter packets 0 "), "{heard}");
    // The client asks no more, so nobody asks for it.
    daemon.wait_for("held_open", 0);
    assert_eq!((daemon.counter("held_forgotten"), daemon.counter("syns_passed")), (2, 0));
}

#[test]
fn the_client_is_connected_when_the_server_is_and_not_before() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    let answer = "iifname sat0 tcp flags & (syn | ack) == syn | ack";
    meddle(&net.client, "answers", "prerouting", "tcp flags & (syn | ack) == syn | ack counter");
    for address in SERVER {
        meddle(&net.gateway, "hold", "prerouting", &format!("{answer} counter drop"));
        let listener = net.listen(address);
        let client = connecting(&net, listener.local_addr().unwrap());
        // The server has said yes, and said it again.
        wait_until("SYN-ACKs of the server", || {
            let counted = net.gateway.output("nft list table inet hold");
            !counted.contains("packets 0 ") && !counted.contains("packets 1 ")
        });
        assert_eq!(daemon.counter("held_open"), 1);
        assert!(matches!(client.try_recv(), Err(TryRecvError::Empty)), "{address}");
        let answers = net.client.output("nft list table inet answers");
        assert!(address != SERVER[0] || answers.contains("packets 0 "), "{answers}");
        net.gateway.run("nft delete table inet hold");
        let mut client = client.recv_timeout(PATIENCE).unwrap().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        exchange(&mut client, &mut server);
    }
    assert_eq!((daemon.counter("held_total"), daemon.counter("flows_total")), (2, 2));
}

#[test]
fn a_client_that_gives_up_while_it_waits_leaves_nothing() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    let descriptors = daemon.descriptors();
    meddle(&net.server, "silent", "prerouting", "meta l4proto tcp drop");
    for address in SERVER {
        let to = socket_address(address, 80);
        let error = net.client.enter(|| TcpStream::connect_timeout(&to, Duration::from_millis(100)));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    }
    daemon.wait_for("held_total", 2);
    assert_eq!((daemon.descriptors(), daemon.counter("connecting")), (descriptors + 2, 2));
    daemon.wait_for("held_open", 0);
    assert_eq!((daemon.descriptors(), daemon.counter("connecting")), (descriptors, 0));
}

#[test]
fn a_thousand_clients_at_once_are_connected() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    let listener = net.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    // A backlog for all of them.
    socket2::SockRef::from(&listener).listen(2000).unwrap();
    let clients: Vec<_> = net.client.enter(|| {
        let start = || {
            let socket = socket(&to);
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&to.into());
            TcpStream::from(socket)
        };
        (0..1000).map(|_| start()).collect()
    });
    let mut servers: Vec<_> = (0..1000).map(|_| listener.accept().unwrap().0).collect();
    servers.sort_by_key(|server| server.peer_addr().unwrap());
    for mut client in clients {
        wait_until("a connection", || client.peer_addr().is_ok());
        client.set_nonblocking(false).unwrap();
        let ours = client.local_addr().unwrap();
        let at = servers.binary_search_by_key(&ours, |server| server.peer_addr().unwrap()).unwrap();
        exchange(&mut client, &mut servers[at]);
    }
    drop(servers);
    daemon.wait_for("flows_open", 0);
    assert_eq!(["held_total", "held_open", "syns_passed"].map(|name| daemon.counter(name)), [1000, 0, 0]);
}

#[test]
fn losses_in_either_handshake_are_retransmitted() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    // At each of the four crossings of the link the first packet of a handshake is lost, and then every
    // other.
    for host in [&net.client, &net.server] {
        for (table, hook) in [("arriving", "prerouting"), ("leaving", "output")] {
            meddle(host, table, hook, "tcp flags & syn == syn numgen inc mod 2 0 drop");
        }
    }
    for address in SERVER {
        let listener = net.listen(address);
        for _ in 0..3 {
            let (mut client, mut server) = net.connection(&listener);
            exchange(&mut client, &mut server);
        }
    }
    daemon.wait_for("flows_open", 0);
    assert_eq!(["flows_total", "held_total", "syns_passed"].map(|name| daemon.counter(name)), [6, 6, 0]);
}

#[test]
fn data_in_the_syn_is_not_lost() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    // The client puts data into its SYN without having been given a cookie (tcp_fastopen, 0x4).
    net.client.sysctl("net.ipv4.tcp_fastopen", "5");
    meddle(&net.client, "early", "output", "tcp flags & (syn | ack) == syn meta length > 500 counter");
    for address in SERVER {
        let listener = net.listen(address);
        let to = listener.local_addr().unwrap();
        let request = pattern(3, 1000);
        let mut client = net.client.enter(|| {
            let socket = socket(&to);
            socket.send_to_with_flags(&request, &to.into(), libc_msg_fastopen()).unwrap();
            TcpStream::from(socket)
        });
        let (mut server, _) = listener.accept().unwrap();
        let mut received = vec![0; request.len()];
        server.read_exact(&mut received).unwrap();
        assert!(received == request, "{address}");
        exchange(&mut client, &mut server);
    }
    let counted = net.client.output("nft list table inet early");
    assert!(counted.contains("packets 2 "), "the SYNs had data: {counted}");
    assert_eq!((daemon.counter("flows_total"), daemon.counter("syns_passed")), (2, 0));
}

/// `MSG_FASTOPEN` of linux/socket.h.
fn libc_msg_fastopen() -> i32 {
    0x2000_0000
}

#[test]
fn the_clients_syn_options_are_agreed() {
    let Some(net) = network() else { return };
    let _daemon = net.daemon(FAITHFUL);
    net.client.run("ip link set up0 mtu 1400");
    // Without the twelve bytes of a timestamp, which are agreed on as well.
    for (address, mss) in SERVER.iter().zip([1348, 1328]) {
        let listener = net.listen(address);
        let (mut client, mut server) = net.connection(&listener);
        let reply = pattern(4, 1_000_000);
        let sent = reply.clone();
        let writer = std::thread::spawn(move || server.write_all(&sent).map(|()| server));
        let mut received = vec![0; reply.len()];
        client.read_exact(&mut received).unwrap();
        assert!(received == reply);
        let from = listener.local_addr().unwrap();
        let accepted = net.gateway.output(&format!("ss -Htni src {from}"));
        for agreed in ["wscale:", &format!(" mss:{mss} ")] {
            assert!(accepted.contains(agreed), "{agreed}: {accepted}");
        }
        writer.join().unwrap().unwrap();
    }
}

#[test]
fn a_port_that_is_used_again_at_once_is_split_without_delay() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    for (client, server) in CLIENT.iter().zip(SERVER) {
        let (source, listener) = (socket_address(client, 45_010), net.listen(server));
        let to = listener.local_addr().unwrap();
        // The first of all waits until the neighbours know each other.
        net.connection(&listener);
        meddle(&net.client, "repeated", "output", "tcp flags & (syn | ack) == syn counter");
        for _ in 0..3 {
            let mut ours = net.client.enter(|| {
                let socket = socket(&source);
                socket.set_reuse_address(true).unwrap();
                socket.bind(&source.into()).unwrap();
                socket.connect(&to.into()).unwrap();
                TcpStream::from(socket)
            });
            let (mut theirs, _) = listener.accept().unwrap();
            exchange(&mut ours, &mut theirs);
            // The server ends first, so that the gateway's side towards the client is left in TIME-WAIT.
            drop(theirs);
            assert_eq!(read_all(&mut ours).unwrap(), b"");
            drop(ours);
            daemon.wait_for("flows_open", 0);
        }
        let counted = net.client.output("nft list table inet repeated");
        assert!(counted.contains("packets 3 "), "a SYN for each connection: {counted}");
        net.client.run("nft delete table inet repeated");
    }
    // Those that meet a socket of theirs on the gateway are not held.
    assert_eq!((daemon.counter("flows_total"), daemon.counter("held_total")), (8, 4));
}

#[test]
fn a_server_that_resets_before_the_client_has_come_resets_the_client() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    for address in SERVER {
        meddle(&net.client, "deaf", "prerouting", "tcp flags & (syn | ack) == syn | ack drop");
        let listener = net.listen(address);
        let client = connecting(&net, listener.local_addr().unwrap());
        let (server, _) = listener.accept().unwrap();
        sockopt::set_linger_reset(&server).unwrap();
        drop(server);
        net.client.run("nft delete table inet deaf");
        let outcome = client.recv_timeout(PATIENCE).unwrap().and_then(|mut client| {
            client.set_read_timeout(Some(PATIENCE))?;
            client.read(&mut [0])
        });
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ConnectionReset, "{address}");
        listener.set_nonblocking(true).unwrap();
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "nobody has connected again"
        );
    }
    daemon.wait_for("held_open", 0);
    assert_eq!((daemon.counter("connects_failed"), daemon.counter("flows_open")), (2, 0));
}

#[test]
fn without_the_daemon_new_connections_pass() {
    let Some(net) = network() else { return };
    let daemon = net.daemon(FAITHFUL);
    let listeners = SERVER.map(|address| net.listen(address));
    listeners.iter().for_each(|listener| drop(net.connection(listener)));
    assert!(net.gateway.output("nft list tables").contains("bentpipe_held"));
    daemon.kill();
    assert!(!net.gateway.output("nft list tables").contains("bentpipe_held"));
    for listener in &listeners {
        let (mut client, mut server) = net.connection(listener);
        exchange(&mut client, &mut server);
    }
    let before = net.traces();
    assert!(before.contains("fwmark 0x10000000"), "{before}");
    net.daemon(FAITHFUL).stop();
    assert!(!net.traces().contains("fwmark"), "{}", net.traces());
}

#[test]
fn beyond_the_limit_of_waiting_connections_new_ones_pass_unsplit() {
    let Some(net) = network() else { return };
    let text = format!("{}[limits]\nconnecting = 4\n", configuration(FAITHFUL));
    let mut daemon = net.try_daemon(&text).unwrap();
    meddle(&net.server, "silent", "prerouting", "tcp dport 80 drop");
    let silent = socket_address(SERVER[0], 80);
    let waiting: Vec<_> = net.client.enter(|| {
        let start = || {
            let socket = socket(&silent);
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&silent.into());
            socket
        };
        (0..50).map(|_| start()).collect()
    });
    wait_until("the limit", || daemon.counter("connecting") >= 4);
    let listener = net.listen(SERVER[0]);
    let (mut client, mut server) = net.connection(&listener);
    exchange(&mut client, &mut server);
    assert_eq!(daemon.counter("flows_total"), 0);
    assert!(daemon.counter("held_total") < 50);
    drop(waiting);
    daemon.wait_for("held_open", 0);
    wait_until("connections are split again", || {
        net.connection(&listener);
        daemon.counter("flows_total") > 0
    });
}

#[test]
fn syns_that_waited_for_a_stopped_daemon_disturb_no_connection() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    let listeners = SERVER.map(|address| net.listen(address));
    daemon.signal(rustix::process::Signal::STOP);
    // The first SYN of each goes into the device, and a later one passes.
    let mut pairs: Vec<_> = listeners.iter().map(|listener| net.connection(listener)).collect();
    daemon.signal(rustix::process::Signal::CONT);
    for (client, server) in &mut pairs {
        exchange(client, server);
    }
    assert_eq!(["held_total", "flows_total"].map(|name| daemon.counter(name)), [0, 0]);
    wait_until("connections are split again", || {
        net.connection(&listeners[0]);
        daemon.counter("flows_total") > 0
    });
    for (client, server) in &mut pairs {
        exchange(client, server);
    }
}

#[test]
fn the_handshake_can_be_changed_to_early_and_back_while_the_daemon_runs() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    let listener = net.listen(SERVER[0]);
    for (handshake, held) in [(FAITHFUL, 1), ("", 1), (FAITHFUL, 2)] {
        daemon.reload(&configuration(handshake)).unwrap();
        let (mut client, mut server) = net.connection(&listener);
        exchange(&mut client, &mut server);
        assert_eq!(daemon.counter("held_total"), held);
    }
    assert_eq!(daemon.counter("flows_total"), 3);
}

#[test]
fn a_stateful_firewall_is_no_obstacle() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon(FAITHFUL);
    net.gateway.rules(
        "table inet firewall {
            chain in { type filter hook input priority 0; ct state invalid drop; }
            chain out { type filter hook output priority 0; ct state invalid drop; }
            chain f { type filter hook forward priority 0; policy drop;
                ct state invalid drop
                ct state established,related accept
                iifname ground0 oifname sat0 accept
            }
        }",
    );
    for address in SERVER {
        let (mut client, mut server) = net.connection(&net.listen(address));
        exchange(&mut client, &mut server);
        let error = connect(&net, socket_address(address, 9), 6).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
    }
    assert_eq!(["flows_total", "held_refused"].map(|name| daemon.counter(name)), [2, 2]);
}

#[test]
fn handshakes_in_the_making_go_on_in_the_next_process() {
    let Some(net) = network() else { return };
    let config = crate::common::configuration(FAITHFUL);
    let mut daemon = net.try_daemon(&config).unwrap();
    let listeners = SERVER.map(|address| net.listen(address));
    // One waits for its server, whose answers are lost; then for its client, which does not hear them.
    let answers = "tcp flags & (syn | ack) == syn | ack drop";
    meddle(&net.gateway, "hold", "prerouting", &format!("iifname sat0 {answers}"));
    let waiting = connecting(&net, listeners[0].local_addr().unwrap());
    daemon.wait_for("held_open", 1);
    daemon.succeed(&net, &config).unwrap();
    assert_eq!((daemon.counter("held_open"), daemon.counter("held_total")), (1, 1));
    daemon.outlive(&net, &config);
    net.gateway.run("nft delete table inet hold");
    meddle(&net.client, "deaf", "prerouting", answers);
    let (mut server, _) = listeners[0].accept().unwrap();
    daemon.succeed(&net, &config).unwrap();
    daemon.outlive(&net, &config);
    net.client.run("nft delete table inet deaf");
    let mut client = waiting.recv_timeout(PATIENCE).unwrap().unwrap();
    exchange(&mut client, &mut server);
    let counted = ["held_total", "held_forgotten", "flows_total"].map(|name| daemon.counter(name));
    assert_eq!(counted, [1, 0, 1], "the server was asked once");
    // And new ones are made as ever.
    let mut new =
        connecting(&net, listeners[1].local_addr().unwrap()).recv_timeout(PATIENCE).unwrap().unwrap();
    let (mut server, _) = listeners[1].accept().unwrap();
    exchange(&mut new, &mut server);
}

#[test]
fn the_next_process_may_begin_and_end_to_hold_handshakes() {
    let Some(net) = network() else { return };
    let (early, faithful) = (crate::common::configuration(""), crate::common::configuration(FAITHFUL));
    let mut daemon = net.try_daemon(&early).unwrap();
    let before = net.traces();
    let listener = net.listen(SERVER[0]);
    let mut pairs = vec![net.connection(&listener)];
    for (config, held) in [(&faithful, 1), (&faithful, 2), (&early, 2), (&faithful, 3), (&early, 3)] {
        let log = tempfile::NamedTempFile::new().unwrap();
        let change = |command: &mut std::process::Command| {
            if config == &faithful {
                command.env(crate::common::LOG_VARIABLE, log.path());
            }
        };
        daemon.succeed_changed(&net, config, change).unwrap();
        daemon.wait_to_see("readiness", |seen| seen.ready);
        let log = std::fs::read_to_string(log.path()).unwrap();
        assert!(!log.contains("somebody had removed"), "{log}");
        pairs.push(net.connection(&listener));
        for (client, server) in &mut pairs {
            exchange(client, server);
        }
        let counted = ["held_total", "flows_total", "flows_open"].map(|name| daemon.counter(name));
        assert_eq!(counted, [held, pairs.len() as u64, pairs.len() as u64]);
    }
    assert_eq!(net.traces().lines().count(), before.lines().count());
    drop(pairs);
    daemon.settle();
}

#[test]
fn handshakes_in_the_making_are_brought_to_an_end_where_the_next_process_holds_none() {
    let Some(net) = network() else { return };
    let early = crate::common::configuration("");
    let mut daemon = net.try_daemon(&crate::common::configuration(FAITHFUL)).unwrap();
    let listener = net.listen(SERVER[0]);
    meddle(&net.gateway, "hold", "prerouting", "iifname sat0 tcp flags & (syn | ack) == syn | ack drop");
    let waiting = connecting(&net, listener.local_addr().unwrap());
    daemon.wait_for("held_open", 1);
    daemon.succeed(&net, &early).unwrap();
    net.gateway.run("nft delete table inet hold");
    let (mut server, _) = listener.accept().unwrap();
    let mut client = waiting.recv_timeout(PATIENCE).unwrap().unwrap();
    exchange(&mut client, &mut server);
    daemon.wait_for("held_open", 0);
    let counted = ["held_total", "flows_total", "other_port"].map(|name| daemon.counter(name));
    assert_eq!(counted, [1, 1, 0], "the server was asked once");
    daemon.succeed(&net, &early).unwrap();
    exchange(&mut client, &mut server);
    drop((client, server));
    daemon.wait_for("flows_open", 0);
    daemon.stop();
    net.expect_untouched();
}
