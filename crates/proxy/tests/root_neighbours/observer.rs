//! What connection tracking takes for INVALID on a gateway.

use std::time::Duration;

use crate::common::{Host, wait_until};

const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];

/// Counts packets that connection tracking knows nothing about, in each hook, and notes what they are; with
/// `verdict`, `drop` or nothing.
pub(crate) fn observe(gateway: &Host, verdict: &str) {
    let key = |ip| format!("{ip} saddr . tcp sport . {ip} daddr . tcp dport . tcp flags . meta iifname");
    let families = ["ip", "ip6"];
    let set = |ip| format!("set seen_{ip} {{\n typeof {}; flags dynamic; size 100\n}}\n", key(ip));
    let note = |ip| format!("ct state invalid add @seen_{ip} {{ {} }}\n", key(ip));
    let chain = |hook| {
        let noted = if hook == "prerouting" { families.map(note).concat() } else { String::new() };
        format!(
            "chain {hook} {{\n type filter hook {hook} priority filter; {noted}ct state invalid counter {verdict}\n}}\n"
        )
    };
    let (sets, chains) = (families.map(set).concat(), HOOKS.map(chain).concat());
    gateway.rules(&format!("table inet observer {{\n{sets}{chains}}}\n"));
}

/// Fails if connection tracking took a packet for INVALID.
pub(crate) fn expect_none_invalid(gateway: &Host, what: &str) {
    let invalid = invalid_packets(gateway);
    if invalid.iter().any(|(_, count)| *count > 0) {
        let seen = ["ip", "ip6"].map(|ip| gateway.output(&format!("nft list set inet observer seen_{ip}")));
        panic!("{what}: INVALID packets: {invalid:?}\n{}", seen.concat());
    }
}

/// Packets that were INVALID so far, by hook.
fn invalid_packets(gateway: &Host) -> Vec<(&'static str, u64)> {
    let count = |hook| {
        let chain = gateway.output(&format!("nft list chain inet observer {hook}"));
        let (_, after) =
            chain.split_once("counter packets ").unwrap_or_else(|| panic!("a counter in {chain}"));
        (hook, after.split(' ').next().unwrap().parse().unwrap())
    };
    HOOKS.map(count).to_vec()
}

/// Begins to count INVALID packets anew, once those of connections that another gateway has carried are over.
pub(crate) fn observe_anew(gateway: &Host) {
    wait_until("a second passes without an INVALID packet", || {
        let before = invalid_packets(gateway);
        std::thread::sleep(Duration::from_secs(1));
        invalid_packets(gateway) == before
    });
    gateway.run("nft delete table inet observer");
    observe(gateway, "");
}

/// What others have on the gateway, without counters and elements, which come and go.
pub(crate) fn belongings(gateway: &Host) -> String {
    let commands = [
        "nft -s -t list ruleset",
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table all",
        "sysctl -a --pattern ^net.ipv4.conf.*(rp_filter|src_valid_mark|accept_local|forwarding)",
    ];
    commands.map(|command| gateway.output(command)).join("---\n")
}
