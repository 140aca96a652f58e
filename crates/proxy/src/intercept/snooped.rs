//! The rules by which packets of snooped flows take their way through the daemon.
//!
//! A connection is decided at its SYN, which goes on by itself: a rule that says `snoop` enters its ends in
//! the set of those that are *offered*. If the SYN leaves this host as it came, nothing
//! here translates its addresses or drops it, and its ends are entered in the set of *snooped* flows. What
//! this host translates cannot be diverted: it would be translated on the way into the device, and again on
//! the way out.
//!
//! An element is the end on the ground and then the end beyond the satellite, and so is one for both
//! directions: a flow has either all of its packets looked after or none. What carries data renews it.

use std::time::Duration;

use super::ruleset::{ALIVE, Plan};
use super::{FROM_LINK, TO_LINK, TunDivert};
use crate::config::MarkField;

/// The chain that a rule of the operator's sends a connection to that is to be snooped.
pub(super) const OFFER: &str = "snoop";

/// From the SYN's arrival to its departure; the elements of what this host drops or translates expire then.
const OFFERED_FOR: Duration = Duration::from_secs(2);
/// How many may be on their way through this host at a time.
const OFFERS: usize = 65536;
/// How long a flow without data is remembered, and one that has begun to end.
const IDLE: Duration = Duration::from_secs(600);
const ENDING: Duration = Duration::from_secs(60);

/// A family's names, and the longest packet that may be headers alone: IP without options and TCP with all
/// (RFC 9293 §3.1).
struct Family {
    number: u8,
    protocol: &'static str,
    address: &'static str,
    headers: usize,
}

const FAMILIES: [Family; 2] = [
    Family { number: 4, protocol: "ip", address: "ipv4_addr", headers: 20 + 60 },
    Family { number: 6, protocol: "ip6", address: "ipv6_addr", headers: 40 + 60 },
];

/// Packets that the daemon has written back pass.
pub(super) fn given_back(plan: &Plan<'_>) -> String {
    let lines = [TO_LINK, FROM_LINK].map(|tun_divert| {
        let device = tun_divert.device;
        format!("\t\tiifname \"{device}\" return\n")
    });
    if plan.snooped.is_some() { lines.concat() } else { String::new() }
}

/// One lookup for each packet of TCP that belongs to no socket here. Nothing where no rule says `snoop`.
pub(super) fn taken(plan: &Plan<'_>) -> String {
    if plan.snooped.is_none() {
        return String::new();
    }
    let satellites = satellites(plan);
    let lines = FAMILIES.iter().map(|family| {
        let Family { number, .. } = family;
        let (up, down) = (family.key(true), family.key(false));
        format!(
            "\t\tiifname != {satellites} {up} @snooped{number} goto to_link{number}\n\
             \t\tiifname {satellites} {down} @snooped{number} goto from_link{number}\n"
        )
    });
    lines.collect()
}

/// Sets and chains. Nothing where no rule says `snoop`.
pub(super) fn declarations(plan: &Plan<'_>) -> String {
    let Some(flows) = plan.snooped else { return String::new() };
    let of_families = FAMILIES.iter().map(|family| {
        let to_link = family.tun_divert("to_link", TO_LINK, plan.mark, true);
        let from_link = family.tun_divert("from_link", FROM_LINK, plan.mark, false);
        format!("{}{to_link}{from_link}", family.sets(flows))
    });
    format!("{}{}{}", of_families.collect::<String>(), offer(plan), departures())
}

/// Only what crosses exactly one satellite leg has an end on the ground.
fn offer(plan: &Plan<'_>) -> String {
    let satellites = satellites(plan);
    let ground = format!("!= {satellites}");
    let lines = |up: bool| -> String {
        let lines = FAMILIES.iter().map(|family| {
            format!(
                "\t\tupdate @offered{} {{ {} timeout {} }}\n",
                family.number,
                family.key(up),
                seconds(OFFERED_FOR)
            )
        });
        lines.collect()
    };
    format!(
        "\tchain {OFFER} {{\n\
         \t\tiifname {ground} oifname {satellites} goto offer_up\n\
         \t\tiifname {satellites} oifname {ground} goto offer_down\n\
         \t}}\n\
         \tchain offer_up {{\n{}\t\taccept\n\t}}\n\
         \tchain offer_down {{\n{}\t\taccept\n\t}}\n",
        lines(true),
        lines(false)
    )
}

/// Behind source translation (`srcnat`, 100). Each direction's element is there only under its own order of
/// ends.
fn departures() -> String {
    let mut agreed = String::new();
    for family in &FAMILIES {
        for up in [true, false] {
            let (number, key, ending) = (family.number, family.key(up), seconds(ENDING));
            agreed +=
                &format!("\t\t{key} @offered{number} update @snooped{number} {{ {key} timeout {ending} }}\n");
        }
    }
    format!(
        "\tchain departures {{\n\
         \t\ttype filter hook postrouting priority 110; policy accept;\n\
         \t\ttcp flags & (fin | syn | rst | ack) == syn jump agreed\n\
         \t}}\n\
         \tchain agreed {{\n{agreed}\t}}\n"
    )
}

impl Family {
    /// The ends of a flow, that on the ground first, as they stand in a packet to the satellite or from it.
    fn key(&self, up: bool) -> String {
        let protocol = self.protocol;
        if up {
            format!("{protocol} saddr . tcp sport . {protocol} daddr . tcp dport")
        } else {
            format!("{protocol} daddr . tcp dport . {protocol} saddr . tcp sport")
        }
    }

    fn sets(&self, flows: usize) -> String {
        let Self { number, address, .. } = self;
        let set = |name: &str, size: usize| {
            format!(
                "\tset {name}{number} {{\n\
                 \t\ttype {address} . inet_service . {address} . inet_service; flags dynamic, timeout;\n\
                 \t\tsize {size};\n\t}}\n"
            )
        };
        set("offered", OFFERS) + &set("snooped", flows)
    }

    /// Without a sign of life from the daemon packets go straight on.
    fn tun_divert(&self, name: &str, tun_divert: TunDivert, mark: MarkField, up: bool) -> String {
        let Self { number, headers, .. } = self;
        let key = self.key(up);
        let (diverted, idle, ending) = (mark.set(tun_divert.mark), seconds(IDLE), seconds(ENDING));
        format!(
            "\tchain {name}{number} {{\n\
             \t\tmeta l4proto != @{ALIVE} return\n\
             \t\ttcp flags & (fin | rst) != 0 update @snooped{number} {{ {key} timeout {ending} }}\n\
             \t\ttcp flags & (fin | rst) == 0 meta length > {headers} update @snooped{number} {{ {key} timeout {idle} }}\n\
             \t\t{diverted} accept\n\
             \t}}\n"
        )
    }
}

fn satellites(plan: &Plan<'_>) -> String {
    let names: Vec<String> = plan.interfaces.iter().map(|name| format!("\"{name}\"")).collect();
    match &names[..] {
        [only] => only.clone(),
        several => format!("{{ {} }}", several.join(", ")),
    }
}

fn seconds(span: Duration) -> String {
    format!("{}s", span.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AtLimit, Handshake, Interface};
    use crate::intercept::ruleset;

    fn text(interfaces: &[&str], snooped: Option<usize>) -> String {
        let interfaces: Vec<Interface> =
            interfaces.iter().map(|name| Interface::try_from((*name).to_owned()).unwrap()).collect();
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &crate::types::leg_pair::leg_pairs(interfaces.len(), &[], 7600),
            replaced: &[],
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &[],
            snooped,
            bundle: None,
            protected: &[],
            mark: MarkField::default(),
            tracked: false,
        };
        ruleset(&plan)
    }

    #[test]
    fn without_a_rule_that_snoops_there_is_nothing_of_it() {
        let rules = text(&["sat0"], None);
        for word in ["snoop", "offer", "to_link", "bentpipe2", "postrouting"] {
            assert!(!rules.contains(word), "{word}\n{rules}");
        }
    }

    #[test]
    fn a_packet_is_looked_up_once_under_the_end_on_the_ground() {
        let rules = text(&["sat0"], Some(9));
        let (_, chain) = rules.split_once("chain prerouting").unwrap();
        let (chain, _) = chain.split_once("\t}\n").unwrap();
        for line in [
            "iifname != \"sat0\" ip saddr . tcp sport . ip daddr . tcp dport @snooped4 goto to_link4",
            "iifname \"sat0\" ip6 daddr . tcp dport . ip6 saddr . tcp sport @snooped6 goto from_link6",
        ] {
            assert!(chain.contains(line), "{line}\n{chain}");
        }
        assert_eq!(chain.matches("@snooped4").count(), 2);
    }

    #[test]
    fn packets_returned_by_the_daemon_are_not_diverted_again() {
        let rules = text(&["sat0"], Some(9));
        let taken = rules.find("@snooped4 goto").unwrap();
        for device in ["bentpipe2", "bentpipe3"] {
            assert!(rules.find(&format!("iifname \"{device}\" return")).unwrap() < taken);
        }
    }

    #[test]
    fn every_way_into_the_daemon_asks_for_a_sign_of_life_first() {
        let rules = text(&["sat0", "sat1"], Some(9));
        for chain in ["to_link4", "to_link6", "from_link4", "from_link6"] {
            let guarded_chain = format!("chain {chain} {{\n\t\tmeta l4proto != @alive return\n");
            assert!(rules.contains(&guarded_chain), "{chain}\n{rules}");
        }
    }

    #[test]
    fn the_sets_are_bounded() {
        let rules = text(&["sat0"], Some(1234));
        for (set, size) in
            [("snooped4", 1234), ("snooped6", 1234), ("offered4", OFFERS), ("offered6", OFFERS)]
        {
            let (_, declared) = rules.split_once(&format!("set {set} {{")).unwrap();
            let (declared, _) = declared.split_once('}').unwrap();
            assert!(declared.contains(&format!("size {size};")), "{declared}");
        }
    }
}
