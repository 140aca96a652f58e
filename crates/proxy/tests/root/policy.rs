//! What each rule does to connections and datagrams that really cross the gateway.

use std::net::IpAddr;

use crate::common::probe::{Probe, Server};
use crate::common::{CLIENT, Net, Running, SERVER, configuration, network};

/// Second addresses of the two ends.
const OTHER_CLIENT: [&str; 2] = ["10.77.1.3", "fd77:1::3"];
const OTHER_SERVER: [&str; 2] = ["10.77.2.3", "fd77:2::3"];

fn with_rules(net: &Net, rules: &str) -> Running {
    net.try_daemon(&format!("{}{rules}", configuration(""))).unwrap_or_else(|error| panic!("daemon: {error}"))
}

/// The network with two addresses of each family at each end, and a gateway that does not ration its ICMP
/// errors.
fn network_with_more_addresses() -> Option<Net> {
    let net = network()?;
    for (host, [v4, v6]) in [(&net.client, OTHER_CLIENT), (&net.server, OTHER_SERVER)] {
        host.run(&format!("ip addr add {v4}/24 dev up0"));
        host.run(&format!("ip addr add {v6}/64 dev up0 nodad"));
    }
    net.gateway.sysctl("net.ipv4.icmp_ratelimit", "0");
    net.gateway.sysctl("net.ipv6.icmp.ratelimit", "0");
    Some(net)
}

fn probe(from: &str, to: &str, dscp: u8) -> Probe {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    Probe { from: address(from), to: address(to), dscp }
}

/// The same in both families.
fn probes() -> [Probe; 2] {
    [0, 1].map(|family| probe(CLIENT[family], SERVER[family], 0))
}

#[test]
fn each_condition_matches_only_its_own_connections() {
    let Some(net) = network_with_more_addresses() else { return };
    let [ssh, web] = [22, 80].map(|port| Server::open(&net.server, port));
    // What the rule says; a connection that it passes; one that it does not.
    for family in [0, 1] {
        let (near, other_near) = (CLIENT[family], OTHER_CLIENT[family]);
        let (far, other_far) = (SERVER[family], OTHER_SERVER[family]);
        let plain = probe(near, far, 0);
        let cases = [
            (format!("client = \"{near}\""), (&ssh, plain), (&ssh, probe(other_near, far, 0))),
            (format!("server = [\"{far}\"]"), (&ssh, plain), (&ssh, probe(near, other_far, 0))),
            ("port = 22".into(), (&ssh, plain), (&web, plain)),
            ("port = [\"79-81\", \"80-90\"]".into(), (&web, plain), (&ssh, plain)),
            ("dscp = [\"cs1\", \"ef\"]".into(), (&ssh, probe(near, far, 46)), (&ssh, probe(near, far, 10))),
            (
                format!("client = \"{near}\"\nserver = \"{far}\"\nport = 22\ndscp = \"le\""),
                (&ssh, probe(near, far, 1)),
                (&web, probe(near, far, 1)),
            ),
        ];
        for (conditions, (passes, passed), (splits, split)) in cases {
            let mut daemon = with_rules(&net, &format!("[[rules]]\naction = \"pass\"\n{conditions}\n"));
            passes.connect(&net.client, passed);
            assert_eq!(daemon.counter("flows_total"), 0, "{conditions}");
            splits.connect(&net.client, split);
            assert_eq!(daemon.counter("flows_total"), 1, "{conditions}");
        }
    }
}

#[test]
fn the_interfaces_tell_one_direction_from_the_other() {
    let Some(net) = network_with_more_addresses() else { return };
    let [near, far] = [&net.client, &net.server].map(|host| Server::open(host, 80));
    for conditions in ["client_interface = \"ground0\"", "server_interface = [\"sat0\", \"sat7\"]"] {
        let mut daemon = with_rules(&net, &format!("[[rules]]\naction = \"pass\"\n{conditions}\n"));
        for (already, outward) in probes().into_iter().enumerate() {
            far.connect(&net.client, outward);
            assert_eq!(daemon.counter("flows_total"), already as u64, "{conditions}");
            near.connect(&net.server, Probe { from: outward.to, to: outward.from, dscp: 0 });
            assert_eq!(daemon.counter("flows_total"), already as u64 + 1, "{conditions}");
        }
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let Some(net) = network() else { return };
    let server = Server::open(&net.server, 22);
    let split = "[[rules]]\naction = \"split\"\nport = \"20-30\"\n";
    let pass = "[[rules]]\naction = \"pass\"\n";
    for (rules, flows) in
        [(format!("{split}{pass}"), 1), (format!("{pass}port = 22\n{split}"), 0), (pass.into(), 0)]
    {
        let mut daemon = with_rules(&net, &rules);
        server.connect(&net.client, probes()[0]);
        assert_eq!(daemon.counter("flows_total"), flows, "{rules}");
    }
}

#[test]
fn quic_is_left_alone_by_default() {
    let Some(net) = network() else { return };
    let server = Server::open(&net.server, 443);
    for rules in ["", "[[rules]]\naction = \"split\"\nport = 443\n"] {
        let _daemon = with_rules(&net, rules);
        for probe in probes() {
            assert!(server.reach(&net.client, probe), "{rules}");
        }
    }
}

#[test]
fn quic_is_refused_where_a_rule_rejects_it_and_tcp_on_its_port_is_split() {
    let Some(net) = network_with_more_addresses() else { return };
    let [quic, dns] = [443, 53].map(|port| Server::open(&net.server, port));
    let of_client = Server::open(&net.client, 443);
    let mut daemon = with_rules(&net, "[[rules]]\naction = \"reject\"\ncomment = \"to TCP\"\n");
    for outward in probes() {
        assert!(!quic.reach(&net.client, outward));
        assert!(!of_client.reach(&net.server, Probe { from: outward.to, to: outward.from, dscp: 0 }));
        assert!(dns.reach(&net.client, outward));
        quic.connect(&net.client, outward);
    }
    assert_eq!(daemon.counter("flows_total"), 2);
}

#[test]
fn a_pass_before_the_reject_keeps_quic_and_one_behind_it_comes_too_late() {
    let Some(net) = network_with_more_addresses() else { return };
    let server = Server::open(&net.server, 443);
    let pass = format!("[[rules]]\naction = \"pass\"\nclient = {CLIENT:?}\n");
    let reject = "[[rules]]\naction = \"reject\"\n";
    for (rules, passed) in [(format!("{pass}{reject}"), true), (format!("{reject}{pass}"), false)] {
        let _daemon = with_rules(&net, &rules);
        for family in [0, 1] {
            assert_eq!(
                server.reach(&net.client, probe(CLIENT[family], SERVER[family], 0)),
                passed,
                "{rules}"
            );
            assert!(!server.reach(&net.client, probe(OTHER_CLIENT[family], SERVER[family], 0)), "{rules}");
        }
    }
}

#[test]
fn after_a_crash_quic_flows_again_when_the_sign_of_life_has_expired() {
    let Some(net) = network_with_more_addresses() else { return };
    let server = Server::open(&net.server, 443);
    let daemon = with_rules(&net, "[[rules]]\naction = \"reject\"\n");
    assert!(!server.reach(&net.client, probes()[0]));
    daemon.kill();
    // What a dead daemon has left expires by itself; here sooner than it would.
    for protocol in ["tcp", "udp"] {
        let set = "inet bentpipe alive";
        net.gateway.rules(&format!(
            "add element {set} {{ {protocol} }}\ndelete element {set} {{ {protocol} }}\n\
             add element {set} {{ {protocol} timeout 300ms }}\n"
        ));
    }
    let start = std::time::Instant::now();
    while !server.reach(&net.client, probes()[0]) {
        assert!(start.elapsed() < crate::common::PATIENCE, "the rules still reject");
    }
    assert!(server.reach(&net.client, probes()[1]));
    assert!(net.traces().contains("reject"), "it is the sign of life that counts, not the rules");
}

#[test]
fn rules_are_gone_after_the_end() {
    let Some(net) = network() else { return };
    let before = net.traces();
    let daemon = with_rules(
        &net,
        "[[rules]]\naction = \"pass\"\nport = 22\ncomment = \"ours\"\n[[rules]]\naction = \"reject\"\n",
    );
    let during = net.traces();
    let is_ours = |line: &str| line.contains("tcp dport 22 ") && line.ends_with(" return comment \"ours\"");
    assert!(during.lines().any(is_ours) && during.contains("udp dport 443"), "{during}");
    daemon.stop();
    assert_eq!(net.traces(), before);
}
