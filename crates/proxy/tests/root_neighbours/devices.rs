//! Interfaces: bridges, VLANs, those that vanish and return, and addresses that belong to one link only.

use std::net::{SocketAddr, SocketAddrV6};

use crate::attempt::{Attempt, Outcome};
use crate::common::{CLIENT, Host, SERVER, socket_address, wait_until};
use crate::neighbour::{Neighbour, inward, outward};
use crate::observer::observe;
use crate::row::Row;
use crate::shell::kernel;
use crate::trial::Trial;

/// Puts an interface of the gateway into a new bridge, which takes its addresses over.
fn bridge(gateway: &Host, interface: &str, bridge: &str, network: u8) {
    gateway.run(&format!("ip link add {bridge} type bridge"));
    // IPv6 forgets its addresses with the link.
    gateway.run(&format!("ip addr flush dev {interface}"));
    gateway.run(&format!("ip link set {interface} master {bridge}"));
    gateway.run(&format!("ip link set {bridge} up"));
    gateway.run(&format!("ip addr add 10.77.{network}.1/24 dev {bridge}"));
    gateway.run(&format!("ip addr add fd77:{network}::1/64 dev {bridge} nodad"));
}

/// The settings of br_netfilter.
fn bridge_netfilter(gateway: &Host, on: bool) {
    for key in ["iptables", "ip6tables"] {
        gateway.sysctl(&format!("net.bridge.bridge-nf-call-{key}"), if on { "1" } else { "0" });
    }
}

/// A host at another port of a bridge.
fn neighbour(trial: &mut Trial, name: &'static str, bridge: &str, network: u8) {
    let host = Host::new(name);
    trial.net.cable(name, &host, "up0");
    trial.net.gateway.run(&format!("ip link set {name} master {bridge}"));
    host.run(&format!("ip addr add 10.77.{network}.3/24 dev up0"));
    host.run(&format!("ip addr add fd77:{network}::3/64 dev up0 nodad"));
    trial.hosts.insert(name, host);
}

/// Connections that do not leave a bridge.
fn within_bridge(host: &Host, neighbour: &Host, network: u8) -> [Attempt; 2] {
    [format!("10.77.{network}.3"), format!("fd77:{network}::3")]
        .map(|to| Attempt::new((host, neighbour), socket_address(&to, 8010)).elsewhere())
}

fn beside_bridges(name: &str, lan: bool, leg: bool, on: bool) {
    let prepare = |trial: &mut Trial| {
        if lan {
            bridge(&trial.net.gateway, "ground0", "br0", 1);
            neighbour(trial, "inside", "br0", 1);
        }
        if leg {
            bridge(&trial.net.gateway, "sat0", "brsat", 2);
            neighbour(trial, "outside", "brsat", 2);
            trial.leg = "brsat";
        }
        bridge_netfilter(&trial.net.gateway, false);
    };
    let attempts = |trial: &Trial| {
        let mut attempts = [outward(&trial.net), inward(&trial.net)].concat();
        if lan {
            attempts.extend(within_bridge(&trial.net.client, &trial.hosts["inside"], 1));
        }
        if leg {
            attempts.extend(within_bridge(&trial.net.server, &trial.hosts["outside"], 2));
        }
        attempts
    };
    let set_up = |trial: &mut Trial| bridge_netfilter(&trial.net.gateway, on);
    Neighbour { name, prepare: &prepare, set_up: &set_up, attempts: &attempts, ..Default::default() }.run();
}

#[test]
fn behind_a_bridge_of_the_lan() {
    beside_bridges("bridge on the LAN, br_netfilter off", true, false, false);
    beside_bridges("bridge on the LAN, br_netfilter on", true, false, true);
}

#[test]
fn behind_a_bridge_that_is_the_leg() {
    beside_bridges("bridge as the leg, br_netfilter off", false, true, false);
    beside_bridges("bridge as the leg, br_netfilter on", false, true, true);
}

#[test]
fn behind_bridges_on_both_sides() {
    beside_bridges("bridges on both sides, br_netfilter on", true, true, true);
}

#[test]
fn over_a_vlan_as_the_leg() {
    let name = "VLAN as the leg";
    let host = Host::new("vlan");
    host.run("ip link add dummy0 type veth peer name dummy1");
    let add = ["link", "add", "link", "dummy0", "name", "dummy0.7", "type", "vlan", "id", "7"];
    if !host.command("ip").args(add).output().unwrap().status.success() {
        println!("skipped: needs a kernel with CONFIG_VLAN_8021Q");
        return Row::default().write(name, &kernel(), "not tried: this kernel has no 802.1Q");
    }
    let prepare = |trial: &mut Trial| {
        for (host, interface, last) in [(&trial.net.gateway, "sat0", 1), (&trial.net.server, "up0", 2)] {
            host.run(&format!("ip addr flush dev {interface}"));
            host.run(&format!("ip link add link {interface} name {interface}.7 type vlan id 7"));
            host.run(&format!("ip link set {interface}.7 up"));
            host.run(&format!("ip addr add 10.77.2.{last}/24 dev {interface}.7"));
            host.run(&format!("ip addr add fd77:2::{last}/64 dev {interface}.7 nodad"));
        }
        trial.net.server.run("ip route replace default via 10.77.2.1");
        trial.net.server.run("ip -6 route replace default via fd77:2::1");
        trial.leg = "sat0.7";
    };
    Neighbour { name, prepare: &prepare, may_come_late: false, ..Default::default() }.run();
}

/// Deletes an interface of the gateway with its cable and makes it anew, with other indices.
fn replace_interface(trial: &Trial, at_gateway: &str, host: &Host, network: u8) {
    trial.net.gateway.run(&format!("ip link del {at_gateway}"));
    // Indices are given in order: this one is taken before the interface returns.
    trial.net.gateway.run("ip link add filler type bridge");
    trial.net.cable(at_gateway, host, "up0");
    for (host, interface, last) in [(&trial.net.gateway, at_gateway, 1), (host, "up0", 2)] {
        host.run(&format!("ip addr add 10.77.{network}.{last}/24 dev {interface}"));
        host.run(&format!("ip addr add fd77:{network}::{last}/64 dev {interface} nodad"));
    }
    host.run(&format!("ip route add default via 10.77.{network}.1"));
    host.run(&format!("ip route add default via fd77:{network}::1"));
    trial.net.gateway.run("ip link del filler");
}

#[test]
fn beside_an_interface_that_vanishes_and_returns_with_another_index() {
    let mut row = Row::default();
    for interface in ["sat0", "ground0"] {
        let Some(trial) = Trial::new() else { return };
        let attempts = [outward(&trial.net), inward(&trial.net)].concat();
        let unsplit = trial.without_daemon(&attempts);
        observe(&trial.net.gateway, "");
        let mut daemon = trial.daemon("early");
        trial.expect_as_unsplit(&mut daemon, &attempts, &unsplit, &mut row);
        let before = index_of(&trial.net.gateway, interface);
        if interface == "sat0" {
            replace_interface(&trial, interface, &trial.net.server, 2);
        } else {
            replace_interface(&trial, interface, &trial.net.client, 1);
        }
        assert_ne!(index_of(&trial.net.gateway, interface), before);
        trial.expect_as_unsplit(&mut daemon, &attempts, &unsplit, &mut row);
        attempts.iter().for_each(|attempt| trial.wait_until_split(&mut daemon, attempt));
        daemon.stop();
    }
    let notes = "new connections come through at once, and are split again";
    row.write("an interface that vanishes and returns", &kernel(), notes);
}

fn index_of(host: &Host, interface: &str) -> String {
    let line = host.output(&format!("ip -o link show dev {interface}"));
    line.split(':').next().unwrap().to_owned()
}

#[test]
fn from_a_link_local_source_as_without_the_daemon() {
    let attempts = |trial: &Trial| {
        let source = link_local(&trial.net.client);
        let to = socket_address(SERVER[1], 8011);
        let link_local = Attempt::new((&trial.net.client, &trial.net.server), to).coming_from(source);
        // To an address that the gateway routes, but from one that no router may carry on (RFC 4291 §2.5.6).
        [outward(&trial.net), vec![link_local.forbidden()]].concat()
    };
    Neighbour {
        name: "IPv6 link-local sources",
        attempts: &attempts,
        may_come_late: false,
        notes: "no router forwards them (RFC 4291 §2.5.6); the client is told so at once",
        ..Default::default()
    }
    .run();
}

/// The address of `up0` that is valid on its link only.
fn link_local(host: &Host) -> SocketAddr {
    let show = || host.output("ip -6 -o addr show dev up0 scope link");
    wait_until("nobody else has the link-local address", || !show().contains("tentative"));
    let line = show();
    let words: Vec<&str> = line.split_whitespace().collect();
    let address = words[3].split('/').next().unwrap().parse().unwrap();
    let index = index_of(host, "up0").parse().unwrap();
    SocketAddrV6::new(address, 0, 0, index).into()
}

#[test]
fn to_hosts_of_the_same_side_without_a_part_of_the_daemon() {
    let prepare = |trial: &mut Trial| {
        let second = Host::new("second");
        trial.net.wire(&second, "up0", "ground1", 3);
        trial.hosts.insert("second", second);
    };
    let attempts = |trial: &Trial| {
        let client = (&trial.hosts["second"], &trial.net.client);
        let inside =
            [0, 1].map(|family| Attempt::new(client, socket_address(CLIENT[family], 8012)).elsewhere());
        let server = (&trial.hosts["second"], &trial.net.server);
        let outside = [0, 1].map(|family| Attempt::new(server, socket_address(SERVER[family], 8013)));
        [inside, outside].concat()
    };
    Neighbour {
        name: "two networks on the LAN's side",
        prepare: &prepare,
        attempts: &attempts,
        ..Default::default()
    }
    .run();
}

#[test]
fn a_connection_fails_as_unsplit_while_the_legs_interface_is_away() {
    let Some(trial) = Trial::new() else { return };
    let attempts = outward(&trial.net);
    let gateway = &trial.net.gateway;
    gateway.run("ip link set sat0 down");
    let outcome = |attempt: &Attempt| attempt.try_once(&attempt.listen());
    let unsplit: Vec<Outcome> = attempts.iter().map(outcome).collect();
    gateway.run("ip link set sat0 up");
    gateway.run("ip addr replace fd77:2::1/64 dev sat0 nodad");
    let daemon = trial.daemon("early");
    gateway.run("ip link set sat0 down");
    let split: Vec<Outcome> = attempts.iter().map(outcome).collect();
    assert_eq!(split, unsplit);
    daemon.stop();
}
