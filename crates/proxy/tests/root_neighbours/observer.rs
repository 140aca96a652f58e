//! What connection tracking takes for INVALID on a gateway.

use std::time::Duration;

use crate::common::{Host, wait_until};

const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];

/// Counts packets that connection tracking knows nothing about, in each hook; with `verdict`, `drop` or
/// nothing.
pub(crate) fn observe(gateway: &Host, verdict: &str) {
    let chain = |hook| {
        format!(
            "chain {hook} {{\n type filter hook {hook} priority filter; ct state invalid counter {verdict}\n}}\n"
        )
    };
    gateway.rules(&format!("table inet observer {{\n{}}}\n", HOOKS.map(chain).concat()));
}

/// Packets that were INVALID so far, by hook.
pub(crate) fn invalid_packets(gateway: &Host) -> Vec<(&'static str, u64)> {
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
