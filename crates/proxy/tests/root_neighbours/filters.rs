//! Filters of sources and marks: settings of the kernel, and rules that look routes up.

use crate::attempt::Attempt;
use crate::neighbour::{Neighbour, inward, outward};
use crate::observer::observe;
use crate::row::Row;
use crate::shell::kernel;
use crate::trial::{HANDSHAKES, Trial};

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

#[test]
fn beside_rules_that_clear_the_marks_of_all_packets_that_arrive() {
    let chain = "chain c {\n type filter hook prerouting priority mangle - 5; meta mark set 0\n}\n";
    beside_rules("`meta mark set 0` in prerouting", &format!("table inet marks {{\n{chain}}}\n"), "");
}

/// Rules that no check of the daemon knows: connections may fail until it has seen that none comes through, but
/// none of them waits for longer than it may, and then they pass, with a line in the log.
fn beside_rules_that_break_splitting(name: &str, rules: &str, notes: &str) {
    let Some(trial) = Trial::new() else { return };
    let mut row = Row::default();
    trial.net.gateway.rules(rules);
    let attempts = outward(&trial.net);
    let unsplit = trial.without_daemon(&attempts);
    for handshake in HANDSHAKES {
        let mut daemon = trial.daemon(handshake);
        observe(&trial.net.gateway, "");
        trial.wait_until_through(&attempts);
        trial.expect_as_unsplit(&mut daemon, &attempts, &unsplit, &mut row);
        daemon.stop();
        trial.net.gateway.run("nft delete table inet observer");
    }
    row.write(name, &kernel(), notes);
}

#[test]
fn beside_rules_that_take_our_mark_away() {
    let chain =
        "chain c {\n type filter hook prerouting priority filter; meta mark set meta mark & 0x00ffffff\n}\n";
    let notes = "connections that began before the daemon saw it are reset";
    beside_rules_that_break_splitting(
        "a mask over all marks",
        &format!("table inet marks {{\n{chain}}}\n"),
        notes,
    );
}

#[test]
fn beside_an_input_chain_that_accepts_nothing_of_the_loopback_interface() {
    let chain = "chain c {\n type filter hook input priority filter; iif lo meta l4proto tcp drop\n}\n";
    beside_rules_that_break_splitting("`iif lo tcp drop`", &format!("table inet deaf {{\n{chain}}}\n"), "");
}
