//! Rules that give weights: which listener a connection is accepted by, and what becomes of weights at a
//! reload.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::common::census::Census;
use crate::common::probe::{Probe, Server};
use crate::common::{CLIENT, Host, Net, SERVER, configuration, network, stop_listening};

const HANDSHAKES: [&str; 2] = ["early", "faithful"];
/// The paths of one satellite leg; each weight has so many ports.
const PATHS: u16 = 3;

/// Rules that give connections to these ports these weights.
fn weighted(rules: &[(u16, u16)]) -> String {
    rules
        .iter()
        .map(|(port, weight)| format!("[[rules]]\naction = \"split\"\nport = {port}\nweight = {weight}\n"))
        .collect()
}

fn with(handshake: &str, rules: &str) -> String {
    format!("{}{rules}", configuration(&format!("handshake = \"{handshake}\"")))
}

/// Connects and carries a byte each way; the port of the listener that it was accepted by.
fn listener_of(net: &Net, from: &Host, server: &Server, probe: Probe) -> u16 {
    let ((), port) = Census { gateway: &net.gateway }.port_of(|| server.connect(from, probe));
    port.unwrap_or_else(|| panic!("{probe:?} was not split"))
}

fn outward(family: usize) -> Probe {
    Probe { from: CLIENT[family].parse().unwrap(), to: SERVER[family].parse().unwrap(), dscp: 0 }
}

fn exchange(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"question").unwrap();
    server.read_exact(&mut [0; 8]).unwrap();
    server.write_all(b"answer").unwrap();
    client.read_exact(&mut [0; 6]).unwrap();
}

/// Changes SYNs that leave a host.
fn spoil_syns(host: &Host, how: &str) {
    host.rules(&format!(
        "table inet spoil {{ chain c {{ type filter hook output priority -350; tcp flags & (syn | ack) == syn {how}; }}; }}"
    ));
}

#[test]
fn a_rules_weight_decides_the_listener_with_either_handshake_in_both_families_and_directions() {
    let Some(net) = network() else { return };
    let ports = [22, 80, 443];
    let [far, near] = [&net.server, &net.client].map(|host| ports.map(|port| Server::open(host, port)));
    for handshake in HANDSHAKES {
        // In ascending order the weights of the rules are 1, 4 and 100.
        let rules = weighted(&[(22, 100), (80, 4), (81, 1)]);
        let mut daemon = net.try_daemon(&with(handshake, &rules)).unwrap();
        assert_eq!(Census::begin(&net.gateway).ports(), (7600..7600 + 3 * PATHS).collect::<Vec<u16>>());
        for family in [0, 1] {
            let probe = outward(family);
            let back = Probe { from: probe.to, to: probe.from, ..probe };
            for ((far, near), weight) in far.iter().zip(&near).zip([2, 1, 0]) {
                let base = 7600 + weight * PATHS;
                assert_eq!(listener_of(&net, &net.client, far, probe), base + 2, "{handshake} {probe:?}");
                assert_eq!(listener_of(&net, &net.server, near, back), base + 1, "{handshake} {back:?}");
            }
        }
        assert_eq!(daemon.counter("flows_total"), 12);
        Census { gateway: &net.gateway }.end();
        daemon.settle();
    }
}

#[test]
fn one_rule_may_say_the_weight_and_the_handshake() {
    let Some(net) = network() else { return };
    let (held, early) = (Server::open(&net.server, 80), Server::open(&net.server, 22));
    let rules = format!("{}handshake = \"faithful\"\n{}", weighted(&[(80, 7)]), weighted(&[(22, 7)]));
    let mut daemon = net.try_daemon(&with("early", &rules)).unwrap();
    Census::begin(&net.gateway);
    for server in [&held, &early] {
        assert_eq!(listener_of(&net, &net.client, server, outward(0)), 7605);
    }
    assert_eq!((daemon.counter("held_total"), daemon.counter("flows_total")), (1, 2));
}

#[test]
fn a_client_cannot_say_its_own_weight() {
    let Some(net) = network() else { return };
    let (plain, heavy) = (Server::open(&net.server, 80), Server::open(&net.server, 22));
    for handshake in HANDSHAKES {
        let _daemon = net.try_daemon(&with(handshake, &weighted(&[(22, 4)]))).unwrap();
        Census::begin(&net.gateway);
        spoil_syns(&net.client, "tcp urgptr set 4");
        assert_eq!(listener_of(&net, &net.client, &plain, outward(0)), 7602, "{handshake}");
        assert_eq!(listener_of(&net, &net.client, &heavy, outward(0)), 7605, "{handshake}");
        net.client.run("nft delete table inet spoil");
    }
}

#[test]
fn a_held_syn_that_goes_on_shows_nothing_of_its_weight() {
    let Some(net) = network() else { return };
    let closed = net.listen(SERVER[0]);
    let to = closed.local_addr().unwrap();
    stop_listening(closed);
    let mut daemon = net.try_daemon(&with("faithful", &weighted(&[(to.port(), 4)]))).unwrap();
    net.server.rules(
        "table inet seen { chain c { type filter hook prerouting priority -350; tcp flags syn tcp urgptr 0 counter; \
         tcp flags syn tcp urgptr != 0 counter; }; }",
    );
    let error = net.client.enter(|| TcpStream::connect(to)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(daemon.counter("syns_passed"), 1);
    let seen = net.server.output("nft list table inet seen");
    // The daemon's own question, and the client's SYN behind it.
    assert!(
        seen.contains("urgptr 0 counter packets 2 ") && seen.contains("!= 0 counter packets 0 "),
        "{seen}"
    );
}

#[test]
fn reloads_add_and_remove_weights_and_live_flows_go_on() {
    let Some(net) = network() else { return };
    for handshake in HANDSHAKES {
        let listener = net.listen(SERVER[0]);
        let SocketAddr::V4(to) = listener.local_addr().unwrap() else { unreachable!() };
        let mut daemon = net.try_daemon(&with(handshake, "")).unwrap();
        let mut flows = Vec::new();
        // Ports move on: three paths, twice three, three times three, and three again.
        for (weights, first, ours) in
            [(&[][..], 7600, 7602), (&[9], 7603, 7608), (&[9, 3], 7609, 7617), (&[], 7618, 7620)]
        {
            let rules: Vec<(u16, u16)> = weights.iter().map(|&weight| (to.port(), weight)).collect();
            // The first rule that matches decides.
            daemon.reload(&with(handshake, &weighted(&rules))).unwrap();
            let ports: Vec<u16> = (first..first + PATHS * (1 + weights.len() as u16)).collect();
            assert_eq!(Census::begin(&net.gateway).ports(), ports);
            let (pair, port) = Census { gateway: &net.gateway }.port_of(|| net.connection(&listener));
            assert_eq!(port, Some(ours), "{handshake} {weights:?}");
            flows.push(pair);
            for (client, server) in &mut flows {
                exchange(client, server);
            }
        }
        assert_eq!((daemon.counter("flows_total"), daemon.counter("flows_reset")), (4, 0));
        drop((flows, listener));
        daemon.wait_for("flows_open", 0);
    }
}

#[test]
fn a_reload_that_changes_no_weight_opens_no_listeners() {
    let Some(net) = network() else { return };
    let mut daemon = net.try_daemon(&with("early", &weighted(&[(22, 4)]))).unwrap();
    // More often than there are ranges of ports.
    for rules in [&[(22, 4), (23, 4)][..], &[(80, 4)], &[(80, 1), (22, 4)], &[(22, 4)], &[(1, 4)]] {
        daemon.reload(&with("early", &weighted(rules))).unwrap();
        assert_eq!(Census { gateway: &net.gateway }.ports(), (7600..7606).collect::<Vec<u16>>());
    }
}

#[test]
fn without_the_listener_of_its_weight_a_connection_passes() {
    let Some(net) = network() else { return };
    let text = format!("{}{}", configuration("workers = 1"), weighted(&[(22, 4)]));
    let mut daemon = net.try_daemon(&text).unwrap();
    let (plain, heavy) = (Server::open(&net.server, 80), Server::open(&net.server, 22));
    net.gateway.run("ss -K state listening sport = :7605");
    heavy.connect(&net.client, outward(0));
    assert_eq!(daemon.counter("flows_total"), 0);
    plain.connect(&net.client, outward(0));
    assert_eq!(daemon.counter("flows_total"), 1);
}

#[test]
fn eight_weights_can_be_had_and_nine_are_refused_without_harm() {
    let Some(net) = network() else { return };
    let rules = |count: u16| weighted(&(0..count).map(|index| (100 + index, 2 + index)).collect::<Vec<_>>());
    let mut daemon = net.try_daemon(&with("early", &rules(8))).unwrap();
    let last = Server::open(&net.server, 107);
    Census::begin(&net.gateway);
    assert_eq!(listener_of(&net, &net.client, &last, outward(1)), 7600 + 8 * PATHS + 2);
    let error = daemon.reload(&with("early", &rules(9))).unwrap_err();
    assert!(error.contains("rules: 9 different weights besides 1"), "{error}");
    assert_eq!(listener_of(&net, &net.client, &last, outward(1)), 7600 + 8 * PATHS + 2);
}

#[test]
fn a_taken_port_of_a_weight_is_named() {
    let Some(net) = network() else { return };
    let _taken = net.gateway.enter(|| TcpListener::bind("127.0.0.1:7604")).unwrap();
    let mut daemon = net.try_daemon(&with("early", "")).unwrap();
    let error = daemon.reload(&with("early", &weighted(&[(22, 4)]))).unwrap_err();
    assert!(error.contains("127.0.0.1:7604"), "{error}");
    drop(daemon);
    let Err(error) = net.try_daemon(&with("early", &weighted(&[(22, 4)]))) else { panic!("it started") };
    assert!(error.contains("127.0.0.1:7604"), "{error}");
}
