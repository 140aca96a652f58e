//! `[bundle]`: where the bundle node of this host takes the connections that rules hand to it.

use bentpipe_config::Problem;
use serde::Deserialize;

use super::change::key_effects;
use super::values::Port;
use super::{Action, Config};
use crate::types::leg_pair::PORT_RANGES;

/// The node's port where nothing else is said.
const PORT: Port = match Port::new(7690) {
    Some(port) => port,
    None => unreachable!(),
};

/// `[bundle]`: it counts where a rule says `bundle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BundleSettings {
    /// The port on the loopback addresses, 127.0.0.1 and ::1, of the node's transparent listeners; 7690 by
    /// default.
    pub port: Port,
}

key_effects!(BundleSettings { port: NewConnections });

impl Default for BundleSettings {
    fn default() -> Self {
        Self { port: PORT }
    }
}

impl Config {
    /// The port that connections are handed to for which a rule says `bundle`, if any does.
    pub fn bundle_port(&self) -> Option<u16> {
        let wanted = self.rules.iter().any(|rule| rule.action == Action::Bundle);
        wanted.then_some(self.bundle.port.get())
    }
}

/// Checks that the node's port is none of the daemon's own.
pub(super) fn check(config: &Config) -> Result<(), Problem> {
    let (first, ports) = (usize::from(config.proxy.port.get()), config.path_count() * PORT_RANGES);
    let last = first + ports - 1;
    match config.bundle_port().map(usize::from) {
        Some(port) if (first..=last).contains(&port) => {
            let message = format!(
                "{port} is one of the ports {first} to {last} that the daemon may use itself; choose another port for the node, \
                 or another proxy.port"
            );
            Err(Problem::of("port", message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "[[rules]]\naction = \"bundle\"\nport = 80\n";

    fn parse(text: &str) -> Result<Config, String> {
        let leg = "[legs.a]\ninterface = \"sat0\"\n";
        Config::parse("x", &format!("{text}{leg}{RULE}")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_port_counts_where_a_rule_says_bundle() {
        let config = Config::parse("x", "[bundle]\nport = 8000\n[legs.a]\ninterface = \"sat0\"\n").unwrap();
        assert_eq!(config.bundle_port(), None);
        assert_eq!(parse("").unwrap().bundle_port(), Some(7690));
        assert_eq!(parse("[bundle]\nport = 8000\n").unwrap().bundle_port(), Some(8000));
        let error = parse("[bundle]\nport = 0\n").unwrap_err();
        assert!(error.contains(":2: bundle.port: 0 is not a port"), "{error}");
    }

    #[test]
    fn a_port_of_the_daemons_own_is_refused_to_the_last_of_them() {
        // One leg: three paths, four times.
        for (port, own) in [(7599, false), (7600, true), (7611, true), (7612, false)] {
            let outcome = parse(&format!("[bundle]\nport = {port}\n"));
            assert_eq!(outcome.is_err(), own, "{port}");
            let complaint = format!("x:2: bundle.port: {port} is one of the ports 7600 to 7611 ");
            assert!(outcome.err().is_none_or(|error| error.contains(&complaint)));
        }
        let error = parse("[proxy]\nport = 7680\n").unwrap_err();
        assert!(error.contains("7690 is one of the ports 7680 to 7691 ") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn without_a_rule_the_daemon_may_use_the_port_itself() {
        let text = "[proxy]\nport = 7680\n[legs.a]\ninterface = \"sat0\"\n";
        assert!(Config::parse("x", text).is_ok());
    }
}
