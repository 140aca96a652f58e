//! The operator's rules as nftables rules.

use std::fmt::{Display, Write as _};

use bentpipe_kernel::Weight;

use super::counters::{Verdict, rule_counted};
use super::snooped;
use crate::config::{Action, Dscp, Handshake, Interface, List, Network, Ports, Protocol, Rule};

/// TCP and UDP, whose ports stand at the same place.
const PROTOCOLS_WITH_PORTS: [u8; 2] = [6, 17];

/// What a chain sees, which decides how it finds the fields of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packet {
    /// A SYN before it is routed.
    Arriving,
    /// A SYN that is being forwarded.
    Tcp,
    /// A datagram that is being forwarded.
    Udp,
    /// Any packet that is being forwarded, as a client sends it.
    Any,
    /// The same, as a server answers.
    Answer,
}

/// One line or two for each rule that concerns TCP, for a chain that a SYN jumps to: `return` passes it.
pub(super) fn connections(rules: &[Rule], default: Handshake) -> String {
    let lines = rules.iter().enumerate().filter_map(|(place, rule)| {
        let counted = rule_counted(place);
        let verdict = match rule.action {
            Action::Split { handshake, weight } => {
                format!("{counted} goto {}", chain(handshake.unwrap_or(default), weight))
            }
            Action::Snoop => format!("{counted} goto {}", snooped::OFFER),
            // Those for the node were decided, and counted, before they were routed.
            Action::Bundle => format!("{} return", Verdict::NodeAbsent.counted()),
            Action::Pass => format!("{counted} return"),
            // Counted where its packets are marked.
            Action::Protect => "return".to_owned(),
            Action::Reject => return None,
        };
        if !rule.concerns(6) {
            return None;
        }
        Some(lines(rule, Packet::Tcp, &verdict))
    });
    lines.collect()
}

/// The same before a SYN is routed, where it is handed to the bundle node, in the chain `hand_over`, or goes
/// on. No line behind the last rule that says `bundle`.
pub(super) fn bundles(rules: &[Rule], hand_over: &str) -> String {
    let end = rules.iter().rposition(|rule| rule.action == Action::Bundle).map_or(0, |last| last + 1);
    let lines = rules[..end].iter().enumerate().filter_map(|(place, rule)| {
        let verdict = match rule.action {
            Action::Split { .. } | Action::Snoop | Action::Protect | Action::Pass => "return".to_owned(),
            Action::Bundle => format!("{} goto {hand_over}", rule_counted(place)),
            Action::Reject => return None,
        };
        if !rule.concerns(6) {
            return None;
        }
        Some(lines(rule, Packet::Arriving, &verdict))
    });
    lines.collect()
}

/// The chain that splits connections with this handshake and weight.
pub(super) fn chain(handshake: Handshake, weight: Weight) -> String {
    let name = handshake.name();
    if weight == Weight::default() { name.to_owned() } else { format!("{name}_weight_{weight}") }
}

/// The same for UDP, for a chain of the hook `forward`: no line where nothing is rejected, and none behind
/// the last rule that rejects something.
pub(super) fn datagrams(rules: &[Rule]) -> String {
    let end = rules.iter().rposition(|rule| rule.action == Action::Reject).map_or(0, |last| last + 1);
    let lines = rules[..end].iter().enumerate().filter_map(|(place, rule)| {
        let verdict = match rule.action {
            Action::Split { .. } | Action::Snoop | Action::Bundle => return None,
            Action::Protect if !rule.concerns(17) => return None,
            Action::Protect | Action::Pass => "return".to_owned(),
            Action::Reject => format!("{} reject with icmpx type port-unreachable", rule_counted(place)),
        };
        Some(lines(rule, Packet::Udp, &verdict))
    });
    lines.collect()
}

/// One line or more for each rule and direction, for a chain of packets that leave by a protected leg: `mark`
/// marks those that cross it in frames. No line behind the last rule that says `protect`.
pub(super) fn protected(rules: &[Rule], mark: &str) -> String {
    let end = rules.iter().rposition(|rule| rule.action == Action::Protect).map_or(0, |last| last + 1);
    let each = rules[..end].iter().enumerate().map(|(place, rule)| {
        let (only, verdict) = match rule.action {
            // Those that were not split, at a limit for example, or are snooped.
            Action::Split { .. } | Action::Snoop | Action::Bundle => {
                ("meta l4proto tcp ", "return".to_owned())
            }
            Action::Reject => ("meta l4proto udp ", "return".to_owned()),
            Action::Pass => ("", "return".to_owned()),
            Action::Protect => ("", format!("{} {mark} return", rule_counted(place))),
        };
        let lines = [Packet::Any, Packet::Answer].map(|packet| lines(rule, packet, &verdict));
        let [one, other] = lines.map(|lines| lines.replace("\t\t", &format!("\t\t{only}")));
        // Without conditions both are the same.
        if one == other { one } else { one + &other }
    });
    each.collect()
}

/// The conditions of a rule for people: `port 22, client 10.0.0.0/8`; `everything` without any.
pub(super) fn conditions(rule: &Rule) -> String {
    fn words<T: Display>(list: &[T]) -> String {
        list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }
    let Rule {
        action: _,
        comment: _,
        client,
        server,
        client_interface,
        server_interface,
        protocol,
        port,
        dscp,
    } = rule;
    let all = [
        protocol.as_ref().map(|list| words(list)),
        port.as_ref().map(|list| format!("port {}", words(&port_elements(list)))),
        client.as_ref().map(|list| format!("client {}", words(list))),
        server.as_ref().map(|list| format!("server {}", words(list))),
        client_interface.as_ref().map(|list| format!("from {}", words(list))),
        server_interface.as_ref().map(|list| format!("to {}", words(list))),
        dscp.as_ref().map(|list| format!("dscp {}", words(&dscp_elements(list)))),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    if all.is_empty() { "everything".to_owned() } else { all.join(", ") }
}

/// The families have names of their own for addresses and code points, so a rule that speaks of these takes a
/// line for each family.
fn lines(rule: &Rule, packet: Packet, verdict: &str) -> String {
    let comment = rule.comment.as_ref().map(|comment| format!(" comment \"{}\"", comment.as_str()));
    let comment = comment.unwrap_or_default();
    let of_family = |ipv4: bool| {
        rule.concerns_family(ipv4).then(|| {
            let conditions = family_conditions(rule, packet, ipv4);
            format!("\t\t{}{conditions}{verdict}{comment}\n", common(rule, packet))
        })
    };
    if rule.client.is_none() && rule.server.is_none() && rule.dscp.is_none() {
        return format!("\t\t{}{verdict}{comment}\n", common(rule, packet));
    }
    [true, false].into_iter().filter_map(of_family).collect()
}

/// Ports and interfaces, each with a blank behind it. The lookup in the routing table comes last: it costs
/// most.
fn common(rule: &Rule, packet: Packet) -> String {
    let (port, comes, route) = match packet {
        Packet::Arriving => ("tcp dport", "iifname", "fib daddr oifname"),
        Packet::Tcp => ("tcp dport", "iifname", "oifname"),
        Packet::Udp => ("udp dport", "iifname", "oifname"),
        Packet::Any => ("th dport", "iifname", "oifname"),
        Packet::Answer => ("th sport", "oifname", "iifname"),
    };
    let mut text = String::new();
    if matches!(packet, Packet::Any | Packet::Answer) {
        match (&rule.protocol, &rule.port) {
            (Some(protocols), _) => condition(&mut text, "meta l4proto", &protocol_elements(protocols)),
            (None, Some(_)) => condition(&mut text, "meta l4proto", &PROTOCOLS_WITH_PORTS),
            (None, None) => {}
        }
    }
    if let Some(ports) = &rule.port {
        condition(&mut text, port, &port_elements(ports));
    }
    if let Some(names) = &rule.client_interface {
        condition(&mut text, comes, &interface_elements(names));
    }
    if let Some(names) = &rule.server_interface {
        condition(&mut text, route, &interface_elements(names));
    }
    text
}

fn family_conditions(rule: &Rule, packet: Packet, ipv4: bool) -> String {
    let (family, protocol) = if ipv4 { ("ipv4", "ip") } else { ("ipv6", "ip6") };
    let mut text = format!("meta nfproto {family} ");
    let [client, server] = match packet {
        Packet::Answer => ["daddr", "saddr"],
        Packet::Arriving | Packet::Tcp | Packet::Udp | Packet::Any => ["saddr", "daddr"],
    };
    for (field, networks) in [(client, &rule.client), (server, &rule.server)] {
        if let Some(elements) = networks.as_ref().and_then(|networks| network_elements(networks, ipv4)) {
            condition(&mut text, &format!("{protocol} {field}"), &elements);
        }
    }
    if let Some(code_points) = &rule.dscp {
        condition(&mut text, &format!("{protocol} dscp"), &dscp_elements(code_points));
    }
    text
}

fn condition(text: &mut String, field: &str, elements: &[impl Display]) {
    // Writing to a String cannot fail.
    let _ = match elements {
        [only] => write!(text, "{field} {only} "),
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            write!(text, "{field} {{ {} }} ", several.join(", "))
        }
    };
}

/// Those of the family that no other contains: elements of a set must not overlap. None if there is nothing
/// to compare, because all of the family's addresses match.
fn network_elements(networks: &List<Network>, ipv4: bool) -> Option<Vec<Network>> {
    let mut sorted: Vec<Network> =
        networks.iter().copied().filter(|network| network.is_ipv4() == ipv4).collect();
    // By first address, then the larger network first: whatever contains a network stands before it.
    sorted.sort_unstable();
    let mut kept: Vec<Network> = Vec::new();
    for network in sorted {
        if !kept.last().is_some_and(|before| before.covers(&network)) {
            kept.push(network);
        }
    }
    (!kept.iter().any(Network::is_everything)).then_some(kept)
}

/// Ranges that neither overlap nor touch.
fn port_elements(ports: &List<Ports>) -> Vec<String> {
    let mut sorted: Vec<(u16, u16)> = ports.iter().map(|ports| (ports.first(), ports.last())).collect();
    sorted.sort_unstable();
    let mut merged: Vec<(u16, u16)> = Vec::new();
    for (first, last) in sorted {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    let text = |(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") };
    merged.into_iter().map(text).collect()
}

fn protocol_elements(protocols: &List<Protocol>) -> Vec<u8> {
    let mut numbers: Vec<u8> = protocols.iter().flat_map(|protocol| protocol.numbers()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn dscp_elements(code_points: &List<Dscp>) -> Vec<u8> {
    let mut numbers: Vec<u8> = code_points.iter().map(|code_point| code_point.get()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn interface_elements(names: &List<Interface>) -> Vec<String> {
    let mut quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    quoted.sort_unstable();
    quoted.dedup();
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use proptest::prelude::*;

    fn rules(text: &str) -> Vec<Rule> {
        let text = format!("[legs.a]\ninterface = \"sat0\"\n{text}");
        Config::parse("x", &text).unwrap_or_else(|error| panic!("{error}")).rules
    }

    /// The lines of one rule that passes, without its counter.
    fn one(text: &str) -> String {
        let lines = connections(&rules(&format!("[[rules]]\naction = \"pass\"\n{text}")), Handshake::Early);
        let counted = lines.matches("counter name rule_1 return").count();
        assert_eq!(counted, lines.lines().count(), "each line counts: {lines}");
        lines.replace("counter name rule_1 ", "")
    }

    #[test]
    fn each_action_has_its_verdict() {
        let rules = rules(
            "[[rules]]\naction = \"pass\"\nport = 1\n[[rules]]\naction = \"split\"\nport = 2\n\
             [[rules]]\naction = \"snoop\"\nport = 4\n[snoop]\ncache = \"1MB\"\n[[rules]]\naction = \"split\"\nport = 3\nhandshake = \"faithful\"\n[[rules]]\naction = \"reject\"\n",
        );
        assert_eq!(
            connections(&rules, Handshake::Early),
            "\t\ttcp dport 1 counter name rule_1 return\n\t\ttcp dport 2 counter name rule_2 goto early\n\
             \t\ttcp dport 4 counter name rule_3 goto snoop\n\t\ttcp dport 3 counter name rule_4 goto faithful\n"
        );
        assert!(
            connections(&rules, Handshake::Faithful).contains("dport 2 counter name rule_2 goto faithful")
        );
        assert_eq!(
            datagrams(&rules),
            "\t\tudp dport 1 return\n\t\tudp dport 443 counter name rule_5 reject with icmpx type port-unreachable\n"
        );
    }

    #[test]
    fn without_a_living_daemon_a_rule_before_one_for_the_bundle_node_passes() {
        let rules = rules(
            "[[rules]]\naction = \"split\"\nport = 1\n[[rules]]\naction = \"reject\"\n[[rules]]\naction = \"pass\"\nport = 2\n\
             [[rules]]\naction = \"bundle\"\nport = 3\ncomment = \"c\"\n[[rules]]\naction = \"pass\"\nport = 4\n",
        );
        assert_eq!(
            bundles(&rules, "bundle_if_routed"),
            "\t\ttcp dport 1 return\n\t\ttcp dport 2 return\n\t\ttcp dport 3 counter name rule_4 goto bundle_if_routed comment \"c\"\n"
        );
        assert!(
            connections(&rules, Handshake::Early)
                .contains("\t\ttcp dport 3 counter name verdict_node_absent return comment")
        );
        assert!(!datagrams(&rules).contains("dport 3"));
    }

    #[test]
    fn a_weight_has_a_chain_of_its_own_for_each_handshake() {
        let rules = rules(
            "[[rules]]\naction = \"split\"\nport = 1\nweight = 4\n[[rules]]\naction = \"split\"\nport = 2\nweight = 1\n\
             [[rules]]\naction = \"split\"\nport = 3\nweight = 4\nhandshake = \"faithful\"\n",
        );
        assert_eq!(
            connections(&rules, Handshake::Early),
            "\t\ttcp dport 1 counter name rule_1 goto early_weight_4\n\t\ttcp dport 2 counter name rule_2 goto early\n\
             \t\ttcp dport 3 counter name rule_3 goto faithful_weight_4\n"
        );
        assert_eq!(datagrams(&rules), "");
    }

    #[test]
    fn without_a_rule_that_rejects_udp_is_not_looked_at() {
        assert_eq!(datagrams(&rules("[[rules]]\naction = \"pass\"\nport = 443\n")), "");
    }

    #[test]
    fn every_rule_that_rejects_counts_for_udp() {
        let rules = rules("[[rules]]\naction = \"reject\"\n[[rules]]\naction = \"reject\"\nport = 8443\n");
        assert_eq!(datagrams(&rules).matches("port-unreachable").count(), 2);
    }

    #[test]
    fn a_rule_behind_the_last_that_rejects_is_not_needed_for_udp() {
        let rules = rules("[[rules]]\naction = \"reject\"\n[[rules]]\naction = \"pass\"\nport = 7\n");
        assert!(
            !datagrams(&rules).contains("return") && connections(&rules, Handshake::Early).contains("return")
        );
    }

    #[test]
    fn interfaces_are_those_of_the_syn_and_of_the_route() {
        assert_eq!(
            one("client_interface = [\"lan1\", \"lan0\", \"lan1\"]\nserver_interface = \"sat0\""),
            "\t\tiifname { \"lan0\", \"lan1\" } oifname \"sat0\" return\n"
        );
    }

    #[test]
    fn networks_take_a_line_for_each_family_that_both_ends_can_have() {
        assert_eq!(
            one("client = [\"10.0.0.0/8\", \"fd00::/8\"]"),
            "\t\tmeta nfproto ipv4 ip saddr 10.0.0.0/8 return\n\t\tmeta nfproto ipv6 ip6 saddr fd00::/8 return\n"
        );
        assert_eq!(
            one("client = [\"10.0.0.0/8\", \"fd00::/8\"]\nserver = \"192.0.2.1\""),
            "\t\tmeta nfproto ipv4 ip saddr 10.0.0.0/8 ip daddr 192.0.2.1 return\n"
        );
    }

    #[test]
    fn a_network_of_everything_leaves_only_its_family_to_compare() {
        assert_eq!(one("server = [\"10.0.0.0/8\", \"0.0.0.0/0\"]"), "\t\tmeta nfproto ipv4 return\n");
    }

    #[test]
    fn overlapping_data_are_written_once() {
        assert_eq!(
            one("client = [\"10.1.0.0/16\", \"10.0.0.0/8\", \"10.0.0.0/8\", \"10.0.0.0/16\", \"192.0.2.1\"]"),
            "\t\tmeta nfproto ipv4 ip saddr { 10.0.0.0/8, 192.0.2.1 } return\n"
        );
        assert_eq!(
            one("port = [22, \"20-30\", \"25-40\", 41, 22, \"65530-65535\", 65535]"),
            "\t\ttcp dport { 20-41, 65530-65535 } return\n"
        );
    }

    #[test]
    fn a_code_point_is_looked_for_in_both_families() {
        assert_eq!(
            one("dscp = [\"ef\", 46, \"cs1\"]"),
            "\t\tmeta nfproto ipv4 ip dscp { 8, 46 } return\n\t\tmeta nfproto ipv6 ip6 dscp { 8, 46 } return\n"
        );
    }

    #[test]
    fn the_comment_stands_at_the_end() {
        assert_eq!(
            one("port = 22\ncomment = \"ssh; } accept\""),
            "\t\ttcp dport 22 return comment \"ssh; } accept\"\n"
        );
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_quotation_marks(
            comment in "fine|\\PC{0,130}|[\"\\\\\n;{}a-z* ]{1,30}", name in "sat0|[\"\\\\\n;{}a-z*$@ ]{1,15}"
        ) {
            let text = format!(
                "[legs.a]\ninterface = \"sat0\"\n[[rules]]\naction = \"pass\"\n\
                 client_interface = {name:?}\ncomment = {comment:?}\n"
            );
            // Strings that TOML writes otherwise than Rust are refused as well, by TOML.
            if let Ok(config) = Config::parse("x", &text) {
                prop_assert_eq!(
                    connections(&config.rules, Handshake::Early),
                    format!("\t\tiifname \"{name}\" counter name rule_1 return comment \"{comment}\"\n")
                );
                prop_assert!(!comment.contains(['"', '\n', '\\']) && !name.contains(['"', '\n', ' ', '*']));
            }
        }
    }
}
