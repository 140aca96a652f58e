//! Others that decide which way connections go: by marks, by interfaces, by sources, by addresses that move.

use crate::attempt::{Attempt, Outcome};
use crate::common::{Host, cable, socket_address, wait_until};
use crate::nat::MASQUERADE;
use crate::neighbour::{Neighbour, inward, outward};
use crate::observer::{observe, observe_anew};
use crate::row::Row;
use crate::shell::{Shell, is_installed, version};
use crate::trial::Trial;

/// An address beyond the uplinks.
const BEYOND: [&str; 2] = ["10.77.9.9", "fd77:9::9"];

/// Joins a host to the gateway in network `number` and gives it the address beyond.
fn uplink(trial: &Trial, host: &Host, interface: &str, at_gateway: &str, number: u8) {
    trial.net.cable(at_gateway, host, interface);
    for (host, interface, last) in [(&trial.net.gateway, at_gateway, 1), (host, interface, 2)] {
        host.run(&format!("ip addr add 10.77.{number}.{last}/24 dev {interface}"));
        host.run(&format!("ip addr add fd77:{number}::{last}/64 dev {interface} nodad"));
    }
    beyond(host);
}

/// Gives a host the address beyond the uplinks.
fn beyond(host: &Host) {
    for address in BEYOND {
        host.run(&format!("ip addr add {address} dev lo"));
    }
}

/// From the client to the address beyond, where this host answers.
fn to_beyond(trial: &Trial, at: &Host, port: u16) -> Vec<Attempt> {
    [0, 1].map(|family| Attempt::new((&trial.net.client, at), socket_address(BEYOND[family], port))).to_vec()
}

fn elsewhere(attempts: Vec<Attempt>) -> Vec<Attempt> {
    attempts.into_iter().map(Attempt::elsewhere).collect()
}

/// Runs `ip LINE` for both families; `THIS//THAT` in it is a word for IPv4 and one for IPv6.
fn ip(host: &Host, line: &str) {
    for (family, flag) in ["-4", "-6"].into_iter().enumerate() {
        let word = |word: &str| match word.split_once("//") {
            Some((v4, v6)) => [v4, v6][family].to_owned(),
            None => word.to_owned(),
        };
        let words: Vec<String> = line.split(' ').map(word).collect();
        host.run(&format!("ip {flag} {}", words.join(" ")));
    }
}

/// The server has two uplinks, and the gateway hides the LAN behind both of them.
fn two_uplinks(trial: &mut Trial) {
    let server = trial.net.server.clone();
    uplink(trial, &server, "up1", "lte0", 3);
    trial.net.gateway.rules(MASQUERADE);
}

/// Rules of iptables with the structure of mwan3's.
fn mwan3(connected: &[&str]) -> String {
    let unmarked = "-m mark --mark 0x0/0x3f00";
    let is_connected =
        |network: &&str| format!("-A mwan3_connected -d {network} -j MARK --set-xmark 0x3f00/0x3f00\n");
    let connected: String = connected.iter().map(is_connected).collect();
    format!(
        "*mangle\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:mwan3_hook - [0:0]\n:mwan3_ifaces_in - [0:0]\n\
         :mwan3_connected - [0:0]\n:mwan3_rules - [0:0]\n\
         -A PREROUTING -j mwan3_hook\n-A OUTPUT -j mwan3_hook\n\
         -A mwan3_hook {unmarked} -j CONNMARK --restore-mark --nfmask 0x3f00 --ctmask 0x3f00\n\
         -A mwan3_hook {unmarked} -j mwan3_ifaces_in\n\
         -A mwan3_hook {unmarked} -j mwan3_connected\n\
         -A mwan3_hook {unmarked} -j mwan3_rules\n\
         -A mwan3_hook -j CONNMARK --save-mark --nfmask 0x3f00 --ctmask 0x3f00\n\
         -A mwan3_ifaces_in -i sat0 {unmarked} -j MARK --set-xmark 0x100/0x3f00\n\
         -A mwan3_ifaces_in -i lte0 {unmarked} -j MARK --set-xmark 0x200/0x3f00\n{connected}\
         -A mwan3_rules -p tcp --dport 8007 {unmarked} -j MARK --set-xmark 0x200/0x3f00\n\
         -A mwan3_rules {unmarked} -j MARK --set-xmark 0x100/0x3f00\nCOMMIT\n"
    )
}

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_marks_of_mwan3_that_choose_between_two_uplinks() {
    let set_up = |trial: &mut Trial| {
        let shell = trial.shell();
        shell.write("v4", &mwan3(&["127.0.0.0/8", "10.77.1.0/24", "10.77.2.0/24", "10.77.3.0/24"]));
        shell.write("v6", &mwan3(&["fe80::/10", "fd77:1::/64", "fd77:2::/64", "fd77:3::/64"]));
        shell.run("iptables-nft-restore $T/v4 && ip6tables-nft-restore $T/v6");
        let gateway = &trial.net.gateway;
        for (table, interface, number) in [(1, "sat0", 2), (2, "lte0", 3)] {
            ip(gateway, &format!("route add 10.77.1.0/24//fd77:1::/64 dev ground0 table {table}"));
            let via = format!("10.77.{number}.2//fd77:{number}::2");
            ip(gateway, &format!("route add default via {via} dev {interface} table {table}"));
            ip(gateway, &format!("rule add pref {} iif {interface} lookup {table}", 1000 + table));
            let preference = 2000 + table;
            ip(gateway, &format!("rule add pref {preference} fwmark 0x{table}00/0x3f00 lookup {table}"));
        }
        ip(gateway, "rule add pref 2061 fwmark 0x3d00/0x3f00 blackhole");
        ip(gateway, "rule add pref 2062 fwmark 0x3e00/0x3f00 unreachable");
    };
    let attempts = |trial: &Trial| {
        let server = &trial.net.server;
        [to_beyond(trial, server, 8000), elsewhere(to_beyond(trial, server, 8007))].concat()
    };
    Neighbour {
        name: "mwan3's marks, two uplinks",
        package: "iptables",
        programs: &["iptables-nft-restore"],
        prepare: &|trial| {
            two_uplinks(trial);
            let gateway = &trial.net.gateway;
            ip(gateway, "route add default via 10.77.2.2//fd77:2::2");
        },
        set_up: &set_up,
        attempts: &attempts,
        notes: "connmark with mask 0x3f00, a rule for each mark, masquerading; each connection leaves by its uplink",
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_an_interface_of_the_lan_that_has_a_routing_table_of_its_own() {
    let attempts = |trial: &Trial| to_beyond(trial, &trial.net.server, 8000);
    Neighbour {
        name: "routes by input interface, two uplinks",
        prepare: &|trial| {
            two_uplinks(trial);
            ip(&trial.net.gateway, "route add default via 10.77.3.2//fd77:3::2");
            ip(&trial.net.gateway, "route add default via 10.77.2.2//fd77:2::2 table 77");
        },
        set_up: &|trial| ip(&trial.net.gateway, "rule add pref 1000 iif ground0 lookup 77"),
        attempts: &attempts,
        notes: "`ip rule iif … lookup 77` sends the LAN to the satellite, the main table elsewhere",
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_sources_that_have_a_routing_table_of_their_own() {
    let attempts = |trial: &Trial| to_beyond(trial, &trial.net.server, 8000);
    Neighbour {
        name: "routes by source, two uplinks",
        prepare: &|trial| {
            two_uplinks(trial);
            ip(&trial.net.gateway, "route add default via 10.77.3.2//fd77:3::2");
            ip(&trial.net.gateway, "route add default via 10.77.2.2//fd77:2::2 table 77");
        },
        set_up: &|trial| {
            ip(&trial.net.gateway, "rule add pref 1000 from 10.77.1.0/24//fd77:1::/64 lookup 77");
        },
        attempts: &attempts,
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_a_mark_that_sends_connections_into_a_vpn() {
    let rules = "table inet pbr {\nchain c {\n type filter hook prerouting priority mangle; \
                 iifname ground0 tcp dport 8008 meta mark set 0x100\n}\n}\n";
    let prepare = |trial: &mut Trial| {
        let vpn = Host::new("vpn");
        uplink(trial, &vpn, "up0", "vpn0", 4);
        ip(&vpn, "route add default via 10.77.4.1//fd77:4::1");
        beyond(&trial.net.server);
        ip(&trial.net.gateway, "route add default via 10.77.2.2//fd77:2::2");
        trial.hosts.insert("vpn", vpn);
    };
    let set_up = |trial: &mut Trial| {
        let gateway = &trial.net.gateway;
        ip(gateway, "route add default via 10.77.4.2//fd77:4::2 table 100");
        ip(gateway, "rule add pref 1000 fwmark 0x100 lookup 100");
        gateway.rules(rules);
    };
    let attempts = |trial: &Trial| {
        let into_vpn = elsewhere(to_beyond(trial, &trial.hosts["vpn"], 8008));
        [to_beyond(trial, &trial.net.server, 8000), into_vpn].concat()
    };
    Neighbour {
        name: "`meta mark set 0x100` and `ip rule fwmark 0x100` into a VPN",
        prepare: &prepare,
        set_up: &set_up,
        attempts: &attempts,
        notes: "what is marked reaches the VPN's end",
        ..Default::default()
    }
    .run();
}

/// Stands for the program that configures WireGuard, which this kernel lacks: it remembers the mark.
const WG: &str = "#!/bin/sh\ncase \"$1 $3\" in\n\
                  'show allowed-ips') echo 'key 0.0.0.0/0 ::/0' ;;\n\
                  'show fwmark') cat $T/fwmark 2>/dev/null || echo off ;;\n\
                  'set fwmark') echo \"$4\" >$T/fwmark ;;\nesac\n";
/// Stands for WireGuard in user space: a veth pair without ARP, as one end of a tunnel.
const DEVICE: &str = "#!/bin/sh\nset -e\nip link set pipe0 down\nip link set pipe0 name wg0 address 02:00:00:00:00:77 arp off\n";

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_wg_quick_with_a_tunnel_for_everything() {
    let prepare = |trial: &mut Trial| {
        let vpn = Host::new("vpn");
        trial.net.cable("pipe0", &vpn, "up0");
        vpn.run("ip link set up0 address 02:00:00:00:00:77 arp off");
        beyond(&vpn);
        ip(&vpn, "route add default dev up0");
        beyond(&trial.net.server);
        ip(&trial.net.gateway, "route add default via 10.77.2.2//fd77:2::2");
        trial.hosts.insert("vpn", vpn);
    };
    let set_up = |trial: &mut Trial| {
        let shell = trial.shell();
        shell.write("wg", WG);
        shell.write("device", DEVICE);
        shell.write(
            "wg0.conf",
            "[Interface]\nAddress = 10.77.4.1/32, fd77:4::1/128\nMTU = 1420\n[Peer]\nAllowedIPs = 0.0.0.0/0, ::/0\n",
        );
        shell.run("chmod 755 $T/wg $T/device && chmod 600 $T/wg0.conf && mount --bind $T/wg /usr/bin/wg");
        shell.run("WG_QUICK_USERSPACE_IMPLEMENTATION=$T/device wg-quick up $T/wg0.conf");
    };
    let attempts = |trial: &Trial| {
        let tunnelled = elsewhere(to_beyond(trial, &trial.hosts["vpn"], 8009));
        [outward(&trial.net), tunnelled].concat()
    };
    Neighbour {
        name: "wg-quick",
        package: "wireguard-tools",
        programs: &["wg-quick"],
        prepare: &prepare,
        set_up: &set_up,
        attempts: &attempts,
        notes: "its own rules, marks and `src_valid_mark=1`; the device is a veth pair where the kernel has no \
                WireGuard; what the tunnel takes is not split",
        ..Default::default()
    }
    .run();
}

/// The preference of the daemon's first rule.
const OURS: u16 = 60;

/// A rule for an interface before or behind those of the daemon.
fn beside_a_rule_of_an_interface(preference: u16, interface: &str, has_route: bool) {
    let set_up = |trial: &mut Trial| {
        let gateway = &trial.net.gateway;
        if has_route {
            ip(gateway, "route add 10.77.1.0/24//fd77:1::/64 dev ground0 table 77");
            ip(gateway, "route add default via 10.77.2.2//fd77:2::2 table 77");
        }
        ip(gateway, &format!("rule add pref {preference} iif {interface} lookup 77"));
    };
    let side = if interface == "sat0" { "LEG" } else { "LAN" };
    let name = match has_route {
        true => {
            format!("`ip rule add pref {preference} iif {side} lookup 77` with routes to both sides there")
        }
        false => format!("`ip rule add pref {preference} iif {side} lookup 77` with nothing there"),
    };
    // It leads packets away from this host, which is seen when the first comes.
    let breaks = has_route && preference < OURS;
    Neighbour { name: &name, set_up: &set_up, attempts: &both_ways, breaks, ..Default::default() }.run();
}

fn both_ways(trial: &Trial) -> Vec<Attempt> {
    [outward(&trial.net), inward(&trial.net)].concat()
}

#[test]
fn beside_rules_of_interfaces_behind_ours() {
    for interface in ["ground0", "sat0"] {
        beside_a_rule_of_an_interface(7599, interface, true);
    }
}

#[test]
fn beside_rules_of_interfaces_before_ours() {
    for interface in ["ground0", "sat0"] {
        beside_a_rule_of_an_interface(50, interface, true);
        beside_a_rule_of_an_interface(50, interface, false);
    }
}

/// Two gateways on one LAN with an address that moves, each with its own way to the server.
fn two_gateways(trial: &mut Trial) {
    let (net, switch, spare) = (&trial.net, Host::new("switch"), Host::new("spare"));
    switch.run("ip link add br0 type bridge");
    switch.run("ip link set br0 up");
    net.gateway.run("ip link del ground0");
    for (port, host, interface) in
        [("port1", &net.client, "up0"), ("port2", &net.gateway, "ground0"), ("port3", &spare, "ground0")]
    {
        cable(&switch, port, host, interface);
        switch.run(&format!("ip link set {port} master br0"));
    }
    for (host, interface, last) in
        [(&net.client, "up0", 2), (&net.gateway, "ground0", 1), (&spare, "ground0", 3)]
    {
        host.run(&format!("ip addr add 10.77.1.{last}/24 dev {interface}"));
        host.run(&format!("ip addr add fd77:1::{last}/64 dev {interface} nodad"));
    }
    ip(&net.client, "route add default via 10.77.1.254//fd77:1::fe");
    cable(&spare, "sat0", &net.server, "up1");
    for (host, interface, last) in [(&spare, "sat0", 1), (&net.server, "up1", 2)] {
        host.run(&format!("ip addr add 10.77.5.{last}/24 dev {interface}"));
        host.run(&format!("ip addr add fd77:5::{last}/64 dev {interface} nodad"));
    }
    ip(&spare, "route add 10.77.2.0/24//fd77:2::/64 via 10.77.5.2//fd77:5::2");
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        spare.sysctl(key, "1");
    }
    for gateway in [&net.gateway, &spare] {
        gateway.rules(MASQUERADE);
    }
    trial.hosts.extend([("switch", switch), ("spare", spare)]);
}

/// Starts keepalived on a host; `vmac` gives the address a device of its own.
fn keepalived(host: &Host, priority: u8, vmac: bool) -> Shell {
    let vmac = if vmac { "use_vmac" } else { "" };
    let instance = |name: &str, id: u8, address: &str| {
        format!(
            "vrrp_instance {name} {{\n state BACKUP\n interface ground0\n virtual_router_id {id}\n \
             priority {priority}\n advert_int 0.3\n version 3\n {vmac}\n virtual_ipaddress {{\n {address}\n }}\n}}\n"
        )
    };
    let mut shell = Shell::open(host);
    let v6 = "fe80::77/64\n fd77:1::fe/64";
    shell.write("conf", &(instance("v4", 51, "10.77.1.254/24") + &instance("v6", 52, v6)));
    shell.start("keepalived", "keepalived --dont-fork --log-console --vrrp --use-file $T/conf");
    shell
}

/// Waits until a host has the addresses that move.
fn wait_for_addresses(shell: &mut Shell) {
    shell.wait_for("ip -4 addr | grep -q 'inet 10.77.1.254/'");
    shell.wait_for("ip -6 addr | grep 'inet6 fd77:1::fe/' | grep -qv tentative");
}

/// Waits until the LAN has learned where the addresses are, and connections end as they should.
fn wait_for_way(attempts: &[Attempt], outcomes: &[Outcome]) {
    wait_until("connections go over the gateway that has the addresses", || {
        attempts
            .iter()
            .zip(outcomes)
            .all(|(attempt, outcome)| attempt.try_once(&attempt.listen()) == *outcome)
    });
}

fn an_address_that_moves(vmac: bool, name: &str) {
    if !is_installed("keepalived") {
        return println!("skipped: needs keepalived: scripts/setup-peers neighbours");
    }
    let Some(mut trial) = Trial::new() else { return };
    two_gateways(&mut trial);
    let mut row = Row::default();
    let attempts = outward(&trial.net);
    let mut of_spare = keepalived(&trial.hosts["spare"], 100, vmac);
    let mut of_gateway = keepalived(&trial.net.gateway, 150, vmac);
    wait_for_addresses(&mut of_gateway);
    let over_gateway =
        ["10.77.2.1", "fd77:2::1"].map(|seen_as| Outcome::Through { seen_as: seen_as.parse().unwrap() });
    wait_for_way(&attempts, &over_gateway);
    let unsplit = trial.without_daemon(&attempts);
    observe(&trial.net.gateway, "");
    let mut daemon = trial.daemon("early");
    trial.expect_as_unsplit(&mut daemon, &attempts, &unsplit, &mut row);

    of_gateway.run("pkill -TERM keepalived");
    wait_for_addresses(&mut of_spare);
    let over_spare =
        ["10.77.5.1", "fd77:5::1"].map(|seen_as| Outcome::Through { seen_as: seen_as.parse().unwrap() });
    wait_for_way(&attempts, &over_spare);
    let before = daemon.counter("flows_total");
    for (attempt, outcome) in attempts.iter().zip(&over_spare) {
        assert_eq!(attempt.try_once(&attempt.listen()), *outcome, "by the other gateway");
    }
    assert_eq!(daemon.counter("flows_total"), before);

    drop(of_gateway);
    let mut of_gateway = keepalived(&trial.net.gateway, 150, vmac);
    wait_for_addresses(&mut of_gateway);
    wait_for_way(&attempts, &unsplit);
    // Connections that ended on the other gateway may still have segments under way, which this one cannot
    // know.
    observe_anew(&trial.net.gateway);
    trial.expect_as_unsplit(&mut daemon, &attempts, &unsplit, &mut row);
    daemon.stop();
    let notes = "the address moves to another gateway and back; a split connection ends with its gateway";
    row.write(name, &version("keepalived"), notes);
}

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_keepalived_with_an_address_that_moves() {
    an_address_that_moves(false, "keepalived, a VRRP address that moves");
}

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_keepalived_with_a_device_for_the_address_that_moves() {
    an_address_that_moves(true, "keepalived, `use_vmac` (macvlan)");
}
