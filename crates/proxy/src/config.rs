//! `bentpipe.toml`, read into values that are valid once they exist.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bentpipe_config::{Checked, Checks, Document, InTable, Problem};
use bentpipe_kernel::Weight;
use bentpipe_legs::Legs;
use bentpipe_units::Span;
use serde::{Deserialize, Serialize};

use self::change::key_effects;
use crate::types::leg_pair::{PORT_RANGES, leg_pair_count};

mod access_log;
mod admin;
mod bundle;
mod change;
mod dscp;
mod limits;
mod mark;
mod ports;
mod protect;
mod protocol;
mod rule;
#[cfg(test)]
mod shipped;
mod snoop;
mod unlikely;
mod values;
mod xcp;

pub use access_log::{AccessLogSettings, LogFormat};
pub use admin::{AdminSettings, Listen, admin_socket};
pub use bentpipe_config::{Error as ConfigError, Fault, List};
pub use bentpipe_legs::Network;
pub use bentpipe_legs::{Aqm, Congestion, Interface, Keepalive, SatelliteLeg, Share, TerrestrialLeg};
pub use bentpipe_legs::{ProtectCipher, ProtectClass, ProtectSettings, WhenSilent};
pub use bundle::BundleSettings;
pub(crate) use change::changes;
pub use change::{Change, Effect};
pub use dscp::Dscp;
pub use limits::{AtLimit, ConnectionRates, Limits};
pub(crate) use mark::Mark;
pub use mark::MarkField;
pub use ports::Ports;
pub use protocol::Protocol;
pub use rule::{Action, Comment, Rule};
pub use snoop::SnoopSettings;
pub use values::{Count, PerSecond, Port, Workers};
pub(crate) use xcp::xcp_variant;

/// The most satellite legs that one daemon serves: each pair of legs takes a port and four rules.
pub const MAX_LEGS: usize = 8;
/// The most different weights besides 1 that rules may give: each takes a port, and listeners, for each pair
/// of legs.
pub const MAX_WEIGHTS: usize = 8;
/// The interface of the host's own addresses.
const LOOPBACK: &str = "lo";
/// What an error shows where a key is missing.
const EXAMPLES: &[(&str, &str)] = &[("interface", "\"sat0\""), ("action", "\"pass\"")];

/// The whole configuration of the daemon.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The splitter itself.
    #[serde(default)]
    pub proxy: ProxySettings,
    /// The satellite legs by name, at least one and at most [`MAX_LEGS`].
    #[serde(default)]
    pub legs: BTreeMap<String, SatelliteLeg>,
    /// Every interface that is not a satellite leg's.
    #[serde(default)]
    pub terrestrial: TerrestrialLeg,
    /// The limits of the daemon.
    #[serde(default)]
    pub limits: Limits,
    /// How segments are looked after where a rule says so.
    #[serde(default)]
    pub snoop: SnoopSettings,
    /// Where the bundle node takes connections.
    #[serde(default)]
    pub bundle: BundleSettings,
    /// The sockets for status and commands.
    #[serde(default)]
    pub admin: AdminSettings,
    /// One line for each connection that has ended.
    #[serde(default)]
    pub access_log: AccessLogSettings,
    /// Which connections are split; the first rule that matches decides, and without one they are.
    #[serde(default)]
    pub rules: Vec<Rule>,
}

/// `[proxy]`: how the splitter runs.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxySettings {
    /// The first of the loopback ports that intercepted connections are handed to, one for each pair of legs
    /// and weight.
    pub port: Port,
    /// Worker threads, 1 to 256; by default one for each processor, at most four.
    pub workers: Workers,
    /// How bytes move from one socket to the other.
    pub relay: RelayKind,
    /// When the client's handshake completes.
    pub handshake: Handshake,
    /// The account, `USER` or `USER:GROUP`, that a daemon started by root goes on as; by default `bentpipe`
    /// if there is one, and otherwise `nobody`.
    pub user: Option<String>,
    /// The bits of packets' marks that are the daemon's, as a mask.
    pub mark: MarkField,
}

key_effects!(ProxySettings {
    port: NewConnections,
    workers: Upgrade,
    relay: Upgrade,
    handshake: NewConnections,
    user: Upgrade,
    mark: Restart,
});

/// When the client's handshake completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Handshake {
    /// At once, while the server is asked: a round trip is saved, and a refused connection looks like one
    /// that is reset.
    #[default]
    Early,
    /// When the server's has: a refused connection looks refused, a silent server silent.
    Faithful,
}

impl Handshake {
    /// Its name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Early => "early",
            Self::Faithful => "faithful",
        }
    }
}

/// How bytes move from one socket to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RelayKind {
    /// `recv(2)` into a pooled buffer and `send(2)` from it.
    Copy,
    /// The same for small messages, and `splice(2)` through a pooled pipe for bulk.
    #[default]
    Splice,
}

impl Config {
    /// Reads and checks a configuration file. What it warns of goes to the log.
    ///
    /// # Errors
    /// The file cannot be read, or everything in it that is not accepted.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let Checked { value, warnings } = Self::load_with_warnings(path)?;
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        Ok(value)
    }

    /// The same with the warnings.
    ///
    /// # Errors
    /// Likewise.
    pub fn load_with_warnings(path: impl AsRef<Path>) -> Result<Checked<Self>, ConfigError> {
        Self::of(&Document::load(path)?)
    }

    /// Reads and checks a configuration; `file` is the name that errors give it.
    ///
    /// # Errors
    /// Everything in it that is not accepted.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        Self::of(&Document::parse(file, text)?).map(|read| read.value)
    }

    /// Whether a document's tables are those of this configuration rather than another's.
    pub fn is_meant_by(document: &Document) -> bool {
        ["legs", "proxy", "terrestrial", "rules"].iter().any(|key| document.get(key).is_some())
    }

    /// Reads and checks a document.
    ///
    /// # Errors
    /// Everything in it that is not accepted.
    pub fn of(document: &Document) -> Result<Checked<Self>, ConfigError> {
        document.clone().with_examples(EXAMPLES).read_checked(Self::check)
    }

    /// Whether any flow is to be snooped.
    pub fn wants_snoop(&self) -> bool {
        self.rules.iter().any(|rule| rule.action == Action::Snoop)
    }

    /// Whether any packet is to be protected: a leg has a peer, and a rule says so.
    pub fn wants_protect(&self) -> bool {
        self.protected_legs().next().is_some()
    }

    /// The legs whose packets are protected where a rule says so, with their names.
    pub fn protected_legs(&self) -> impl Iterator<Item = (&String, &SatelliteLeg, &ProtectSettings)> {
        let is_wanted = self.rules.iter().any(|rule| rule.action == Action::Protect);
        let legs = self.legs.iter().filter(move |_| is_wanted);
        legs.filter_map(|(name, leg)| Some((name, leg, leg.protect.as_ref()?)))
    }

    /// The weights besides 1 that rules give to connections, in ascending order.
    pub fn weights(&self) -> Vec<Weight> {
        rule::weights(&self.rules).into_iter().collect()
    }

    /// The number of paths, of all weights.
    pub(crate) fn path_count(&self) -> usize {
        leg_pair_count(self.legs.len()) * (1 + self.weights().len())
    }

    /// Checks that concern several values.
    fn check(&self, checks: &mut Checks<'_>) {
        self.check_legs(checks);
        checks.check(&["rules"], || rule::check(&self.rules).inside("rules"));
        checks.check(&["proxy.port", "legs", "rules"], || self.check_port().inside("proxy"));
        self.limits.check(self.longest_outage(), checks);
        checks.check(&["bundle", "proxy.port", "legs", "rules"], || bundle::check(self).inside("bundle"));
        checks.check(&["admin"], || admin::check(self).inside("admin"));
        checks.check(&["access_log"], || self.access_log.check().inside("access_log"));
        snoop::check(self, checks);
        protect::check(self, checks);
        unlikely::look(self, checks);
    }

    fn check_legs(&self, checks: &mut Checks<'_>) {
        checks.check(&["legs"], || self.check_count().inside("legs"));
        for (name, leg) in &self.legs {
            let name = name.as_str();
            let of_leg = |key: &str| format!("legs.{name}.{key}");
            checks.check(&[&of_leg("interface")], || check_interface(leg).inside(name).inside("legs"));
            checks.check(&["legs.*.interface"], || self.check_alone(name, leg).inside(name).inside("legs"));
            checks.check(&[&of_leg("congestion"), &of_leg("rate")], || {
                xcp::check(leg).inside(name).inside("legs")
            });
        }
    }

    fn check_count(&self) -> Result<(), Problem> {
        match self.legs.len() {
            0 => Err(Problem::new(
                "no satellite leg; add for example [legs.satellite] with interface = \"sat0\"",
            )),
            count if count > MAX_LEGS => {
                Err(Problem::new(format!("{count} satellite legs; at most {MAX_LEGS} are served")))
            }
            _ => Ok(()),
        }
    }

    /// Each leg has an interface of its own.
    fn check_alone(&self, name: &str, leg: &SatelliteLeg) -> Result<(), Problem> {
        let interface = &leg.interface;
        let mut earlier = self.legs.iter().take_while(|(other, _)| *other != name);
        match earlier.find(|(_, other)| other.interface == *interface) {
            Some((other, _)) => Err(Problem::of(
                "interface",
                format!("legs {other} and {name} both have interface \"{interface}\"; give each its own"),
            )),
            None => Ok(()),
        }
    }

    /// Listeners that a reload replaces keep their ports for a while.
    fn check_port(&self) -> Result<(), Problem> {
        let (port, ports) = (self.proxy.port.get(), self.path_count() * PORT_RANGES);
        let highest = usize::from(u16::MAX) + 1 - ports;
        if usize::from(port) <= highest {
            return Ok(());
        }
        let message = format!(
            "{port} leaves no room for the {ports} ports that the daemon may use; choose at most {highest}"
        );
        Err(Problem::of("port", message))
    }

    /// The legs, prepared for sockets, with buffers within the limits.
    pub(crate) fn prepare_legs(&self) -> Legs {
        Legs::prepare_with(&self.legs, &self.terrestrial, |settings| self.limits.bound(settings))
    }

    /// The interfaces of the satellite legs, in the order of
    /// [`LegId::Satellite`](bentpipe_legs::LegId::Satellite).
    pub(crate) fn interfaces(&self) -> Vec<Interface> {
        self.legs.values().map(|leg| leg.interface.clone()).collect()
    }

    /// The interfaces of the legs whose packets are protected where a rule says so.
    pub(crate) fn protected_interfaces(&self) -> Vec<Interface> {
        self.protected_legs().map(|(_, leg, _)| leg.interface.clone()).collect()
    }

    /// The longest outage that some leg is to survive.
    pub(crate) fn longest_outage(&self) -> Duration {
        let satellites = self.legs.values().map(|leg| leg.survive_outage);
        let legs = satellites.chain([self.terrestrial.survive_outage]);
        legs.flatten().map(Span::get).max().unwrap_or_default()
    }
}

/// A leg's interface leads somewhere.
fn check_interface(leg: &SatelliteLeg) -> Result<(), Problem> {
    if leg.interface.as_str() != LOOPBACK {
        return Ok(());
    }
    let message = "\"lo\" leads to this host only; name the interface that packets to the satellite leave by, as \
                   `ip route get ADDRESS` says";
    Err(Problem::of("interface", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::{ByteCount, Rate};
    use proptest::prelude::*;

    const FULL: &str = r#"
[proxy]
port = 7700
workers = 2
relay = "copy"

[legs.satellite]
interface = "sat0"
congestion = "bbr"
rate = "10Mbit/s"
rtt = "540ms"
pacing_cap = "8Mbit/s"
fast_open = true
far_box = true
restart_within = "1s"
survive_outage = "25m"
send_buffer = "4MiB"
receive_buffer = "2MiB"

[terrestrial]
congestion = "cubic"
pacing_cap = "100Mbit/s"

[[rules]]
action = "pass"
client = ["10.0.0.0/8", "2001:db8::/32"]
server = "192.0.2.1"
client_interface = "lan0"
server_interface = ["sat0", "wan0"]
port = [22, "6000-6010"]
dscp = ["ef", 46, "cs1"]
comment = "by hand"

[[rules]]
action = "split"
port = 80
handshake = "faithful"
weight = 4

[[rules]]
action = "snoop"
port = 5001

[[rules]]
action = "reject"

[[rules]]
action = "bundle"
port = 8080

[bundle]
port = 7990

[snoop]
cache = "2MiB"
flows = 1000
retransmissions = 3
timer_floor = "100ms"
hide_sack = false
"#;

    fn message(text: &str) -> String {
        Config::parse("bentpipe.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn every_documented_key_is_read() {
        let config = Config::parse("bentpipe.toml", FULL).unwrap();
        assert_eq!((config.proxy.port.get(), config.proxy.workers.get()), (7700, 2));
        assert_eq!(config.proxy.relay, RelayKind::Copy);
        let settings = config.legs["satellite"].settings();
        assert_eq!(settings.congestion.as_deref(), Some("bbr"));
        assert_eq!(settings.rate, Some(Rate::mbps(10)));
        assert_eq!(settings.rtt, Duration::from_millis(540));
        assert_eq!((settings.pacing_cap, settings.fast_open), (Some(Rate::mbps(8)), true));
        assert!(settings.far_box);
        assert_eq!(settings.survive_outage, Some(Duration::from_secs(1500)));
        assert_eq!(settings.receive_buffer, Some(ByteCount::new(2 << 20)));
        assert_eq!(config.terrestrial.settings().congestion.as_deref(), Some("cubic"));
        assert_eq!(config.rules[0].client.as_ref().map(|networks| networks.len()), Some(2));
        assert_eq!(config.rules[0].comment.as_ref().map(Comment::as_str), Some("by hand"));
        assert_eq!(
            config.rules[1].action,
            Action::Split { handshake: Some(Handshake::Faithful), weight: Weight::try_from(4).unwrap() }
        );
        assert_eq!((config.rules[2].action, config.rules[3].action), (Action::Snoop, Action::Reject));
        assert_eq!((config.rules[4].action, config.bundle_port()), (Action::Bundle, Some(7990)));
        let snoop = config.snoop_config().unwrap();
        assert_eq!((snoop.cache, snoop.flows, snoop.retransmissions), (ByteCount::new(2 << 20), 1000, 3));
        assert_eq!((snoop.timer_floor, snoop.hide_sack), (Duration::from_millis(100), false));
        assert_eq!(config.terrestrial.settings().pacing_cap, Some(Rate::mbps(100)));
    }

    #[test]
    fn an_interface_is_all_that_a_leg_needs() {
        let config = Config::parse("x", "[legs.geo]\ninterface = \"sat0\"").unwrap();
        let settings = config.legs["geo"].settings();
        assert_eq!(settings.congestion.as_deref(), Some("explicit"));
        assert_eq!(settings.rtt, Duration::from_millis(600));
        assert_eq!((settings.pacing_cap, settings.fast_open), (None, false));
        assert_eq!(config.terrestrial.settings().congestion, None);
        assert_eq!(config.proxy.port.get(), 7600);
    }

    #[test]
    fn an_error_names_file_line_key_and_accepted_values() {
        let error = message("[legs.a]\ninterface = \"sat0\"\nrate = \"10X\"\n");
        assert!(error.starts_with("bentpipe.toml:3: legs.a.rate: \"10X\" is not a bit rate"), "{error}");
        assert!(error.contains("10Mbit/s"), "{error}");

        let error = message("[proxy]\nrelay = \"magic\"\n");
        assert!(error.contains(":2: proxy.relay: ") && error.contains("copy or splice"), "{error}");

        let error = message("[legs.a]\ninterface = \"sat0\"\nspeed = 3\n");
        assert!(error.contains(":3: legs.a.speed: ") && error.contains(" rate, "), "{error}");

        let error = message("[proxy]\nport = 0\n");
        assert!(error.contains(":2: proxy.port: 0 is not a port; write 1 to 65535"), "{error}");
    }

    #[test]
    fn an_error_in_a_list_or_in_a_table_of_many_names_its_key() {
        let error =
            message("[[rules]]\naction = \"pass\"\n[[rules]]\naction = \"pass\"\nport = [22, \"x\"]\n");
        assert!(error.contains("bentpipe.toml:5: rules[2].port[2]: \"x\" is not a port"), "{error}");

        let error =
            message("[[rules]]\naction = \"pass\"\nclient = [\n  \"10.0.0.0/8\",\n  \"10.1.2.3/16\",\n]\n");
        assert!(error.contains(":5: rules[1].client[2]: \"10.1.2.3/16\" has bits set"), "{error}");

        let error = message("[legs.a]\ninterface = \"sat0\"\nthis is not TOML\n");
        assert!(error.contains("bentpipe.toml:3: "), "{error}");
    }

    #[test]
    fn each_error_is_one_line_that_begins_with_its_file() {
        for text in
            ["[legs.a]\ninterface = 'x\"y'", "[[", "legs = 3", "[legs.a]\n", "[proxy]\nworkers = 1000", ""]
        {
            let error = message(text);
            assert!(error.lines().all(|line| line.starts_with("bentpipe.toml:")), "{error}");
        }
    }

    #[test]
    fn two_legs_on_one_interface_are_refused() {
        let error = message("[legs.a]\ninterface = \"sat0\"\n[legs.b]\ninterface = \"sat0\"\n");
        assert!(error.contains("legs a and b both have interface \"sat0\""), "{error}");
    }

    #[test]
    fn a_port_without_room_for_its_successors_is_refused() {
        let error = message("[proxy]\nport = 65534\n[legs.a]\ninterface = \"sat0\"\n");
        assert!(error.contains("the 12 ports that the daemon may use; choose at most 65524"), "{error}");
    }

    #[test]
    fn errors_of_different_sections_are_reported_together() {
        let text = "[legs.a]\ninterface = \"lo\"\nrate = \"10\"\n[limits]\nburst = 3\n[admin]\nlisten = \"0.0.0.0:1\"\n\
                    [access_log]\nfile = \"x\"\n[[rules]]\naction = \"pass\"\n[[rules]]\naction = \"split\"\n";
        let error = message(text);
        let keys = [
            "2: legs.a.interface",
            "3: legs.a.rate",
            "5: limits.burst",
            "7: admin.listen",
            "9: access_log.file",
            "12: rules[2]",
        ];
        assert_eq!(error.lines().count(), keys.len(), "{error}");
        for (line, key) in error.lines().zip(keys) {
            assert!(line.starts_with(&format!("bentpipe.toml:{key}: ")), "{line}");
        }
    }

    #[test]
    fn an_interface_name_cannot_smuggle_a_rule() {
        let error = message("[legs.a]\ninterface = '\" accept'\n");
        assert!(error.contains("is not an interface name"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::load("/nonexistent/bentpipe.toml").unwrap_err().to_string();
        assert!(error.starts_with("cannot read /nonexistent/bentpipe.toml: "), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_configuration_or_lines_of_errors(text in "\\PC*") {
            if let Err(error) = Config::parse("x", &text) {
                let text = error.to_string();
                prop_assert!(text.lines().all(|line| line.starts_with("x:")), "{text}");
            }
        }

        #[test]
        fn any_change_of_a_good_text_is_a_configuration_or_an_error(
            position in 0..FULL.len(), length in 0usize..20, insert in "[\\[\\]=\"a-z0-9.\\n é]{0,6}"
        ) {
            let end = (position + length).min(FULL.len());
            let _ = Config::parse("x", &format!("{}{insert}{}", &FULL[..position], &FULL[end..]));
        }
    }
}
