//! Filters of sources and marks: settings of the kernel, and rules that look routes up.

use crate::attempt::Attempt;
use crate::neighbour::{Neighbour, inward, outward};
use crate::trial::Trial;

fn both_ways(trial: &Trial) -> Vec<Attempt> {
    [outward(&trial.net), inward(&trial.net)].concat()
}

/// Tries connections both ways beside settings of the gateway.
fn beside_settings(name: &str, settings: &[(&str, &str)]) {
    let set_up = |trial: &mut Trial| {
        for (key, value) in settings {
            trial.net.gateway.sysctl(key, value);
        }
    };
    Neighbour { name, set_up: &set_up, attempts: &both_ways, ..Default::default() }.run();
}

#[test]
fn beside_a_strict_reverse_path_filter() {
    beside_settings("`rp_filter=1`", &[("net.ipv4.conf.all.rp_filter", "1")]);
}

#[test]
fn beside_a_loose_reverse_path_filter() {
    beside_settings("`rp_filter=2`", &[("net.ipv4.conf.all.rp_filter", "2")]);
}

#[test]
fn beside_marks_in_the_reverse_path_of_all_interfaces() {
    beside_settings("`src_valid_mark=1`", &[("net.ipv4.conf.all.src_valid_mark", "1")]);
}

#[test]
fn beside_marks_in_a_strict_reverse_path_filter() {
    let settings = [("net.ipv4.conf.all.src_valid_mark", "1"), ("net.ipv4.conf.all.rp_filter", "1")];
    beside_settings("`src_valid_mark=1` and `rp_filter=1`", &settings);
}

#[test]
fn beside_marks_in_the_reverse_path_of_one_interface() {
    for interface in ["ground0", "sat0"] {
        let key = format!("net.ipv4.conf.{interface}.src_valid_mark");
        let side = if interface == "sat0" { "leg" } else { "LAN" };
        beside_settings(&format!("`src_valid_mark=1` of the {side}'s interface"), &[(&key, "1")]);
    }
}

#[test]
fn beside_accepted_connections_that_take_the_mark_of_their_syn() {
    beside_settings("`tcp_fwmark_accept=1`", &[("net.ipv4.tcp_fwmark_accept", "1")]);
}

#[test]
fn beside_answers_that_take_the_mark_of_what_they_answer() {
    beside_settings(
        "`fwmark_reflect=1`",
        &[("net.ipv4.fwmark_reflect", "1"), ("net.ipv6.fwmark_reflect", "1")],
    );
}

#[test]
fn beside_all_of_these_settings() {
    let settings = [
        ("net.ipv4.conf.all.src_valid_mark", "1"),
        ("net.ipv4.conf.all.rp_filter", "1"),
        ("net.ipv4.tcp_fwmark_accept", "1"),
        ("net.ipv4.fwmark_reflect", "1"),
        ("net.ipv6.fwmark_reflect", "1"),
    ];
    beside_settings("all of these settings", &settings);
}

/// Tries connections both ways beside rules of nftables.
fn beside_rules(name: &str, rules: &str, notes: &str) {
    let set_up = |trial: &mut Trial| trial.net.gateway.rules(rules);
    Neighbour { name, set_up: &set_up, attempts: &both_ways, notes, ..Default::default() }.run();
}

/// What every source must have a route back by.
fn reverse_path(family: &str, rule: &str) -> String {
    format!(
        "table inet filter_of_sources {{\nchain c {{\n type filter hook prerouting priority mangle + 10;\n \
         icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert }} accept\n \
         meta nfproto {family} {rule}\n}}\n}}\n"
    )
}

#[test]
fn beside_the_reverse_path_rule_of_firewalld() {
    let rules = reverse_path("ipv6", "fib saddr . mark . iif oif missing drop");
    beside_rules("firewalld's `IPv6_rpfilter` rule", &rules, "alone, without firewalld");
}

#[test]
fn beside_the_reverse_path_rule_of_nixos() {
    let rules = reverse_path("{ ipv4, ipv6 }", "fib saddr . mark . iif oif missing drop");
    beside_rules(
        "the reverse path rule of NixOS, IPv4 and IPv6",
        &rules,
        "its `fib saddr . mark . iif`, strict",
    );
}

#[test]
fn beside_rules_that_drop_what_connection_tracking_does_not_know() {
    let chain =
        |hook| format!("chain {hook} {{\n type filter hook {hook} priority 0; ct state invalid drop\n}}\n");
    let chains = ["prerouting", "input", "forward", "output", "postrouting"].map(chain).concat();
    beside_rules("`ct state invalid drop` in all hooks", &format!("table inet strict {{\n{chains}}}\n"), "");
}

/// Tries connections beside rules that no check of the daemon's knows.
fn beside_rules_that_break_splitting(name: &str, rules: &str, notes: &str) {
    let set_up = |trial: &mut Trial| trial.net.gateway.rules(rules);
    Neighbour { name, set_up: &set_up, breaks: true, notes, ..Default::default() }.run();
}

#[test]
fn beside_rules_that_take_our_mark_away() {
    for (name, statement) in [
        ("`meta mark set 0` for all packets in prerouting", "meta mark set 0"),
        ("a mask over the marks of all packets in prerouting", "meta mark set meta mark & 0x00ffffff"),
    ] {
        let rules = format!(
            "table inet marks {{\nchain c {{\n type filter hook prerouting priority mangle; {statement}\n}}\n}}\n"
        );
        beside_rules_that_break_splitting(name, &rules, "");
    }
}

#[test]
fn beside_marks_of_connections_that_are_restored_whole() {
    let rules = "table inet marks {\n\
                 chain arriving {\n type filter hook prerouting priority mangle; meta mark set ct mark\n}\n\
                 chain sent {\n type route hook output priority mangle; meta mark set ct mark\n}\n\
                 chain leaving {\n type filter hook postrouting priority mangle; ct mark set meta mark\n}\n}\n";
    beside_rules_that_break_splitting("`CONNMARK --restore-mark` without a mask", rules, "as nftables rules");
}

#[test]
fn beside_an_input_chain_that_accepts_nothing_of_the_loopback_interface() {
    let chain = "chain c {\n type filter hook input priority filter; iif lo meta l4proto tcp drop\n}\n";
    beside_rules_that_break_splitting(
        "`iif lo tcp drop` in input",
        &format!("table inet deaf {{\n{chain}}}\n"),
        "",
    );
}

#[test]
fn beside_a_rule_against_foreign_sources_on_the_loopback_interface() {
    let rules = "table inet sources {\nchain c {\n type filter hook prerouting priority raw; \
                 iif lo ip saddr != 127.0.0.0/8 drop; iif lo ip6 saddr != ::1 drop\n}\n}\n";
    beside_rules_that_break_splitting("`iif lo ip saddr != 127.0.0.0/8 drop`", rules, "");
}
