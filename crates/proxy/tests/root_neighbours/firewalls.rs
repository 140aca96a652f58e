//! Firewalls: what they forbid stays forbidden, and what they allow is split.

use crate::attempt::Attempt;
use crate::common::{Host, SERVER, socket_address};
use crate::neighbour::{Neighbour, inward, outward};
use crate::trial::Trial;

/// Starts the real firewalld on the gateway, with its own D-Bus, and gives it these commands, one a line.
fn firewalld(trial: &mut Trial, commands: &str) {
    let shell = trial.shell();
    shell.run("mkdir -p /run/dbus /run/firewalld");
    shell.own("/etc/firewalld");
    shell.start("dbus", "dbus-daemon --system --nofork --nopidfile");
    shell.wait_for("test -S /run/dbus/system_bus_socket");
    shell.start("firewalld", "firewalld --nofork --nopid --log-target console");
    shell.wait_for("firewall-cmd --state");
    for command in commands.lines().map(str::trim).filter(|line| !line.is_empty()) {
        shell.run(&format!("firewall-cmd {command}"));
    }
}

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_firewalld_with_its_default_zones() {
    let attempts = |trial: &Trial| {
        // A service of the gateway itself that the zone `public` does not have.
        let own = ["10.77.1.1", "fd77:1::1"].map(|address| {
            let hosts = (&trial.net.client, &trial.net.gateway);
            Attempt::new(hosts, socket_address(address, 8002)).forbidden()
        });
        [outward(&trial.net), own.to_vec()].concat()
    };
    Neighbour {
        name: "firewalld, default zones",
        package: "firewalld",
        programs: &["firewalld", "dbus-daemon"],
        set_up: &|trial| firewalld(trial, "--change-interface=ground0\n--change-interface=sat0"),
        attempts: &attempts,
        notes: "all interfaces in `public`; with `IPv6_rpfilter`",
        ..Default::default()
    }
    .run();
}

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_firewalld_that_masquerades_and_forwards_by_a_policy() {
    let commands = "--zone=internal --change-interface=ground0
        --zone=external --change-interface=sat0
        --zone=external --add-rich-rule='rule family=ipv6 masquerade'
        --permanent --new-policy=outwards
        --permanent --policy=outwards --add-ingress-zone=internal
        --permanent --policy=outwards --add-egress-zone=external
        --permanent --policy=outwards --add-port=8000/tcp
        --permanent --zone=internal --add-interface=ground0
        --permanent --zone=external --add-interface=sat0
        --permanent --zone=external --add-rich-rule='rule family=ipv6 masquerade'
        --reload";
    Neighbour {
        name: "firewalld, zones internal and external",
        package: "firewalld",
        programs: &["firewalld", "dbus-daemon"],
        set_up: &|trial| firewalld(trial, commands),
        attempts: &only_outwards_to_one_port,
        notes: "masquerades; a policy allows one port from the LAN",
        ..Default::default()
    }
    .run();
}

/// From the LAN to port 8000; nothing else, and nothing from the satellite.
fn only_outwards_to_one_port(trial: &Trial) -> Vec<Attempt> {
    let other_port = [0, 1].map(|family| Attempt::outward(&trial.net, family, 8003).forbidden());
    let unsolicited = inward(&trial.net).into_iter().map(Attempt::forbidden).collect();
    [outward(&trial.net), other_port.to_vec(), unsolicited].concat()
}

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_ufw_that_routes_from_the_lan_only() {
    let set_up = |trial: &mut Trial| {
        let shell = trial.shell();
        shell.own("/etc/ufw");
        shell.own("/etc/default");
        shell.run("ufw route allow in on ground0 out on sat0 proto tcp to any port 8000");
        shell.run("ufw --force enable");
    };
    Neighbour {
        name: "ufw",
        package: "ufw",
        programs: &["ufw", "iptables-nft-restore"],
        set_up: &set_up,
        attempts: &only_outwards_to_one_port,
        notes: "denies incoming and routed, but `ufw route allow in on … out on …`",
        ..Default::default()
    }
    .run();
}

/// Starts the real Docker daemon on the gateway; nothing of it touches the machine's own.
fn docker(trial: &mut Trial) {
    let shell = trial.shell();
    let socket = "unix://$T/docker.sock";
    shell.start(
        "dockerd",
        &format!(
            "dockerd --data-root $T/data --exec-root $T/exec -H {socket} --pidfile $T/docker.pid \
             --experimental --ipv6 --ip6tables --fixed-cidr-v6 fd77:99::/64"
        ),
    );
    shell.wait_for(&format!("docker -H {socket} info"));
    // As Docker's manual tells those whose Docker host is a router; for IPv6 this version has no chain of its
    // own.
    for (program, chain) in [("iptables", "DOCKER-USER"), ("ip6tables", "FORWARD")] {
        // Docker does so itself where it turns forwarding on.
        shell.run(&format!("{program} -P FORWARD DROP"));
        shell.run(&format!("{program} -I {chain} -i ground0 -o sat0 -p tcp --dport 8000 -j ACCEPT"));
        shell.run(&format!("{program} -I {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"));
    }
}

/// A container as Docker wires one: a port of its bridge.
fn container(trial: &mut Trial) {
    let container = Host::new("container");
    trial.net.cable("veth1", &container, "up0");
    trial.net.gateway.run("ip link set veth1 master docker0");
    container.run("ip addr add 172.17.0.2/16 dev up0");
    container.run("ip addr add fd77:99::2/64 dev up0 nodad");
    container.run("ip route add default via 172.17.0.1");
    container.run("ip route add default via fd77:99::1");
    trial.hosts.insert("container", container);
    let shell = trial.services.last_mut().unwrap();
    shell.wait_for("test -z \"$(ip -6 addr show dev docker0 tentative)\"");
}

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_docker_and_from_a_container() {
    let attempts = |trial: &Trial| {
        let from_container = [0, 1].map(|family| {
            let hosts = (&trial.hosts["container"], &trial.net.server);
            Attempt::new(hosts, socket_address(SERVER[family], 8004))
        });
        [only_outwards_to_one_port(trial), from_container.to_vec()].concat()
    };
    let set_up = |trial: &mut Trial| {
        docker(trial);
        container(trial);
    };
    Neighbour {
        name: "Docker",
        package: "docker.io",
        programs: &["dockerd", "docker", "iptables"],
        set_up: &set_up,
        attempts: &attempts,
        notes: "`FORWARD` drops; the LAN by `DOCKER-USER`, and a container, masqueraded, behind br_netfilter",
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_a_firewall_that_drops_all_but_one_port_from_the_lan() {
    let accept =
        "ct state established,related accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept";
    let rules = format!(
        "table inet firewall {{\n\
         chain input {{\n type filter hook input priority filter; policy drop; iif lo accept; {accept}\n}}\n\
         chain forward {{\n type filter hook forward priority filter; policy drop; {accept}; \
         iifname ground0 oifname sat0 tcp dport 8000 accept\n}}\n\
         chain output {{\n type filter hook output priority filter; policy accept; ct state invalid drop\n}}\n}}\n"
    );
    Neighbour {
        name: "nftables, `policy drop` in input and forward",
        package: "nftables",
        set_up: &|trial| trial.net.gateway.rules(&rules),
        attempts: &only_outwards_to_one_port,
        notes: "an unsolicited connection from the satellite and other ports fail as unsplit",
        ..Default::default()
    }
    .run();
}
