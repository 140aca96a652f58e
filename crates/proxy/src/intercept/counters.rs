//! What the rules count: new connections by verdict and by rule, and what is forwarded over each satellite
//! leg.
//!
//! ```text
//! named counters of the rule set ──once a second, and before rules are replaced──► PolicyCounters ──► observers
//! ```
//!
//! The kernel counts from zero where rules are loaded anew. So the totals are kept here, and only what has
//! come since the last reading is added to them. A successor continues with them and with the same rules.
//!
//! A connection is counted at its SYN, where it crosses a satellite leg, and a SYN that is repeated is
//! counted again. What is forwarded is counted behind all other chains of the hook `forward`, so it contains
//! neither what somebody has dropped there, nor what this host sends and receives itself: both halves of
//! split connections, and the bundle node's sessions. Flows that another program has offloaded (flowtables)
//! pass nobody's chains and are not counted.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bentpipe_kernel::nftables::{Count, NfTables};
use serde::{Deserialize, Serialize};

use super::ruleset::Plan;
use super::{FROM_LINK, TABLE, TO_LINK, policy};
use crate::config::{Action, Rule};

/// The least time over which rates are computed.
const LEAST: Duration = Duration::from_millis(700);

/// What becomes of a new connection, or of a datagram that a rule rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Given to the daemon, to be split.
    Split,
    /// Forwarded by a rule that says `pass`.
    Pass,
    /// Forwarded, and looked after by the Snoop agent.
    Snoop,
    /// For the bundle node.
    Bundle,
    /// Packets that crossed a leg in frames, or would have with a living peer.
    Protect,
    /// A datagram that was answered with "port unreachable".
    Reject,
    /// A limit of all connections: their number, connections that wait for servers, memory, descriptors.
    Limit,
    /// The client has as many connections as it may have, or more than others near a limit.
    ClientLimit,
    /// Too many new connections per second.
    Rate,
    /// Too many new connections per second of one client.
    ClientRate,
    /// The daemon drains, its bypass is on, or it did not respond.
    NotReady,
    /// The daemon had the SYN and let the connection pass, or the first SYN had passed.
    Declined,
    /// This host translates the destination.
    Translated,
    /// A fragment, or IPv6 with extension headers.
    Unreadable,
    /// The client has a link-local address.
    LinkLocal,
    /// Between two ports of a bridge.
    Bridged,
    /// A rule says `bundle`, and the node does not listen.
    NodeAbsent,
}

/// What is forwarded, as counters tell it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Tcp,
    Udp,
    Other,
    Snooped,
}

/// The totals, and what the kernel's counters said last.
#[derive(Debug, Default)]
pub(crate) struct PolicyCounters {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    totals: PolicyTotals,
    /// When rates were last computed, and what was counted by then.
    rated: Option<(Instant, Rated)>,
    rates: Rates,
}

/// What rates are computed of: bytes of each interface, into the leg and from it, and connections that could
/// have been split.
#[derive(Debug, Clone, Default)]
struct Rated {
    forwarded: BTreeMap<String, [u64; 2]>,
    connections: u64,
}

/// Rates over the last second or so.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Rates {
    /// IP bytes of each interface, into the leg and from it, bit/s.
    pub(crate) forwarded_bps: BTreeMap<String, [f64; 2]>,
    /// New connections that could have been split, per second.
    pub(crate) connections: f64,
}

/// Everything that was counted since the start, upgrades included.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PolicyTotals {
    /// Connections, or rejected datagrams, by the verdict's name.
    pub(crate) verdicts: BTreeMap<String, u64>,
    /// The rules in force, in their order.
    pub(crate) rules: Vec<RuleTotal>,
    /// What was forwarded, by interface.
    pub(crate) forwarded: BTreeMap<String, ForwardedTotal>,
    /// The interfaces of the satellite legs, in the order of their counters.
    interfaces: Vec<String>,
    /// What the kernel's counters said last: packets and bytes.
    last: BTreeMap<String, (u64, u64)>,
}

/// A rule, and how many connections or datagrams it has matched.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RuleTotal {
    pub(crate) action: String,
    /// Its conditions.
    pub(crate) conditions: String,
    pub(crate) comment: Option<String>,
    pub(crate) matched: u64,
}

/// IP bytes that were forwarded over an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ForwardedTotal {
    pub(crate) into: ForwardedBytes,
    pub(crate) from: ForwardedBytes,
}

/// Forwarded IP bytes by what they were: headers are counted, and segments as often as they were forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ForwardedBytes {
    /// TCP that is neither split nor snooped.
    pub tcp: u64,
    /// UDP.
    pub udp: u64,
    /// Everything else, such as ICMP and ESP.
    pub other: u64,
    /// TCP that the Snoop agent looks after.
    pub snooped: u64,
}

impl Verdict {
    pub(crate) const ALL: [Self; 17] = [
        Self::Split,
        Self::Pass,
        Self::Snoop,
        Self::Bundle,
        Self::Protect,
        Self::Reject,
        Self::Limit,
        Self::ClientLimit,
        Self::Rate,
        Self::ClientRate,
        Self::NotReady,
        Self::Declined,
        Self::Translated,
        Self::Unreadable,
        Self::LinkLocal,
        Self::Bridged,
        Self::NodeAbsent,
    ];

    /// Its name for observers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Pass => "pass",
            Self::Snoop => "snoop",
            Self::Bundle => "bundle",
            Self::Protect => "protect",
            Self::Reject => "reject",
            Self::Limit => "limit",
            Self::ClientLimit => "client_limit",
            Self::Rate => "rate",
            Self::ClientRate => "client_rate",
            Self::NotReady => "not_ready",
            Self::Declined => "declined",
            Self::Translated => "translated",
            Self::Unreadable => "unreadable",
            Self::LinkLocal => "link_local",
            Self::Bridged => "bridged",
            Self::NodeAbsent => "node_absent",
        }
    }

    /// The verdicts that a rule of the operator's gives are counted by the rule.
    fn has_counter(self) -> bool {
        !matches!(self, Self::Pass | Self::Snoop | Self::Bundle | Self::Protect | Self::Reject)
    }

    /// Counts a packet, as the beginning of a statement.
    pub(super) fn counted(self) -> String {
        format!("counter name {}", self.counter())
    }

    fn counter(self) -> String {
        format!("verdict_{}", self.name())
    }

    fn of(action: Action) -> Option<Self> {
        match action {
            Action::Split { .. } => None,
            Action::Snoop => Some(Self::Snoop),
            Action::Bundle => Some(Self::Bundle),
            Action::Protect => Some(Self::Protect),
            Action::Pass => Some(Self::Pass),
            Action::Reject => Some(Self::Reject),
        }
    }
}

impl Class {
    const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Other, Self::Snooped];

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Other => "other",
            Self::Snooped => "snooped",
        }
    }
}

impl ForwardedBytes {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.tcp + self.udp + self.other + self.snooped
    }

    fn add(&mut self, class: Class, bytes: u64) {
        let of_class = match class {
            Class::Tcp => &mut self.tcp,
            Class::Udp => &mut self.udp,
            Class::Other => &mut self.other,
            Class::Snooped => &mut self.snooped,
        };
        *of_class += bytes;
    }
}

/// The counter of the rule at this place, as the beginning of a statement.
pub(super) fn rule_counted(place: usize) -> String {
    format!("counter name {}", rule_counter(place))
}

fn rule_counter(place: usize) -> String {
    format!("rule_{}", place + 1)
}

/// The counter of what goes into a leg, or comes from it.
fn leg_counter(index: usize, into: bool, class: Class) -> String {
    format!("{}_{index}_{}", if into { "into" } else { "from" }, class.name())
}

/// The classes that these rules tell apart.
fn classes(plan: &Plan<'_>) -> impl Iterator<Item = Class> {
    let snoops = plan.snooped.is_some();
    Class::ALL.into_iter().filter(move |class| snoops || *class != Class::Snooped)
}

/// Every counter.
pub(super) fn declarations(plan: &Plan<'_>) -> String {
    let verdicts = Verdict::ALL.into_iter().filter(|verdict| verdict.has_counter()).map(Verdict::counter);
    let rules = (0..plan.rules.len()).map(rule_counter);
    let legs = (0..plan.interfaces.len()).flat_map(|index| {
        let classes = move |into| classes(plan).map(move |class| leg_counter(index, into, class));
        classes(true).chain(classes(false))
    });
    verdicts.chain(rules).chain(legs).map(|name| format!("\tcounter {name} {{\n\t}}\n")).collect()
}

/// The names of the counters that a rule set declares.
pub(super) fn declared(rules: &str) -> impl Iterator<Item = &str> {
    rules.lines().filter_map(|line| line.strip_prefix("\tcounter ")?.strip_suffix(" {"))
}

/// The chains that count what is forwarded over the satellite legs, behind the table that drops SYNs.
///
/// A packet of a snooped flow is forwarded twice, to the agent's device and from there: once over the leg.
pub(super) fn forwarded(plan: &Plan<'_>, priority: i32) -> String {
    let map = |into: bool| {
        let name = if into { "into" } else { "from" };
        let legs = plan.interfaces.iter().enumerate();
        let elements: Vec<String> =
            legs.map(|(index, interface)| format!("\"{interface}\" : jump {name}_{index}")).collect();
        elements.join(", ")
    };
    let (into, from) = (map(true), map(false));
    let mut text = format!(
        "\tchain forwarded {{\n\
         \t\ttype filter hook forward priority {priority}; policy accept;\n\
         \t\toifname vmap {{ {into} }}\n\
         \t\tiifname vmap {{ {from} }}\n\
         \t}}\n"
    );
    for index in 0..plan.interfaces.len() {
        for into in [true, false] {
            let name = if into { "into" } else { "from" };
            let lines: String = classes(plan)
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .filter(|class| *class != Class::Other)
                .map(|class| {
                    let counter = leg_counter(index, into, class);
                    format!("\t\t{} counter name {counter} return\n", condition(class, into))
                })
                .collect();
            let other = leg_counter(index, into, Class::Other);
            text += &format!("\tchain {name}_{index} {{\n{lines}\t\tcounter name {other}\n\t}}\n");
        }
    }
    text
}

fn condition(class: Class, into: bool) -> String {
    match (class, into) {
        (Class::Snooped, true) => format!("iifname \"{}\"", TO_LINK.device),
        (Class::Snooped, false) => format!("oifname \"{}\"", FROM_LINK.device),
        (class, _) => format!("meta l4proto {}", class.name()),
    }
}

impl PolicyCounters {
    /// Reads the kernel's counters. Where they cannot be read nothing is lost: the next reading has it.
    pub(crate) fn collect(&self, tables: &mut NfTables) {
        if let Ok(counts) = tables.counters_of(TABLE) {
            self.state().note(Instant::now(), &counts);
        }
    }

    /// Rules have been loaded whose counters begin at zero: those of this plan, or the same as before.
    pub(super) fn restart(&self, plan: Option<&Plan<'_>>) {
        let mut state = self.state();
        state.totals.last.clear();
        if let Some(plan) = plan {
            state.totals.relabel(plan);
        }
    }

    /// The totals of the predecessor, whose rules go on counting.
    pub(crate) fn inherit(&self, totals: PolicyTotals) {
        self.state().totals = totals;
    }

    /// The totals at the last reading.
    pub(crate) fn totals(&self) -> PolicyTotals {
        self.state().totals.clone()
    }

    /// The rates between the last readings.
    pub(crate) fn rates(&self) -> Rates {
        self.state().rates.clone()
    }

    /// The counts are consistent at every step, so a poisoned lock can still be used.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, now: Instant, counts: &BTreeMap<String, Count>) {
        self.totals.note(counts);
        let rated = self.totals.rated();
        let Some((at, before)) = &self.rated else {
            self.rated = Some((now, rated));
            return;
        };
        let elapsed = now.saturating_duration_since(*at);
        if elapsed >= LEAST {
            self.rates = rated.since(before, elapsed.as_secs_f64());
            self.rated = Some((now, rated));
        }
    }
}

impl PolicyTotals {
    /// The count of a verdict.
    pub(crate) fn of(&self, verdict: Verdict) -> u64 {
        self.verdicts.get(verdict.name()).copied().unwrap_or(0)
    }

    /// Adds what has come since the last reading. A counter that has less than before has been declared anew.
    fn note(&mut self, counts: &BTreeMap<String, Count>) {
        let mut news = |name: &str| {
            let count = counts.get(name).copied().unwrap_or_default();
            let last = self.last.insert(name.to_owned(), (count.packets, count.bytes)).unwrap_or_default();
            let is_new = count.packets < last.0;
            let (packets, bytes) = if is_new { (0, 0) } else { last };
            Count { packets: count.packets - packets, bytes: count.bytes.saturating_sub(bytes) }
        };
        for verdict in Verdict::ALL.into_iter().filter(|verdict| verdict.has_counter()) {
            let packets = news(&verdict.counter()).packets;
            *self.verdicts.entry(verdict.name().to_owned()).or_default() += packets;
        }
        for (place, rule) in self.rules.iter_mut().enumerate() {
            let packets = news(&rule_counter(place)).packets;
            rule.matched += packets;
            // The daemon counts what it is given to split.
            if rule.action != Verdict::Split.name() {
                *self.verdicts.entry(rule.action.clone()).or_default() += packets;
            }
        }
        for (index, interface) in self.interfaces.iter().enumerate() {
            let total = self.forwarded.entry(interface.clone()).or_default();
            for class in Class::ALL {
                total.into.add(class, news(&leg_counter(index, true, class)).bytes);
                total.from.add(class, news(&leg_counter(index, false, class)).bytes);
            }
        }
    }

    /// The rules are those of this plan now. A rule that was there before keeps its count, wherever it
    /// stands.
    fn relabel(&mut self, plan: &Plan<'_>) {
        let mut before = std::mem::take(&mut self.rules);
        let continued = |rule: RuleTotal| {
            let same = before.iter().position(|other| {
                (&other.action, &other.conditions, &other.comment)
                    == (&rule.action, &rule.conditions, &rule.comment)
            });
            same.map_or(rule, |place| before.remove(place))
        };
        self.rules = plan.rules.iter().map(RuleTotal::of).map(continued).collect();
        self.interfaces = plan.interfaces.iter().map(|interface| interface.as_str().to_owned()).collect();
    }

    fn rated(&self) -> Rated {
        let bytes = |total: &ForwardedTotal| [total.into.sum(), total.from.sum()];
        let offered = [Verdict::Split, Verdict::Rate, Verdict::ClientRate];
        Rated {
            forwarded: self.forwarded.iter().map(|(name, total)| (name.clone(), bytes(total))).collect(),
            connections: offered.into_iter().map(|verdict| self.of(verdict)).sum(),
        }
    }
}

impl RuleTotal {
    fn of(rule: &Rule) -> Self {
        let verdict = Verdict::of(rule.action).unwrap_or(Verdict::Split);
        Self {
            action: verdict.name().to_owned(),
            conditions: policy::conditions(rule),
            comment: rule.comment.as_ref().map(|comment| comment.as_str().to_owned()),
            matched: 0,
        }
    }
}

impl Rated {
    fn since(&self, before: &Self, seconds: f64) -> Rates {
        let bps = |name: &String, now: &[u64; 2]| {
            let before = before.forwarded.get(name).copied().unwrap_or_default();
            [0, 1].map(|way| now[way].saturating_sub(before[way]) as f64 * 8.0 / seconds)
        };
        Rates {
            forwarded_bps: self.forwarded.iter().map(|(name, now)| (name.clone(), bps(name, now))).collect(),
            connections: self.connections.saturating_sub(before.connections) as f64 / seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AtLimit, Config, Handshake, Interface, MarkField};

    fn with_plan<T>(text: &str, test: impl FnOnce(&Plan<'_>) -> T) -> T {
        let config = Config::parse("x", &format!("[legs.a]\ninterface = \"sat0\"\n{text}")).unwrap();
        let interfaces: Vec<Interface> = config.interfaces();
        test(&Plan {
            interfaces: &interfaces,
            pairs: &[],
            replaced: &[],
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: Default::default(),
            rules: &config.rules,
            snooped: None,
            bundle: None,
            protected: &[],
            mark: MarkField::default(),
            tracked: false,
        })
    }

    fn counts(counts: &[(&str, u64, u64)]) -> BTreeMap<String, Count> {
        let count = |&(name, packets, bytes): &(&str, u64, u64)| (name.to_owned(), Count { packets, bytes });
        counts.iter().map(count).collect()
    }

    const TWO_RULES: &str = "[[rules]]\naction = \"pass\"\nport = 22\ncomment = \"ssh\"\n\
                             [[rules]]\naction = \"reject\"\n";

    #[test]
    fn counts_continue_where_rules_are_loaded_anew() {
        let counters = PolicyCounters::default();
        with_plan(TWO_RULES, |plan| counters.restart(Some(plan)));
        let now = Instant::now();
        let first = counts(&[("rule_1", 5, 300), ("rule_2", 2, 2400), ("verdict_not_ready", 1, 60)]);
        counters.state().note(now, &first);
        counters.state().note(now, &first);
        // The second rule moves up, and another one comes behind it.
        with_plan(
            "[[rules]]\naction = \"reject\"\n[[rules]]\naction = \"pass\"\nport = 22\ncomment = \"ssh\"\n\
             [[rules]]\naction = \"pass\"\nport = 25\n",
            |plan| counters.restart(Some(plan)),
        );
        counters.state().note(now, &counts(&[("rule_1", 7, 1), ("rule_2", 10, 1), ("rule_3", 1, 1)]));
        let totals = counters.totals();
        let matched: Vec<u64> = totals.rules.iter().map(|rule| rule.matched).collect();
        assert_eq!(matched, [9, 15, 1]);
        assert_eq!(totals.rules[1].comment.as_deref(), Some("ssh"));
        let of = [Verdict::Pass, Verdict::Reject, Verdict::NotReady].map(|verdict| totals.of(verdict));
        assert_eq!(of, [16, 9, 1], "what a rule has passed stays passed when the rule goes");
    }

    #[test]
    fn a_successor_goes_on_counting_under_the_same_rules() {
        let before = PolicyCounters::default();
        with_plan(TWO_RULES, |plan| before.restart(Some(plan)));
        before.state().note(Instant::now(), &counts(&[("rule_1", 5, 300), ("into_0_udp", 2, 900)]));
        let handed_over = serde_json::to_string(&before.totals()).unwrap();
        let after = PolicyCounters::default();
        after.inherit(serde_json::from_str(&handed_over).unwrap());
        after.state().note(Instant::now(), &counts(&[("rule_1", 8, 480), ("into_0_udp", 3, 1000)]));
        let totals = after.totals();
        assert_eq!((totals.rules[0].matched, totals.forwarded["sat0"].into.udp), (8, 1000));
    }

    #[test]
    fn rates_are_those_of_the_last_second() {
        let counters = PolicyCounters::default();
        with_plan("", |plan| counters.restart(Some(plan)));
        let start = Instant::now();
        let note = |ms: u64, bytes: u64, syns: u64| {
            let counts = counts(&[("into_0_tcp", 1, bytes), ("verdict_split", syns, 0)]);
            counters.state().note(start + Duration::from_millis(ms), &counts);
        };
        note(0, 1000, 10);
        note(100, 2000, 11);
        assert_eq!(counters.rates(), Rates::default(), "too early to tell");
        note(2000, 251_000, 30);
        let rates = counters.rates();
        assert_eq!((rates.forwarded_bps["sat0"], rates.connections), ([1e6, 0.0], 10.0));
    }

    #[test]
    fn a_counter_that_somebody_has_reset_is_counted_from_zero() {
        let mut totals = PolicyTotals::default();
        with_plan(TWO_RULES, |plan| totals.relabel(plan));
        totals.note(&counts(&[("rule_1", 5, 300)]));
        totals.note(&counts(&[("rule_1", 2, 120)]));
        assert_eq!(totals.rules[0].matched, 7);
    }

    #[test]
    fn every_counter_that_a_rule_names_is_declared_and_every_declared_one_is_named() {
        let text = "[[rules]]\naction = \"snoop\"\nport = 1\n[snoop]\ncache = \"1MB\"\n[bundle]\nport = 8000\n\
                    [[rules]]\naction = \"bundle\"\nport = 2\n[[rules]]\naction = \"reject\"\n\
                    [[rules]]\naction = \"split\"\nport = 4\n";
        let text = format!(
            "{text}[limits]\nconnection_rate = 9\nconnection_rate_per_client = 8\n[legs.b]\ninterface = \"sat1\"\n"
        );
        let config = Config::parse("x", &format!("[legs.a]\ninterface = \"sat0\"\n{text}")).unwrap();
        let interfaces = config.interfaces();
        let plan = Plan {
            interfaces: &interfaces,
            pairs: &crate::types::leg_pair::leg_pairs(2, &[], 7600),
            replaced: &[],
            handshake: Handshake::Early,
            at_limit: AtLimit::Pass,
            rates: config.limits.rates(),
            rules: &config.rules,
            snooped: Some(9),
            bundle: config.bundle_port(),
            protected: &[],
            mark: MarkField::default(),
            tracked: true,
        };
        let rules = super::super::ruleset(&plan);
        let mut named: Vec<&str> = rules
            .match_indices("counter name ")
            .map(|(place, word)| rules[place + word.len()..].split_whitespace().next().unwrap())
            .collect();
        named.sort_unstable();
        named.dedup();
        let mut declared: Vec<&str> = declared(&rules).collect();
        declared.sort_unstable();
        // A bridge's rule is there for each interface, so its counter is always named.
        assert_eq!(named, declared, "{rules}");
    }
}
