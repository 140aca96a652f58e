//! The nftables rules as text.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use bentpipe_kernel::Weight;

use crate::config::{AtLimit, ConnectionRates, Handshake, Interface, Mark, MarkField, Rule};
use crate::types::leg_pair::{LegId, LegPair};

use super::counters::{self, Verdict};
use super::{LOG_GROUP, TABLE, ZONE, bundled, policy, protected, rate_limits, snooped};

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

/// Where our chains of the hooks `prerouting` and `forward` stand: behind all others. In `prerouting` the
/// operator's rules have set their marks and translated the destination by then, and in `forward` they have
/// let the SYN pass.
const LAST: i32 = 1000;
/// What the urgent pointer of a SYN that comes back by `lo` says if it is for no listener: its connection is
/// to pass when its client repeats it. No listener has this port.
pub(crate) const PASS: u16 = 1;
/// The sets of those connections.
const PASSING: [&str; 2] = ["passing4", "passing6"];
/// The sets of connections that were split before this host began to track connections: both directions.
pub(super) const UNTRACKED: [&str; 2] = ["untracked4", "untracked6"];
/// The keys of these sets in a rule.
const ENDS: [&str; 2] =
    ["ip saddr . tcp sport . ip daddr . tcp dport", "ip6 saddr . tcp sport . ip6 daddr . tcp dport"];
/// The table that drops SYNs whose copies the daemon has stands behind these.
pub(super) const BEHIND_LAST: i32 = LAST + 1;
/// What is forwarded is counted behind that, and marked where it is protected.
const BEHIND_HELD: i32 = BEHIND_LAST + 1;
/// Where the zones of connection tracking are told: before it finds a packet's entry, at -200.
const BEFORE_TRACKING: &str = "raw - 10";
/// The flags by which a SYN is one.
pub(super) const SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";

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
    /// The ports of listeners that others have replaced. SYNs that were taken for them still come to them.
    pub replaced: &'a [u16],
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
    /// The interfaces of the legs that packets may cross in frames, where a rule says so.
    pub protected: &'a [Interface],
    /// The part of packets' marks that is ours.
    pub mark: MarkField,
    /// Whether this host tracks connections, so that the two halves of a split one must be kept apart.
    pub tracked: bool,
}

/// The rules as text for `nft -f -`. They replace the table of the same name in one transaction, and are not
/// in force until the set `alive` has elements.
pub fn ruleset(plan: &Plan<'_>) -> String {
    format!("table inet {TABLE}\ndelete table inet {TABLE}\n{}", table(plan))
}

/// The same, but the sets of the rules `before` stay with their elements: in one transaction all chains are
/// emptied, those that there shall be no more are removed, and the others are filled. Counters begin at zero.
/// A set that is declared anew gets another size, if it has another and the kernel can do it; Linux 6.18 can.
pub(super) fn successor(plan: &Plan<'_>, before: &str) -> String {
    let table = table(plan);
    let gone = || chains(before).filter(|former| chains(&table).all(|chain| chain != *former));
    // Declared, so that it is no error if another program has removed them.
    let counters = || counters::declared(before);
    let mut declared: String = gone().map(|chain| format!("\tchain {chain} {{\n\t}}\n")).collect();
    declared.extend(counters().map(|counter| format!("\tcounter {counter} {{\n\t}}\n")));
    let mut removed: String = gone().map(|chain| format!("delete chain inet {TABLE} {chain}\n")).collect();
    removed.extend(counters().map(|counter| format!("delete counter inet {TABLE} {counter}\n")));
    format!("table inet {TABLE} {{\n{declared}}}\nflush table inet {TABLE}\n{removed}{table}")
}

/// What puts rules into force until they are renewed, to be loaded with them.
pub(super) fn into_force() -> String {
    let patience = format!("{}ms", PATIENCE.as_millis());
    format!("add element inet {TABLE} {ALIVE} {{ tcp timeout {patience}, udp timeout {patience} }}\n")
}

/// The names of the chains that a rule set declares.
fn chains(rules: &str) -> impl Iterator<Item = &str> {
    rules.lines().filter_map(|line| line.strip_prefix("\tchain ")?.strip_suffix(" {"))
}

fn table(plan: &Plan<'_>) -> String {
    let body = [
        counters::declarations(plan),
        sets(),
        tracking(plan),
        prerouting(plan),
        injected(plan),
        output(plan),
        connections(plan),
        counters::forwarded(plan, BEHIND_HELD),
        datagrams(plan),
        protected::declarations(plan, BEHIND_HELD),
        limits(plan),
        snooped::declarations(plan),
        bundled::declarations(plan),
    ];
    let pairs = all_leg_pair_chains(plan);
    format!("table inet {TABLE} {{\n{}{pairs}}}\n", body.concat())
}

fn sets() -> String {
    let [clients4, clients6] = FULL_CLIENTS;
    let rated = rate_limits::sets();
    let of_ends = |names: [&str; 2], timeout: &str, size: u32| {
        let declare = |(name, key)| {
            format!(
                "\tset {name} {{ typeof {key}; flags dynamic, timeout; timeout {timeout}; size {size}; }}\n"
            )
        };
        names.into_iter().zip(ENDS).map(declare).collect::<String>()
    };
    let passing = of_ends(PASSING, "60s", 65_536) + &of_ends(UNTRACKED, "10m", 1 << 20);
    format!(
        "\tset {ALIVE} {{ type inet_proto; flags timeout; }}\n\
         \tset {FULL} {{ type inet_proto; flags timeout; }}\n\
         \tset {clients4} {{ type ipv4_addr; flags timeout; }}\n\
         \tset {clients6} {{ type ipv6_addr; flags timeout; }}\n\
         {passing}\
         {rated}"
    )
}

/// Both halves of a split connection have the same addresses and ports, but connection tracking knows one
/// connection of them. Here each has a zone of its own in the direction that this host sends in: what comes
/// in needs none, so that it is found, and translated back, before anybody knows whose it is. Other
/// transparent programs of this host lose nothing by it.
///
/// Connections that were split before the tracking began stay untracked: seen from the middle, their halves
/// could not be told apart.
///
/// Nothing where this host tracks no connections: to name a zone would begin it.
fn tracking(plan: &Plan<'_>) -> String {
    if !plan.tracked {
        return String::new();
    }
    let mark = plan.mark;
    let (injected, client, none) = (mark.is(Mark::Injected), mark.is(Mark::Client), mark.is_none());
    let leave = |(name, key)| format!("\t\t{key} @{name} update @{name} {{ {key} }} notrack return\n");
    let untracked: String = UNTRACKED.iter().zip(ENDS).map(leave).collect();
    format!(
        "\tchain arriving {{\n\
         \t\ttype filter hook prerouting priority {BEFORE_TRACKING}; policy accept;\n\
         {untracked}\
         \t\tiif \"lo\" {injected} ct reply zone set {ZONE}\n\
         \t}}\n\
         \tchain leaving {{\n\
         \t\ttype filter hook output priority {BEFORE_TRACKING}; policy accept;\n\
         {untracked}\
         \t\t{client} ct reply zone set {ZONE}\n\
         \t\tmeta l4proto tcp {none} socket transparent 1 ct original zone set {ZONE}\n\
         \t}}\n"
    )
}

/// Most packets are those of connections that are split already, so their rule comes before the others.
///
/// `socket` finds the listener of another transparent program on this host as well, such as one on
/// 0.0.0.0:80, for a packet of a connection that passes to any server's port 80. Ours stand on one address.
/// The statement breaks off, and so does not return, for handshakes and in TIME-WAIT, which have no full
/// socket.
///
/// A SYN that meets a socket here cannot be forwarded (`ip_forward`), so that it is decided at once. If the
/// connection is established, the socket answers. Repeated in the handshake, or new and in the place of one
/// in TIME-WAIT, it goes to the listener like the first.
fn prerouting(plan: &Plan<'_>) -> String {
    let (given_back, taken) = (snooped::given_back(plan), snooped::taken(plan));
    let bundled = bundled::guards(plan);
    let (injected, ours) = (plan.mark.is(Mark::Injected), plan.mark.set(Mark::Ours));
    let ports: Vec<String> =
        std::iter::once(PASS).chain(listeners(plan)).map(|port| port.to_string()).collect();
    let ports = ports.join(", ");
    let mut again = String::new();
    for pair in plan.pairs.iter().filter(|pair| pair.weight == Weight::default()) {
        let from = interface_match(pair.client, plan.interfaces);
        let to = interface_match(pair.server, plan.interfaces);
        let _ = writeln!(again, "\t\tiifname {from} fib daddr oifname {to} goto again_{}", pair.port);
    }
    format!(
        "\tchain prerouting {{\n\
         \t\ttype filter hook prerouting priority {LAST}; policy accept;\n\
         \t\tiif \"lo\" {injected} goto injected\n\
         \t\tiif \"lo\" {SYN} tcp flags & urg == 0 tcp urgptr {{ {ports} }} goto injected\n\
         \t\tiif \"lo\" return\n\
         \t\ttcp flags & (fin | syn | rst | ack) != syn socket transparent 1 goto ours\n\
         {given_back}\
         \t\t{SYN} socket transparent 1 jump known\n\
         {bundled}\
         {taken}\
         \t\tmeta l4proto {{ tcp, icmp, icmpv6 }} socket transparent 1 goto ours\n\
         \t}}\n\
         \tchain ours {{\n\
         \t\tsocket wildcard 1 return\n\
         \t\t{ours} accept\n\
         \t}}\n\
         \tchain known {{\n\
         \t\tsocket wildcard 1 return\n\
         \t\tsocket wildcard 0 goto ours\n\
         {again}\
         \t}}\n"
    )
}

/// SYNs that the daemon gives to its listeners. It says in the urgent pointer, which means nothing without
/// the flag URG (RFC 9293 §3.1), to which one; by that they are known even if another rule has set another
/// mark, such as that of the connection (`CONNMARK --restore-mark` without a mask).
fn injected(plan: &Plan<'_>) -> String {
    let mark = plan.mark.set(Mark::Injected);
    let lines = listeners(plan).map(|port| format!("\t\ttcp urgptr {port} goto listener_{port}\n"));
    let (passing, lines) = (pass_from_now_on(), lines.collect::<String>());
    format!(
        "\tchain injected {{\n\t\t{mark}\n\t\ttcp urgptr {PASS} goto pass_when_repeated\n{lines}\t\tdrop\n\t}}\n\
         \tchain pass_when_repeated {{\n{passing}\t\tdrop\n\t}}\n"
    )
}

/// The ports of all listeners.
fn listeners(plan: &Plan<'_>) -> impl Iterator<Item = u16> {
    plan.pairs.iter().map(|pair| pair.port).chain(plan.replaced.iter().copied())
}

/// Lets a connection pass from its next SYN on.
fn pass_from_now_on() -> String {
    PASSING.iter().zip(ENDS).map(|(name, key)| format!("\t\tupdate @{name} {{ {key} }}\n")).collect()
}

fn output(plan: &Plan<'_>) -> String {
    let own = plan.mark.set(Mark::OwnError);
    format!(
        "\tchain output {{\n\
         \t\ttype route hook output priority mangle; policy accept;\n\
         \t\ticmp type destination-unreachable icmp code host-unreachable @th,128,16 {QUOTED_IPV4:#06x} {own}\n\
         \t\ticmpv6 type destination-unreachable icmpv6 code addr-unreachable @th,112,16 {QUOTED_IPV6:#06x} {own}\n\
         \t}}\n"
    )
}

/// A connection that crosses a satellite leg is decided at its SYN, when the operator's own rules have let it
/// pass. What they have translated passes unsplit: its client knows the server by another address. So does
/// what deferred accept does not read, a fragment or a SYN of IPv6 with extension headers, and what has no
/// way back from here, a client with a link-local address, or what a bridge forwards between two of its ports
/// and br_netfilter shows here. And what comes by `lo` has lost the mark with which it was sent there.
///
/// A connection whose first SYN passes because nothing is taken at the time, passes when it is repeated, too:
/// its server may have answered by then, and the client would hear two answers.
fn connections(plan: &Plan<'_>) -> String {
    let rules = policy::connections(plan.rules, plan.handshake);
    let otherwise = policy::chain(plan.handshake, Weight::default());
    let translated = if plan.tracked {
        format!(
            "\t\tct status dnat limit rate 1/minute burst 1 packets log group {LOG_GROUP} queue-threshold 1 prefix \
             \"translated 0\"\n\t\tct status dnat {} return\n",
            Verdict::Translated.counted()
        )
    } else {
        String::new()
    };
    let bridged: String = plan
        .interfaces
        .iter()
        .map(|name| {
            let counted = Verdict::Bridged.counted();
            format!("\t\tiifname \"{name}\" oifname \"{name}\" meta iifkind \"bridge\" {counted} return\n")
        })
        .collect();
    let declined = Verdict::Declined.counted();
    let passing: String = PASSING
        .iter()
        .zip(ENDS)
        .map(|(name, key)| format!("\t\t{key} @{name} {declined} return\n"))
        .collect();
    let [not_ready, unreadable, link_local] =
        [Verdict::NotReady, Verdict::Unreadable, Verdict::LinkLocal].map(Verdict::counted);
    let satellites: Vec<String> = plan.interfaces.iter().map(|name| format!("\"{name}\"")).collect();
    let satellites = satellites.join(", ");
    let unsplit = pass_from_now_on();
    format!(
        "\tchain forward {{\n\
         \t\ttype filter hook forward priority {LAST}; policy accept;\n\
         \t\t{SYN} iifname {{ {satellites} }} goto decide\n\
         \t\t{SYN} oifname {{ {satellites} }} goto decide\n\
         \t}}\n\
         \tchain decide {{\n\
         \t\tmeta l4proto != @{ALIVE} {not_ready} goto unsplit\n\
         \t\tiif \"lo\" return\n\
         \t\tip frag-off & 0x3fff != 0 {unreadable} return\n\
         \t\tip6 saddr fe80::/10 {link_local} return\n\
         {passing}\
         {bridged}\
         \t\tip6 nexthdr != tcp {unreadable} return\n\
         {translated}\
         {rules}\
         \t\tgoto {otherwise}\n\
         \t}}\n\
         \tchain unsplit {{\n{unsplit}\t}}\n"
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

/// A connection whose socket is there is not counted again: its repeated SYN meets it in `prerouting`.
fn limits(plan: &Plan<'_>) -> String {
    let verdict = match plan.at_limit {
        AtLimit::Pass => "accept",
        AtLimit::Refuse => "reject with tcp reset",
    };
    let [clients4, clients6] = FULL_CLIENTS;
    let at = |limit: Verdict| format!("{} {verdict}", limit.counted());
    let rates = rate_limits::statements(&plan.rates, at);
    let [full, client_full] = [Verdict::Limit, Verdict::ClientLimit].map(at);
    format!(
        "\tchain limits {{\n\
         \t\tmeta l4proto @{FULL} {full}\n\
         \t\tip saddr @{clients4} {client_full}\n\
         \t\tip6 saddr and ffff:ffff:ffff:ffff:: @{clients6} {client_full}\n\
         {rates}\
         \t}}\n"
    )
}

/// The chains of all paths, and before them those that find the path.
fn all_leg_pair_chains(plan: &Plan<'_>) -> String {
    let chains: String = plan.pairs.iter().map(|pair| leg_pair_chains(pair, plan.mark)).collect();
    let weights: BTreeSet<Weight> = plan.pairs.iter().map(|pair| pair.weight).collect();
    let entrances: String = weights.iter().map(|&weight| entrances(plan, weight)).collect();
    let listeners: String = listeners(plan).map(listener_chain).collect();
    chains + &listeners + &entrances
}

/// Where a SYN comes back to its listener. Where somebody has destroyed that (`ss -K`) the connection passes
/// when the SYN is repeated.
fn listener_chain(port: u16) -> String {
    let listener = bundled::to_listener(port, "accept");
    format!("\tchain listener_{port} {{\n\t\ttcp urgptr set 0\n{listener}\t\tgoto pass_when_repeated\n\t}}\n")
}

/// `early`, `faithful` and `again` give the daemon a copy of a SYN, with the path in the copy's prefix, and
/// mark it as taken.
fn leg_pair_chains(pair: &LegPair, mark: MarkField) -> String {
    let LegPair { port, weight, .. } = *pair;
    let (taken, split) = (mark.set(Mark::Taken), Verdict::Split.counted());
    let copy =
        |how: &str| format!("log group {LOG_GROUP} queue-threshold 1 prefix \"{how} {port}\" {taken} accept");
    let mut text = String::new();
    for handshake in [Handshake::Early, Handshake::Faithful] {
        let name = handshake.name();
        let _ = write!(text, "\tchain {name}_{port} {{\n\t\tjump limits\n\t\t{split} {}\n\t}}\n", copy(name));
    }
    if weight == Weight::default() {
        let _ = write!(text, "\tchain again_{port} {{\n\t\t{}\n\t}}\n", copy("again"));
    }
    text
}

/// The chains that find the path by the interfaces between which a SYN is forwarded.
fn entrances(plan: &Plan<'_>, weight: Weight) -> String {
    let of = |handshake: Handshake| {
        let pairs = plan.pairs.iter().filter(|pair| pair.weight == weight);
        let lines = pairs.map(|pair| {
            let from = interface_match(pair.client, plan.interfaces);
            let to = interface_match(pair.server, plan.interfaces);
            format!("\t\tiifname {from} oifname {to} goto {}_{}\n", handshake.name(), pair.port)
        });
        let name = policy::chain(handshake, weight);
        format!("\tchain {name} {{\n{}\t}}\n", lines.collect::<String>())
    };
    of(Handshake::Early) + &of(Handshake::Faithful)
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
            replaced: &[],
            handshake,
            at_limit,
            rates: Default::default(),
            rules: &[],
            snooped: None,
            bundle: None,
            protected: &[],
            mark: MarkField::default(),
            tracked: false,
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
            "iifname != { \"sat0\" } oifname \"sat0\" goto early_7602",
            "chain early_7602 {\n\t\tjump limits\n\t\tcounter name verdict_split log group 25200 queue-threshold 1 prefix \"early 7602\"",
            "tcp urgptr 7602 goto listener_7602",
            "meta nfproto ipv4 meta l4proto tcp tproxy ip to 127.0.0.1:7602 accept",
            "meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [::1]:7602 accept",
        ] {
            assert!(rules.contains(rule), "{rule}\n{rules}");
        }
    }

    #[test]
    fn ground_to_ground_is_left_alone() {
        let ground = "!= { \"sat0\", \"sat1\" }";
        let rules = early(&["sat0", "sat1"]);
        assert!(rules.contains(ground) && !rules.contains(&format!("{ground} oifname {ground}")));
    }

    #[test]
    fn each_path_has_one_rule_for_each_family() {
        for interfaces in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
            let count = early(interfaces).matches("tproxy").count();
            assert_eq!(count, 2 * crate::types::leg_pair::leg_pair_count(interfaces.len()));
        }
    }

    #[test]
    fn a_syn_is_taken_behind_all_others_and_only_one_that_the_daemon_sends_comes_back_by_loopback() {
        let rules = early(&["sat0"]);
        assert!(
            rules.contains("type filter hook forward priority 1000; policy accept;\n\t\ttcp flags"),
            "{rules}"
        );
        let injected = rules.find("iif \"lo\" meta mark & 0x70000000 == 0x20000000 goto injected\n").unwrap();
        assert!(injected < rules.find("iif \"lo\" return\n").unwrap());
        assert!(rules.contains("goto listener_7602\n\t\tdrop\n"), "{rules}");
    }

    #[test]
    fn the_halves_of_a_connection_have_zones_where_this_host_tracks_connections() {
        let interfaces = [Interface::try_from("sat0".to_owned()).unwrap()];
        let plan = |tracked| Plan {
            interfaces: &interfaces,
            pairs: &[],
            replaced: &[],
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &[],
            snooped: None,
            bundle: None,
            protected: &[],
            mark: MarkField::default(),
            tracked,
        };
        assert_eq!(ruleset(&plan(true)).matches("zone set 25200").count(), 3);
        assert!(!ruleset(&plan(false)).contains("ct "), "to ask would begin the tracking");
    }

    #[test]
    fn without_a_sign_of_life_nothing_is_taken() {
        assert!(early(&["sat0"]).contains(
            "chain decide {\n\t\tmeta l4proto != @alive counter name verdict_not_ready goto unsplit\n"
        ));
    }

    #[test]
    fn at_a_limit_a_connection_passes_or_is_refused_as_configured() {
        for (at_limit, verdict) in [(AtLimit::Pass, "accept"), (AtLimit::Refuse, "reject with tcp reset")] {
            let rules = text(&["sat0"], Handshake::Early, at_limit);
            for line in [
                "meta l4proto @full counter name verdict_limit",
                "ip saddr @full_clients4 counter name verdict_client_limit",
            ] {
                assert!(rules.contains(&format!("{line} {verdict}\n")), "{line}\n{rules}");
            }
        }
    }

    #[test]
    fn the_copy_of_a_syn_says_what_is_wanted_with_it() {
        let rules = text(&["sat0"], Handshake::Faithful, AtLimit::Pass);
        assert!(rules.contains("\t\tgoto faithful\n"), "{rules}");
        let taken = "meta mark set meta mark & 0x8fffffff | 0x40000000 accept";
        for purpose in ["early", "faithful", "again"] {
            let line = format!("log group 25200 queue-threshold 1 prefix \"{purpose} 7601\" {taken}\n");
            assert!(rules.contains(&line), "{line}\n{rules}");
        }
    }

    #[test]
    fn a_weight_has_paths_of_its_own() {
        let interfaces = [Interface::try_from("sat0".to_owned()).unwrap()];
        let weight = Weight::try_from(4).unwrap();
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &leg_pairs(1, &[weight], 7600),
            replaced: &[],
            handshake: Handshake::Faithful,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &[],
            snooped: None,
            bundle: None,
            protected: &[],
            mark: MarkField::default(),
            tracked: false,
        };
        let text = ruleset(&plan);
        for part in [
            "chain faithful_weight_4 {\n\t\tiifname \"sat0\" oifname \"sat0\" goto faithful_7603\n",
            "\t\tiifname != { \"sat0\" } oifname \"sat0\" goto faithful_7605\n",
            "prefix \"faithful 7605\"",
            "tcp urgptr 7605 goto listener_7605\n",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("again_7605"), "the path of the default weight will do");
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
            replaced: &[],
            handshake,
            at_limit,
            rates: Default::default(),
            rules: &config.rules,
            snooped: None,
            bundle: None,
            protected: &[],
            mark: MarkField::default(),
            tracked: false,
        };
        let rules = ruleset(&plan);
        assert!(
            rules.contains(
                "nexthdr != tcp counter name verdict_unreadable return\n\t\ttcp dport 22 counter name rule_2 return\n\t\tgoto early\n"
            ),
            "{rules}"
        );
        let guards =
            "meta l4proto != @alive return\n\t\tiifname != { \"sat0\" } oifname != { \"sat0\" } return\n";
        assert!(rules.contains(&format!("{guards}\t\tudp dport 443 counter name rule_1 reject")), "{rules}");
        assert!(!early(&["sat0"]).contains("chain datagrams"));
    }

    #[test]
    fn this_hosts_own_verdict_of_unreachable_comes_back_to_it() {
        let rules = early(&["sat0"]);
        assert!(
            rules.contains("icmp type destination-unreachable icmp code host-unreachable @th,128,16 0x4006 meta mark set meta mark & 0x8fffffff | 0x70000000"),
            "{rules}"
        );
        assert!(
            rules.contains("icmpv6 type destination-unreachable icmpv6 code addr-unreachable @th,112,16 0x0640 meta mark set meta mark & 0x8fffffff | 0x70000000"),
            "{rules}"
        );
    }

    #[test]
    fn a_syn_still_comes_to_a_listener_that_others_have_replaced() {
        let interfaces = [Interface::try_from("sat0".to_owned()).unwrap()];
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &leg_pairs(1, &[], 7603),
            replaced: &[7600, 7601, 7602],
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &[],
            snooped: None,
            bundle: None,
            protected: &[],
            mark: MarkField::default(),
            tracked: false,
        };
        let rules = ruleset(&plan);
        for part in [
            "tcp urgptr { 1, 7603, 7604, 7605, 7600, 7601, 7602 } goto injected",
            "tcp urgptr 7601 goto listener_7601\n",
            "chain listener_7601 {\n\t\ttcp urgptr set 0\n",
        ] {
            assert!(rules.contains(part), "{part}\n{rules}");
        }
        assert!(!rules.contains("early_7601"), "and none is taken for it any more");
    }

    #[test]
    fn a_successor_removes_the_chains_that_it_has_not_and_leaves_the_sets() {
        let (one, three) = (early(&["a"]), early(&["a", "b", "c"]));
        let interfaces = [Interface::try_from("a".to_owned()).unwrap()];
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &leg_pairs(1, &[], 7600),
            replaced: &[],
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &[],
            snooped: None,
            bundle: None,
            protected: &[],
            mark: MarkField::default(),
            tracked: false,
        };
        let rules = successor(&plan, &three);
        let first = crate::types::leg_pair::leg_pair_count(1);
        for pair in crate::types::leg_pair::leg_pairs(3, &[], 7600) {
            for chain in
                ["early", "faithful", "again", "listener"].map(|kind| format!("{kind}_{}", pair.port))
            {
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
