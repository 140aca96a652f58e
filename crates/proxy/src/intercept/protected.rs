//! The rules by which packets are marked that cross a leg in frames.
//!
//! Each forwarded packet that leaves by a protected leg is compared with the operator's rules, in their order,
//! in both directions: as one that a client sends, and as a server's answer. So nothing has to be remembered
//! of it, and what crosses the leg is protected from the first packet that follows a reload. The marked packet
//! is taken behind all rules, at the interface (`kernel::divert`), as it is after the translation of
//! addresses.

use super::policy;
use super::ruleset::Plan;
use crate::config::Mark;

/// The chain. Nothing where no leg is protected.
pub(super) fn declarations(plan: &Plan<'_>, priority: i32) -> String {
    if plan.protected.is_empty() {
        return String::new();
    }
    let legs: Vec<String> = plan.protected.iter().map(|interface| format!("\"{interface}\"")).collect();
    let rules = policy::protected(plan.rules, &plan.mark.set(Mark::ToLink));
    format!(
        "\tchain protect {{\n\
         \t\ttype filter hook forward priority {priority}; policy accept;\n\
         \t\toifname {{ {} }} goto protected\n\
         \t}}\n\
         \tchain protected {{\n{rules}\t}}\n",
        legs.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use crate::config::{AtLimit, Config, Handshake, MarkField};

    use super::super::ruleset::ruleset;
    use super::*;

    #[test]
    fn packets_of_both_directions_are_marked_where_they_leave_by_a_protected_leg() {
        let text = "[legs.a]\ninterface = \"sat0\"\n[legs.a.protect]\npeer = \"192.0.2.2\"\ninsecure = true\n\
                    [[rules]]\naction = \"pass\"\nport = 22\n\
                    [[rules]]\naction = \"protect\"\nprotocol = \"udp\"\nport = 443\nclient_interface = \"lan0\"\n";
        let config = Config::parse("x", text).unwrap();
        let interfaces = config.interfaces();
        let protected = config.protected_interfaces();
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &[],
            replaced: &[],
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &config.rules,
            snooped: None,
            bundle: None,
            protected: &protected,
            mark: MarkField::default(),
            tracked: false,
        };
        let rules = ruleset(&plan);
        for line in [
            "oifname { \"sat0\" } goto protected\n",
            "meta l4proto { 6, 17 } th dport 22 return\n\t\tmeta l4proto { 6, 17 } th sport 22 return\n",
            "meta l4proto 17 th dport 443 iifname \"lan0\" counter name rule_2 meta mark set meta mark & 0x8fffffff | 0x50000000 return\n",
            "meta l4proto 17 th sport 443 oifname \"lan0\" counter name rule_2",
        ] {
            assert!(rules.contains(line), "{line}\n{rules}");
        }
        let unprotected = ruleset(&Plan { protected: &[], ..plan });
        assert!(!unprotected.contains("chain protect"), "{unprotected}");
    }
}
