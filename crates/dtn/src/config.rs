//! `node.toml`: the configuration of a bundle node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bentpipe_config::{Address, Checked, Checks, Document, InTable, Problem};
use bentpipe_legs::{SatelliteLeg, TerrestrialLeg};
use bentpipe_units::{ByteCount, Span};
use serde::Deserialize;

use crate::route::Contact;
use crate::{DtnTime, Eid, EidPattern};

mod contact_plan;
mod ltp;
mod peer_address;
#[cfg(test)]
mod shipped_tests;
mod transfer;
mod udp;

pub use bentpipe_config::Error as ConfigError;
pub use ltp::{LtpAuthentication, LtpColor, LtpSettings, PeerLtpSettings};
pub use peer_address::PeerAddress;
pub use transfer::{EgressSettings, IngressSettings};
pub use udp::{PeerUdpSettings, UdpSettings};

use ltp::{datagram_problem, default_datagram};

/// The smallest fragment size, bytes of payload: heads and acknowledgements outweigh smaller ones.
const SMALLEST_FRAGMENT: u64 = 4096;
/// The fewest bytes of a segment.
const SMALLEST_SEGMENT: u64 = 64;
/// What an error shows where a key is missing.
const EXAMPLES: &[(&str, &str)] = &[
    ("node", "{ id = \"dtn://gateway/\" }"),
    ("id", "\"dtn://gateway/\""),
    ("interface", "\"sat0\""),
    ("address", "\"0.0.0.0:4556\""),
    ("service", "\"transfers\""),
    ("source", "\"dtn://gateway/*\""),
];

/// The whole configuration of a node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The node itself.
    pub node: NodeSettings,
    /// The satellite legs by name.
    #[serde(default)]
    pub legs: BTreeMap<String, SatelliteLeg>,
    /// The leg of all other sockets.
    #[serde(default)]
    pub terrestrial: TerrestrialLeg,
    /// The addresses where other nodes connect.
    #[serde(default)]
    pub listen: Vec<Listen>,
    /// The engine of LTP, for peers that are reached by it.
    pub ltp: Option<LtpSettings>,
    /// The socket for bundles in datagrams, for peers that are reached by them.
    pub udp: Option<UdpSettings>,
    /// The nodes that this one has sessions with.
    #[serde(default)]
    pub peers: Vec<PeerSettings>,
    /// Where bundles for other nodes go.
    #[serde(default)]
    pub routes: Vec<RouteSettings>,
    /// When nodes can speak with each other.
    #[serde(default)]
    pub contacts: Vec<Contact>,
    /// Which bundles are protected from their source to their destination.
    #[serde(default)]
    pub security: Vec<SecuritySettings>,
    /// Where HTTP PUTs and files enter the network.
    #[serde(default)]
    pub inlets: Vec<IngressSettings>,
    /// Where they leave it.
    #[serde(default)]
    pub outlets: Vec<EgressSettings>,
}

/// `[node]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// Its endpoint: `dtn://name/` or `ipn:5.0`.
    pub id: Eid,
    /// The folder of its store.
    #[serde(default = "default_store")]
    pub store: PathBuf,
    /// The most bytes of payload in the store.
    #[serde(default = "default_quota")]
    pub quota: ByteCount,
    /// The most bundles in the store.
    #[serde(default = "default_max_bundles")]
    pub max_bundles: usize,
    /// What stays free on the store's file system.
    #[serde(default = "default_keep_free")]
    pub keep_free: ByteCount,
    /// The Unix socket for applications.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// A file with contacts beside those of the configuration, in ION's format.
    pub contact_plan: Option<PathBuf>,
    /// Where the metrics are over TCP; by default only on the socket.
    pub metrics: Option<Address>,
    /// A file whose first line is what callers of `metrics` must know; without one it must be a loopback address.
    pub metrics_token_file: Option<PathBuf>,
    /// Its certificate and its key, PEM; `bentpipe dtn identity` makes both.
    pub certificate: Option<PathBuf>,
    /// See [`certificate`](Self::certificate).
    pub key: Option<PathBuf>,
    /// The authority that issues the certificates of peers without one, PEM.
    pub authority: Option<PathBuf>,
    /// The lifetime of bundles whose application does not choose one.
    #[serde(default = "default_lifetime")]
    pub lifetime: Span,
    /// Whether it sends the status reports that bundles request.
    #[serde(default = "yes")]
    pub status_reports: bool,
    /// The service that sends back what comes to it; by default `echo`, or 2047 of an `ipn` node. An empty name
    /// turns it off.
    pub echo: Option<String>,
    /// The account, USER or USER:GROUP, that a node started by root drops to.
    pub user: Option<String>,
}

/// `[[listen]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Address and port; that of TCPCL is 4556.
    pub address: SocketAddr,
    /// The leg whose settings its connections get; by default the terrestrial one.
    pub leg: Option<String>,
}

/// `[[peers]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSettings {
    /// Its endpoint.
    pub id: Eid,
    /// Where it listens; without it this node waits to be connected.
    pub address: Option<PeerAddress>,
    /// The leg that leads to it; by default the terrestrial one.
    pub leg: Option<String>,
    /// Whether the connection is encrypted; by default where both have a certificate.
    pub tls: Option<TlsChoice>,
    /// Its certificate, PEM.
    pub certificate: Option<PathBuf>,
    /// Without a certificate here: the authority that issues it, PEM; by default that of the node.
    pub authority: Option<PathBuf>,
    /// What may name it in a certificate of an authority that has no bundle EID; by default the DNS name of its
    /// address.
    pub other_names: Option<Vec<OtherName>>,
    /// Payloads that are longer go in fragments of at most this size.
    pub fragment_above: Option<ByteCount>,
    /// Replaces the segment MRU that it announces.
    pub segment_mru: Option<ByteCount>,
    /// Replaces the transfer MRU that it announces.
    pub transfer_mru: Option<ByteCount>,
    /// Ignore wrong transfer lengths and malformed extensions.
    #[serde(default)]
    pub lenient: bool,
    /// The keepalive interval; by default a minute, and at least half of the outage that its leg survives.
    pub keepalive: Option<Span>,
    /// The longest wait between two attempts to connect.
    #[serde(default = "default_retry")]
    pub retry_within: Span,
    /// How it is reached by LTP, in place of TCPCL.
    pub ltp: Option<PeerLtpSettings>,
    /// How it is reached by bundles in UDP datagrams, in place of TCPCL.
    pub udp: Option<PeerUdpSettings>,
}

/// Whether a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsChoice {
    /// Always.
    Required,
    /// Never.
    Off,
}

/// A kind of name in a certificate, beside the bundle EID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OtherName {
    /// The node's endpoint as a URI.
    Uri,
    /// The DNS name of the peer's address.
    Dns,
}

/// `[[routes]]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteSettings {
    /// The destinations.
    pub to: EidPattern,
    /// The peer that they go to.
    pub via: Eid,
}

/// `[[security]]`: bundles that match are protected where this node is their source, and have to be where it is
/// their destination. The first that matches counts.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecuritySettings {
    /// The sources.
    pub source: EidPattern,
    /// The destinations; by default all.
    #[serde(default = "everywhere")]
    pub destination: EidPattern,
    /// The file of the key for integrity.
    pub integrity: Option<PathBuf>,
    /// The file of the key for confidentiality.
    pub confidentiality: Option<PathBuf>,
    /// The file of the key that unwraps keys which come with bundles.
    pub key_encryption: Option<PathBuf>,
}

impl NodeConfig {
    /// Reads and checks a configuration file. Paths in it that are not absolute are relative to its folder.
    ///
    /// # Errors
    /// The file cannot be read, or everything in it that is not accepted.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let mut config = Self::of(&Document::load(path)?)?.value;
        if let Some(folder) = path.parent() {
            config.resolve(folder);
        }
        Ok(config)
    }

    /// Reads and checks a configuration; `file` is the name that errors give it.
    ///
    /// # Errors
    /// Everything in it that is not accepted.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        Self::of(&Document::parse(file, text)?).map(|read| read.value)
    }

    /// Reads and checks a document, and the contact plan that it names. What is accepted, but hardly meant, is in
    /// the warnings.
    ///
    /// # Errors
    /// Everything in either that is not accepted.
    pub fn with_contact_plan(document: &Document, now: DtnTime) -> Result<Checked<Self>, ConfigError> {
        let mut read = Self::of(document)?;
        if let Some(folder) = Path::new(document.file()).parent() {
            read.value.resolve(folder);
        }
        read.warnings.extend(read.value.read_contact_plan(now)?);
        Ok(read)
    }

    /// Whether a document's tables are those of this configuration rather than another's.
    pub fn is_meant_by(document: &Document) -> bool {
        ["node", "peers", "routes", "contacts"].iter().any(|key| document.get(key).is_some())
    }

    /// Reads and checks a document; paths stay as they are written.
    ///
    /// # Errors
    /// Everything in it that is not accepted.
    pub fn of(document: &Document) -> Result<Checked<Self>, ConfigError> {
        let mut read = document.clone().with_examples(EXAMPLES).read_checked(Self::check)?;
        read.value.inherit_authority();
        Ok(read)
    }

    /// Peers without a certificate have it from the node's authority.
    fn inherit_authority(&mut self) {
        let without = |peer: &&mut PeerSettings| peer.certificate.is_none() && !peer.uses_datagrams();
        for peer in self.peers.iter_mut().filter(without) {
            peer.authority = peer.authority.take().or_else(|| self.node.authority.clone());
        }
    }

    /// Whether an outlet delivers the bundles of this service.
    pub(crate) fn has_outlet(&self, service: &str) -> bool {
        self.outlets.iter().any(|outlet| {
            let (EgressSettings::Http { service: other, .. } | EgressSettings::Folder { service: other, .. }) =
                outlet;
            other == service
        })
    }

    fn resolve(&mut self, folder: &Path) {
        let node = &mut self.node;
        let own = [
            Some(&mut node.store),
            Some(&mut node.socket),
            node.metrics_token_file.as_mut(),
            node.certificate.as_mut(),
            node.key.as_mut(),
            node.authority.as_mut(),
            node.contact_plan.as_mut(),
        ];
        let of_peers = self.peers.iter_mut();
        let of_peers = of_peers.flat_map(|peer| {
            let (key, peer_key) =
                peer.ltp.as_mut().map_or((None, None), |ltp| (ltp.key.as_mut(), ltp.peer_key.as_mut()));
            [peer.certificate.as_mut(), peer.authority.as_mut(), key, peer_key]
        });
        let of_inlets = self.inlets.iter_mut().map(|inlet| match inlet {
            IngressSettings::Folder { folder, .. } => Some(folder),
            IngressSettings::Http { .. } => None,
        });
        let of_outlets = self.outlets.iter_mut().flat_map(|outlet| match outlet {
            EgressSettings::Folder { folder, undelivered, .. } => [Some(folder), undelivered.as_mut()],
            EgressSettings::Http { undelivered, .. } => [None, undelivered.as_mut()],
        });
        let keys = self.security.iter_mut();
        let keys = keys.flat_map(|policy| {
            [policy.integrity.as_mut(), policy.confidentiality.as_mut(), policy.key_encryption.as_mut()]
        });
        let all = own.into_iter().chain(of_peers).chain(keys).chain(of_inlets).chain(of_outlets);
        for path in all.flatten() {
            *path = folder.join(&*path);
        }
    }

    /// Checks what concerns more than a single value.
    fn check(&self, checks: &mut Checks<'_>) {
        checks.check(&["node"], || self.node.check().inside("node"));
        for (name, leg) in &self.legs {
            let key = format!("legs.{name}.protect");
            checks.check(&[&key], || check_protects_nothing(name, leg).inside(name.as_str()).inside("legs"));
        }
        for (index, listen) in self.listen.iter().enumerate() {
            checks.check(&["listen", "legs"], || {
                self.check_leg(listen.leg.as_ref()).inside(index).inside("listen")
            });
        }
        checks.check(&["ltp", "node"], || self.check_ltp().inside("ltp"));
        self.check_peers(checks);
        for (index, route) in self.routes.iter().enumerate() {
            checks.check(&["routes", "peers"], || self.check_route(route).inside(index).inside("routes"));
        }
        for (index, contact) in self.contacts.iter().enumerate() {
            checks.check(&["contacts"], || check_contact(contact).inside(index).inside("contacts"));
        }
        for (index, policy) in self.security.iter().enumerate() {
            checks.check(&["security"], || policy.check().inside(index).inside("security"));
        }
        for (index, outlet) in self.outlets.iter().enumerate() {
            checks.check(&["outlets"], || outlet.check().inside(index).inside("outlets"));
        }
    }

    fn check_leg(&self, leg: Option<&String>) -> Result<(), Problem> {
        match leg {
            Some(leg) if !self.legs.contains_key(leg) => Err(Problem::of(
                "leg",
                format!(
                    "there is no leg \"{leg}\"; write [legs.{leg}], or leave leg out for the terrestrial one"
                ),
            )),
            _ => Ok(()),
        }
    }

    fn check_peers(&self, checks: &mut Checks<'_>) {
        let mut seen = BTreeSet::new();
        for (index, peer) in self.peers.iter().enumerate() {
            let id = &peer.id;
            let is_new = seen.insert(id);
            let of_id = |what: &str| Err(Problem::of("id", format!("\"{id}\" {what}")));
            checks.check(&["peers", "node", "ltp", "contacts"], || {
                self.check_peer_ltp(peer).inside("ltp").inside(index).inside("peers")
            });
            checks.check(&["peers", "node", "udp", "contacts"], || {
                self.check_peer_udp(peer).inside("udp").inside(index).inside("peers")
            });
            checks.check(&["peers", "node", "legs"], || {
                let check = if *id == self.node.id {
                    of_id("is this node itself; leave this peer out")
                } else if !is_new {
                    of_id("is there twice; give each peer one [[peers]]")
                } else {
                    peer.check(&self.node).and_then(|()| self.check_leg(peer.leg.as_ref()))
                };
                check.inside(index).inside("peers")
            });
        }
    }

    fn check_route(&self, route: &RouteSettings) -> Result<(), Problem> {
        let RouteSettings { to, via } = route;
        if self.peers.iter().any(|peer| peer.id == *via) {
            return Ok(());
        }
        let message =
            format!("the route to {to} goes via {via}, which is no peer; add [[peers]] with that id");
        Err(Problem::of("via", message))
    }
}

impl NodeSettings {
    fn check(&self) -> Result<(), Problem> {
        check_node("id", &self.id)?;
        if self.certificate.is_some() != self.key.is_some() {
            let message = "certificate and key go together; `bentpipe dtn identity` makes both";
            return Err(Problem::new(message));
        }
        if self.authority.is_some() && self.certificate.is_none() {
            let message = "both ends show certificates; write this node's as certificate and key";
            return Err(Problem::of("authority", message));
        }
        if self.lifetime.get().is_zero() {
            return Err(Problem::of("lifetime", "0s is too short: every bundle would be given up at once"));
        }
        match self.metrics {
            Some(Address(address)) if !address.ip().is_loopback() && self.metrics_token_file.is_none() => {
                let message = format!(
                    "\"{address}\" can be reached from outside; name a file with a secret in \
                     node.metrics_token_file, or listen on a loopback address, such as 127.0.0.1:7501"
                );
                Err(Problem::of("metrics", message))
            }
            _ => Ok(()),
        }
    }
}

/// A node's traffic is its own TCP connections, which the leg's congestion control serves.
fn check_protects_nothing(name: &str, leg: &SatelliteLeg) -> Result<(), Problem> {
    let message = || {
        format!(
            "a bundle node protects no packets; leave the table out here, and write [legs.{name}.protect] in the \
             configuration of the proxy"
        )
    };
    leg.protect.as_ref().map_or(Ok(()), |_| Err(Problem::of("protect", message())))
}

fn check_contact(contact: &Contact) -> Result<(), Problem> {
    check_node("from", &contact.from)?;
    check_node("to", &contact.to)?;
    contact.check().map_err(|error| Problem::of(error.key, error.reason))
}

/// A node's endpoint, not that of one of its services.
fn check_node(key: &str, id: &Eid) -> Result<(), Problem> {
    if id.is_node() {
        return Ok(());
    }
    Err(Problem::of(key, format!("\"{id}\" is no node; write dtn://name/ or ipn:5.0")))
}

impl PeerSettings {
    /// Checks it for a node with these settings.
    fn check(&self, node: &NodeSettings) -> Result<(), Problem> {
        check_node("id", &self.id)?;
        self.check_trust(node)?;
        for (key, size, least) in [
            ("fragment_above", self.fragment_above, SMALLEST_FRAGMENT),
            ("segment_mru", self.segment_mru, SMALLEST_SEGMENT),
            ("transfer_mru", self.transfer_mru, SMALLEST_FRAGMENT),
        ] {
            if let Some(size) = size.filter(|size| size.get() < least) {
                return Err(Problem::of(key, format!("{size} is too small: write {least}B or more")));
            }
        }
        if self.retry_within.get().is_zero() {
            let message = "0s is too short; one second or more leaves the network in peace";
            return Err(Problem::of("retry_within", message));
        }
        Ok(())
    }

    fn check_trust(&self, node: &NodeSettings) -> Result<(), Problem> {
        let (has_certificate, own) = (node.certificate.is_some(), self.authority.is_some());
        let is_known = self.certificate.is_some() || own || node.authority.is_some();
        if self.tls == Some(TlsChoice::Required) && !(is_known && has_certificate) {
            return Err(Problem::of(
                "tls",
                "\"required\" needs the peer's certificate, or the authority that issues it, and this node's as \
                 node.certificate and node.key",
            ));
        }
        if self.certificate.is_some() && own {
            let message = "with certificate the peer has to have exactly that one; leave one of the two out";
            return Err(Problem::of("authority", message));
        }
        if own && !has_certificate {
            let message = "both ends show certificates; write this node's as node.certificate and node.key";
            return Err(Problem::of("authority", message));
        }
        match &self.other_names {
            Some(_) if self.certificate.is_some() || !is_known => {
                let message =
                    "names count in certificates of an authority only; write authority, or leave it out";
                Err(Problem::of("other_names", message))
            }
            Some(names) if names.contains(&OtherName::Dns) && !self.has_host() => {
                let message = "\"dns\" is the name in the peer's address, which has none; write for example \
                               address = \"gs2.example.net:4556\"";
                Err(Problem::of("other_names", message))
            }
            _ => Ok(()),
        }
    }

    fn has_host(&self) -> bool {
        self.address.as_ref().is_some_and(|address| address.host().is_some())
    }

    /// Whether names of this kind may name it in a certificate without a bundle EID.
    pub(crate) fn may_be_named_by(&self, name: OtherName) -> bool {
        self.other_names.as_ref().map_or(name == OtherName::Dns, |names| names.contains(&name))
    }

    /// Whether its sessions are encrypted, if this node has a certificate or has none.
    pub fn is_encrypted(&self, has_identity: bool) -> bool {
        match self.tls {
            Some(choice) => choice == TlsChoice::Required,
            None => has_identity && (self.certificate.is_some() || self.authority.is_some()),
        }
    }

    /// The convergence layer by which it is reached.
    pub(crate) fn layer(&self) -> &'static str {
        match (&self.ltp, &self.udp) {
            (Some(_), _) => "ltp",
            (None, Some(_)) => "udp",
            (None, None) => "tcpcl",
        }
    }

    /// Whether it is reached by LTP or UDP, and so has no sessions of TCPCL.
    pub fn uses_datagrams(&self) -> bool {
        self.ltp.is_some() || self.udp.is_some()
    }
}

impl SecuritySettings {
    fn check(&self) -> Result<(), Problem> {
        if self.integrity.is_none() && self.confidentiality.is_none() {
            let message =
                "it protects nothing; write the file of a key as integrity, confidentiality or both";
            return Err(Problem::new(message));
        }
        Ok(())
    }
}

fn everywhere() -> EidPattern {
    EidPattern::any()
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

    /// With a certificate.
    const KEYED: &str = "[node]\nid = \"dtn://gs1/\"\ncertificate = \"a.pem\"\nkey = \"a.key\"\n";

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
    fn contradictory_settings_are_refused_with_a_remedy() {
        let peer = |rest: &str| format!("{LEAST}[[peers]]\nid = \"dtn://gs2/\"\n{rest}");
        for (text, says) in [
            (
                "[node]\nid = \"dtn://gs1/files\"\n".into(),
                "node.toml:2: node.id: \"dtn://gs1/files\" is no node",
            ),
            ("[node]\nid = \"gs1\"\n".into(), "dtn://node/service"),
            ("[node]\nid = \"dtn://gs1/\"\nlifetime = \"0s\"\n".into(), "lifetime"),
            ("[node]\nid = \"dtn://gs1/\"\nkey = \"k\"\n".into(), "go together"),
            (
                format!("{LEAST}metrics = \"0.0.0.0:7501\"\n"),
                "node.toml:3: node.metrics: \"0.0.0.0:7501\" can be reached from outside",
            ),
            (format!("{LEAST}metrics = \"7501\"\n"), "is not an address with a port"),
            (peer("leg = \"moon\"\n"), "node.toml:5: peers[1].leg: there is no leg \"moon\""),
            (
                peer("[[peers]]\nid = \"dtn://gs2/\"\n"),
                "node.toml:6: peers[2].id: \"dtn://gs2/\" is there twice",
            ),
            (peer("[[peers]]\nid = \"dtn://gs1/\"\n"), "itself"),
            (peer("tls = \"required\"\n"), "certificate"),
            (
                format!("{LEAST}[legs.a]\ninterface = \"sat0\"\n[legs.a.protect]\npeer = \"192.0.2.2\"\n"),
                "legs.a.protect: a bundle node protects no packets",
            ),
            (peer("authority = \"ca.pem\"\n"), "peers[1].authority: both ends show certificates"),
            (
                peer("other_names = [\"uri\"]\n"),
                "peers[1].other_names: names count in certificates of an authority",
            ),
            (
                format!(
                    "{KEYED}[[peers]]\nid = \"dtn://gs2/\"\nauthority = \"ca.pem\"\ncertificate = \"b.pem\"\n"
                ),
                "exactly that one",
            ),
            (
                format!(
                    "{KEYED}authority = \"ca.pem\"\n[[peers]]\nid = \"dtn://gs2/\"\nother_names = [\"dns\"]\n"
                ),
                "the name in the peer's address, which has none",
            ),
            (format!("{LEAST}authority = \"ca.pem\"\n"), "node.authority: both ends show certificates"),
            (peer("fragment_above = \"1kB\"\n"), "fragment_above"),
            (peer("segment_mru = \"1B\"\n"), "segment_mru"),
            (peer("retry_within = \"0s\"\n"), "retry_within"),
            (ltp("engine = 1\n", "engine = 1\nrate = \"1Mbit/s\"\n"), "peers[1].ltp.engine: 1 is the number"),
            (ltp("engine = 1\n", "rate = \"1Mbit/s\"\n"), "peers[1].ltp.engine: an ipn node has"),
            (ltp("", "engine = 2\nrate = \"1Mbit/s\"\n"), "ltp.engine: the engine has no number"),
            (ltp("engine = 1\n", "engine = 2\n"), "peers[1].ltp.rate: nothing says how fast"),
            (
                ltp("engine = 1\n", "engine = 2\nrate = \"1Mbit/s\"\ndatagram = \"70kB\"\n"),
                "datagram: 70kB is not possible: write 200B to 65507B",
            ),
            (
                ltp("engine = 1\n", "engine = 2\nrate = \"1Mbit/s\"\nwindow = \"1kB\"\n"),
                "window: 1kB is less than a block",
            ),
            (
                peer("ltp = { address = \"192.0.2.2:1113\", engine = 2 }\n"),
                "peers[1].ltp: this node has no engine",
            ),
            (peer("colour = \"red\"\n"), "colour"),
            (format!("{LEAST}[[routes]]\nto = \"*\"\nvia = \"dtn://gs3/\"\n"), "no peer"),
            (contact("2027-01-02T00:00:00Z", "2027-01-01T00:00:00Z"), "ends before"),
            (contact("2027-01-02", "2027-01-03"), "offset"),
            (
                series("every = \"59m\""),
                "node.toml:9: contacts[1].every: the next contact begins before this one",
            ),
            (
                series("until = 2027-01-02T00:00:00Z"),
                "contacts[1].until: a single contact ends at end; write every",
            ),
            (series("every = \"1h\"\nuntil = 2027-01-01T00:00:00Z"), "write an until after start"),
            (series("every = \"1h\"\nuntil = 2027-01-02"), "offset"),
            (format!("{LEAST}[[security]]\nsource = \"dtn://gs2/*\"\n"), "security[1]: it protects nothing"),
            (outlet(""), "does not say where PUTs may go"),
            (
                outlet("to = [\"10.2.0.1/16\"]\n"),
                "node.toml:7: outlets[1].to[1]: \"10.2.0.1/16\" has bits set",
            ),
            (outlet("to = [\"10.2.0.0/16\"]\nserver = \"192.0.2.1:80\"\n"), "leave to out"),
            (inlet("[]"), "node.toml:5: inlets[1].address: an empty list"),
            (inlet("\"7690\""), "is not an address with a port; write for example"),
        ] {
            let error = error(&text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    fn ltp(own: &str, peers: &str) -> String {
        format!(
            "{LEAST}[[peers]]\nid = \"dtn://gs2/\"\n[peers.ltp]\naddress = \"192.0.2.2:1113\"\n{peers}\
             [ltp]\naddress = \"0.0.0.0:1113\"\n{own}"
        )
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

    /// A contact of an hour, with further lines.
    fn series(rest: &str) -> String {
        format!("{}{rest}\n", contact("2027-01-01T00:00:00Z", "2027-01-01T01:00:00Z"))
    }

    #[test]
    fn a_contact_may_be_repeated() {
        let text = series("every = \"1h\"\nuntil = 2027-01-02T00:00:00Z");
        let contact = NodeConfig::parse("node.toml", &text).unwrap().contacts.remove(0);
        assert_eq!(contact.every.unwrap().get().as_secs(), 3600);
        assert_eq!(contact.until.unwrap().since(contact.start).as_secs(), 24 * 3600);
    }

    #[test]
    fn encryption_is_on_where_both_have_certificates() {
        let text = format!("{LEAST}[[peers]]\nid = \"dtn://gs2/\"\ncertificate = \"gs2.pem\"\n");
        let peer = NodeConfig::parse("node.toml", &text).unwrap().peers.remove(0);
        assert!(peer.is_encrypted(true) && !peer.is_encrypted(false));
        assert!(!PeerSettings { tls: Some(TlsChoice::Off), ..peer }.is_encrypted(true));
    }

    #[test]
    fn peers_without_a_certificate_have_the_nodes_authority() {
        let text = format!(
            "{KEYED}authority = \"ca.pem\"\n[[peers]]\nid = \"dtn://b/\"\n[[peers]]\nid = \"dtn://c/\"\n\
             certificate = \"c.pem\"\n[[peers]]\nid = \"dtn://d/\"\nauthority = \"other.pem\"\n"
        );
        let peers = NodeConfig::parse("node.toml", &text).unwrap().peers;
        let authorities: Vec<_> = peers.iter().map(|peer| peer.authority.as_deref()).collect();
        assert_eq!(authorities, [Some(Path::new("ca.pem")), None, Some(Path::new("other.pem"))]);
        assert!(peers.iter().all(|peer| peer.is_encrypted(true)));
        assert!(peers[0].may_be_named_by(OtherName::Dns) && !peers[0].may_be_named_by(OtherName::Uri));
    }
}
