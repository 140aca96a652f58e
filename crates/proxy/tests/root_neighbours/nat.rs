//! Address translation on the same gateway.

use crate::attempt::Attempt;
use crate::common::{CLIENT, SERVER, socket_address};
use crate::neighbour::{Neighbour, inward, outward};
use crate::trial::Trial;

/// The gateway's addresses on the side of the satellite.
const OUTSIDE: [&str; 2] = ["10.77.2.1", "fd77:2::1"];

pub(crate) const MASQUERADE: &str = "table inet outside {\nchain c {\n type nat hook postrouting priority srcnat; \
                              oifname { sat0, lte0 } masquerade\n}\n}\n";

#[test]
fn beside_masquerading() {
    Neighbour {
        name: "masquerading gateway",
        package: "nftables",
        set_up: &|trial| trial.net.gateway.rules(MASQUERADE),
        attempts: &|trial| [outward(&trial.net), inward(&trial.net)].concat(),
        notes: "the server sees the gateway's address",
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_masquerading_to_other_ports() {
    let rules = MASQUERADE.replace("masquerade\n}\n}", "meta l4proto tcp masquerade to :20000-20999\n}\n}");
    Neighbour {
        name: "masquerading gateway, `masquerade to :20000-20999`",
        package: "nftables",
        set_up: &|trial| trial.net.gateway.rules(&rules),
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_source_nat_to_a_fixed_address() {
    let rules = "table inet source {\nchain c {\n type nat hook postrouting priority srcnat; \
                 oifname sat0 snat ip to 10.77.2.9; oifname sat0 snat ip6 to fd77:2::9\n}\n}\n";
    let prepare = |trial: &mut Trial| {
        trial.net.gateway.run("ip addr add 10.77.2.9/24 dev sat0");
        trial.net.gateway.run("ip addr add fd77:2::9/64 dev sat0 nodad");
    };
    Neighbour {
        name: "source NAT to a fixed address",
        package: "nftables",
        prepare: &prepare,
        set_up: &|trial| trial.net.gateway.rules(rules),
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_a_port_that_is_forwarded_from_the_satellite_to_the_lan() {
    let rules = "table inet forwarding {\nchain c {\n type nat hook prerouting priority dstnat; \
                 iifname sat0 tcp dport 8022 dnat ip to 10.77.1.2:22; \
                 iifname sat0 tcp dport 8022 dnat ip6 to [fd77:1::2]:22\n}\n}\n";
    let attempts = |trial: &Trial| {
        let forwarded = [0, 1].map(|family| {
            let hosts = (&trial.net.server, &trial.net.client);
            let listens = socket_address(CLIENT[family], 22);
            Attempt::new(hosts, socket_address(OUTSIDE[family], 8022)).answered_at(listens).translated()
        });
        [outward(&trial.net), forwarded.to_vec()].concat()
    };
    Neighbour {
        name: "port forwarding (DNAT) from the satellite to the LAN",
        package: "nftables",
        set_up: &|trial| trial.net.gateway.rules(&[rules, MASQUERADE].concat()),
        attempts: &attempts,
        notes: "beside a masquerading gateway",
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_destination_nat_of_what_the_lan_connects_to() {
    let rules = "table inet detour {\nchain c {\n type nat hook prerouting priority dstnat; \
                 iifname ground0 tcp dport 8005 dnat ip to 10.77.2.2:8006; \
                 iifname ground0 tcp dport 8005 dnat ip6 to [fd77:2::2]:8006\n}\n}\n";
    let attempts = |trial: &Trial| {
        // Nobody has the address that the client connects to.
        let to = ["192.0.2.1", "2001:db8::1"];
        let attempt = |family: usize| {
            let hosts = (&trial.net.client, &trial.net.server);
            let listens = socket_address(SERVER[family], 8006);
            Attempt::new(hosts, socket_address(to[family], 8005)).answered_at(listens).translated()
        };
        [0, 1].map(attempt).to_vec()
    };
    Neighbour {
        name: "DNAT of what the LAN connects to",
        package: "nftables",
        prepare: &|trial| {
            trial.net.gateway.run("ip route add 192.0.2.0/24 via 10.77.2.2");
            trial.net.gateway.run("ip route add 2001:db8::/64 via fd77:2::2");
        },
        set_up: &|trial| trial.net.gateway.rules(rules),
        attempts: &attempts,
        ..Default::default()
    }
    .run();
}

#[test]
fn beside_a_captive_portal_that_redirects() {
    let rules = "table inet portal {\nchain c {\n type nat hook prerouting priority dstnat; \
                 iifname ground0 tcp dport 80 redirect to :8880\n}\n}\n";
    let attempts = |trial: &Trial| {
        let portal = [0, 1].map(|family| {
            let hosts = (&trial.net.client, &trial.net.gateway);
            let listens = socket_address(["10.77.1.1", "fd77:1::1"][family], 8880);
            Attempt::new(hosts, socket_address(SERVER[family], 80)).answered_at(listens).elsewhere()
        });
        [outward(&trial.net), portal.to_vec()].concat()
    };
    Neighbour {
        name: "captive portal by `redirect`",
        package: "nftables",
        set_up: &|trial| trial.net.gateway.rules(rules),
        attempts: &attempts,
        notes: "port 80 reaches the portal on the gateway, the rest is split",
        ..Default::default()
    }
    .run();
}
