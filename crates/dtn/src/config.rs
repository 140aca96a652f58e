//! `node.toml`: what the operator says of a bundle node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use bentpipe_legs::{SatelliteLeg, TerrestrialLeg};
use bentpipe_units::{ByteCount, Rate, Span};
use serde::Deserialize;

use crate::{DtnTime, Eid, EidPattern};

mod date;
#[cfg(test)]
mod shipped;
mod transfer;

pub use transfer::{EgressSettings, IngressSettings};

/// The fewest bytes of payload that a fragment is cut to: below, heads and acknowledgements outweigh them.
const SMALLEST_FRAGMENT: u64 = 4096;

/// The whole configuration of a node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The node itself.
    pub node: NodeSettings,
    /// The satellite legs by name.
    #[serde(default)]
    pub legs: BTreeMap<String, SatelliteLeg>,
    /// Sockets of no satellite leg.
    #[serde(default)]
    pub terrestrial: TerrestrialLeg,
    /// Where other nodes connect to.
    #[serde(default)]
    pub listen: Vec<Listen>,
    /// The nodes that this one speaks with.
    #[serde(default)]
    pub peers: Vec<PeerSettings>,
    /// Where bundles go that are for nobody of these.
    #[serde(default)]
    pub routes: Vec<RouteSettings>,
    /// When nodes can speak with each other.
    #[serde(default)]
    pub contacts: Vec<ContactSettings>,
    /// Where HTTP PUTs and files come in that travel as bundles.
    #[serde(default)]
    pub inlets: Vec<IngressSettings>,
    /// Where they come out.
    #[serde(default)]
    pub outlets: Vec<EgressSettings>,
}

/// `[node]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// Who it is: `dtn://name/` or `ipn:5.0`.
    pub id: Eid,
    /// The folder of its store.
    #[serde(default = "default_store")]
    pub store: PathBuf,
    /// Bytes of payload that the store takes at the most.
    #[serde(default = "default_quota")]
    pub quota: ByteCount,
    /// Bundles that the store takes at the most.
    #[serde(default = "default_max_bundles")]
    pub max_bundles: usize,
    /// What is to stay free of the store's file system.
    #[serde(default = "default_keep_free")]
    pub keep_free: ByteCount,
    /// The Unix socket where applications speak with it.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// Its certificate and its key, PEM; `bentpipe dtn identity` makes both.
    pub certificate: Option<PathBuf>,
    /// See [`certificate`](Self::certificate).
    pub key: Option<PathBuf>,
    /// How long a bundle is of use where its application does not say.
    #[serde(default = "default_lifetime")]
    pub lifetime: Span,
    /// Whether status reports that bundles ask for are made.
    #[serde(default = "yes")]
    pub status_reports: bool,
    /// The account, USER or USER:GROUP, that a node started by root goes on as.
    pub user: Option<String>,
}

/// `[[listen]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Address and port; that of TCPCL is 4556.
    pub address: SocketAddr,
    /// The leg whose settings its connections have; none is the terrestrial one.
    pub leg: Option<String>,
}

/// `[[peers]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSettings {
    /// Who it is.
    pub id: Eid,
    /// Where it listens; without it this node waits to be connected.
    pub address: Option<SocketAddr>,
    /// The leg that leads to it; none is the terrestrial one.
    pub leg: Option<String>,
    /// Whether the connection is encrypted; by default where both have a certificate.
    pub tls: Option<TlsChoice>,
    /// The one certificate that it may have, PEM.
    pub certificate: Option<PathBuf>,
    /// Payloads that are longer go in fragments of at most this size.
    pub fragment_above: Option<ByteCount>,
    /// Takes the place of the segment MRU that it says.
    pub segment_mru: Option<ByteCount>,
    /// Takes the place of the transfer MRU that it says.
    pub transfer_mru: Option<ByteCount>,
    /// Overlook what it says wrongly of the lengths of its transfers, and extensions that are malformed.
    #[serde(default)]
    pub lenient: bool,
    /// How often something is heard of an idle peer; by default a minute, and no less than half of what its leg survives.
    pub keepalive: Option<Span>,
    /// The longest wait between two attempts to connect.
    #[serde(default = "default_retry")]
    pub retry_within: Span,
}

/// Whether a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsChoice {
    /// Always, or there is none.
    Required,
    /// Never.
    Off,
}

/// `[[routes]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// Whose bundles.
    pub to: EidPattern,
    /// The peer that they go to.
    pub via: Eid,
}

/// `[[contacts]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContactSettings {
    /// Who sends.
    pub from: Eid,
    /// Who receives.
    pub to: Eid,
    /// When it begins: a date and time with an offset, `2027-01-31T06:00:00Z`.
    pub start: Date,
    /// When it ends.
    pub end: Date,
    /// How fast it is.
    pub rate: Rate,
    /// How long a bit travels.
    #[serde(default)]
    pub delay: Span,
}

/// A date and time of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "toml::value::Datetime")]
pub struct Date(pub DtnTime);

/// Why a configuration could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {file}: {source}")]
    Read {
        /// The file's path.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line says something that is not accepted.
    #[error("{file}: {message}")]
    Line {
        /// The file's path.
        file: String,
        /// What is wrong, where, and what would be accepted.
        message: String,
    },
    /// Each line is well, the whole is not.
    #[error("{file}: {message}")]
    Whole {
        /// The file's path.
        file: String,
        /// What is wrong and what would be accepted.
        message: String,
    },
}

impl NodeConfig {
    /// Reads and checks a configuration file. Paths in it that are not absolute are relative to its folder.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: impl AsRef<std::path::Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { file: file.clone(), source })?;
        let mut config = Self::parse(&file, &text)?;
        if let Some(folder) = path.parent() {
            config.resolve(folder);
        }
        Ok(config)
    }

    /// Reads and checks a configuration; `file` is the name that errors give it.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let line = |error: toml::de::Error| ConfigError::Line {
            file: file.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        };
        let config: Self = toml::from_str(text).map_err(line)?;
        match config.contradiction() {
            Some(message) => Err(ConfigError::Whole { file: file.to_owned(), message }),
            None => Ok(config),
        }
    }

    fn resolve(&mut self, folder: &std::path::Path) {
        let node = &mut self.node;
        let own =
            [Some(&mut node.store), Some(&mut node.socket), node.certificate.as_mut(), node.key.as_mut()];
        let of_peers = self.peers.iter_mut().map(|peer| peer.certificate.as_mut());
        let of_inlets = self.inlets.iter_mut().map(|inlet| match inlet {
            IngressSettings::Folder { folder, .. } => Some(folder),
            IngressSettings::Http { .. } => None,
        });
        let of_outlets = self.outlets.iter_mut().flat_map(|outlet| match outlet {
            EgressSettings::Folder { folder, undelivered, .. } => [Some(folder), undelivered.as_mut()],
            EgressSettings::Http { undelivered, .. } => [None, undelivered.as_mut()],
        });
        let all = own.into_iter().chain(of_peers).chain(of_inlets).chain(of_outlets);
        for path in all.flatten() {
            *path = folder.join(&*path);
        }
    }

    /// What no single line could be blamed for.
    fn contradiction(&self) -> Option<String> {
        let node = &self.node;
        if !node.id.is_node() {
            return Some(format!("node.id = \"{}\" is no node; write dtn://name/ or ipn:5.0", node.id));
        }
        if node.certificate.is_some() != node.key.is_some() {
            return Some(
                "node.certificate and node.key go together; `bentpipe dtn identity` makes both".into(),
            );
        }
        if node.lifetime.get().is_zero() {
            return Some("node.lifetime is zero: every bundle would be given up at once".into());
        }
        self.unknown_leg()
            .or_else(|| self.doubtful_peer())
            .or_else(|| self.doubtful_route())
            .or_else(|| self.doubtful_contact())
            .or_else(|| self.outlets.iter().find_map(EgressSettings::contradiction))
    }

    fn unknown_leg(&self) -> Option<String> {
        let of_listeners = self.listen.iter().filter_map(|listen| listen.leg.as_ref());
        let mut named = of_listeners.chain(self.peers.iter().filter_map(|peer| peer.leg.as_ref()));
        let unknown = named.find(|leg| !self.legs.contains_key(*leg))?;
        Some(format!(
            "there is no leg \"{unknown}\"; write [legs.{unknown}], or leave leg out for the terrestrial one"
        ))
    }

    fn doubtful_peer(&self) -> Option<String> {
        let mut seen = BTreeSet::new();
        self.peers.iter().find_map(|peer| {
            let id = &peer.id;
            let has = |what: Option<ByteCount>, least: u64| what.is_some_and(|size| size.get() < least);
            if !id.is_node() {
                Some(format!("peer \"{id}\" is no node; write dtn://name/ or ipn:5.0"))
            } else if *id == self.node.id {
                Some(format!("peer \"{id}\" is this node itself"))
            } else if !seen.insert(id) {
                Some(format!("peer \"{id}\" is there twice"))
            } else if peer.tls == Some(TlsChoice::Required)
                && (peer.certificate.is_none() || self.node.certificate.is_none())
            {
                Some(format!(
                    "peer \"{id}\" has tls = \"required\": give its certificate, and this node's as node.certificate \
                     and node.key"
                ))
            } else if has(peer.fragment_above, SMALLEST_FRAGMENT) {
                Some(format!("peer \"{id}\": fragment_above is at least {SMALLEST_FRAGMENT} bytes"))
            } else if has(peer.segment_mru, 64) || has(peer.transfer_mru, SMALLEST_FRAGMENT) {
                Some(format!(
                    "peer \"{id}\": segment_mru is at least 64 bytes and transfer_mru at least {SMALLEST_FRAGMENT}"
                ))
            } else if peer.retry_within.get().is_zero() {
                Some(format!("peer \"{id}\": retry_within is zero; one second or more leaves the network in peace"))
            } else {
                None
            }
        })
    }

    fn doubtful_route(&self) -> Option<String> {
        let known = |id: &Eid| self.peers.iter().any(|peer| peer.id == *id);
        let route = self.routes.iter().find(|route| !known(&route.via))?;
        Some(format!(
            "the route to {} goes via {}, who is no peer; add [[peers]] with that id",
            route.to, route.via
        ))
    }

    fn doubtful_contact(&self) -> Option<String> {
        self.contacts.iter().find_map(|contact| {
            let ContactSettings { from, to, .. } = contact;
            if !from.is_node() || !to.is_node() {
                Some(format!("the contact from {from} to {to}: both are nodes, dtn://name/ or ipn:5.0"))
            } else if contact.start.0 >= contact.end.0 {
                Some(format!("the contact from {from} to {to} ends before it starts"))
            } else {
                None
            }
        })
    }
}

impl PeerSettings {
    /// Whether what is said to it is encrypted, where this node has a certificate or has none.
    pub fn is_encrypted(&self, has_identity: bool) -> bool {
        match self.tls {
            Some(choice) => choice == TlsChoice::Required,
            None => has_identity && self.certificate.is_some(),
        }
    }
}

fn default_store() -> PathBuf {
    "/var/lib/bentpipe/dtn".into()
}

fn default_socket() -> PathBuf {
    "/run/bentpipe/dtn.sock".into()
}

fn default_quota() -> ByteCount {
    ByteCount::new(10_000_000_000)
}

fn default_keep_free() -> ByteCount {
    ByteCount::new(100_000_000)
}

fn default_max_bundles() -> usize {
    100_000
}

fn default_lifetime() -> Span {
    Span(std::time::Duration::from_secs(7 * 24 * 3600))
}

fn default_retry() -> Span {
    Span(std::time::Duration::from_secs(10))
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "[node]\nid = \"dtn://gs1/\"\n";

    fn error(text: &str) -> String {
        NodeConfig::parse("node.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn a_name_is_enough() {
        let config = NodeConfig::parse("node.toml", LEAST).unwrap();
        assert_eq!(config.node.quota, ByteCount::new(10_000_000_000));
        assert!(config.peers.is_empty() && config.node.status_reports);
    }

    #[test]
    fn what_contradicts_itself_says_what_to_do() {
        let peer = |rest: &str| format!("{LEAST}[[peers]]\nid = \"dtn://gs2/\"\n{rest}");
        for (text, says) in [
            ("[node]\nid = \"dtn://gs1/files\"\n".into(), "is no node"),
            ("[node]\nid = \"gs1\"\n".into(), "dtn://node/service"),
            ("[node]\nid = \"dtn://gs1/\"\nlifetime = \"0s\"\n".into(), "lifetime"),
            ("[node]\nid = \"dtn://gs1/\"\nkey = \"k\"\n".into(), "go together"),
            (peer("leg = \"moon\"\n"), "no leg \"moon\""),
            (peer("[[peers]]\nid = \"dtn://gs2/\"\n"), "twice"),
            (peer("[[peers]]\nid = \"dtn://gs1/\"\n"), "itself"),
            (peer("tls = \"required\"\n"), "certificate"),
            (peer("fragment_above = \"1kB\"\n"), "fragment_above"),
            (peer("segment_mru = \"1B\"\n"), "segment_mru"),
            (peer("retry_within = \"0s\"\n"), "retry_within"),
            (peer("colour = \"red\"\n"), "colour"),
            (format!("{LEAST}[[routes]]\nto = \"*\"\nvia = \"dtn://gs3/\"\n"), "no peer"),
            (contact("2027-01-02T00:00:00Z", "2027-01-01T00:00:00Z"), "ends before"),
            (contact("2027-01-02", "2027-01-03"), "offset"),
            (outlet(""), "does not say where PUTs may go"),
            (outlet("to = [\"10.2.0.1/16\"]\n"), "behind its prefix"),
            (outlet("to = [\"10.2.0.0/16\"]\nserver = \"192.0.2.1:80\"\n"), "leave to out"),
            (inlet("[]"), "no address"),
            (inlet("\"7690\""), "no address with a port"),
        ] {
            let error = error(&text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    fn outlet(rest: &str) -> String {
        format!("{LEAST}[[outlets]]\nkind = \"http\"\nservice = \"web\"\nfrom = \"dtn://gs2/*\"\n{rest}")
    }

    fn inlet(address: &str) -> String {
        format!("{LEAST}[[inlets]]\nkind = \"http\"\naddress = {address}\nto = \"dtn://gs2/web\"\n")
    }

    fn contact(start: &str, end: &str) -> String {
        format!(
            "{LEAST}[[contacts]]\nfrom = \"dtn://gs1/\"\nto = \"dtn://gs2/\"\nstart = {start}\nend = {end}\n\
             rate = \"1Mbit/s\"\n"
        )
    }

    #[test]
    fn encryption_is_on_where_both_have_certificates() {
        let text = format!("{LEAST}[[peers]]\nid = \"dtn://gs2/\"\ncertificate = \"gs2.pem\"\n");
        let peer = NodeConfig::parse("node.toml", &text).unwrap().peers.remove(0);
        assert!(peer.is_encrypted(true) && !peer.is_encrypted(false));
        assert!(!PeerSettings { tls: Some(TlsChoice::Off), ..peer }.is_encrypted(true));
    }
}
