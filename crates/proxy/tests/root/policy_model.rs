//! Any rules at all: nft takes what is made of them, and the kernel does with a packet what a reading of them
//! says.

use std::io::Write;
use std::net::IpAddr;
use std::process::Stdio;

use crate::common::census::Census;
use crate::common::probe::{Probe, Server};
use crate::common::{Host, Net, Running, network};
use bentpipe_proxy::Config;
use bentpipe_proxy::config::{Action, Interface, Rule};
use bentpipe_proxy::intercept::{Plan, ruleset};
use bentpipe_proxy::leg_pair;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config as Cases, TestRunner};

/// Two satellite legs; the gateway's other two interfaces are terrestrial. Nobody listens on the bundle
/// node's port.
const LEGS: &str = "[bundle]\nport = 8000\n[snoop]\ncache = \"1MB\"\n[legs.a]\ninterface = \"sat0\"\ncongestion = \"reno\"\n\
                    [legs.b]\ninterface = \"sat1\"\ncongestion = \"reno\"\n";
/// The gateway's interfaces; the host behind number i has the networks 10.77.(i+1).0/24 and fd77:(i+1)::/64.
const INTERFACES: [&str; 4] = ["ground0", "sat0", "lan0", "sat1"];
const PORTS: [u16; 4] = [22, 80, 443, 6005];
const CODE_POINTS: [u8; 4] = [0, 8, 10, 46];

/// What a packet is to be compared by.
#[derive(Debug, Clone, Copy)]
struct Packet {
    is_tcp: bool,
    is_ipv4: bool,
    /// Position in [`INTERFACES`], and the last part of the address there.
    from: (usize, u8),
    to: (usize, u8),
    /// Position in [`PORTS`].
    port: usize,
    dscp: u8,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// With this weight.
    Split(u16),
    /// Not split, but taken note of: the daemon sees its packets.
    Snooped,
    Forwarded,
    Refused,
}

impl Packet {
    fn probe(&self) -> Probe {
        Probe { from: self.address(self.from), to: self.address(self.to), dscp: self.dscp }
    }

    fn address(&self, (host, last): (usize, u8)) -> IpAddr {
        let network = host + 1;
        let text =
            if self.is_ipv4 { format!("10.77.{network}.{last}") } else { format!("fd77:{network}::{last}") };
        text.parse().unwrap()
    }

    /// How many of its two ends are beyond a satellite.
    fn legs_crossed(&self) -> usize {
        [self.from.0, self.to.0].iter().filter(|&&host| INTERFACES[host].starts_with("sat")).count()
    }
}

/// What the documentation of the rules says, as directly as it can be written.
fn decide(rules: &[Rule], packet: &Packet) -> Fate {
    if packet.legs_crossed() == 0 {
        return Fate::Forwarded;
    }
    for rule in rules.iter().filter(|rule| matches(rule, packet)) {
        match (rule.action, packet.is_tcp) {
            (Action::Split { weight, .. }, true) => return Fate::Split(weight.get()),
            (Action::Snoop, true) if packet.legs_crossed() == 1 => return Fate::Snooped,
            (Action::Snoop, true) => return Fate::Forwarded,
            (Action::Pass | Action::Protect, _) | (Action::Bundle, true) => return Fate::Forwarded,
            (Action::Reject, false) => return Fate::Refused,
            (Action::Split { .. } | Action::Snoop | Action::Bundle, false) | (Action::Reject, true) => {}
        }
    }
    if packet.is_tcp { Fate::Split(1) } else { Fate::Forwarded }
}

fn matches(rule: &Rule, packet: &Packet) -> bool {
    let Probe { from, to, dscp } = packet.probe();
    let port = PORTS[packet.port];
    let comes_by = INTERFACES[packet.from.0];
    let leaves_by = INTERFACES[packet.to.0];
    rule.client.as_ref().is_none_or(|list| list.iter().any(|network| network.contains(from)))
        && rule.server.as_ref().is_none_or(|list| list.iter().any(|network| network.contains(to)))
        && rule.client_interface.as_ref().is_none_or(|list| list.iter().any(|name| name.as_str() == comes_by))
        && rule
            .server_interface
            .as_ref()
            .is_none_or(|list| list.iter().any(|name| name.as_str() == leaves_by))
        && rule.port.as_ref().is_none_or(|list| list.iter().any(|ports| ports.contains(port)))
        && rule.dscp.as_ref().is_none_or(|list| list.iter().any(|code_point| code_point.get() == dscp))
}

/// A key of a rule with one to three values of those given, or no such key.
fn key(name: &'static str, values: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let list = prop::collection::vec(values, 1..4);
    prop::option::weighted(0.4, list).prop_map(move |list| {
        list.map_or_else(String::new, |list| format!("{name} = [{}]\n", list.join(", ")))
    })
}

/// One rule, by the values that its keys may have.
fn rule(
    network: impl Strategy<Value = String> + Clone,
    interface: impl Strategy<Value = String> + Clone,
    port: impl Strategy<Value = String>,
) -> impl Strategy<Value = String> {
    let code_point = select(vec!["0", "8", "\"af11\"", "\"ef\"", "63"]).prop_map(String::from);
    (
        select(vec![
            "\"split\"",
            "\"split\"\nweight = 7",
            "\"split\"\nweight = 100\nhandshake = \"faithful\"",
            "\"snoop\"",
            "\"snoop\"",
            "\"bundle\"",
            "\"pass\"",
            "\"pass\"",
            "\"reject\"",
            "\"reject\"",
        ]),
        key("client", network.clone()),
        key("server", network),
        key("client_interface", interface.clone()),
        key("server_interface", interface),
        key("port", port),
        key("dscp", code_point),
        select(vec!["", "comment = \"a; } drop #*\"\n", "comment = \"$ä @x* ' \"\n"]),
    )
        .prop_map(|(action, a, b, c, d, e, f, comment)| {
            format!("[[rules]]\naction = {action}\n{a}{b}{c}{d}{e}{f}{comment}")
        })
        .prop_filter("a rule that can match, and need not", |text| {
            let behind = "[[rules]]\naction = \"split\"\nport = 1\n";
            Config::parse("x", &format!("{LEGS}{text}{behind}")).is_ok()
        })
}

/// Rules that have nothing to do with any network here.
fn any_rule() -> impl Strategy<Value = String> {
    let network = prop_oneof![
        (any::<u32>(), 0u32..=32).prop_map(|(bits, prefix)| {
            let address =
                std::net::Ipv4Addr::from_bits(bits & u32::MAX.checked_shl(32 - prefix).unwrap_or(0));
            format!("\"{address}/{prefix}\"")
        }),
        (any::<u128>(), 0u32..=128).prop_map(|(bits, prefix)| {
            let address =
                std::net::Ipv6Addr::from_bits(bits & u128::MAX.checked_shl(128 - prefix).unwrap_or(0));
            format!("\"{address}/{prefix}\"")
        }),
        select(vec![
            "\"255.255.255.255\"",
            "\"::\"",
            "\"10.0.0.0/8\"",
            "\"10.0.0.0/9\"",
            "\"::ffff:10.0.0.1\""
        ])
        .prop_map(String::from),
    ];
    let interface = "[a-z0-9._@:-]{1,15}".prop_map(|name| format!("{name:?}"));
    let port = prop_oneof![
        (1u16..).prop_map(|port| port.to_string()),
        (1u16.., 1u16..).prop_map(|(a, b)| format!("\"{}-{}\"", a.min(b), a.max(b))),
    ];
    let interface = interface.prop_filter("a name", |name| name != "\".\"" && name != "\"..\"");
    rule(network, interface, port)
}

/// Rules that match about every other packet.
fn likely_rule() -> impl Strategy<Value = String> {
    let network = select(vec![
        "10.77.1.0/24",
        "10.77.1.2",
        "10.77.2.2/31",
        "10.77.0.0/16",
        "10.77.3.3",
        "0.0.0.0/0",
        "fd77:1::/64",
        "fd77:2::3",
        "fd77:3::2/127",
        "fd77:4::/32",
        "fd77::/16",
        "::/0",
    ]);
    let port = select(vec!["22", "80", "443", "\"1-100\"", "\"6000-6010\"", "6005"]).prop_map(String::from);
    rule(
        network.prop_map(|text| format!("{text:?}")),
        select(&INTERFACES).prop_map(|name| format!("{name:?}")),
        port,
    )
}

fn packet() -> impl Strategy<Value = Packet> {
    // Half of them to the port of QUIC, which is what most rules that reject speak of.
    let port = prop_oneof![Just(2), 0..PORTS.len()];
    let ends = (0..4usize, 1..4usize, 2..4u8, 2..4u8)
        .prop_map(|(from, distance, a, b)| ((from, a), ((from + distance) % 4, b)));
    (any::<bool>(), any::<bool>(), ends, port, select(&CODE_POINTS)).prop_map(
        |(is_tcp, is_ipv4, (from, to), port, dscp)| Packet { is_tcp, is_ipv4, from, to, port, dscp },
    )
}

fn cases(cases: u32) -> TestRunner {
    TestRunner::new(Cases { cases, max_shrink_iters: 100, failure_persistence: None, ..Cases::default() })
}

#[test]
fn nft_takes_whatever_rules_there_are() {
    let Some(net) = network() else { return };
    cases(12)
        .run(&prop::collection::vec(any_rule(), 1..120), |rules| {
            let config = Config::parse("x", &format!("{LEGS}{}", rules.concat())).unwrap();
            let interfaces: Vec<Interface> = config.legs.values().map(|leg| leg.interface.clone()).collect();
            let text = ruleset(&Plan {
                interfaces: &interfaces,
                pairs: &leg_pair::leg_pairs(interfaces.len(), &config.weights(), 7600),
                replaced: &[],
                handshake: config.proxy.handshake,
                at_limit: config.limits.at_limit,
                rates: config.limits.rates(),
                rules: &config.rules,
                snooped: config.wants_snoop().then_some(1000),
                bundle: config.bundle_port(),
                protected: &[],
                mark: config.proxy.mark,
                tracked: true,
            });
            prop_assert_eq!(check(&net.gateway, &text), "");
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// What nft and the kernel have to say against these rules.
fn check(host: &Host, text: &str) -> String {
    let mut child = host
        .command("nft")
        .args(["-c", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), said.is_empty(), "{said}");
    said
}

/// Four hosts around the gateway, each with two addresses of each family and a server at each port.
struct World {
    net: Net,
    others: [Host; 2],
    servers: Vec<Vec<Server>>,
}

impl World {
    fn new() -> Option<Self> {
        let net = network()?;
        let others = ["lan", "far"].map(Host::new);
        net.wire(&others[0], "up0", "lan0", 3);
        net.wire(&others[1], "up0", "sat1", 4);
        let mut world = Self { net, others, servers: Vec::new() };
        for index in 0..4 {
            let network = index + 1;
            world.host(index).run(&format!("ip addr add 10.77.{network}.3/24 dev up0"));
            world.host(index).run(&format!("ip addr add fd77:{network}::3/64 dev up0 nodad"));
        }
        world.servers = (0..4)
            .map(|index| PORTS.map(|port| Server::open(world.host(index), port)).into_iter().collect())
            .collect();
        // Every datagram that is refused shall be answered.
        world.net.gateway.sysctl("net.ipv4.icmp_ratelimit", "0");
        world.net.gateway.sysctl("net.ipv6.icmp.ratelimit", "0");
        Some(world)
    }

    fn host(&self, index: usize) -> &Host {
        [&self.net.client, &self.net.server, &self.others[0], &self.others[1]][index]
    }

    /// Flows whose packets the kernel sends through the daemon.
    fn snooped(&self) -> usize {
        self.net.snooped_flows()
    }

    /// What really becomes of it; `weights` are those of the daemon's listeners, in the order of their ports.
    fn fate(&self, daemon: &mut Running, weights: &[u16], packet: &Packet) -> Fate {
        let server = &self.servers[packet.to.0][packet.port];
        let client = self.host(packet.from.0);
        if !packet.is_tcp {
            return if server.reach(client, packet.probe()) { Fate::Forwarded } else { Fate::Refused };
        }
        let before = (daemon.counter("flows_total"), self.snooped());
        let census = Census { gateway: &self.net.gateway };
        let ((), port) = census.port_of(|| server.connect(client, packet.probe()));
        let weight_at = |port: u16| weights[usize::from(port - 7600) / leg_pair::leg_pair_count(2)];
        match (daemon.counter("flows_total") - before.0, self.snooped() - before.1, port) {
            (0, 0, None) => Fate::Forwarded,
            (1, 0, Some(port)) => Fate::Split(weight_at(port)),
            (0, 1, None) => Fate::Snooped,
            (split, snooped, port) => {
                panic!("one connection was {split} flows and {snooped} snooped ones, by {port:?}")
            }
        }
    }
}

#[test]
fn the_kernel_enforces_the_rules() {
    let Some(world) = World::new() else { return };
    let rules = prop::collection::vec(likely_rule(), 0..8);
    let packets = prop::collection::vec(packet(), 30);
    cases(16)
        .run(&(rules, packets), |(rules, packets)| {
            let text = format!("{LEGS}{}", rules.concat());
            let config = Config::parse("x", &text).unwrap();
            let mut daemon = world.net.try_daemon(&text).map_err(TestCaseError::fail)?;
            Census::begin(&world.net.gateway);
            let weights: Vec<u16> =
                [1].into_iter().chain(config.weights().iter().map(|weight| weight.get())).collect();
            for packet in &packets {
                let fate = world.fate(&mut daemon, &weights, packet);
                prop_assert_eq!(fate, decide(&config.rules, packet), "{:?}", packet);
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}
