//! What is not split is counted: connections by verdict and by rule, bytes by leg, through reloads and
//! upgrades.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};

use crate::common::probe::{Probe, Server};
use crate::common::{CLIENT, Net, SERVER, configuration, network};

const SSH: &str = "[[rules]]\naction = \"pass\"\nport = 22\ncomment = \"ssh\"\n";
const QUIC: &str = "[[rules]]\naction = \"reject\"\n";

fn probe(family: usize) -> Probe {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    Probe { from: address(CLIENT[family]), to: address(SERVER[family]), dscp: 0 }
}

fn text(rules: &str) -> String {
    format!("{}{rules}", configuration(""))
}

#[test]
fn connections_are_counted_by_verdict_and_by_rule() {
    let Some(net) = network() else { return };
    net.gateway.sysctl("net.ipv4.icmp_ratelimit", "0");
    let [ssh, web, quic] = [22, 80, 443].map(|port| Server::open(&net.server, port));
    let mut daemon = net.try_daemon(&text(&format!("{SSH}{QUIC}"))).unwrap();
    for _ in 0..3 {
        ssh.connect(&net.client, probe(0));
    }
    ssh.connect(&net.client, probe(1));
    web.connect(&net.client, probe(0));
    assert!(!quic.reach(&net.client, probe(0)));
    let seen = daemon.wait_to_see("four passed, one split", |seen| {
        seen.verdict("pass") == 4 && seen.verdict("split") == 1 && seen.verdict("reject") > 0
    });
    assert_eq!((seen.matched()[0], seen.matched()[1]), (4, seen.verdict("reject")));
    let rule = &seen.policy.rules[0];
    let said = (rule.action.as_str(), rule.conditions.as_str(), rule.comment.as_deref());
    assert_eq!(said, ("pass", "port 22", Some("ssh")));
    assert_eq!(seen.verdict("not_ready"), 0);
    daemon.settle();
}

#[test]
fn counts_survive_a_reload_with_other_rules_and_rules_that_somebody_flushed() {
    let Some(net) = network() else { return };
    let ssh = Server::open(&net.server, 22);
    let mut daemon = net.try_daemon(&text(SSH)).unwrap();
    ssh.connect(&net.client, probe(0));
    daemon.reload(&text(&format!("{QUIC}{SSH}"))).unwrap();
    ssh.connect(&net.client, probe(0));
    let seen = daemon.wait_to_see("both", |seen| seen.verdict("pass") == 2);
    assert_eq!(seen.matched(), [0, 2], "the rule keeps its count in another place");
    net.gateway.run("nft flush ruleset");
    let is_there = || net.gateway.output("nft list ruleset").contains("rule_2");
    crate::common::wait_until("the rules are there again", is_there);
    ssh.connect(&net.client, probe(0));
    daemon.wait_to_see("a third", |seen| seen.verdict("pass") == 3 && seen.matched() == [0, 3]);
    daemon.reload(&text("")).unwrap();
    let seen = daemon.wait_to_see("no rule", |seen| seen.policy.rules.is_empty());
    assert_eq!(seen.verdict("pass"), 3, "what was passed stays passed");
    daemon.settle();
}

#[test]
fn counts_and_forwarded_bytes_survive_rules_that_snoop() {
    let Some(net) = network() else { return };
    let ssh = Server::open(&net.server, 22);
    let snoop = "[[rules]]\naction = \"snoop\"\nport = 22\n[snoop]\ncache = \"1MB\"\n";
    let mut daemon = net.try_daemon(&text(snoop)).unwrap();
    ssh.connect(&net.client, probe(0));
    daemon.wait_to_see("one", |seen| seen.verdict("snoop") == 1 && seen.matched() == [1]);
    // The rules are replaced, and the flows stay that are snooped.
    daemon.reload(&text(&format!("{snoop}{QUIC}"))).unwrap();
    ssh.connect(&net.client, probe(1));
    let seen = daemon.wait_to_see("two", |seen| seen.verdict("snoop") == 2);
    assert_eq!(seen.matched(), [2, 0]);
    let forwarded = seen.legs[0].forwarded.unwrap();
    assert!(forwarded.sent_bytes.snooped > 0 && forwarded.received_bytes.snooped > 0, "{forwarded:#?}");
    daemon.settle();
}

#[test]
fn what_is_forwarded_is_counted_in_bytes_and_what_is_split_is_not() {
    let Some(net) = network() else { return };
    let mut daemon = net.try_daemon(&text(SSH)).unwrap();
    transfer(&net, 80, 300_000);
    let before = daemon.wait_to_see("a split transfer", |seen| seen.legs[0].sent_bytes >= 300_000);
    let forwarded = before.legs[0].forwarded.unwrap();
    assert_eq!((forwarded.sent_bytes.tcp, forwarded.received_bytes.tcp), (0, 0), "{forwarded:#?}");
    transfer(&net, 22, 300_000);
    let seen = daemon.wait_to_see("a forwarded one", |seen| {
        seen.legs[0].forwarded.is_some_and(|forwarded| forwarded.sent_bytes.tcp > 300_000)
    });
    let forwarded = seen.legs[0].forwarded.unwrap();
    // Headers, handshake and acknowledgements besides.
    assert!(forwarded.sent_bytes.tcp < 340_000, "{forwarded:#?}");
    assert!((100..40_000).contains(&forwarded.received_bytes.tcp), "{forwarded:#?}");
    assert!(seen.legs[0].sent_bytes < 310_000, "the split one alone: {:#?}", seen.legs[0]);
    daemon.settle();
}

/// Sends bytes to a port of the server.
fn transfer(net: &Net, port: u16, bytes: usize) {
    let address = (SERVER[0].parse::<IpAddr>().unwrap(), port);
    let listener = net.server.enter(|| TcpListener::bind(address).unwrap());
    let mut client = net.client.enter(|| TcpStream::connect(address).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| server.read_exact(&mut vec![0; bytes]).unwrap());
        client.write_all(&vec![7; bytes]).unwrap();
    });
}

#[test]
fn a_limit_stands_beside_its_use_and_what_is_beyond_it_is_counted() {
    let Some(net) = network() else { return };
    let limits = "[limits]\nconnections = 4\nconnections_per_client = 3\nconnection_rate = 500\n";
    let mut daemon = net.try_daemon(&text(limits)).unwrap();
    let listener = net.listen(SERVER[0]);
    let held = net.connections(&listener, 3);
    let full = |seen: &crate::common::Seen| seen.limits.connections_per_client.used == 3;
    let seen = daemon.wait_to_see("the client at its limit", full);
    let limits = &seen.limits;
    assert_eq!((limits.connections.used, limits.connections.most), (3, Some(4)));
    assert_eq!((limits.connections_per_client.most, limits.connection_rate.most), (Some(3), Some(500)));
    assert_eq!((limits.at_limit.as_str(), limits.connection_rate_per_client), ("pass", None));
    let is_known = || net.gateway.output("nft list set inet bentpipe full_clients4").contains("expires");
    crate::common::wait_until("the rules know", is_known);
    let more = net.connections(&listener, 2);
    daemon.wait_to_see("two beyond it", |seen| seen.verdict("client_limit") == 2);
    assert_eq!(daemon.counter("flows_total"), 3);
    drop((held, more));
    daemon.settle();
}

#[test]
fn a_successor_goes_on_with_the_counts() {
    let Some(net) = network() else { return };
    let ssh = Server::open(&net.server, 22);
    let mut daemon = net.try_daemon(&text(&format!("{SSH}{QUIC}"))).unwrap();
    for _ in 0..2 {
        ssh.connect(&net.client, probe(0));
    }
    daemon.wait_to_see("two", |seen| seen.verdict("pass") == 2);
    daemon.succeed(&net, &text(&format!("{SSH}{QUIC}"))).unwrap();
    ssh.connect(&net.client, probe(0));
    daemon.wait_to_see("three", |seen| seen.verdict("pass") == 3 && seen.matched() == [3, 0]);
    // A successor that replaces the rules.
    daemon.succeed(&net, &text(SSH)).unwrap();
    ssh.connect(&net.client, probe(0));
    daemon.wait_to_see("four", |seen| seen.verdict("pass") == 4 && seen.matched() == [4]);
    daemon.settle();
}
