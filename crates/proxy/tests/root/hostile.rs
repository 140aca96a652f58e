//! Peers that mean harm: the proxy's own port by every address, spoofed sources, segments that no TCP would
//! send.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};

use crate::common::exchange::Exchange;
use crate::common::forger::{ACK, FIN, Forger, PSH, RST, SYN, Sequence, URG};
use crate::common::{Host, Net, PATIENCE, SERVER, network, socket_address};

const OWN_PORT: u16 = 7602;
/// The gateway's addresses on the client's side and on the server's, both families.
const GATEWAY: [&str; 4] = ["10.77.1.1", "fd77:1::1", "10.77.2.1", "fd77:2::1"];

/// What becomes of a connection that sends nothing and waits for an answer.
fn outcome(host: &Host, to: SocketAddr) -> ErrorKind {
    let attempt = || {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read(&mut [0])
    };
    host.enter(attempt).expect_err("nobody serves there").kind()
}

fn expect_service(net: &Net, listener: &TcpListener) {
    let (mut client, mut server) = net.connection(listener);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
}

#[test]
fn the_proxys_own_port_is_refused_or_reset_by_every_local_address() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    for (address, expected) in [
        ("127.0.0.1", ErrorKind::ConnectionReset),
        ("::1", ErrorKind::ConnectionReset),
        // The listener's address in the other family's clothes (RFC 4291 §2.5.5.2).
        ("::ffff:127.0.0.1", ErrorKind::ConnectionReset),
        ("127.0.0.2", ErrorKind::ConnectionRefused),
        // Zero is this host (RFC 1122 §3.2.1.3); Linux connects it to loopback.
        ("0.0.0.0", ErrorKind::ConnectionReset),
        ("::", ErrorKind::ConnectionReset),
    ] {
        for port in [7600, 7601, OWN_PORT] {
            let to = socket_address(address, port);
            assert_eq!(outcome(&net.gateway, to), expected, "{to}");
        }
    }
    for address in GATEWAY {
        for host in [&net.client, &net.gateway, &net.server] {
            let to = socket_address(address, OWN_PORT);
            assert_eq!(outcome(host, to), ErrorKind::ConnectionRefused, "{to}");
        }
    }
    assert_eq!((daemon.counter("own_port"), daemon.counter("flows_total")), (15, 0));
    expect_service(&net, &net.listen(SERVER[0]));
    daemon.settle();
}

/// What leaves the client for the gateway's port is addressed to 127.0.0.1 instead, and answers come back to
/// it.
const TO_LOOPBACK: &str = "table ip spoof {
    chain out { type filter hook postrouting priority 0; ip daddr 10.77.1.1 tcp dport 7602 ip daddr set 127.0.0.1; }
    chain in { type filter hook prerouting priority raw; ip saddr 127.0.0.1 tcp sport 7602 ip saddr set 10.77.1.1; }
}";

#[test]
fn loopback_cannot_be_reached_from_outside_and_is_reset_where_the_host_lets_it() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    net.client.rules(TO_LOOPBACK);
    net.client.sysctl("net.ipv4.conf.all.route_localnet", "1");
    let to = socket_address("10.77.1.1", OWN_PORT);
    let martian = net.client.enter(|| TcpStream::connect_timeout(&to, std::time::Duration::from_millis(500)));
    assert_eq!(martian.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(daemon.counter("own_port"), 0);
    // Some container engines switch this on; the kernel then takes such packets.
    net.gateway.sysctl("net.ipv4.conf.all.route_localnet", "1");
    assert_eq!(outcome(&net.client, to), ErrorKind::ConnectionReset);
    assert_eq!((daemon.counter("own_port"), daemon.counter("flows_total")), (1, 0));
    net.client.run("nft delete table ip spoof");
    expect_service(&net, &net.listen(SERVER[0]));
    daemon.settle();
}

#[test]
fn a_spoofed_loopback_source_gets_no_flow() {
    let Some(net) = network() else { return };
    let listener = net.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let mut daemon = net.daemon("");
    // The two hosts have each other's link addresses by then: nobody would answer the request of a spoofed
    // packet.
    expect_service(&net, &listener);
    net.gateway.rules(
        "table ip seen { chain in { type filter hook prerouting priority raw; iifname ground0 ip saddr 127.0.0.1 counter; }; }",
    );
    net.client.rules(
        "table ip spoof { chain out { type filter hook postrouting priority 0; ip daddr 10.77.2.2 ip saddr set 127.0.0.1; }; }",
    );
    for route_localnet in ["0", "1"] {
        net.gateway.sysctl("net.ipv4.conf.all.route_localnet", route_localnet);
        let error =
            net.client.enter(|| TcpStream::connect_timeout(&to, std::time::Duration::from_millis(1500)));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut, "route_localnet {route_localnet}");
        assert_eq!((daemon.counter("own_port"), daemon.counter("flows_total")), (0, 1));
        let seen = net.gateway.output("nft list table ip seen");
        assert!(seen.contains("packets") && !seen.contains("packets 0 "), "none has arrived: {seen}");
    }
    net.gateway.run("nft delete table ip seen");
    net.client.run("nft delete table ip spoof");
    expect_service(&net, &listener);
    daemon.settle();
}

/// Segments with what is not acceptable (RFC 9293 §3.10.7.4), and resets that miss the one number at which
/// they would be believed (RFC 5961 §3.2), although some of them lie in the window.
fn flood(forger: &Forger, known: Sequence) {
    let Sequence { send_next, receive_next } = known;
    let far = |number: u32| send_next.wrapping_add(0x4000_0000 + number * 1009);
    for number in 0..5000 {
        let near = send_next.wrapping_add(1 + number * 11);
        forger.send(RST, near, 0, b"");
        forger.send(RST | ACK, far(number), receive_next, b"");
        forger.send(SYN, near, 0, b"");
        forger.send(FIN | ACK, far(number), receive_next, b"");
        forger.send(PSH | ACK, far(number), receive_next, b"garbage beyond the window");
        forger.send(
            PSH | ACK,
            send_next.wrapping_sub(100 + number),
            receive_next,
            b"garbage that was had before",
        );
        // In the window, but acknowledging what was never sent.
        forger.send(PSH | ACK, near, receive_next.wrapping_add(0x4000_0000), b"garbage");
        forger.send(0, near, 0, b"no flags");
        forger.send(FIN | PSH | URG, near, 0, b"all lights on");
    }
}

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(address) => panic!("{address} is not of IPv4"),
    }
}

#[test]
fn a_flow_lives_on_through_a_flood_of_forged_segments_from_either_side() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    for from_client in [true, false] {
        let (mut client, mut server) = net.connection(&listener);
        let ends = (v4(client.local_addr().unwrap()), v4(client.peer_addr().unwrap()));
        let (near, far) = if from_client { (&mut client, &mut server) } else { (&mut server, &mut client) };
        let (host, source, destination) =
            if from_client { (&net.client, ends.0, ends.1) } else { (&net.server, ends.1, ends.0) };
        let mut forger = Forger::new(host, source, destination);
        far.write_all(b"!").unwrap();
        near.read_exact(&mut [0]).unwrap();
        let known = forger.overhear();
        flood(&forger, known);
        Exchange::start((client, server), 5_000_000).expect_identical();
    }
    daemon.wait_for("flows_finished", 2);
    assert_eq!((daemon.counter("flows_total"), daemon.counter("flows_reset")), (2, 0));
    daemon.settle();
}

#[test]
fn a_reset_at_the_right_number_is_believed() {
    // What shows that the flood above was aimed at the flow and missed it only by its numbers.
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let (mut client, mut server) = net.connection(&net.listen(SERVER[0]));
    let ends = (v4(client.local_addr().unwrap()), v4(client.peer_addr().unwrap()));
    let mut forger = Forger::new(&net.client, ends.0, ends.1);
    server.write_all(b"!").unwrap();
    client.read_exact(&mut [0]).unwrap();
    let Sequence { send_next, .. } = forger.overhear();
    forger.send(RST, send_next, 0, b"");
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    daemon.wait_for("flows_reset", 1);
    drop((client, server));
    daemon.settle();
}

#[test]
fn a_syn_with_data_or_with_mad_flags_opens_nothing() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let to = v4(listener.local_addr().unwrap());
    for port in 46_000..46_500 {
        let forger = Forger::new(&net.client, SocketAddrV4::new([10, 77, 1, 2].into(), port), to);
        // The client's own kernel knows nothing of it and resets the answer.
        forger.send(SYN, 1000, 0, b"GET / HTTP/1.0\r\n\r\n");
        for flags in [SYN | FIN, SYN | RST, SYN | FIN | RST | PSH | ACK | URG, SYN | ACK, 0] {
            forger.send(flags, 5000, 7000, b"garbage");
        }
    }
    expect_service(&net, &listener);
    daemon.wait_for("flows_open", 0);
    assert_eq!((daemon.counter("flows_total"), daemon.counter("bytes_up")), (1, 1));
    daemon.settle();
}
