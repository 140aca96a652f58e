//! `[admin]`: the sockets for status and commands.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bentpipe_config::Problem;
use serde::Deserialize;

use super::Config;
use super::change::key_effects;

/// `[admin]`: a Unix socket for everything, and a TCP address for the page and the metrics.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminSettings {
    /// The folder of the daemon's sockets, `/run/bentpipe` by default; each daemon of a host needs its own.
    pub folder: PathBuf,
    /// Where the page and the metrics are; 127.0.0.1:7500 by default.
    pub listen: Listen,
    /// A file whose first line is what callers must know; without one `listen` must be a loopback address.
    pub token_file: Option<PathBuf>,
    /// The folder of what outlives the daemon; see [`kept_in`](Self::kept_in) for the default.
    pub state_folder: Option<PathBuf>,
    /// The socket of this host's bundle node, whose state the page shows if it runs; `/run/bentpipe/dtn.sock` by
    /// default.
    pub node_socket: PathBuf,
}

key_effects!(AdminSettings {
    folder: Upgrade,
    listen: Upgrade,
    token_file: Upgrade,
    state_folder: Upgrade,
    node_socket: Upgrade
});

/// Where the page and the metrics are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Listen {
    /// Nowhere but on the Unix socket.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl AdminSettings {
    /// The Unix socket that speaks HTTP.
    pub fn socket(&self) -> PathBuf {
        admin_socket(&self.folder)
    }

    /// The Unix socket by which a successor takes over.
    pub fn handover_socket(&self) -> PathBuf {
        self.folder.join("handover.sock")
    }

    /// The folder of what outlives the daemon: `state_folder`, or else `from_manager`, the one that a service
    /// manager provides.
    pub fn kept_in<'a>(&'a self, from_manager: Option<&'a Path>) -> Option<&'a Path> {
        self.state_folder.as_deref().or(from_manager)
    }

    /// The file that exists while the bypass is on, in that folder, or else beside the sockets.
    pub fn bypass_file(&self, from_manager: Option<&Path>) -> PathBuf {
        self.kept_in(from_manager).unwrap_or(&self.folder).join("bypass")
    }
}

/// The Unix socket that speaks HTTP, in the folder of a daemon.
pub fn admin_socket(folder: &Path) -> PathBuf {
    folder.join("admin.sock")
}

impl Default for AdminSettings {
    fn default() -> Self {
        Self {
            folder: "/run/bentpipe".into(),
            listen: Listen::default(),
            token_file: None,
            state_folder: None,
            node_socket: "/run/bentpipe/dtn.sock".into(),
        }
    }
}

impl Default for Listen {
    fn default() -> Self {
        Self::At(SocketAddr::from(([127, 0, 0, 1], 7500)))
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|_| {
            format!("\"{text}\" is not an address with a port; write \"127.0.0.1:7500\", \"[::1]:7500\" or \"off\"")
        })
    }
}

/// Checks that callers from other hosts need a token.
pub(super) fn check(config: &Config) -> Result<(), Problem> {
    let AdminSettings { listen, token_file, .. } = &config.admin;
    match listen {
        Listen::At(address) if !address.ip().is_loopback() && token_file.is_none() => {
            let message = format!(
                "\"{address}\" can be reached from outside; name a file with a secret in admin.token_file, or listen on \
                 127.0.0.1"
            );
            Err(Problem::of("listen", message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AdminSettings, String> {
        let text = format!("[admin]\n{text}\n[legs.a]\ninterface = \"sat0\"\n");
        Config::parse("x", &text).map(|config| config.admin).map_err(|error| error.to_string())
    }

    #[test]
    fn by_default_it_is_seen_from_this_host_only() {
        let settings = parse("").unwrap();
        assert_eq!(settings, AdminSettings::default());
        assert_eq!(settings.socket(), Path::new("/run/bentpipe/admin.sock"));
        assert!(matches!(settings.listen, Listen::At(address) if address.ip().is_loopback()));
        assert_eq!(parse("listen = \"off\"").unwrap().listen, Listen::Off);
    }

    #[test]
    fn state_is_kept_where_the_operator_says_or_else_where_the_service_manager_does() {
        let manager = Some(Path::new("/var/lib/x"));
        let settings = parse("").unwrap();
        assert_eq!(settings.bypass_file(None), Path::new("/run/bentpipe/bypass"));
        assert_eq!(settings.bypass_file(manager), Path::new("/var/lib/x/bypass"));
        let settings = parse("state_folder = \"/srv/y\"").unwrap();
        assert_eq!(settings.bypass_file(manager), Path::new("/srv/y/bypass"));
    }

    #[test]
    fn a_public_address_requires_a_token() {
        let error = parse("listen = \"0.0.0.0:7500\"").unwrap_err();
        assert!(
            error.contains("can be reached from outside") && error.contains("admin.token_file"),
            "{error}"
        );
        assert!(parse("listen = \"[::]:7500\"\ntoken_file = \"/etc/bentpipe/token\"").is_ok());
        assert!(parse("listen = \"[::1]:7500\"").is_ok());
    }

    #[test]
    fn an_invalid_address_is_refused_with_its_key() {
        let error = parse("listen = \"7500\"").unwrap_err();
        assert!(error.contains("x:2: admin.listen: ") && error.contains("127.0.0.1:7500"), "{error}");
    }
}
