//! The rules by which connections are handed to the bundle node of this host.
//!
//! The node is another process with a transparent listener of its own. Whether it lives is asked of the
//! kernel at each SYN: without the listener `tproxy` does not match and the connection passes, unsplit. So
//! its connections need no sign of life of the daemon, which gives them nothing but these rules. They need no
//! route to the server either: a bundle node takes connections while there is none.
//!
//! The watchdog does not ensure then that marked packets come to this
//! host. A SYN that is given to a listener and routed elsewhere would be dropped. So it is marked and asked
//! about first.

use crate::types::leg_pair::LegId;

use super::ruleset::{ALIVE, Plan, interface_match};
use super::{MARK, policy};

/// The chain that a rule of the operator's sends a connection to that is for the node.
pub(super) const HAND_OVER: &str = "bundle";

/// The conditions before those of connections that are split. Empty if no rule says `bundle`.
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
pub(super) fn declarations(plan: &Plan<'_>) -> String {
    let Some(port) = plan.bundle else { return String::new() };
    let ground = interface_match(LegId::Terrestrial, plan.interfaces);
    let rules = policy::bundles(plan.rules);
    let to_listener = to_listener(port);
    format!(
        "\tchain {HAND_OVER} {{\n\
         \t\tiifname {ground} fib daddr oif exists fib daddr oifname {ground} return\n\
         {to_listener}\
         \t}}\n\
         \tchain {HAND_OVER}_if_routed {{\n\
         \t\tmeta mark set {MARK:#x}\n\
         \t\tfib daddr . mark oif missing jump {HAND_OVER}\n\
         \t\tmeta mark set 0\n\
         \t}}\n\
         \tchain decide_bundle {{\n\
         {rules}\
         \t}}\n"
    )
}

/// The rules that give a SYN to the transparent listeners on this loopback port, in each family, if there are
/// any.
pub(super) fn to_listener(port: u16) -> String {
    [("ipv4", "ip", "127.0.0.1"), ("ipv6", "ip6", "[::1]")]
        .map(|(family, protocol, host)| {
            format!(
                "\t\tmeta nfproto {family} meta l4proto tcp tproxy {protocol} to {host}:{port} meta mark set {MARK:#x} accept\n"
            )
        })
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AtLimit, Config, Handshake};
    use crate::intercept::ruleset;

    fn text(rule: &str) -> String {
        let text = format!("[legs.a]\ninterface = \"sat0\"\n[bundle]\nport = 8000\n{rule}");
        let config = Config::parse("x", &text).unwrap();
        let interfaces = [config.legs["a"].interface.clone()];
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &crate::types::leg_pair::leg_pairs(1, &[], 7600),
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &config.rules,
            snooped: None,
            bundle: config.bundle_port(),
        };
        ruleset(&plan)
    }

    #[test]
    fn without_a_rule_that_says_bundle_there_is_nothing_of_it() {
        let rules = text("[[rules]]\naction = \"pass\"\nport = 80\n");
        assert!(
            !rules.contains("bundle_") && !rules.contains("8000") && !rules.contains("multicast"),
            "{rules}"
        );
    }

    #[test]
    fn the_guards_of_split_connections_follow_those_of_the_nodes() {
        let rules = text("[[rules]]\naction = \"bundle\"\nport = 80\n");
        let (_, decide) = rules.split_once("chain decide {\n").unwrap();
        let (decide, _) = decide.split_once("\t}\n").unwrap();
        for condition in ["meta l4proto != @alive", "fib daddr type != unicast", "fib daddr oif missing"] {
            let [node, split] = ["goto decide_bundle", "return"]
                .map(|verdict| decide.find(&format!("{condition} {verdict}\n")));
            assert!(node.is_some() && node < split, "{condition}\n{decide}");
        }
        assert!(
            decide.starts_with("\t\tfib daddr type { local, broadcast"),
            "this host's own come before all"
        );
    }

    #[test]
    fn no_limit_stands_before_the_nodes_listener_and_both_families_have_one() {
        let rules = text("[[rules]]\naction = \"bundle\"\n");
        let (_, chain) = rules.split_once("chain bundle {\n").unwrap();
        let (chain, _) = chain.split_once("\t}\n").unwrap();
        assert!(!chain.contains("limits"), "{chain}");
        for listener in
            ["ip to 127.0.0.1:8000 meta mark set 0x6270 accept", "ip6 to [::1]:8000 meta mark set"]
        {
            assert!(chain.contains(&format!("tproxy {listener}")), "{chain}");
        }
    }
}
