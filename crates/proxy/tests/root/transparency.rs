//! Neither end sees the proxy: addresses, ports, marks, and who is left alone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::common::{CLIENT, Host, Net, SERVER, network, socket, socket_address};
use bentpipe_kernel::sockopt;

/// Connects from the client with a port of its own choice and a code point on every packet.
fn connect_from(net: &Net, source: SocketAddr, to: SocketAddr, dscp: u8) -> TcpStream {
    net.client.enter(|| {
        let socket = socket(&source);
        sockopt::set_dscp(&socket, &source, dscp).unwrap();
        socket.bind(&source.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        TcpStream::from(socket)
    })
}

#[test]
fn both_ends_see_each_others_addresses_and_ports() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    for (client, server) in CLIENT.iter().zip(SERVER) {
        let listener = net.listen(server);
        let to = listener.local_addr().unwrap();
        let source = socket_address(client, 45_000);
        let ours = connect_from(&net, source, to, 0);
        let (_theirs, seen) = listener.accept().unwrap();
        assert_eq!((seen, ours.peer_addr().unwrap()), (source, to));
    }
    assert_eq!((daemon.counter("flows_total"), daemon.counter("other_port")), (2, 0));
}

#[test]
fn a_connection_from_the_satellite_is_split_as_well() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    for address in CLIENT {
        let listener = net.client.enter(|| TcpListener::bind(socket_address(address, 0)).unwrap());
        let to = listener.local_addr().unwrap();
        let ours = net.server.enter(|| TcpStream::connect(to).unwrap());
        let (_theirs, seen) = listener.accept().unwrap();
        assert_eq!(seen, ours.local_addr().unwrap());
    }
    assert_eq!(daemon.counter("flows_total"), 2);
}

#[test]
fn the_server_sees_another_port_if_the_clients_is_taken() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    for (client, server) in CLIENT.iter().zip(SERVER) {
        let source = socket_address(client, 45_001);
        let wildcard = if source.is_ipv4() { "0.0.0.0:45001" } else { "[::]:45001" };
        // Without SO_REUSEADDR, which std sets on listeners: nobody else may have the port, on any address.
        let _taken = net.gateway.enter(|| {
            let address: SocketAddr = wildcard.parse().unwrap();
            let socket = socket(&address);
            if address.is_ipv6() {
                socket.set_only_v6(true).unwrap();
            }
            socket.bind(&address.into()).unwrap();
            socket.listen(1).unwrap();
            socket
        });
        let listener = net.listen(server);
        let mut ours = connect_from(&net, source, listener.local_addr().unwrap(), 0);
        let (mut theirs, seen) = listener.accept().unwrap();
        assert_eq!(seen.ip(), source.ip());
        assert_ne!(seen.port(), source.port());
        ours.write_all(b"x").unwrap();
        theirs.read_exact(&mut [0]).unwrap();
    }
    assert_eq!(daemon.counter("other_port"), 2);
}

#[test]
fn the_clients_code_point_is_carried_to_the_server_and_back() {
    const EXPEDITED: u8 = 46;
    let Some(net) = network() else { return };
    let _daemon = net.daemon("");
    count_marked(&net.client, "prerouting");
    for (client, server) in CLIENT.iter().zip(SERVER) {
        let listener = net.listen(server);
        let to = listener.local_addr().unwrap();
        sockopt::remember_dscp(&listener, &to).unwrap();
        let mut ours = connect_from(&net, socket_address(client, 45_002), to, EXPEDITED);
        let (mut theirs, _) = listener.accept().unwrap();
        assert_eq!(sockopt::dscp_of_syn(&theirs, &to).unwrap(), EXPEDITED, "{to}");
        theirs.write_all(b"reply").unwrap();
        ours.read_exact(&mut [0; 5]).unwrap();
    }
    let counted = net.client.output("nft list table inet marked");
    assert!(!counted.contains("packets 0 "), "{counted}");
    assert_eq!(counted.matches("counter packets").count(), 2);
}

/// Counts the packets that arrive marked as expedited, in each family.
fn count_marked(host: &Host, hook: &str) {
    host.rules(&format!(
        "table inet marked {{ chain in {{ type filter hook {hook} priority 0;\n\
         ip dscp ef meta l4proto tcp counter\nip6 dscp ef meta l4proto tcp counter\n}}; }}"
    ));
}

#[test]
fn the_gateways_own_services_are_not_intercepted() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    for (near, far) in [("10.77.1.1", "10.77.2.1"), ("fd77:1::1", "fd77:2::1")] {
        for address in [near, far] {
            let listener = net.gateway.enter(|| TcpListener::bind(socket_address(address, 0)).unwrap());
            net.connection(&listener);
        }
    }
    assert_eq!(daemon.counter("flows_total"), 0);
}

#[test]
fn a_connection_made_before_the_daemon_started_goes_on() {
    let Some(net) = network() else { return };
    let listener = net.listen(SERVER[0]);
    let (mut client, mut server) = net.connection(&listener);
    let mut daemon = net.daemon("");
    client.write_all(b"still here").unwrap();
    server.read_exact(&mut [0; 10]).unwrap();
    server.write_all(b"so am I").unwrap();
    client.read_exact(&mut [0; 7]).unwrap();
    assert_eq!(daemon.counter("flows_total"), 0);
}

#[test]
fn the_legs_settings_apply_to_the_accepted_socket_too() {
    let Some(net) = network() else { return };
    let text = "[legs.satellite]\ninterface = \"ground0\"\ncongestion = \"bbr\"\n[terrestrial]\ncongestion = \"reno\"\n";
    let _daemon = net.try_daemon(text).unwrap();
    let listener = net.listen(SERVER[0]);
    let _flow = net.connection(&listener);
    // The accepted socket has the server's address as its own, the upstream one the client's.
    let accepted = net.gateway.output("ss -Htni src 10.77.2.2");
    let upstream = net.gateway.output("ss -Htni src 10.77.1.2");
    if net.gateway.output("sysctl -n net.ipv4.tcp_available_congestion_control").contains("bbr") {
        assert!(accepted.contains("bbr"), "{accepted}");
    }
    assert!(upstream.contains("reno"), "{upstream}");
}
