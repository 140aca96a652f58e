//! `[ltp]` and `[peers.ltp]`: nodes that are reached by LTP (RFC 5326) over UDP.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bentpipe_config::Problem;
use bentpipe_units::{ByteCount, Rate, Span};
use serde::Deserialize;

use super::{NodeConfig, PeerSettings, SMALLEST_FRAGMENT, TlsChoice};
use crate::Eid;
use crate::route::Contact;

/// The least datagram that has room for a signature and some data, bytes.
const SIGNED_DATAGRAM: u64 = 1000;
/// The datagrams that are possible, bytes: the least has room for a header and some data, the most is what UDP
/// over IPv4 carries.
const DATAGRAM: std::ops::RangeInclusive<u64> = 200..=65_507;
/// What an answer may take beyond two propagation delays, if nothing is said.
const MARGIN: Span = Span(Duration::from_secs(1));

/// `[ltp]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LtpSettings {
    /// The UDP address and port; that of LTP is 1113.
    pub address: SocketAddr,
    /// The number of this node's engine; by default the node number of an `ipn` node.
    pub engine: Option<u64>,
}

/// `[peers.ltp]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerLtpSettings {
    /// Where its engine listens.
    pub address: SocketAddr,
    /// The number of its engine; by default the node number of an `ipn` node.
    pub engine: Option<u64>,
    /// How fast is sent, with the headers of IP and UDP; by default what the leg's controller allots, or the
    /// leg's rate, or that of the contact.
    pub rate: Option<Rate>,
    /// The propagation delay to it; by default half of the leg's `rtt`, or the contact's delay.
    pub delay: Option<Span>,
    /// How long an answer may take beyond two propagation delays.
    #[serde(default = "default_margin")]
    pub margin: Span,
    /// Whether what is lost is sent again.
    #[serde(default = "red")]
    pub color: LtpColor,
    /// The longest datagram, without the headers of IP and UDP.
    #[serde(default = "default_datagram")]
    pub datagram: ByteCount,
    /// The longest block: longer bundles go in fragments.
    #[serde(default = "default_block")]
    pub block: ByteCount,
    /// The most bytes that wait to be acknowledged, or to arrive whole; by default four round trips at `rate`.
    pub window: Option<ByteCount>,
    /// How segments are authenticated, in both directions; by default they are not.
    pub authentication: Option<LtpAuthentication>,
    /// The file with the key of HMAC-SHA1-80, or with this node's private key of RSA-SHA256.
    pub key: Option<PathBuf>,
    /// The file with the peer's public key of RSA-SHA256.
    pub peer_key: Option<PathBuf>,
}

/// The cipher suites of RFC 5327.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum LtpAuthentication {
    /// An HMAC with a key that both ends have.
    #[serde(rename = "hmac-sha1-80")]
    HmacSha1,
    /// Signatures.
    #[serde(rename = "rsa-sha256")]
    RsaSha256,
    /// An HMAC whose key everybody has: against errors.
    #[serde(rename = "null")]
    Null,
}

/// Whether blocks are red or green.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LtpColor {
    /// What is lost is sent again, until the peer has it in its store.
    Red,
    /// Each bundle is sent once, and then forgotten: for links without a way back.
    Green,
}

impl NodeConfig {
    /// The number of this node's engine; the configuration has been checked.
    pub(crate) fn engine(&self) -> Option<u64> {
        self.ltp.as_ref()?.engine.or_else(|| node_number(&self.node.id))
    }

    /// Checks `[ltp]`.
    pub(super) fn check_ltp(&self) -> Result<(), Problem> {
        if self.ltp.is_some() && self.engine().is_none() {
            let message = "the engine has no number: only an ipn node has one that follows from its id; write \
                           for example engine = 1";
            return Err(Problem::of("engine", message));
        }
        Ok(())
    }

    /// Checks `[peers.ltp]`.
    pub(super) fn check_peer_ltp(&self, peer: &PeerSettings) -> Result<(), Problem> {
        let Some(settings) = &peer.ltp else { return Ok(()) };
        let problem = |key: &str, message: String| Err(Problem::of(key, message));
        let Some(own) = self.engine() else {
            let message = "this node has no engine of its own; write [ltp] with address = \"0.0.0.0:1113\"";
            return Err(Problem::new(message));
        };
        match settings.engine(&peer.id) {
            None => {
                return problem(
                    "engine",
                    "an ipn node has a number by itself; write that of the peer".into(),
                );
            }
            Some(engine) if engine == own => {
                return problem("engine", format!("{engine} is the number of this node's own engine"));
            }
            Some(_) => {}
        }
        self.check_uses_datagrams(peer, settings.rate)?;
        settings.check()
    }

    /// Checks what LTP and bundles over UDP have in common: no connection and no encryption, and a rate from
    /// somewhere.
    pub(super) fn check_uses_datagrams(
        &self,
        peer: &PeerSettings,
        rate: Option<Rate>,
    ) -> Result<(), Problem> {
        let ways = [peer.address.is_some(), peer.ltp.is_some(), peer.udp.is_some()];
        if ways.iter().filter(|way| **way).count() > 1 {
            let message = "a peer is reached by TCPCL at its address, by LTP or by UDP; leave the others out";
            return Err(Problem::new(message));
        }
        if peer.tls == Some(TlsChoice::Required) || peer.certificate.is_some() || peer.authority.is_some() {
            let message = "LTP and UDP do not encrypt; leave tls, certificate and authority out, and write \
                           [[security]] for bundles";
            return Err(Problem::new(message));
        }
        // A plan in a file of its own is read later.
        let in_plan = |contact: &Contact| contact.to.node() == peer.id.node();
        let has_contact = || self.node.contact_plan.is_some() || self.contacts.iter().any(in_plan);
        if rate.is_none() && peer.leg.is_none() && !has_contact() {
            let message =
                "nothing says how fast the link is; write rate, a leg for the peer, or [[contacts]]";
            return Err(Problem::of("rate", message));
        }
        Ok(())
    }
}

impl PeerLtpSettings {
    /// The number of the engine of the peer with this endpoint.
    pub(crate) fn engine(&self, id: &Eid) -> Option<u64> {
        self.engine.or_else(|| node_number(id))
    }

    fn check(&self) -> Result<(), Problem> {
        datagram_problem(self.datagram)?;
        self.check_keys()?;
        if self.block.get() < SMALLEST_FRAGMENT {
            let message = format!("{} is too small: write {SMALLEST_FRAGMENT}B or more", self.block);
            return Err(Problem::of("block", message));
        }
        if let Some(window) = self.window.filter(|window| window.get() < self.block.get()) {
            let message = format!("{window} is less than a block; write {} or more", self.block);
            return Err(Problem::of("window", message));
        }
        Ok(())
    }
}

impl PeerLtpSettings {
    /// Checks that the files are there which the way of authentication needs, and no others.
    fn check_keys(&self) -> Result<(), Problem> {
        let (needs_key, needs_peer_key) = match self.authentication {
            None | Some(LtpAuthentication::Null) => (false, false),
            Some(LtpAuthentication::HmacSha1) => (true, false),
            Some(LtpAuthentication::RsaSha256) => (true, true),
        };
        let keys = [("key", &self.key, needs_key), ("peer_key", &self.peer_key, needs_peer_key)];
        for (name, file, is_needed) in keys {
            if file.is_some() && !is_needed {
                let message = "is not used with this authentication; write \"hmac-sha1-80\" (with key) \
                               or \"rsa-sha256\" (key and peer_key), or leave it out";
                return Err(Problem::of(name, message));
            }
            if file.is_none() && is_needed {
                let message = format!("needs a file with a key; write {name} = \"ltp.key\" with its name");
                return Err(Problem::of("authentication", message));
            }
        }
        if self.authentication == Some(LtpAuthentication::RsaSha256) && self.datagram.get() < SIGNED_DATAGRAM
        {
            let message =
                format!("{} has no room for a signature: write {SIGNED_DATAGRAM}B or more", self.datagram);
            return Err(Problem::of("datagram", message));
        }
        Ok(())
    }
}

fn node_number(id: &Eid) -> Option<u64> {
    match id {
        Eid::Ipn { node, .. } => Some(*node),
        _ => None,
    }
}

/// Whether a datagram can be so long.
pub(super) fn datagram_problem(datagram: ByteCount) -> Result<(), Problem> {
    if DATAGRAM.contains(&datagram.get()) {
        return Ok(());
    }
    let (least, most) = (DATAGRAM.start(), DATAGRAM.end());
    Err(Problem::of("datagram", format!("{datagram} is not possible: write {least}B to {most}B")))
}

fn default_margin() -> Span {
    MARGIN
}

fn red() -> LtpColor {
    LtpColor::Red
}

pub(super) fn default_datagram() -> ByteCount {
    ByteCount::new(1400)
}

fn default_block() -> ByteCount {
    ByteCount::new(1_000_000)
}
