//! The rules by which connections are handed to the bundle node of this host.
//!
//! The node is another process with a transparent listener of its own. Whether it lives is asked of the kernel at each SYN: without the
//! listener `tproxy` does not match and the connection passes, unsplit. So its connections need no sign of life of the daemon, which
//! gives them nothing but these rules. They need no route to the server either: to be taken while there is none is what a
//! bundle node is for.
//!
//! What the watch sees to for the daemon's own connections is not sure then: that marked packets come to this host. A SYN that is
//! given to a listener and routed elsewhere would be dropped. So it is marked and asked about first.

use crate::path::LegId;

use super::ruleset::{ALIVE, Plan, interface_match};
use super::{Names, policy};

/// The chain that a rule of the operator's sends a connection to that is for the node.
pub(super) const HAND_OVER: &str = "bundle";

/// What a SYN meets before the guards of those that are to be split. Nothing where no rule says `bundle`.
pub(super) fn guards(plan: &Plan<'_>) -> String {
    if plan.bundle.is_none() {
        return String::new();
    }
    // Without a route `fib` calls the type of an address of IPv6 unreachable and that of one of IPv4 unicast.
    format!(
        "\t\tfib daddr type {{ local, broadcast, anycast, multicast }} return\n\
         \t\tmeta l4proto != @{ALIVE} goto decide_bundle\n\
         \t\tfib daddr type != unicast goto decide_bundle\n\
         \t\tfib daddr oif missing goto decide_bundle\n"
    )
}

/// Chains. Nothing where no rule says `bundle`.
pub(super) fn declarations(names: &Names, plan: &Plan<'_>) -> String {
    let Some(port) = plan.bundle else { return String::new() };
    let mark = names.mark;
    let ground = interface_match(LegId::Terrestrial, plan.interfaces);
    let rules = policy::bundles(plan.rules);
    let to_listener = to_listener(port, mark);
    format!(
        "\tchain {HAND_OVER} {{\n\
         \t\tiifname {ground} fib daddr oif exists fib daddr oifname {ground} return\n\
         {to_listener}\
         \t}}\n\
         \tchain {HAND_OVER}_if_routed {{\n\
         \t\tmeta mark set {mark:#x}\n\
         \t\tfib daddr . mark oif missing jump {HAND_OVER}\n\
         \t\tmeta mark set 0\n\
         \t}}\n\
         \tchain decide_bundle {{\n\
         {rules}\
         \t}}\n"
    )
}

/// The rules that give a SYN to the transparent listeners on this loopback port, in each family, if there are any.
pub(super) fn to_listener(port: u16, mark: u32) -> String {
    [("ipv4", "ip", "127.0.0.1"), ("ipv6", "ip6", "[::1]")]
        .map(|(family, protocol, host)| {
            format!(
                "\t\tmeta nfproto {family} meta l4proto tcp tproxy {protocol} to {host}:{port} meta mark set {mark:#x} accept\n"
            )
        })
        .concat()
}
