//! `[[rules]]`: which connections are split; the first rule that matches decides.

use std::collections::BTreeSet;

use bentpipe_config::{List, Problem};
use bentpipe_kernel::Weight;
use serde::Deserialize;

use super::Network;
use super::change::{Effect, Shown};
use super::dscp::Dscp;
use super::ports::Ports;
use super::protocol::Protocol;
use super::{Handshake, Interface, MAX_WEIGHTS};

/// The port of HTTP/3, and so of nearly all QUIC (RFC 9114 §3.1).
const QUIC: u16 = 443;
/// The kernel keeps 128 bytes of comment with a rule (libnftnl, `NFTNL_UDATA_COMMENT_MAXLEN`), a final zero
/// among them.
const LONGEST_COMMENT: usize = 120;

/// One of `[[rules]]`: conditions that must all hold, and what is done with the connections for which they
/// do. A condition that is left out holds always, one that lists several values holds for each of them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Written")]
pub struct Rule {
    /// The action.
    pub action: Action,
    /// Networks of the client, which sends the SYN or the datagram.
    pub client: Option<List<Network>>,
    /// Networks of the server, which it is sent to.
    pub server: Option<List<Network>>,
    /// Interfaces that it comes in by.
    pub client_interface: Option<List<Interface>>,
    /// Interfaces that lead to the server.
    pub server_interface: Option<List<Interface>>,
    /// Protocols, of a rule that protects.
    pub protocol: Option<List<Protocol>>,
    /// The server's ports.
    pub port: Option<List<Ports>>,
    /// Its code points.
    pub dscp: Option<List<Dscp>>,
    /// A comment, which stands in the kernel's rules too.
    pub comment: Option<Comment>,
}

/// What a rule does with the connections or datagrams that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// TCP connections are split.
    Split {
        /// When the client's handshake completes; as `[proxy]` says where it is left out.
        handshake: Option<Handshake>,
        /// Their weight among the connections that share a leg.
        weight: Weight,
    },
    /// TCP connections are not split; the gateway looks after their segments on the satellite leg.
    Snoop,
    /// TCP connections are handed to the bundle node of this host, if it listens, and otherwise forwarded.
    Bundle,
    /// Packets of any protocol cross the satellite leg in coded frames, if the leg has `protect`; connections
    /// are not split.
    Protect,
    /// Connections and datagrams are forwarded as if there were no proxy.
    Pass,
    /// UDP datagrams are answered with "port unreachable", so that their sender turns to TCP.
    Reject,
}

/// One line of text, at most 120 bytes, without quotation marks and backslashes, so that it can stand in a
/// rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Comment(String);

/// A rule as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    action: ActionName,
    client: Option<List<Network>>,
    server: Option<List<Network>>,
    client_interface: Option<List<Interface>>,
    server_interface: Option<List<Interface>>,
    protocol: Option<List<Protocol>>,
    port: Option<List<Ports>>,
    dscp: Option<List<Dscp>>,
    handshake: Option<Handshake>,
    weight: Option<Weight>,
    comment: Option<Comment>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ActionName {
    Split,
    Snoop,
    Bundle,
    Protect,
    Pass,
    Reject,
}

impl Rule {
    /// When a change of any rule takes effect.
    pub(crate) const EFFECT: Effect = Effect::NewConnections;

    /// Everything that the rule says, on one line.
    pub(crate) fn summary(&self) -> String {
        // Every key is named, so that the compiler asks for one that is new.
        let Self {
            action,
            client,
            server,
            client_interface,
            server_interface,
            protocol,
            port,
            dscp,
            comment,
        } = self;
        let (handshake, weight) = match *action {
            Action::Split { handshake, weight } => {
                (handshake, Some(weight).filter(|weight| *weight != Weight::default()))
            }
            Action::Snoop | Action::Bundle | Action::Protect | Action::Pass | Action::Reject => (None, None),
        };
        let values = [
            ("handshake", handshake.shown()),
            ("weight", weight.shown()),
            ("client", client.shown()),
            ("server", server.shown()),
            ("client_interface", client_interface.shown()),
            ("server_interface", server_interface.shown()),
            ("protocol", protocol.shown()),
            ("port", port.shown()),
            ("dscp", dscp.shown()),
            ("comment", comment.shown()),
        ];
        let written = values.into_iter().filter_map(|(key, value)| Some(format!("{key} {}", value?)));
        [action.name().to_owned()].into_iter().chain(written).collect::<Vec<_>>().join(", ")
    }

    /// Whether the rule's networks leave room for packets of IPv4, or of IPv6.
    pub fn concerns_family(&self, ipv4: bool) -> bool {
        let networks = [&self.client, &self.server].into_iter().flatten();
        networks.into_iter().all(|list| list.iter().any(|network| network.is_ipv4() == ipv4))
    }

    /// Whether it can match packets of this protocol, by its number in IPv4.
    pub(crate) fn concerns(&self, protocol: u8) -> bool {
        let is_named = |list: &List<Protocol>| list.iter().any(|named| named.numbers()[0] == protocol);
        self.protocol.as_ref().is_none_or(is_named)
    }

    /// Whether it can match a connection that comes from one of `from` and whose server is reached by one of
    /// `to`.
    pub(super) fn may_concern(
        &self,
        from: impl Fn(&Interface) -> bool,
        to: impl Fn(&Interface) -> bool,
    ) -> bool {
        let any = |list: &Option<List<Interface>>, fits: &dyn Fn(&Interface) -> bool| {
            list.as_ref().is_none_or(|list| list.iter().any(fits))
        };
        any(&self.client_interface, &from) && any(&self.server_interface, &to)
    }

    /// Whether it matches whatever comes.
    fn is_unconditional(&self) -> bool {
        let Self {
            action: _,
            client,
            server,
            client_interface,
            server_interface,
            protocol,
            port,
            dscp,
            comment: _,
        } = self;
        client.is_none()
            && server.is_none()
            && client_interface.is_none()
            && server_interface.is_none()
            && protocol.is_none()
            && port.is_none()
            && dscp.is_none()
    }
}

impl TryFrom<Written> for Rule {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let action = written.action()?;
        let port = match action {
            Action::Reject => written.port.or_else(|| Some(Ports::one(QUIC).into())),
            Action::Split { .. } | Action::Snoop | Action::Bundle | Action::Protect | Action::Pass => {
                written.port
            }
        };
        let Written { client, server, client_interface, server_interface, protocol, dscp, comment, .. } =
            written;
        check_protocol(action, protocol.as_ref(), port.is_some())?;
        let rule = Self {
            action,
            client,
            server,
            client_interface,
            server_interface,
            protocol,
            port,
            dscp,
            comment,
        };
        if rule.concerns_family(true) || rule.concerns_family(false) {
            Ok(rule)
        } else {
            Err("client and server have no address family in common, so that this rule can never match; write \
                 networks of the same family, or two rules"
                .into())
        }
    }
}

impl Action {
    /// Its name in a configuration.
    const fn name(&self) -> &'static str {
        match self {
            Self::Split { .. } => "split",
            Self::Snoop => "snoop",
            Self::Bundle => "bundle",
            Self::Protect => "protect",
            Self::Pass => "pass",
            Self::Reject => "reject",
        }
    }
}

impl Written {
    fn action(&self) -> Result<Action, String> {
        let only_split = match (self.handshake, self.weight) {
            (Some(_), _) => Some("handshake"),
            (None, Some(_)) => Some("weight"),
            (None, None) => None,
        };
        match (self.action, only_split) {
            (ActionName::Split, _) => {
                Ok(Action::Split { handshake: self.handshake, weight: self.weight.unwrap_or_default() })
            }
            (ActionName::Snoop, None) => Ok(Action::Snoop),
            (ActionName::Bundle, None) => Ok(Action::Bundle),
            (ActionName::Protect, None) => Ok(Action::Protect),
            (ActionName::Pass, None) => Ok(Action::Pass),
            (ActionName::Reject, None) => Ok(Action::Reject),
            (_, Some(key)) => {
                Err(format!("{key} goes with action = \"split\" only; leave it out of this rule"))
            }
        }
    }
}

impl Comment {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Comment {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let unfit = |c: char| c.is_control() || c == '"' || c == '\\';
        if text.is_empty() || text.len() > LONGEST_COMMENT || text.contains(unfit) {
            return Err(format!(
                "this comment cannot stand in the kernel's rules; write one line of 1 to {LONGEST_COMMENT} bytes \
                 without quotation marks and backslashes"
            ));
        }
        Ok(Self(text))
    }
}

/// A protocol is named by rules that protect only, and ports have two of them.
fn check_protocol(action: Action, protocol: Option<&List<Protocol>>, has_port: bool) -> Result<(), String> {
    let Some(protocols) = protocol else { return Ok(()) };
    if action != Action::Protect {
        return Err("protocol goes with action = \"protect\" only; leave it out of this rule".into());
    }
    match protocols.iter().find(|protocol| has_port && !protocol.has_ports()) {
        Some(protocol) => Err(format!(
            "{protocol} has no ports, so that this rule can never match; leave out port, or write protocol = \"udp\""
        )),
        None => Ok(()),
    }
}

/// Checks that each rule can match, and that there are not too many weights.
pub(super) fn check(rules: &[Rule]) -> Result<(), Problem> {
    check_order(rules)?;
    let count = weights(rules).len();
    if count > MAX_WEIGHTS {
        return Err(Problem::new(format!(
            "{count} different weights besides 1; each has listeners of its own, so write at most {MAX_WEIGHTS}"
        )));
    }
    Ok(())
}

/// The weights besides 1 that rules give to connections, in ascending order.
pub(super) fn weights(rules: &[Rule]) -> BTreeSet<Weight> {
    let given = rules.iter().filter_map(|rule| match rule.action {
        Action::Split { weight, .. } => Some(weight),
        Action::Snoop | Action::Bundle | Action::Protect | Action::Pass | Action::Reject => None,
    });
    given.filter(|weight| *weight != Weight::default()).collect()
}

/// A rule can never match if one before it matches everything.
fn check_order(rules: &[Rule]) -> Result<(), Problem> {
    // What is protected may be of any protocol: only a rule for all of them leaves nothing.
    let (mut tcp, mut udp, mut all) = (None, None, None);
    let last_reject = rules.iter().rposition(|rule| rule.action == Action::Reject);
    for (index, rule) in rules.iter().enumerate() {
        // UDP is filtered only up to the last rule that rejects.
        let for_udp = Some(index) < last_reject;
        let decided_by = match rule.action {
            Action::Split { .. } | Action::Snoop | Action::Bundle => tcp,
            Action::Protect => all,
            Action::Reject => udp,
            Action::Pass if for_udp => tcp.and(udp),
            Action::Pass => tcp,
        };
        if let Some(earlier) = decided_by {
            let (earlier, later) = (earlier + 1, index + 1);
            let message = format!(
                "number {later} can never match, because number {earlier} has no conditions and decides everything; write \
                 number {later} before it, or leave it out"
            );
            return Err(Problem::new(message).inside(index));
        }
        if rule.is_unconditional() {
            tcp = tcp.or(Some(index));
            let decides_all = matches!(rule.action, Action::Pass | Action::Protect);
            udp = udp.or(decides_all.then_some(index));
            all = all.or(decides_all.then_some(index));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    /// With it a rule may say `snoop`, though the leg has no rate.
    const SNOOP: &str = "[snoop]\ncache = \"1MB\"\n";

    fn parse(rules: &str) -> Result<Vec<Rule>, String> {
        let text = format!("[legs.a]\ninterface = \"sat0\"\n{rules}");
        Config::parse("x", &text).map(|config| config.rules).map_err(|error| error.to_string())
    }

    fn error(rules: &str) -> String {
        let error = parse(rules).unwrap_err();
        assert!(!error.contains('\n'), "{error}");
        error
    }

    #[test]
    fn the_documentations_examples_are_read() {
        let page = include_str!("../../../../docs/policy.md");
        let examples: Vec<&str> =
            page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(examples.len(), 6);
        for example in examples {
            parse(&(SNOOP.to_owned() + example)).unwrap_or_else(|error| panic!("{error}\n{example}"));
        }
        let file = include_str!("../../../../dist/bentpipe.toml");
        let (_, rules) = file.split_once("docs/policy.md says more").unwrap();
        let code = |line: &&str| line.contains(" = ") || line.contains("[[");
        let lines: Vec<&str> =
            rules.lines().filter_map(|line| line.strip_prefix("# ")).filter(code).collect();
        let needed = format!("[legs.a.protect]\npeer = \"192.0.2.2\"\ninsecure = true\n{SNOOP}");
        assert_eq!(parse(&(needed + &lines.join("\n"))).map(|rules| rules.len()), Ok(7));
        assert_eq!(Config::parse("x", file).unwrap().rules, []);
    }

    #[test]
    fn a_rule_needs_an_action_only() {
        let rules = parse("[[rules]]\naction = \"pass\"").unwrap();
        assert!(rules[0].is_unconditional());
        let error = error("[[rules]]\nport = 22\n");
        assert!(error.contains("x:3: rules[1]: action is missing"), "{error}");
    }

    #[test]
    fn to_reject_means_the_port_of_quic_unless_it_says_another() {
        let port = |text| parse(text).unwrap()[0].port.clone();
        assert_eq!(port("[[rules]]\naction = \"reject\""), Some(Ports::one(443).into()));
        assert_eq!(port("[[rules]]\naction = \"reject\"\nport = 8443"), Some(Ports::one(8443).into()));
    }

    #[test]
    fn a_value_may_stand_alone_or_in_a_list_that_is_not_empty() {
        for (key, value) in
            [("client", "\"::1\""), ("port", "22"), ("dscp", "\"ef\""), ("server_interface", "\"a\"")]
        {
            let rule = |value: &str| parse(&format!("[[rules]]\naction = \"pass\"\n{key} = {value}"));
            assert_eq!(rule(value), rule(&format!("[{value}]")));
            let error = rule("[]").unwrap_err();
            assert!(error.contains(&format!("x:5: rules[1].{key}: an empty list")), "{error}");
            let error = rule("true").unwrap_err();
            assert!(error.contains(&format!("x:5: rules[1].{key}: true is not a text")), "{error}");
        }
    }

    #[test]
    fn a_handshake_without_a_split_is_refused() {
        for action in ["snoop", "bundle", "pass", "reject"] {
            let error = error(&format!("[[rules]]\naction = \"{action}\"\nhandshake = \"early\""));
            assert!(
                error.contains("x:3: rules[1]: ") && error.contains("handshake goes with action = \"split\""),
                "{error}"
            );
        }
    }

    #[test]
    fn a_weight_is_a_whole_number_of_a_rule_that_splits() {
        let weight = |text: &str| parse(&format!("[[rules]]\naction = \"split\"\n{text}")).unwrap()[0].action;
        let split = |number| Action::Split { handshake: None, weight: Weight::try_from(number).unwrap() };
        assert_eq!(
            (weight(""), weight("weight = 1"), weight("weight = 100")),
            (split(1), split(1), split(100))
        );
        for written in ["0", "101", "-4", "70000"] {
            let error = error(&format!("[[rules]]\naction = \"split\"\nweight = {written}"));
            let complaint = format!("x:5: rules[1].weight: {written} is not a weight; write a whole number");
            assert!(error.contains(&complaint), "{error}");
        }
        for written in ["4.5", "\"4\"", "[4]"] {
            let error = error(&format!("[[rules]]\naction = \"split\"\nweight = {written}"));
            assert!(
                error.contains("x:5: rules[1].weight: ") && error.contains("is not a whole number"),
                "{error}"
            );
        }
        for action in ["snoop", "bundle", "pass", "reject"] {
            let error = error(&format!("[[rules]]\naction = \"{action}\"\nweight = 1"));
            assert!(
                error.contains("x:3: rules[1]: ") && error.contains("weight goes with action = \"split\""),
                "{error}"
            );
        }
    }

    #[test]
    fn eight_weights_besides_one_are_served_and_nine_are_refused() {
        let rules = |weights: &[i64]| {
            let rule = |weight| {
                format!("[[rules]]\naction = \"split\"\nport = {}\nweight = {weight}\n", weight + 1000)
            };
            parse(&weights.iter().map(rule).collect::<String>())
        };
        assert!(rules(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 2, 1]).is_ok());
        let error = rules(&[2, 3, 4, 5, 6, 7, 8, 9, 100]).unwrap_err();
        assert!(error.contains("rules: 9 different weights besides 1;"), "{error}");
    }

    #[test]
    fn networks_of_different_families_are_refused() {
        let rule = "[[rules]]\naction = \"pass\"\nclient = \"10.0.0.0/8\"\n";
        let error = error(&format!("{rule}server = [\"::1\", \"2001:db8::/32\"]"));
        assert!(error.contains("x:3: rules[1]: ") && error.contains("can never match"), "{error}");
        assert!(parse(&format!("{rule}server = [\"::1\", \"192.0.2.1\"]")).is_ok());
    }

    #[test]
    fn a_rule_behind_one_that_decides_everything_is_refused() {
        let rules = |actions: &[&str]| {
            parse(&actions.iter().map(|action| format!("[[rules]]\naction = {action}\n")).collect::<String>())
        };
        const SPLIT: &str = "\"split\"";
        const PASS: &str = "\"pass\"";
        const REJECT: &str = "\"reject\"";
        const BUNDLE: &str = "\"bundle\"";
        const PASS_SSH: &str = "\"pass\"\nport = 22";
        for never in [
            &[SPLIT, PASS_SSH][..],
            &[PASS, REJECT],
            &[PASS_SSH, PASS, SPLIT],
            &[SPLIT, REJECT, PASS],
            &[BUNDLE, SPLIT],
            &[PASS, BUNDLE],
        ] {
            let number = never.len();
            let error = rules(never).unwrap_err();
            assert!(error.contains(&format!("number {number} can never match")), "{error}");
        }
        // To split is nothing to UDP, so that a rule behind it can still be one for datagrams.
        for well in [
            &[PASS_SSH, SPLIT][..],
            &[SPLIT, REJECT],
            &[SPLIT, PASS_SSH, REJECT],
            &[REJECT, PASS],
            &[BUNDLE, REJECT],
        ] {
            assert!(rules(well).is_ok(), "{well:?}");
        }
    }

    #[test]
    fn a_comment_that_could_end_its_rule_is_refused() {
        for comment in ["'\"'", "'a\\b'", "\"a\\nb\"", "''", "\"\\u0000\""] {
            let error = error(&format!("[[rules]]\naction = \"pass\"\ncomment = {comment}"));
            assert!(error.contains("rules[1].comment: this comment cannot stand"), "{error}");
        }
        let long = "ä".repeat(LONGEST_COMMENT / 2);
        assert!(parse(&format!("[[rules]]\naction = \"pass\"\ncomment = \"{long}\"")).is_ok());
        assert!(parse(&format!("[[rules]]\naction = \"pass\"\ncomment = \"{long}a\"")).is_err());
    }
}
