//! The rules by which connections are handed to the bundle node of this host.
//!
//! The node is another process with a transparent listener of its own. Whether it lives is asked of the
//! kernel at each SYN: without the listener `tproxy` does not match and the connection passes, unsplit. So
//! its connections need no sign of life of the daemon, which gives them nothing but these rules. They need no
//! route to the server either: a bundle node takes connections while there is none. That is why they are
//! decided before they are routed, and not asked of the operator's rules of the hook `forward`.
//!
//! The watchdog does not ensure then that marked packets come to this
//! host. A SYN that is given to a listener and routed elsewhere would be dropped. So it is marked and asked
//! about first.

use crate::config::Mark;
use crate::types::leg_pair::LegId;

use super::policy;
use super::ruleset::{ALIVE, Plan, SYN, interface_match};

/// The chain that a rule of the operator's sends a connection to that is for the node.
const HAND_OVER: &str = "bundle";
const IF_ROUTED: &str = "bundle_if_routed";

/// The way into the chains below for a SYN that has not been routed. Empty if no rule says `bundle`.
pub(super) fn guards(plan: &Plan<'_>) -> String {
    if plan.bundle.is_none() { String::new() } else { format!("\t\t{SYN} jump decide_bundle\n") }
}

/// Chains. Nothing where no rule says `bundle`.
pub(super) fn declarations(plan: &Plan<'_>) -> String {
    let Some(port) = plan.bundle else { return String::new() };
    let ground = interface_match(LegId::Terrestrial, plan.interfaces);
    let [routed, unrouted] = [HAND_OVER, IF_ROUTED].map(|chain| policy::bundles(plan.rules, chain));
    let ours = plan.mark.set(Mark::Ours);
    // A question is answered as for packets that this host sends, which only this mark leads back to it.
    let question = plan.mark.set(Mark::Injected);
    let to_listener = to_listener(port, &format!("{ours} accept"));
    // Without a route `fib` calls the type of an address of IPv6 unreachable and that of one of IPv4 unicast.
    format!(
        "\tchain {HAND_OVER} {{\n\
         \t\tiifname {ground} fib daddr oif exists fib daddr oifname {ground} return\n\
         {to_listener}\
         \t}}\n\
         \tchain {IF_ROUTED} {{\n\
         \t\t{question}\n\
         \t\tfib daddr . mark oif missing jump {HAND_OVER}\n\
         \t\tmeta mark set meta mark & {:#x}\n\
         \t}}\n\
         \tchain decide_bundle {{\n\
         \t\tfib daddr type {{ local, broadcast, anycast, multicast }} return\n\
         \t\tmeta l4proto != @{ALIVE} goto unrouted_bundle\n\
         \t\tfib daddr type != unicast goto unrouted_bundle\n\
         \t\tfib daddr oif missing goto unrouted_bundle\n\
         {routed}\
         \t}}\n\
         \tchain unrouted_bundle {{\n\
         {unrouted}\
         \t}}\n",
        !plan.mark.mask(),
    )
}

/// The rules that give a SYN to the transparent listeners on this loopback port, in each family, if there are
/// any, and what follows then.
pub(super) fn to_listener(port: u16, then: &str) -> String {
    [("ipv4", "ip", "127.0.0.1"), ("ipv6", "ip6", "[::1]")]
        .map(|(family, protocol, host)| {
            format!("\t\tmeta nfproto {family} meta l4proto tcp tproxy {protocol} to {host}:{port} {then}\n")
        })
        .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AtLimit, Config, Handshake, MarkField};
    use crate::intercept::ruleset;

    fn text(rule: &str) -> String {
        let text = format!("[legs.a]\ninterface = \"sat0\"\n[bundle]\nport = 8000\n{rule}");
        let config = Config::parse("x", &text).unwrap();
        let interfaces = [config.legs["a"].interface.clone()];
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &crate::types::leg_pair::leg_pairs(1, &[], 7600),
            replaced: &[],
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &config.rules,
            snooped: None,
            bundle: config.bundle_port(),
            protected: &[],
            mark: MarkField::default(),
            tracked: false,
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
    fn a_syn_for_the_node_is_told_from_others_before_it_is_routed() {
        let rules = text("[[rules]]\naction = \"bundle\"\nport = 80\n");
        let (_, decide) = rules.split_once("chain decide_bundle {\n").unwrap();
        let (decide, _) = decide.split_once("\t}\n").unwrap();
        let last = decide.find("tcp dport 80 counter name rule_1 goto bundle\n").unwrap();
        for condition in ["meta l4proto != @alive", "fib daddr type != unicast", "fib daddr oif missing"] {
            let unrouted = decide.find(&format!("{condition} goto unrouted_bundle\n"));
            assert!(unrouted.is_some_and(|place| place < last), "{condition}\n{decide}");
        }
        assert!(
            rules.contains(
                "chain unrouted_bundle {\n\t\ttcp dport 80 counter name rule_1 goto bundle_if_routed\n"
            ),
            "{rules}"
        );
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
        for listener in [
            "ip to 127.0.0.1:8000 meta mark set meta mark & 0x8fffffff | 0x10000000 accept",
            "ip6 to [::1]:8000 meta mark set",
        ] {
            assert!(chain.contains(&format!("tproxy {listener}")), "{chain}");
        }
    }
}
