//! The nftables rules as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use bentpipe_kernel::Weight;

use crate::config::{AtLimit, ConnectionRates, Handshake, Interface, Rule};
use crate::types::leg_pair::{LegId, LegPair};

use super::{HELD, MARK, PASSED, TABLE, bundled, policy, rate_limits, snooped};

/// The set that keeps the rules in force: they match only protocols that are in it, and its elements expire
/// unless the daemon renews them.
pub(crate) const ALIVE: &str = "alive";
/// The set of protocols for which no new connection is let in.
pub(crate) const FULL: &str = "full";
/// The sets of clients from which no new connection is let in; those of IPv6 are networks of 64 bits.
pub(crate) const FULL_CLIENTS: [&str; 2] = ["full_clients4", "full_clients6"];
/// How long the rules stay in force without a renewal.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1400);

/// Time to live of the packets that relayed sockets send: Linux' default, whatever `net.ipv4.ip_default_ttl`
/// says, because the interception tells their ICMP errors by it.
pub(crate) const TTL: u32 = 64;

/// The chain of SYNs that were held.
const ANSWERED: &str = "answered";

/// Where this host itself finds that a server's address does not answer, its ICMP error would leave for the
/// client in whose name we connect. It is ours if the packet that it quotes has never been forwarded: its
/// time to live is still [`TTL`], as one number with the protocol beside it, TCP (RFC 791 §3.1, RFC 8200 §3).
/// The packet of a client next door that this host refuses before it forwards it, without a route or by a
/// rule, is quoted alike; but then the code is not that of an address which does not answer, and the error is
/// the client's.
const QUOTED_IPV4: u32 = TTL << 8 | 6;
const QUOTED_IPV6: u32 = 6 << 8 | TTL;

/// The contents of the rules.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The interfaces of the satellite legs, in the order of [`LegId::Satellite`].
    pub interfaces: &'a [Interface],
    /// The paths with their listeners' ports.
    pub pairs: &'a [LegPair],
    /// The handshake of connections that no rule mentions.
    pub handshake: Handshake,
    /// Whether new connections at a limit pass or are refused.
    pub at_limit: AtLimit,
    /// How many connections may begin in a second; those beyond pass or are refused, too.
    pub rates: ConnectionRates,
    /// The operator's rules; the first that matches decides.
    pub rules: &'a [Rule],
    /// Flows that are snooped at a time, where a rule says so.
    pub snooped: Option<usize>,
    /// The loopback port of the bundle node, where a rule says so.
    pub bundle: Option<u16>,
}

/// The rules as text for `nft -f -`. They replace the table of the same name in one transaction.
pub fn ruleset(plan: &Plan<'_>) -> String {
    format!("table inet {TABLE}\ndelete table inet {TABLE}\n{}", table(plan))
}

/// The same, but the sets of the rules `before` stay with their elements: in one transaction all chains are
/// emptied, those that there shall be no more are removed, and the others are filled. A set that is declared
/// anew gets another size, if it has another and the kernel can do it; Linux 6.18 can.
pub(super) fn successor(plan: &Plan<'_>, before: &str) -> String {
    let table = table(plan);
    let gone = || chains(before).filter(|former| chains(&table).all(|chain| chain != *former));
    // Declared, so that it is no error if another program has removed them.
    let declared: String = gone().map(|chain| format!("\tchain {chain} {{\n\t}}\n")).collect();
    let removed: String = gone().map(|chain| format!("delete chain inet {TABLE} {chain}\n")).collect();
    format!("table inet {TABLE} {{\n{declared}}}\nflush table inet {TABLE}\n{removed}{table}")
}

/// The names of the chains that a rule set declares.
fn chains(rules: &str) -> impl Iterator<Item = &str> {
    rules.lines().filter_map(|line| line.strip_prefix("\tchain ")?.strip_suffix(" {"))
}

fn table(plan: &Plan<'_>) -> String {
    let body = [
        sets(),
        prerouting(plan),
        output(),
        connections(plan),
        datagrams(plan),
        limits(plan),
        snooped::declarations(plan),
        bundled::declarations(plan),
    ];
    let pairs = all_leg_pair_chains(plan);
    format!("table inet {TABLE} {{\n{}{pairs}}}\n", body.concat())
}

fn sets() -> String {
    let [clients4, clients6] = FULL_CLIENTS;
    let patience = format!("{}ms", PATIENCE.as_millis());
    let rated = rate_limits::sets();
    format!(
        "\tset {ALIVE} {{\n\
         \t\ttype inet_proto; flags timeout;\n\
         \t\telements = {{ tcp timeout {patience}, udp timeout {patience} }}\n\
         \t}}\n\
         \tset {FULL} {{ type inet_proto; flags timeout; }}\n\
         \tset {clients4} {{ type ipv4_addr; flags timeout; }}\n\
         \tset {clients6} {{ type ipv6_addr; flags timeout; }}\n\
         {rated}"
    )
}

/// Most packets are those of connections that are split already, so their rule comes before the others.
///
/// `socket` finds the listener of another transparent program on this host as well, such as one on
/// 0.0.0.0:80, for a packet of a connection that passes to any server's port 80. Ours stand on one address.
/// The statement breaks off, and so does not return, for handshakes and in TIME-WAIT, which have no full
/// socket.
fn prerouting(plan: &Plan<'_>) -> String {
    let held = HELD.device;
    let (given_back, taken) = (snooped::given_back(plan), snooped::taken(plan));
    format!(
        "\tchain prerouting {{\n\
         \t\ttype filter hook prerouting priority mangle; policy accept;\n\
         \t\tiif \"lo\" return\n\
         \t\ttcp flags & (fin | syn | rst | ack) != syn socket transparent 1 goto ours\n\
         \t\tiifname \"{PASSED}\" tcp urgptr set 0\n\
         \t\tiifname \"{PASSED}\" return\n\
         {given_back}\
         \t\tiifname \"{held}\" meta l4proto tcp goto answered\n\
         \t\ttcp flags & (fin | syn | rst | ack) == syn jump decide\n\
         {taken}\
         \t\tmeta l4proto {{ tcp, icmp, icmpv6 }} socket transparent 1 goto ours\n\
         \t}}\n\
         \tchain ours {{\n\
         \t\tsocket wildcard 1 return\n\
         \t\tmeta mark set {MARK:#x} accept\n\
         \t}}\n"
    )
}

fn output() -> String {
    format!(
        "\tchain output {{\n\
         \t\ttype route hook output priority mangle; policy accept;\n\
         \t\ticmp type destination-unreachable icmp code host-unreachable @th,128,16 {QUOTED_IPV4:#06x} meta mark set {MARK:#x}\n\
         \t\ticmpv6 type destination-unreachable icmpv6 code addr-unreachable @th,112,16 {QUOTED_IPV6:#06x} meta mark set {MARK:#x}\n\
         \t}}\n"
    )
}

/// A connection is decided at its SYN.
fn connections(plan: &Plan<'_>) -> String {
    let rules = policy::connections(plan.rules, plan.handshake);
    let otherwise = policy::chain(plan.handshake, Weight::default());
    let before = bundled::guards(plan);
    format!(
        "\tchain decide {{\n\
         {before}\
         \t\tmeta l4proto != @{ALIVE} return\n\
         \t\tfib daddr type != unicast return\n\
         \t\tfib daddr oif missing return\n\
         {rules}\
         \t\tgoto {otherwise}\n\
         \t}}\n"
    )
}

/// UDP is not filtered unless the operator rejects some of it, and then only where it crosses a
/// satellite leg.
fn datagrams(plan: &Plan<'_>) -> String {
    let rules = policy::datagrams(plan.rules);
    if rules.is_empty() {
        return String::new();
    }
    let ground = interface_match(LegId::Terrestrial, plan.interfaces);
    format!(
        "\tchain datagrams {{\n\
         \t\ttype filter hook forward priority filter; policy accept;\n\
         \t\tmeta l4proto != udp return\n\
         \t\tmeta l4proto != @{ALIVE} return\n\
         \t\tiifname {ground} oifname {ground} return\n\
         {rules}\
         \t}}\n"
    )
}

/// A SYN that is repeated belongs to the connection that its first copy has begun, full or not.
fn limits(plan: &Plan<'_>) -> String {
    let verdict = match plan.at_limit {
        AtLimit::Pass => "accept",
        AtLimit::Refuse => "reject with tcp reset",
    };
    let [clients4, clients6] = FULL_CLIENTS;
    let rates = rate_limits::statements(&plan.rates, verdict);
    format!(
        "\tchain limits {{\n\
         \t\tsocket transparent 1 return\n\
         \t\tmeta l4proto @{FULL} {verdict}\n\
         \t\tip saddr @{clients4} {verdict}\n\
         \t\tip6 saddr and ffff:ffff:ffff:ffff:: @{clients6} {verdict}\n\
         {rates}\
         \t}}\n"
    )
}

/// The chains of all paths, and before them those that find the path.
fn all_leg_pair_chains(plan: &Plan<'_>) -> String {
    let chains: String = plan.pairs.iter().map(leg_pair_chains).collect();
    let weights: BTreeSet<Weight> = plan.pairs.iter().map(|pair| pair.weight).collect();
    let others = || weights.iter().filter(|weight| **weight != Weight::default());
    let told: String = others()
        .map(|&weight| format!("\t\ttcp urgptr {weight} jump {}\n", policy::weighted(ANSWERED, weight)))
        .collect();
    let entrances: String = others()
        .map(|&weight| entrances(plan, weight, ""))
        .chain([entrances(plan, Weight::default(), &told)])
        .collect();
    chains + &entrances
}

/// `split` takes a SYN to the path's listener, `path` does so below the limits, and `hold` sends it to
/// deferred accept first, with its weight in the urgent pointer, by which it will be known when it comes
/// back.
///
/// A SYN whose ends have a socket here already is not held. Repeated, it belongs to that socket. New, it
/// meets one in TIME-WAIT, and then it could not be routed into a device: the kernel forwards no packet for
/// which it has a socket (`ip_forward`). `tproxy` takes it to the listener in the socket's place.
fn leg_pair_chains(pair: &LegPair) -> String {
    let (held_mark, port) = (HELD.mark(), pair.port);
    let said = if pair.weight == Weight::default() { 0 } else { pair.weight.get() };
    let to_listener = bundled::to_listener(port);
    format!(
        "\tchain split_{port} {{\n{}\t}}\n\
         \tchain path_{port} {{\n\t\tjump limits\n\t\tgoto split_{port}\n\t}}\n\
         \tchain hold_{port} {{\n\t\tsocket transparent 1 goto split_{port}\n\t\tjump limits\n\
         \t\ttcp urgptr set {said}\n\t\tmeta mark set {held_mark:#x} accept\n\t}}\n",
        to_listener
    )
}

/// `early` and `faithful` find the path by the interface that a SYN came in by; `answered` sees SYNs that
/// were held in the meantime, and finds it by the interface that leads back to the client. The rules `told`
/// come first there.
fn entrances(plan: &Plan<'_>, weight: Weight, told: &str) -> String {
    let (mut early, mut faithful, mut answered) = (String::new(), String::new(), told.to_owned());
    for pair in plan.pairs.iter().filter(|pair| pair.weight == weight) {
        let port = pair.port;
        let from = interface_match(pair.client, plan.interfaces);
        let to = format!("fib daddr oifname {}", interface_match(pair.server, plan.interfaces));
        let _ = writeln!(early, "\t\tiifname {from} {to} goto path_{port}");
        let _ = writeln!(faithful, "\t\tiifname {from} {to} goto hold_{port}");
        let _ = writeln!(answered, "\t\tfib saddr oifname {from} {to} goto split_{port}");
    }
    let [early_name, faithful_name] =
        [Handshake::Early, Handshake::Faithful].map(|handshake| policy::chain(handshake, weight));
    let answered_name = policy::weighted(ANSWERED, weight);
    format!(
        "\tchain {early_name} {{\n{early}\t}}\n\
         \tchain {faithful_name} {{\n{faithful}\t}}\n\
         \tchain {answered_name} {{\n{answered}\t}}\n"
    )
}

pub(super) fn interface_match(leg: LegId, interfaces: &[Interface]) -> String {
    match leg {
        LegId::Satellite(index) => format!("\"{}\"", interfaces[index]),
        LegId::Terrestrial => {
            let names: Vec<String> = interfaces.iter().map(|name| format!("\"{name}\"")).collect();
            format!("!= {{ {} }}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::types::leg_pair::leg_pairs;

    fn text(interfaces: &[&str], handshake: Handshake, at_limit: AtLimit) -> String {
        let interfaces: Vec<Interface> =
            interfaces.iter().map(|name| Interface::try_from((*name).to_owned()).unwrap()).collect();
        let pairs = leg_pairs(interfaces.len(), &[], 7600);
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &pairs,
            handshake,
            at_limit,
            rates: Default::default(),
            rules: &[],
            snooped: None,
            bundle: None,
        };
        ruleset(&plan)
    }

    fn early(interfaces: &[&str]) -> String {
        text(interfaces, Handshake::Early, AtLimit::Pass)
    }

    #[test]
    fn a_syn_towards_the_satellite_goes_to_its_paths_listener_in_both_families() {
        let rules = early(&["sat0"]);
        for rule in [
            "iifname != { \"sat0\" } fib daddr oifname \"sat0\" goto path_7602",
            "chain path_7602 {\n\t\tjump limits\n\t\tgoto split_7602",
            "meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:7602 meta mark set 0x6270 accept",
            "meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [::1]:7602 meta mark set 0x6270 accept",
        ] {
            assert!(rules.contains(rule), "{rule}\n{rules}");
        }
    }

    #[test]
    fn ground_to_ground_is_left_alone() {
        let ground = "!= { \"sat0\", \"sat1\" }";
        let rules = early(&["sat0", "sat1"]);
        assert!(rules.contains(ground) && !rules.contains(&format!("{ground} fib daddr oifname {ground}")));
    }

    #[test]
    fn each_path_has_one_rule_for_each_family() {
        for interfaces in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
            let count = early(interfaces).matches("tproxy").count();
            assert_eq!(count, 2 * crate::types::leg_pair::leg_pair_count(interfaces.len()));
        }
    }

    #[test]
    fn loopback_and_this_hosts_own_addresses_are_passed_before_a_path_is_looked_for() {
        let rules = early(&["sat0"]);
        let first = rules.find("\t\tgoto early").unwrap();
        for guard in [
            "iif \"lo\" return",
            "iifname \"bentpipe1\" return",
            "fib daddr type != unicast return",
            "fib daddr oif missing return",
        ] {
            assert!(rules.find(guard).unwrap() < first, "{guard}");
        }
    }

    #[test]
    fn without_a_sign_of_life_nothing_is_taken() {
        assert!(early(&["sat0"]).contains("chain decide {\n\t\tmeta l4proto != @alive return\n"));
    }

    #[test]
    fn at_a_limit_a_connection_passes_or_is_refused_as_configured() {
        for (at_limit, verdict) in [(AtLimit::Pass, "accept"), (AtLimit::Refuse, "reject with tcp reset")] {
            let rules = text(&["sat0"], Handshake::Early, at_limit);
            assert!(rules.contains(&format!("meta l4proto @full {verdict}\n")), "{rules}");
            assert!(rules.contains(&format!("ip saddr @full_clients4 {verdict}\n")), "{rules}");
        }
    }

    #[test]
    fn with_a_faithful_handshake_a_syn_is_held_first() {
        let rules = text(&["sat0"], Handshake::Faithful, AtLimit::Pass);
        assert!(
            rules.contains("\t\tgoto faithful\n")
                && rules.contains("jump limits\n\t\ttcp urgptr set 0\n\t\tmeta mark set 0x6271 accept")
        );
    }

    #[test]
    fn a_held_syn_carries_its_weight_to_deferred_accept_and_back_to_the_listener_of_that_weight() {
        let interfaces = [Interface::try_from("sat0".to_owned()).unwrap()];
        let (weight, handshake) = (Weight::try_from(4).unwrap(), Handshake::Faithful);
        let (rules, pairs) = ([], leg_pairs(1, &[weight], 7600));
        let at_limit = AtLimit::Pass;
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &pairs,
            handshake,
            at_limit,
            rates: Default::default(),
            rules: &rules,
            snooped: None,
            bundle: None,
        };
        let text = ruleset(&plan);
        let to_satellite = "!= { \"sat0\" } fib daddr oifname \"sat0\" goto";
        for part in [
            "chain faithful_weight_4 {\n\t\tiifname \"sat0\" fib daddr oifname \"sat0\" goto hold_7603\n".into(),
            format!("\t\tiifname {to_satellite} hold_7605\n"),
            "chain hold_7605 {\n\t\tsocket transparent 1 goto split_7605\n\t\tjump limits\n\t\ttcp urgptr set 4\n".into(),
            "chain answered {\n\t\ttcp urgptr 4 jump answered_weight_4\n\t\tfib saddr oifname \"sat0\"".into(),
            format!("\t\tfib saddr oifname {to_satellite} split_7605\n"),
            "iifname \"bentpipe1\" tcp urgptr set 0\n\t\tiifname \"bentpipe1\" return\n".into(),
        ] {
            assert!(text.contains(&part), "{part}\n{text}");
        }
    }

    #[test]
    fn rules_stand_behind_the_guards_and_udp_is_guarded_alike() {
        let text = "[legs.a]\ninterface = \"sat0\"\n\
                    [[rules]]\naction = \"reject\"\n[[rules]]\naction = \"pass\"\nport = 22\n";
        let config = Config::parse("x", text).unwrap();
        let interfaces = [config.legs["a"].interface.clone()];
        let (handshake, at_limit) = (Handshake::Early, AtLimit::Pass);
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &leg_pairs(1, &[], 7600),
            handshake,
            at_limit,
            rates: Default::default(),
            rules: &config.rules,
            snooped: None,
            bundle: None,
        };
        let rules = ruleset(&plan);
        assert!(rules.contains("oif missing return\n\t\ttcp dport 22 return\n\t\tgoto early\n"), "{rules}");
        let guards =
            "meta l4proto != @alive return\n\t\tiifname != { \"sat0\" } oifname != { \"sat0\" } return\n";
        assert!(rules.contains(&format!("{guards}\t\tudp dport 443 reject")), "{rules}");
        assert!(!early(&["sat0"]).contains("hook forward"));
    }

    #[test]
    fn this_hosts_own_verdict_of_unreachable_comes_back_to_it() {
        let rules = early(&["sat0"]);
        assert!(
            rules.contains("icmp type destination-unreachable icmp code host-unreachable @th,128,16 0x4006 meta mark set 0x6270"),
            "{rules}"
        );
        assert!(
            rules.contains("icmpv6 type destination-unreachable icmpv6 code addr-unreachable @th,112,16 0x0640 meta mark set 0x6270"),
            "{rules}"
        );
    }

    #[test]
    fn a_successor_removes_the_chains_that_it_has_not_and_leaves_the_sets() {
        let (one, three) = (early(&["a"]), early(&["a", "b", "c"]));
        let interfaces = [Interface::try_from("a".to_owned()).unwrap()];
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &leg_pairs(1, &[], 7600),
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &[],
            snooped: None,
            bundle: None,
        };
        let rules = successor(&plan, &three);
        let first = crate::types::leg_pair::leg_pair_count(1);
        for pair in crate::types::leg_pair::leg_pairs(3, &[], 7600) {
            for chain in ["split", "path", "hold"].map(|kind| format!("{kind}_{}", pair.port)) {
                let is_gone = usize::from(pair.port) >= 7600 + first;
                let removed = rules.contains(&format!("delete chain inet bentpipe {chain}\n"));
                assert_eq!(removed, is_gone, "{chain}\n{rules}");
                assert!(!removed || rules.contains(&format!("\tchain {chain} {{\n\t}}\n")));
            }
        }
        assert!(rules.contains("}\nflush table inet bentpipe\n") && !rules.contains("delete table"));
        assert!(rules.ends_with(one.split_once("delete table inet bentpipe\n").unwrap().1));
    }

    #[test]
    fn the_table_is_replaced_as_a_whole() {
        let rules = early(&["sat0"]);
        assert!(
            rules.starts_with("table inet bentpipe\ndelete table inet bentpipe\ntable inet bentpipe {\n"),
            "{rules}"
        );
        assert_eq!(rules.matches('{').count(), rules.matches('}').count());
    }
}
