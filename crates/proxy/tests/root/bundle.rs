//! Connections that a rule hands to a bundle node beside the daemon, here a listener that only takes them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::probe::{Probe, Server};
use crate::common::{
    CLIENT, Host, Net, PATIENCE, Running, SERVER, configuration, network, socket, socket_address,
    stop_listening,
};
use bentpipe_kernel::sockopt;

const RULE: &str = "[[rules]]\naction = \"bundle\"\nport = 80\n";
const PORT: u16 = 7690;

/// The node's listeners, of both families.
struct Node {
    listeners: [TcpListener; 2],
}

impl Node {
    fn open(net: &Net, port: u16) -> Self {
        Self::with(net, port, |socket, address| sockopt::set_transparent(socket, address).unwrap())
    }

    fn with(net: &Net, port: u16, prepare: impl Fn(&socket2::Socket, &SocketAddr) + Sync) -> Self {
        let listen = |address: SocketAddr| {
            let socket = socket(&address);
            socket.set_reuse_address(true).unwrap();
            prepare(&socket, &address);
            socket.bind(&address.into()).unwrap();
            socket.listen(16).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            TcpListener::from(socket)
        };
        let addresses = [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
        Self { listeners: net.gateway.enter(|| addresses.map(listen)) }
    }

    fn close(self) {
        self.listeners.into_iter().for_each(stop_listening);
    }

    /// A connection from `host` that the node gets, and with it both ends' own addresses.
    fn expect(&self, host: &Host, to: SocketAddr) -> (TcpStream, TcpStream) {
        let connect = || TcpStream::connect_timeout(&to, PATIENCE);
        let mut client = host.enter(connect).unwrap_or_else(|error| panic!("{to}: {error}"));
        let listener = &self.listeners[usize::from(to.is_ipv6())];
        let (mut ours, peer) = listener.accept().unwrap_or_else(|error| panic!("{to}: {error}"));
        assert_eq!((ours.local_addr().unwrap(), peer), (to, client.local_addr().unwrap()));
        exchange(&mut client, &mut ours);
        (client, ours)
    }
}

/// A megabyte one way and a word the other.
fn exchange(client: &mut TcpStream, ours: &mut TcpStream) {
    for stream in [&*client, ours] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    let sent = crate::common::pattern(1, 1_000_000);
    std::thread::scope(|scope| {
        scope.spawn(|| client.write_all(&sent).unwrap());
        let mut received = vec![0; sent.len()];
        ours.read_exact(&mut received).unwrap();
        assert!(received == sent);
    });
    ours.write_all(b"stored").unwrap();
    client.read_exact(&mut [0; 6]).unwrap();
}

fn with_rules(net: &Net, rules: &str) -> Running {
    net.try_daemon(&format!("{}{rules}", configuration(""))).unwrap_or_else(|error| panic!("daemon: {error}"))
}

/// From the client to the server, in both families.
fn probes() -> [Probe; 2] {
    [0, 1].map(|family| Probe {
        from: CLIENT[family].parse().unwrap(),
        to: SERVER[family].parse().unwrap(),
        dscp: 0,
    })
}

fn web(address: &str) -> SocketAddr {
    socket_address(address, 80)
}

/// Until the rules of a daemon that is dead do not take connections any more.
fn wait_until_forgotten(net: &Net) {
    let start = Instant::now();
    while net.gateway.output("nft list set inet bentpipe alive").contains("expires") {
        assert!(start.elapsed() < PATIENCE, "its sign of life does not expire");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_node_gets_the_rules_connections_in_both_directions_and_the_rest_is_split() {
    let Some(net) = network() else { return };
    let node = Node::open(&net, PORT);
    let mut daemon = with_rules(&net, RULE);
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        node.expect(&net.client, web(server));
        node.expect(&net.server, web(client));
    }
    assert_eq!(daemon.counter("flows_total"), 0);
    let other = Server::open(&net.server, 81);
    probes().into_iter().for_each(|probe| other.connect(&net.client, probe));
    assert_eq!(daemon.counter("flows_total"), 2);
    node.close();
    daemon.settle();
}

#[test]
fn the_configuration_says_where_the_node_listens() {
    let Some(net) = network() else { return };
    let node = Node::open(&net, 8000);
    let _daemon = with_rules(&net, &format!("[bundle]\nport = 8000\n{RULE}"));
    node.expect(&net.client, web(SERVER[0]));
}

#[test]
fn without_a_listener_that_may_have_it_the_connection_passes_and_is_not_split() {
    let Some(net) = network() else { return };
    let server = Server::open(&net.server, 80);
    let mut daemon = with_rules(&net, RULE);
    let reach = |daemon: &mut Running| {
        probes().into_iter().for_each(|probe| server.connect(&net.client, probe));
        assert_eq!(daemon.counter("flows_total"), 0);
    };
    reach(&mut daemon);
    let ordinary = Node::with(&net, PORT, |_, _| {});
    reach(&mut daemon);
    ordinary.close();
    let node = Node::open(&net, PORT);
    node.expect(&net.client, web(SERVER[0]));
    node.close();
    reach(&mut daemon);
}

#[test]
fn connections_from_ground_to_ground_pass() {
    let Some(net) = network() else { return };
    let lan = Host::new("lan");
    net.wire(&lan, "up0", "lan0", 3);
    lan.wait_for_gateway(3);
    let (_node, server) = (Node::open(&net, PORT), Server::open(&lan, 80));
    let _daemon = with_rules(&net, RULE);
    for (probe, to) in probes().into_iter().zip(["10.77.3.2", "fd77:3::2"]) {
        server.connect(&net.client, Probe { to: to.parse().unwrap(), ..probe });
    }
}

#[test]
fn a_reload_starts_and_stops_handing_over_and_the_node_keeps_its_bundles() {
    let Some(net) = network() else { return };
    let (node, server) = (Node::open(&net, PORT), Server::open(&net.server, 80));
    let mut daemon = with_rules(&net, "");
    server.connect(&net.client, probes()[0]);
    assert_eq!(daemon.counter("flows_total"), 1);
    daemon.reload(&format!("{}{RULE}", configuration(""))).unwrap();
    let (mut client, mut ours) = node.expect(&net.client, web(SERVER[0]));
    daemon.reload(&configuration("")).unwrap();
    server.connect(&net.client, probes()[0]);
    assert_eq!(daemon.counter("flows_total"), 2);
    exchange(&mut client, &mut ours);
}

#[test]
fn a_port_that_a_reload_has_given_to_listeners_of_the_daemons_own_is_refused() {
    let Some(net) = network() else { return };
    let second = "[legs.b]\ninterface = \"ground0\"\ncongestion = \"reno\"\n";
    let two_legs = format!("{}{second}", configuration(""));
    let mut daemon = net.try_daemon(&two_legs).unwrap();
    // Two legs have eight paths.
    daemon.reload(&format!("{two_legs}rtt = \"20ms\"\n")).unwrap();
    let with_port = |port: u16| format!("{}[bundle]\nport = {port}\n{RULE}", configuration(""));
    let error = daemon.reload(&with_port(7615)).unwrap_err();
    assert!(error.contains("bundle.port = 7615 is a port of listeners that this daemon opened"), "{error}");
    // The new listeners of one leg come behind those of two, and leave the node's out.
    daemon.reload(&with_port(7616)).unwrap();
    Node::open(&net, 7616).expect(&net.client, web(SERVER[0]));
}

#[test]
fn a_limit_neither_counts_the_nodes_connections_nor_stops_them() {
    let Some(net) = network() else { return };
    let node = Node::open(&net, PORT);
    let mut daemon = with_rules(&net, &format!("[limits]\nconnections = 1\nat_limit = \"refuse\"\n{RULE}"));
    let _of_the_node = [(); 3].map(|()| node.expect(&net.client, web(SERVER[0])));
    let listener = net.listen(SERVER[0]);
    let _pair = net.connection(&listener);
    let start = Instant::now();
    while net.client.enter(|| TcpStream::connect(listener.local_addr().unwrap())).is_ok() {
        assert!(start.elapsed() < PATIENCE, "one beyond the limit is not refused");
    }
    node.expect(&net.client, web(SERVER[0]));
    assert_eq!(daemon.counter("flows_open"), 1);
}

#[test]
fn without_a_route_to_the_server_only_the_nodes_connections_are_taken() {
    let Some(net) = network() else { return };
    let node = Node::open(&net, PORT);
    let before_80 = "[[rules]]\naction = \"pass\"\nport = 79\n";
    let mut daemon = with_rules(&net, &format!("{before_80}{RULE}"));
    net.gateway.run("ip -4 route del 10.77.2.0/24 dev sat0");
    net.gateway.run("ip -6 route del fd77:2::/64 dev sat0");
    for address in SERVER {
        node.expect(&net.client, web(address));
        for port in [79, 81] {
            let to = socket_address(address, port);
            net.client.enter(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap_err();
        }
    }
    assert_eq!(daemon.counter("flows_total"), 0);
    node.close();
    net.client.enter(|| TcpStream::connect_timeout(&web(SERVER[0]), PATIENCE)).unwrap_err();
}

#[test]
fn the_node_takes_connections_when_the_daemon_is_dead_and_while_they_would_come_to_this_host() {
    let Some(net) = network() else { return };
    let (node, server) = (Node::open(&net, PORT), Server::open(&net.server, 80));
    let daemon = with_rules(&net, RULE);
    let (mut client, mut ours) = node.expect(&net.client, web(SERVER[0]));
    daemon.kill();
    wait_until_forgotten(&net);
    exchange(&mut client, &mut ours);
    SERVER.into_iter().for_each(|address| drop(node.expect(&net.client, web(address))));
    node.close();
    probes().into_iter().for_each(|probe| server.connect(&net.client, probe));
    let _node = Node::open(&net, PORT);
    // Nobody sets them up again, and a SYN that is given to a listener and forwarded would be dropped.
    for family in ["-4", "-6"] {
        for preference in [64, 67] {
            net.gateway.run(&format!("ip {family} rule del pref {preference}"));
        }
    }
    probes().into_iter().for_each(|probe| server.connect(&net.client, probe));
}

#[test]
fn bundles_survive_a_restart_of_the_daemon_and_continue() {
    let Some(net) = network() else { return };
    let (node, server) = (Node::open(&net, PORT), Server::open(&net.server, 80));
    let daemon = with_rules(&net, RULE);
    let mut pairs = SERVER.map(|address| node.expect(&net.client, web(address)));
    daemon.stop();
    probes().into_iter().for_each(|probe| server.connect(&net.client, probe));
    for (client, _) in &mut pairs {
        client.write_all(b"while it is away").unwrap();
    }
    let _daemon = with_rules(&net, RULE);
    for (client, ours) in &mut pairs {
        let mut heard = [0; 16];
        ours.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"while it is away");
        exchange(client, ours);
    }
}
