//! Whether chains of others let packets of split connections come in, and which translate addresses.
//!
//! Rules are read as `nft --json list ruleset` prints them, those of iptables-nft among them. A rule's
//! conditions are known to hold, known not to, or not known. `bentpipe doctor --probe` tries what this only
//! reads.

use std::collections::BTreeMap;
use std::process::Command;

use bentpipe_kernel::host::Check;
use serde_json::Value;

use crate::intercept;

const LOOPBACK: &str = "lo";
/// Chains that jump to each other more deeply than that are refused by the kernel (`NFT_JUMP_STACK_SIZE`).
const DEEPEST: usize = 16;

/// One for each chain that drops what the daemon needs, or one that none does; and what translates addresses.
pub(super) fn checks() -> Vec<Check> {
    match Rules::read() {
        Ok(rules) => rules.inputs().into_iter().chain(rules.translations()).collect(),
        Err(error) => {
            vec![Check::warn(
                "firewall",
                format!("not looked at: {error}"),
                "run it as root, with nft installed",
            )]
        }
    }
}

/// A packet that has to come in.
#[derive(Debug, Clone, Copy)]
struct Packet {
    what: &'static str,
    /// Whether by `lo`.
    by_loopback: bool,
    /// As connection tracking has it.
    state: &'static str,
    accept: &'static str,
}

/// A SYN comes to its listener by `lo`; later packets of its connection by the interfaces.
const NEEDED: [Packet; 2] = [
    Packet {
        what: "SYNs that come to the daemon by lo",
        by_loopback: true,
        state: "new",
        accept: "iifname lo accept",
    },
    Packet {
        what: "packets of established connections",
        by_loopback: false,
        state: "established",
        accept: "ct state established,related accept",
    },
];

/// What becomes of a packet in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Accepted,
    Dropped,
    /// It comes to the chain's end, or returns.
    Through,
}

/// What a rule does with packets for which it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict<'a> {
    Accept,
    Drop,
    Return,
    Jump(&'a str),
    Goto(&'a str),
}

/// The name of a chain: its family, its table, and its own.
type ChainName<'a> = (&'a str, &'a str, &'a str);

#[derive(Debug, Default)]
struct Rules {
    chains: Vec<Value>,
    rules: BTreeMap<(String, String, String), Vec<Value>>,
}

impl Rules {
    fn read() -> Result<Self, String> {
        let output = Command::new("nft").args(["--json", "list", "ruleset"]).env("LC_ALL", "C").output();
        let output = output.map_err(|error| format!("cannot run nft: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Self::parse(&String::from_utf8_lossy(&output.stdout))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let document: Value =
            serde_json::from_str(text).map_err(|error| format!("cannot read what nft says: {error}"))?;
        let mut found = Self::default();
        for object in document["nftables"].as_array().into_iter().flatten() {
            if let Some(chain) = object.get("chain") {
                found.chains.push(chain.clone());
            } else if let Some(rule) = object.get("rule") {
                let key = ["family", "table", "chain"].map(|key| text_of(rule, key).to_owned());
                found.rules.entry(key.into()).or_default().push(rule["expr"].clone());
            }
        }
        found.chains.retain(|chain| !text_of(chain, "table").starts_with(intercept::TABLE));
        Ok(found)
    }

    /// The chains of the hook `input`.
    fn inputs(&self) -> Vec<Check> {
        let base = self.chains.iter().filter(|chain| chain["hook"] == "input");
        let base = base.filter(|chain| ["ip", "ip6", "inet"].contains(&text_of(chain, "family")));
        let found: Vec<Check> =
            base.flat_map(|chain| NEEDED.iter().filter_map(|packet| self.dropped(chain, packet))).collect();
        match found.is_empty() {
            true => vec![Check::pass("firewall", "no chain of the hook input drops packets for the daemon")],
            false => found,
        }
    }

    /// A finding if the chain drops the packet.
    fn dropped(&self, chain: &Value, packet: &Packet) -> Option<Check> {
        let (family, table, chain_name) =
            (text_of(chain, "family"), text_of(chain, "table"), text_of(chain, "name"));
        let mut walk = Walk { rules: self, packet, perhaps_accepted: false };
        let fate = match walk.chain((family, table, chain_name), 0) {
            Fate::Through if chain["policy"] == "drop" => Fate::Dropped,
            fate => fate,
        };
        if fate != Fate::Dropped {
            return None;
        }
        let name = format!("firewall, {family} {table} {chain_name}");
        let fix = format!("nft insert rule {family} {table} {chain_name} {}", packet.accept);
        Some(match walk.perhaps_accepted {
            false => Check::fail(name, format!("the chain drops {}: connections hang", packet.what), fix),
            true => {
                let found =
                    format!("the chain drops {}, unless one of its other rules accepts them", packet.what);
                Check::warn(
                    name,
                    found,
                    format!("{fix}, if bentpipe doctor --probe finds that it drops them"),
                )
            }
        })
    }

    /// For information: translations work as without the daemon.
    fn translations(&self) -> Vec<Check> {
        let has = |names: &[&str]| {
            self.rules.iter().find(|(_, rules)| rules.iter().any(|rule| translates(rule, names)))
        };
        let place = |(family, table, chain): &(String, String, String)| format!("{family} {table} {chain}");
        let source = has(&["masquerade", "snat", "MASQUERADE", "SNAT"]).map(|(key, _)| {
            let found = format!("source addresses are translated in {}: split connections too", place(key));
            Check::pass("NAT", found)
        });
        let destination = has(&["dnat", "redirect", "DNAT", "REDIRECT"]).map(|(key, _)| {
            let found = format!(
                "destinations are translated in {}: such connections pass unsplit, others are split",
                place(key)
            );
            Check::pass("port forwarding", found)
        });
        source.into_iter().chain(destination).collect()
    }
}

/// Whether a rule has one of these statements, or a target of iptables of this name.
fn translates(rule: &Value, names: &[&str]) -> bool {
    rule.as_array().into_iter().flatten().any(|statement| {
        let target = statement.get("xt").map(|xt| text_of(xt, "name"));
        names.iter().any(|name| statement.get(*name).is_some() || target == Some(*name))
    })
}

struct Walk<'a> {
    rules: &'a Rules,
    packet: &'a Packet,
    /// Whether a rule accepts it of which it is not known whether it holds.
    perhaps_accepted: bool,
}

impl Walk<'_> {
    fn chain(&mut self, (family, table, chain): ChainName<'_>, depth: usize) -> Fate {
        let key = (family.to_owned(), table.to_owned(), chain.to_owned());
        let Some(rules) = self.rules.rules.get(&key).filter(|_| depth < DEEPEST) else {
            return Fate::Through;
        };
        for rule in rules {
            let Some((verdict, is_sure)) = self.verdict(rule) else { continue };
            let (fate, ends) = match verdict {
                Verdict::Accept => (Fate::Accepted, true),
                Verdict::Drop => (Fate::Dropped, true),
                Verdict::Return => (Fate::Through, true),
                Verdict::Jump(target) | Verdict::Goto(target) => {
                    let fate = self.chain((family, table, target), depth + 1);
                    (fate, fate != Fate::Through || matches!(verdict, Verdict::Goto(_)))
                }
            };
            if ends && is_sure {
                return fate;
            }
            self.perhaps_accepted |= ends && fate == Fate::Accepted;
        }
        Fate::Through
    }

    /// The rule's verdict, and whether it is known to hold; none where it is known not to.
    fn verdict<'r>(&self, rule: &'r Value) -> Option<(Verdict<'r>, bool)> {
        let (mut verdict, mut is_sure) = (None, true);
        for statement in rule.as_array()? {
            let holds = match statement.get("match") {
                Some(condition) => self.holds(condition),
                None if statement.get("vmap").is_some() => {
                    let (mapped, is_known) = self.mapped(&statement["vmap"])?;
                    verdict = Some(mapped);
                    is_known.then_some(true)
                }
                None if ["xt", "limit", "quota"].iter().any(|key| statement.get(*key).is_some()) => None,
                None => {
                    verdict = verdict.or_else(|| verdict_of(statement));
                    Some(true)
                }
            };
            match holds {
                Some(true) => {}
                Some(false) => return None,
                None => is_sure = false,
            }
        }
        Some((verdict?, is_sure))
    }

    /// Whether a condition holds, where that is known.
    fn holds(&self, condition: &Value) -> Option<bool> {
        let is_in = self.is_among(&condition["left"], &values(&condition["right"]))?;
        match text_of(condition, "op") {
            "==" | "in" => Some(is_in),
            "!=" => Some(!is_in),
            _ => None,
        }
    }

    /// Whether what `left` asks for is one of these values, where that is known.
    fn is_among(&self, left: &Value, values: &[&Value]) -> Option<bool> {
        let has = |text: &str| values.iter().any(|value| value.as_str() == Some(text));
        let meta = left.get("meta").map(|meta| text_of(meta, "key")).unwrap_or_default();
        match meta {
            "iifname" | "iif" if self.packet.by_loopback => Some(has(LOOPBACK)),
            // Whether it is one of the interfaces of connections is not known.
            "iifname" | "iif" if values.len() == 1 && has(LOOPBACK) => Some(false),
            "l4proto" if values.iter().all(|value| value.is_string()) => Some(has("tcp")),
            // Connections are to all ports: one that some of them are accepted for is not enough.
            _ if ["dport", "sport"].contains(&text_of(&left["payload"], "field")) => Some(false),
            _ if left["ct"]["key"] == "state" => Some(has(self.packet.state)),
            _ => None,
        }
    }

    /// The verdict that a map has for the packet; the first that could be if that is not known.
    fn mapped<'r>(&self, map: &'r Value) -> Option<(Verdict<'r>, bool)> {
        let entries = map["data"]["set"].as_array()?;
        for entry in entries {
            let (key, verdict) = (entry.get(0)?, verdict_of(entry.get(1)?));
            match (self.is_among(&map["key"], &[key]), verdict) {
                (Some(true), Some(verdict)) => return Some((verdict, true)),
                (None, Some(verdict)) => return Some((verdict, false)),
                _ => {}
            }
        }
        None
    }
}

fn verdict_of(statement: &Value) -> Option<Verdict<'_>> {
    let has = |key: &str| statement.get(key).is_some();
    let target = |key: &str| statement.get(key).map(|jump| text_of(jump, "target"));
    match () {
        () if has("accept") => Some(Verdict::Accept),
        () if has("drop") || has("reject") => Some(Verdict::Drop),
        () if has("return") => Some(Verdict::Return),
        () => target("jump").map(Verdict::Jump).or_else(|| target("goto").map(Verdict::Goto)),
    }
}

/// One value, a list, or a set.
fn values(right: &Value) -> Vec<&Value> {
    match right.get("set").unwrap_or(right) {
        Value::Array(values) => values.iter().collect(),
        value => vec![value],
    }
}

fn text_of<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str =
        r#"{"chain":{"family":"inet","table":"filter","name":"input","hook":"input","policy":"drop"}}"#;
    const LO: &str = r#"{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"lo"}}"#;
    const STATE: &str =
        r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established","related"]}}"#;
    const PORT: &str =
        r#"{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":22}}"#;

    const CLIENTS: &str = r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},
                               "right":{"prefix":{"addr":"10.0.0.0","len":8}}}}"#;

    fn rule(chain: &str, statements: &[&str]) -> String {
        let statements = statements.join(",");
        format!(r#"{{"rule":{{"family":"inet","table":"filter","chain":"{chain}","expr":[{statements}]}}}}"#)
    }

    fn inputs(objects: &[String]) -> Vec<Check> {
        let text = format!(r#"{{"nftables":[{{"metainfo":{{}}}},{BASE},{}]}}"#, objects.join(","));
        Rules::parse(&text).unwrap().inputs()
    }

    #[test]
    fn a_policy_that_drops_is_lacking_with_the_rules_that_mend_it() {
        let found = inputs(&[rule("input", &[PORT, r#"{"accept":null}"#])]);
        assert!(
            found.iter().all(|check| !check.ok && check.name == "firewall, inet filter input"),
            "{found:?}"
        );
        let fixes: Vec<&str> = found.iter().filter_map(|check| check.fix.as_deref()).collect();
        assert_eq!(
            fixes,
            [
                "nft insert rule inet filter input iifname lo accept",
                "nft insert rule inet filter input ct state established,related accept"
            ]
        );
    }

    #[test]
    fn a_stateful_firewall_is_no_finding() {
        let accept = r#"{"accept":null}"#;
        let own = [rule("input", &[LO, r#"{"counter":{}}"#, accept]), rule("input", &[STATE, accept])];
        let jump = rule("input", &[r#"{"jump":{"target":"before"}}"#]);
        let before = [jump.clone(), rule("before", &[LO, accept]), rule("before", &[STATE, accept])];
        let map = r#"{"vmap":{"key":{"ct":{"key":"state"}},"data":{"set":[["invalid",{"drop":null}],
                     ["established",{"accept":null}]]}}}"#;
        let mapped = [rule("input", &[map]), rule("input", &[LO, accept])];
        for rules in [&own[..], &before, &mapped] {
            let found = inputs(rules);
            assert!(found.len() == 1 && found[0].ok && !found[0].warning, "{found:?}");
        }
    }

    #[test]
    fn what_cannot_be_known_is_a_warning() {
        let found = inputs(&[
            rule("input", &[CLIENTS, r#"{"accept":null}"#]),
            rule("input", &[LO, r#"{"accept":null}"#]),
        ]);
        assert!(found.len() == 1 && found[0].warning && found[0].found.contains("established"), "{found:?}");
        let text = found[0].fix.as_deref().unwrap();
        assert!(text.contains("--probe"), "{text}");
    }

    #[test]
    fn translations_are_told_of() {
        let text = format!(
            r#"{{"nftables":[{},{}]}}"#,
            rule("postrouting", &[r#"{"masquerade":null}"#]),
            rule("prerouting", &[r#"{"dnat":{"addr":"10.0.0.2"}}"#])
        );
        let names: Vec<String> =
            Rules::parse(&text).unwrap().translations().into_iter().map(|check| check.name).collect();
        assert_eq!(names, ["NAT", "port forwarding"]);
    }
}
