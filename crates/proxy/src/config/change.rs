//! What differs between two configurations, key by key, and when each difference takes effect.
//!
//! Each section declares its keys once, with [`key_effects!`], beneath its type: the compiler asks for a key
//! that is not declared.

use std::collections::BTreeSet;
use std::fmt::{self, Debug, Display};
use std::path::PathBuf;

use bentpipe_config::{Bytes, List, Off, Or, Plain as _, Whole};
use bentpipe_kernel::Weight;
use bentpipe_units::{ByteCount, Rate, Span};
use serde::{Deserialize, Serialize};

use super::rule::Rule;
use super::{
    Aqm, AtLimit, Comment, Config, Congestion, Dscp, Handshake, Interface, Listen, LogFormat, MarkField,
    Network, Port, Ports, RelayKind, SatelliteLeg, Share, TerrestrialLeg, Workers,
};

/// When a changed key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// At once, for connections that begin from now on; those that are there keep what they have.
    NewConnections,
    /// At once, for everything.
    Now,
    /// When another process takes over (`bentpipe upgrade`), or at a restart.
    Upgrade,
    /// At a restart; a reload that changes such a key is refused.
    Restart,
}

impl Effect {
    /// The effect in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::NewConnections => "now, for new connections",
            Self::Now => "now",
            Self::Upgrade => "at the next upgrade or restart",
            Self::Restart => "at the next restart",
        }
    }
}

/// One difference between the configuration in force and the one that a reload has read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The key with its section, `legs.geo.rate`; a whole leg or rule that came or went, `legs.geo`,
    /// `rules[2]`.
    pub key: String,
    /// The value that is in force; none where the key was not set, or the leg or rule not there.
    pub before: Option<String>,
    /// The value that was read; none where the key is not set any more, or the leg or rule has gone.
    pub after: Option<String>,
    /// When it takes effect.
    pub effect: Effect,
}

impl Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, after, effect } = self;
        match (before, after) {
            (Some(before), Some(after)) => write!(f, "{key}: {before} -> {after}")?,
            (None, Some(after)) => write!(f, "{key}: {after}, which was not set")?,
            (Some(before), None) => write!(f, "{key}: not set any more, was {before}")?,
            (None, None) => write!(f, "{key}")?,
        }
        write!(f, "; {}", effect.text())
    }
}

/// A key of a configuration with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) path: String,
    effect: Effect,
    /// The value exactly, to be compared.
    exact: String,
    /// The value for people; none if it is not set.
    shown: Option<String>,
}

/// Collects the keys of a section.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    section: String,
    keys: Vec<Key>,
}

/// A section of the configuration: a type whose fields are its keys.
pub(crate) trait Section {
    /// Adds each key.
    fn keys(&self, keys: &mut Keys);
}

/// Declares when a change of each key of a section takes effect.
macro_rules! key_effects {
    ($section:ty { $($key:ident: $effect:ident),+ $(,)? }) => {
        impl $crate::config::change::Section for $section {
            fn keys(&self, keys: &mut $crate::config::change::Keys) {
                let Self { $($key),+ } = self;
                $(keys.add(stringify!($key), $crate::config::Effect::$effect, $key);)+
            }
        }
    };
}
pub(crate) use key_effects;

key_effects!(SatelliteLeg {
    interface: NewConnections,
    congestion: NewConnections,
    // The rate controller and the XCP router share the new rate out among all connections.
    rate: Now,
    rtt: NewConnections,
    // It shares by the new part from its next decision on.
    cross_traffic: Now,
    cross_traffic_aqm: Now,
    pacing_cap: NewConnections,
    fast_open: NewConnections,
    far_box: NewConnections,
    restart_within: NewConnections,
    survive_outage: NewConnections,
    keepalive: NewConnections,
    send_buffer: NewConnections,
    receive_buffer: NewConnections,
    protect: Upgrade,
});

key_effects!(TerrestrialLeg {
    congestion: NewConnections,
    pacing_cap: NewConnections,
    restart_within: NewConnections,
    survive_outage: NewConnections,
    keepalive: NewConnections,
    send_buffer: NewConnections,
    receive_buffer: NewConnections,
});

impl Keys {
    pub(crate) fn add(&mut self, key: &str, effect: Effect, value: &impl Shown) {
        let path = if self.section.is_empty() { key.to_owned() } else { format!("{}.{key}", self.section) };
        self.keys.push(Key { path, effect, exact: format!("{value:?}"), shown: value.shown() });
    }

    /// The keys of one section, each behind `name` and a dot.
    pub(crate) fn of(name: &str, section: &impl Section) -> Vec<Key> {
        let mut keys = Self { section: name.to_owned(), keys: Vec::new() };
        section.keys(&mut keys);
        keys.keys
    }
}

/// The differences between two configurations, as they were read. `running` is the one that the process
/// started with: what waits for an upgrade still has its values.
pub(crate) fn changes(running: &Config, in_force: &Config, read: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    for ((running, in_force), read) in
        sections(running).into_iter().zip(sections(in_force)).zip(sections(read))
    {
        compare_keys(&running, &in_force, &read, &mut changes);
    }
    compare_legs(in_force, read, &mut changes);
    compare_rules(&in_force.rules, &read.rules, &mut changes);
    changes
}

/// The sections that every configuration has.
fn sections(config: &Config) -> [Vec<Key>; 7] {
    // Every section is named, so that the compiler asks for one that is new. Legs and rules may come and go.
    let Config { proxy, legs: _, terrestrial, limits, snoop, bundle, admin, access_log, rules: _ } = config;
    [
        Keys::of("proxy", proxy),
        Keys::of("terrestrial", terrestrial),
        Keys::of("limits", limits),
        Keys::of("snoop", snoop),
        Keys::of("bundle", bundle),
        Keys::of("admin", admin),
        Keys::of("access_log", access_log),
    ]
}

/// The keys of a section are the same ones in each configuration, in the same order.
fn compare_keys(running: &[Key], in_force: &[Key], read: &[Key], changes: &mut Vec<Change>) {
    for ((running, in_force), read) in running.iter().zip(in_force).zip(read) {
        let waits = read.effect == Effect::Upgrade && running.exact != read.exact;
        let (before, effect) = match waits {
            // It may have been read by an earlier reload, and still waits.
            true => (running, Effect::Upgrade),
            false if in_force.exact == read.exact => continue,
            // Back to what runs.
            false if read.effect == Effect::Upgrade => (in_force, Effect::Now),
            false => (in_force, read.effect),
        };
        changes.push(Change {
            key: read.path.clone(),
            before: before.shown.clone(),
            after: read.shown.clone(),
            effect,
        });
    }
}

fn compare_legs(in_force: &Config, read: &Config, changes: &mut Vec<Change>) {
    let names: BTreeSet<&String> = in_force.legs.keys().chain(read.legs.keys()).collect();
    for name in names {
        let section = format!("legs.{name}");
        let keys = |leg: &SatelliteLeg| Keys::of(&section, leg);
        match (in_force.legs.get(name).map(keys), read.legs.get(name).map(keys)) {
            (Some(before), Some(after)) => compare_keys(&before, &before, &after, changes),
            (before, after) => changes.push(Change {
                key: section.clone(),
                before: before.map(|keys| summary(&section, &keys)),
                after: after.map(|keys| summary(&section, &keys)),
                effect: Effect::NewConnections,
            }),
        }
    }
}

/// The keys that are set, on one line.
fn summary(section: &str, keys: &[Key]) -> String {
    let written = |key: &Key| {
        let name = key.path.strip_prefix(section)?.strip_prefix('.')?;
        Some(format!("{name} {}", key.shown.as_ref()?))
    };
    keys.iter().filter_map(written).collect::<Vec<_>>().join(", ")
}

/// Rules have no names: those at the beginning and at the end that are the same have not changed, and what
/// lies between is compared one by one.
fn compare_rules(before: &[Rule], after: &[Rule], changes: &mut Vec<Change>) {
    let same = before.iter().zip(after).take_while(|(before, after)| before == after).count();
    let (before, after) = (&before[same..], &after[same..]);
    let tail =
        before.iter().rev().zip(after.iter().rev()).take_while(|(before, after)| before == after).count();
    let (before, after) = (&before[..before.len() - tail], &after[..after.len() - tail]);
    for index in 0..before.len().max(after.len()) {
        changes.push(Change {
            key: format!("rules[{}]", same + index + 1),
            before: before.get(index).map(Rule::summary),
            after: after.get(index).map(Rule::summary),
            effect: Rule::EFFECT,
        });
    }
}

/// A value that can be shown as it is written in a configuration.
pub(crate) trait Shown: Debug {
    /// The value; none if it is not set.
    fn shown(&self) -> Option<String>;
}

impl<T: Shown> Shown for Option<T> {
    fn shown(&self) -> Option<String> {
        self.as_ref().and_then(T::shown)
    }
}

impl<T: Shown> Shown for List<T> {
    fn shown(&self) -> Option<String> {
        Some(self.iter().filter_map(T::shown).collect::<Vec<_>>().join(", "))
    }
}

impl<T: Shown> Shown for Or<Off, T> {
    fn shown(&self) -> Option<String> {
        self.value.as_ref().map_or(Some("off".to_owned()), T::shown)
    }
}

impl<T: Debug + ToString + Copy, const MIN: u64, const MAX: u64> Shown for Whole<T, MIN, MAX> {
    fn shown(&self) -> Option<String> {
        Some(self.get().to_string())
    }
}

impl<const MIN: u64, const MAX: u64> Shown for Bytes<MIN, MAX> {
    fn shown(&self) -> Option<String> {
        Some((*self).get().to_string())
    }
}

/// Shows values of each type by this expression.
macro_rules! shown {
    ($($type:ty: $value:ident => $text:expr;)+) => {
        $(impl Shown for $type {
            fn shown(&self) -> Option<String> {
                let $value = self;
                Some($text.to_string())
            }
        })+
    };
}

shown! {
    bool: value => value;
    String: value => value;
    Rate: value => value;
    Span: value => value;
    ByteCount: value => value;
    Network: value => value;
    Interface: value => value;
    MarkField: value => value;
    PathBuf: path => path.display();
    Congestion: name => name.as_str();
    Aqm: verdict => verdict;
    Share: share => format!("{}%", 100.0 * share.get().get());
    Comment: comment => comment.as_str();
    Weight: weight => weight.get();
    Port: port => port.get();
    Workers: workers => workers.get();
    super::ProtectSettings: settings => settings;
    super::Protocol: protocol => protocol;
    Dscp: code_point => code_point.get();
    Ports: ports => match ports.first() == ports.last() {
        true => ports.first().to_string(),
        false => format!("{}-{}", ports.first(), ports.last()),
    };
    super::Keepalive: keepalive => match keepalive {
        super::Keepalive::Off => "off".to_owned(),
        super::Keepalive::After(idle) => idle.to_string(),
    };
    Listen: listen => match listen {
        Listen::Off => "off".to_owned(),
        Listen::At(address) => address.to_string(),
    };
    Handshake: handshake => handshake.name();
    RelayKind: relay => match relay {
        RelayKind::Copy => "copy",
        RelayKind::Splice => "splice",
    };
    AtLimit: at_limit => match at_limit {
        AtLimit::Pass => "pass",
        AtLimit::Refuse => "refuse",
    };
    LogFormat: format => match format {
        LogFormat::Json => "json",
        LogFormat::Text => "text",
    };
}

#[cfg(test)]
mod tests {
    use serde::de::value::Error as ValueError;
    use serde::de::{Deserializer, Error as _, Visitor};
    use serde::forward_to_deserialize_any;

    use super::super::{
        AccessLogSettings, AdminSettings, BundleSettings, Limits, ProxySettings, SnoopSettings,
    };
    use super::*;

    /// Notes which keys a type reads.
    struct FieldNames<'a>(&'a mut Vec<&'static str>);

    impl<'de> Deserializer<'de> for FieldNames<'_> {
        type Error = ValueError;

        fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, ValueError> {
            Err(ValueError::custom("no value"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _name: &'static str,
            fields: &'static [&'static str],
            _visitor: V,
        ) -> Result<V::Value, ValueError> {
            self.0.extend(fields);
            Err(ValueError::custom("no value"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    /// The keys that a type reads from a file.
    fn read_by<T: Deserialize<'static>>() -> Vec<&'static str> {
        let mut names = Vec::new();
        assert!(T::deserialize(FieldNames(&mut names)).is_err());
        names
    }

    fn declared(section: &impl Section) -> Vec<String> {
        Keys::of("", section).into_iter().map(|key| key.path).collect()
    }

    fn config(text: &str) -> Config {
        Config::parse("x", text).unwrap()
    }

    const LEG: &str = "[legs.geo]\ninterface = \"sat0\"\n";

    /// Each difference between two files on top of a leg, as a line.
    fn differences(before: &str, after: &str) -> Vec<String> {
        let [before, after] = [before, after].map(|text| config(&format!("{LEG}{text}")));
        changes(&before, &before, &after).iter().map(line).collect()
    }

    fn line(change: &Change) -> String {
        let value = |value: &Option<String>| value.clone().unwrap_or("-".to_owned());
        format!("{}: {} > {}, {:?}", change.key, value(&change.before), value(&change.after), change.effect)
    }

    #[test]
    fn every_key_that_is_read_says_when_a_change_of_it_takes_effect() {
        let leg = &config(LEG).legs["geo"];
        let sections = [
            ("proxy", declared(&ProxySettings::default()), read_by::<ProxySettings>()),
            ("legs", declared(leg), read_by::<SatelliteLeg>()),
            ("terrestrial", declared(&TerrestrialLeg::default()), read_by::<TerrestrialLeg>()),
            ("limits", declared(&Limits::default()), read_by::<Limits>()),
            ("snoop", declared(&SnoopSettings::default()), read_by::<SnoopSettings>()),
            ("bundle", declared(&BundleSettings::default()), read_by::<BundleSettings>()),
            ("admin", declared(&AdminSettings::default()), read_by::<AdminSettings>()),
            ("access_log", declared(&AccessLogSettings::default()), read_by::<AccessLogSettings>()),
        ];
        for (section, declared, read) in &sections {
            assert!(
                !read.is_empty() && declared == read,
                "{section}: {declared:?} are declared, {read:?} are read"
            );
        }
        let names: Vec<&str> = sections.iter().map(|(name, ..)| *name).chain(["rules"]).collect();
        assert_eq!(names, read_by::<Config>(), "a section of the file is not compared");
    }

    /// The row of the documentation that names the key, or else its section.
    fn documented(page: &str, path: &str) -> String {
        let (_, table) = page.split_once("| takes effect | keys |\n").unwrap();
        let rows: Vec<(&str, &str)> = table
            .lines()
            .skip(1)
            .map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "))
            .collect();
        let (section, _) = path.rsplit_once('.').unwrap();
        let row = |name: String| rows.iter().find(|(_, keys)| keys.contains(&name)).map(|(when, _)| *when);
        row(format!("`{path}`")).or_else(|| row(format!("`[{section}]`"))).unwrap_or_default().to_owned()
    }

    #[test]
    fn the_documentation_says_of_every_key_when_it_takes_effect() {
        let page = include_str!("../../../../docs/operating.md");
        let config = config(LEG);
        let legs = Keys::of("legs.NAME", &config.legs["geo"]);
        for key in sections(&config).into_iter().flatten().chain(legs) {
            assert_eq!(documented(page, &key.path), key.effect.text(), "{}", key.path);
        }
        assert!(page.contains("`[[rules]]`"));
    }

    #[test]
    fn a_change_has_its_key_both_values_and_its_time() {
        for (before, after, expected) in [
            ("rate = \"10Mbit/s\"", "rate = \"20Mbit/s\"", "legs.geo.rate: 10Mbit/s > 20Mbit/s, Now"),
            ("", "survive_outage = \"25m\"", "legs.geo.survive_outage: - > 1500s, NewConnections"),
            ("", "keepalive = \"off\"", "legs.geo.keepalive: - > off, NewConnections"),
            ("", "[limits]\nconnections = 9", "limits.connections: - > 9, Now"),
            ("[proxy]\nworkers = 2", "[proxy]\nworkers = 4", "proxy.workers: 2 > 4, Upgrade"),
            ("", "[proxy]\nport = 7700", "proxy.port: 7600 > 7700, NewConnections"),
            ("", "[proxy]\nmark = \"0x700\"", "proxy.mark: 0x70000000 > 0x700, Restart"),
            ("", "[admin]\nlisten = \"off\"", "admin.listen: 127.0.0.1:7500 > off, Upgrade"),
            ("", "[snoop]\npace = \"off\"", "snoop.pace: - > off, Now"),
            ("[access_log]\njournal = true", "", "access_log.journal: true > false, Now"),
        ] {
            assert_eq!(differences(before, after), [expected]);
        }
        assert_eq!(differences("rtt = \"600ms\"", ""), [""; 0], "the default, written or not, is no change");
    }

    #[test]
    fn a_change_is_one_line_with_its_time() {
        let gone = |effect| Change { key: "a.b".into(), before: Some("1".into()), after: None, effect };
        let both = Change { after: Some("2".into()), ..gone(Effect::Now) };
        assert_eq!(both.to_string(), "a.b: 1 -> 2; now");
        let lost = gone(Effect::Upgrade);
        assert_eq!(lost.to_string(), "a.b: not set any more, was 1; at the next upgrade or restart");
        let new = Change { before: None, after: Some("2".into()), ..gone(Effect::NewConnections) };
        assert_eq!(new.to_string(), "a.b: 2, which was not set; now, for new connections");
    }

    #[test]
    fn a_leg_that_comes_or_goes_is_one_change() {
        let more = "[legs.meo]\ninterface = \"sat1\"\nrate = \"5Mbit/s\"\n";
        let summary = "interface sat1, rate 5Mbit/s, rtt 600ms, cross_traffic 50%, cross_traffic_aqm mark, fast_open false, far_box false";
        assert_eq!(differences("", more), [format!("legs.meo: - > {summary}, NewConnections")]);
        assert_eq!(differences(more, ""), [format!("legs.meo: {summary} > -, NewConnections")]);
    }

    #[test]
    fn a_rule_is_shown_with_every_key_that_it_can_have() {
        let rule = |action: &str| {
            let conditions = "client = \"10.0.0.0/8\"\nserver = \"10.1.2.3\"\nclient_interface = \"a\"\n\
                server_interface = \"b\"\nport = [22, \"80-81\"]\ndscp = \"ef\"\ncomment = \"by hand\"\n";
            let text = format!("{LEG}[[rules]]\n{action}\n{conditions}");
            config(&text).rules[0].summary()
        };
        let shown = rule("action = \"split\"\nweight = 2\nhandshake = \"early\"");
        for key in read_by::<Rule>() {
            // Of another action only.
            assert!(
                key == "action" || key == "protocol" || shown.contains(&format!("{key} ")),
                "{key} is not in {shown}"
            );
        }
        assert!(shown.contains("port 22, 80-81, ") && shown.ends_with("comment by hand"), "{shown}");
    }

    #[test]
    fn rules_that_only_move_are_no_changes() {
        let rule = |port: u16| format!("[[rules]]\naction = \"pass\"\nport = {port}\n");
        let all = |ports: &[u16]| ports.iter().copied().map(rule).collect::<String>();
        let cases: [(&[u16], &[u16], &[&str]); 4] = [
            (&[1, 2, 3], &[1, 2, 3], &[]),
            (&[1, 2], &[9, 1, 2], &["rules[1]: - > pass, port 9, NewConnections"]),
            (&[1, 2, 3], &[1, 3], &["rules[2]: pass, port 2 > -, NewConnections"]),
            (&[1, 2, 3], &[1, 4, 3], &["rules[2]: pass, port 2 > pass, port 4, NewConnections"]),
        ];
        for (before, after, expected) in cases {
            assert_eq!(differences(&all(before), &all(after)), expected);
        }
        let split = "[[rules]]\naction = \"split\"\nhandshake = \"faithful\"\nweight = 4\ndscp = [\"ef\"]\n";
        assert_eq!(
            differences("", split),
            ["rules[1]: - > split, handshake faithful, weight 4, dscp 46, NewConnections"]
        );
    }

    #[test]
    fn what_waits_for_an_upgrade_is_said_at_each_reload_until_it_is_there() {
        let of = |workers: usize| config(&format!("{LEG}[proxy]\nworkers = {workers}\n"));
        let lines = |in_force: usize, read: usize| -> Vec<String> {
            changes(&of(2), &of(in_force), &of(read)).iter().map(line).collect()
        };
        assert_eq!(lines(2, 4), ["proxy.workers: 2 > 4, Upgrade"]);
        assert_eq!(lines(4, 4), ["proxy.workers: 2 > 4, Upgrade"], "it still waits");
        assert_eq!(lines(4, 2), ["proxy.workers: 4 > 2, Now"], "it is what runs");
        assert_eq!(lines(2, 2), [""; 0]);
    }
}
